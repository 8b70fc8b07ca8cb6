//! Planted cheats on a stand-in for a device: what every examiner must refuse, and by which name; and honest candidates.
//!
//! A cheat is a mistake and the condition under which it is made. The stand-in computes on the CPU and has streams and events of its
//! own, so that also work that is put where nobody waits for it can be planted. The tests run every cheat, and each gate some, as a
//! control of the harness itself.

mod attention;
mod planted;
mod stand_in;

pub use planted::{HONEST, Honest, PLANTED, Planted, When, Wrong};
pub use stand_in::{StandIn, Tensors};

use crate::exam::question::{Placement, draw};
use crate::exam::{Exam, Oracles, Refusal};
use crate::inputs::Kind;
use attention::{honest, wrong};
use check::reference::{row_coordinates, row_start};
use ferroflash::attention::Output;
use ferroflash::rounding::{narrow, widen};
use ferroflash::{Dtype, Row, Schedule, TensorRole};
use kernels_gpu::row::Accumulation;
use kernels_gpu::table::VARIANTS;
use stand_in::{Call, Streams, Work};
use std::collections::HashMap;
use std::sync::Arc;

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
    ///
    /// # Errors
    /// What the simulator says of a kernel that breaks a rule.
    fn launch(&mut self, call: &Call<'_>, streams: &mut Streams) -> Result<(), ferroflash::Error> {
        self.launches += 1;
        self.chance += 1;
        let Planted { when, wrong: mistake, .. } = match self.does {
            Ok(how) => {
                let output = honest(call.problem, &call.tensors.inputs, how);
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
        let mut output = wrong(&right, applies.then_some(mistake));
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
        Ok(())
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
            When::Launch40 => self.launches >= 40,
            When::EvenLaunches => self.launches.is_multiple_of(2),
            When::Heads64 => sizes.heads_q >= 64,
            When::Batch16 => sizes.batch >= 16,
            When::BatchOne => sizes.batch == 1,
            When::Square => sizes.seqlen_q.min(sizes.seqlen_k) >= 1000,
            When::OneQuery => sizes.seqlen_q == 1,
            When::OneKey => sizes.seqlen_k == 1,
            When::KeysModulo(modulus, rest) => sizes.seqlen_k > rest && sizes.seqlen_k % modulus == rest,
            When::Sixteens => sizes.seqlen_k.is_multiple_of(16) && !sizes.seqlen_k.is_multiple_of(64),
            When::PaddedHeads => matches!(call.question.placement, Placement::PaddedHeads(_)),
            When::FarRows => call.problem.strides(TensorRole::Q).row >= 1 << 16,
            When::OtherScale => call.question.scale.is_some(),
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
    for &at in &rows[..kept] {
        let stood = &mut tensors.o_mut()[at];
        *stood = match mistake {
            // Whatever is added to NaN gives the one NaN of arithmetic.
            Some(Wrong::Accumulates) => {
                let sum = widen(Dtype::F16, *stood) + widen(Dtype::F16, output.o[at]);
                if sum.is_nan() { 0x7fff } else { narrow(Dtype::F16, sum) }
            }
            _ => output.o[at],
        };
    }
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
pub fn examine(
    does: Result<Honest, Planted>,
    seed: u64,
    oracles: &Arc<Oracles>,
) -> Result<Option<Refusal>, ferroflash::Error> {
    let accumulation = does.map_or(Accumulation::F32, |how| how.acc);
    let exam = Exam { seed, real: None, accumulation, error_share: 1.0, oracles: Some(oracles) };
    let questions = draw(&row(), 0, &[Kind::Random, Kind::Outliers, Kind::Constant, Kind::Zero], seed);
    Ok(exam.run(&mut StandIn::new(Candidate::new(does), oracles.clone()), &questions)?.err())
}

/// Examines planted cheats, every `step`-th, and one honest candidate; returns a line for each that was not told apart.
///
/// # Errors
/// What the stand-in reports.
pub fn control(seed: u64, step: usize) -> Result<Vec<String>, ferroflash::Error> {
    let cheats = PLANTED.into_iter().step_by(step).map(Err);
    let (mut missed, oracles) = (Vec::new(), Arc::default());
    for does in std::iter::once(Ok(HONEST[7])).chain(cheats) {
        let found = examine(does, seed, &oracles)?;
        let is_right = match (&does, &found) {
            (Ok(_), found) => found.is_none(),
            (Err(planted), Some(refusal)) => planted.is_named(refusal.fault),
            (Err(_), None) => false,
        };
        if !is_right {
            missed.push(format!("seed {seed}: {does:?}: found {found:?}"));
        }
    }
    Ok(missed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;

    fn every_planted_cheat_is_refused_by_its_name(seed: u64) {
        let missed =
            control(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1).expect("the stand-in does not fail");
        assert!(missed.is_empty(), "{} are missed:\n{}", missed.len(), missed.join("\n"));
    }

    /// A test a seed, so that what is asked under one is computed once and forgotten behind it.
    macro_rules! seeds {
        ($($name:ident $seed:literal)*) => {
            $(#[test]
            fn $name() {
                every_planted_cheat_is_refused_by_its_name($seed);
            })*
        };
    }

    seeds! {
        every_planted_cheat_is_refused_by_its_name_under_seed_0 0
        every_planted_cheat_is_refused_by_its_name_under_seed_1 1
        every_planted_cheat_is_refused_by_its_name_under_seed_2 2
        every_planted_cheat_is_refused_by_its_name_under_seed_3 3
        every_planted_cheat_is_refused_by_its_name_under_seed_4 4
        every_planted_cheat_is_refused_by_its_name_under_seed_5 5
        every_planted_cheat_is_refused_by_its_name_under_seed_6 6
        every_planted_cheat_is_refused_by_its_name_under_seed_7 7
        every_planted_cheat_is_refused_by_its_name_under_seed_8 8
        every_planted_cheat_is_refused_by_its_name_under_seed_9 9
    }

    #[test]
    fn no_honest_candidate_is_refused() {
        let refused: Vec<_> = HONEST
            .into_par_iter()
            .enumerate()
            .filter_map(|(at, how)| {
                examine(Ok(how), 100 + at as u64, &Arc::default()).expect("the stand-in does not fail")
            })
            .collect();
        assert!(refused.is_empty(), "{refused:?}");
    }
}
