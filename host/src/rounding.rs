//! Elements as bit patterns of f16 and bf16: from float64 and back.

use half::{bf16, f16};
use kernels_gpu::row::Dtype;

/// One element as float64, from its bits.
#[inline]
pub fn widen(dtype: Dtype, bits: u16) -> f64 {
    match dtype {
        Dtype::F16 => f16::from_bits(bits).to_f64(),
        Dtype::Bf16 => bf16::from_bits(bits).to_f64(),
    }
}

/// The bits of the element nearest to `value`, ties to even; past the largest finite value ±∞.
#[inline]
pub fn narrow(dtype: Dtype, value: f64) -> u16 {
    match dtype {
        Dtype::F16 => f16::from_f64(value).to_bits(),
        Dtype::Bf16 => bf16::from_f64(value).to_bits(),
    }
}
