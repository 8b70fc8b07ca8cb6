//! Planted cheats on a stand-in for a device: what every examiner must refuse, and by which name.
//!
//! The stand-in computes on the CPU and has streams and events of its own, so that also work that is put where nobody waits
//! for it can be planted. The tests run every cheat, and so does each gate, as a control of the harness itself.

mod stand_in;

pub use stand_in::{StandIn, Tensors};

use crate::exam::{Exam, Fault};
use crate::problem_spec::{Mask, ProblemSpec, Shape};
use check::reference::{attention_row, reference, row_coordinates};
use ferroflash::attention::Output;
use ferroflash::rounding::{narrow, widen};
use ferroflash::{Dtype, Problem, TensorRole};
use stand_in::{Call, Streams, Work};
use std::collections::HashMap;

/// A way to look fast or right without being it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cheat {
    /// None: attention, in the problem's type.
    None,
    /// Zeros.
    Zeros,
    /// One value everywhere.
    Constant,
    /// What the call before computed.
    LastCall,
    /// Computed once for each address.
    CachedByPointer,
    /// Scale 1/head_dim.
    WrongScale,
    /// The keys behind the last whole block left out.
    DroppedTail,
    /// Every second key left out.
    HalfTheKeys,
    /// Right, by work on a stream that nobody times.
    OtherStream,
    /// Right, but put behind the event.
    LateWrite,
    /// Right, and the inputs replaced.
    InputsChanged,
    /// Right, and one element too many.
    OutOfBounds,
    /// Right, and another bit every time.
    NotRepeatable,
    /// Right, but for the last row.
    NotWritten,
}

impl Cheat {
    /// Every cheat, and the name it must be refused by.
    pub const PLANTED: [(Cheat, Fault); 13] = [
        (Cheat::Zeros, Fault::Zeros),
        (Cheat::Constant, Fault::Constant),
        (Cheat::LastCall, Fault::LastCall),
        (Cheat::CachedByPointer, Fault::CachedByPointer),
        (Cheat::WrongScale, Fault::WrongScale),
        (Cheat::DroppedTail, Fault::DroppedTail),
        (Cheat::HalfTheKeys, Fault::HalfTheKeys),
        (Cheat::OtherStream, Fault::OtherStream),
        (Cheat::LateWrite, Fault::LateWrite),
        (Cheat::InputsChanged, Fault::InputsChanged),
        (Cheat::OutOfBounds, Fault::OutOfBounds),
        (Cheat::NotRepeatable, Fault::NotRepeatable),
        (Cheat::NotWritten, Fault::NotWritten),
    ];
}

/// A candidate for the stand-in that cheats.
pub(crate) struct Cheater {
    cheat: Cheat,
    last: Option<Output>,
    cached: HashMap<usize, Output>,
    calls: u16,
}

impl Cheater {
    pub(crate) fn new(cheat: Cheat) -> Cheater {
        Cheater { cheat, last: None, cached: HashMap::new(), calls: 0 }
    }

    /// Puts this call's work on the streams.
    fn launch(&mut self, call: &Call<'_>, streams: &mut Streams) {
        self.calls += 1;
        let problem = *call.problem;
        let computed = compute(&problem, call.qkv, self.cheat);
        let mut output = match self.cheat {
            Cheat::LastCall => self.last.replace(computed.clone()).unwrap_or(computed),
            Cheat::CachedByPointer => self.cached.entry(call.address).or_insert(computed).clone(),
            _ => computed,
        };
        if self.cheat == Cheat::NotRepeatable {
            output.o[0] ^= self.calls & 1;
        }
        let cheat = self.cheat;
        let work: Work = Box::new(move |tensors: &mut Tensors| write(tensors, &output, cheat));
        match self.cheat {
            Cheat::OtherStream => streams.other(call.set, work),
            Cheat::LateWrite => streams.behind_event(call.set, work),
            _ => streams.timed(call.set, work),
        }
    }
}

