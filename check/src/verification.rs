//! Whether kernels are correct: every row of a grid of problems, judged against the float64 reference.
//!
//! Generic over what runs a kernel, so that a GPU, a simulator and a test's stand-in go through the same loop.

mod agreement;
mod append;
mod backward;
mod grid;
mod guarded;
mod guarded_run;
mod merge;
mod oracle;
mod ragged;

pub use agreement::Agreement;
pub use append::AppendCase;
pub use backward::BackwardCase;
pub use grid::{Case, Grid};
pub use guarded::Bands;
pub use guarded_run::GuardedTensors;
pub use merge::{MergeCase, merges};
pub use oracle::Oracle;
pub use ragged::{
    DrawUser, RaggedCase, RaggedSketch, UserCase, fits as ragged_fits, wants_lse as ragged_wants_lse,
};

use crate::random_input::InputKind;
use crate::reference::row_start;
use crate::tolerance::Verdict;
use ferroflash::attention::{HostTensors, Output};
use ferroflash::error::Error;
use ferroflash::plan::{Combine, PlanOptions, Splits};
use ferroflash::problem::{Extent, Layout, Problem, TensorRole};
use kernels_gpu::geometry::{self, SPLITS_MAX};
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::{Accumulation, Dtype, Row, Schedule, ScoreKind};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Cases whose references are computed together, in parallel, before the kernels run on them.
const BATCH_OF_CASES: usize = 16;

/// One run of one kernel on one problem.
#[derive(Clone, Copy, Debug)]
pub struct KernelRun<'a> {
    /// The kernel.
    pub kernel: &'a Arc<Kernel>,
    /// The problem.
    pub problem: &'a Problem,
    /// Splits of the keys, and the order of heads.
    pub options: &'a PlanOptions,
    /// Q, K, V and lengths, which may be over seqlen_k here: the device clamps them.
    pub tensors: HostTensors<'a>,
}

/// Runs one kernel on one problem.
pub trait RunKernel {
    /// O and LSE of this very kernel. What it writes to must hold NaN before, and have guard bands around.
    ///
    /// # Errors
    /// [`Error::GuardBand`] where something outside O, LSE or the workspace was written; whatever else keeps it from running.
    fn run(&self, run: &KernelRun<'_>) -> Result<Output, Error>;
}

/// What became of one kernel.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct RowReport {
    /// The kernel's name.
    pub entry: String,
    /// Problems it ran, each layout counted.
    pub cases: usize,
    /// Problems whose output was wrong, or that did not run.
    pub failed: usize,
    /// The largest share of the allowed error that any output took: 1 is the limit, ∞ (null in JSON) a NaN too many.
    pub worst_ratio: f64,
    /// The problem that took it.
    pub worst_case: String,
    /// The first failure, in words.
    pub first_failure: Option<String>,
    /// Repeated runs of one problem, all bitwise equal to the first.
    pub repeats: usize,
    /// Time in kernels, copies and comparisons, in seconds; references are not counted.
    pub time_s: f64,
}

/// What [`verify_rows`] tells while it runs.
pub trait Observer {
    /// Some cases are done, of all of one group of kernels.
    fn advanced(&mut self, done: usize, total: usize);
    /// A kernel is done.
    fn finished(&mut self, report: &RowReport);
}

