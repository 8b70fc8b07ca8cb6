//! Launches: validates, lays out shared memory and module variables, runs the CTAs on all cores.

use crate::config::LaunchConfig;
use crate::decode::{Relocation, Target};
use crate::error::SimError;
use crate::finding::{FindingKind, SourceLine};
use crate::grid;
use crate::memory::Memory;
use crate::module::{Entry, Module};
use crate::op::{Constant, Pc, Program, Special};
use crate::parse::ast::Space;
use crate::regs::{Bank, LANES, Regs};
use crate::report::Report;
use crate::window::{self, CODE_WINDOW, SHARED_BASE};

/// What every CTA of a launch shares.
pub(crate) struct Launch<'l> {
    pub(crate) module: &'l Module,
    pub(crate) entry_name: &'l str,
    pub(crate) entry_program: usize,
    entry: &'l Entry,
    pub(crate) params: &'l [u8],
    pub(crate) memory: &'l Memory,
    pub(crate) config: &'l LaunchConfig,
    /// Addresses of the module's variables, in their spaces.
    variables: &'l [u64],
    pub(crate) shared_bytes: u64,
    pub(crate) shared_granule: u32,
    /// Whether anything can order what two clusters do.
    pub(crate) orders_clusters: bool,
    /// Whether clusters take turns, so that one may wait for what another changes.
    pub(crate) in_turns: bool,
    /// Clusters that are on the device at once.
    pub(crate) resident_groups: usize,
    /// CTAs of a cluster in x, y, z.
    cluster: [u32; 3],
    workspace: u64,
}

/// Runs a grid to its end.
///
/// `params` is the parameter block: the parameters in order of declaration, each at its natural alignment.
///
/// # Errors
/// [`SimError::Finding`] if the kernel breaks a rule that is checked, with the finding of the lowest CTA that has one;
/// another [`SimError`] if the launch itself is wrong.
pub fn launch(
    module: &Module,
    entry: &str,
    params: &[u8],
    memory: &mut Memory,
    config: &LaunchConfig,
) -> Result<Report, SimError> {
    let found = module.entry(entry).ok_or_else(|| SimError::UnknownEntry { name: entry.to_owned() })?;
    if let Some(refused) = &found.refused {
        return Err(SimError::Load(refused.clone()));
    }
    validate(entry, found, params, config)?;
    let mut variables = module_variables(module, memory);
    let shared_bytes = shared_layout(module, found, config, &mut variables);
    if shared_bytes > u64::from(config.limits.smem_per_cta) {
        let limit = config.limits.smem_per_cta.into();
        return Err(SimError::SharedMemory { entry: entry.to_owned(), requested: shared_bytes, limit });
    }
    let grid_ctas: u64 = config.grid.iter().map(|d| u64::from(*d)).product();
    let ids: Vec<u64> = match &config.ctas {
        Some(list) => list.iter().map(|id| u64::from(*id)).collect(),
        None => (0..grid_ctas).collect(),
    };
    if found.needs_heap {
        memory.make_heap();
    }
    memory.watch_races(config.checks.global_races && found.global_stores);
    let workspace = if found.needs_workspace { workspace(memory) } else { 0 };
    let cluster = config.cluster.or(found.cluster()).unwrap_or([1; 3]);
    let in_order =
        found.has_global_atomics || found.orders_clusters || found.prints || config.timer.is_some();
    macro_rules! made {
        ($memory:expr) => {
            Launch {
                module,
                entry_name: entry,
                entry_program: found.program,
                entry: found,
                params,
                memory: $memory,
                config,
                variables: &variables,
                shared_bytes,
                shared_granule: found.shared_granule,
                orders_clusters: found.orders_clusters,
                in_turns: in_order,
                resident_groups: resident_groups(config, shared_bytes, cluster),
                cluster,
                workspace,
            }
        };
    }
    let launch = made!(&*memory);
    let groups = launch.groups(&ids);
    let first = grid::run(&launch, &groups, in_order);
    let outcome = match first {
        // Which race is found first depends on the machine where CTAs run on all cores: those up to it are run again in
        // order. A kernel whose addresses depend on what it has overwritten may take another course then.
        Err(finding) if finding.kind == FindingKind::GlobalRace && !in_order => {
            memory.watch_races(true);
            match grid::run(&made!(&*memory), &groups, true) {
                Err(again) if again.kind == FindingKind::GlobalRace => Err(again),
                _ => Err(finding),
            }
        }
        outcome => outcome,
    };
    if workspace != 0 {
        let freed = memory.free(workspace);
        assert!(freed.is_ok());
    }
    let (counters, warnings) = outcome.map_err(SimError::Finding)?;
    let ctas = [ids.len() as u64, grid_ctas];
    let warps = threads(config).div_ceil(LANES as u32);
    let mut report = Report::new(module, counters, ctas, warps, shared_bytes);
    report.warnings = warnings;
    report.warnings.sort_by_key(|w| (w.line, w.cta));
    report.warnings.dedup_by_key(|w| (w.line, w.kind));
    Ok(report)
}

