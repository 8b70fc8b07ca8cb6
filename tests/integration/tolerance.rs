//! The tolerance lets good attention pass and catches planted errors.

use crate::support::{self, problem};
use check::random_input::{self, InputKind};
use check::reference::{Reference, reference, reference_of};
use check::tolerance::{Plain, Tolerance, Verdict, plain};
use ferroflash::rounding::narrow;
use ferroflash::{Dtype, HostTensors, Output, Problem};
use half::f16;
use kernels_gpu::row::Accumulation;

support::trials!(
    the_rounded_reference_passes,
    plain_attention_passes,
    a_wrong_scale_is_caught,
    a_dropped_key_is_caught,
    a_shifted_mask_is_caught,
    one_wrong_element_is_caught_and_named,
    nan_must_be_where_it_is_expected_and_nowhere_else,
    unwritten_output_is_caught,
    a_wrong_lse_is_caught,
    float16_accumulation_is_worse_and_allowed_more,
);

const SHAPE: [u32; 6] = [1, 4, 2, 65, 127, 64];
const KINDS: [InputKind; 2] = [InputKind::Random, InputKind::Outliers];

struct Setup {
    kind: InputKind,
    problem: Problem,
    qkv: [Vec<u16>; 3],
    reference: Reference,
    tolerance: Tolerance,
}

impl Setup {
    fn new(dtype: Dtype, shape: [u32; 6], kind: InputKind) -> Setup {
        let problem = problem(dtype, shape).with_causal(true);
        let qkv = random_input::qkv(&problem, kind, 11);
        let tensors = HostTensors::from(&qkv);
        let reference = reference_of(&problem, &tensors, &|_, _| ());
        let tolerance = Tolerance::new(&problem, &tensors, &reference, Accumulation::F32);
        Setup { kind, problem, qkv, reference, tolerance }
    }

    /// What a perfect kernel for `problem`, which may be the wrong one, computes of `qkv`.
    fn judge_other(&self, problem: &Problem, qkv: &[Vec<u16>; 3]) -> Verdict {
        let other = reference(problem, &qkv[0], &qkv[1], &qkv[2], &|_, _| ());
        self.judge(&other)
    }

    fn judge(&self, output: &Reference) -> Verdict {
        let Output { o, lse, .. } = output.rounded(self.problem.dtype());
        self.tolerance.judge(&self.problem, &self.reference, &o, lse.as_deref()).expect("of the right length")
    }
}

fn setups() -> impl Iterator<Item = Setup> {
    [Dtype::F16, Dtype::Bf16].into_iter().flat_map(|dtype| KINDS.map(|kind| Setup::new(dtype, SHAPE, kind)))
}

fn the_rounded_reference_passes() {
    for setup in setups() {
        let verdict = setup.judge(&setup.reference);
        assert!(verdict.passed, "{verdict}");
        assert!(verdict.ratio() < 0.9, "{verdict}");
    }
    // One key, one row: plain attention is exact, and so may be anything that passes, up to the floor.
    let setup = Setup::new(Dtype::Bf16, [1, 1, 1, 1, 1, 32], InputKind::Random);
    assert!(setup.judge(&setup.reference).passed);
}

fn plain_attention_passes() {
    for Setup { problem, qkv, reference, tolerance, .. } in setups() {
        let verdicts = Plain::all(64, Accumulation::F32).into_iter().map(|how| {
            let o = plain(&problem, &HostTensors::from(&qkv), Accumulation::F32, how);
            let o: Vec<u16> = o.iter().map(|&o| narrow(problem.dtype(), f64::from(o))).collect();
            tolerance.judge(&problem, &reference, &o, None).expect("of the right length")
        });
        let verdicts: Vec<Verdict> = verdicts.collect();
        assert!(verdicts.iter().all(|verdict| verdict.passed), "{verdicts:?}");
        assert!(verdicts.iter().any(|verdict| verdict.max_error == verdict.plain_error), "{verdicts:?}");
    }
}

fn a_wrong_scale_is_caught() {
    for setup in setups() {
        let wrong = setup.problem.with_scale(setup.problem.scale() * 1.05).expect("valid");
        let verdict = setup.judge_other(&wrong, &setup.qkv);
        assert!(!verdict.passed && verdict.lse.is_some_and(|lse| !lse.passed), "{verdict}");
        // Where scores are large, rounding them to bf16 costs plain attention as much.
        let plain_is_bad = setup.problem.dtype() == Dtype::Bf16 && setup.kind == InputKind::Outliers;
        assert!(plain_is_bad || verdict.max_error > verdict.allowed, "{verdict}");
    }
}

