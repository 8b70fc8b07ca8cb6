//! Kernels for ragged batches, examined on some that are drawn from a secret until each thing that such a batch can have was there.

mod traits;

use crate::error::Result;
use crate::exam::question::Code;
use crate::exam::{self, Fault, Refusal};
use check::reference::reference_of;
use check::verification::{KernelRun, RaggedCase, RaggedSketch, RunKernel, ragged_fits, same_bits};
use fastrand::Rng;
use ferroflash::attention::Output;
use ferroflash::rounding::{narrow, widen};
use ferroflash::{HostTensors, Problem};
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::{Dtype, Row, Schedule};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use traits::{SINKS, Trait, Traits, traits};

/// Batches that are drawn, most of which nobody asks about, and how many more where the kernel's code has numbers of its own.
const DRAWN: u64 = 3500;
const DRAWN_FOR_NUMBERS: u64 = 2500;
/// Of the former those whose sizes are often these, which a draw from thousands would hardly meet: beside whole blocks, and usual windows.
const DRAWN_FAR: u64 = 1000;
const FAR: [u32; 10] = [1022, 1023, 1024, 1025, 1026, 2046, 2047, 2048, 2049, 2050];
/// Batches that have to reach a piece of code.
const REACHING: u32 = 2;
/// What any batch costs beside what it is large, in blocks.
const COST_OF_ANY: f64 = 8.0;
/// What a batch may cost that is not drawn for a number of the code: as much as 4096 CTAs, most of them without keys.
const MOST_COST: u32 = 550;
/// Of how many batches one is run again, for whether another launch gives other bits.
const REPEATED: u32 = 8;
/// KV heads that most batches of very many sequences have at least one in seven times.
const MANY_HEADS: u32 = 16;

/// Runs a kernel for ragged batches on packed sequences, pages, windows, sinks, scores, splits, on batches at the numbers in its code, and on those that
/// reach code which few others do; none for another kernel.
///
/// # Errors
/// What keeps it from running and is not its own fault.
pub fn examine_ragged(
    runner: &dyn RunKernel,
    kernel: &Arc<Kernel>,
    code: &Code<'_, RaggedSketch>,
    seed: u64,
) -> Result<std::result::Result<(), Refusal>> {
    if kernel.row.schedule != Schedule::Ragged {
        return Ok(Ok(()));
    }
    let mut asked = 0;
    let ask = |case: &RaggedCase| {
        let run =
            KernelRun { kernel, problem: &case.problem, options: &case.options, tensors: case.tensors() };
        let output = match runner.run(&run) {
            Ok(output) => output,
            Err(error) => match Fault::of_error(&error) {
                Some(fault) => return Ok(Some(Refusal { fault, evidence: format!("{case}: {error}") })),
                None => return Err(error.into()),
            },
        };
        if let Err(refusal) = exam::judge_ragged(case, &output)? {
            return Ok(Some(refusal));
        }
        asked += 1;
        if asked % REPEATED == 1 && !same_bits(&output, &runner.run(&run)?) {
            let evidence = format!("{case}: another launch gives other bits");
            return Ok(Some(Refusal { fault: Fault::NotRepeatable, evidence }));
        }
        Ok(None)
    };
    let refusal = ask_each(&kernel.row, code, seed, ask)?;
    Ok(refusal.map_or(Ok(()), |Refusal { fault, evidence }| {
        Err(Refusal { fault, evidence: format!("a ragged batch that was drawn: {evidence}") })
    }))
}

/// Asks about batches until each trait was there often enough, or one of them is refused.
fn ask_each(
    row: &Row,
    code: &Code<'_, RaggedSketch>,
    seed: u64,
    mut ask: impl FnMut(&RaggedCase) -> Result<Option<Refusal>>,
) -> Result<Option<Refusal>> {
    let mut drawn = Drawn::new(row, code, seed)?;
    while let Some((sketch, mut has)) = drawn.next() {
        let case = sketch.case()?;
        let sinks = Trait::Named(SINKS.to_owned());
        if has.contains_key(&sinks) && !differs(&case, &case.problem.with_sinks(false), &case.tensors())? {
            has.remove(&sinks);
        }
        if has.keys().any(Trait::is_beside_nan) && !shows_nan(&case)? {
            has.retain(|one, _| !one.is_beside_nan());
        }
        drawn.count(&has);
        let refusal = ask(&case)?;
        if refusal.is_some() {
            return Ok(refusal);
        }
    }
    Ok(None)
}

/// Batches of which the next one asked about is always that which has most for what it costs.
struct Drawn {
    batches: Vec<Batch>,
    /// The number of each trait.
    numbers: BTreeMap<Trait, usize>,
    /// How many batches were asked about that had a trait, by its number.
    asked: Vec<u32>,
}

