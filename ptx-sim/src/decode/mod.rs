//! Statements to decoded programs: names resolved, operands in registers, control flow analysed.

mod cancel;
mod control;
mod expected;
mod formal;
mod hopper;
mod lane;
mod legal;
mod lookup;
mod memory;
mod operand;
mod place;
mod register;
mod scope;
mod video;
mod warp;
mod wgmma;
mod wmma;

use std::collections::{HashMap, HashSet};

pub(crate) use lookup::lanes;

use crate::error::LoadError;
use crate::op::{
    Constant, ConstantSlot, Formal, Guard, Inst, NO_PREDICATE, Op, Pc, Program, Proxy, Reg, Scope,
};
use crate::parse::ast::{self, Space, Statement};
use crate::regs::{Bank, Slot};
use crate::table::family::Family;
use crate::unset;
use crate::{allocate, cfg, compact, fixed};
use lookup::{Form, Lookup};
use place::Places;
use scope::{Scopes, Symbol};

/// Local memory of a thread (CUDA programming guide, technical specifications).
pub(crate) const MAX_LOCAL_BYTES: u32 = 512 * 1024;
/// Parameters of an entry (PTX ISA §5.1.6.1).
const MAX_ENTRY_BYTES: u32 = 32764;
/// Parameters of one function and of the calls that it makes.
const MAX_FRAME_BYTES: u32 = 64 * 1024;

/// A variable of the module, or a function's shared variable.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) space: Space,
    pub(crate) align: u32,
    pub(crate) bytes: u64,
    pub(crate) is_extern: bool,
    /// Initial bytes; empty for none.
    pub(crate) init: Vec<u8>,
    pub(crate) relocations: Vec<Relocation>,
}

/// An address, or a byte of it, inside the initial bytes of a variable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relocation {
    /// Where it stands.
    pub(crate) at: u32,
    pub(crate) target: Target,
    pub(crate) offset: i64,
    /// The part of the address: bits below it, and its bytes.
    pub(crate) shift: u32,
    pub(crate) bytes: u8,
}

/// What an address in an initialiser points to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Variable(u32),
    Function(u32),
}

/// Names that every function sees.
pub(crate) struct Names<'a> {
    pub(crate) variables: HashMap<&'a str, u32>,
    /// Variables that only another module defines.
    pub(crate) elsewhere: HashSet<u32>,
    pub(crate) functions: HashMap<&'a str, u32>,
    /// Whether each function has a body.
    pub(crate) has_body: Vec<bool>,
    /// Whether each function is a kernel.
    pub(crate) is_entry: Vec<bool>,
    /// The bytes of each function's parameters.
    pub(crate) param_bytes: Vec<Vec<u32>>,
    /// The module's `.target`.
    pub(crate) target: &'a str,
    /// Compiled without optimisation.
    pub(crate) is_debug: bool,
}

