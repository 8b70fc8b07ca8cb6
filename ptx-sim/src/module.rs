//! A loaded module: decoded functions, variables, entries.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::config::Limits;
use crate::decode::{self, Names, Relocation, Target, Variable};
use crate::error::LoadError;
use crate::op::{BulkTo, Constant, Op, Program, Scope, ServiceName, Space as OpSpace, Special};
use crate::parse::ast::{self, InitValue, Space};

/// A module that was parsed, checked and decoded.
#[derive(Debug)]
pub struct Module {
    pub(crate) id: u64,
    pub(crate) programs: Vec<Program>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) files: HashMap<u32, String>,
    /// The number of `.target sm_…`; 0 if it is none.
    target: u32,
    entries: BTreeMap<String, Entry>,
    text: String,
    line_starts: Vec<usize>,
}

/// One parameter of an entry: its place in the parameter block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Offset in the block, in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub bytes: u32,
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Entry {
    pub(crate) program: usize,
    params: Vec<Param>,
    /// Functions that it can reach, itself included.
    pub(crate) reachable: Vec<bool>,
    /// Shared variables that it can reach: static ones, then dynamic ones.
    pub(crate) shared: Vec<u32>,
    pub(crate) dynamic_shared: Vec<u32>,
    bounds: ast::Bounds,
    /// Smallest store to shared memory.
    pub(crate) shared_granule: u32,
    pub(crate) global_stores: bool,
    pub(crate) has_global_atomics: bool,
    /// Whether it has what can order CTAs: fences, and strong accesses to global memory.
    pub(crate) orders_clusters: bool,
    pub(crate) needs_heap: bool,
    pub(crate) prints: bool,
    /// Whether it asks for the workspace of a cooperative grid.
    pub(crate) needs_workspace: bool,
    /// Why it cannot be simulated, if it cannot.
    pub(crate) refused: Option<LoadError>,
    smem_bytes: u64,
}

impl Entry {
    /// Parameters in order.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Length of the parameter block, in bytes.
    pub fn param_bytes(&self) -> usize {
        self.params.last().map_or(0, |p| (p.offset + p.bytes) as usize)
    }

    /// Static shared memory of a CTA, in bytes.
    pub fn smem_bytes(&self) -> u64 {
        self.smem_bytes
    }

    /// Whether the entry uses an `.extern .shared` array, whose size the launch gives.
    pub fn has_dynamic_smem(&self) -> bool {
        !self.dynamic_shared.is_empty()
    }

    /// CTAs of a cluster in x, y, z (`.reqnctapercluster`).
    pub fn cluster(&self) -> Option<[u32; 3]> {
        self.bounds.cluster
    }

    /// Threads of a CTA that `.maxntid` or `.reqntid` allows.
    pub fn max_threads(&self) -> Option<u64> {
        let required = self.block().map(|block| block.iter().map(|d| u64::from(*d)).product());
        required.or(self.bounds.max_threads)
    }

    /// Threads of a CTA in x, y, z that every launch must have (`.reqntid`).
    pub fn block(&self) -> Option<[u32; 3]> {
        self.bounds.block
    }
}

impl Module {
    /// Parses and decodes PTX text. Whatever the table of supported forms does not list is refused.
    ///
    /// # Errors
    /// [`LoadError`], with the line.
    pub fn parse(ptx: &str) -> Result<Module, LoadError> {
        let mut refused = Vec::new();
        let module = Self::load(ptx, ptx, &mut refused)?;
        match refused.into_iter().flatten().next() {
            Some(first) => Err(first),
            None => Ok(module),
        }
    }

    /// Like [`Module::parse`], but what is refused ends only the launches of entries that can reach it.
    ///
    /// # Errors
    /// [`LoadError`] for text that is no PTX.
    pub fn parse_lazily(ptx: &str) -> Result<Module, LoadError> {
        Self::load(ptx, ptx, &mut Vec::new())
    }

