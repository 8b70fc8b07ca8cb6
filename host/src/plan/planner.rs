//! The choice: which row, how many splits, for a problem on a device.

use super::candidate::{Candidate, allows, can_compute, holds};
use super::choice::{Choice, Choosing, invariant};
use super::profile::Profile;
use super::reason::{NotWgmma, Reason, Trace};
use super::splitting::Splitting;
use super::tensors::{Obstacle, obstacle};
use super::tiling::{Posed, Tiling};
use super::work::{Merge, Work};
use super::{Combine, Plan, PlanOptions, RowSelection, Splits};
use crate::device::DeviceInfo;
use crate::error::Error;
use crate::module::{self, Library};
use crate::problem::Problem;
use kernels_gpu::geometry;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::{Accumulation, Dtype, HEAD_DIMS, Isa, Row, Schedule, ScoreKind};
use kernels_gpu::steps::StepRow;
use std::sync::Arc;

const DTYPES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

/// The kernels that a device runs, in the order in which they are preferred there.
#[derive(Debug)]
pub struct Planner {
    device: DeviceInfo,
    /// The candidates of each dtype and head_dim.
    groups: Vec<Vec<Candidate>>,
    /// Kernels that need more shared memory than a CTA may have.
    too_large: Vec<Arc<Kernel>>,
    /// What kernels cost on the device; `None` where that is estimated ([`super::profile::estimated`]).
    profile: Option<Profile>,
    combine: [Option<Arc<Kernel<StepRow>>>; 2],
    /// Every kernel's name and where they are, for messages.
    names: Vec<String>,
    origin: String,
}

impl Planner {
    /// The kernels of a library that run on a device, with the profile of it that comes with the library, where there is one.
    pub fn new(library: &Library, device: &DeviceInfo) -> Planner {
        Planner::with_profile(library, device, Profile::embedded(device))
    }

    /// The kernels of a library that run on a device, and what they cost there: what the profile lacks is estimated from a
    /// relative's profile and data sheets.
    pub fn with_profile(library: &Library, device: &DeviceInfo, profile: Option<Profile>) -> Planner {
        let runs = |kernel: &&Arc<Kernel>| library.source(kernel, device.sm).is_some();
        let kernels: Vec<Arc<Kernel>> = library.kernels().iter().filter(runs).cloned().collect();
        let combine = |dtype| {
            let runs = |kernel: &&Arc<Kernel<StepRow>>| {
                kernel.row == StepRow::combine(dtype) && library.source(kernel, device.sm).is_some()
            };
            library.step_kernels().iter().find(runs).cloned()
        };
        let names = library.kernels().iter().map(|kernel| kernel.entry.clone()).collect();
        let origin = library.folder().display().to_string();
        Planner::of(kernels, DTYPES.map(combine), (device, profile), names, origin)
    }

    /// The kernels of the table on a device, compiled or not: for planning alone.
    pub fn of_table(device: &DeviceInfo) -> Planner {
        let (kernels, steps) = crate::module::kernels_of_table();
        let names = kernels.iter().map(|kernel| kernel.entry.clone()).collect();
        let runs = |kernel: &Arc<Kernel>| module::runs_on(&kernel.family, device.sm);
        let kernels = kernels.into_iter().filter(runs).collect();
        let combine =
            DTYPES.map(|dtype| steps.iter().find(|step| step.row == StepRow::combine(dtype)).cloned());
        let profile = Profile::embedded(device);
        Planner::of(kernels, combine, (device, profile), names, "the table".to_owned())
    }

    fn of(
        kernels: Vec<Arc<Kernel>>,
        combine: [Option<Arc<Kernel<StepRow>>>; 2],
        (device, profile): (&DeviceInfo, Option<Profile>),
        names: Vec<String>,
        origin: String,
    ) -> Planner {
        let mut groups = Vec::new();
        for dtype in DTYPES {
            for head_dim in HEAD_DIMS {
                let of_group = kernels.iter().filter(|kernel| {
                    (kernel.row.dtype, geometry::problems_head_dim(&kernel.row)) == (dtype, head_dim)
                        && kernel.smem_bytes <= device.smem_opt_in_bytes
                });
                groups
                    .push(of_group.map(|kernel| Candidate::new(kernel, device, profile.as_ref())).collect());
            }
        }
        let is_too_large = |kernel: &Arc<Kernel>| kernel.smem_bytes > device.smem_opt_in_bytes;
        let too_large = kernels.into_iter().filter(is_too_large).collect();
        Planner { device: device.clone(), groups, too_large, profile, combine, names, origin }
    }