/// Bytes of the workspace of a cooperative grid, which its barrier keeps its state in.
const WORKSPACE_BYTES: u32 = 4096;

/// A fresh workspace: its size, then zeros.
fn workspace(memory: &mut Memory) -> u64 {
    let address = memory.alloc(WORKSPACE_BYTES as usize);
    let mut filled = vec![0; WORKSPACE_BYTES as usize];
    filled[..4].copy_from_slice(&WORKSPACE_BYTES.to_le_bytes());
    let written = memory.write(address, &filled);
    assert!(written.is_ok());
    address
}

/// Multiprocessors of the device (H100 SXM), and the CTAs and threads of one.
const MULTIPROCESSORS: usize = 132;
const SM_CTAS: u64 = 32;
const SM_THREADS: u64 = 2048;

/// Clusters that are on the device at once.
fn resident_groups(config: &LaunchConfig, shared_bytes: u64, cluster: [u32; 3]) -> usize {
    let by_threads = SM_THREADS / u64::from(threads(config)).max(1);
    let by_shared = 228 * 1024 / (shared_bytes + 1024);
    let ctas = MULTIPROCESSORS * by_threads.min(by_shared).clamp(1, SM_CTAS) as usize;
    (ctas / cluster.iter().product::<u32>().max(1) as usize).max(1)
}

fn threads(config: &LaunchConfig) -> u32 {
    config.block.iter().product()
}

fn validate(name: &str, entry: &Entry, params: &[u8], config: &LaunchConfig) -> Result<(), SimError> {
    if params.len() != entry.param_bytes() {
        let (entry, expected) = (name.to_owned(), entry.param_bytes());
        return Err(SimError::ParamSize { entry, expected, got: params.len() });
    }
    let check = |what, got: u64, limit: u64| {
        if got == 0 || got > limit { Err(SimError::Geometry { what, got, limit }) } else { Ok(()) }
    };
    check("grid x", config.grid[0].into(), i32::MAX as u64)?;
    check("grid y", config.grid[1].into(), 65535)?;
    check("grid z", config.grid[2].into(), 65535)?;
    let threads: u64 = config.block.iter().map(|d| u64::from(*d)).fold(1, u64::saturating_mul);
    let limit = entry.max_threads().unwrap_or(u64::MAX).min(config.limits.threads_per_cta.into());
    check("threads of a CTA", threads, limit)?;
    let required = [
        ("threads of a CTA", entry.block(), Some(config.block)),
        ("CTAs of a cluster", entry.cluster(), config.cluster),
    ];
    for (what, required, got) in required {
        if let (Some(required), Some(got)) = (required, got)
            && required != got
        {
            return Err(SimError::Required { what, got, required });
        }
    }
    let cluster = config.cluster.or(entry.cluster()).unwrap_or([1; 3]);
    check("CTAs of a cluster", cluster.iter().map(|d| u64::from(*d)).fold(1, u64::saturating_mul), 16)?;
    for (grid, size) in config.grid.iter().zip(cluster) {
        check("grid dimension by that of its clusters", if grid % size == 0 { 1 } else { 2 }, 1)?;
    }
    let ctas = config.grid.iter().map(|d| u64::from(*d)).fold(1, u64::saturating_mul);
    // Of the CTAs that run a list is kept, which bounds how many there can be.
    check("CTAs that run", config.ctas.as_ref().map_or(ctas, |list| list.len() as u64), 1 << 26)?;
    match config.ctas.iter().flatten().find(|id| u64::from(**id) >= ctas) {
        Some(&cta) => Err(SimError::UnknownCta { cta, ctas }),
        None => Ok(()),
    }
}

