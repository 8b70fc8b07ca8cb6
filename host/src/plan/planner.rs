//! The choice: which row, how many splits, for a problem on a device.

use super::group::{Candidate, Group, allows, tiles};
use super::preference;
use super::reason::{NotWgmma, Reason, Trace};
use super::splitting::{Because, Splitting};
use super::tensors::{Obstacle, obstacle};
use super::{Plan, PlanOptions, RowSelection, Splits};
use crate::device::DeviceInfo;
use crate::error::Error;
use crate::module::{self, Library};
use crate::problem::Problem;
use kernels_gpu::geometry;
use kernels_gpu::manifest::{CombineRow, Kernel};
use kernels_gpu::row::{Dtype, HEAD_DIMS, Isa, Schedule};
use std::sync::Arc;

const DTYPES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

/// The kernels that a device runs, in the order in which they are preferred there.
#[derive(Debug)]
pub struct Planner {
    device: DeviceInfo,
    groups: Vec<Group>,
    combine: [Option<Arc<Kernel<CombineRow>>>; 2],
    /// Every kernel's name and where they are, for messages.
    names: Vec<String>,
    origin: String,
}

/// What was chosen.
#[derive(Clone, Copy)]
struct Choice<'a> {
    candidate: &'a Candidate,
    splitting: Splitting,
}

impl Planner {
    /// The kernels of a library that run on a device.
    pub fn new(library: &Library, device: &DeviceInfo) -> Planner {
        let runs = |kernel: &&Arc<Kernel>| library.source(kernel, device.sm).is_some();
        let kernels: Vec<Arc<Kernel>> = library.kernels().iter().filter(runs).cloned().collect();
        let combine = |dtype| {
            let runs = |kernel: &&Arc<Kernel<CombineRow>>| {
                kernel.row.dtype == dtype && library.source(kernel, device.sm).is_some()
            };
            library.combine_kernels().iter().find(runs).cloned()
        };
        let names = library.kernels().iter().map(|kernel| kernel.entry.clone()).collect();
        Planner::of(kernels, DTYPES.map(combine), device, names, library.folder().display().to_string())
    }

    /// The kernels of the table on a device, compiled or not: for planning alone.
    pub fn of_table(device: &DeviceInfo) -> Planner {
        let (kernels, combine) = crate::module::kernels_of_table();
        let names = kernels.iter().map(|kernel| kernel.entry.clone()).collect();
        let runs = |kernel: &Arc<Kernel>| module::runs_on(&kernel.family, device.sm);
        let kernels = kernels.into_iter().filter(runs).collect();
        let combine = DTYPES.map(|dtype| combine.iter().find(|kernel| kernel.row.dtype == dtype).cloned());
        Planner::of(kernels, combine, device, names, "the table".to_owned())
    }