/// A batch that may be asked about.
struct Batch {
    sketch: RaggedSketch,
    has: Traits,
    /// Of its traits those that too few had, by their numbers, and how many are to have each.
    lacking: Vec<(usize, u32)>,
    cost: f64,
}

impl Drawn {
    fn new(row: &Row, code: &Code<'_, RaggedSketch>, seed: u64) -> Result<Drawn> {
        let mut random = Rng::with_seed(seed);
        let (mut numbers, ctas) = code.literals.of_ragged(&mut random);
        let own = numbers.clone();
        // More CTAs than a number are those of this many sequences of many heads.
        numbers.extend(ctas.iter().map(|ctas| (ctas + 2).div_ceil(MANY_HEADS)));
        let scales: Vec<f32> = code.literals.scales().collect();
        let more = if numbers.is_empty() && scales.is_empty() { 0 } else { DRAWN_FOR_NUMBERS };
        let mut sketches = Vec::new();
        for number in 0..DRAWN + more {
            let numbers = match number {
                0..DRAWN_FAR => &FAR[..],
                DRAWN_FAR..DRAWN => &[],
                _ => &numbers,
            };
            let seed = seed.wrapping_add(number);
            let mut sketch = RaggedSketch::draw(row.dtype, row.head_dim, row.score, numbers, seed)?;
            if number >= DRAWN && !scales.is_empty() && random.u8(0..8) == 0 {
                let scale = scales[random.usize(0..scales.len())];
                sketch.problem = sketch.problem.with_scale(scale)?;
            }
            // Some of what is drawn is for other tiles, and what costs most tells little more.
            let is_cheap = number >= DRAWN || sketch.cost() <= MOST_COST;
            if is_cheap && ragged_fits(&sketch.problem, row) {
                sketches.push(sketch);
            }
        }
        let of_sketch = |sketch: RaggedSketch| {
            let mut has = traits(&sketch, row, &own, &ctas);
            if !sketch.has_nan() {
                let reached = (code.reached)(&sketch).into_iter().map(Trait::Reaches);
                has.extend(reached.map(|one| (one, REACHING)));
            }
            (sketch, has)
        };
        let with_traits: Vec<(RaggedSketch, Traits)> = sketches.into_par_iter().map(of_sketch).collect();
        let mut numbers = BTreeMap::new();
        let batches = with_traits.into_iter().map(|(sketch, has)| {
            let mut numbered = |(one, times): (&Trait, &u32)| {
                let next = numbers.len();
                (*numbers.entry(one.clone()).or_insert(next), *times)
            };
            let lacking = has.iter().map(&mut numbered).collect();
            let cost = COST_OF_ANY + f64::from(sketch.cost());
            Batch { sketch, has, lacking, cost }
        });
        let batches = batches.collect();
        Ok(Drawn { batches, asked: vec![0; numbers.len()], numbers })
    }

    /// The next batch to ask about with its traits, as long as one has a trait that too few had.
    fn next(&mut self) -> Option<(RaggedSketch, Traits)> {
        let worth = |batch: &mut Batch| {
            // What enough batches had stays so.
            batch.lacking.retain(|&(one, times)| self.asked[one] < times);
            batch.lacking.len() as f64 / batch.cost
        };
        let all = self.batches.iter_mut().map(worth).enumerate();
        let (at, worth) = all.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
        (worth > 0.0).then(|| {
            let Batch { sketch, has, .. } = self.batches.swap_remove(at);
            (sketch, has)
        })
    }

    fn count(&mut self, has: &Traits) {
        has.keys().for_each(|one| self.asked[self.numbers[one]] += 1);
    }
}

/// Whether a kernel that computes another problem on a case's operands, or the same on others, is refused.
fn differs(case: &RaggedCase, other: &Problem, tensors: &HostTensors<'_>) -> Result<bool> {
    Ok(!case.judge(&computed(other, tensors))?.passed)
}

/// Whether a kernel that takes NaN of the inputs for 0 is refused.
fn shows_nan(case: &RaggedCase) -> Result<bool> {
    let mut tensors = case.tensors();
    let without = [tensors.q, tensors.k, tensors.v].map(|tensor| without_nan(case.problem.dtype(), tensor));
    [tensors.q, tensors.k, tensors.v] = without.each_ref().map(Vec::as_slice);
    differs(case, &case.problem, &tensors)
}

/// A tensor with 0 for NaN.
fn without_nan(dtype: Dtype, tensor: &[u16]) -> Vec<u16> {
    tensor.iter().map(|&bits| if widen(dtype, bits).is_nan() { 0 } else { bits }).collect()
}

