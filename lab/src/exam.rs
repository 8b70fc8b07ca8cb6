//! The examination of a candidate's numbers: whether it computes attention, now and on these inputs, and what it does instead.

pub(crate) mod before;
mod diagnosis;
mod explanations;
mod fault;
mod lse;
mod observe;
mod oracles;
pub mod question;

pub use before::Before;
pub use fault::Fault;
pub use oracles::Oracles;
pub use question::Question;

use crate::inputs::{Inputs, Kind, RealTensors};
use crate::subject::Subject;
use check::reference::{row_coordinates, row_start};
use check::verification::{Oracle, RaggedCase, same_bits};
use diagnosis::{Named, diagnose};
use ferroflash::attention::Output;
use ferroflash::module::sha256_hex;
use ferroflash::{Error, Problem, TensorRole};
use kernels_gpu::row::Accumulation;
use observe::observe;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How to examine.
#[derive(Clone, Copy)]
pub struct Exam<'a> {
    /// Seed of every input; nobody knows it before the session ends.
    pub seed: u64,
    /// Where real inputs come from.
    pub real: Option<&'a RealTensors>,
    /// How the candidate accumulates Q·Kᵀ and P·V, which its bounds depend on.
    pub accumulation: Accumulation,
    /// Share of the host's bound that an error may take.
    pub error_share: f64,
    /// What is right on inputs that were asked about before, where many candidates are asked the same.
    pub oracles: Option<&'a Oracles>,
}

/// What an examination found on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Examined {
    /// The problem.
    pub problem: String,
    /// Launches that were judged.
    pub launches: usize,
    /// SHA-256 of the first output: the same in every process.
    #[serde(default)]
    pub bits: String,
    /// The largest share of the allowed error that an output took.
    pub worst_share: f64,
    /// The distribution of inputs that took it.
    pub worst_kind: String,
}

/// Why a candidate failed: the fault, and what shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// The fault.
    pub fault: Fault,
    /// The problem, the inputs and the figures.
    pub evidence: String,
}

/// What an examination found; the outer error is the device's.
pub type Outcome = Result<Result<Vec<Examined>, Refusal>, Error>;

/// Keys times rows that tell mistakes apart beyond doubt.
const CLEAR: usize = 200;
/// Further questions that may fail after one that leaves a doubt.
const DOUBTS: usize = 8;

/// What fills the workspace before each launch, in turns: NaN, zeros, and finite floats.
const WORKSPACE_BYTES: [u8; 3] = [0xff, 0x00, 0x3b];
/// What O is full of before a launch: the NaN of all ones, which arithmetic does not give.
pub(crate) const POISON: u16 = u16::MAX;