    /// The device that is planned for.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// The plan for a problem.
    ///
    /// # Errors
    /// [`Error::NoSuchKernel`] where no kernel can do what is asked, [`Error::Splits`], [`Error::TooLarge`].
    pub fn plan(&self, problem: &Problem, options: &PlanOptions) -> Result<Plan, Error> {
        let choice = self.choose(problem, options, &mut Trace::silent())?;
        self.build(problem, options, choice)
    }

    /// The plan for a problem, and why it is this one.
    ///
    /// # Errors
    /// Those of [`Planner::plan`].
    pub fn explain(&self, problem: &Problem, options: &PlanOptions) -> Result<(Plan, Vec<Reason>), Error> {
        let mut trace = Trace::recording();
        let choice = self.choose(problem, options, &mut trace)?;
        trace.note(|| self.estimate(problem, &choice));
        let mut reasons = trace.reasons(&choice.estimate());
        let plan = self.build(problem, options, choice)?;
        if plan.groups_heads() {
            let heads = problem.group();
            reasons.push(Reason::GroupedHeads { heads, rows: heads * problem.sizes().seqlen_q });
        }
        reasons.extend(self.explain_isa(&plan, options));
        reasons.push(fill(&plan, self.device.sm_count));
        Ok((plan, reasons))
    }

    /// What the time of a choice is made of.
    fn estimate(&self, problem: &Problem, choice: &Choice<'_>) -> Reason {
        let Choice { candidate, splitting, merge, us } = *choice;
        let (row, costs) = (&candidate.kernel.row, candidate.coefficients(splitting.splits));
        let (posed, of_problem) = (Posed::new(problem), Work::of_problem(problem, &self.device));
        let problem = posed.to(row);
        let whole = of_problem.of_kernel(problem, row, &Tiling::new(problem, row), candidate.resident_ctas);
        let merge_us = costs.merge_us(&whole.with_splits(splitting, merge));
        let launch_us = costs.launch;
        let profile = self.profile.as_ref().map(|profile| profile.fitted_to.clone());
        Reason::Estimate { us, launch_us, merge_us, profile }
    }

    /// The plans of all rows selected; never an empty list. Rows that cannot do what is asked are left out.
    ///
    /// # Errors
    /// Those of [`Planner::plan`].
    pub fn plans(&self, problem: &Problem, options: &PlanOptions) -> Result<Vec<Plan>, Error> {
        if options.rows == RowSelection::Best {
            return Ok(vec![self.plan(problem, options)?]);
        }
        let candidates = self.selected(problem, options)?;
        candidates.into_iter().map(|candidate| self.with(problem, candidate, options)).collect()
    }

