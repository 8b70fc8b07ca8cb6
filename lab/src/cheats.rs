//! Planted cheats on a stand-in for a device: what every examiner must refuse, and by which name; and honest candidates.
//!
//! A cheat is a mistake and the condition under which it is made. The stand-in computes on the CPU and has streams and events of its
//! own, so that also work that is put where nobody waits for it can be planted. The tests run every cheat, and each gate some, as a
//! control of the harness itself.

mod attention;
mod stand_in;

pub use stand_in::{StandIn, Tensors};

use crate::exam::question::{Placement, draw};
use crate::exam::{Exam, Fault, Refusal};
use crate::inputs::Kind;
use attention::{Keys, honest, wrong};
use check::reference::{row_coordinates, row_start};
use ferroflash::attention::Output;
use ferroflash::rounding::narrow;
use ferroflash::{Dtype, Row, Schedule, TensorRole};
use kernels_gpu::row::Accumulation;
use kernels_gpu::table::VARIANTS;
use stand_in::{Call, Streams, Work};
use std::collections::HashMap;

/// When a candidate makes its mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// From 8 query heads on.
    Heads8,
    /// From 3 batch entries on.
    Batch3,
    /// With 5 query heads a KV head and more.
    Group5,
    /// From 2048 keys on.
    Keys2048,
    /// From 2048 keys on in several heads or batch entries.
    Keys2048Wide,
    /// From 1000 queries on.
    Queries1000,
    /// From 1000 queries on in several heads or batch entries.
    Queries1000Wide,
    /// Where keys are a multiple of 64.
    Aligned,
    /// Where they are none.
    Ragged,
    /// Where tensors are not contiguous `bhsd`.
    Strided,
    /// Where tensors begin at addresses of slices.
    Slices,
    /// Where nobody wants LSE.
    NoLse,
    /// With lengths on the device.
    Lengths,
    /// From two splits on.
    Splits,
    /// Where keys that a row does not see exist.
    Causal,
    /// Where Q's first element is under 0.
    NegativeFirst,
    /// From the third launch on.
    ThirdLaunch,
}

/// What a candidate does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wrong {
    /// O is 0, or another value, everywhere.
    Constant(f64),
    /// The last row is not written.
    LastRow,
    /// The LSE is not written.
    NoLse,
    /// Only some keys are seen.
    Keys(Keys),
    /// Another scale: the problem's times this.
    Scale(f64),
    /// 1/√head_dim, whatever the caller says.
    OwnScale,
    /// O times this.
    Factor(f64),
    /// LSE times this.
    LseFactor(f64),
    /// LSE as bfloat16.
    LseRounded,
    /// NaN and infinities of the inputs become 0.
    NanSwallowed,
    /// Each P is rounded to so many bits.
    CoarseP(i32),
    /// Exponentials in float32 of scores from which this is taken, and not the largest, unless that is larger.
    MaximumFrom(f32),
    /// Exponentials in float32 of scores as they are.
    NoMaximum,
    /// O is written only where NaN stands.
    OverNan,
    /// What the call before computed.
    LastCall,
    /// Computed once for each address.
    CachedByPointer,
    /// What stands in the workspace is added.
    Workspace,
    /// A counter is left at 1.
    Counter,
    /// On a stream that nobody times.
    OtherStream,
    /// Behind the event.
    LateWrite,
    /// The inputs are replaced.
    InputsChanged,
    /// One element too many.
    OutOfBounds,
    /// The gaps between rows are written.
    Gaps,
    /// Another bit every time.
    Chance,
}

/// A cheat and the name that it must be refused by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planted {
    /// When it is wrong.
    pub when: When,
    /// What is wrong.
    pub wrong: Wrong,
    /// The name.
    pub fault: Fault,
}

const fn planted(when: When, wrong: Wrong, fault: Fault) -> Planted {
    Planted { when, wrong, fault }
}