impl Exam<'_> {
    /// Examines a subject on questions, which have numbers that their inputs depend on, up to the first that it fails. A mistake on three keys may be one of many: what leaves
    /// such a doubt is named by the clearest of the questions that follow.
    ///
    /// # Errors
    /// What the device reports, but for broken rules, which refuse the candidate.
    pub fn run<'a>(
        &self,
        subject: &mut dyn Subject,
        questions: impl Iterator<Item = (usize, &'a Question)>,
    ) -> Outcome {
        let (mut examined, mut failed) = (Vec::new(), Vec::new());
        for (number, question) in questions {
            // Each has inputs of its own, so that what depends on a value meets many.
            let seed = self.seed ^ (number as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
            match self.ask(subject, question, seed)? {
                Ok(passed) => examined.push(passed),
                Err(refusal) => failed.push(refusal),
            }
            let is_clear = failed.last().is_some_and(|(_, weight)| *weight >= CLEAR);
            if is_clear || failed.len() > DOUBTS {
                break;
            }
        }
        let clearest = failed.into_iter().reduce(|best, other| if other.1 > best.1 { other } else { best });
        Ok(clearest.map_or(Ok(examined), |(refusal, _)| Err(refusal)))
    }

    /// Random inputs; where a steep scale makes a choice of one key of them, which float16 sums of products, or float32's, would take by
    /// chance, inputs whose scores are all alike. Where the scale is that of a kind, this kind: under a scale of 2^32 equal scores of others are as far
    /// apart as float32 rounds them.
    fn usual(&self, question: &Question) -> Kind {
        if let [kind @ (Kind::Loud | Kind::Faint)] = question.kinds[..] {
            return kind;
        }
        let is_chance =
            question.is_choice() || (question.is_steep() && self.accumulation == Accumulation::F16);
        if is_chance { Kind::Constant } else { Kind::Random }
    }

    /// Examines a subject on one question; a refusal comes with how clear it is.
    ///
    /// Set 0 gets the usual inputs and runs before and after the reference is computed, over NaN and over numbers, bitwise alike; set 1
    /// gets others; set 0 gets odd ones at the same addresses, of which some tensors are the first ones, over the workspace that the
    /// launch before left there, then every other distribution, and at last the first again, which must give the first
    /// output in every bit. After each launch the outputs are read at the event and again once the stream and the device are
    /// drained, and the inputs are compared.
    ///
    /// # Errors
    /// What the device reports, but for broken rules, which refuse the candidate.
    fn ask(&self, subject: &mut dyn Subject, question: &Question, seed: u64) -> Sat<Examined> {
        let problem = question.problem()?;
        let title = question.to_string();
        let examined = Examined {
            problem: title,
            launches: 0,
            bits: String::new(),
            worst_share: 0.0,
            worst_kind: String::new(),
        };
        let mut paper = Paper {
            exam: self,
            subject,
            question,
            problem,
            outputs: Vec::new(),
            launches: 0,
            examined,
            seed,
        };
        paper.subject.pose(question, seed)?;
        let usual = self.usual(question);
        let mut first = None;
        for (number, sitting) in sittings(question, usual).into_iter().enumerate() {
            if !sitting.kind.is_for(self.accumulation) {
                continue;
            }
            let of_sitting = seed.wrapping_add(number as u64 * 0x9e37_79b9);
            let made = question.inputs(&problem, sitting.kind, of_sitting, self.real);
            let Some(mut inputs) = made else { continue };
            match &first {
                None => first = Some(inputs.clone()),
                Some(first) if sitting.keeps => keep_some(first, &mut inputs, of_sitting),
                Some(_) => {}
            }
            if let (true, Some(odd)) = (sitting.is_odd, question.odd) {
                odd.put(&problem, sitting.kind, &mut inputs, of_sitting);
            }
            if let Err(refusal) = paper.sit(sitting, &inputs)? {
                return Ok(Err(refusal));
            }
        }
        if !question.once
            && let Err(refusal) = paper.sit_first_again(usual, seed)?
        {
            return Ok(Err(refusal));
        }
        Ok(Ok(paper.examined))
    }
}

/// Judges the whole output of a launch that was counted or timed, on its very inputs.
///
/// # Errors
/// [`Error::WrongLength`].
pub fn judge(
    oracle: &Oracle,
    accumulation: Accumulation,
    output: &Output,
) -> Result<Result<(), Refusal>, Error> {
    let verdict = oracle.judge(accumulation, output)?;
    if verdict.passed {
        return Ok(Ok(()));
    }
    let Named { fault, how, .. } = diagnose(oracle, accumulation, output);
    Ok(Err(Refusal { fault, evidence: format!("{how}; {verdict}") }))
}

/// The fault of a wrong output for a ragged batch.
///
/// # Errors
/// [`Error::WrongLength`].
pub fn judge_ragged(case: &RaggedCase, output: &Output) -> Result<Result<(), Refusal>, Error> {
    let verdict = case.judge(output)?;
    if verdict.passed {
        return Ok(Ok(()));
    }
    let [o, lse] = case.wrong_rows(output);
    let fault = match diagnosis::of_ragged(&case.problem, output, [&o, &lse]) {
        // A number where NaN or an infinity should be.
        Fault::WrongNumbers if verdict.not_finite_mismatches > 0 => Fault::WrongNan,
        fault => fault,
    };
    Ok(Err(Refusal { fault, evidence: format!("{case}: {}: {verdict}", fault.meaning()) }))
}

