//! Doing a job, in the child process.

use crate::error::{Error, Result};
use crate::exam::question::Code;
use crate::exam::{Exam, Fault, Question, Refusal};
use crate::inputs::{Inputs, RealTensors};
use crate::job::{Job, Report, Task, Timed};
use crate::kernels::{self, KernelSubject, LaunchCode, Reach, Times};
use crate::problem_spec::ProblemSpec;
use crate::subject::Subject;
use check::measure::{Bench, Measured};
use check::random_input::{InputKind, qkv};
use check::verification::RaggedSketch;
use ferroflash::module::Library;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::Schedule;
use std::sync::Arc;

/// Does a job.
pub fn run(job: &Job) -> Report {
    match perform(job) {
        Ok(report) => report,
        Err(error) => match fault_of(&error) {
            Some(fault) => Report::Refused(Refusal { fault, evidence: error.to_string() }),
            None => Report::Failed(error.to_string()),
        },
    }
}

fn perform(job: &Job) -> Result<Report> {
    let (library, kernel) = kernels::find(&job.kernel)?;
    match &job.task {
        Task::Count { schedules } => count(job, *schedules, &library, &kernel),
        Task::Examine { questions, ragged, real, error_share } => {
            let real = RealTensors::read(real)?;
            let mut subject = KernelSubject::open(&library, &kernel, &job.machine)?;
            let accumulation = kernel.row.acc;
            let (seed, error_share) = (job.seed, *error_share);
            let exam = Exam { seed, real: real.as_ref(), accumulation, error_share, oracles: None };
            let numbered = questions.iter().map(|(number, question)| (*number, question));
            let found = exam.run(&mut subject, numbered)?;
            let ragged = match found {
                Ok(_) if *ragged && kernel.row.schedule == Schedule::Ragged => {
                    let launched = LaunchCode::read(&library, &kernel)?;
                    let reach = Reach::new(&library, &kernel, &launched)?;
                    let reached = |batch: &RaggedSketch| reach.of_ragged(batch);
                    let code = Code { literals: launched.literals(), reached: &reached };
                    kernels::examine_ragged(&subject.attention()?, &kernel, &code, job.seed)?
                }
                _ => Ok(()),
            };
            Ok(found
                .and_then(|examined| ragged.map(|()| examined))
                .map_or_else(Report::Refused, Report::Examined))
        }
        Task::Launch => {
            launch(&mut KernelSubject::open(&library, &kernel, &job.machine)?, &job.problems, job.seed)
        }
        Task::Brief { against, reps } => time(job, against, |bench, entries, spec| {
            let measured = kernels::time_briefly(bench, entries, spec, job.seed, *reps)?;
            Ok(Ok(measured.into_iter().map(|measured| brief(spec, measured)).collect()))
        }),
        Task::Fresh { against, reps, runs } => time(job, against, |bench, entries, spec| {
            let mut all = Vec::new();
            for run in 0..u64::from(*runs) {
                let seed = job.seed.wrapping_add(run);
                let (warm, fresh) = kernels::time_fresh(bench, entries, spec, seed, *reps)?;
                let times = Times { wall_us: vec![None; warm.len()], cold: warm.clone(), warm, fresh };
                match timings(spec, &times) {
                    Ok(timed) => all.extend(timed),
                    refused => return Ok(refused),
                }
            }
            let only_fresh = |timed: Timed| Timed { warm_us: Vec::new(), cold_us: Vec::new(), ..timed };
            Ok(Ok(all.into_iter().map(only_fresh).collect()))
        }),
        Task::SecondOpinion { against } => second_opinion(job, against, &library),
        Task::Time { against, reps } => time(job, against, |bench, entries, spec| {
            let times = kernels::time(bench, entries, spec, job.seed, *reps)?;
            Ok(timings(spec, &times))
        }),
    }
}

/// Counts each problem in the simulator's own order, and runs it on other inputs in other orders.
fn count(job: &Job, schedules: u64, library: &Arc<Library>, kernel: &Arc<Kernel>) -> Result<Report> {
    let mut counted = Vec::new();
    for spec in &job.problems {
        let own = match kernels::count(library, kernel, spec, None)? {
            Ok(own) => own,
            Err(refusal) => return Ok(Report::Refused(refusal)),
        };
        for schedule in 0..schedules {
            let other = kernels::count(library, kernel, spec, Some(job.seed.wrapping_add(1 + schedule)))?;
            let refusal = other.map_or_else(Some, |other| kernels::special_cased(&own, &other));
            if let Some(refusal) = refusal {
                return Ok(Report::Refused(refusal));
            }
        }
        counted.push(own);
    }
    Ok(Report::Counted(counted))
}