/// Every cheat: outside the shapes that are counted, outside the inputs that are timed, in state, and in time.
pub const PLANTED: [Planted; 48] = [
    planted(When::Always, Wrong::Constant(0.0), Fault::Zeros),
    planted(When::Always, Wrong::Constant(0.125), Fault::Constant),
    planted(When::Always, Wrong::LastRow, Fault::NotWritten),
    planted(When::Always, Wrong::Keys(Keys::Even), Fault::HalfTheKeys),
    planted(When::Always, Wrong::Keys(Keys::FirstHalf), Fault::HalfTheKeys),
    planted(When::Always, Wrong::Scale(0.5), Fault::WrongScale),
    planted(When::Always, Wrong::Scale(0.99), Fault::WrongScale),
    planted(When::Always, Wrong::Factor(1.02), Fault::WrongFactor),
    planted(When::Heads8, Wrong::Keys(Keys::Quarter), Fault::DroppedKeys),
    planted(When::Heads8, Wrong::Keys(Keys::OtherHead), Fault::WrongHead),
    planted(When::Batch3, Wrong::Keys(Keys::OtherBatch), Fault::WrongHead),
    planted(When::Group5, Wrong::Keys(Keys::OtherHead), Fault::WrongHead),
    planted(When::Keys2048, Wrong::Keys(Keys::Below(2000)), Fault::DroppedTail),
    planted(When::Keys2048, Wrong::Keys(Keys::From(64)), Fault::DroppedKeys),
    planted(When::Queries1000, Wrong::LastRow, Fault::NotWritten),
    planted(When::Queries1000, Wrong::Constant(0.0), Fault::Zeros),
    planted(When::Keys2048Wide, Wrong::Keys(Keys::Even), Fault::HalfTheKeys),
    planted(When::Queries1000Wide, Wrong::LastRow, Fault::NotWritten),
    planted(When::Slices, Wrong::Factor(1.02), Fault::WrongFactor),
    planted(When::Always, Wrong::NoMaximum, Fault::WrongNan),
    planted(When::Always, Wrong::MaximumFrom(0.0), Fault::WrongNan),
    planted(When::Always, Wrong::OverNan, Fault::State),
    planted(When::Aligned, Wrong::Keys(Keys::ButLast), Fault::DroppedTail),
    planted(When::Ragged, Wrong::Keys(Keys::WholeBlocks), Fault::DroppedTail),
    planted(When::Strided, Wrong::Keys(Keys::Odd), Fault::HalfTheKeys),
    planted(When::Strided, Wrong::Gaps, Fault::OutOfBounds),
    planted(When::NoLse, Wrong::Factor(0.97), Fault::WrongFactor),
    planted(When::Lengths, Wrong::Keys(Keys::LengthsIgnored), Fault::WrongMask),
    planted(When::Splits, Wrong::Keys(Keys::Middle), Fault::DroppedKeys),
    planted(When::Causal, Wrong::Keys(Keys::OneTooMany), Fault::WrongMask),
    planted(When::Always, Wrong::OwnScale, Fault::WrongScale),
    planted(When::Always, Wrong::NoLse, Fault::NotWritten),
    planted(When::Always, Wrong::LseFactor(std::f64::consts::LOG2_E), Fault::WrongLse),
    planted(When::Always, Wrong::LseRounded, Fault::RoundedLse),
    planted(When::Always, Wrong::NanSwallowed, Fault::WrongNan),
    planted(When::Always, Wrong::Keys(Keys::LargeP), Fault::SmallP),
    planted(When::Always, Wrong::CoarseP(4), Fault::Imprecise),
    planted(When::NegativeFirst, Wrong::Constant(0.0), Fault::Zeros),
    planted(When::Always, Wrong::LastCall, Fault::LastCall),
    planted(When::Always, Wrong::CachedByPointer, Fault::CachedByPointer),
    planted(When::ThirdLaunch, Wrong::Constant(0.0), Fault::State),
    planted(When::Always, Wrong::Workspace, Fault::State),
    planted(When::Always, Wrong::Counter, Fault::State),
    planted(When::Always, Wrong::OtherStream, Fault::OtherStream),
    planted(When::Always, Wrong::LateWrite, Fault::LateWrite),
    planted(When::Always, Wrong::InputsChanged, Fault::InputsChanged),
    planted(When::Always, Wrong::OutOfBounds, Fault::OutOfBounds),
    planted(When::Always, Wrong::Chance, Fault::NotRepeatable),
];

