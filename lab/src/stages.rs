//! The cascade that every candidate goes through, cheapest stage first, until one refuses it.

mod compile;
mod counters;
mod numerics;
mod others;
mod resources;
mod timing;

pub use timing::{floor_us, roofline};

use crate::candidate::Candidate;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::evaluation::{Evaluation, Outcome, StageRecord};
use crate::exam::{Fault, Refusal};
use crate::job::{self, Done, Job, Report, Task, Timed};
use crate::kernels::{KernelRef, Machine};
use crate::problem_spec::ProblemSpec;
use crate::tree::Tree;
use ferroflash::Row;
use ferroflash::module::sha256_hex;
use kernels_gpu::geometry;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The stage that uses the GPU's time.
pub const TIMING: &str = "timing";

/// What a driver gets to recover in before a job that failed is tried once more.
const RECOVERY: Duration = Duration::from_secs(5);

/// Everything that stages work with.
#[derive(Clone, Debug)]
pub struct Context {
    /// lab.toml.
    pub config: Config,
    /// What runs the kernels.
    pub machine: Machine,
    /// The project's own tree.
    pub tree: Tree,
    /// The program that has the hidden subcommand.
    pub program: PathBuf,
    /// Where compiled kernels and logs go.
    pub folder: PathBuf,
    /// What the hidden problems and inputs of every candidate are drawn from; on no disk before the session ends.
    pub secret: u64,
    /// The kernel that candidates are timed against, from the project's own tree.
    pub incumbent: Option<Candidate>,
    /// SHA-256 of PTX that is known already, with the candidate it is of: the same again is a duplicate.
    pub known_ptx: BTreeMap<String, String>,
    /// A folder of compiled kernels to take candidates from instead of compiling them.
    pub compiled: Option<PathBuf>,
}

/// A candidate on its way through the cascade.
#[derive(Clone, Debug)]
pub struct State {
    /// The candidate.
    pub candidate: Candidate,
    /// Where its kernel is, once it is compiled.
    pub kernel: Option<KernelRef>,
    /// The tree with its patch, where it has one.
    pub tree: Option<Tree>,
    /// What is known of it.
    pub evaluation: Evaluation,
}

/// One stage.
pub trait Stage {
    /// Its name in records.
    fn name(&self) -> &'static str;

    /// Does it, and adds what it finds to the evaluation.
    ///
    /// # Errors
    /// What is not the candidate's fault: a machine that fails, a full disk, Ctrl-C.
    fn run(&self, state: &mut State, context: &Context) -> Result<Outcome>;
}

/// Told what a cascade does.
pub trait Watcher {
    /// A stage of a candidate begins.
    fn stage(&mut self, candidate: &str, stage: &str);
}

/// A list of stages.
pub struct Cascade {
    stages: Vec<Box<dyn Stage>>,
}

impl Cascade {
    /// The stages of `evaluate` and `evolve`: compiles, fits, keeps the rules, computes attention, is fast.
    pub fn whole() -> Cascade {
        Cascade {
            stages: vec![
                Box::new(compile::Compile),
                Box::new(resources::ResourcesFit),
                Box::new(counters::Counters),
                Box::new(numerics::Numerics),
                Box::new(timing::Timing),
            ],
        }
    }

    /// Only compiles and looks at the resources: `build`.
    pub fn build() -> Cascade {
        Cascade { stages: vec![Box::new(compile::Compile), Box::new(resources::ResourcesFit)] }
    }

    /// All but the times: `test`.
    pub fn test() -> Cascade {
        let mut whole = Cascade::whole();
        whole.stages.pop();
        whole
    }

    /// Compiles and compares with float64 only: what finds wrong numbers.
    pub fn numerics() -> Cascade {
        Cascade { stages: vec![Box::new(compile::Compile), Box::new(numerics::Numerics)] }
    }

    /// Compiles and counts: what `profile` and `micro` need first.
    pub fn count() -> Cascade {
        let mut test = Cascade::test();
        test.stages.pop();
        test
    }

    /// Takes a candidate through the stages, up to the first that refuses it.
    ///
    /// # Errors
    /// Those of the stages.
    pub fn evaluate(
        &self,
        candidate: &Candidate,
        tree: Option<&Tree>,
        context: &Context,
        watcher: &mut dyn Watcher,
    ) -> Result<State> {
        let mut state = State::new(candidate, tree);
        for stage in &self.stages {
            watcher.stage(&candidate.name, stage.name());
            let begun = Instant::now();
            let outcome = stage.run(&mut state, context)?;
            let is_refused = matches!(outcome, Outcome::Refused(_));
            let time_s = begun.elapsed().as_secs_f64();
            state.evaluation.stages.push(StageRecord { stage: stage.name().to_owned(), outcome, time_s });
            if is_refused {
                break;
            }
        }
        Ok(state)
    }
}

impl State {
    fn new(candidate: &Candidate, tree: Option<&Tree>) -> State {
        let evaluation = Evaluation::new(candidate);
        State { candidate: candidate.clone(), kernel: None, tree: tree.cloned(), evaluation }
    }