/// Addresses of the global and constant variables; their memory is made at the module's first launch and then kept.
fn module_variables(module: &Module, memory: &mut Memory) -> Vec<u64> {
    if let Some(list) = memory.modules.get(&module.id) {
        return list.clone();
    }
    let is_global = |v: &&crate::decode::Variable| matches!(v.space, Space::Global | Space::Const);
    let list: Vec<u64> = module
        .variables
        .iter()
        .map(|v| match v.space {
            Space::Global => memory.alloc(v.bytes as usize),
            Space::Const => memory.alloc_const(v.bytes as usize),
            _ => 0,
        })
        .collect();
    for (variable, address) in module.variables.iter().zip(&list).filter(|(v, _)| is_global(v)) {
        let mut bytes = variable.init.clone();
        // Variables without an initialiser start as zero (PTX ISA §5.4.4).
        bytes.resize(variable.bytes as usize, 0);
        for Relocation { at, target, offset, shift, bytes: length } in &variable.relocations {
            let base = match target {
                Target::Variable(index) => list[*index as usize],
                Target::Function(index) => CODE_WINDOW + 16 * u64::from(*index),
            };
            let at = *at as usize;
            let value = base.wrapping_add_signed(*offset) >> shift;
            let length = usize::from(*length);
            bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
        }
        // The allocation was made above with this very size.
        let written = memory.write(*address, &bytes);
        assert!(written.is_ok());
        if variable.space == Space::Const {
            memory.set_const(*address);
        }
    }
    memory.modules.insert(module.id, list.clone());
    list
}

/// Places the shared variables that the entry uses and gives the bytes of a CTA: static ones, then the dynamic array.
fn shared_layout(module: &Module, entry: &Entry, config: &LaunchConfig, variables: &mut [u64]) -> u64 {
    let mut end = 0u64;
    for &index in &entry.shared {
        let variable = &module.variables[index as usize];
        end = end.next_multiple_of(variable.align.into());
        variables[index as usize] = SHARED_BASE + end;
        end += variable.bytes;
    }
    let dynamic = entry.dynamic_shared.iter().map(|i| u64::from(module.variables[*i as usize].align));
    end = end.next_multiple_of(dynamic.max().unwrap_or(1));
    for &index in &entry.dynamic_shared {
        variables[index as usize] = SHARED_BASE + end;
    }
    end + u64::from(config.dynamic_smem_bytes)
}

impl<'l> Launch<'l> {
    /// CTAs of a cluster.
    pub(crate) fn cluster_ctas(&self) -> u32 {
        self.cluster.iter().product()
    }

    /// Whether the kernel uses the shared memory that the system keeps.
    pub(crate) fn uses_reserved(&self) -> bool {
        let reserved = |p: &Program| {
            p.constants.iter().any(|c| matches!(c.value, Constant::Special(Special::Reserved(_))))
        };
        (0..self.programs()).any(|at| self.is_reachable(at) && reserved(self.program(at)))
    }

    /// A CTA's place in the grid.
    pub(crate) fn index_of(&self, id: u64) -> [u32; 3] {
        let [x, y, _] = self.config.grid.map(u64::from);
        [(id % x) as u32, (id / x % y) as u32, (id / (x * y)) as u32]
    }

    /// Clusters in x, y, z.
    fn clusters(&self) -> [u32; 3] {
        std::array::from_fn(|axis| self.config.grid[axis].div_ceil(self.cluster[axis]))
    }

    /// A CTA's cluster, and its rank in it.
    pub(crate) fn group_of(&self, id: u64) -> (u32, u32) {
        let at = self.index_of(id);
        let (size, count) = (self.cluster, self.clusters());
        let cluster: [u32; 3] = std::array::from_fn(|axis| at[axis] / size[axis]);
        let inside: [u32; 3] = std::array::from_fn(|axis| at[axis] % size[axis]);
        let linear = |at: [u32; 3], size: [u32; 3]| at[0] + size[0] * (at[1] + size[1] * at[2]);
        (linear(cluster, count), linear(inside, size))
    }