/// How an honest candidate computes: keys of a block at a time, these and the channels of a sum from the last to the first or the other
/// way, with P rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Honest {
    /// Keys of a block.
    pub block: usize,
    /// Whether the last block comes first.
    pub from_the_end: bool,
    /// Growth of a maximum, in powers of two, up to which nothing is rescaled.
    pub lazy: u8,
    /// What Q·Kᵀ accumulates in.
    pub acc: Accumulation,
}

/// Honest candidates, which nobody may refuse.
pub const HONEST: [Honest; 24] = {
    const fn of(block: usize, from_the_end: bool, lazy: u8) -> Honest {
        Honest { block, from_the_end, lazy, acc: Accumulation::F32 }
    }
    const fn of16(how: Honest) -> Honest {
        Honest { acc: Accumulation::F16, ..how }
    }
    [
        of(16, false, 0),
        of(16, true, 8),
        of(32, false, 0),
        of(32, true, 8),
        of(64, false, 0),
        of(64, true, 0),
        of(64, false, 8),
        of(64, true, 8),
        of(128, false, 0),
        of(128, true, 8),
        of(1, false, 0),
        of(1 << 14, false, 0),
        of(8, true, 0),
        of(24, false, 4),
        of(40, true, 1),
        of(48, true, 8),
        of(80, false, 8),
        of(96, true, 0),
        of(112, false, 2),
        of(256, true, 8),
        of16(of(64, false, 0)),
        of16(of(64, true, 8)),
        of16(of(128, false, 8)),
        of16(of(16, true, 0)),
    ]
};

/// A candidate for the stand-in.
pub(crate) struct Candidate {
    /// What it does wrong, or how it is right.
    does: Result<Honest, Planted>,
    last: Option<Output>,
    cached: HashMap<usize, Output>,
    launches: u32,
    /// Survives also a restart, as chance does.
    chance: u16,
}

impl Candidate {
    pub(crate) fn new(does: Result<Honest, Planted>) -> Candidate {
        Candidate { does, last: None, cached: HashMap::new(), launches: 0, chance: 0 }
    }

    /// What a fresh device would not know.
    fn forget(&mut self) {
        *self = Candidate { chance: self.chance, ..Candidate::new(self.does) };
    }

    /// Puts this call's work on the streams.
    fn launch(&mut self, call: &Call<'_>, streams: &mut Streams) {
        self.launches += 1;
        self.chance += 1;
        let Planted { when, wrong: mistake, .. } = match self.does {
            Ok(how) => {
                let output = honest(call.problem, &call.tensors.inputs, how);
                return streams.timed(call.set, Box::new(move |tensors| write(tensors, &output, None)));
            }
            Err(planted) => planted,
        };
        let applies = self.applies(when, call);
        let mut output = wrong(call.problem, &call.tensors.inputs, applies.then_some(mistake));
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
            Wrong::Workspace => output.o[0] ^= u16::from(call.tensors.workspace[9]) << 7,
            Wrong::Chance => output.o[0] ^= self.chance.wrapping_mul(40_503) >> 13 & 1,
            _ => {}
        }
        let work: Work =
            Box::new(move |tensors: &mut Tensors| write(tensors, &output, applies.then_some(mistake)));
        match mistake {
            Wrong::OtherStream => streams.other(call.set, work),
            Wrong::LateWrite => streams.behind_event(call.set, work),
            _ => streams.timed(call.set, work),
        }
    }

    fn applies(&self, when: When, call: &Call<'_>) -> bool {
        let sizes = call.problem.sizes();
        let inputs = &call.tensors.inputs;
        match when {
            When::Always => true,
            When::Heads8 => sizes.heads_q >= 8,
            When::Batch3 => sizes.batch >= 3,
            When::Group5 => call.problem.group() >= 5,
            When::Keys2048 => sizes.seqlen_k >= 2048,
            When::Keys2048Wide => sizes.seqlen_k >= 2048 && sizes.batch * sizes.heads_q > 5,
            When::Queries1000 => sizes.seqlen_q >= 1000,
            When::Queries1000Wide => sizes.seqlen_q >= 1000 && sizes.batch * sizes.heads_q > 5,
            When::Aligned => sizes.seqlen_k.is_multiple_of(64),
            When::Ragged => !sizes.seqlen_k.is_multiple_of(64),
            When::Strided => call.question.placement != Placement::Bhsd,
            When::Slices => call.question.is_slice,
            When::NoLse => !call.question.lse,
            When::Lengths => inputs.seqlens_k.is_some(),
            When::Splits => call.question.splits.is_some_and(|splits| splits > 1),
            When::Causal => call.problem.causal(),
            When::NegativeFirst => inputs.qkv[0][0] >> 15 == 1,
            When::ThirdLaunch => self.launches >= 3,
        }
    }
}