    /// A candidate that was refused before any stage.
    pub fn refused(candidate: &Candidate, stage: &str, refusal: Refusal) -> State {
        let mut state = State::new(candidate, None);
        let outcome = Outcome::Refused(refusal);
        state.evaluation.stages.push(StageRecord { stage: stage.to_owned(), outcome, time_s: 0.0 });
        state
    }

    /// The kernel, which every stage behind the first may count on.
    ///
    /// # Errors
    /// [`Error::NoSuchRow`] where no stage has compiled it.
    pub fn kernel(&self) -> Result<&KernelRef> {
        self.kernel.as_ref().ok_or_else(|| Error::NoSuchRow {
            wanted: self.candidate.name.clone(),
            reason: "it was not compiled".to_owned(),
        })
    }
}

impl Context {
    /// Where a candidate's compiled kernel goes.
    pub fn ptx_folder(&self, candidate: &str) -> PathBuf {
        self.folder.join("ptx").join(candidate)
    }

    /// Where the log of one stage of a candidate goes.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn log(&self, candidate: &str, stage: &str) -> Result<PathBuf> {
        let folder = self.folder.join("logs");
        std::fs::create_dir_all(&folder).map_err(|source| Error::io(&folder, source))?;
        Ok(folder.join(format!("{candidate}-{stage}.log")))
    }

    /// The seed of a candidate's hidden problems and inputs.
    pub fn seed_of(&self, candidate: &str) -> u64 {
        let hash = sha256_hex(format!("{} {candidate}", self.secret).as_bytes());
        u64::from_str_radix(&hash[..16], 16).unwrap_or(self.secret)
    }

    /// The file of real inputs.
    pub fn real(&self) -> PathBuf {
        self.tree.root().join(&self.config.problems.real)
    }

    /// Does a job on a candidate's kernel in a process of its own.
    ///
    /// # Errors
    /// [`Error::Missing`] where the job failed for a reason that is not the candidate's; those of [`job::in_child`].
    pub fn child(
        &self,
        kernel: &KernelRef,
        candidate: &str,
        stage: &str,
        task: Task,
        problems: Vec<ProblemSpec>,
        limit: Duration,
    ) -> Result<Done> {
        let machine = self.machine.clone();
        let job = Job { kernel: kernel.clone(), task, problems, machine, seed: self.seed_of(candidate) };
        let log = self.log(candidate, stage)?;
        let mut done = job::in_child(&self.program, &job, &log, limit)?;
        if matches!(done.report, Report::Failed(_)) && !self.machine.simulated {
            // A driver that has just ended a kernel which hung may need a moment before it works again.
            std::thread::sleep(RECOVERY);
            done = job::in_child(&self.program, &job, &log, limit)?;
        }
        match done.report {
            Report::Failed(reason) => Err(Error::Missing { what: "what the job needs", reason }),
            _ => Ok(done),
        }
    }

    /// Times kernels in turns on one problem, on inputs that no launch has seen, as often as `runs` says: of each run the kernel's times
    /// first, then those of the others.
    ///
    /// # Errors
    /// [`Error::Missing`] where one of them may not be timed; those of [`Context::child`].
    pub fn in_turns(
        &self,
        kernel: &KernelRef,
        against: Vec<String>,
        [candidate, stage]: [&str; 2],
        problem: ProblemSpec,
        [reps, runs]: [u32; 2],
    ) -> Result<Vec<Vec<Timed>>> {
        let kernels = 1 + against.len();
        let task = Task::Fresh { against, reps, runs };
        let limit = self.config.limits.benchmark_s.duration();
        let missing = |reason| Error::Missing { what: "a measurement", reason };
        match self.child(kernel, candidate, stage, task, vec![problem], limit)?.report {
            Report::Timed(timed) if timed.len() == kernels * runs as usize => {
                Ok(timed.chunks(kernels).map(<[Timed]>::to_vec).collect())
            }
            Report::Timed(timed) => Err(missing(format!("{} kernels were timed", timed.len()))),
            Report::Refused(Refusal { fault, evidence }) => Err(missing(format!("{fault}: {evidence}"))),
            _ => Err(missing("nothing was timed".to_owned())),
        }
    }
}

/// What becomes of a stage that counts or times on the configured problems, which are of plain attention, where the row computes another; `None`
/// where it is asked to do so.
fn without_problems(row: &Row) -> Option<Outcome> {
    let reason = "its row has scores or widths of its own, which only ragged batches are drawn for";
    (!geometry::computes_plain_batches(row)).then(|| Outcome::Skipped(reason.to_owned()))
}

/// A refusal as an outcome.
fn refused(fault: Fault, evidence: String) -> Outcome {
    Outcome::Refused(Refusal { fault, evidence })
}

/// The program that runs now, which is the lab with its hidden subcommand.
///
/// # Errors
/// [`Error::Io`] where the system does not tell.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|source| Error::io(Path::new("the lab's own program"), source))
}
