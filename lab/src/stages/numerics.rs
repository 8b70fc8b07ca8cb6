//! Stage 4: the numbers are attention, on the problems that are timed and on hidden ones.

use super::{Context, Stage, State, without_problems};
use crate::error::{Error, Result};
use crate::evaluation::Outcome;
use crate::exam::question::{self, Code, Question};
use crate::exam::{Examined, Fault, Refusal};
use crate::inputs::{self, Kind, RealTensors};
use crate::job::{Report, Task};
use crate::kernels;
use crate::problem_spec::{ProblemSpec, Shape};
use std::collections::BTreeMap;

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
        let kernel = state.kernel()?;
        let mut questions = Vec::new();
        if without_problems(row).is_none() {
            let (library, compiled) = kernels::find(kernel)?;
            let launched = kernels::LaunchCode::read(&library, &compiled)?;
            let reach = kernels::Reach::new(&library, &compiled, &launched)?;
            let code = Code { literals: launched.literals(), reached: &|question| reach.of(question) };
            questions = question::draw(row, problems.hidden.len(), &problems.inputs, &code, seed);
            for spec in problems.of_row(row, context.machine.simulated)? {
                questions.push(measured(spec, context.machine.simulated, &problems.inputs));
            }
        }
        let [one, other] = shares(questions, context.machine.simulated);
        let examine = |share: &Share| -> Result<std::result::Result<ByNumber, Refusal>> {
            let Share { process, questions, ragged } = share;
            let numbers = questions.iter().map(|(number, _)| *number);
            let (questions, ragged) = (questions.clone(), *ragged);
            let error_share = context.config.tolerances.error_share.get();
            let task = Task::Examine { questions, ragged, real: context.real(), error_share };
            let limit = context.config.limits.test_s.duration();
            match context.child(kernel, &state.candidate.name, process, task, Vec::new(), limit)?.report {
                Report::Examined(examined) => Ok(Ok(numbers.zip(examined).collect())),
                Report::Refused(refusal) => Ok(Err(refusal)),
                other => Err(Error::Missing { what: "an examination", reason: format!("{other:?}") }),
            }
        };
        let (first, second) = if context.machine.simulated {
            std::thread::scope(|scope| {
                let second = scope.spawn(|| examine(&other));
                let first = examine(&one);
                (first, second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
        } else {
            // Two processes at once would share the GPU.
            let first = examine(&one);
            let second = if matches!(first, Ok(Ok(_))) { examine(&other) } else { Ok(Ok(ByNumber::new())) };
            (first, second)
        };
        let (mut examined, again) = match (first?, second?) {
            (Ok(first), Ok(second)) => (first, second),
            (Err(refusal), _) | (_, Err(refusal)) => return Ok(Outcome::Refused(refusal)),
        };
        if let Some(refusal) = differs(&examined, &again) {
            return Ok(Outcome::Refused(refusal));
        }
        examined.extend(again);
        state.evaluation.examined = examined.into_values().collect();
        Ok(Outcome::Passed)
    }
}

/// What was found on each question that a process was asked.
type ByNumber = BTreeMap<usize, Examined>;

/// What one process is asked.
#[derive(Clone, Debug)]
struct Share {
    /// What its log is called by.
    process: &'static str,
    questions: Vec<(usize, Question)>,
    ragged: bool,
}

/// Questions that both processes are asked, whose outputs have to be alike in every bit.
const ASKED_TWICE: usize = 2;

/// What each of two processes is asked: both the first [`ASKED_TWICE`] questions, which are the cheapest; of the others half each with `halves`, else the
/// first process all.
fn shares(questions: Vec<Question>, halves: bool) -> [Share; 2] {
    let share = |process, is_first: bool| Share { process, questions: Vec::new(), ragged: is_first };
    let mut shares = [share("numerics", true), share("numerics-again", false)];
    for (number, question) in questions.into_iter().enumerate() {
        let is_the_seconds = halves && number % 2 == 1;
        if number < ASKED_TWICE || is_the_seconds {
            shares[1].questions.push((number, question.clone()));
        }
        if number < ASKED_TWICE || !is_the_seconds {
            shares[0].questions.push((number, question));
        }
    }
    shares
}

/// The first question to which another process gave another output.
fn differs(first: &ByNumber, again: &ByNumber) -> Option<Refusal> {
    let mut both = first.iter().filter_map(|(number, one)| Some((one, again.get(number)?)));
    let (one, _) = both.find(|(one, other)| one.bits != other.bits)?;
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
    fn two_processes_are_asked_everything_once_and_the_first_questions_both() {
        let questions = vec![Question::measured(crate::job::tests::problem(), &[]); 7];
        for (halves, seconds) in [(true, vec![0, 1, 3, 5]), (false, vec![0, 1])] {
            let [first, second] = shares(questions.clone(), halves);
            let numbers =
                |share: &Share| share.questions.iter().map(|(number, _)| *number).collect::<Vec<_>>();
            assert_eq!(numbers(&second), seconds);
            let mut all = [numbers(&first), numbers(&second)].concat();
            all.sort_unstable();
            assert_eq!(all, [0, 0, 1, 1, 2, 3, 4, 5, 6]);
            assert!(first.ragged && !second.ragged);
        }
    }

    #[test]
    fn another_process_has_to_give_the_same_bits() {
        let examined = |bits: &str| Examined {
            problem: "p".to_owned(),
            launches: 5,
            bits: bits.to_owned(),
            worst_share: 0.5,
            worst_kind: String::new(),
        };
        let numbered = |all: &[(usize, &str)]| -> ByNumber {
            all.iter().map(|&(number, bits)| (number, examined(bits))).collect()
        };
        let first = numbered(&[(0, "a"), (1, "b"), (2, "c")]);
        assert_eq!(differs(&first, &numbered(&[(0, "a"), (1, "b")])), None);
        assert_eq!(differs(&first, &numbered(&[(0, "a"), (1, "b"), (3, "of another question")])), None);
        let refusal = differs(&first, &numbered(&[(0, "a"), (1, "x")])).expect("differs");
        assert_eq!(refusal.fault, Fault::NotRepeatable);
    }
}
