//! Declared registers, and vectors of them.

use super::Builder;
use super::scope::Symbol;
use crate::error::LoadError;
use crate::op::Reg;
use crate::parse::ast::{Operand, RegWidth};
use crate::regs::{Bank, Slot};

impl<'a> Builder<'_, 'a> {
    pub(super) fn register(
        &mut self,
        name: &'a str,
        count: Option<u32>,
        width: RegWidth,
        lanes: u32,
    ) -> Result<(), LoadError> {
        let (bank, bits) = match width {
            RegWidth::Pred => (Bank::Pred, 1),
            RegWidth::Bits(bits @ (64 | 128)) => (Bank::Double, bits),
            RegWidth::Bits(bits) => (Bank::Word, bits),
        };
        // A 128-bit register is two of 64 bits.
        let each = if bits == 128 { 2 } else { 1 };
        self.has_vectors |= lanes > 1;
        let slot = self.allocate(bank, (each * lanes).saturating_mul(count.unwrap_or(1)))?;
        let first = Reg { bank, slot, bits };
        match count {
            None => self.declare(name, Symbol::of_registers(first, lanes)),
            Some(count) => {
                self.scopes.declare_range(name, count, first, lanes);
                Ok(())
            }
        }
    }

    pub(super) fn vector(&self, operand: &Operand<'a>) -> Option<(Reg, u32)> {
        let Operand::Name(name) = operand else { return None };
        match self.scopes.find(name) {
            Some(Symbol::Vector(first, lanes)) => Some((first, lanes)),
            _ => None,
        }
    }

    /// `{v.x, v.y, …}` for `v`.
    pub(super) fn spelt_out(&mut self, operand: &Operand<'a>) -> Operand<'a> {
        match self.vector(operand) {
            Some((first, lanes)) => {
                let names = self.scopes.elements(first, lanes);
                Operand::Vector(names.into_iter().map(Operand::Name).collect())
            }
            None => operand.clone(),
        }
    }

    /// Fresh registers; the sum over all declarations is bounded, as each of them is.
    pub(super) fn allocate(&mut self, bank: Bank, count: u32) -> Result<Slot, LoadError> {
        let total = &mut self.program.registers[bank as usize];
        let first = *total;
        *total += count as usize;
        const LIMIT: u64 = 1 << 21;
        if *total as u64 > LIMIT {
            let value = *total as u64;
            return Err(LoadError::Range { line: self.line, what: "register count", value, limit: LIMIT });
        }
        Ok(first as Slot)
    }
}