/// Verifies kernels on a grid: every case in the layouts that fall to it, and one case again `repeats` times, bit by bit.
///
/// Kernels of one dtype and head_dim share the references, so that these are computed once.
///
/// # Errors
/// Only where a problem cannot be posed at all; what goes wrong in a kernel is in its report.
pub fn verify_rows(
    kernels: &[Arc<Kernel>],
    grid: Grid,
    seed: u64,
    repeats: usize,
    runner: &dyn RunKernel,
    observer: &mut dyn Observer,
) -> Result<Vec<RowReport>, Error> {
    let groups: BTreeSet<(u32, Dtype)> = kernels.iter().map(|k| (k.row.head_dim, k.row.dtype)).collect();
    let mut reports = Vec::new();
    for (head_dim, dtype) in groups {
        let of_group = |kernel: &&Arc<Kernel>| (kernel.row.head_dim, kernel.row.dtype) == (head_dim, dtype);
        let mut group: Vec<Progress> = kernels.iter().filter(of_group).map(Progress::new).collect();
        let accumulations: Vec<Accumulation> = [Accumulation::F32, Accumulation::F16]
            .into_iter()
            .filter(|&acc| group.iter().any(|progress| progress.kernel.row.acc == acc))
            .collect();
        // Rows for ragged batches run none of them.
        let is_run = |case: &Case| group.iter().any(|progress| case.fits(&progress.kernel.row));
        let cases: Vec<Case> = grid.cases().into_iter().filter(is_run).collect();
        let mut done = 0;
        for cases_now in cases.chunks(BATCH_OF_CASES) {
            let oracles: Vec<(Case, Oracle)> = cases_now
                .par_iter()
                .map(|case| {
                    let problem = case.problem(dtype, head_dim)?;
                    let (qkv, seqlens_k) = case.inputs(&problem, seed);
                    Ok((*case, Oracle::new(&problem, qkv, seqlens_k, &accumulations, &|_, _| ())))
                })
                .collect::<Result<_, Error>>()?;
            for (case, oracle) in &oracles {
                for &layout in grid.layouts(case, dtype) {
                    run_case(&mut group, case, oracle, layout, runner);
                }
                done += 1;
                observer.advanced(done, cases.len());
            }
        }
        run_ragged(&mut group, (dtype, head_dim), grid, seed, runner)?;
        for progress in &mut group {
            progress.compare_with_twin(kernels, seed, runner)?;
            progress.compare_combines(grid, seed, runner)?;
            progress.repeat(repeats, seed, runner)?;
            observer.finished(&progress.report);
        }
        reports.extend(group.into_iter().map(|progress| progress.report));
    }
    Ok(reports)
}

/// A kernel and what is known of it so far.
struct Progress<'a> {
    kernel: &'a Arc<Kernel>,
    report: RowReport,
}

