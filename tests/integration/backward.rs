//! The backward pass on the simulator: gradients of drawn problems against float64, and what holds between calls.

use crate::support;
use check::verification::BackwardCase;
use ferroflash::{Attention, DeviceModel, Dtype, SimOptions};

support::trials!(drawn_passes_are_right,);

fn simulator() -> Attention {
    Attention::simulator(None, SimOptions::default().with_model(DeviceModel::H200)).expect("compiled kernels")
}

fn drawn_passes_are_right() {
    let attention = simulator();
    let dtypes = [Dtype::F16, Dtype::Bf16];
    for (dtype, head_dim) in dtypes.into_iter().flat_map(|dtype| [64, 128].map(|dim| (dtype, dim))) {
        for seed in 0..12 {
            let case = BackwardCase::draw(dtype, head_dim, seed).expect("a problem");
            let gradients = case.run(&attention).unwrap_or_else(|error| panic!("{case}: {error}"));
            let verdict = case.judge(&gradients).expect("whole");
            assert!(verdict.passed, "{case}: {verdict}");
        }
    }
}
