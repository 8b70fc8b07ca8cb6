//! Branches, calls and the resolution of labels.

use super::scope::Symbol;
use super::{Builder, Fixup};
use crate::error::LoadError;
use crate::op::{Call, Callee, EXIT, Op, Pc, Service, ServiceName};
use crate::parse::ast::Operand;

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
        let mut returns = Vec::new();
        if let Some((Operand::List(list), tail)) = rest.split_first() {
            returns = self.call_parameters(list, 1)?;
            rest = tail;
        }
        let Some((Operand::Name(name), tail)) = rest.split_first() else {
            return Err(self.operand_error(1, "a function"));
        };
        let (args, tail) = match tail.split_first() {
            Some((Operand::List(list), tail)) => (self.call_parameters(list, 3)?, tail),
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

    fn call_parameters(
        &mut self,
        list: &[Operand<'a>],
        position: usize,
    ) -> Result<Vec<(u32, u32)>, LoadError> {
        let place = |operand: &Operand<'a>| match operand {
            Operand::Name(name) => match self.scopes.find(name) {
                Some(Symbol::FrameParam(at, bytes)) => Some((at, bytes)),
                _ => None,
            },
            _ => None,
        };
        let places: Option<Vec<(u32, u32)>> = list.iter().map(place).collect();
        places.ok_or_else(|| self.operand_error(position, "a list of .param variables"))
    }
}
