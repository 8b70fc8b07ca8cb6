//! Kernels for ragged batches, examined on some that are drawn from a secret until each thing that such a batch can have was there.

use crate::error::Result;
use crate::exam::{self, Fault, Refusal};
use check::reference::reference_of;
use check::verification::{KernelRun, RaggedCase, RunKernel, ragged_fits, ragged_wants_lse, same_bits};
use ferroflash::attention::Output;
use ferroflash::problem::{KeySequences, Mask};
use ferroflash::rounding::narrow;
use ferroflash::{HostTensors, Problem};
use kernels_gpu::manifest::Kernel;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Batches that are asked about at least.
const LEAST: usize = 8;
/// How often each of their traits is asked about at least: one may not show, where sequences are short.
const TIMES: u32 = 2;
/// Batches that are drawn, most of which nobody asks about.
const DRAWN: u64 = 600;

/// Runs a kernel for ragged batches on packed sequences, pages, windows, sinks, scores, splits; none for another kernel.
///
/// # Errors
/// What keeps it from running and is not its own fault.
pub fn examine_ragged(
    runner: &dyn RunKernel,
    kernel: &Arc<Kernel>,
    seed: u64,
) -> Result<std::result::Result<(), Refusal>> {
    let row = &kernel.row;
    if row.schedule != kernels_gpu::row::Schedule::Ragged {
        return Ok(Ok(()));
    }
    let (mut asked, mut seen) = (0, BTreeMap::<String, u32>::new());
    for number in 0..DRAWN {
        let seed = seed.wrapping_add(number);
        let problem = RaggedCase::sketch(row.dtype, row.head_dim, row.score, seed)?;
        // Some of what is drawn is for other tiles.
        let mut has = traits(&problem);
        if RaggedCase::has_nan(seed) {
            let kinds = has.iter().filter(|one| !one.contains(char::is_numeric));
            let beside: Vec<String> = kinds.map(|one| format!("{BESIDE_NAN}{one}")).collect();
            has.extend(beside);
        }
        let enough = |one: &str| if one.starts_with(BESIDE_NAN) { 1 } else { TIMES };
        let is_new = has.iter().any(|one| seen.get(one).is_none_or(|times| *times < enough(one)));
        if !ragged_fits(&problem, row) || (asked >= LEAST && !is_new) {
            continue;
        }
        asked += 1;
        let case = RaggedCase::draw(row.dtype, row.head_dim, row.score, seed)?;
        if has.contains(SINKS) && !differs(&case, &problem.with_sinks(false))? {
            has.remove(SINKS);
        }
        has.into_iter().for_each(|one| *seen.entry(one).or_default() += 1);
        let run =
            KernelRun { kernel, problem: &case.problem, options: &case.options, tensors: case.tensors() };
        let refused = |fault, said: String| Refusal {
            fault,
            evidence: format!("ragged batch {number} of those drawn: {said}"),
        };
        let output = match runner.run(&run) {
            Ok(output) => output,
            Err(error) => match Fault::of_error(&error) {
                Some(fault) => return Ok(Err(refused(fault, error.to_string()))),
                None => return Err(error.into()),
            },
        };
        if let Err(Refusal { fault, evidence }) = exam::judge_ragged(&case, &output)? {
            return Ok(Err(refused(fault, evidence)));
        }
        if !same_bits(&output, &runner.run(&run)?) {
            return Ok(Err(refused(Fault::NotRepeatable, "another launch gives other bits".to_owned())));
        }
    }
    Ok(Ok(()))
}

/// How the traits of batches with NaN among their inputs begin.
const BESIDE_NAN: &str = "NaN beside ";

/// The trait of sinks, whose scores may be −∞, or so far under the others that nothing shows.
const SINKS: &str = "sinks";

/// Whether a kernel that computes another problem on a case's operands is refused.
fn differs(case: &RaggedCase, other: &Problem) -> Result<bool> {
    Ok(!case.judge(&computed(other, &case.tensors()))?.passed)
}

/// What float64 gives, rounded as outputs are.
fn computed(problem: &Problem, tensors: &HostTensors<'_>) -> Output {
    let right = reference_of(problem, tensors, &|_, _| ());
    let o = right.o.iter().map(|&o| narrow(problem.dtype(), o)).collect();
    Output::new(o, Some(right.lse.iter().map(|&lse| lse as f32).collect()))
}