/// What the cheat takes for attention.
fn compute(problem: &Problem, qkv: &[Vec<u16>; 3], cheat: Cheat) -> Output {
    let seqlen_k = problem.sizes().seqlen_k as usize;
    let block = (1..seqlen_k).filter(|length| length.is_power_of_two()).max().unwrap_or(1);
    let mut output = match cheat {
        Cheat::DroppedTail => over_keys(problem, qkv, &|key| key < block),
        Cheat::HalfTheKeys => over_keys(problem, qkv, &|key| key % 2 == 0),
        Cheat::WrongScale => {
            let scaled = problem.with_scale(1.0 / problem.sizes().head_dim as f32);
            over_all_keys(&scaled.unwrap_or(*problem), qkv)
        }
        _ => over_all_keys(problem, qkv),
    };
    match cheat {
        Cheat::Zeros => output.o.fill(0),
        Cheat::Constant => output.o.fill(narrow(problem.dtype(), 0.125)),
        _ => {}
    }
    output
}

fn over_all_keys(problem: &Problem, [q, k, v]: &[Vec<u16>; 3]) -> Output {
    reference(problem, q, k, v, &|_, _| ()).rounded(problem.dtype())
}

fn over_keys(problem: &Problem, qkv: &[Vec<u16>; 3], keeps: &dyn Fn(usize) -> bool) -> Output {
    let element = |role: TensorRole, index: usize| widen(problem.dtype(), qkv[role as usize][index]);
    let (mut o, mut lse) = (Vec::new(), Vec::new());
    for row in 0..problem.lse_len() {
        let (at, scale) = (row_coordinates(problem, row), f64::from(problem.scale()));
        let (row_o, row_lse) = attention_row(problem, element, None, at, scale, &|key, _| keeps(key));
        o.extend(row_o.into_iter().map(|o| narrow(problem.dtype(), o)));
        lse.push(row_lse as f32);
    }
    Output::new(o, Some(lse))
}

/// Writes an output where it belongs, and what the cheat writes besides.
fn write(tensors: &mut Tensors, output: &Output, cheat: Cheat) {
    let kept = if cheat == Cheat::NotWritten { output.o.len() - 1 } else { output.o.len() };
    tensors.o_mut()[..kept].copy_from_slice(&output.o[..kept]);
    if let Some(lse) = &output.lse {
        tensors.lse.copy_from_slice(lse);
    }
    match cheat {
        Cheat::InputsChanged => tensors.qkv[2][0] ^= 1,
        Cheat::OutOfBounds => *tensors.behind_o() = 0,
        _ => {}
    }
}

/// Examines every planted cheat and an honest candidate on the stand-in; returns a line for each that was not told apart.
///
/// # Errors
/// What the stand-in reports.
pub fn control(exam: &Exam<'_>) -> Result<Vec<String>, ferroflash::Error> {
    let honest = std::iter::once((Cheat::None, None));
    let planted = Cheat::PLANTED.into_iter().map(|(cheat, fault)| (cheat, Some(fault)));
    let mut missed = Vec::new();
    for (cheat, expected) in honest.chain(planted) {
        for spec in PROBLEMS.map(ProblemSpec::from) {
            let found =
                exam.run(&mut StandIn::new(Cheater::new(cheat)), &spec)?.err().map(|refusal| refusal.fault);
            if found != expected {
                missed.push(format!("{cheat:?} on {spec}: expected {expected:?}, found {found:?}"));
            }
        }
    }
    Ok(missed)
}

/// Shape and mask of the problems that cheats are examined on: full with a ragged tail, and causal.
const PROBLEMS: [([u32; 6], Mask); 2] =
    [([1, 2, 1, 33, 77, 32], Mask::Full), ([2, 2, 2, 50, 90, 32], Mask::Causal)];

impl From<([u32; 6], Mask)> for ProblemSpec {
    fn from((shape, mask): ([u32; 6], Mask)) -> ProblemSpec {
        ProblemSpec { shape: Shape(shape), dtype: Dtype::F16, mask }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::Kind;
    use kernels_gpu::row::Accumulation;

    #[test]
    fn every_planted_cheat_is_refused_by_its_name_and_an_honest_kernel_passes() {
        for seed in [1, 0xfeed] {
            let kinds = [Kind::Random, Kind::Outliers, Kind::Constant, Kind::Zero];
            let accumulation = Accumulation::F32;
            let exam = Exam { seed, kinds: &kinds, real: None, accumulation, error_share: 1.0 };
            assert_eq!(control(&exam).expect("the stand-in does not fail"), Vec::<String>::new());
        }
    }
}
