//! The backward pass on mma.sync: `dq` keeps queries and streams keys, `dkv` keeps keys and streams queries. Both take the two products
//! that the forward pass has. `dqds` multiplies the dS that a `dkv` has written.

pub mod dkv;
pub mod dq;
pub mod dqds;
pub mod gradients;
pub mod notes;
pub mod stream;