/// Writes an output where it belongs, and what the mistake writes besides.
fn write(tensors: &mut Tensors, output: &Output, mistake: Option<Wrong>) {
    if mistake == Some(Wrong::OverNan) && !tensors.is_untouched() {
        return;
    }
    let rows: Vec<usize> = (0..output.o.len()).filter(|&at| output.o[at] != crate::exam::POISON).collect();
    let kept = match mistake {
        // The last row of the smallest head_dim.
        Some(Wrong::LastRow) => rows.len() - 32,
        _ => rows.len(),
    };
    rows[..kept].iter().for_each(|&at| tensors.o_mut()[at] = output.o[at]);
    if let (Some(to), Some(lse)) = (&mut tensors.lse, &output.lse)
        && mistake != Some(Wrong::NoLse)
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
            o[start + d] = narrow(problem.dtype(), value);
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
pub fn examine(does: Result<Honest, Planted>, seed: u64) -> Result<Option<Refusal>, ferroflash::Error> {
    let accumulation = does.map_or(Accumulation::F32, |how| how.acc);
    let exam = Exam { seed, real: None, accumulation, error_share: 1.0 };
    let questions = draw(&row(), 0, &[Kind::Random, Kind::Outliers, Kind::Constant, Kind::Zero], seed);
    Ok(exam.run(&mut StandIn::new(Candidate::new(does)), &questions)?.err())
}

/// Examines planted cheats, every `step`-th, and one honest candidate; returns a line for each that was not told apart.
///
/// # Errors
/// What the stand-in reports.
pub fn control(seed: u64, step: usize) -> Result<Vec<String>, ferroflash::Error> {
    let honest = std::iter::once((Ok(HONEST[7]), None));
    let cheats = PLANTED.into_iter().step_by(step).map(|planted| (Err(planted), Some(planted.fault)));
    let mut missed = Vec::new();
    for (does, expected) in honest.chain(cheats) {
        let found = examine(does, seed)?;
        if found.as_ref().map(|refusal| refusal.fault) != expected {
            missed.push(format!("seed {seed}: {does:?}: expected {expected:?}, found {found:?}"));
        }
    }
    Ok(missed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;

    #[test]
    fn every_planted_cheat_is_refused_by_its_name_under_every_seed() {
        let missed: Vec<String> = (0..10_u64)
            .into_par_iter()
            .flat_map(|seed| {
                control(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1).expect("the stand-in does not fail")
            })
            .collect();
        assert!(missed.is_empty(), "{} are missed:\n{}", missed.len(), missed.join("\n"));
    }

    #[test]
    fn no_honest_candidate_is_refused() {
        let refused: Vec<_> = HONEST
            .into_par_iter()
            .enumerate()
            .filter_map(|(at, how)| examine(Ok(how), 100 + at as u64).expect("the stand-in does not fail"))
            .collect();
        assert!(refused.is_empty(), "{refused:?}");
    }
}
