//! Planted cheats on a stand-in for a device: what every examiner must refuse, and by which name; and honest candidates.
//!
//! A cheat is a mistake and the condition under which it is made. The stand-in computes on the CPU and has streams and events of its
//! own, so that also work that is put where nobody waits for it can be planted. The tests run every cheat, and each gate some, as a
//! control of the harness itself.

mod attention;
mod honest;
mod in_blocks;
mod keys;
mod planted;
mod stand_in;
mod when;

pub use honest::{HONEST, Honest};
use planted::RIGHT;
pub use planted::{PLANTED, Planted, Rows, Wrong};
pub use stand_in::{StandIn, Tensors};
pub use when::When;

use crate::exam::question::{Code, Literals, draw};
use crate::exam::{Exam, Oracles, Question, Refusal};
use crate::inputs::Kind;
use attention::wrong;
use check::reference::{row_coordinates, row_start};
use check::verification::Oracle;
use ferroflash::attention::Output;
use ferroflash::rounding::{narrow, widen};
use ferroflash::{Dtype, Row, Schedule, TensorRole};
use in_blocks::honest;
use kernels_gpu::row::Accumulation;
use kernels_gpu::table::VARIANTS;
use rayon::prelude::*;
use stand_in::{Call, Streams, Work};
use std::collections::HashMap;
use std::sync::Arc;

/// Outputs that a candidate keeps: those of a question, whose first inputs come again at its end.
const COMPUTED: usize = 8;

/// A candidate for the stand-in.
pub(crate) struct Candidate {
    /// What it does wrong, or how it is right.
    does: Result<Honest, Planted>,
    last: Option<Output>,
    cached: HashMap<usize, Output>,
    /// By inputs.
    known: HashMap<Vec<u16>, Output>,
    /// By what lies in the workspace behind the launch that computed it.
    left: HashMap<u8, Output>,
    launches: u32,
    /// What was computed last of inputs, with or without the mistake: an examiner asks the first inputs again and again, and of the same
    /// inputs nothing else would come.
    computed: Vec<(Arc<Oracle>, bool, Output)>,
    /// Survives also a restart, as chance does.
    chance: u16,
}

impl Candidate {
    pub(crate) fn new(does: Result<Honest, Planted>) -> Candidate {
        Candidate {
            does,
            last: None,
            cached: HashMap::new(),
            known: HashMap::new(),
            left: HashMap::new(),
            launches: 0,
            computed: Vec::new(),
            chance: 0,
        }
    }

    /// What a fresh device would not know.
    fn forget(&mut self) {
        let computed = std::mem::take(&mut self.computed);
        *self = Candidate { chance: self.chance, computed, ..Candidate::new(self.does) };
    }

    /// Puts this call's work on the streams.
    ///
    /// # Errors
    /// What the simulator says of a kernel that breaks a rule.
    fn launch(&mut self, call: &Call<'_>, streams: &mut Streams) -> Result<(), ferroflash::Error> {
        self.launches += 1;
        self.chance += 1;
        let Planted { when, wrong: mistake, .. } = match self.does {
            Ok(how) => {
                let right = call.oracles.of(call.problem, &call.tensors.inputs, how.acc);
                let output = self.once(&right, false, || honest(call.problem, &call.tensors.inputs, how));
                streams.timed(call.set, Box::new(move |tensors| write(tensors, &output, None)));
                return Ok(());
            }
            Err(planted) => planted,
        };
        let applies = self.applies(when, call);
        if let (true, Wrong::Breaks(rule)) = (applies, mistake) {
            let (entry, reason) = ("stand-in".to_owned(), format!("{rule}: line 34"));
            return Err(ferroflash::Error::Simulation { entry, reason });
        }
        let right = call.oracles.of(call.problem, &call.tensors.inputs, Accumulation::F32);
        let mut output = self.once(&right, applies, || wrong(&right, applies.then_some(mistake)));
        match mistake {
            Wrong::LastCall => {
                let computed = output.clone();
                output = self
                    .last
                    .replace(computed)
                    .filter(|last| last.o.len() == output.o.len())
                    .unwrap_or(output);
            }
            Wrong::CachedByPointer => {
                let cached = self.cached.entry(call.set).or_insert_with(|| output.clone());
                if cached.o.len() == output.o.len() {
                    output = cached.clone();
                } else {
                    *cached = output.clone();
                }
            }
            Wrong::CachedBy(role) => {
                let input = call.tensors.inputs.qkv[role as usize].clone();
                let known = self.known.entry(input).or_insert_with(|| output.clone());
                if known.o.len() == output.o.len() {
                    output = known.clone();
                }
            }
            Wrong::LeftOver => match self.left.get(&call.tensors.workspace[9]) {
                Some(left) if left.o.len() == output.o.len() => output = left.clone(),
                _ => {
                    self.left.insert(tag(self.launches), output.clone());
                }
            },
            Wrong::Workspace => output.o[0] ^= u16::from(call.tensors.workspace[9]) << 7,
            Wrong::Chance => output.o[0] ^= u16::from(fastrand::Rng::with_seed(self.chance.into()).bool()),
            _ => {}
        }
        let tag = tag(self.launches);
        let work: Work = Box::new(move |tensors: &mut Tensors| {
            write(tensors, &output, applies.then_some(mistake));
            if mistake == Wrong::LeftOver {
                tensors.workspace[9] = tag;
            }
        });
        match mistake {
            Wrong::OtherStream => streams.other(call.set, work),
            Wrong::LateWrite => streams.behind_event(call.set, work),
            _ => streams.timed(call.set, work),
        }
        Ok(())
    }