/// The usual inputs on both sets and odd ones on the first, then what else is asked for: this is what tells stale outputs.
fn sittings(question: &Question, usual: Kind) -> Vec<Sitting> {
    let of = |set, is_odd| Sitting { set, kind: usual, is_odd, keeps: is_odd };
    let mut sittings = vec![of(0, false)];
    if !question.once {
        sittings.extend([of(1, false), of(0, true)]);
    }
    let others = question.kinds.iter().filter(|kind| **kind != usual);
    let other =
        |(at, &kind): (usize, &Kind)| Sitting { set: (at + 1) % 2, kind, is_odd: false, keeps: false };
    sittings.extend(others.enumerate().map(other));
    if question.once && question.odd.is_some() {
        let last = sittings[sittings.len() - 1];
        sittings.push(Sitting { set: 1 - last.set, is_odd: true, ..last });
    }
    sittings
}

/// Puts one or two of the first inputs' tensors into others, as whoever keeps a result by some of its inputs takes them for the same.
/// Where sequences have lengths, tensors belong to these.
fn keep_some(first: &Inputs, inputs: &mut Inputs, seed: u64) {
    let kept = fastrand::Rng::with_seed(seed).u8(1..=6);
    if inputs.seqlens_k.is_none() {
        for role in (0..3).filter(|role| kept >> role & 1 == 1) {
            inputs.qkv[role].clone_from(&first.qkv[role]);
        }
    }
}

/// One launch that is judged.
#[derive(Clone, Copy, Debug)]
struct Sitting {
    set: usize,
    kind: Kind,
    /// Whether the question's NaN or infinity is in its inputs.
    is_odd: bool,
    /// Whether some tensors, and the workspace, are as they were.
    keeps: bool,
}

/// An output that was right, for telling whether a later one is stale.
struct Earlier {
    set: usize,
    output: Output,
}

/// An examination under way.
struct Paper<'a> {
    exam: &'a Exam<'a>,
    subject: &'a mut dyn Subject,
    question: &'a Question,
    problem: Problem,
    outputs: Vec<Earlier>,
    launches: usize,
    examined: Examined,
    /// What the question's inputs, and what lies around them, are drawn from.
    seed: u64,
}

/// A refusal with keys times rows that tell it from others.
type Sat<T> = Result<Result<T, (Refusal, usize)>, Error>;