fn a_dropped_key_is_caught() {
    for setup in setups() {
        // A key whose V is zero adds nothing to P·V, as if it had been skipped there.
        let mut wrong = setup.qkv.clone();
        let key = 40 * 64;
        wrong[2][key..key + 64].fill(0);
        let verdict = setup.judge_other(&setup.problem, &wrong);
        assert!(!verdict.passed && verdict.max_error > verdict.allowed, "{verdict}");
    }
}

fn a_shifted_mask_is_caught() {
    for setup in setups() {
        // Aligned top-left: as if seqlen_k were seqlen_q, so that row i sees keys up to i.
        let shape = [SHAPE[0], SHAPE[1], SHAPE[2], SHAPE[3], SHAPE[3], SHAPE[5]];
        let wrong = problem(setup.problem.dtype(), shape).with_causal(true);
        let short = |tensor: &[u16]| -> Vec<u16> {
            tensor.chunks(127 * 64).flat_map(|head| head[..65 * 64].to_vec()).collect()
        };
        let qkv = [setup.qkv[0].clone(), short(&setup.qkv[1]), short(&setup.qkv[2])];
        let verdict = setup.judge_other(&wrong, &qkv);
        assert!(!verdict.passed && verdict.max_error > verdict.allowed, "{verdict}");
        // Off by one: every row loses its last key.
        let fewer = problem(setup.problem.dtype(), [1, 4, 2, 65, 126, 64]).with_causal(true);
        let short = |tensor: &[u16]| -> Vec<u16> {
            tensor.chunks(127 * 64).flat_map(|head| head[..126 * 64].to_vec()).collect()
        };
        let qkv = [setup.qkv[0].clone(), short(&setup.qkv[1]), short(&setup.qkv[2])];
        let verdict = setup.judge_other(&fewer, &qkv);
        assert!(!verdict.passed && verdict.max_error > verdict.allowed, "{verdict}");
    }
}

fn one_wrong_element_is_caught_and_named() {
    for setup in setups() {
        let mut output = setup.reference.clone();
        // Head 2, row 33, element 7.
        output.o[(2 * 65 + 33) * 64 + 7] += 2.0 * setup.judge(&output).allowed;
        let verdict = setup.judge(&output);
        assert!(!verdict.passed, "{verdict}");
        assert_eq!(verdict.worst, [0, 2, 33, 7]);
    }
}

fn nan_must_be_where_it_is_expected_and_nowhere_else() {
    let setup = Setup::new(Dtype::F16, SHAPE, InputKind::NotANumber);
    let clean = Setup::new(Dtype::F16, SHAPE, InputKind::Random);
    assert!(setup.judge(&setup.reference).passed);
    let missing = setup.judge(&clean.reference);
    assert!(!missing.passed && missing.not_finite_mismatches > 0, "{missing}");
    let spurious = clean.judge(&setup.reference);
    assert!(!spurious.passed && spurious.not_finite_mismatches > 0, "{spurious}");
    assert_eq!(spurious.ratio(), f64::INFINITY);
}

fn unwritten_output_is_caught() {
    for setup in setups() {
        let mut output = setup.reference.clone();
        output.o[64 * 64..65 * 64].fill(f64::NAN);
        let verdict = setup.judge(&output);
        assert!(!verdict.passed && verdict.worst == [0, 0, 64, 0], "{verdict}");
    }
}

fn a_wrong_lse_is_caught() {
    for setup in setups() {
        let mut output = setup.reference.clone();
        output.lse[100] += 2e-3;
        let verdict = setup.judge(&output);
        let lse = verdict.lse.expect("judged");
        assert!(!verdict.passed && !lse.passed && lse.worst == [0, 1, 35], "{verdict}");
        output.lse[100] = f64::NEG_INFINITY;
        assert!(!setup.judge(&output).passed);
    }
}

fn float16_accumulation_is_worse_and_allowed_more() {
    let problem = problem(Dtype::F16, [1, 2, 2, 64, 128, 256]);
    let qkv = random_input::qkv(&problem, InputKind::Random, 12);
    let tensors = HostTensors::from(&qkv);
    let reference = reference_of(&problem, &tensors, &|_, _| ());
    let error = |accumulation| {
        let tolerance = Tolerance::new(&problem, &tensors, &reference, accumulation);
        let o: Vec<u16> = reference.o.iter().map(|&o| f16::from_f64(o).to_bits()).collect();
        tolerance.judge(&problem, &reference, &o, None).expect("of the right length").plain_error
    };
    assert!(error(Accumulation::F16) > error(Accumulation::F32));
}