    fn of(
        kernels: Vec<Arc<Kernel>>,
        combine: [Option<Arc<Kernel<CombineRow>>>; 2],
        device: &DeviceInfo,
        names: Vec<String>,
        origin: String,
    ) -> Planner {
        let mut groups = Vec::new();
        for dtype in DTYPES {
            for head_dim in HEAD_DIMS {
                let of_group = kernels
                    .iter()
                    .filter(|kernel| (kernel.row.dtype, kernel.row.head_dim) == (dtype, head_dim));
                groups.push(Group::new(of_group, device));
            }
        }
        Planner { device: device.clone(), groups, combine, names, origin }
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
        let plan = self.build(problem, options, choice)?;
        self.explain_isa(&plan, options, &mut trace);
        if plan.schedule() != Schedule::Persistent && options.schedule.is_none() {
            trace.note(|| Reason::NotPersistent);
        }
        if plan.splits() > 1 {
            trace.note(|| Reason::combine(&plan, options));
        }
        trace.note(|| Reason::fill(&plan, self.device.sm_count));
        Ok((plan, trace.reasons()))
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
        if (row.dtype, row.head_dim) != (problem.dtype(), problem.sizes().head_dim) {
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
        if !allows(problem, options, row) {
            let found = format!("{} has the schedule {}", kernel.entry, row.schedule.name());
            return Err(Error::NoSuchKernel { wanted: wanted(problem, options), available: found });
        }
        self.check_obstacle(problem, options, kernel)?;
        self.with(problem, &Candidate::new(kernel, &self.device), options)
    }

    fn with(&self, problem: &Problem, candidate: &Candidate, options: &PlanOptions) -> Result<Plan, Error> {
        let (splitting, _) = self.split(problem, candidate, options.splits)?;
        self.build(problem, options, Choice { candidate, splitting })
    }

    /// The error of a kernel that cannot be told of the problem's tensors, or has no room for its heads.
    fn check_obstacle(&self, problem: &Problem, options: &PlanOptions, kernel: &Kernel) -> Result<(), Error> {
        match obstacle(problem, &kernel.row, &self.device) {
            None => Ok(()),
            Some(Obstacle::Tensor(error)) => Err(error),
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
    fn explain_isa(&self, plan: &Plan, options: &PlanOptions, trace: &mut Trace) {
        if plan.kernel().row.isa == Isa::Wgmma {
            return trace.note(|| Reason::Wgmma);
        }
        if !module::runs_on(Isa::Wgmma.arch(), self.device.sm)
            || matches!(options.rows, RowSelection::Named(_))
        {
            return;
        }
        let problem = plan.problem();
        let kernels = self.group(problem).candidates.iter().map(|candidate| &candidate.kernel);
        let with_wgmma: Vec<&Arc<Kernel>> = kernels.filter(|kernel| kernel.row.isa == Isa::Wgmma).collect();
        let allowed = with_wgmma.iter().filter(|kernel| allows(problem, options, &kernel.row));
        let obstacles: Vec<Option<Obstacle>> =
            allowed.map(|kernel| obstacle(problem, &kernel.row, &self.device)).collect();
        let because = match obstacles.iter().flatten().next() {
            _ if with_wgmma.is_empty() => NotWgmma::NoKernel,
            _ if obstacles.is_empty() => NotWgmma::Asked,
            _ if obstacles.iter().any(Option::is_none) => NotWgmma::NotPreferred,
            Some(Obstacle::Group { heads, .. }) => NotWgmma::Group { heads: *heads },
            Some(Obstacle::Tensor(Error::NoTensorMap { tensor, what, dimension, .. })) => {
                NotWgmma::Tensor { tensor, what, dimension }
            }
            _ => NotWgmma::Driver,
        };
        trace.note(|| Reason::NotWgmma { because });
    }

    fn group(&self, problem: &Problem) -> &Group {
        let dtype = DTYPES.iter().position(|&dtype| dtype == problem.dtype()).unwrap_or_default();
        // A problem's head_dim is one of them.
        let head_dim = HEAD_DIMS.iter().position(|&dim| dim == problem.sizes().head_dim).unwrap_or_default();
        &self.groups[dtype * HEAD_DIMS.len() + head_dim]
    }

    fn combine(&self, problem: &Problem) -> Option<&Arc<Kernel<CombineRow>>> {
        let dtype = DTYPES.iter().position(|&dtype| dtype == problem.dtype())?;
        self.combine[dtype].as_ref()
    }

    fn selected(&self, problem: &Problem, options: &PlanOptions) -> Result<Vec<&Candidate>, Error> {
        let candidates = self.group(problem).candidates.iter();
        let allowed = candidates.filter(|candidate| allows(problem, options, &candidate.kernel.row));
        let has_obstacle =
            |candidate: &&Candidate| obstacle(problem, &candidate.kernel.row, &self.device).is_some();
        let selected: Vec<&Candidate> = match &options.rows {
            RowSelection::Best | RowSelection::All => {
                allowed.filter(|candidate| !has_obstacle(candidate)).collect()
            }
            RowSelection::Named(name) => {
                if !self.names.contains(name) {
                    let available = format!("there are {}", self.names.join(", "));
                    return Err(Error::NoSuchKernel { wanted: name.clone(), available });
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

    fn choose<'a>(
        &'a self,
        problem: &Problem,
        options: &PlanOptions,
        trace: &mut Trace,
    ) -> Result<Choice<'a>, Error> {
        if let RowSelection::Named(_) = options.rows {
            // One name is one candidate.
            let candidate = self.selected(problem, options)?[0];
            trace.note(|| Reason::Named);
            return self.choice(problem, candidate, options.splits, trace);
        }
        let group = self.group(problem);
        let unsplit = group.unsplit(problem, options, &self.device, trace);
        let split = group.split(problem, options, &self.device);
        match (unsplit, split) {
            (Some(unsplit), Some(split)) => {
                let unsplit = Choice { candidate: unsplit, splitting: Splitting::whole(0) };
                let split = self.choice(problem, split, options.splits, trace)?;
                if split.splitting.splits == 1 && problem.group() == 1 {
                    trace.note(|| Reason::NothingShared);
                    return Ok(unsplit);
                }
                let costs = [unsplit, split].map(|choice| self.cost(problem, choice));
                let is_split = costs[1] <= preference::SPLIT_GAIN * costs[0];
                trace.note(|| Reason::Estimate { unsplit: costs[0], split: costs[1], is_split });
                Ok(if is_split { split } else { unsplit })
            }
            (Some(candidate), None) => Ok(Choice { candidate, splitting: Splitting::whole(0) }),
            (None, Some(candidate)) => {
                trace.note(|| Reason::only_split(problem, options));
                self.choice(problem, candidate, options.splits, trace)
            }
            (None, None) => Err(self.no_kernel(problem, options)),
        }
    }

    fn choice<'a>(
        &self,
        problem: &Problem,
        candidate: &'a Candidate,
        splits: Splits,
        trace: &mut Trace,
    ) -> Result<Choice<'a>, Error> {
        let (splitting, because) = self.split(problem, candidate, splits)?;
        if candidate.kernel.row.schedule == Schedule::Split {
            trace.note(|| Reason::splits(splitting.splits, because));
        }
        Ok(Choice { candidate, splitting })
    }

    fn split(
        &self,
        problem: &Problem,
        candidate: &Candidate,
        splits: Splits,
    ) -> Result<(Splitting, Because), Error> {
        let (row, sizes) = (&candidate.kernel.row, problem.sizes());
        let key_blocks = geometry::key_blocks(row, sizes.seqlen_k);
        if row.schedule != Schedule::Split {
            return Ok((Splitting::whole(0), Because::Asked));
        }
        let tiles = tiles(row, problem);
        let room = (self.device.sm_count, candidate.resident_ctas);
        let (splitting, because) = Splitting::new(splits, key_blocks, row.block_n, tiles, room)?;
        if splitting.splits > 1 && self.combine(problem).is_none() {
            if splits == Splits::Auto {
                return Ok((Splitting::whole(key_blocks), Because::NoCombine));
            }
            let wanted = format!("that merges splits of {}", problem.dtype().name());
            return Err(Error::NoSuchKernel {
                wanted,
                available: format!("there is none in {}", self.origin),
            });
        }
        Ok((splitting, because))
    }

    fn build(&self, problem: &Problem, options: &PlanOptions, choice: Choice<'_>) -> Result<Plan, Error> {
        let Choice { candidate, splitting } = choice;
        let combine = self.combine(problem);
        Plan::new(problem, candidate, &self.device, splitting, combine, options)
    }

    /// The time that a choice takes, in query rows × keys × elements of head_dim that one SM computes: waves of CTAs, each as long
    /// as its keys, with as many query rows side by side as an SM holds or [`preference::BUSY_ROWS`], and the combine kernel.
    fn cost(&self, problem: &Problem, choice: Choice<'_>) -> f64 {
        let Choice { candidate, splitting } = choice;
        let (row, sizes) = (&candidate.kernel.row, problem.sizes());
        let head_dim = f64::from(sizes.head_dim);
        let (sms, resident) = (f64::from(self.device.sm_count), f64::from(candidate.resident_ctas));
        let ctas = tiles(row, problem) as f64 * f64::from(splitting.splits);
        let cta_keys = match row.schedule {
            Schedule::Split => {
                f64::from(splitting.blocks.min(geometry::key_blocks(row, sizes.seqlen_k)) * row.block_n)
            }
            Schedule::Grid | Schedule::Persistent => f64::from(sizes.seqlen_k),
        };
        let wave = |ctas_per_sm: f64, keys: f64| {
            (keys + preference::CTA_KEYS)
                * (ctas_per_sm * f64::from(row.block_m)).max(preference::BUSY_ROWS.into())
        };
        let waves = ctas / (sms * resident);
        // The CTAs of a last wave spread over the SMs.
        let last = ((waves.fract() * sms * resident) / sms).ceil();
        let all_keys =
            waves.floor() * wave(resident, cta_keys) + if last > 0.0 { wave(last, cta_keys) } else { 0.0 };
        // Of a causal mask the longest CTAs start first, and the others fill what they leave.
        let visible = visible_share(problem);
        let longest = wave(last.max(1.0).min(resident), cta_keys);
        let rows = (all_keys * visible).max(longest);
        let combine = if splitting.splits > 1 { preference::COMBINE_COST } else { 0.0 };
        let speed = match row.isa {
            Isa::Mma => 1.0,
            Isa::Wgmma => preference::WGMMA_TIME,
        };
        rows * head_dim * speed + combine
    }

    fn no_kernel(&self, problem: &Problem, options: &PlanOptions) -> Error {
        let available = format!(
            "none of the {} in {} computes it on sm_{}; run `cargo xtask build-ptx`",
            self.names.len(),
            self.origin,
            self.device.sm
        );
        Error::NoSuchKernel { wanted: wanted(problem, options), available }
    }
}

/// The share of query-key pairs that the mask leaves.
fn visible_share(problem: &Problem) -> f64 {
    let sizes = problem.sizes();
    let (q, k) = (u64::from(sizes.seqlen_q), u64::from(sizes.seqlen_k));
    geometry::flops(1, 1, q, k, 1, problem.causal()) / geometry::flops(1, 1, q, k, 1, false)
}

fn wanted(problem: &Problem, options: &PlanOptions) -> String {
    let mut wanted = format!("for {} and head_dim {}", problem.dtype().name(), problem.sizes().head_dim);
    if let Some(schedule) = options.schedule {
        wanted += &format!(" with the schedule {}", schedule.name());
    }
    if options.splits != Splits::Auto {
        wanted += " that splits the keys";
    }
    if problem.has_lengths() {
        wanted += " that takes lengths on the device";
    }
    wanted
}
