//! Appending to caches on the simulator: against the definitions, what wrong values on the device do, what is refused.

use crate::support::{self, problem};
use check::verification::AppendCase;
use ferroflash::append::AppendRole;
use ferroflash::error::StepError;
use ferroflash::problem::{BlockTable, KeySequences, Pages};
use ferroflash::{
    AppendTensors, Attention, Dtype, Error, KvAppend, Layout, NewTokens, Rotary, SimOptions, StreamHandle,
    TensorRole,
};
use std::collections::BTreeSet;

support::trials!(
    new_keys_and_values_are_appended_by_the_definitions,
    wrong_values_on_the_device_append_nothing_outside,
    what_cannot_be_appended_is_refused_by_name,
);

const DTYPES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

fn simulator() -> Attention {
    support::on_simulator(SimOptions::default())
}

fn new_keys_and_values_are_appended_by_the_definitions() {
    let attention = simulator();
    let (mut written, mut widths, mut pages) = (0, BTreeSet::new(), BTreeSet::new());
    for seed in 0..250 {
        for dtype in DTYPES {
            let case = AppendCase::draw(dtype, seed).expect("drawn");
            let judged = case.run(&attention).unwrap_or_else(|error| panic!("{error}: {case}"));
            assert_eq!(judged, Ok(()), "seed {seed}");
            let problem = case.append().problem();
            if case.written() > 0 {
                written += 1;
                widths.insert(problem.sizes().head_dim);
                if let KeySequences::Paged(Pages { page, .. }) = problem.keys() {
                    let strides = problem.strides(TensorRole::K);
                    // Of one head, or pages of one key, both layouts are the same.
                    pages.insert((page, strides.head < strides.row));
                }
            }
        }
    }
    assert!(written > 300, "{written} of 500 cases write anything");
    assert_eq!(widths.len(), 32, "every head_dim");
    for page in [1, 8, 16, 64] {
        assert!([false, true].iter().all(|&nhd| pages.contains(&(page, nhd))), "pages of {page}");
    }
}

fn wrong_values_on_the_device_append_nothing_outside() {
    let attention = simulator();
    for seed in 0..150 {
        let mut case = AppendCase::draw(DTYPES[seed as usize % 2], seed).expect("drawn");
        case.spoil(seed);
        // What is right is not known; an access outside is an error.
        let _ = case.run(&attention).unwrap_or_else(|error| panic!("{error}: {case}"));
    }
}

fn what_cannot_be_appended_is_refused_by_name() {
    let cache = problem(Dtype::F16, [2, 4, 2, 1, 64, 64]).with_layout(Layout::Bshd);
    let packed = cache.with_packed_keys(100).expect("packed");
    assert!(matches!(KvAppend::new(&packed, NewTokens::Each(1)), Err(Error::Step(StepError::Append { .. }))));
    assert!(matches!(KvAppend::new(&cache, NewTokens::Each(0)), Err(Error::ZeroSized { .. })));
    let pages = Pages { page: 1 << 20, pages: 1 << 12, table: BlockTable::Rows { entries: 1 } };
    let huge = cache.with_pages(pages).expect("paged");
    let error = KvAppend::new(&huge, NewTokens::Each(1)).expect_err("too large").to_string();
    assert!(error.contains("keys of the cache") && error.contains("4294967296"), "{error}");
    let append = KvAppend::new(&cache, NewTokens::Each(1)).expect("valid");
    let rotary = Rotary { dim: 64, positions: 64, interleaved: false };
    for dim in [0, 8, 24, 80] {
        let error = append.with_rotary(Rotary { dim, ..rotary }).expect_err("no such rotation");
        assert!(matches!(error, Error::Step(StepError::Rotary { head_dim: 64, .. })), "{error}");
    }
    let error = append.with_rotary(Rotary { positions: 63, ..rotary }).expect_err("too few").to_string();
    assert!(error.contains("63 positions") && error.contains("64 keys"), "{error}");
    assert!(matches!(append.with_rotated_queries(), Err(Error::Step(StepError::Append { .. }))));
    let strides = append.strides(AppendRole::NewK);
    let odd = ferroflash::ElementStrides { row: strides.row + 1, ..strides };
    assert!(
        KvAppend::new(&cache, NewTokens::Each(2))
            .is_ok_and(|two| two.with_strides(AppendRole::NewK, odd).is_err())
    );

    let attention = simulator();
    let rotated = append.with_rotary(rotary).and_then(KvAppend::with_rotated_queries).expect("valid");
    let good = AppendTensors {
        new_k: 0x10000,
        new_v: 0x11000,
        k: 0x20000,
        v: 0x30000,
        q: Some(0x40000),
        rotated_q: Some(0x41000),
        cos: Some(0x50000),
        sin: Some(0x60000),
        seqlens_k: Some(0x70000),
        ..AppendTensors::default()
    };
    let refused = |append: &KvAppend, tensors: AppendTensors, needle: &str| {
        // SAFETY: it is refused before anything is launched.
        let error = unsafe { attention.append(append, &tensors, StreamHandle::DEFAULT) }.expect_err(needle);
        assert!(error.to_string().contains(needle), "{error}: {needle}");
    };
    refused(&rotated, AppendTensors { sin: None, ..good }, "sin: the call takes it");
    refused(&rotated, AppendTensors { q: None, ..good }, "Q: the call takes it");
    refused(&rotated, AppendTensors { seqlens_k: Some(0), ..good }, "seqlens_k: the call takes it");
    refused(&rotated, AppendTensors { slots: Some(64), ..good }, "slots: it was given");
    refused(&rotated, AppendTensors { block_table: Some(64), ..good }, "block_table: it was given");
    refused(&rotated, AppendTensors { cos: Some(0x50004), ..good }, "cos is misaligned");
    refused(&rotated, AppendTensors { new_v: 0, ..good }, "new V: its address is null");
    refused(&rotated, AppendTensors { new_k: 0x2fff0, ..good }, "new K: it overlaps the cache");
    refused(&rotated, AppendTensors { rotated_q: Some(0x40010), ..good }, "rotated Q: it overlaps Q");
    refused(&rotated, AppendTensors { rotated_q: Some(0x20000), ..good }, "rotated Q: it overlaps the cache");
    let same = AppendTensors { lengths_after: Some(0x70000), ..good };
    refused(&rotated, same, "lengths_after: it is written while");
    refused(&append, good, "Q: it was given");
    let slots = append.with_slots();
    let none = AppendTensors { q: None, rotated_q: None, cos: None, sin: None, ..good };
    refused(&slots, none, "slots: the call takes it");
    let lengths =
        AppendTensors { seqlens_k: None, lengths_after: Some(0x80000), slots: Some(0x90000), ..none };
    refused(&slots, lengths, "seqlens_k: the call takes it");
    let packed = KvAppend::new(&cache, NewTokens::Packed(3)).expect("valid");
    refused(&packed, none, "cu_seqlens_new: the call takes it");
}
