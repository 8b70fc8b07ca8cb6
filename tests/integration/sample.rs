//! The real tensors: the reference reproduces the float64 results stored beside them.

use crate::support;
use check::reference::reference;
use ferroflash::tensor_file::{self, Options, Source};
use std::path::PathBuf;

support::trials!(the_reference_reproduces_the_stored_results);

fn the_reference_reproduces_the_stored_results() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data/minilm_layer2.safetensors"));
    let inputs = tensor_file::read(&Source::Safetensors(path), &Options::default()).expect("readable");
    assert!(!inputs.problem.causal());
    assert_eq!(inputs.problem.scale(), (1.0 / 32_f64.sqrt()) as f32);
    let computed = reference(&inputs.problem, &inputs.q, &inputs.k, &inputs.v, &|_, _| ());
    let largest = |computed: &[f64], stored: &[f64]| {
        assert_eq!(computed.len(), stored.len());
        computed.iter().zip(stored).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    // What rounding to float32 leaves of values up to 4 and 16, and of a scale rounded to float32.
    assert!(largest(&computed.o, &inputs.stored_o.expect("o is there")) < 4e-7);
    assert!(largest(&computed.lse, &inputs.stored_lse.expect("lse is there")) < 2e-6);
}