/// What a batch has that changes something, a name each.
fn traits(problem: &Problem) -> BTreeSet<String> {
    let Mask { window_left, window_right, chunk, prefix, sink_tokens, intervals, tree, .. } = problem.mask();
    let sizes = problem.sizes();
    let (most, is_one) = (sizes.seqlen_k, sizes.seqlen_q == 1);
    let page = match problem.keys() {
        KeySequences::Paged(pages) => Some(pages.page),
        KeySequences::Batch | KeySequences::Packed { .. } => None,
    };
    let keys = match problem.keys() {
        KeySequences::Batch => "keys of a batch".to_owned(),
        KeySequences::Packed { .. } => "packed keys".to_owned(),
        KeySequences::Paged(pages) => format!("{:?}", pages.table).chars().take(3).collect(),
    };
    let has = [
        (window_left.is_some_and(|keys| keys + 1 < most), "left window"),
        (window_right == Some(0) && !is_one, "causal"),
        (
            window_right.is_some_and(|keys| (1..sizes.seqlen_q.saturating_sub(1)).contains(&keys)),
            "right window",
        ),
        (window_right.is_none(), "no window to the right"),
        (chunk.is_some_and(|keys| keys < most), "chunks"),
        (prefix > 0 && prefix < most && sizes.seqlen_q > 16, "prefix"),
        (sink_tokens > 0 && window_left.is_some_and(|keys| keys + sink_tokens < most), "sink tokens"),
        (intervals, "intervals"),
        (tree.is_some(), "tree"),
        (problem.has_sinks(), SINKS),
        (sizes.seqlen_q <= 2, "decoding"),
        (sizes.seqlen_k > 1000, "many keys"),
        (problem.head_dim_v() != sizes.head_dim, "two widths"),
        (problem.scale() != 1.0 / (sizes.head_dim as f32).sqrt(), "scale"),
        (!ragged_wants_lse(problem), "no LSE"),
    ];
    let named = has.into_iter().filter(|(has, _)| *has).map(|(_, name)| name.to_owned());
    let queries = format!("{:?} queries", problem.queries());
    let counted = [
        page.map(|page| format!("pages of {page}")),
        Some(format!("groups of {}", sizes.heads_q / sizes.heads_kv)),
        Some(format!("{} sequences", sizes.batch)),
    ];
    named.chain(counted.into_iter().flatten()).chain([keys, queries.chars().take(3).collect()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::module::kernels_of_table;
    use ferroflash::problem::Score;
    use ferroflash::rounding::widen;
    use kernels_gpu::row::{Schedule, ScoreKind};

    /// Computes another problem than it is asked, in float64.
    struct Mistaken(Mistake);

    /// What it computes instead.
    type Mistake = fn(Problem) -> Problem;

    impl RunKernel for Mistaken {
        fn run(&self, run: &KernelRun<'_>) -> std::result::Result<Output, ferroflash::Error> {
            Ok(computed(&self.0(*run.problem), &run.tensors))
        }
    }

    /// Takes NaN of the inputs for 0 in such problems.
    struct Swallows(IsSuch);

    type IsSuch = fn(&Problem) -> bool;

    impl RunKernel for Swallows {
        fn run(&self, run: &KernelRun<'_>) -> std::result::Result<Output, ferroflash::Error> {
            let swallowed = [run.tensors.q, run.tensors.k, run.tensors.v].map(|tensor| {
                let is_nan = |bits: u16| widen(run.problem.dtype(), bits).is_nan() && (self.0)(run.problem);
                tensor.iter().map(|&bits| if is_nan(bits) { 0 } else { bits }).collect::<Vec<u16>>()
            });
            let mut tensors = run.tensors;
            [tensors.q, tensors.k, tensors.v] = swallowed.each_ref().map(Vec::as_slice);
            Ok(computed(run.problem, &tensors))
        }
    }

    #[test]
    fn nan_that_is_taken_for_0_beside_one_trait_alone_is_found_under_every_seed() {
        let (kernels, _) = kernels_of_table();
        let kernel = kernels
            .iter()
            .find(|kernel| kernel.row.schedule == Schedule::Ragged && kernel.row.score == ScoreKind::Plain)
            .expect("a kernel for ragged batches");
        let such: [(&str, IsSuch); 6] = [
            ("pages", |problem| matches!(problem.keys(), KeySequences::Paged(_))),
            ("left windows", |problem| problem.mask().window_left.is_some()),
            ("sinks", Problem::has_sinks),
            ("intervals", |problem| problem.mask().intervals),
            ("groups", |problem| problem.group() > 2),
            ("no LSE", |problem| !ragged_wants_lse(problem)),
        ];
        for seed in 0..3_u64 {
            for (what, is_such) in such {
                let examined = examine_ragged(&Swallows(is_such), kernel, seed << 40).expect("examined");
                let fault = examined.err().map(|refusal| refusal.fault);
                assert!(matches!(fault, Some(Fault::WrongNan)), "seed {seed}: {what}: {fault:?}");
            }
        }
    }

    fn masked(problem: Problem, change: impl Fn(&mut Mask)) -> Problem {
        let mut mask = problem.mask();
        change(&mut mask);
        problem.with_mask(mask).unwrap_or(problem)
    }

    fn rescaled(problem: Problem) -> Problem {
        problem.with_scale(1.2 * problem.scale()).unwrap_or(problem)
    }

    /// Another scale, where pages are such.
    fn scaled_where(problem: Problem, is_such: impl Fn(u32) -> bool) -> Problem {
        match problem.keys() {
            KeySequences::Paged(pages) if is_such(pages.page) => rescaled(problem),
            _ => problem,
        }
    }

    /// The name that a mistake is refused by, where it is.
    fn found(score: ScoreKind, mistake: Mistake, seed: u64) -> Option<Fault> {
        let (kernels, _) = kernels_of_table();
        let is_it =
            |kernel: &&Arc<Kernel>| kernel.row.schedule == Schedule::Ragged && kernel.row.score == score;
        let kernel = kernels.iter().find(is_it).expect("a kernel for ragged batches");
        let examined = examine_ragged(&Mistaken(mistake), kernel, seed).expect("examined");
        examined.err().map(|refusal| refusal.fault)
    }

    #[test]
    fn a_mistake_in_any_mask_operand_or_score_is_found_under_every_seed() {
        let mistakes: [(&str, ScoreKind, Mistake); 24] = [
            ("one key more to the left", ScoreKind::Plain, |problem| {
                masked(problem, |mask| mask.window_left = mask.window_left.map(|keys| keys + 1))
            }),
            ("one less", ScoreKind::Plain, |problem| {
                masked(problem, |mask| mask.window_left = mask.window_left.map(|keys| keys.saturating_sub(1)))
            }),
            ("one key more to the right", ScoreKind::Plain, |problem| {
                masked(problem, |mask| mask.window_right = mask.window_right.map(|keys| keys + 1))
            }),
            ("right windows are causal", ScoreKind::Plain, |problem| {
                masked(problem, |mask| mask.window_right = mask.window_right.map(|_| 0))
            }),
            ("no chunks", ScoreKind::Plain, |problem| masked(problem, |mask| mask.chunk = None)),
            ("chunks of one more", ScoreKind::Plain, |problem| {
                masked(problem, |mask| mask.chunk = mask.chunk.map(|keys| keys + 1))
            }),
            ("no prefix", ScoreKind::Plain, |problem| masked(problem, |mask| mask.prefix = 0)),
            ("a longer prefix", ScoreKind::Plain, |problem| {
                masked(problem, |mask| mask.prefix += u32::from(mask.prefix > 0))
            }),
            ("no sink tokens", ScoreKind::Plain, |problem| masked(problem, |mask| mask.sink_tokens = 0)),
            ("no intervals", ScoreKind::Plain, |problem| masked(problem, |mask| mask.intervals = false)),
            ("no sinks", ScoreKind::Plain, |problem| problem.with_sinks(false)),
            ("its own scale", ScoreKind::Plain, |problem| {
                let usual = 1.0 / (problem.sizes().head_dim as f32).sqrt();
                problem.with_scale(usual).unwrap_or(problem)
            }),
            ("no tree", ScoreKind::Tree, |problem| masked(problem, |mask| mask.tree = None)),
            ("no softcap", ScoreKind::Softcap, |problem| problem.with_score(Score::Plain).unwrap_or(problem)),
            ("another softcap", ScoreKind::Softcap, |problem| match problem.score() {
                Score::Softcap(cap) => problem.with_score(Score::Softcap(1.5 * cap)).unwrap_or(problem),
                _ => problem,
            }),
            ("pages of one key", ScoreKind::Plain, |problem| scaled_where(problem, |page| page == 1)),
            ("odd pages", ScoreKind::Plain, |problem| {
                scaled_where(problem, |page| page > 1 && !page.is_power_of_two())
            }),
            ("pages of more than a block", ScoreKind::Plain, |problem| {
                scaled_where(problem, |page| page > 64)
            }),
            ("pages of 32", ScoreKind::Plain, |problem| scaled_where(problem, |page| page == 32)),
            ("groups of six", ScoreKind::Plain, |problem| {
                if problem.group() == 6 { rescaled(problem) } else { problem }
            }),
            ("four sequences", ScoreKind::Plain, |problem| {
                if problem.sizes().batch == 4 { rescaled(problem) } else { problem }
            }),
            ("no LSE", ScoreKind::Plain, |problem| {
                if ragged_wants_lse(&problem) { problem } else { rescaled(problem) }
            }),
            ("narrow V", ScoreKind::Plain, |problem| {
                if problem.head_dim_v() < problem.sizes().head_dim { rescaled(problem) } else { problem }
            }),
            ("no slopes", ScoreKind::Alibi, |problem| problem.with_score(Score::Plain).unwrap_or(problem)),
        ];
        for seed in 0..3_u64 {
            let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for (what, score, mistake) in mistakes {
                let fault = found(score, mistake, seed);
                let is_named = fault.is_some_and(|fault| {
                    matches!(fault, Fault::WrongNumbers | Fault::WrongNan | Fault::WrongLse | Fault::Zeros)
                });
                assert!(is_named, "seed {seed}: {what}: {fault:?}");
            }
            assert_eq!(found(ScoreKind::Plain, |problem| problem, seed), None, "what is right passes");
        }
    }
}