    /// An output of the oracle's inputs, computed unless one of the last calls did.
    fn once(&mut self, of: &Arc<Oracle>, applies: bool, compute: impl FnOnce() -> Output) -> Output {
        let is_it = |(oracle, applied, _): &&(Arc<Oracle>, bool, Output)| {
            Arc::ptr_eq(oracle, of) && *applied == applies
        };
        if let Some((.., output)) = self.computed.iter().find(is_it) {
            return output.clone();
        }
        if self.computed.len() == COMPUTED {
            self.computed.remove(0);
        }
        let output = compute();
        self.computed.push((of.clone(), applies, output.clone()));
        output
    }

    fn applies(&self, when: When, call: &Call<'_>) -> bool {
        let inputs = &call.tensors.inputs;
        match when {
            When::NegativeFirst => inputs.qkv[0][0] >> 15 == 1,
            When::ThirdLaunch => self.launches >= 3,
            When::Launch40 => self.launches >= 40,
            When::EvenLaunches => self.launches.is_multiple_of(2),
            When::SeventhLaunch => self.launches.is_multiple_of(7),
            When::OtherAddress => call.set == 1,
            When::LengthOne => inputs.seqlens_k.as_ref().is_some_and(|lengths| lengths.contains(&1)),
            When::Both(one, other) => self.applies(*one, call) && self.applies(*other, call),
            of_question => of_question.may_be(call.question, call.problem),
        }
    }
}

/// What a launch leaves in the workspace to know it by: none of the bytes that the examiner fills it with.
fn tag(launches: u32) -> u8 {
    0x40 + (launches % 64) as u8
}

/// Writes an output where it belongs, and what the mistake writes besides.
fn write(tensors: &mut Tensors, output: &Output, mistake: Option<Wrong>) {
    if mistake == Some(Wrong::OverNan) && !tensors.is_untouched() {
        return;
    }
    if mistake == Some(Wrong::OverKnownBytes) && !tensors.is_of_known_bytes() {
        return;
    }
    let is_in_row = |o: &&u16| **o != crate::exam::POISON;
    let kept = match mistake {
        // The last row of the smallest head_dim.
        Some(Wrong::LastRow) => output.o.iter().filter(is_in_row).count() - 32,
        _ => output.o.len(),
    };
    let elements = tensors.o_mut().iter_mut().zip(&output.o).filter(|(_, o)| is_in_row(o));
    for (stood, &o) in elements.take(kept) {
        *stood = match mistake {
            // Whatever is added to NaN gives the one NaN of arithmetic.
            Some(Wrong::Accumulates) => {
                let sum = widen(Dtype::F16, *stood) + widen(Dtype::F16, o);
                if sum.is_nan() { 0x7fff } else { narrow(Dtype::F16, sum) }
            }
            _ => o,
        };
    }
    if let (Some(to), Some(lse)) = (&mut tensors.lse, &output.lse)
        && mistake != Some(Wrong::NoLse)
        && (mistake != Some(Wrong::LseOverNan) || to.iter().all(|lse| lse.is_nan()))
    {
        to.copy_from_slice(lse);
    }
    match mistake {
        Some(Wrong::InputsChanged) => tensors.inputs.qkv[2][0] ^= 1,
        Some(Wrong::OutOfBounds) => *tensors.behind_o() = 0,
        Some(Wrong::Counter) => tensors.workspace[0] = 1,
        Some(Wrong::Gaps) => {
            let is_gap: Vec<bool> = output.o.iter().map(|o| *o == crate::exam::POISON).collect();
            tensors.o_mut().iter_mut().zip(is_gap).filter(|(_, gap)| *gap).for_each(|(o, _)| *o = 0)
        }
        _ => {}
    }
}