    /// Like [`Module::parse`], but looks at one entry and what it can reach only: of a module of many megabytes that takes
    /// milliseconds.
    ///
    /// # Errors
    /// [`LoadError`], with the line.
    pub fn parse_entry(ptx: &str, entry: &str) -> Result<Module, LoadError> {
        let mut refused = Vec::new();
        let module = Self::load(ptx, &crate::parse::only(ptx, entry), &mut refused)?;
        match refused.into_iter().flatten().next() {
            Some(first) => Err(first),
            None => Ok(module),
        }
    }

    /// Everything for which [`Module::parse`] refuses the text, each with its line; empty if it loads. What the grammar
    /// does not allow ends the list, as nothing after it can be told apart.
    pub fn refusals(ptx: &str) -> Vec<LoadError> {
        let mut lists = Vec::new();
        let loaded = Self::load(ptx, ptx, &mut lists);
        let mut refused: Vec<LoadError> = lists.into_iter().flatten().chain(loaded.err()).collect();
        refused.sort_by_key(LoadError::line);
        refused
    }

    /// Loads `source`, which is the text or what is wanted of it. `refused` becomes what is refused of each function.
    fn load(text: &str, source: &str, refused: &mut Vec<Vec<LoadError>>) -> Result<Module, LoadError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let parsed = crate::parse::parse(source)?;
        let functions = unique_functions(parsed.functions)?;
        let mut names = names(&functions, &parsed.variables, (parsed.target, parsed.is_debug))?;
        for (alias, name) in &parsed.aliases {
            if let Some(index) = names.functions.get(name).copied() {
                names.functions.insert(alias, index);
            }
        }
        let mut variables =
            parsed.variables.iter().map(|v| variable(v, &names)).collect::<Result<Vec<_>, _>>()?;
        let programs = decode::programs(&functions, &names, &mut variables, refused);
        let mut entries = BTreeMap::new();
        for (index, function) in functions.iter().enumerate().filter(|(_, f)| f.is_entry && f.body.is_some())
        {
            let reachable = reach(index, &programs);
            let errors = refused.iter().zip(&reachable).filter(|(_, reached)| **reached);
            let first = errors.flat_map(|(list, _)| list).next().cloned();
            entries.insert(function.name.to_owned(), entry(index, function, &programs, &variables, first));
        }
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let files = parsed.files.iter().map(|(number, name)| (*number, (*name).to_owned())).collect();
        let id = NEXT.fetch_add(1, Relaxed);
        let digits = parsed.target.trim_start_matches(|c: char| !c.is_ascii_digit());
        let target = digits.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
        Ok(Module { id, programs, variables, files, target, entries, text: text.to_owned(), line_starts })
    }

    /// The limits of the device that the module's `.target` names.
    pub fn limits(&self) -> Limits {
        match self.target {
            80 | 87 => Limits::SM_80,
            75..=89 | 120..=121 => Limits::SM_89,
            90.. => Limits::SM_90,
            _ => Limits::SM_80,
        }
    }

    /// Names of the entries, in alphabetical order.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// An entry by its name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// The text of a line, trimmed; empty if there is none of that number.
    pub fn text_line(&self, line: u32) -> &str {
        let Some(start) = (line as usize).checked_sub(1).and_then(|i| self.line_starts.get(i)) else {
            return "";
        };
        self.text[*start..].lines().next().unwrap_or("").trim()
    }
}

/// One function of each name; a definition replaces its declarations.
fn unique_functions(all: Vec<ast::Function<'_>>) -> Result<Vec<ast::Function<'_>>, LoadError> {
    let mut list: Vec<ast::Function<'_>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for function in all {
        match places.get(function.name) {
            None => {
                places.insert(function.name, list.len());
                list.push(function);
            }
            Some(&at) if list[at].body.is_none() => list[at] = function,
            Some(_) if function.body.is_none() => {}
            Some(_) => {
                return Err(LoadError::Duplicate { line: function.line, name: function.name.to_owned() });
            }
        }
    }
    Ok(list)
}

