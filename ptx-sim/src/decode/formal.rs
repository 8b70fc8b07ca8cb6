//! Parameters of functions whose address is taken: they are copied to the stack, and the address is the copy's (PTX ISA §9.7.9.3).
//! Parameters that are registers (§7.1) are copied from and to the frame.

use crate::error::LoadError;
use crate::op::{Access, Addr, Constant, MemoryOrder, Op, Reg, Space};
use crate::parse::ast::{self, Operand, RegWidth, Statement};
use crate::regs::Bank;
use crate::table::compare::CompareOp;
use crate::table::integer::IntOp;

use super::scope::{self, Symbol};
use super::{Builder, MAX_LOCAL_BYTES};

impl<'a> Builder<'_, 'a> {
    /// Copies those parameters where the function starts.
    pub(super) fn addressed_formals(&mut self, function: &ast::Function<'a>) -> Result<(), LoadError> {
        if function.is_entry || function.params.is_empty() {
            return Ok(());
        }
        for (_, statement) in function.body.iter().flatten() {
            let Statement::Instruction(instruction) = statement else { continue };
            let [_, Operand::Name(name) | Operand::NameOffset(name, _)] = &*instruction.operands else {
                continue;
            };
            let Some(param) = function.params.iter().find(|p| p.name == *name) else { continue };
            if instruction.mnemonic.starts_with("mov") && !self.addressed.contains_key(name) {
                self.copy_formal(param)?;
            }
        }
        Ok(())
    }

    /// A parameter or a result that is a register. What a function is given is loaded where it starts.
    pub(super) fn register_formal(
        &mut self,
        variable: &ast::Variable<'a>,
        width: RegWidth,
        offset: u32,
        is_return: bool,
    ) -> Result<(), LoadError> {
        self.register(variable.name, None, width, variable.lanes)?;
        for (at, reg) in (0u32..).zip(self.registers_named(variable.name)) {
            let offset = offset + at * variable.element;
            if is_return {
                self.register_returns.push((reg, offset));
            } else {
                self.load_from_frame(reg, offset)?;
            }
        }
        Ok(())
    }

    /// The register of a name, or those of a vector.
    pub(super) fn registers_named(&self, name: &str) -> Vec<Reg> {
        match self.scopes.find(name) {
            Some(Symbol::Reg(reg)) => vec![reg],
            Some(Symbol::Vector(first, lanes)) => (0..lanes).map(|at| scope::element(first, at)).collect(),
            _ => Vec::new(),
        }
    }

    /// Hands the results on that are registers.
    pub(super) fn return_registers(&mut self) -> Result<(), LoadError> {
        for (reg, offset) in self.register_returns.clone() {
            self.store_to_frame(reg, offset)?;
        }
        Ok(())
    }

    /// A register from the frame's parameter area: a predicate is a byte there, 128 bits are two halves.
    pub(super) fn load_from_frame(&mut self, reg: Reg, offset: u32) -> Result<(), LoadError> {
        if reg.bank == Bank::Pred {
            let (byte, zero) = (self.byte()?, self.constant(Bank::Word, Constant::Bits(0))?);
            self.load_from_frame(byte, offset)?;
            self.emit(Op::Compare(CompareOp::NeWord, [reg.slot, byte.slot, zero, 0, 0]));
            return Ok(());
        }
        for (half, offset) in halves(reg, offset) {
            let access = self.frame_access(half, offset)?;
            self.emit(Op::Load(access));
        }
        Ok(())
    }

    /// A register to the frame's parameter area.
    pub(super) fn store_to_frame(&mut self, reg: Reg, offset: u32) -> Result<(), LoadError> {
        if reg.bank == Bank::Pred {
            let byte = self.byte()?;
            let [one, zero] = [1, 0].map(|bits| self.constant(Bank::Word, Constant::Bits(bits)));
            self.emit(Op::Int(IntOp::SelpWord, [byte.slot, one?, zero?, reg.slot, 0]));
            return self.store_to_frame(byte, offset);
        }
        for (half, offset) in halves(reg, offset) {
            let access = self.frame_access(half, offset)?;
            self.emit(Op::Store(access));
        }
        Ok(())
    }

    fn byte(&mut self) -> Result<Reg, LoadError> {
        Ok(Reg { bank: Bank::Word, slot: self.allocate(Bank::Word, 1)?, bits: 8 })
    }

    /// An access of a register's bytes in the frame's parameter area.
    fn frame_access(&mut self, reg: Reg, offset: u32) -> Result<Box<Access>, LoadError> {
        let slot = self.constant(Bank::Double, Constant::Bits(offset.into()))?;
        Ok(Box::new(Access {
            space: Space::Frame,
            addr: Addr { bank: Bank::Double, slot, offset: 0 },
            element_bytes: reg.bits / 8,
            signed: false,
            order: MemoryOrder::WEAK,
            regs: vec![reg],
        }))
    }

    fn copy_formal(&mut self, param: &ast::Variable<'a>) -> Result<(), LoadError> {
        let Some(Symbol::FrameParam(from, bytes)) = self.scopes.find(param.name) else { return Ok(()) };
        let to = self.program.local_bytes.next_multiple_of(param.align.max(8));
        self.program.local_bytes = to.saturating_add(bytes);
        self.bounded("local bytes of a thread", self.program.local_bytes, MAX_LOCAL_BYTES)?;
        self.addressed.insert(param.name, to);
        let mut at = 0;
        while at < bytes {
            let width = [8, 4, 2, 1].into_iter().find(|width| at + width <= bytes).unwrap_or(1);
            let bank = if width == 8 { Bank::Double } else { Bank::Word };
            let reg = Reg { bank, slot: self.allocate(bank, 1)?, bits: 8 * width as u8 };
            let places = [
                (Space::Frame, self.constant(Bank::Double, Constant::Bits(from.into()))?),
                (Space::Local, self.constant(Bank::Double, Constant::Local(to, 0))?),
            ];
            let [load, store] = places.map(|(space, slot)| {
                let addr = Addr { bank: Bank::Double, slot, offset: at.into() };
                let order = MemoryOrder::WEAK;
                Box::new(Access {
                    space,
                    addr,
                    element_bytes: width as u8,
                    signed: false,
                    order,
                    regs: vec![reg],
                })
            });
            self.emit(Op::Load(load));
            self.emit(Op::Store(store));
            at += width;
        }
        Ok(())
    }
}

/// A register of 128 bits as two of 64, and any other as it is.
fn halves(reg: Reg, offset: u32) -> impl Iterator<Item = (Reg, u32)> {
    let (count, bits) = if reg.bits == 128 { (2, 64) } else { (1, reg.bits) };
    (0..count).map(move |at| (Reg { slot: reg.slot + at, bits, ..reg }, offset + 8 * at))
}
