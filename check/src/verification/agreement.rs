//! Whether two devices that ran the same kernel agree: the GPU and the simulator.

use ferroflash::attention::Output;
use ferroflash::rounding::widen;
use kernels_gpu::row::{Accumulation, Dtype};

/// How the outputs of one kernel on two devices compare.
///
/// The order in which mma adds up its products, and the last bits of exp2, are the hardware's own. Both move O by
/// far less than a rounding to the element type, so that the two outputs, each rounded once, differ by at most one
/// unit in the last place of the largest |O|. With float16 accumulation each of head_dim / 16 steps of a
/// score and of the 8 of P·V in a block of 128 keys may round the other way, and O moves by as many units.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Agreement {
    /// Largest difference of O.
    pub max_difference: f64,
    /// Largest difference that passes.
    pub allowed: f64,
    /// Share of the elements of O that are equal in every bit.
    pub equal_share: f64,
    /// Every element is a number in both or in neither, and no difference is over what is allowed.
    pub passed: bool,
}

impl Agreement {
    /// Compares O, bit patterns of `dtype`, of two runs of a kernel with this head_dim and accumulation.
    pub fn new(dtype: Dtype, head_dim: u32, accumulation: Accumulation, a: &Output, b: &Output) -> Agreement {
        let (mut max_difference, mut largest, mut equal) = (0.0_f64, 0.0_f64, 0_usize);
        let mut passed = a.o.len() == b.o.len();
        for (&x, &y) in a.o.iter().zip(&b.o) {
            equal += usize::from(x == y);
            let (x, y) = (widen(dtype, x), widen(dtype, y));
            if x.is_finite() && y.is_finite() {
                max_difference = max_difference.max((x - y).abs());
                largest = largest.max(x.abs()).max(y.abs());
            } else {
                passed &= x.is_nan() == y.is_nan() && (x.is_nan() || x == y);
            }
        }
        let steps = match accumulation {
            Accumulation::F32 => 1.0,
            Accumulation::F16 => f64::from(head_dim) / 16.0 + 8.0,
        };
        let allowed = steps * unit_in_the_last_place(dtype, largest);
        let equal_share = equal as f64 / a.o.len().max(1) as f64;
        Agreement { max_difference, allowed, equal_share, passed: passed && max_difference <= allowed }
    }
}

fn unit_in_the_last_place(dtype: Dtype, value: f64) -> f64 {
    let fraction_bits = match dtype {
        Dtype::F16 => 10,
        Dtype::Bf16 => 7,
    };
    value.max(f64::MIN_POSITIVE).log2().floor().exp2() * f64::from(-fraction_bits).exp2()
}

impl std::fmt::Display for Agreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Agreement { max_difference, allowed, equal_share, .. } = self;
        let percent = equal_share * 100.0;
        write!(
            f,
            "{percent:.2} % of O equal to the simulator's in every bit, largest difference {max_difference:.2e} (allowed {allowed:.2e})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::rounding::narrow;

    fn output(values: &[f64]) -> Output {
        Output::new(values.iter().map(|&value| narrow(Dtype::F16, value)).collect(), None)
    }

    fn agreement(a: &[f64], b: &[f64]) -> Agreement {
        Agreement::new(Dtype::F16, 64, Accumulation::F32, &output(a), &output(b))
    }

    #[test]
    fn one_unit_in_the_last_place_of_the_largest_element_passes_and_two_do_not() {
        let unit = (-10.0_f64).exp2();
        assert_eq!(agreement(&[1.5, 0.25], &[1.5, 0.25 + unit]).allowed, unit);
        assert!(agreement(&[1.5, 0.25], &[1.5 + unit, 0.25]).passed);
        assert!(!agreement(&[1.5, 0.25], &[1.5 + 2.0 * unit, 0.25]).passed);
        assert_eq!(agreement(&[1.0, 2.0], &[1.0, 3.0]).equal_share, 0.5);
    }

    #[test]
    fn nan_must_stand_where_it_stands() {
        assert!(agreement(&[f64::NAN, 1.0], &[f64::NAN, 1.0]).passed);
        assert!(!agreement(&[f64::NAN, 1.0], &[0.0, 1.0]).passed);
        assert!(!agreement(&[f64::INFINITY], &[f64::NEG_INFINITY]).passed);
    }
}