impl Paper<'_> {
    /// Launches and judges.
    fn sit(&mut self, sitting: Sitting, inputs: &Inputs) -> Sat<()> {
        let workspace = (!sitting.keeps).then(|| self.next_byte());
        // The first launch shows what is not written.
        let mut random = self.random();
        let before =
            if self.outputs.is_empty() { Before::any_nan(&mut random) } else { Before::any(&mut random) };
        let output = match self.launch(sitting.set, inputs, before, workspace)? {
            Ok(output) => output,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let accumulation = self.exam.accumulation;
        let oracle = match self.exam.oracles {
            Some(oracles) => oracles.of(&self.problem, inputs, accumulation),
            None => Arc::new(oracles::oracle(&self.problem, inputs, accumulation)),
        };
        let verdict = oracle.judge(accumulation, &output)?;
        let share = verdict.ratio();
        if !verdict.passed || share > self.exam.error_share {
            let mut named = self.named(sitting.set, &oracle, &output);
            let is_stale = matches!(named.fault, Fault::LastCall | Fault::CachedByPointer);
            if !is_stale && self.is_right_alone(sitting.set, inputs, &oracle)? {
                let meaning = Fault::State.meaning();
                let how =
                    format!("{meaning}: on a fresh device the same launch is right; here: {}", named.how);
                named = Named { fault: Fault::State, how, weight: CLEAR };
            }
            let odd = if sitting.is_odd && self.question.odd.is_some() { " and odd" } else { "" };
            let evidence =
                format!("{}: {}{odd} inputs: {}; {verdict}", self.question, sitting.kind.name(), named.how);
            let most = if self.question.is_steep() { CLEAR / 2 } else { usize::MAX };
            return Ok(Err((Refusal { fault: named.fault, evidence }, named.weight.min(most))));
        }
        // Behind the reference, which takes its time and memory of its own.
        if self.outputs.is_empty() && !self.question.once {
            let workspace = Some(self.next_byte());
            let before = Before::any_numbers(&mut random);
            match self.launch(sitting.set, inputs, before, workspace)? {
                Err(refusal) => return Ok(Err(refusal)),
                Ok(second) if !same_bits(&output, &second) => {
                    return self.not_the_same(inputs, &[output, second]);
                }
                Ok(_) => {}
            }
        }
        self.examined.launches += 1;
        if self.examined.bits.is_empty() {
            self.examined.bits = bits(&output);
        }
        if share > self.examined.worst_share {
            self.examined.worst_share = share;
            sitting.kind.name().clone_into(&mut self.examined.worst_kind);
        }
        self.outputs.push(Earlier { set: sitting.set, output });
        Ok(Ok(()))
    }

    /// Whether the same inputs give a right output in the first launch on a fresh device, whose workspace is 0.
    fn is_right_alone(&mut self, set: usize, inputs: &Inputs, oracle: &Oracle) -> Result<bool, Error> {
        self.subject.restart()?;
        self.subject.pose(self.question, self.seed)?;
        match observe(self.subject, set, inputs, (Before::Poison, Some(0))) {
            Ok((None, output)) => Ok(oracle.judge(self.exam.accumulation, &output)?.passed),
            Ok(_) => Ok(false),
            Err(error) => Fault::of_error(&error).map(|_| false).ok_or(error),
        }
    }

    /// The first inputs behind all others: whatever a launch left behind shows as other bits.
    fn sit_first_again(&mut self, kind: Kind, seed: u64) -> Sat<()> {
        let made = self.question.inputs(&self.problem, kind, seed, self.exam.real);
        let (Some(inputs), Some(first)) = (made, self.outputs.first()) else { return Ok(Ok(())) };
        let first = first.output.clone();
        let workspace = Some(self.next_byte());
        let before = Before::any(&mut self.random());
        match self.launch(0, &inputs, before, workspace)? {
            Err(refusal) => Ok(Err(refusal)),
            Ok(last) if !same_bits(&first, &last) => self.not_the_same(&inputs, &[first, last]),
            Ok(_) => Ok(Ok(())),
        }
    }

    /// The same inputs gave two outputs. Where a fresh device gives the same two at the first and second launch again, or the first
    /// each time, what a launch leaves behind decides; otherwise chance does.
    fn not_the_same(&mut self, inputs: &Inputs, seen: &[Output; 2]) -> Sat<()> {
        let launches = self.launches.max(8);
        let mut firsts = Vec::new();
        for _ in 0..2 {
            self.subject.restart()?;
            self.subject.pose(self.question, self.seed)?;
            self.launches = 0;
            let mut outputs = Vec::new();
            for _ in 0..launches {
                // The second as the first time.
                let before = if outputs.len() == 1 { Before::Numbers(self.seed) } else { Before::Poison };
                let workspace = Some(self.next_byte());
                match self.launch(0, inputs, before, workspace)? {
                    Ok(output) => outputs.push(output),
                    Err(refusal) => return Ok(Err(refusal)),
                }
            }
            firsts.push(outputs);
        }
        let alike = |(a, b): (&Output, &Output)| same_bits(a, b);
        let repeats =
            firsts[0].iter().zip(&firsts[1]).all(alike) && firsts[0].iter().any(|o| same_bits(o, &seen[0]));
        let fault = if repeats { Fault::State } else { Fault::NotRepeatable };
        let differing = seen[0].o.iter().zip(&seen[1].o).filter(|(a, b)| a != b).count();
        let evidence = format!(
            "{}: launches 1 and {launches} on the same inputs differ in {differing} elements of O{}",
            fault.meaning(),
            if repeats { ", and on a fresh device each does the same again" } else { "" }
        );
        self.refused(fault, evidence)
    }

    fn refused<T>(&self, fault: Fault, figures: String) -> Sat<T> {
        Ok(Err((Refusal { fault, evidence: format!("{}: {figures}", self.question) }, CLEAR)))
    }

    /// What the workspace is full of before the next launch.
    fn next_byte(&self) -> u8 {
        WORKSPACE_BYTES[self.launches % WORKSPACE_BYTES.len()]
    }

    /// The generator from which the contents of O and LSE before the next launch are drawn.
    fn random(&self) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed ^ (self.launches as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// One launch, with everything around it watched; without a byte the workspace stays as it is. The output is as it was at the event.
    fn launch(&mut self, set: usize, inputs: &Inputs, before: Before, workspace: Option<u8>) -> Sat<Output> {
        self.launches += 1;
        match observe(self.subject, set, inputs, (before, workspace)) {
            Ok((None, output)) => match self.without_gaps(output, before) {
                Some(output) => Ok(Ok(before.marked(output))),
                None => {
                    self.refused(Fault::OutOfBounds, "the gaps between rows of O were written".to_owned())
                }
            },
            Ok((Some(fault), _)) => self.refused(fault, fault.meaning().to_owned()),
            Err(error) => match Fault::of_error(&error) {
                Some(fault) => self.refused(fault, error.to_string()),
                None => Err(error),
            },
        }
    }

    /// An output whose gaps between rows are [`POISON`]; `None` where they are not what they were filled with before.
    fn without_gaps(&self, mut output: Output, before: Before) -> Option<Output> {
        let problem = &self.problem;
        if problem.o_len() == problem.elements(TensorRole::O) {
            return Some(output);
        }
        let mut is_row = vec![false; problem.o_len()];
        for row in 0..problem.lse_len() {
            let start = row_start(problem, TensorRole::O, row_coordinates(problem, row));
            is_row[start..start + problem.sizes().head_dim as usize].fill(true);
        }
        let (before, _) = before.fill([output.o.len(), 0]);
        let mut gaps = output.o.iter_mut().zip(before).zip(is_row).filter(|(_, is_row)| !is_row);
        let is_kept = gaps.all(|((bits, before), _)| std::mem::replace(bits, POISON) == before);
        is_kept.then_some(output)
    }

    /// What a wrong output is: an earlier one, or what the numbers themselves say.
    fn named(&self, set: usize, oracle: &Oracle, output: &Output) -> Named {
        let of_numbers = diagnose(oracle, self.exam.accumulation, output);
        // Outputs that are all alike are also like earlier ones.
        if matches!(of_numbers.fault, Fault::Zeros | Fault::Constant | Fault::NotWritten) {
            return of_numbers;
        }
        let [wrong, wrong_lse] =
            oracle.tolerance(self.exam.accumulation).wrong_rows(&self.problem, &oracle.reference, output);
        let head_dim = self.problem.sizes().head_dim as usize;
        let at = |row| row_start(&self.problem, TensorRole::O, row_coordinates(&self.problem, row));
        let row_of = |output: &Output, row: usize| output.o[at(row)..][..head_dim].to_vec();
        let lse_of = |output: &Output, row: usize| output.lse.as_ref().map_or(0.0, |lse| lse[row]).to_bits();
        // Rows of zeros, and of no keys, are alike in any two calls.
        let tells = |&row: &usize| row_of(output, row).iter().any(|&element| element & 0x7fff != 0);
        let of_o: Vec<usize> = wrong.iter().copied().filter(tells).collect();
        let tells = |&row: &usize| lse_of(output, row) != f32::NEG_INFINITY.to_bits();
        let of_lse: Vec<usize> = wrong_lse.iter().copied().filter(tells).collect();
        let is_stale = |earlier: &&Earlier| {
            let same_o = |&&row: &&usize| row_of(&earlier.output, row) == row_of(output, row);
            let same_lse = |&&row: &&usize| lse_of(&earlier.output, row) == lse_of(output, row);
            let same = of_o.iter().filter(same_o).count() + of_lse.iter().filter(same_lse).count();
            let all = of_o.len() + of_lse.len();
            all > 0 && same * 10 >= all * 9
        };
        let said = |fault: Fault| Named {
            fault,
            how: format!("{} in {} rows", fault.meaning(), wrong.len().max(wrong_lse.len())),
            weight: CLEAR,
        };
        match self.outputs.iter().rev().find(is_stale) {
            // The last launch was on the other set, so what stands there now came back by its address.
            Some(earlier)
                if earlier.set == set && self.outputs.last().is_some_and(|last| last.set != set) =>
            {
                said(Fault::CachedByPointer)
            }
            Some(_) => said(Fault::LastCall),
            None => of_numbers,
        }
    }
}

/// A name of an output that no other one has.
fn bits(output: &Output) -> String {
    let lse = output.lse.iter().flatten().flat_map(|lse| lse.to_bits().to_le_bytes());
    let bytes: Vec<u8> = output.o.iter().flat_map(|o| o.to_le_bytes()).chain(lse).collect();
    sha256_hex(&bytes)
}