    /// The CTA of a rank in a cluster.
    pub(crate) fn cta_of(&self, group: u32, rank: u32) -> u64 {
        let part = |at: u32, size: [u32; 3]| [at % size[0], at / size[0] % size[1], at / (size[0] * size[1])];
        let (cluster, inside) = (part(group, self.clusters()), part(rank, self.cluster));
        let at: [u64; 3] =
            std::array::from_fn(|axis| u64::from(cluster[axis] * self.cluster[axis] + inside[axis]));
        let [x, y, _] = self.config.grid.map(u64::from);
        at[0] + x * (at[1] + y * at[2])
    }

    /// The CTAs to run, by cluster; of a cluster all run if one does.
    fn groups(&self, ids: &[u64]) -> Vec<Vec<u64>> {
        if self.cluster_ctas() == 1 {
            return ids.iter().map(|id| vec![*id]).collect();
        }
        let mut list: Vec<u32> = ids.iter().map(|id| self.group_of(*id).0).collect();
        list.sort_unstable();
        list.dedup();
        list.into_iter()
            .map(|g| (0..self.cluster_ctas()).map(|rank| self.cta_of(g, rank)).collect())
            .collect()
    }

    /// Prints what a kernel prints.
    pub(crate) fn print(&self, text: &str) {
        match &self.config.output {
            Some(output) => output.push(text),
            None => print!("{text}"),
        }
    }

    /// Whether a function stands in another file than the entry, or in none, as those of libraries do.
    pub(crate) fn is_foreign(&self, program: usize) -> bool {
        let file = |index: usize| self.program(index).locations.first_file();
        let own = file(self.entry_program);
        own.is_some() && file(program) != own
    }

    /// The source line of what stands at a line of the PTX.
    pub(crate) fn source_of_line(&self, line: u32) -> Option<SourceLine> {
        let at = self.module.programs.iter().enumerate().find_map(|(index, program)| {
            let pc = program.insts.iter().position(|inst| inst.line == line)?;
            Some((index, pc as Pc))
        })?;
        self.source(at)
    }

