//! The backward pass on mma.sync: `dq` keeps queries and streams keys, `dkv` keeps keys and streams queries. Both take the two products
//! that the forward pass has.

pub mod dkv;
pub mod dq;
pub mod gradients;
pub mod stream;