/// What float64 gives, rounded as outputs are.
fn computed(problem: &Problem, tensors: &HostTensors<'_>) -> Output {
    let right = reference_of(problem, tensors, &|_, _| ());
    let o = right.o.iter().map(|&o| narrow(problem.dtype(), o)).collect();
    Output::new(o, Some(right.lse.iter().map(|&lse| lse as f32).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exam::question::Literals;
    use check::reference::row_start;
    use check::verification::ragged_wants_lse;
    use ferroflash::attention::HostOperand;
    use ferroflash::module::kernels_of_table;
    use ferroflash::problem::{KeySequences, Mask, Operand, Score, Sizes, TensorRole};
    use kernels_gpu::row::ScoreKind;
    use std::cell::OnceCell;

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
            let mut tensors = run.tensors;
            let swallowed =
                [tensors.q, tensors.k, tensors.v].map(|tensor| without_nan(run.problem.dtype(), tensor));
            if (self.0)(run.problem) {
                [tensors.q, tensors.k, tensors.v] = swallowed.each_ref().map(Vec::as_slice);
            }
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
                let examined = examine_ragged(&Swallows(is_such), kernel, &Code::unknown(), seed << 40)
                    .expect("examined");
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
        let examined = examine_ragged(&Mistaken(mistake), kernel, &Code::unknown(), seed).expect("examined");
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

    /// One row of O, as a mistake may know it.
    struct RowAt {
        sequence: u32,
        head: u32,
        queries: u32,
        keys: u32,
    }

    type IsWrong = fn(&Problem, &RowAt) -> bool;

    /// What a kernel gives that is right but for some rows, which are those of another output; `None` where none is wrong.
    fn with_wrong_rows<'a>(
        case: &RaggedCase,
        right: &Output,
        wrong: impl FnOnce() -> &'a Output,
        is_wrong: IsWrong,
    ) -> Option<Output> {
        let (problem, tensors) = (&case.problem, case.tensors());
        let starts = |operand| match tensors.operand(operand) {
            Some(HostOperand::U32(starts)) => Some(starts.to_vec()),
            _ => None,
        };
        let (q_starts, k_starts) = (starts(Operand::CuSeqlensQ), starts(Operand::CuSeqlensK));
        let Sizes { batch, heads_q, seqlen_q, seqlen_k, .. } = *problem.sizes();
        let length = |starts: &Option<Vec<u32>>, at: u32| {
            starts.as_ref().map(|starts| starts[at as usize + 1] - starts[at as usize])
        };
        let mut rows = Vec::new();
        for sequence in 0..batch {
            let queries = length(&q_starts, sequence).unwrap_or(seqlen_q);
            let own = tensors.seqlens_k.map(|lengths| lengths[sequence as usize]);
            let keys = length(&k_starts, sequence).or(own).unwrap_or(seqlen_k);
            let first = q_starts.as_ref().map_or(0, |starts| starts[sequence as usize]);
            let entry = if q_starts.is_some() { 0 } else { sequence };
            for head in 0..heads_q {
                if is_wrong(problem, &RowAt { sequence, head, queries, keys }) {
                    let all = first..first + queries;
                    rows.extend(all.map(|row| [entry, head, row].map(|at| at as usize)));
                }
            }
        }
        if rows.is_empty() {
            return None;
        }
        let (wrong, mut given) = (wrong(), right.clone());
        for at in rows {
            let start = row_start(problem, TensorRole::O, at);
            let row = start..start + problem.head_dim_v() as usize;
            given.o[row.clone()].copy_from_slice(&wrong.o[row]);
        }
        Some(given)
    }

    /// Those of some mistakes that no batch tells of, in an exam that knows this of the kernel's code.
    fn not_found(
        mistakes: &[(&'static str, IsWrong)],
        code: &Code<'_, RaggedSketch>,
        seed: u64,
    ) -> Vec<&'static str> {
        let (kernels, _) = kernels_of_table();
        let kernel = kernels.iter().find(|kernel| kernel.row.schedule == Schedule::Ragged).expect("a kernel");
        let mut left = mistakes.to_vec();
        let ask = |case: &RaggedCase| {
            let right = computed(&case.problem, &case.tensors());
            let wrong = OnceCell::new();
            let rescaled = || wrong.get_or_init(|| computed(&rescaled(case.problem), &case.tensors()));
            left.retain(|(_, is_wrong)| {
                let given = with_wrong_rows(case, &right, rescaled, *is_wrong);
                given.is_none_or(|given| case.judge(&given).expect("as long as the right one").passed)
            });
            Ok(None)
        };
        ask_each(&kernel.row, code, seed, ask).expect("asked");
        left.into_iter().map(|(what, _)| what).collect()
    }

    fn tiles_of_64(problem: &Problem) -> u32 {
        let Sizes { batch, heads_kv, seqlen_q, .. } = *problem.sizes();
        batch * heads_kv * (seqlen_q * problem.group()).div_ceil(64)
    }

    fn page(problem: &Problem) -> u32 {
        match problem.keys() {
            KeySequences::Paged(pages) => pages.page,
            _ => 0,
        }
    }

    #[test]
    fn a_mistake_at_one_usual_size_is_found_under_every_seed() {
        let mistakes: [(&str, IsWrong); 21] = [
            ("8 sequences", |problem, _| problem.sizes().batch == 8),
            ("9 sequences", |problem, _| problem.sizes().batch == 9),
            ("17 sequences", |problem, _| problem.sizes().batch == 17),
            ("more than 256 sequences", |problem, _| problem.sizes().batch > 256),
            ("more than 4096 tiles", |problem, _| tiles_of_64(problem) > 4096),
            ("512 keys", |_, row| row.keys == 512),
            ("2050 keys", |_, row| row.keys == 2050),
            ("more than 2050 keys", |_, row| row.keys > 2050),
            ("21 keys more than whole blocks", |_, row| row.keys % 64 == 21),
            ("pages of 48", |problem, _| page(problem) == 48),
            ("pages of more than 256", |problem, _| page(problem) > 256),
            ("a window of 1024 to the left", |problem, _| problem.mask().window_left == Some(1024)),
            ("a window of 1024", |problem, _| problem.mask().window_left == Some(1023)),
            ("chunks of 128", |problem, _| problem.mask().chunk == Some(128)),
            ("groups of 12", |problem, _| problem.group() == 12),
            ("groups of more than 64", |problem, _| problem.group() > 64),
            ("six KV heads", |problem, _| problem.sizes().heads_kv == 6),
            ("more than 64 KV heads", |problem, _| problem.sizes().heads_kv > 64),
            ("sequence number 7", |_, row| row.sequence == 7),
            ("sequences from number 256 on", |_, row| row.sequence >= 256),
            ("head 20", |_, row| row.head == 20),
        ];
        for seed in 1..3_u64 {
            let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            assert_eq!(not_found(&mistakes, &Code::unknown(), seed), Vec::<&str>::new(), "seed {seed}");
        }
    }

    /// A hash of sizes, which no number in the code tells.
    fn hash(problem: &Problem) -> u32 {
        let Sizes { seqlen_q, seqlen_k, .. } = *problem.sizes();
        ((31 * seqlen_q) ^ (7 * seqlen_k)) % 61
    }

    #[test]
    fn a_mistake_at_a_number_of_the_code_or_in_code_that_few_batches_reach_is_found() {
        let mistakes: [(&str, IsWrong); 10] = [
            ("777 keys of one sequence", |_, row| row.keys == 777),
            ("37 sequences", |problem, _| problem.sizes().batch == 37),
            ("sequence number 37", |_, row| row.sequence == 37),
            ("37 KV heads", |problem, _| problem.sizes().heads_kv == 37),
            ("pages of 72", |problem, _| page(problem) == 72),
            ("a window of 777", |problem, _| problem.mask().window_left == Some(777)),
            ("777 queries of one sequence", |_, row| row.queries == 777),
            ("more than 6000 tiles", |problem, _| tiles_of_64(problem) > 6000),
            ("a scale of 1", |problem, _| problem.scale() == 1.0),
            ("a hash of sizes", |problem, _| hash(problem) == 3),
        ];
        let ptx = "ld.param.b64 %rd1, [k_param_0+8];\nmov.b64 {%r1, %r2}, %rd1;\nld.param.f32 %f1, [k_param_0+16];\n\
             ld.global.b32 %r3, [%rd1];\nsetp.eq.s32 %p1, %r3, 777;\nsetp.eq.s32 %p2, %r1, 37;\nsetp.eq.s32 %p3, %r2, 72;\n\
             setp.eq.f32 %p4, %f1, 0f3FB8AA3B;\nmov.u32 %r4, %nctaid.x;\nsetp.gt.u32 %p5, %r4, 6000;";
        let reached = |batch: &RaggedSketch| vec![u32::from(hash(&batch.problem) == 3)];
        let code = Code { literals: Literals::of_ptx(ptx), reached: &reached };
        for seed in 1..3_u64 {
            assert_eq!(not_found(&mistakes, &code, seed << 40), Vec::<&str>::new(), "seed {seed}");
        }
    }
}