impl Progress<'_> {
    fn new(kernel: &Arc<Kernel>) -> Progress<'_> {
        let report = RowReport {
            entry: kernel.entry.clone(),
            cases: 0,
            failed: 0,
            worst_ratio: 0.0,
            worst_case: String::new(),
            first_failure: None,
            repeats: 0,
            time_s: 0.0,
        };
        Progress { kernel, report }
    }

    fn fail(&mut self, case: &str, what: &str) {
        self.report.failed += 1;
        self.report.first_failure.get_or_insert_with(|| format!("{case}: {what}"));
    }

    fn judge(&mut self, case: &str, verdict: Result<Verdict, Error>) {
        self.report.cases += 1;
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(error) => return self.fail(case, &error.to_string()),
        };
        let ratio = verdict.ratio();
        if ratio > self.report.worst_ratio {
            self.report.worst_ratio = ratio;
            case.clone_into(&mut self.report.worst_case);
        }
        if !verdict.passed {
            self.fail(case, &verdict.to_string());
        }
    }

    /// Fails with `otherwise` unless two outputs are equal in every bit, and where there is none.
    fn expect_equal(&mut self, case: &str, outputs: [Result<Output, Error>; 2], otherwise: &str) {
        match outputs {
            [Ok(this), Ok(other)] if same_bits(&this, &other) => {}
            [Ok(_), Ok(_)] => self.fail(case, otherwise),
            [Err(error), _] | [_, Err(error)] => self.fail(case, &error.to_string()),
        }
    }

    /// Compares with the kernel of the same tile that has one CTA a tile, where there is one: at one split, and with persistent CTAs,
    /// every bit must be the same.
    fn compare_with_twin(
        &mut self,
        kernels: &[Arc<Kernel>],
        seed: u64,
        runner: &dyn RunKernel,
    ) -> Result<(), Error> {
        let row = self.kernel.row;
        // Rows of ragged batches that are not ragged, too.
        let unsplit = Row { schedule: Schedule::Grid, ..row };
        let Some(twin) =
            kernels.iter().find(|kernel| kernel.row == unsplit && row.schedule != Schedule::Grid)
        else {
            return Ok(());
        };
        let start = Instant::now();
        // Rows of several heads lie otherwise in tiles of packed rows; with one head they lie alike.
        let case = Case { batch: 2, heads: (2, 2), seqlens: (67, 150), ..REPEATED };
        let problem = case.problem(row.dtype, row.head_dim)?;
        let (qkv, _) = case.inputs(&problem, seed);
        let outputs = [self.kernel, twin].map(|kernel| {
            let one = Splits::Count(1);
            let splits = if kernel.row.schedule.splits() { one } else { Splits::Auto };
            let options = &PlanOptions { splits, ..PlanOptions::new() };
            runner.run(&KernelRun { kernel, problem: &problem, options, tensors: HostTensors::from(&qkv) })
        });
        self.report.time_s += start.elapsed().as_secs_f64();
        self.expect_equal(&case.to_string(), outputs, &format!("differs from {}", twin.entry));
        Ok(())
    }

    /// Compares the two ways to merge splits: every bit must be the same. Rows that are more and less than a block's, splits without
    /// keys, sequences without any and of NaN behind their last key are among it. Kernels of both dtypes are alike: the quick grid leaves
    /// each one half of the pairs of a case and a number of splits, and the other dtype the other half.
    fn compare_combines(&mut self, grid: Grid, seed: u64, runner: &dyn RunKernel) -> Result<(), Error> {
        let row = self.kernel.row;
        if !row.schedule.splits() || !geometry::computes_plain_batches(&row) {
            return Ok(());
        }
        let start = Instant::now();
        for (index, case) in combined(grid).into_iter().enumerate() {
            // Of several tiles the quick grid has cases in the most splits already.
            let most = if grid == Grid::Quick && case.seqlens.0 > 3 { MORE_THAN_BLOCKS } else { SPLITS_MAX };
            let problem = case.problem(row.dtype, row.head_dim)?;
            let (qkv, seqlens_k) = case.inputs(&problem, seed);
            for (other, splits) in [2, 3, most].map(Splits::Count).into_iter().enumerate() {
                let turn = index / 2 + index + other + usize::from(row.dtype == Dtype::Bf16);
                if grid == Grid::Quick && turn % 2 == 1 {
                    continue;
                }
                let outputs = [Combine::Fused, Combine::Kernel].map(|combine| {
                    let options = &PlanOptions { splits, combine, ..PlanOptions::new() };
                    let tensors = HostTensors::from(&qkv).with_seqlens_k(seqlens_k.as_deref());
                    runner.run(&KernelRun { kernel: self.kernel, problem: &problem, options, tensors })
                });
                let name = format!("{case} {splits}");
                self.expect_equal(&name, outputs, "splits merge otherwise in the same launch");
            }
        }
        self.report.time_s += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// As [`Self::repeat`], of a kernel that computes nothing but ragged batches.
    fn repeat_ragged(&mut self, repeats: usize, seed: u64, runner: &dyn RunKernel) -> Result<(), Error> {
        let (kernel, row) = (self.kernel, &self.kernel.row);
        let mut seed = seed;
        // Not every kernel has all that is drawn.
        let case = loop {
            let sketch = RaggedSketch::draw(row.dtype, row.head_dim, row.score, &[], seed)?;
            if ragged::fits(&sketch.problem, row) {
                break sketch.case()?;
            }
            seed = seed.wrapping_add(1);
        };
        let (problem, options) = (&case.problem, &case.options);
        let run = || runner.run(&KernelRun { kernel, problem, options, tensors: case.tensors() });
        match first_difference(repeats, run) {
            Ok(None) => self.report.repeats = repeats,
            Ok(Some(repeat)) => {
                self.fail(&case.to_string(), &format!("run {} differs from the first", repeat + 1))
            }
            Err(error) => self.fail(&case.to_string(), &error.to_string()),
        }
        Ok(())
    }

    /// Runs one problem again and again: every output must be the first one, bit by bit. A single run is there for what the device finds
    /// wrong on the way along many blocks of keys, for which a few rows of one batch entry do.
    fn repeat(&mut self, repeats: usize, seed: u64, runner: &dyn RunKernel) -> Result<(), Error> {
        let start = Instant::now();
        let (kernel, row) = (self.kernel, &self.kernel.row);
        let case = match (geometry::computes_plain_batches(row), repeats > 1) {
            (true, true) => Case { lengths: row.schedule.splits(), ..REPEATED },
            (true, false) => ONCE,
            (false, true) => return self.repeat_ragged(repeats, seed, runner),
            // Such batches were run and judged before.
            (false, false) => {
                self.report.repeats = repeats;
                return Ok(());
            }
        };
        let problem = case.problem(row.dtype, row.head_dim)?;
        let (qkv, seqlens_k) = case.inputs(&problem, seed);
        let tensors = HostTensors::from(&qkv).with_seqlens_k(seqlens_k.as_deref());
        let options = &case.options(row, 0);
        let run = || runner.run(&KernelRun { kernel, problem: &problem, options, tensors });
        let outcome = if repeats == 0 { Ok(None) } else { first_difference(repeats, run) };
        match outcome {
            Ok(None) => self.report.repeats = repeats,
            Ok(Some(repeat)) => {
                self.report.repeats = repeat;
                self.fail(
                    &case.to_string(),
                    &format!("run {} of {repeats} differs from the first", repeat + 1),
                );
            }
            Err(error) => self.fail(&case.to_string(), &error.to_string()),
        }
        self.report.time_s += start.elapsed().as_secs_f64();
        Ok(())
    }
}

