//! Stub.
pub fn include_cuda() {}
