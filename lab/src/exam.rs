//! The examination of a candidate's numbers: whether it computes attention, now and on these inputs, and what it does instead.

mod diagnosis;
mod fault;
mod hidden;

pub use fault::Fault;
pub use hidden::hidden_problems;

use crate::inputs::{self, Kind, RealTensors};
use crate::problem_spec::ProblemSpec;
use crate::subject::Subject;
use check::verification::{Oracle, same_bits};
use diagnosis::diagnose;
use ferroflash::attention::Output;
use ferroflash::{Error, Problem};
use kernels_gpu::row::Accumulation;
use serde::{Deserialize, Serialize};

/// How to examine.
#[derive(Clone, Copy, Debug)]
pub struct Exam<'a> {
    /// Seed of every input; nobody knows it before the session.
    pub seed: u64,
    /// Distributions of the inputs.
    pub kinds: &'a [Kind],
    /// Where real inputs come from.
    pub real: Option<&'a RealTensors>,
    /// How the candidate accumulates Q·Kᵀ, which its bounds depend on.
    pub accumulation: Accumulation,
    /// Share of the host's bound that an error may take.
    pub error_share: f64,
}

/// What an examination found on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Examined {
    /// The problem.
    pub problem: String,
    /// Launches that were judged.
    pub launches: usize,
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

/// The outcome of an examination; the outer error is the device's.
pub type Outcome = Result<Result<Examined, Refusal>, Error>;

impl Exam<'_> {
    /// Examines a subject on one problem.
    ///
    /// Set 0 gets random inputs and runs before and after the reference is computed, bitwise alike; set 1 gets others; set 0
    /// gets new ones at the same addresses; then every other distribution. After each launch the outputs are read at the event
    /// and again once the stream and the device are drained, and the inputs are compared.
    ///
    /// # Errors
    /// What the device reports, but for broken rules, which refuse the candidate.
    pub fn run(&self, subject: &mut dyn Subject, spec: &ProblemSpec) -> Outcome {
        let problem = spec.problem()?;
        let mut paper = Paper { exam: self, subject, problem, title: spec.to_string(), outputs: Vec::new() };
        paper.subject.pose(&problem)?;
        let mut examined = Examined {
            problem: paper.title.clone(),
            launches: 0,
            worst_share: 0.0,
            worst_kind: String::new(),
        };
        for (number, sitting) in self.sittings().into_iter().enumerate() {
            let seed = self.seed.wrapping_add(number as u64 * 0x9e37_79b9);
            let Some(qkv) = inputs::make(&problem, sitting.kind, seed, self.real) else { continue };
            match paper.sit(sitting, &qkv)? {
                Err(refusal) => return Ok(Err(refusal)),
                Ok(share) => {
                    examined.launches += 1;
                    if share > examined.worst_share {
                        examined.worst_share = share;
                        sitting.kind.name().clone_into(&mut examined.worst_kind);
                    }
                }
            }
        }
        Ok(Ok(examined))
    }

    /// Random inputs on both sets and again on the first, whatever else is asked for: this is what tells stale outputs.
    fn sittings(&self) -> Vec<Sitting> {
        let random = |set, again| Sitting { set, kind: Kind::Random, again };
        let mut sittings = vec![random(0, true), random(1, false), random(0, false)];
        let others = self.kinds.iter().filter(|kind| **kind != Kind::Random);
        sittings.extend(others.enumerate().map(|(at, &kind)| Sitting {
            set: (at + 1) % 2,
            kind,
            again: false,
        }));
        sittings
    }
}

/// One launch that is judged.
#[derive(Clone, Copy, Debug)]
struct Sitting {
    set: usize,
    kind: Kind,
    /// Whether it is launched again after the reference is there.
    again: bool,
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
    problem: Problem,
    title: String,
    outputs: Vec<Earlier>,
}

impl Paper<'_> {
    /// Launches, judges, and returns the share of the allowed error that the output took.
    fn sit(&mut self, sitting: Sitting, qkv: &[Vec<u16>; 3]) -> Result<Result<f64, Refusal>, Error> {
        let where_ = format!("{} with {} inputs", self.title, sitting.kind.name());
        let refused =
            |fault, figures: String| Ok(Err(Refusal { fault, evidence: format!("{where_}: {figures}") }));
        let (fault, output) = match self.launch(sitting.set, qkv) {
            Ok(launched) => launched,
            Err(error) => match rule_broken(&error) {
                Some(fault) => return refused(fault, error.to_string()),
                None => return Err(error),
            },
        };
        if let Some(fault) = fault {
            return refused(fault, fault.meaning().to_owned());
        }
        let accumulation = self.exam.accumulation;
        let oracle = Oracle::new(&self.problem, qkv.clone(), None, &[accumulation], &|_, _| ());
        let verdict = oracle.judge(accumulation, &output)?;
        let share = verdict.ratio();
        if !verdict.passed || share > self.exam.error_share {
            let fault = self.fault_of(sitting.set, &oracle, &output);
            return refused(fault, format!("{}; {verdict}", fault.meaning()));
        }
        if sitting.again {
            match self.launch(sitting.set, qkv)? {
                (Some(fault), _) => return refused(fault, fault.meaning().to_owned()),
                (None, second) if !same_bits(&output, &second) => {
                    let fault = Fault::NotRepeatable;
                    return refused(fault, fault.meaning().to_owned());
                }
                _ => {}
            }
        }
        if sitting.kind == Kind::Random {
            self.outputs.push(Earlier { set: sitting.set, output });
        }
        Ok(Ok(share))
    }

    /// One launch, with everything around it watched. The output is as it was at the event.
    fn launch(&mut self, set: usize, qkv: &[Vec<u16>; 3]) -> Result<(Option<Fault>, Output), Error> {
        let subject = &mut *self.subject;
        subject.write_inputs(set, qkv)?;
        subject.poison_outputs(set)?;
        subject.launch(set)?;
        let at_event = subject.output(set)?;
        subject.drain_stream()?;
        let after_stream = subject.output(set)?;
        subject.drain_device()?;
        let after_device = subject.output(set)?;
        let fault = if !same_bits(&at_event, &after_stream) {
            Some(Fault::LateWrite)
        } else if !same_bits(&after_stream, &after_device) {
            Some(Fault::OtherStream)
        } else if subject.inputs(set)? != *qkv {
            Some(Fault::InputsChanged)
        } else {
            None
        };
        Ok((fault, at_event))
    }

    /// What a wrong output is: an earlier one, or what the numbers themselves say.
    fn fault_of(&self, set: usize, oracle: &Oracle, output: &Output) -> Fault {
        let stale = |earlier: &&Earlier| earlier.output.o == output.o;
        let of_numbers = diagnose(oracle, output);
        // Outputs that are all alike are also like earlier ones.
        if matches!(of_numbers, Fault::Zeros | Fault::Constant | Fault::NotWritten) {
            return of_numbers;
        }
        match self.outputs.iter().rev().find(stale) {
            // The last launch was on the other set, so what stands there now came back by its address.
            Some(earlier)
                if earlier.set == set && self.outputs.last().is_some_and(|last| last.set != set) =>
            {
                Fault::CachedByPointer
            }
            Some(_) => Fault::LastCall,
            None => of_numbers,
        }
    }
}

/// The fault behind an error, where the candidate is to blame.
fn rule_broken(error: &Error) -> Option<Fault> {
    match error {
        Error::GuardBand { .. } => Some(Fault::OutOfBounds),
        Error::Simulation { reason, .. } => Some(Fault::of_simulation(reason)),
        _ => None,
    }
}
