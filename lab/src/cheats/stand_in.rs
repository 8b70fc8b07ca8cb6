//! A stand-in for a device: memory of the host, two streams and an event, work in the order that a GPU would do it.

use crate::cheats::Candidate;
use crate::exam::{Before, Oracles, POISON, Question};
use crate::inputs::Inputs;
use crate::subject::{SETS, Subject};
use ferroflash::attention::Output;
use ferroflash::{Error, Problem};
use std::collections::VecDeque;
use std::sync::Arc;

/// Elements of the bands around O.
const BAND: usize = 64;
/// Bytes of the workspace, of which the first is a counter.
const WORKSPACE: usize = 64;

/// Work on one set of tensors.
pub(super) type Work = Box<dyn FnOnce(&mut Tensors)>;

/// One set of tensors.
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    /// Q, K, V and lengths.
    pub inputs: Inputs,
    /// LSE, where it is wanted.
    pub lse: Option<Vec<f32>>,
    /// What a launch may use, and what it may not leave behind.
    pub workspace: Vec<u8>,
    /// O between two bands.
    guarded_o: Vec<u16>,
}

impl Tensors {
    fn new(problem: &Problem, wants_lse: bool) -> Tensors {
        Tensors {
            inputs: Inputs::default(),
            lse: wants_lse.then(|| vec![f32::NAN; problem.lse_len()]),
            workspace: vec![0; WORKSPACE],
            guarded_o: vec![POISON; problem.o_len() + 2 * BAND],
        }
    }

    /// O.
    pub fn o_mut(&mut self) -> &mut [u16] {
        let end = self.guarded_o.len() - BAND;
        &mut self.guarded_o[BAND..end]
    }

    /// Whether O is NaN everywhere, as before the first launch.
    pub(super) fn is_untouched(&self) -> bool {
        self.guarded_o.iter().all(|&bits| bits & 0x7fff > 0x7c00)
    }

    /// Whether O's first element is one of two that a kernel may take for a sign of an examination.
    pub(super) fn is_of_known_bytes(&self) -> bool {
        matches!(self.guarded_o[BAND], 0xffff | 0x3b3b)
    }

    /// The first element of the band behind O.
    pub(super) fn behind_o(&mut self) -> &mut u16 {
        let end = self.guarded_o.len() - BAND;
        &mut self.guarded_o[end]
    }
}

/// One call of a candidate.
pub(super) struct Call<'a> {
    pub(super) question: &'a Question,
    pub(super) problem: &'a Problem,
    /// The set, whose tensors keep their addresses.
    pub(super) set: usize,
    /// The tensors as they are when the call is made.
    pub(super) tensors: &'a Tensors,
    /// What is right.
    pub(super) oracles: &'a Oracles,
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
    candidate: Candidate,
    posed: Option<(Question, Problem)>,
    sets: Vec<Tensors>,
    streams: Streams,
    oracles: Arc<Oracles>,
}

impl StandIn {
    /// A stand-in that runs one candidate.
    pub(crate) fn new(candidate: Candidate, oracles: Arc<Oracles>) -> StandIn {
        StandIn { candidate, posed: None, sets: Vec::new(), streams: Streams::default(), oracles }
    }

    fn run(&mut self, work: VecDeque<(usize, Work)>) {
        for (set, work) in work {
            work(&mut self.sets[set]);
        }
    }
}

impl Subject for StandIn {
    fn pose(&mut self, question: &Question, _secret: u64) -> Result<(), Error> {
        let problem = question.problem()?;
        self.sets = (0..SETS).map(|_| Tensors::new(&problem, question.lse)).collect();
        self.posed = Some((question.clone(), problem));
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Error> {
        self.candidate.forget();
        Ok(())
    }

    fn write_inputs(&mut self, set: usize, inputs: &Inputs) -> Result<(), Error> {
        self.sets[set].inputs.clone_from(inputs);
        Ok(())
    }

    fn fill(&mut self, set: usize, outputs: Before, workspace: Option<u8>) -> Result<(), Error> {
        let tensors = &mut self.sets[set];
        tensors.guarded_o.fill(POISON);
        let (o, lse) = outputs.fill([tensors.o_mut().len(), tensors.lse.as_ref().map_or(0, Vec::len)]);
        tensors.o_mut().copy_from_slice(&o);
        workspace.into_iter().for_each(|byte| tensors.workspace[1..].fill(byte));
        if let Some(own) = &mut tensors.lse {
            own.iter_mut().zip(lse).for_each(|(own, bits)| *own = f32::from_bits(bits));
        }
        Ok(())
    }

    fn launch(&mut self, set: usize) -> Result<(), Error> {
        let Some((question, problem)) = &self.posed else { return Ok(()) };
        let call = Call { question, problem, set, tensors: &self.sets[set], oracles: &self.oracles };
        self.candidate.launch(&call, &mut self.streams)?;
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
        Ok(self.sets[set].inputs.qkv.clone())
    }

    fn output(&mut self, set: usize) -> Result<Output, Error> {
        let tensors = &mut self.sets[set];
        let end = tensors.guarded_o.len() - BAND;
        let entry = || "stand-in".to_owned();
        let broken = |side, distance: usize| Error::GuardBand {
            entry: entry(),
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
        if tensors.workspace[0] != 0 {
            return Err(Error::CounterNotZero { entry: entry() });
        }
        Ok(Output::new(tensors.o_mut().to_vec(), tensors.lse.clone()))
    }
}