    /// A function of the module.
    pub(crate) fn program(&self, index: usize) -> &'l Program {
        &self.module.programs[index]
    }

    /// Functions of the module.
    pub(crate) fn programs(&self) -> usize {
        self.module.programs.len()
    }

    pub(crate) fn is_reachable(&self, program: usize) -> bool {
        self.entry.reachable[program]
    }

    /// Threads of a CTA.
    pub(crate) fn threads(&self) -> u32 {
        threads(self.config)
    }

    /// Warps of a CTA.
    pub(crate) fn warps(&self) -> usize {
        (self.threads() as usize).div_ceil(LANES)
    }

    /// The PTX line of an instruction.
    pub(crate) fn line(&self, at: (usize, Pc)) -> u32 {
        self.program(at.0).insts.get(at.1 as usize).map_or(0, |i| i.line)
    }

    /// The source line of an instruction, by the last `.loc` before it.
    pub(crate) fn source(&self, at: (usize, Pc)) -> Option<SourceLine> {
        let (file, line) = self.program(at.0).locations.at(at.1)?;
        let called_at = self.program(at.0).locations.inlined_at(at.1).to_vec();
        Some(SourceLine { file: self.module.files.get(&file)?.clone(), line, called_at })
    }

    /// The shared variable that holds an address, and the offset in it. A dynamic array goes on to the end.
    pub(crate) fn shared_symbol(&self, address: u64) -> Option<(String, u64)> {
        let shared = self.entry.shared.iter().chain(&self.entry.dynamic_shared);
        let base = |index: u32| self.variables[index as usize];
        let index = *shared.filter(|i| base(**i) <= address).max_by_key(|i| base(**i))?;
        Some((self.module.variables[index as usize].name.clone(), address - base(index)))
    }

    /// Puts the constants of a function into its registers.
    pub(crate) fn fill_constants(
        &self,
        program: &Program,
        regs: &mut Regs,
        cta: [u32; 3],
        warp: u32,
        local_base: u64,
    ) {
        for constant in &program.constants {
            let of_all_lanes = match constant.value {
                Constant::Special(special) => {
                    for lane in 0..LANES {
                        let value = self.special(special, cta, warp, lane as u32);
                        match constant.bank {
                            Bank::Pred => {
                                regs.set_pred(constant.slot, 1 << lane, (value as u32 & 1) << lane);
                            }
                            bank => regs.set_bits(bank, constant.slot, lane, value),
                        }
                    }
                    continue;
                }
                Constant::Bits(bits) => bits,
                Constant::Variable(index, offset) => {
                    self.variables[index as usize].wrapping_add_signed(offset)
                }
                Constant::Local(at, offset) => (local_base + u64::from(at)).wrapping_add_signed(offset),
                Constant::Function(index) => CODE_WINDOW + 16 * u64::from(index),
            };
            regs.fill(constant.bank, constant.slot, of_all_lanes);
        }
    }

    /// Generic addresses of the shared memory of a CTA's cluster.
    pub(crate) fn shared_window(&self, cta: [u32; 3]) -> u64 {
        let cluster = std::array::from_fn(|axis| cta[axis] / self.cluster[axis]);
        window::owned_by(linear(cluster, self.clusters()), window::SHARED_WINDOW)
    }

    /// Generic addresses of the local memory of a thread.
    pub(crate) fn local_window(&self, cta: [u32; 3], thread: u32) -> u64 {
        let threads = u64::from(self.threads());
        let number = linear(cta, self.config.grid) * threads + u64::from(thread);
        window::owned_by(number, window::LOCAL_WINDOW)
    }

    fn special(&self, special: Special, cta: [u32; 3], warp: u32, lane: u32) -> u64 {
        let rank = || {
            let inside: [u32; 3] = std::array::from_fn(|axis| cta[axis] % self.cluster[axis]);
            inside[0] + self.cluster[0] * (inside[1] + self.cluster[1] * inside[2])
        };
        let [x, y, _] = self.config.block;
        let thread = warp * LANES as u32 + lane;
        let tid = [thread % x, thread / x % y, thread / (x * y)];
        let value = match special {
            Special::Tid(axis) => tid[axis as usize],
            Special::Ntid(axis) => self.config.block[axis as usize],
            Special::Ctaid(axis) => cta[axis as usize],
            Special::Nctaid(axis) => self.config.grid[axis as usize],
            Special::LaneId => lane,
            Special::WarpId => warp,
            Special::WarpCount => self.warps() as u32,
            Special::SmId | Special::GridId => 0,
            Special::SmCount => 1,
            Special::LaneMaskEq => 1 << lane,
            Special::LaneMaskLe => u32::MAX >> (31 - lane),
            Special::LaneMaskLt => (1 << lane) - 1,
            Special::LaneMaskGe => u32::MAX << lane,
            Special::LaneMaskGt => !(u32::MAX >> (31 - lane)),
            Special::ClusterId(axis) => cta[axis as usize] / self.cluster[axis as usize],
            Special::ClusterCount(axis) => self.clusters()[axis as usize],
            Special::ClusterCtaId(axis) => cta[axis as usize] % self.cluster[axis as usize],
            Special::ClusterCtaCount(axis) => self.cluster[axis as usize],
            Special::ClusterRank => rank(),
            Special::ClusterRanks => self.cluster_ctas(),
            Special::IsCluster => u32::from(self.config.cluster.is_some() || self.entry.cluster().is_some()),
            Special::Workspace(0) => self.workspace as u32,
            Special::Workspace(_) => (self.workspace >> 32) as u32,
            Special::Reserved(end) => u32::from(end) * SHARED_BASE as u32,
            Special::SharedWindow => return self.shared_window(cta),
            Special::LocalWindow => return self.local_window(cta, thread),
            Special::DynamicSharedBytes => self.config.dynamic_smem_bytes,
            Special::TotalSharedBytes => self.shared_bytes as u32,
        };
        value.into()
    }
}

/// The number of a place among as many in each dimension.
fn linear([x, y, z]: [u32; 3], [columns, rows, _]: [u32; 3]) -> u64 {
    u64::from(x) + u64::from(columns) * (u64::from(y) + u64::from(rows) * u64::from(z))
}