    /// Every plan that is worth measuring for a problem, the one that [`Planner::plan`] makes first: each kernel that accumulates in float32,
    /// each of a ladder of splits in ascending order, merged either way.
    ///
    /// # Errors
    /// Those of [`Planner::plan`].
    pub fn contestants(&self, problem: &Problem) -> Result<Vec<Plan>, Error> {
        let mut plans = vec![self.plan(problem, &PlanOptions::new())?];
        let key = |plan: &Plan| (plan.kernel.entry.clone(), plan.splits(), plan.is_fused());
        let mut seen = std::collections::BTreeSet::from([key(&plans[0])]);
        let all = PlanOptions { rows: RowSelection::All, ..PlanOptions::new() };
        for candidate in self.selected(problem, &all)? {
            let row = &candidate.kernel.row;
            if row.acc != Accumulation::F32 {
                continue;
            }
            let combines = [Combine::Fused, Combine::Kernel];
            for combine in combines {
                for splits in ladder(candidate, problem, &self.device) {
                    let options = PlanOptions { splits, combine, ..PlanOptions::new() };
                    match self.with(problem, candidate, &options) {
                        Ok(plan) if seen.insert(key(&plan)) => plans.push(plan),
                        // What this way cannot be merged by is no contestant.
                        Ok(_) | Err(Error::TooLarge { .. } | Error::NoSuchKernel { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(plans)
    }

    /// The plan that runs this kernel, whether or not it is the best one. `options` may name splits and heads.
    ///
    /// # Errors
    /// [`Error::NoSuchKernel`] where the kernel cannot compute the problem, and those of [`Planner::plan`].
    pub fn with_kernel(
        &self,
        problem: &Problem,
        kernel: &Arc<Kernel>,
        options: &PlanOptions,
    ) -> Result<Plan, Error> {
        let row = &kernel.row;
        if row.dtype != problem.dtype() || !holds(problem, row) {
            let found = format!("{} is for {} and head_dim {}", kernel.entry, row.dtype.name(), row.head_dim);
            return Err(Error::NoSuchKernel { wanted: wanted(problem, options), available: found });
        }
        if !module::runs_on(&kernel.family, self.device.sm) {
            let found =
                format!("{} is for {}, the device is sm_{}", kernel.entry, kernel.family, self.device.sm);
            return Err(Error::NoSuchKernel { wanted: wanted(problem, options), available: found });
        }
        let limit = self.device.smem_opt_in_bytes;
        if kernel.smem_bytes > limit {
            let needed = kernel.smem_bytes;
            let found =
                format!("{} needs {needed} bytes of shared memory, the device has {limit}", kernel.entry);
            return Err(Error::NoSuchKernel { wanted: wanted(problem, options), available: found });
        }
        if !can_compute(problem, options, row) {
            let (schedule, score) = (row.schedule.name(), row.score.name().to_owned());
            let found = format!("{} has the schedule {schedule} and computes {score} scores", kernel.entry);
            return Err(Error::NoSuchKernel { wanted: wanted(problem, options), available: found });
        }
        self.check_obstacle(problem, options, kernel)?;
        self.with(problem, &Candidate::new(kernel, &self.device, self.profile.as_ref()), options)
    }

    fn with(&self, problem: &Problem, candidate: &Candidate, options: &PlanOptions) -> Result<Plan, Error> {
        let choosing = self.choosing(problem, options);
        let choice = choosing.cheapest(std::iter::once(candidate), &mut Trace::silent())?;
        self.build(problem, options, choice.ok_or_else(|| self.no_kernel(problem, options))?)
    }

    /// The error of a kernel that cannot be told of the problem's tensors, or has no room for its heads.
    fn check_obstacle(&self, problem: &Problem, options: &PlanOptions, kernel: &Kernel) -> Result<(), Error> {
        match obstacle(problem, &kernel.row, &self.device) {
            None => Ok(()),
            Some(Obstacle::Tensor(error)) => Err(error),
            Some(Obstacle::Pages { page }) => {
                let available =
                    format!("{} copies boxes of 8 keys or more, and a page has {page}", kernel.entry);
                Err(Error::NoSuchKernel { wanted: wanted(problem, options), available })
            }
            Some(Obstacle::Group { heads, block_m }) => {
                let available = format!(
                    "{} packs the query heads that share a KV head into blocks of {block_m} rows, and there are {heads}",
                    kernel.entry
                );
                Err(Error::NoSuchKernel { wanted: wanted(problem, options), available })
            }
        }
    }

    /// Says whether wgmma is used, and if not, why not, on the one architecture that has it.
    fn explain_isa(&self, plan: &Plan, options: &PlanOptions) -> Option<Reason> {
        if plan.kernel().row.isa == Isa::Wgmma {
            return Some(Reason::Wgmma);
        }
        if !module::runs_on(Isa::Wgmma.arch(), self.device.sm)
            || matches!(options.rows, RowSelection::Named(_))
        {
            return None;
        }
        let problem = plan.problem();
        let kernels = self.group(problem, options).iter().map(|candidate| &candidate.kernel);
        let with_wgmma: Vec<&Arc<Kernel>> = kernels.filter(|kernel| kernel.row.isa == Isa::Wgmma).collect();
        let allowed = with_wgmma.iter().filter(|kernel| allows(problem, options, &kernel.row));
        let obstacles: Vec<Option<Obstacle>> =
            allowed.map(|kernel| obstacle(problem, &kernel.row, &self.device)).collect();
        let because = match obstacles.iter().flatten().next() {
            _ if with_wgmma.is_empty() => NotWgmma::NoKernel,
            _ if obstacles.is_empty() => NotWgmma::Asked,
            _ if obstacles.iter().any(Option::is_none) => NotWgmma::NotPreferred,
            Some(Obstacle::Group { heads, .. }) => NotWgmma::Group { heads: *heads },
            Some(Obstacle::Pages { page }) => NotWgmma::Pages { page: *page },
            Some(Obstacle::Tensor(Error::NoTensorMap { tensor, what, dimension, .. })) => {
                NotWgmma::Tensor { tensor, what, dimension }
            }
            _ => NotWgmma::Driver,
        };
        Some(Reason::NotWgmma { because })
    }

    /// The candidates of the tile's width; of a wider one, where a ragged batch's score has no row of that width that computes the problem.
    pub(super) fn group(&self, problem: &Problem, options: &PlanOptions) -> &[Candidate] {
        let dtype = DTYPES.iter().position(|&dtype| dtype == problem.dtype()).unwrap_or_default();
        // A problem's head_dim is one of them.
        let head_dim = HEAD_DIMS.iter().position(|&dim| dim == problem.tile_head_dim()).unwrap_or_default();
        let of_dtype = &self.groups[dtype * HEAD_DIMS.len()..][..HEAD_DIMS.len()];
        let kind = problem.score_kind();
        let is_named = matches!(options.rows, RowSelection::Named(_));
        let computes =
            |row: &Row| can_compute(problem, options, row) && obstacle(problem, row, &self.device).is_none();
        let has_rows = |group: &&Vec<Candidate>| {
            let mut rows = group.iter().map(|candidate| &candidate.kernel.row);
            rows.any(|row| row.score == kind && holds(problem, row) && (is_named || computes(row)))
        };
        of_dtype[head_dim..].iter().find(has_rows).unwrap_or(&of_dtype[head_dim])
    }

    fn combine(&self, problem: &Problem) -> Option<&Arc<Kernel<StepRow>>> {
        let dtype = DTYPES.iter().position(|&dtype| dtype == problem.dtype())?;
        self.combine[dtype].as_ref()
    }

    fn selected(&self, problem: &Problem, options: &PlanOptions) -> Result<Vec<&Candidate>, Error> {
        let candidates = self.group(problem, options).iter();
        let allowed = candidates.filter(|candidate| allows(problem, options, &candidate.kernel.row));
        let has_obstacle =
            |candidate: &&Candidate| obstacle(problem, &candidate.kernel.row, &self.device).is_some();
        let selected: Vec<&Candidate> = match &options.rows {
            RowSelection::Best | RowSelection::All => {
                allowed.filter(|candidate| !has_obstacle(candidate)).collect()
            }
            RowSelection::Named(name) => {
                if !self.names.contains(name) {
                    return Err(Error::unknown_kernel(name, self.names.iter().map(String::as_str)));
                }
                allowed.filter(|candidate| candidate.kernel.entry == *name).collect()
            }
        };
        if let (RowSelection::Named(_), [candidate]) = (&options.rows, selected.as_slice()) {
            self.check_obstacle(problem, options, &candidate.kernel)?;
        }
        match &options.rows {
            _ if !selected.is_empty() => Ok(selected),
            RowSelection::Named(name) => {
                let available = format!("{name} is none, or does not run on sm_{}", self.device.sm);
                Err(Error::NoSuchKernel { wanted: wanted(problem, options), available })
            }
            RowSelection::Best | RowSelection::All => Err(self.no_kernel(problem, options)),
        }
    }

    pub(super) fn choose<'a>(
        &'a self,
        problem: &Problem,
        options: &PlanOptions,
        trace: &mut Trace,
    ) -> Result<Choice<'a>, Error> {
        let fits = |candidate: &&Candidate| {
            let row = &candidate.kernel.row;
            row.acc == options.accumulation && allows(problem, options, row)
        };
        let candidates = self.group(problem, options).iter().filter(fits);
        let choosing = self.choosing(problem, options);
        let choice = match &options.rows {
            RowSelection::Named(_) => {
                // One name is one candidate.
                trace.note(|| Reason::Named);
                choosing.cheapest(self.selected(problem, options)?.into_iter(), trace)?
            }
            RowSelection::Best | RowSelection::All => {
                if let Some(asked) = only_split(problem, options) {
                    trace.note(|| Reason::OnlySplit { asked });
                }
                match options.splits {
                    // Nothing but the sequence may decide.
                    Splits::Size(_) => {
                        let usable = candidates.filter(|candidate| {
                            obstacle(problem, &candidate.kernel.row, &self.device).is_none()
                        });
                        choosing.cheapest(invariant(problem, usable).into_iter(), trace)?
                    }
                    Splits::Count(count) => {
                        // Kernels whose blocks of keys are too few for the number come into question where all are.
                        let reached = |candidate: &Candidate| {
                            Tiling::new(problem, &candidate.kernel.row).key_blocks.min(count)
                        };
                        let most = candidates.clone().map(reached).max().unwrap_or(0);
                        choosing.cheapest(candidates.filter(|candidate| reached(candidate) == most), trace)?
                    }
                    Splits::Auto => choosing.cheapest(candidates, trace)?,
                }
            }
        };
        choice.ok_or_else(|| self.no_kernel(problem, options))
    }

    fn choosing<'a>(&'a self, problem: &'a Problem, options: &'a PlanOptions) -> Choosing<'a> {
        let merges_splits = self.combine(problem).is_some();
        Choosing { problem, options, device: &self.device, merges_splits, origin: &self.origin }
    }

    pub(super) fn build(
        &self,
        problem: &Problem,
        options: &PlanOptions,
        choice: Choice<'_>,
    ) -> Result<Plan, Error> {
        let Choice { candidate, splitting, merge, .. } = choice;
        let combine = self.combine(problem).filter(|_| merge == Merge::Kernel);
        Plan::new(problem, candidate, &self.device, splitting, combine, options)
    }

    fn no_kernel(&self, problem: &Problem, options: &PlanOptions) -> Error {
        let would = self
            .too_large
            .iter()
            .filter(|kernel| kernel.row.dtype == problem.dtype() && allows(problem, options, &kernel.row));
        if let Some(least) = would.min_by_key(|kernel| kernel.smem_bytes) {
            let (needed, limit) = (least.smem_bytes, self.device.smem_opt_in_bytes);
            let available = format!(
                "{} needs the least shared memory a CTA, {needed} bytes, {} over the {limit} that there are",
                least.entry,
                needed - limit
            );
            return Error::NoSuchKernel { wanted: wanted(problem, options), available };
        }
        let advice = match problem.score_kind() {
            ScoreKind::User(_) => {
                "compile its crate with `cargo xtask build-ptx --score` and load the folder: Library::with_scores"
            }
            _ => "run `cargo xtask build-ptx`",
        };
        let available = format!(
            "none of the {} in {} computes it on sm_{}; {advice}",
            self.names.len(),
            self.origin,
            self.device.sm
        );
        Error::NoSuchKernel { wanted: wanted(problem, options), available }
    }
}

/// Numbers of splits to measure: the small ones, ever sparser ones up to the most, and those that fill whole waves.
fn ladder(candidate: &Candidate, problem: &Problem, device: &DeviceInfo) -> Vec<Splits> {
    let row = &candidate.kernel.row;
    if !row.schedule.splits() {
        return vec![Splits::Auto];
    }
    let tiling = Tiling::new(problem, row);
    let (key_blocks, tiles) = (tiling.key_blocks, tiling.possible_tiles(problem).max(1));
    let wave = u64::from(device.sm_count * candidate.resident_ctas);
    let filling = (1..=8).map(|quarters| (wave * quarters / 4 / tiles) as u32);
    let mut room = [Splitting::whole(key_blocks); Splitting::CHOICES];
    let choices = Splitting::choices(&mut room, key_blocks, tiles, wave);
    let considered = choices.iter().map(|splitting| splitting.splits);
    let sparse =
        [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256];
    let most = geometry::SPLITS_MAX.min(key_blocks);
    let mut counts: Vec<u32> = sparse
        .into_iter()
        .chain(filling)
        .chain(considered)
        .filter(|count| (1..=most).contains(count))
        .collect();
    counts.sort_unstable();
    counts.dedup();
    counts.into_iter().map(Splits::Count).collect()
}

/// What was asked for that only kernels that split keys can do.
fn only_split(problem: &Problem, options: &PlanOptions) -> Option<&'static str> {
    match options.splits {
        Splits::Count(_) => Some("a number of splits"),
        Splits::Size(_) => Some("a split size"),
        Splits::Auto if problem.has_lengths() && !problem.is_ragged() => Some("lengths on the device"),
        Splits::Auto => (options.schedule == Some(Schedule::Split)).then_some("the schedule"),
    }
}

/// How the CTAs of a plan fill the device.
fn fill(plan: &Plan, sm_count: u32) -> Reason {
    Reason::Fill {
        ctas: plan.grid(),
        ctas_per_sm: f64::from(plan.grid()) / f64::from(sm_count.max(1)),
        resident_ctas: plan.resident_ctas(),
        persistent: plan.draws_tiles(),
    }
}

fn wanted(problem: &Problem, options: &PlanOptions) -> String {
    let mut wanted = format!("for {} and head_dim {}", problem.dtype().name(), problem.sizes().head_dim);
    if let Some(schedule) = options.schedule {
        wanted += &format!(" with the schedule {}", schedule.name());
    }
    if !problem.score_kind().is_plain() {
        wanted += &format!(" and the score {}", problem.score_kind().name());
    }
    if options.accumulation == Accumulation::F16 {
        wanted += " that accumulates in float16";
    }
    if options.splits != Splits::Auto {
        wanted += " that splits the keys";
    }
    if problem.has_lengths() {
        wanted += " that takes lengths on the device";
    }
    wanted
}