/// The problem that is run again and again; in three splits where the kernel splits keys.
const REPEATED: Case = Case {
    batch: 2,
    heads: (4, 2),
    seqlens: (199, 513),
    causal: true,
    kind: InputKind::Random,
    variation: 1,
    lengths: false,
};

/// The problem that is run once, unsplit: more than two tiles of rows of most kernels, and more blocks of keys than there are stages.
const ONCE: Case = Case { batch: 1, heads: (1, 1), seqlens: (130, 513), variation: 0, ..REPEATED };

/// More splits than any kernel has blocks of the few keys of [`combined`].
const MORE_THAN_BLOCKS: u32 = 17;

/// Few packed rows, and more than a block's; many keys, and fewer than splits; with a mask and lengths, and without. What runs on a simulator
/// has one batch entry where sequences have no lengths.
const fn combined(grid: Grid) -> [Case; 4] {
    let (batch, heads) = match grid {
        Grid::Quick => (1, (3, 1)),
        Grid::Odd => (3, (6, 2)),
    };
    let few = Case { batch, heads: (6, 2), seqlens: (1, 301), causal: false, ..REPEATED };
    let many = Case { heads: (9, 1), seqlens: (15, 190), causal: true, ..few };
    [
        few,
        Case { lengths: true, batch: 3, heads, seqlens: (3, 301), ..few },
        Case { kind: InputKind::NotANumber, ..many },
        Case { lengths: true, batch: 3, ..many },
    ]
}

/// Whether two outputs are equal in every bit, NaN too, which is equal to nothing.
pub fn same_bits(a: &Output, b: &Output) -> bool {
    fn lse(output: &Output) -> impl Iterator<Item = u32> {
        output.lse.iter().flatten().map(|lse| lse.to_bits())
    }
    a.o == b.o && a.lse.is_some() == b.lse.is_some() && lse(a).eq(lse(b))
}