fn names<'a>(
    functions: &[ast::Function<'a>],
    variables: &[ast::Variable<'a>],
    (target, is_debug): (&'a str, bool),
) -> Result<Names<'a>, LoadError> {
    let mut by_name: HashMap<&str, u32> = HashMap::new();
    for (index, variable) in variables.iter().enumerate() {
        match by_name.get(variable.name).map(|i| &variables[*i as usize]) {
            // A definition replaces its declarations.
            Some(_) if variable.is_extern => continue,
            Some(other) if !other.is_extern => {
                return Err(LoadError::Duplicate { line: variable.line, name: variable.name.to_owned() });
            }
            _ => by_name.insert(variable.name, index as u32),
        };
    }
    // The memory of `.extern .shared` is given at the launch.
    let elsewhere = |v: &ast::Variable<'_>| v.is_extern && v.space != Space::Shared;
    Ok(Names {
        elsewhere: by_name.values().copied().filter(|i| elsewhere(&variables[*i as usize])).collect(),
        variables: by_name,
        functions: functions.iter().enumerate().map(|(i, f)| (f.name, i as u32)).collect(),
        has_body: functions.iter().map(|f| f.body.is_some()).collect(),
        is_entry: functions.iter().map(|f| f.is_entry).collect(),
        param_bytes: functions.iter().map(|f| f.params.iter().map(|p| p.bytes as u32).collect()).collect(),
        target,
        is_debug,
    })
}

fn variable(variable: &ast::Variable<'_>, names: &Names<'_>) -> Result<Variable, LoadError> {
    let element = variable.element as usize;
    let mut init = Vec::new();
    let mut relocations = Vec::new();
    for value in &variable.init {
        let at = init.len() as u32;
        let bits = match value {
            InitValue::Bits(bits) => *bits,
            InitValue::Float(value) if element == 4 => (*value as f32).to_bits().into(),
            InitValue::Float(value) => value.to_bits(),
            InitValue::Symbol { name, offset, mask } => {
                let target = match (names.variables.get(name), names.functions.get(name)) {
                    (Some(index), _) if names.elsewhere.contains(index) => {
                        return Err(LoadError::Undefined { line: variable.line, name: (*name).to_owned() });
                    }
                    (Some(index), _) => Target::Variable(*index),
                    (None, Some(index)) => Target::Function(*index),
                    _ => return Err(LoadError::Undeclared { line: variable.line, name: (*name).to_owned() }),
                };
                let (shift, bytes) = match mask {
                    Some(mask) => (mask.trailing_zeros() % 64, 1),
                    None if element == 8 => (0, 8),
                    None => {
                        let instruction = format!("address in {element}-byte elements");
                        return Err(LoadError::Unsupported { line: variable.line, instruction });
                    }
                };
                relocations.push(Relocation { at, target, offset: *offset, shift, bytes });
                0
            }
        };
        // Of elements as wide as 16 bytes.
        init.extend_from_slice(&u128::from(bits).to_le_bytes()[..element]);
    }
    let (space, align, bytes) = (variable.space, variable.align, variable.bytes);
    if !init.is_empty() {
        // What an initialiser leaves out is zero (PTX ISA §5.4.4).
        init.resize(bytes as usize, 0);
    }
    let name = variable.name.to_owned();
    Ok(Variable { name, space, align, bytes, is_extern: variable.is_extern, init, relocations })
}

fn entry(
    index: usize,
    function: &ast::Function<'_>,
    programs: &[Program],
    variables: &[Variable],
    refused: Option<LoadError>,
) -> Entry {
    let reachable = reach(index, programs);
    let reached = || programs.iter().zip(&reachable).filter(|(_, r)| **r).map(|(p, _)| p);
    let mut used: Vec<u32> = reached().flat_map(|p| p.variables.iter().copied()).collect();
    used.sort_unstable();
    used.dedup();
    used.retain(|v| variables[*v as usize].space == Space::Shared);
    let (dynamic_shared, shared): (Vec<u32>, Vec<u32>) =
        used.into_iter().partition(|v| variables[*v as usize].is_extern);
    let smem_bytes = shared
        .iter()
        .map(|v| &variables[*v as usize])
        .fold(0, |end: u64, variable| end.next_multiple_of(variable.align.into()) + variable.bytes);
    let insts = || reached().flat_map(|p| &p.insts);
    let stores = |space: OpSpace| insts().filter_map(move |inst| store_bytes(&inst.op, space)).min();
    let params = programs[index].params.iter().zip(&function.params);
    let params =
        params.map(|(p, v)| Param { name: v.name.to_owned(), offset: p.offset, bytes: p.bytes }).collect();
    Entry {
        program: index,
        params,
        shared,
        dynamic_shared,
        smem_bytes,
        bounds: function.bounds,
        shared_granule: stores(OpSpace::Shared).unwrap_or(4),
        global_stores: stores(OpSpace::Global).is_some(),
        orders_clusters: insts().any(|i| orders_clusters(&i.op)),
        needs_heap: insts().any(|i| is_service(&i.op, ServiceName::Malloc)),
        prints: insts().any(|i| is_service(&i.op, ServiceName::Printf)),
        needs_workspace: reached()
            .flat_map(|p| &p.constants)
            .any(|c| matches!(c.value, Constant::Special(Special::Workspace(_)))),
        refused,
        has_global_atomics: insts().any(|i| matches!(&i.op, Op::Atomic(a) if a.space != OpSpace::Shared)),
        reachable,
    }
}

fn is_service(op: &Op, name: ServiceName) -> bool {
    matches!(op, Op::Service(service) if service.name == name)
}

/// Whether an instruction can bring what two CTAs do in order.
fn orders_clusters(op: &Op) -> bool {
    let elsewhere = |space| matches!(space, OpSpace::Global | OpSpace::Generic);
    match op {
        Op::Fence(scope) => *scope > Scope::Cta,
        Op::Load(access) | Op::Store(access) => access.order.is_strong() && elsewhere(access.space),
        Op::Atomic(atomic) => elsewhere(atomic.space) && (atomic.order.acquires || atomic.order.releases),
        _ => false,
    }
}

/// Bytes that an instruction writes to `space` at once, if it may.
fn store_bytes(op: &Op, space: OpSpace) -> Option<u32> {
    let (to, bytes) = match op {
        Op::Store(access) => (access.space, u32::from(access.element_bytes) * access.regs.len() as u32),
        Op::Atomic(atomic) => (atomic.space, u32::from(atomic.ty.bits()) / 8),
        Op::CopyAsync(copy) => (OpSpace::Shared, copy.bytes.into()),
        Op::StoreMatrix(_) => (OpSpace::Shared, 16),
        Op::StoreBulk(_) => (OpSpace::Shared, 8),
        Op::Mbarrier(op) => (op.space, 8),
        Op::Bulk(op) => match (&op.to, op.bytes) {
            (BulkTo::Shared { .. } | BulkTo::Peer { .. } | BulkTo::Answer { .. }, _) => (OpSpace::Shared, 16),
            (BulkTo::Global { byte_mask: None }, Some(_)) => (OpSpace::Global, 16),
            // A row may end after any element, a mask leave out any byte.
            (BulkTo::Global { .. }, _) => (OpSpace::Global, 1),
        },
        Op::StoreAsync(op) => (OpSpace::Cluster, op.element_bytes.into()),
        Op::TensorMapReplace(op) => (op.space, 1),
        Op::TensorMapCopy { .. } => (OpSpace::Global, 16),
        Op::WmmaStore(access) => (access.space, access.ty.bits as u32 / 8),
        _ => return None,
    };
    let shared = space == OpSpace::Shared && to == OpSpace::Cluster;
    (to == space || to == OpSpace::Generic || shared).then_some(bytes)
}

fn reach(index: usize, programs: &[Program]) -> Vec<bool> {
    let mut seen = vec![false; programs.len()];
    let mut stack = vec![index];
    while let Some(at) = stack.pop() {
        if std::mem::replace(&mut seen[at], true) {
            continue;
        }
        let program = &programs[at];
        stack.extend(program.callees.iter().map(|c| *c as usize));
        if program.has_indirect_call {
            // Addresses may come from anywhere in the module.
            stack.extend(0..programs.len());
        }
    }
    seen
}
