//! What both families compute from scores on: mask, softmax, epilogue, the merge of splits, NaN and infinities of V.

pub mod combine;
pub mod epilogue;
pub mod mask;
pub mod restore;
pub mod scrub;
pub mod softmax;
