//! Fits the curves of what the cost model leaves unsaid of a kernel: least squares of the logarithms, held to 0.

use super::fit::Sample;
use ferroflash::plan::cost::Coefficients;
use ferroflash::plan::curves::{Curves, MergeCurves};
use ferroflash::plan::work::Merge;
use nalgebra::{SMatrix, SVector};

/// Times over this multiple of the best of their problem do not decide between plans.
const NEAR: f64 = 1.6;
/// Times up to this multiple count in full, others the less the longer they are.
const BEST: f64 = 1.15;
/// How many times without any error a value of a curve is held to 0 by.
const HELD: f64 = 5.0;

/// The curves of a kernel whose coefficients are known, by how its splits are merged.
pub(super) fn curves(samples: &[Sample], coefficients: &Coefficients) -> MergeCurves {
    let mut curves = MergeCurves::default();
    for merge in [Merge::Nothing, Merge::Fused, Merge::Kernel] {
        let of_merge = samples.iter().filter(|sample| sample.work.merge == merge && sample.over < NEAR);
        *curves.of_mut(merge) = fit(of_merge, coefficients);
    }
    curves
}

fn fit<'a>(samples: impl Iterator<Item = &'a Sample>, coefficients: &Coefficients) -> Curves {
    const VALUES: usize = Curves::VALUES;
    let mut normal = SMatrix::<f64, VALUES, VALUES>::identity() * HELD;
    let mut gradient = SVector::<f64, VALUES>::zeros();
    for sample in samples {
        let longer = (sample.us / coefficients.time_us(&sample.work)).ln();
        let weight = (BEST / sample.over).min(1.0).powi(4);
        let values = SVector::from(Curves::weights(&sample.work));
        normal += values * values.transpose() * weight;
        gradient += values * (longer * weight);
    }
    // A sum of squares and of what holds them is positive definite.
    let values = normal.cholesky().map_or_else(SVector::zeros, |cholesky| cholesky.solve(&gradient));
    let four_places = |value: &f64| (value * 1e4).round() / 1e4;
    Curves::from_slice(&values.iter().map(four_places).collect::<Vec<f64>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::{DeviceModel, PlanOptions, Planner, Problem, plan::work::Fill};
    use kernels_gpu::row::Dtype;

    #[test]
    fn times_that_are_longer_by_a_tenth_give_curves_that_say_so() {
        let planner = Planner::of_table(&DeviceModel::H200.info());
        let sample = |problem: usize| {
            let seqlen = 64 + 16 * (problem % 200) as u32;
            let sizes = ferroflash::Sizes {
                batch: 8,
                heads_q: 8,
                heads_kv: 8,
                seqlen_q: seqlen,
                seqlen_k: seqlen,
                head_dim: 64,
            };
            let problem_of = Problem::new(sizes, Dtype::F16).expect("valid");
            let plan = planner.plan(&problem_of, &PlanOptions::new()).expect("planned");
            let work = plan.work(planner.device(), Fill::FULL);
            let prior = Coefficients::START;
            let us = prior.time_us(&work) * 1.1;
            Sample { prior, work, us, over: 1.0, weight: 1.0, problem, is_exact: true }
        };
        let samples: Vec<Sample> =
            (0..4000).map(sample).filter(|sample| sample.work.merge == Merge::Nothing).collect();
        let curves = curves(&samples, &Coefficients::START);
        for sample in &samples {
            let factor = curves.whole.factor(&sample.work);
            assert!((1.05..1.12).contains(&factor), "{factor} of {} CTAs", sample.work.ctas);
        }
        assert_eq!(curves.fused, Curves::default(), "nobody measured any");
    }
}