/// An output of the problem whose gaps are not written.
fn gapped(problem: &ferroflash::Problem, rows: impl Iterator<Item = Vec<f64>>, lse: Vec<f32>) -> Output {
    let mut o = vec![crate::exam::POISON; problem.o_len()];
    for (row, values) in rows.enumerate() {
        let start = row_start(problem, TensorRole::O, row_coordinates(problem, row));
        for (d, value) in values.into_iter().enumerate() {
            // The one NaN of arithmetic, whatever the NaN of the inputs was.
            o[start + d] = if value.is_nan() { 0x7fff } else { narrow(problem.dtype(), value) };
        }
    }
    Output::new(o, Some(lse))
}

/// The row whose questions the stand-in answers: it splits keys, so every column of the domain is dealt.
pub fn row() -> Row {
    let row = VARIANTS
        .iter()
        .map(|variant| variant.row)
        .find(|row| row.dtype == Dtype::F16)
        .unwrap_or(VARIANTS[0].row);
    Row { head_dim: 32, schedule: Schedule::Split, ..row }
}

/// What an examination finds on the stand-in, with questions drawn from a seed; `None` where the candidate passes.
///
/// # Errors
/// What the stand-in reports.
pub fn examine(
    does: Result<Honest, Planted>,
    seed: u64,
    oracles: &Arc<Oracles>,
) -> Result<Option<Refusal>, ferroflash::Error> {
    let accumulation = does.map_or(Accumulation::F32, |how| how.acc);
    let exam = Exam { seed, real: None, accumulation, error_share: 1.0, oracles: Some(oracles) };
    let kinds = [Kind::Random, Kind::Outliers, Kind::Constant, Kind::Zero];
    let literals = does.err().map_or_else(Literals::default, |planted| planted.when.literals());
    // A statement that only such questions reach.
    let reached = |question: &Question| match (does, question.problem()) {
        (Err(Planted { when, .. }), Ok(problem)) => vec![u32::from(when.may_be(question, &problem))],
        _ => Vec::new(),
    };
    let questions = draw(&row(), 0, &kinds, &Code { literals, reached: &reached }, seed);
    // Elsewhere a cheat is what RIGHT is, which is asked everything.
    let can_fail = |question: &Question| -> Result<bool, ferroflash::Error> {
        let problem = question.problem()?;
        Ok(does.err().is_none_or(|planted| planted.when.may_be(question, &problem)))
    };
    let mut asked = Vec::new();
    for (number, question) in questions.iter().enumerate() {
        if can_fail(question)? {
            asked.push((number, question));
        }
    }
    let mut subject = StandIn::new(Candidate::new(does), oracles.clone());
    Ok(exam.run(&mut subject, asked.into_iter())?.err())
}