/// How long kernels of a folder take by the host's clock, or the clocks that they count; no number is judged.
fn second_opinion(job: &Job, against: &[String], library: &Arc<Library>) -> Result<Report> {
    let entries: Vec<String> = std::iter::once(&job.kernel.entry).chain(against).cloned().collect();
    let mut found = Vec::new();
    for spec in &job.problems {
        if job.machine.simulated {
            for entry in &entries {
                let kernel = kernels::find_in(library, entry)?;
                found.push(kernels::count_unjudged(library, &kernel, spec)?.clocks);
            }
        } else {
            found.extend(kernels::wall_us(
                &kernels::open_bench(&job.kernel.folder, job.machine.ordinal)?,
                &entries,
                spec,
            )?);
        }
    }
    Ok(Report::Opinions(found))
}

fn launch(subject: &mut dyn Subject, problems: &[ProblemSpec], seed: u64) -> Result<Report> {
    for spec in problems {
        let question = Question::measured(*spec, &[]);
        subject.pose(&question, seed)?;
        let inputs = Inputs { qkv: qkv(&spec.problem()?, InputKind::Random, seed), seqlens_k: None };
        subject.write_inputs(0, &inputs)?;
        subject.launch(0)?;
        subject.output(0)?;
    }
    Ok(Report::Launched)
}

/// What timing one problem gives: times, or why the candidate is refused.
type TimesOrRefusal = Result<std::result::Result<Vec<Timed>, Refusal>>;

/// Times the job's kernel and others of its folder on each problem.
fn time(
    job: &Job,
    against: &[String],
    of_problem: impl Fn(&Bench, &[String], &ProblemSpec) -> TimesOrRefusal,
) -> Result<Report> {
    let bench = kernels::open_bench(&job.kernel.folder, job.machine.ordinal)?;
    let entries: Vec<String> = std::iter::once(&job.kernel.entry).chain(against).cloned().collect();
    let mut timed = Vec::new();
    for spec in &job.problems {
        match of_problem(&bench, &entries, spec)? {
            Ok(times) => timed.extend(times),
            Err(refusal) => return Ok(Report::Refused(refusal)),
        }
    }
    Ok(Report::Timed(timed))
}

fn brief(spec: &ProblemSpec, measured: Measured) -> Timed {
    Timed {
        problem: *spec,
        entry: measured.entry,
        ctas: measured.ctas,
        resident_ctas_per_sm: measured.resident_ctas_per_sm,
        warm_us: measured.times_us,
        cold_us: Vec::new(),
        fresh_us: Vec::new(),
        wall_us: None,
        sm_clock_mhz: measured.load.sm_clock_mhz,
    }
}

/// The times of one problem; refuses a candidate whose output was wrong while it was timed.
fn timings(spec: &ProblemSpec, times: &Times) -> std::result::Result<Vec<Timed>, Refusal> {
    let mut timed = Vec::new();
    let cold_and_fresh = times.cold.iter().zip(&times.fresh).zip(&times.wall_us);
    for (warm, ((cold, fresh), &wall_us)) in times.warm.iter().zip(cold_and_fresh) {
        let wrong = |how: &str| Refusal {
            fault: Fault::WrongNumbers,
            evidence: format!("{spec}: the output of {} was wrong while it was timed {how}", warm.entry),
        };
        if !warm.check.passed() || !cold.check.passed() {
            return Err(wrong("on the usual inputs"));
        }
        if fresh.wrong > 0 {
            return Err(wrong("on inputs that no launch had seen"));
        }
        timed.push(Timed {
            problem: *spec,
            entry: warm.entry.clone(),
            ctas: warm.ctas,
            resident_ctas_per_sm: warm.resident_ctas_per_sm,
            warm_us: warm.times_us.clone(),
            cold_us: cold.times_us.clone(),
            fresh_us: fresh.times_us.clone(),
            wall_us,
            sm_clock_mhz: warm.load.sm_clock_mhz,
        });
    }
    Ok(timed)
}

/// The fault behind an error, where the candidate is to blame.
fn fault_of(error: &Error) -> Option<Fault> {
    match error {
        Error::Host(error) => Fault::of_error(error),
        _ => None,
    }
}
