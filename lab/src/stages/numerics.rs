//! Stage 4: the numbers are attention, on the problems that are timed and on hidden ones.

use super::{Context, Stage, State};
use crate::error::Result;
use crate::evaluation::Outcome;
use crate::exam::question::{self, Question};
use crate::exam::{Examined, Fault, Refusal};
use crate::inputs::{self, Kind, RealTensors};
use crate::job::{Report, Task};
use crate::problem_spec::{ProblemSpec, Shape};

/// Examines.
pub(super) struct Numerics;

impl Stage for Numerics {
    fn name(&self) -> &'static str {
        "numerics"
    }

    fn run(&self, state: &mut State, context: &Context) -> Result<Outcome> {
        let problems = &context.config.problems;
        let real = RealTensors::read(&context.real())?;
        inputs::check_real(&problems.inputs, real.as_ref(), &context.real())?;
        let row = &state.candidate.row;
        let seed = context.seed_of(&state.candidate.name);
        let mut questions = question::draw(row, problems.hidden.len(), &problems.inputs, seed);
        for spec in problems.of_row(row, context.machine.simulated)? {
            questions.push(measured(spec, context.machine.simulated, &problems.inputs));
        }
        let examine = |questions: &[Question]| -> Result<Report> {
            let error_share = context.config.tolerances.error_share.get();
            let task = Task::Examine { questions: questions.to_vec(), real: context.real(), error_share };
            let (kernel, limit) = (state.kernel()?, context.config.limits.test_s.duration());
            Ok(context.child(kernel, &state.candidate.name, self.name(), task, Vec::new(), limit)?.report)
        };
        match examine(&questions)? {
            // The cheapest questions come first.
            Report::Examined(examined) => match examine(&questions[..ASKED_AGAIN.min(questions.len())])? {
                Report::Refused(refusal) => return Ok(Outcome::Refused(refusal)),
                Report::Examined(again) => {
                    if let Some(refusal) = differs(&examined, &again) {
                        return Ok(Outcome::Refused(refusal));
                    }
                    state.evaluation.examined = examined;
                }
                _ => {}
            },
            Report::Refused(refusal) => return Ok(Outcome::Refused(refusal)),
            _ => {}
        }
        Ok(Outcome::Passed)
    }
}

/// Questions that a second process is asked too, whose outputs have to be the first one's in every bit.
const ASKED_AGAIN: usize = 2;

/// The first question to which another process gave another output.
fn differs(first: &[Examined], again: &[Examined]) -> Option<Refusal> {
    let (one, _) = first.iter().zip(again).find(|(one, other)| one.bits != other.bits)?;
    let evidence = format!("{}: another process gives other bits on the same inputs", one.problem);
    Some(Refusal { fault: Fault::NotRepeatable, evidence })
}

/// Operations up to which float64 on the host takes seconds.
const WHOLE_FLOPS: f64 = 1e11;
/// Operations up to which it may look at every distribution.
const SMALL_FLOPS: f64 = 1e10;

/// A problem that is measured, on other inputs than those of the measurement, which is judged itself: whole where the kernel runs on
/// a GPU and float64 can follow. What the simulator counts is judged whole when it is counted.
fn measured(spec: ProblemSpec, simulated: bool, kinds: &[Kind]) -> Question {
    match spec.flops() {
        flops if simulated || flops > WHOLE_FLOPS => Question::measured(smaller(spec), kinds),
        flops if flops > SMALL_FLOPS => Question::measured(spec, &[]),
        _ => Question::measured(spec, kinds),
    }
}

/// A problem with two KV heads of one batch entry: heads are computed alike.
fn smaller(spec: ProblemSpec) -> ProblemSpec {
    let [_, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim] = spec.shape.0;
    let kept = heads_kv.min(2);
    ProblemSpec { shape: Shape([1, heads_q / heads_kv * kept, kept, seqlen_q, seqlen_k, head_dim]), ..spec }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_has_to_give_the_same_bits() {
        let examined = |bits: &str| Examined {
            problem: "p".to_owned(),
            launches: 5,
            bits: bits.to_owned(),
            worst_share: 0.5,
            worst_kind: String::new(),
        };
        let first = [examined("a"), examined("b"), examined("c")];
        assert_eq!(differs(&first, &first[..2]), None);
        let refusal = differs(&first, &[examined("a"), examined("x")]).expect("differs");
        assert_eq!(refusal.fault, Fault::NotRepeatable);
    }
}