/// A branch whose label may come later.
enum Fixup<'a> {
    Branch { pc: Pc, label: &'a str, scope: usize },
    Table { pc: Pc, labels: Vec<&'a str>, scope: usize },
}

/// Builds one function.
pub(crate) struct Builder<'m, 'a> {
    names: &'m Names<'a>,
    /// Variables of the module; a function's shared ones are added.
    variables: &'m mut Vec<Variable>,
    lookup: &'m mut Lookup<'a>,
    program: Program,
    scopes: Scopes<'a>,
    constants: HashMap<(Bank, Constant), Slot>,
    fixups: Vec<Fixup<'a>>,
    carry_flag: Option<Slot>,
    places: Places<'a>,
    /// Where the copies of parameters are whose address is taken.
    addressed: HashMap<&'a str, u32>,
    is_entry: bool,
    line: u32,
    mnemonic: &'a str,
    guard: Option<Guard>,
    continues: bool,
    /// Whether a register is a vector.
    has_vectors: bool,
    /// Results that are registers, and their places in the frame.
    register_returns: Vec<(Reg, u32)>,
}

/// Decodes every function body; the list has an empty program where there is none. `refused` becomes what is refused of each
/// function, whose program is worth nothing then.
pub(crate) fn programs<'a>(
    functions: &[ast::Function<'a>],
    names: &Names<'a>,
    variables: &mut Vec<Variable>,
    refused: &mut Vec<Vec<LoadError>>,
) -> Vec<Program> {
    let mut lookup = Lookup::default();
    let mut programs: Vec<Program> = functions
        .iter()
        .map(|function| {
            let builder = Builder {
                names,
                variables,
                lookup: &mut lookup,
                program: Program::default(),
                scopes: Scopes::new(),
                constants: HashMap::new(),
                fixups: Vec::new(),
                carry_flag: None,
                places: Places::new(function.body.as_deref().unwrap_or_default()),
                addressed: HashMap::new(),
                is_entry: function.is_entry,
                line: function.line,
                mnemonic: "",
                guard: None,
                continues: false,
                has_vectors: false,
                register_returns: Vec::new(),
            };
            let mut errors = Vec::new();
            let program = builder.function(function, &mut errors);
            refused.push(errors);
            program
        })
        .collect();
    expected::relax(&mut programs);
    for (program, _) in programs.iter_mut().zip(refused.iter()).filter(|(_, errors)| errors.is_empty()) {
        program.conditions = fixed::conditions(program);
        allocate::share(program);
        compact::name_decisions(program);
        // Debug builds keep accumulators on the stack between any two `wgmma`; ptxas waits for each of them then.
        if !names.is_debug {
            program.touches = compact::touches(program);
        }
    }
    programs
}

impl<'a> Builder<'_, 'a> {
    fn function(mut self, function: &ast::Function<'a>, refused: &mut Vec<LoadError>) -> Program {
        let before = refused.len();
        self.program.hides_proxies = function.name.contains("__cp_async_bulk_shared_global");
        refused.extend(self.formals(function).and_then(|()| self.addressed_formals(function)).err());
        for (line, statement) in function.body.iter().flatten() {
            self.line = *line;
            refused.extend(self.statement(statement).err());
        }
        if function.body.is_some() && refused.len() == before {
            // Control may run off the end, which returns (PTX ISA §9.7.12.6).
            self.guard = None;
            let resolved = self.return_registers().and_then(|()| {
                self.emit(Op::Return);
                self.resolve_labels()
            });
            match resolved {
                Err(error) => refused.push(error),
                Ok(()) => {
                    cfg::set_reconvergence(&mut self.program);
                    compact::renumber(&mut self.program);
                    self.program.unset = unset::bytes(&self.program, self.is_entry);
                }
            }
        }
        self.program
    }

    fn formals(&mut self, function: &ast::Function<'a>) -> Result<(), LoadError> {
        let mut entry_bytes = 0u32;
        for (variable, is_return) in
            function.returns.iter().map(|v| (v, true)).chain(function.params.iter().map(|v| (v, false)))
        {
            let bytes = variable.bytes as u32;
            let (offset, symbol) = if function.is_entry {
                let offset = entry_bytes.next_multiple_of(variable.align);
                entry_bytes = offset.saturating_add(bytes);
                self.bounded("parameter bytes of an entry", entry_bytes, MAX_ENTRY_BYTES)?;
                (offset, Symbol::EntryParam(offset))
            } else {
                let offset = self.frame_space(variable)?;
                (offset, Symbol::FrameParam(offset, bytes))
            };
            let list = if is_return { &mut self.program.returns } else { &mut self.program.params };
            list.push(Formal { offset, bytes });
            match variable.register {
                Some(width) => self.register_formal(variable, width, offset, is_return)?,
                None => self.declare(variable.name, symbol)?,
            }
        }
        Ok(())
    }

    fn frame_space(&mut self, variable: &ast::Variable<'_>) -> Result<u32, LoadError> {
        let offset = self.program.frame_bytes.next_multiple_of(variable.align.max(8));
        self.program.frame_bytes = offset.saturating_add(variable.bytes as u32);
        self.bounded("parameter bytes of a function", self.program.frame_bytes, MAX_FRAME_BYTES)?;
        Ok(offset)
    }

    fn bounded(&self, what: &'static str, value: u32, limit: u32) -> Result<(), LoadError> {
        let (value, limit) = (value.into(), limit.into());
        if value > limit { Err(LoadError::Range { line: self.line, what, value, limit }) } else { Ok(()) }
    }

    fn statement(&mut self, statement: &Statement<'a>) -> Result<(), LoadError> {
        match statement {
            Statement::Register { name, count, width, lanes } => self.register(name, *count, *width, *lanes),
            Statement::Variable(variable) => self.variable(variable),
            Statement::Label(name) => {
                let pc = self.pc();
                self.places.label(name);
                if self.scopes.label(name, pc) { Ok(()) } else { Err(self.duplicate(name)) }
            }
            Statement::Open => {
                self.scopes.open();
                Ok(())
            }
            Statement::Close => {
                self.scopes.close();
                Ok(())
            }
            Statement::Targets { name, labels } => self.declare(name, Symbol::Targets(labels.clone())),
            Statement::Prototype => Ok(()),
            // A compiler says line 0 of what it moved: then the place before it is nearer than none.
            Statement::Location { here: (_, 0, _), .. } => Ok(()),
            Statement::Location { here, inlined_at } => {
                let pc = self.pc();
                let (file, line, calls) = self.places.locate(*here, *inlined_at);
                self.program.locations.push(pc, (file, line), calls);
                Ok(())
            }
            Statement::Instruction(instruction) => self.instruction(instruction),
        }
    }

    fn variable(&mut self, variable: &ast::Variable<'a>) -> Result<(), LoadError> {
        let symbol = match variable.space {
            Space::Local => {
                let offset = self.program.local_bytes.next_multiple_of(variable.align);
                self.program.local_bytes = offset.saturating_add(variable.bytes as u32);
                self.bounded("local bytes of a thread", self.program.local_bytes, MAX_LOCAL_BYTES)?;
                Symbol::Local(offset)
            }
            Space::Param => Symbol::FrameParam(self.frame_space(variable)?, variable.bytes as u32),
            _ => {
                self.variables.push(Variable {
                    name: variable.name.to_owned(),
                    space: variable.space,
                    align: variable.align,
                    bytes: variable.bytes,
                    is_extern: false,
                    init: Vec::new(),
                    relocations: Vec::new(),
                });
                Symbol::Variable(self.variables.len() as u32 - 1)
            }
        };
        self.declare(variable.name, symbol)
    }

    fn declare(&mut self, name: &'a str, symbol: Symbol<'a>) -> Result<(), LoadError> {
        if self.scopes.declare(name, symbol) { Ok(()) } else { Err(self.duplicate(name)) }
    }

    fn duplicate(&self, name: &str) -> LoadError {
        LoadError::Duplicate { line: self.line, name: name.to_owned() }
    }

    fn instruction(&mut self, instruction: &ast::Instruction<'a>) -> Result<(), LoadError> {
        self.mnemonic = instruction.mnemonic;
        self.continues = false;
        self.guard = match instruction.guard {
            None => None,
            Some((name, negated)) => Some(Guard { slot: self.predicate(name, 0)?, negated }),
        };
        self.scopes.forget_elements();
        let with_elements: Vec<ast::Operand<'a>>;
        let mut operands = &instruction.operands;
        if self.has_vectors && operands.iter().any(|operand| self.vector(operand).is_some()) {
            with_elements = operands.iter().map(|operand| self.spelt_out(operand)).collect();
            operands = &with_elements;
        }
        self.places.instruction(self.mnemonic, self.guard.is_some(), operands);
        let is_vector = operands.iter().any(|o| matches!(o, ast::Operand::Vector(_)));
        if let Some(captures) = lookup::captures_of(Family::MovVector, self.mnemonic)
            && (is_vector || captures[0] == "b128")
        {
            return self.move_vector(captures[0], operands);
        }
        let form = self.lookup.find(self.mnemonic);
        if let Some(form) = &form {
            self.check_legal(form)?;
        }
        match form {
            Some(Form::Lane(lane)) => self.lane(&lane, operands),
            Some(Form::Family(family, captures, _)) => self.family(family, &captures, operands),
            None => Err(self.unsupported()),
        }
    }

    fn family(
        &mut self,
        family: Family,
        captures: &[&str],
        operands: &[ast::Operand<'a>],
    ) -> Result<(), LoadError> {
        match family {
            Family::Load | Family::LoadUniform | Family::Store => self.access(family, captures, operands),
            Family::MapRank | Family::RankOf => self.map_rank(family == Family::RankOf, captures, operands),
            Family::CreatePolicy => self.create_policy(operands),
            Family::Alloca => self.alloca(operands),
            Family::PendingCount => self.pending_count(operands),
            Family::StackSave | Family::StackRestore => self.stack(family == Family::StackSave, operands),
            Family::Set => self.set(captures, operands),
            Family::SetPair => self.setp_pair(captures, operands),
            Family::LopPred => self.lop_pred(captures, operands),
            Family::Atomic | Family::Reduce => self.atomic(family == Family::Atomic, captures, operands),
            Family::CopyAsync => self.copy_async(captures, operands),
            Family::WaitGroup => self.wait_group(operands),
            Family::StoreBulk => self.store_bulk(captures, operands),
            Family::LoadMatrix | Family::StoreMatrix => {
                self.matrix(family == Family::StoreMatrix, captures, operands)
            }
            Family::MoveMatrix => self.move_matrix(operands),
            Family::Mma => self.mma(captures, operands),
            Family::MmaVolta => self.mma_volta(captures, operands),
            Family::WmmaLoad | Family::WmmaStore => {
                self.wmma_access(family == Family::WmmaStore, captures, operands)
            }
            Family::WmmaMma => self.wmma_mma(captures, operands),
            Family::Shuffle => self.shuffle(captures, operands),
            Family::Vote | Family::Ballot | Family::Match | Family::Redux | Family::Elect => {
                self.collective(family, captures, operands)
            }
            Family::Barrier => self.barrier(captures, operands),
            Family::BarrierReduce => self.barrier_reduce(captures, operands),
            Family::Branch => self.branch(operands),
            Family::BranchTable => self.branch_table(operands),
            Family::Call => self.call(operands),
            Family::Return => {
                self.count(operands, 0)?;
                self.return_registers()?;
                self.emit(Op::Return);
                Ok(())
            }
            Family::Cvt => self.cvt(captures, operands),
            Family::CvtPack => self.cvt_pack(captures, operands),
            Family::Video => self.video(operands),
            Family::VideoMad => self.video_mad(operands),
            Family::SetpBool => self.setp_bool(captures, operands),
            Family::Carry => self.carry(captures, operands),
            Family::MovVector => self.move_vector(captures[0], operands),
            Family::MovVectors => self.move_vectors(captures, operands),
            Family::WarpBarrier | Family::ActiveMask => self.warp_state(family, operands),
            Family::Nothing => {
                self.emit(Op::Nothing);
                Ok(())
            }
            Family::MbarrierInit
            | Family::MbarrierInvalidate
            | Family::MbarrierArrive
            | Family::MbarrierArriveExpect
            | Family::MbarrierExpect
            | Family::MbarrierComplete
            | Family::MbarrierWait => self.mbarrier(family, captures, operands),
            Family::BulkLoad
            | Family::BulkStore
            | Family::TensorLoad
            | Family::TensorStore
            | Family::BulkPeer
            | Family::BulkReduce
            | Family::PeerReduce
            | Family::TensorReduce => self.bulk(family, captures, operands),
            Family::TryCancel => self.try_cancel(captures, operands),
            Family::IsCanceled => self.is_canceled(operands),
            Family::FirstCta => self.first_cta(captures, operands),
            Family::StoreAsync | Family::ReduceAsync => self.store_async(captures, operands),
            Family::TensorMapReplace => self.tensor_map_replace(captures, operands),
            Family::TensorMapCopy => self.tensor_map_copy(captures, operands),
            Family::ProxyTensorMap => {
                let fence = Op::Fence(Scope::of(captures[1]).unwrap_or(Scope::System));
                let ops = match captures[0] {
                    "acquire" => [fence, Op::ProxyFence(&[Proxy::TensorMap])],
                    _ => [Op::ProxyFence(&[Proxy::TensorMapReleased]), fence],
                };
                ops.into_iter().for_each(|op| self.emit(op));
                Ok(())
            }
            Family::WaitBulk => self.wait_bulk(captures, operands),
            Family::CopyArrive => self.copy_arrive(captures, operands),
            Family::SetRegisters => self.set_registers(captures, operands),
            Family::Wgmma => self.wgmma(captures, operands),
            Family::WgmmaWait => self.wgmma_wait(operands),
            Family::CommitGroup
            | Family::CommitBulk
            | Family::WgmmaFence
            | Family::WgmmaCommit
            | Family::MbarrierFence
            | Family::ProxyFence
            | Family::WaitAll
            | Family::ClusterArrive
            | Family::ClusterWait
            | Family::Fence
            | Family::Exit
            | Family::Trap => {
                self.count(operands, 0)?;
                self.emit(match family {
                    Family::CommitGroup => Op::CommitGroup,
                    Family::WaitAll => Op::WaitGroup(None),
                    Family::CommitBulk => Op::CommitBulk,
                    Family::WgmmaFence => Op::WgmmaFence,
                    Family::WgmmaCommit => Op::WgmmaCommit,
                    Family::Fence => {
                        Op::Fence(Scope::of(captures[captures.len() - 1]).unwrap_or(Scope::System))
                    }
                    Family::ClusterArrive => Op::ClusterArrive { releases: captures[0] != "relaxed" },
                    Family::ClusterWait => Op::ClusterWait { acquires: true },
                    Family::MbarrierFence => Op::MbarrierFence,
                    Family::ProxyFence => Op::ProxyFence(match captures[0] {
                        "" => &[Proxy::AsyncShared, Proxy::AsyncGlobal],
                        "global" => &[Proxy::AsyncGlobal],
                        _ => &[Proxy::AsyncShared],
                    }),
                    Family::Exit => Op::Exit,
                    _ => Op::Trap,
                });
                Ok(())
            }
        }
    }

    fn pc(&self) -> Pc {
        self.program.insts.len() as Pc
    }

    fn emit(&mut self, op: Op) {
        let (guard, line, continues) = (self.guard, self.line, self.continues);
        let inst = Inst { op, guard, line, continues, decides: [NO_PREDICATE; 2], chooses: false };
        self.program.insts.push(inst);
        self.continues = true;
    }

    /// The register that always holds `value`.
    fn constant(&mut self, bank: Bank, value: Constant) -> Result<Slot, LoadError> {
        if let Some(&slot) = self.constants.get(&(bank, value)) {
            return Ok(slot);
        }
        let slot = self.allocate(bank, 1)?;
        self.constants.insert((bank, value), slot);
        self.program.constants.push(ConstantSlot { bank, slot, value });
        Ok(slot)
    }

    fn unsupported(&self) -> LoadError {
        LoadError::Unsupported { line: self.line, instruction: self.mnemonic.chars().take(120).collect() }
    }
}
