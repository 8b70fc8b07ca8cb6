//! Branches, calls and the resolution of labels.

use super::operand::data_shape;
use super::scope::Symbol;
use super::{Builder, Fixup, MAX_FRAME_BYTES};
use crate::error::LoadError;
use crate::op::{Call, Callee, EXIT, Op, Pc, Reg, Service, ServiceName};
use crate::parse::ast::Operand;
use crate::regs::Bank;
use crate::table::Shape;

/// Registers that are parameters of a call, and their places in the frame.
type Registers = Vec<(Reg, u32)>;

impl<'a> Builder<'_, 'a> {
    pub(super) fn branch(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 1)?;
        let Operand::Name(label) = operands[0] else { return Err(self.operand_error(1, "a label")) };
        self.fixups.push(Fixup::Branch { pc: self.pc(), label, scope: self.scopes.current() });
        self.emit(Op::Branch { target: EXIT, reconverge: EXIT });
        Ok(())
    }

    pub(super) fn branch_table(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let index = self.word(&operands[0], 1)?;
        let Operand::Name(list) = operands[1] else { return Err(self.operand_error(2, "a list of labels")) };
        let Some(Symbol::Targets(labels)) = self.scopes.find(list) else {
            return Err(self.operand_error(2, "a list of labels"));
        };
        self.fixups.push(Fixup::Table { pc: self.pc(), labels, scope: self.scopes.current() });
        self.emit(Op::BranchTable { index, targets: Box::default(), reconverge: EXIT });
        Ok(())
    }

    pub(super) fn resolve_labels(&mut self) -> Result<(), LoadError> {
        for fixup in std::mem::take(&mut self.fixups) {
            match fixup {
                Fixup::Branch { pc, label, scope } => {
                    let to = self.label(pc, label, scope)?;
                    if let Op::Branch { target, .. } = &mut self.program.insts[pc as usize].op {
                        *target = to;
                    }
                }
                Fixup::Table { pc, labels, scope } => {
                    let mut list = Vec::new();
                    for label in labels {
                        list.push(self.label(pc, label, scope)?);
                    }
                    if let Op::BranchTable { targets, .. } = &mut self.program.insts[pc as usize].op {
                        *targets = list.into();
                    }
                }
            }
        }
        Ok(())
    }

    fn label(&self, pc: Pc, label: &str, scope: usize) -> Result<Pc, LoadError> {
        let line = self.program.insts[pc as usize].line;
        self.scopes
            .find_label(label, scope)
            .ok_or_else(|| LoadError::Undeclared { line, name: label.to_owned() })
    }

    /// `call (returns), function, (arguments){, prototype}`; returns and arguments may be missing.
    pub(super) fn call(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let mut rest = operands;
        let (mut returns, mut results) = (Vec::new(), Vec::new());
        if let Some((Operand::List(list), tail)) = rest.split_first() {
            (returns, results) = self.call_parameters(list, &[], 1)?;
            rest = tail;
        }
        let Some((Operand::Name(name), tail)) = rest.split_first() else {
            return Err(self.operand_error(1, "a function"));
        };
        // One constant in parentheses reads as an expression.
        let list = tail.split_first().and_then(|(first, tail)| match first {
            Operand::List(list) => Some((list.as_slice(), tail)),
            Operand::Int(_) | Operand::Float { .. } => Some((std::slice::from_ref(first), tail)),
            _ => None,
        });
        let (args, tail) = match list {
            Some((list, tail)) => {
                let index = self.names.functions.get(name).copied();
                let sizes = index.map_or(&[][..], |index| &self.names.param_bytes[index as usize]);
                let (args, given) = self.call_parameters(list, sizes, 3)?;
                for (reg, offset) in given {
                    self.store_to_frame(reg, offset)?;
                }
                (args, tail)
            }
            _ => (Vec::new(), tail),
        };
        let service = match *name {
            "__assertfail" => Some(ServiceName::AssertFail),
            // C++'s `new` and `delete`, which clang leaves to whoever links.
            "malloc" | "_Znwm" | "_Znam" => Some(ServiceName::Malloc),
            "free" | "_ZdlPv" | "_ZdaPv" | "_ZdlPvm" | "_ZdaPvm" => Some(ServiceName::Free),
            "vprintf" => Some(ServiceName::Printf),
            _ => None,
        };
        // The driver supplies these, unless the module does.
        let supplied = self.names.functions.get(name).is_none_or(|f| !self.names.has_body[*f as usize]);
        if let Some(name) = service.filter(|_| supplied) {
            self.emit(Op::Service(Box::new(Service { name, args, returns: returns.first().copied() })));
            return Ok(());
        }
        let callee = match self.scopes.find(name) {
            Some(Symbol::Reg(reg)) if reg.bits == 64 => {
                self.program.has_indirect_call = true;
                Callee::Register(reg.slot)
            }
            Some(_) => return Err(self.operand_error(2, "a function")),
            None => self.function_named(name)?,
        };
        // A call through a register names its prototype; nothing else may follow.
        self.count_between(tail, 0, usize::from(matches!(callee, Callee::Register(_))))?;
        self.emit(Op::Call(Box::new(Call { callee, args, returns })));
        // The call's own guard comes last, as it decides whether the others are given.
        let guard = self.guard.map(|guard| guard.slot);
        results.sort_by_key(|(reg, _)| reg.bank == Bank::Pred && Some(reg.slot) == guard);
        for (reg, offset) in results {
            self.load_from_frame(reg, offset)?;
        }
        Ok(())
    }

    fn function_named(&mut self, name: &str) -> Result<Callee, LoadError> {
        let Some(&index) = self.names.functions.get(name) else {
            return Err(LoadError::Undeclared { line: self.line, name: name.to_owned() });
        };
        if !self.names.has_body[index as usize] {
            return Err(LoadError::NoBody { line: self.line, name: name.to_owned() });
        }
        self.program.callees.push(index);
        Ok(Callee::Function(index))
    }

    /// The places of parameters in the frame, and the registers among them, which are copied from and to such places. Constants
    /// have the sizes that the function says.
    fn call_parameters(
        &mut self,
        list: &[Operand<'a>],
        sizes: &[u32],
        position: usize,
    ) -> Result<(Vec<(u32, u32)>, Registers), LoadError> {
        let (mut places, mut registers) = (Vec::new(), Vec::new());
        for (at, operand) in list.iter().enumerate() {
            if let Operand::Name(name) = operand
                && let Some(Symbol::FrameParam(offset, bytes)) = self.scopes.find(name)
            {
                places.push((offset, bytes));
                continue;
            }
            let given = match operand {
                Operand::Name(name) => self.registers_named(name),
                _ => Vec::new(),
            };
            let given = match (operand, sizes.get(at)) {
                _ if !given.is_empty() => given,
                (Operand::Int(_) | Operand::Float { .. }, Some(bytes @ (1 | 2 | 4 | 8))) => {
                    let bits = 8 * *bytes as u8;
                    let bank = if bits == 64 { Bank::Double } else { Bank::Word };
                    let float = matches!(operand, Operand::Float { .. });
                    let shape = Shape { float, ..data_shape(bits) };
                    let value = self.constant_value(operand, position, shape)?;
                    vec![Reg { bank, slot: self.constant(bank, value)?, bits }]
                }
                _ => return Err(self.operand_error(position, "a list of .param variables or registers")),
            };
            let each = u32::from(given[0].bits).div_ceil(8);
            let offset = self.program.frame_bytes.next_multiple_of(16);
            let bytes = each * given.len() as u32;
            self.program.frame_bytes = offset + bytes;
            self.bounded("parameter bytes of a function", self.program.frame_bytes, MAX_FRAME_BYTES)?;
            places.push((offset, bytes));
            registers.extend((0u32..).zip(given).map(|(at, reg)| (reg, offset + each * at)));
        }
        Ok((places, registers))
    }
}
