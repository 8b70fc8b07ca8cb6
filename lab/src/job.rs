//! Work on one candidate in a process of its own: `lab child` reads a job, does it, and prints what came of it.

mod run;

pub use run::run;

use crate::error::Result;
use crate::exam::{Examined, Fault, Question, Refusal};
use crate::kernels::{Counted, KernelRef, Machine};
use crate::problem_spec::ProblemSpec;
use crate::process::{self, End};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The hidden subcommand that does a job.
pub const CHILD: &str = "child";

/// What to do with a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The kernel.
    pub kernel: KernelRef,
    /// What to do.
    pub task: Task,
    /// On these problems.
    pub problems: Vec<ProblemSpec>,
    /// On this machine.
    pub machine: Machine,
    /// Seed of the inputs, which nobody knows before the session ends.
    pub seed: u64,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Task {
    /// Run on the simulator with every check on, under its own schedule and `schedules` others, and count.
    Count {
        /// Further schedules.
        schedules: u64,
    },
    /// Examine the numbers; the problems are the questions' own.
    Examine {
        /// The questions, each with its number, which its inputs depend on.
        questions: Vec<(usize, Question)>,
        /// Whether to draw ragged batches too, for a kernel that takes them.
        ragged: bool,
        /// Where real inputs come from.
        real: PathBuf,
        /// Share of the host's bound that an error may take.
        error_share: f64,
    },
    /// Launch once on each problem, for a tool that watches.
    Launch,
    /// Time the kernel and others of the same folder in turns, briefly and on the same tensors every time: to rank them.
    Brief {
        /// The others.
        against: Vec<String>,
        /// Timed replays.
        reps: u32,
    },
    /// Time the kernel and others of the same folder in turns, on inputs that no launch has seen: what a gate decides by.
    Fresh {
        /// The others.
        against: Vec<String>,
        /// Timed replays.
        reps: u32,
        /// Measurements, one behind the other, each on inputs of its own.
        runs: u32,
    },
    /// Say of the kernel and of others of the same folder how long they take by the host's clock, or how many clocks they count on the
    /// simulator, and judge no number.
    SecondOpinion {
        /// The others.
        against: Vec<String>,
    },
    /// Time the kernel, and others of the same folder in turns with it.
    Time {
        /// The others.
        against: Vec<String>,
        /// Timed replays.
        reps: u32,
    },
}

/// Device times of one kernel on one problem, in microseconds of one launch, in the order of the replays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// The problem.
    pub problem: ProblemSpec,
    /// The kernel.
    pub entry: String,
    /// CTAs of a launch.
    pub ctas: u32,
    /// CTAs that a multiprocessor holds at a time.
    pub resident_ctas_per_sm: u32,
    /// On the same tensors every time.
    pub warm_us: Vec<f64>,
    /// On tensors that the L2 cache has lost.
    pub cold_us: Vec<f64>,
    /// On inputs that no launch has seen.
    pub fresh_us: Vec<f64>,
    /// By the host's clock, over many launches: a second opinion. `None` where it was not asked for.
    pub wall_us: Option<f64>,
    /// SM clock under this load in MHz, where NVML tells.
    pub sm_clock_mhz: Option<u32>,
}

/// What came of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// Counted on each problem.
    Counted(Vec<Counted>),
    /// Right on each problem.
    Examined(Vec<Examined>),
    /// Launched.
    Launched,
    /// Timed on each problem, the kernel first and the others behind it; without times where an output was wrong.
    Timed(Vec<Timed>),
    /// A number for each problem and kernel, of each problem the kernel's first.
    Opinions(Vec<f64>),
    /// The candidate is at fault.
    Refused(Refusal),
    /// The job could not be done, for a reason that is not the candidate's.
    Failed(String),
}

/// What a job cost and came to.
#[derive(Clone, Debug)]
pub struct Done {
    /// What came of it.
    pub report: Report,
    /// How long it took.
    pub time: Duration,
}

/// Does a job in a process of its own, which is killed at `limit`; what it says goes to `log`.
///
/// # Errors
/// [`crate::Error::Start`], [`crate::Error::Interrupted`]. A candidate that hangs or crashes is refused, which is no error.
pub fn in_child(program: &Path, job: &Job, log: &Path, limit: Duration) -> Result<Done> {
    let mut command = Command::new(program);
    command.arg(CHILD);
    let input = serde_json::to_vec(job).unwrap_or_default();
    let ended = process::run(&mut command, &input, log, limit)?;
    let refused = |fault, evidence: String| Report::Refused(Refusal { fault, evidence });
    let report = match ended.end {
        End::PrintedTooMuch => refused(Fault::Crash, "it printed without end".to_owned()),
        End::TimedOut => refused(Fault::Hang, format!("killed after {} s", limit.as_secs_f64())),
        End::Interrupted => {
            let folder = log.parent().and_then(Path::parent).unwrap_or(Path::new(".")).to_owned();
            return Err(crate::Error::Interrupted { folder });
        }
        End::Exited(status) => serde_json::from_str(&ended.stdout).unwrap_or_else(|_| {
            let said = process::last_line(log).unwrap_or_default();
            refused(Fault::Crash, format!("the process ended with {status} {said}"))
        }),
    };
    Ok(Done { report, time: ended.time })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A problem.
    pub(crate) fn problem() -> ProblemSpec {
        let shape = "8,16,16,512,512,64".parse().expect("a shape");
        ProblemSpec { shape, dtype: ferroflash::Dtype::F16, mask: crate::problem_spec::Mask::Full }
    }

    /// What a kernel that takes so long, give or take half a percent, is timed at.
    pub(crate) fn timed(problem: ProblemSpec, entry: &str, us: f64) -> Timed {
        Timed {
            problem,
            entry: entry.to_owned(),
            ctas: 1,
            resident_ctas_per_sm: 1,
            warm_us: Vec::new(),
            cold_us: Vec::new(),
            fresh_us: (0..20).map(|i| us * (1.0 + 1e-3 * f64::from(i % 5))).collect(),
            wall_us: None,
            sm_clock_mhz: None,
        }
    }
}
