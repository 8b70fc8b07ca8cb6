//! Merging partial results on the simulator: against the definition, against the kernels' own merge of splits, and what is refused.

use crate::support;
use check::verification::{MergeCase, merges};
use ferroflash::error::StepError;
use ferroflash::problem::Extent;
use ferroflash::{Attention, Error, Layout, MergeStates, MergeTensors, Number, SimOptions, StreamHandle};

support::trials!(states_are_merged_by_the_definition, states_that_cannot_be_merged_are_refused);

fn simulator() -> Attention {
    support::on_simulator(SimOptions::default())
}

fn states_are_merged_by_the_definition() {
    let attention = simulator();
    for seed in 0..60 {
        for numbers in merges() {
            let case = MergeCase::draw(numbers, seed).expect("drawn");
            assert_eq!(case.run(&attention).expect("it runs"), Ok(()), "seed {seed}");
        }
    }
}

fn states_that_cannot_be_merged_are_refused() {
    let extent = Extent { batch: 1, heads: 2, rows: 3, width: 64 };
    let new = |states, extent, numbers| MergeStates::new(states, extent, Layout::Bhsd, numbers);
    let halves = (Number::F16, Number::F16);
    assert!(matches!(new(0, extent, halves), Err(Error::Step(StepError::States { states: 0, limit: 256 }))));
    assert!(matches!(new(257, extent, halves), Err(Error::Step(StepError::States { states: 257, .. }))));
    let odd = Extent { width: 20, ..extent };
    assert!(matches!(new(2, odd, halves), Err(Error::UnsupportedHeadDim { head_dim: 20, .. })));
    let none = Extent { rows: 0, ..extent };
    assert!(matches!(new(2, none, halves), Err(Error::ZeroSized { dimension: "rows", .. })));
    let mixed = new(2, extent, (Number::F16, Number::Bf16)).expect_err("no such kernel").to_string();
    assert!(mixed.contains("F16 into Bf16"), "{mixed}");
    let huge = Extent { batch: 1 << 20, heads: 1 << 10, ..extent };
    assert!(matches!(new(2, huge, halves), Err(Error::TooLarge { .. })));

    let (attention, merge) = (simulator(), new(2, extent, halves).expect("valid"));
    let good = MergeTensors {
        partial_o: 0x10000,
        partial_lse: 0x20000,
        next_o: 0x11000,
        next_lse: 0x21000,
        o: 0x30000,
        lse: Some(0x40000),
        ..MergeTensors::default()
    };
    let refused = |tensors: MergeTensors, needle: &str| {
        // SAFETY: it is refused before anything is launched.
        let error = unsafe { attention.merge(&merge, &tensors, StreamHandle::DEFAULT) }.expect_err(needle);
        assert!(error.to_string().contains(needle), "{error}: {needle}");
    };
    refused(MergeTensors { partial_o: 0, ..good }, "the partial O: its address is null");
    refused(MergeTensors { next_lse: 0, ..good }, "the next partial LSE: its address is null");
    refused(MergeTensors { o: 0x30008, ..good }, "O is misaligned: address 196616");
    refused(MergeTensors { lse: Some(0x40002), ..good }, "LSE is misaligned");
    refused(MergeTensors { o: 0x11010, ..good }, "O: it overlaps a partial one");
    refused(MergeTensors { lse: Some(0x21000), ..good }, "LSE: it is written while");
}
