//! Declared registers, and vectors of them.

use super::Builder;
use super::operand::data_shape;
use super::scope::Symbol;
use crate::error::LoadError;
use crate::op::{Op, Reg};
use crate::parse::ast::{Operand, RegWidth};
use crate::regs::{Bank, Slot};
use crate::table::integer::IntOp;

/// Special registers that are vectors.
const SPECIAL: [[&str; 3]; 8] = [
    ["%tid.x", "%tid.y", "%tid.z"],
    ["%ntid.x", "%ntid.y", "%ntid.z"],
    ["%ctaid.x", "%ctaid.y", "%ctaid.z"],
    ["%nctaid.x", "%nctaid.y", "%nctaid.z"],
    ["%cluster_ctaid.x", "%cluster_ctaid.y", "%cluster_ctaid.z"],
    ["%cluster_nctaid.x", "%cluster_nctaid.y", "%cluster_nctaid.z"],
    ["%nclusterid.x", "%nclusterid.y", "%nclusterid.z"],
    ["%clusterid.x", "%clusterid.y", "%clusterid.z"],
];

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

    /// `mov.v4` of vectors, by their elements: `%tid` is one too, whose fourth element is 0 (PTX ISA §10.1).
    pub(super) fn move_vectors(
        &mut self,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let count = if captures[0] == "v2" { 2 } else { 4 };
        let bits: u8 = captures[1][1..].parse().unwrap_or(32);
        let shape = data_shape(bits);
        let special = |name: &str| SPECIAL.iter().find(|names| names[0].strip_suffix(".x") == Some(name));
        let from = match &operands[1] {
            Operand::Name(name) if let Some(names) = special(name) => {
                let mut parts: Vec<Operand<'a>> = names.iter().map(|name| Operand::Name(name)).collect();
                parts.push(Operand::Int(0));
                parts
            }
            Operand::Vector(parts) => parts.clone(),
            _ => Vec::new(),
        };
        let Operand::Vector(to) = &operands[0] else { return Err(self.operand_error(1, "a vector")) };
        if to.len() != count || from.len() != count {
            return Err(
                self.operand_error(if to.len() == count { 2 } else { 1 }, "a vector of that many elements")
            );
        }
        // All are read before the first is written.
        let op = if bits == 64 { IntOp::MovDouble } else { IntOp::MovWord };
        let mut moves = Vec::new();
        for (to, from) in to.iter().zip(&from) {
            let read = self.any_source(from, 2, bits)?.slot;
            let between = self.allocate(shape.bank, 1)?;
            self.emit(Op::Int(op, [between, read, 0, 0, 0]));
            moves.push((self.any_result(to, 1, bits)?.slot, between));
        }
        moves.into_iter().for_each(|(to, from)| self.emit(Op::Int(op, [to, from, 0, 0, 0])));
        Ok(())
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