/// Runs `repeats` times and returns the number of the first run that differs from run 0 in any bit.
///
/// # Errors
/// Those of `run`.
pub fn first_difference(
    repeats: usize,
    run: impl Fn() -> Result<Output, Error>,
) -> Result<Option<usize>, Error> {
    let first = run()?;
    for repeat in 1..repeats {
        if !same_bits(&run()?, &first) {
            return Ok(Some(repeat));
        }
    }
    Ok(None)
}

fn run_case(
    group: &mut [Progress<'_>],
    case: &Case,
    oracle: &Oracle,
    layout: Layout,
    runner: &dyn RunKernel,
) {
    let problem = oracle.problem.with_layout(layout);
    let qkv = [TensorRole::Q, TensorRole::K, TensorRole::V]
        .map(|role| relayout(&oracle.qkv[role as usize], role, &oracle.problem, &problem));
    let tensors = HostTensors::from(&qkv).with_seqlens_k(oracle.seqlens_k.as_deref());
    let layout_name = if layout == Layout::Bhsd { "bhsd" } else { "bshd" };
    for progress in group.iter_mut().filter(|progress| case.fits(&progress.kernel.row)) {
        let start = Instant::now();
        let kernel = progress.kernel;
        let options = &case.options(&kernel.row, usize::from(layout == Layout::Bshd));
        let name = match kernel.row.schedule {
            Schedule::Split | Schedule::Ragged => format!("{case} {layout_name} {}", options.splits),
            Schedule::Grid | Schedule::Persistent => format!("{case} {layout_name}"),
        };
        let run = KernelRun { kernel, problem: &problem, options, tensors };
        let verdict = runner.run(&run).and_then(|mut output| {
            output.o = relayout(&output.o, TensorRole::O, &problem, &oracle.problem);
            oracle.judge(progress.kernel.row.acc, &output)
        });
        progress.judge(&name, verdict);
        progress.report.time_s += start.elapsed().as_secs_f64();
    }
}

/// Runs the kernels for ragged batches of a group on batches drawn at random, which those with the same score share.
fn run_ragged(
    group: &mut [Progress<'_>],
    (dtype, head_dim): (Dtype, u32),
    grid: Grid,
    seed: u64,
    runner: &dyn RunKernel,
) -> Result<(), Error> {
    let is_ragged = |progress: &&mut Progress<'_>| progress.kernel.row.schedule == Schedule::Ragged;
    let kinds: BTreeSet<ScoreKind> =
        group.iter_mut().filter(is_ragged).map(|of| of.kernel.row.score).collect();
    for kind in kinds {
        for of_batch in grid.ragged_seeds(dtype, head_dim, kind, seed)? {
            let case = RaggedCase::draw(dtype, head_dim, kind, of_batch)?;
            for progress in group.iter_mut().filter(is_ragged) {
                let kernel = progress.kernel;
                if !case.fits(&kernel.row) {
                    continue;
                }
                let start = Instant::now();
                let (problem, options) = (&case.problem, &case.options);
                let run = KernelRun { kernel, problem, options, tensors: case.tensors() };
                let verdict = runner.run(&run).and_then(|output| case.judge(&output));
                progress.judge(&case.to_string(), verdict);
                progress.report.time_s += start.elapsed().as_secs_f64();
            }
        }
    }
    Ok(())
}

/// A tensor's rows, moved from where one problem has them to where another has.
pub fn relayout(data: &[u16], role: TensorRole, from: &Problem, to: &Problem) -> Vec<u16> {
    let Extent { batch, heads, rows, width } = to.extent(role);
    let width = width as usize;
    let mut moved = vec![0; to.len(role)];
    for batch in 0..batch as usize {
        for head in 0..heads as usize {
            for row in 0..rows as usize {
                let at = [batch, head, row];
                let source = &data[row_start(from, role, at)..][..width];
                moved[row_start(to, role, at)..][..width].copy_from_slice(source);
            }
        }
    }
    moved
}
