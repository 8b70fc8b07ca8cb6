//! Doing a job, in the child process.

use crate::error::{Error, Result};
use crate::exam::{Exam, Fault, Refusal};
use crate::inputs::RealTensors;
use crate::job::{Job, Report, Task, Timed};
use crate::kernels::{self, KernelSubject, Times};
use crate::problem_spec::ProblemSpec;
use crate::subject::Subject;
use check::measure::{Bench, Measured};
use check::random_input::{InputKind, qkv};

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
        Task::Count { schedules } => {
            let mut counted = Vec::new();
            for spec in &job.problems {
                counted.push(kernels::count(&library, &kernel, spec, None)?);
                for schedule in 0..*schedules {
                    let seed = job.seed.wrapping_add(1 + schedule);
                    kernels::count(&library, &kernel, spec, Some(seed))?;
                }
            }
            Ok(Report::Counted(counted))
        }
        Task::Examine { kinds, real, error_share } => {
            let real = RealTensors::read(real)?;
            let mut subject = KernelSubject::open(&library, &kernel, &job.machine)?;
            let accumulation = kernel.row.acc;
            let exam =
                Exam { seed: job.seed, kinds, real: real.as_ref(), accumulation, error_share: *error_share };
            examine(&exam, &mut subject, &job.problems)
        }
        Task::Launch => {
            launch(&mut KernelSubject::open(&library, &kernel, &job.machine)?, &job.problems, job.seed)
        }
        Task::Brief { against, reps } => time(job, against, |bench, entries, spec| {
            let measured = kernels::time_briefly(bench, entries, spec, *reps)?;
            Ok(Ok(measured.into_iter().map(|measured| brief(spec, measured)).collect()))
        }),
        Task::Fresh { against, reps } => time(job, against, |bench, entries, spec| {
            let (warm, fresh) = kernels::time_fresh(bench, entries, spec, job.seed, *reps)?;
            let times = Times { wall_us: vec![None; warm.len()], cold: warm.clone(), warm, fresh };
            let only_fresh = |timed: Timed| Timed { warm_us: Vec::new(), cold_us: Vec::new(), ..timed };
            Ok(timings(spec, &times).map(|timed| timed.into_iter().map(only_fresh).collect()))
        }),
        Task::Time { against, reps } => time(job, against, |bench, entries, spec| {
            let times = kernels::time(bench, entries, spec, job.seed, *reps)?;
            Ok(timings(spec, &times))
        }),
    }
}

fn examine(exam: &Exam<'_>, subject: &mut dyn Subject, problems: &[ProblemSpec]) -> Result<Report> {
    let mut examined = Vec::new();
    for spec in problems {
        match exam.run(subject, spec)? {
            Ok(passed) => examined.push(passed),
            Err(refusal) => return Ok(Report::Refused(refusal)),
        }
    }
    Ok(Report::Examined(examined))
}

fn launch(subject: &mut dyn Subject, problems: &[ProblemSpec], seed: u64) -> Result<Report> {
    for spec in problems {
        let problem = spec.problem()?;
        subject.pose(&problem)?;
        subject.write_inputs(0, &qkv(&problem, InputKind::Random, seed))?;
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
        sm_clock_mhz: measured.sm_clock_mhz,
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
            sm_clock_mhz: warm.sm_clock_mhz,
        });
    }
    Ok(timed)
}

/// The fault behind an error, where the candidate is to blame.
fn fault_of(error: &Error) -> Option<Fault> {
    match error {
        Error::Host(ferroflash::Error::Simulation { reason, .. }) => Some(Fault::of_simulation(reason)),
        Error::Host(ferroflash::Error::GuardBand { .. }) => Some(Fault::OutOfBounds),
        Error::Host(ferroflash::Error::PtxRejected { .. }) => Some(Fault::DoesNotCompile),
        // A fault of the kernel shows in whichever call comes next.
        Error::Host(ferroflash::Error::Cuda { reason, .. }) if is_kernel_fault(reason) => {
            Some(Fault::RuleBroken)
        }
        _ => None,
    }
}

/// The driver and its bindings spell the same errors in two ways.
fn is_kernel_fault(reason: &str) -> bool {
    const NAMES: [&str; 5] =
        ["illegaladdress", "misalignedaddress", "launchfailed", "illegalinstruction", "launchtimeout"];
    let spelled: String = reason.to_lowercase().chars().filter(|c| *c != '_').collect();
    NAMES.iter().any(|name| spelled.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_simulator_gives_up_on_hangs_and_what_it_refuses_breaks_a_rule() {
        let of = |reason: &str| {
            fault_of(&Error::Host(ferroflash::Error::Simulation { entry: "k".into(), reason: reason.into() }))
        };
        assert_eq!(of("budget: kernel k line 34 `bra $L;`"), Some(Fault::Hang));
        assert_eq!(of("deadlock: kernel k line 34 `bra $L;`"), Some(Fault::Hang));
        assert_eq!(of("race: kernel k line 34, out of budget"), Some(Fault::RuleBroken));
    }

    #[test]
    fn a_kernel_is_blamed_for_what_a_kernel_does() {
        let of = |reason: &str| {
            fault_of(&Error::Host(ferroflash::Error::Cuda {
                call: "cuStreamSynchronize",
                reason: reason.into(),
            }))
        };
        assert_eq!(of("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal access"), Some(Fault::RuleBroken));
        assert_eq!(of("MisalignedAddress"), Some(Fault::RuleBroken));
        assert_eq!(of("CUDA_ERROR_OUT_OF_MEMORY"), None);
    }
}
