//! The one judge of kernels, for tests, benchmarks, the lab and the command: what is right, and how long it takes.
//!
//! [`reference`](mod@reference) computes attention in float64 on the CPU, [`tolerance`] says how far a kernel may be from that,
//! [`verification`] puts kernels through grids of problems with guard bands around every buffer, [`random_input`] makes tensors from a
//! seed, [`workload`] adds what a call of a problem is given besides, [`measure`] takes device
//! time, and [`kernel_folder`] writes kernels that nobody compiled. None of it is needed to compute attention: that is `ferroflash`, which this stands on.
//!
//! ```
//! use check::reference::reference;
//! use ferroflash::rounding::{narrow, widen};
//! use ferroflash::{Dtype, Problem, Sizes};
//!
//! // 4 query heads share 2 KV heads; the last of 2 queries sees all 3 keys, the first sees 2.
//! let sizes = Sizes { batch: 1, heads_q: 4, heads_kv: 2, seqlen_q: 2, seqlen_k: 3, head_dim: 64 };
//! let problem = Problem::new(sizes, Dtype::Bf16)?.with_causal(true);
//! let (q, k) = (vec![0; problem.q_len()], vec![0; problem.k_len()]);
//! // Each key's value is its number, and equal scores weigh all visible keys alike.
//! let v: Vec<u16> = (0..problem.v_len()).map(|i| narrow(Dtype::Bf16, (i / 64 % 3) as f64)).collect();
//!
//! let right = reference(&problem, &q, &k, &v, &|_, _| ());
//! assert_eq!((right.o[0], right.o[64]), (0.5, 1.0));
//! assert!((right.lse[1] - 3f64.ln()).abs() < 1e-12);
//! assert_eq!(widen(Dtype::Bf16, v[64]), 1.0);
//! # Ok::<(), ferroflash::Error>(())
//! ```

pub mod kernel_folder;
pub mod measure;
pub mod predict;
pub mod random_input;
pub mod reference;
pub mod tolerance;
pub mod verification;
pub mod workload;
