//! Launches: validates, lays out shared memory and module variables, runs the CTAs on all cores.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rayon::prelude::*;

use crate::config::LaunchConfig;
use crate::counters::Counters;
use crate::decode::Target;
use crate::error::SimError;
use crate::exec::cta::Cta;
use crate::finding::{Finding, FindingKind, SourceLine};
use crate::global_race;
use crate::memory::Memory;
use crate::module::{Entry, Module};
use crate::op::{Constant, Pc, Program, Special};
use crate::parse::ast::Space;
use crate::regs::{Bank, LANES, Regs};
use crate::report::Report;
use crate::window::{CODE_WINDOW, SHARED_BASE};

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
    let granule = found.global_granule.filter(|_| config.checks.global_races && ids.len() > 1);
    memory.watch_races(granule);
    let mut run = |memory: &Memory, ids: &[u64], in_order: bool| {
        let launch = Launch {
            module,
            entry_name: entry,
            entry_program: found.program,
            entry: found,
            params,
            memory,
            config,
            variables: &variables,
            shared_bytes,
            shared_granule: found.shared_granule,
        };
        run_ctas(&launch, ids, in_order)
    };
    let counters = match run(memory, &ids, found.has_global_atomics) {
        Err(finding) if finding.kind == FindingKind::GlobalRace => {
            let finding =
                global_race::both_accesses(finding, module, memory, granule, &ids, config.grid, &mut run);
            return Err(SimError::Finding(finding));
        }
        outcome => outcome.map_err(SimError::Finding)?,
    };
    let ctas = [ids.len() as u64, grid_ctas];
    let warps = threads(config).div_ceil(LANES as u32);
    Ok(Report::new(module, counters, ctas, warps, shared_bytes))
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
        .map(|v| if is_global(&v) { memory.alloc(v.bytes as usize) } else { 0 })
        .collect();
    for (variable, address) in module.variables.iter().zip(&list).filter(|(v, _)| is_global(v)) {
        let mut bytes = variable.init.clone();
        // Variables without an initialiser start as zero (PTX ISA §5.4.4).
        bytes.resize(variable.bytes as usize, 0);
        for (at, target, offset) in &variable.relocations {
            let base = match target {
                Target::Variable(index) => list[*index as usize],
                Target::Function(index) => CODE_WINDOW + 16 * u64::from(*index),
            };
            let at = *at as usize;
            bytes[at..at + 8].copy_from_slice(&base.wrapping_add_signed(*offset).to_le_bytes());
        }
        // The allocation was made above with this very size.
        let written = memory.write(*address, &bytes);
        debug_assert!(written.is_ok());
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

fn run_ctas(launch: &Launch<'_>, ids: &[u64], in_order: bool) -> Result<Counters, Box<Finding>> {
    // Atomics of several CTAs would otherwise come in another order every time.
    if in_order || ids.len() == 1 {
        let mut sum = Counters::default();
        for &id in ids {
            sum = sum.add(Cta::new(launch, id).run()?);
        }
        return Ok(sum);
    }
    let failed_at = AtomicU64::new(u64::MAX);
    let failure: Mutex<Option<(u64, Box<Finding>)>> = Mutex::new(None);
    let run = |id: u64| {
        // CTAs after one that failed do not matter; those before it still may hold the first finding.
        if id > failed_at.load(Relaxed) {
            return Counters::default();
        }
        match Cta::new(launch, id).run() {
            Ok(counters) => counters,
            Err(finding) => {
                failed_at.fetch_min(id, Relaxed);
                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                if failure.as_ref().is_none_or(|(first, _)| id < *first) {
                    *failure = Some((id, finding));
                }
                Counters::default()
            }
        }
    };
    let sum = ids.par_iter().map(|id| run(*id)).reduce(Counters::default, Counters::add);
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, finding)) => Err(finding),
        None => Ok(sum),
    }
}

impl<'l> Launch<'l> {
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
        let (file, line) = self.program(at.0).location(at.1)?;
        Some(SourceLine { file: self.module.files.get(&file)?.clone(), line })
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
            for lane in 0..LANES {
                let value = match constant.value {
                    Constant::Bits(bits) => bits,
                    Constant::Special(special) => self.special(special, cta, warp, lane as u32),
                    Constant::Variable(index, offset) => {
                        self.variables[index as usize].wrapping_add_signed(offset)
                    }
                    Constant::Local(at, offset) => (local_base + u64::from(at)).wrapping_add_signed(offset),
                    Constant::Function(index) => CODE_WINDOW + 16 * u64::from(index),
                };
                match constant.bank {
                    Bank::Pred => regs.set_pred(constant.slot, 1 << lane, (value as u32 & 1) << lane),
                    bank => regs.set_bits(bank, constant.slot, lane, value),
                }
            }
        }
    }

    fn special(&self, special: Special, cta: [u32; 3], warp: u32, lane: u32) -> u64 {
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
            Special::DynamicSharedBytes => self.config.dynamic_smem_bytes,
            Special::TotalSharedBytes => self.shared_bytes as u32,
        };
        value.into()
    }
}
