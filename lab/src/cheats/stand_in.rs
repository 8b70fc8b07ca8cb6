//! A stand-in for a device: memory of the host, two streams and an event, work in the order that a GPU would do it.

use crate::cheats::Cheater;
use crate::subject::{SETS, Subject};
use ferroflash::attention::Output;
use ferroflash::{Error, Problem};
use std::collections::VecDeque;

/// Elements of the bands around O.
const BAND: usize = 64;
/// Every 16-bit float made of ones is NaN, and not the NaN that arithmetic gives.
const POISON: u16 = u16::MAX;

/// Work on one set of tensors.
pub(super) type Work = Box<dyn FnOnce(&mut Tensors)>;

/// One set of tensors.
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    /// Q, K and V.
    pub qkv: [Vec<u16>; 3],
    /// LSE.
    pub lse: Vec<f32>,
    /// O between two bands.
    guarded_o: Vec<u16>,
}

impl Tensors {
    fn new(problem: &Problem) -> Tensors {
        let qkv = [problem.q_len(), problem.k_len(), problem.v_len()].map(|length| vec![POISON; length]);
        let mut tensors = Tensors {
            qkv,
            lse: vec![f32::NAN; problem.lse_len()],
            guarded_o: vec![POISON; problem.o_len() + 2 * BAND],
        };
        tensors.poison();
        tensors
    }

    fn poison(&mut self) {
        self.guarded_o.fill(POISON);
        self.lse.fill(f32::NAN);
    }

    /// O.
    pub fn o_mut(&mut self) -> &mut [u16] {
        let end = self.guarded_o.len() - BAND;
        &mut self.guarded_o[BAND..end]
    }

    /// The first element of the band behind O.
    pub(super) fn behind_o(&mut self) -> &mut u16 {
        let end = self.guarded_o.len() - BAND;
        &mut self.guarded_o[end]
    }
}

/// One call of a candidate.
pub(super) struct Call<'a> {
    /// The problem.
    pub(super) problem: &'a Problem,
    /// The set.
    pub(super) set: usize,
    /// What the candidate sees of it: where O lies.
    pub(super) address: usize,
    /// Q, K and V as they are when the call is made.
    pub(super) qkv: &'a [Vec<u16>; 3],
}

/// Where a candidate puts its work.
#[derive(Default)]
pub(super) struct Streams {
    timed: VecDeque<(usize, Work)>,
    other: VecDeque<(usize, Work)>,
    behind_event: VecDeque<(usize, Work)>,
}

impl Streams {
    /// On the stream that is timed.
    pub(super) fn timed(&mut self, set: usize, work: Work) {
        self.timed.push_back((set, work));
    }

    /// On a stream of its own.
    pub(super) fn other(&mut self, set: usize, work: Work) {
        self.other.push_back((set, work));
    }

    /// On the timed stream, once the event is there: what a thread that the candidate started would do.
    pub(super) fn behind_event(&mut self, set: usize, work: Work) {
        self.behind_event.push_back((set, work));
    }
}

/// The stand-in with a candidate on it.
pub struct StandIn {
    candidate: Cheater,
    problem: Option<Problem>,
    sets: Vec<Tensors>,
    streams: Streams,
}

impl StandIn {
    /// A stand-in that runs one candidate.
    pub(crate) fn new(candidate: Cheater) -> StandIn {
        StandIn { candidate, problem: None, sets: Vec::new(), streams: Streams::default() }
    }

    fn run(&mut self, work: VecDeque<(usize, Work)>) {
        for (set, work) in work {
            work(&mut self.sets[set]);
        }
    }
}

impl Subject for StandIn {
    fn pose(&mut self, problem: &Problem) -> Result<(), Error> {
        self.problem = Some(*problem);
        self.sets = (0..SETS).map(|_| Tensors::new(problem)).collect();
        Ok(())
    }

    fn write_inputs(&mut self, set: usize, qkv: &[Vec<u16>; 3]) -> Result<(), Error> {
        self.sets[set].qkv.clone_from(qkv);
        Ok(())
    }

    fn poison_outputs(&mut self, set: usize) -> Result<(), Error> {
        self.sets[set].poison();
        Ok(())
    }

    fn launch(&mut self, set: usize) -> Result<(), Error> {
        let Some(problem) = self.problem else { return Ok(()) };
        let qkv = self.sets[set].qkv.clone();
        let call = Call { problem: &problem, set, address: set, qkv: &qkv };
        self.candidate.launch(&call, &mut self.streams);
        // The event is reached once what stands before it on the stream is done.
        let before = std::mem::take(&mut self.streams.timed);
        self.run(before);
        self.streams.timed = std::mem::take(&mut self.streams.behind_event);
        Ok(())
    }

    fn drain_stream(&mut self) -> Result<(), Error> {
        let rest = std::mem::take(&mut self.streams.timed);
        self.run(rest);
        Ok(())
    }

    fn drain_device(&mut self) -> Result<(), Error> {
        self.drain_stream()?;
        let other = std::mem::take(&mut self.streams.other);
        self.run(other);
        Ok(())
    }

    fn inputs(&mut self, set: usize) -> Result<[Vec<u16>; 3], Error> {
        Ok(self.sets[set].qkv.clone())
    }

    fn output(&mut self, set: usize) -> Result<Output, Error> {
        let tensors = &mut self.sets[set];
        let end = tensors.guarded_o.len() - BAND;
        let broken = |side, distance: usize| Error::GuardBand {
            entry: "stand-in".to_owned(),
            tensor: "O",
            distance: 2 * distance as u64,
            side,
        };
        if let Some(at) = tensors.guarded_o[..BAND].iter().rposition(|&bits| bits != POISON) {
            return Err(broken("before", BAND - at));
        }
        if let Some(at) = tensors.guarded_o[end..].iter().position(|&bits| bits != POISON) {
            return Err(broken("after", at));
        }
        Ok(Output::new(tensors.o_mut().to_vec(), Some(tensors.lse.clone())))
    }
}