/// Examines planted cheats, every `step`-th from number `first` on, and one honest candidate; returns a line for each that was not told apart.
///
/// # Errors
/// What the stand-in reports.
pub fn control(seed: u64, first: usize, step: usize) -> Result<Vec<String>, ferroflash::Error> {
    let cheats = PLANTED.into_iter().skip(first).step_by(step).map(Err);
    let all: Vec<_> = [Ok(HONEST[7]), Err(RIGHT)].into_iter().chain(cheats).collect();
    let oracles = Arc::default();
    let missed = |does: Result<Honest, Planted>| {
        let found = examine(does, seed, &oracles)?;
        let is_right = match (&does, &found) {
            (Ok(_) | Err(RIGHT), found) => found.is_none(),
            (Err(planted), Some(refusal)) => planted.is_named(refusal.fault),
            (Err(_), None) => false,
        };
        Ok((!is_right).then(|| format!("seed {seed}: {does:?}: found {found:?}")))
    };
    all.into_par_iter().filter_map(|does| missed(does).transpose()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::Inputs;
    use crate::problem_spec::{Mask, ProblemSpec, Shape};

    /// Seeds that a test draws under: two, ten where the variable `FERROFLASH_THOROUGH` is set; `FERROFLASH_SEEDS=1,2` names others.
    /// The same for every commit, so that what passed passes again.
    fn seeds() -> Vec<u64> {
        if let Ok(named) = std::env::var("FERROFLASH_SEEDS") {
            return named.split(',').map(|seed| seed.trim().parse().expect("a number")).collect();
        }
        let count = if std::env::var_os("FERROFLASH_THOROUGH").is_some() { 10 } else { 2 };
        (0..count).collect()
    }

    /// Spreads a seed that a person can type over all bits.
    fn spread(seed: u64) -> u64 {
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn every_planted_cheat_is_refused_by_its_name() {
        let mut missed = Vec::new();
        // By default each of two seeds has every other cheat; those that are asked for have all.
        let asked =
            ["FERROFLASH_SEEDS", "FERROFLASH_THOROUGH"].iter().any(|name| std::env::var_os(name).is_some());
        let step = if asked { 1 } else { 2 };
        for (at, seed) in seeds().into_iter().enumerate() {
            let of_seed = control(spread(seed), at % step, step).expect("the stand-in does not fail");
            println!("FERROFLASH_SEEDS={seed}: {} missed", of_seed.len());
            missed.extend(of_seed);
        }
        assert!(missed.is_empty(), "{} are missed:\n{}", missed.len(), missed.join("\n"));
    }

    /// Where few scores decide, one plain implementation can be right by luck, and a bound of twice its error nobody's.
    #[test]
    fn a_thousand_draws_of_few_rows_refuse_no_honest_candidate() {
        let share = |draw: u64| {
            let mut random = fastrand::Rng::with_seed(draw);
            let head_dim = [32, 64, 128][random.usize(0..3)];
            let sizes = [1, 1, 1, random.u32(1..=30), random.u32(1..=150), head_dim];
            let mask = if random.bool() { Mask::Causal } else { Mask::Full };
            let spec = ProblemSpec { shape: Shape(sizes), dtype: Dtype::F16, mask };
            let problem = spec.problem().expect("valid");
            let kind = [Kind::Random, Kind::Outliers, Kind::Sink, Kind::Rising][random.usize(0..4)];
            let qkv = crate::inputs::make(&problem, kind, random.u64(..), None).expect("no layer is needed");
            let inputs = Inputs { qkv, seqlens_k: None };
            let how = HONEST[random.usize(0..HONEST.len())];
            let how = if draw.is_multiple_of(2) { Honest { acc: Accumulation::F16, ..how } } else { how };
            let oracle = Oracle::new(&problem, inputs.qkv.clone(), None, &[how.acc], &|_, _| ());
            let verdict =
                oracle.judge(how.acc, &honest(&problem, &inputs, how)).expect("of the right length");
            (verdict.ratio(), format!("draw {draw}, {spec}, {}, {how:?}: {verdict}", kind.name()))
        };
        let mut shares: Vec<_> = (0..1000).into_par_iter().map(share).collect();
        shares.sort_by(|a, b| b.0.total_cmp(&a.0));
        assert!(shares[0].0 <= 1.0, "{:#?}", &shares[..5]);
    }

    #[test]
    fn no_honest_candidate_is_refused() {
        let seeds = seeds();
        for (at, seed) in seeds.iter().enumerate() {
            println!("FERROFLASH_SEEDS={seed}");
            let oracles = Arc::default();
            let refused: Vec<_> = HONEST
                .into_par_iter()
                .skip(at)
                .step_by(seeds.len().min(4))
                .filter_map(|how| {
                    examine(Ok(how), spread(*seed), &oracles).expect("the stand-in does not fail")
                })
                .collect();
            assert!(refused.is_empty(), "seed {seed}: {refused:?}");
        }
    }
}
