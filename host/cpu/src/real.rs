//! The numbers that sums are computed in: float32, or float64 where the elements are.

use crate::call::Dtype;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

/// A type of numbers, and rows of elements as such.
pub(crate) trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
    + Sum
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;

    fn of(value: f64) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn tanh(self) -> Self;
    fn max(self, other: Self) -> Self;
    fn is_nan(self) -> bool;

    /// Reads contiguous elements.
    ///
    /// # Safety
    /// `out.len()` elements of this type lie from `address` on, aligned.
    unsafe fn read_row(dtype: Dtype, address: u64, out: &mut [Self]);

    /// Writes contiguous elements, rounded to nearest even.
    ///
    /// # Safety
    /// `row.len()` elements of this type may be written from `address` on, aligned.
    unsafe fn write_row(dtype: Dtype, address: u64, row: &[Self]);
}

macro_rules! real {
    ($real:ident, $read:ident, $write:ident, $own:ident $(, $other:ident as $element:ident)?) => {
        impl Real for $real {
            const ZERO: $real = 0.0;
            const ONE: $real = 1.0;
            const NEG_INFINITY: $real = $real::NEG_INFINITY;

            fn of(value: f64) -> $real {
                value as $real
            }

            fn exp(self) -> $real {
                self.exp()
            }

            fn ln(self) -> $real {
                self.ln()
            }

            fn tanh(self) -> $real {
                self.tanh()
            }

            fn max(self, other: $real) -> $real {
                self.max(other)
            }

            fn is_nan(self) -> bool {
                self.is_nan()
            }

            unsafe fn read_row(dtype: Dtype, address: u64, out: &mut [$real]) {
                let length = out.len();
                // SAFETY: the caller's promise.
                unsafe {
                    match dtype {
                        Dtype::F16 => std::slice::from_raw_parts(address as *const f16, length).$read(out),
                        Dtype::Bf16 => std::slice::from_raw_parts(address as *const bf16, length).$read(out),
                        Dtype::$own => {
                            out.copy_from_slice(std::slice::from_raw_parts(address as *const $real, length));
                        }
                        $(Dtype::$other => {
                            let row = std::slice::from_raw_parts(address as *const $element, length);
                            out.iter_mut().zip(row).for_each(|(out, &element)| *out = element as $real);
                        })?
                    }
                }
            }

            unsafe fn write_row(dtype: Dtype, address: u64, row: &[$real]) {
                let length = row.len();
                // SAFETY: the caller's promise.
                unsafe {
                    match dtype {
                        Dtype::F16 => std::slice::from_raw_parts_mut(address as *mut f16, length).$write(row),
                        Dtype::Bf16 => {
                            std::slice::from_raw_parts_mut(address as *mut bf16, length).$write(row);
                        }
                        Dtype::$own => {
                            std::slice::from_raw_parts_mut(address as *mut $real, length).copy_from_slice(row);
                        }
                        $(Dtype::$other => {
                            let out = std::slice::from_raw_parts_mut(address as *mut $element, length);
                            out.iter_mut().zip(row).for_each(|(out, &value)| *out = value as $element);
                        })?
                    }
                }
            }
        }
    };
}

real!(f32, convert_to_f32_slice, convert_from_f32_slice, F32, F64 as f64);
real!(f64, convert_to_f64_slice, convert_from_f64_slice, F64, F32 as f32);

/// In eight sums, which the processor adds at a time.
pub(crate) fn dot<R: Real>(a: &[R], b: &[R]) -> R {
    let mut sums = [R::ZERO; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: R = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(&a, &b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.into_iter().sum::<R>() + rest
}

/// Adds a row times a factor to another.
pub(crate) fn add_scaled<R: Real>(sums: &mut [R], factor: R, row: &[R]) {
    sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum += factor * value);
}
