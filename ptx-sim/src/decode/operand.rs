//! Operands to registers.

use super::Builder;
use super::scope::Symbol;
use crate::error::{LAUNCH, LoadError};
use crate::op::{Addr, Constant, Op, Reg, Special};
use crate::parse::ast::Operand;
use crate::regs::{Bank, Slot};
use crate::table::Shape;
use crate::table::integer::IntOp;

impl<'a> Builder<'_, 'a> {
    pub(super) fn operand_error(&self, position: usize, expected: &'static str) -> LoadError {
        LoadError::Operand { line: self.line, instruction: self.mnemonic.to_owned(), position, expected }
    }

    /// Refuses any other number of operands.
    pub(super) fn count(&self, operands: &[Operand<'a>], expected: usize) -> Result<(), LoadError> {
        if operands.len() == expected {
            return Ok(());
        }
        let instruction = self.mnemonic.to_owned();
        Err(LoadError::OperandCount { line: self.line, instruction, expected, found: operands.len() })
    }

    /// Refuses fewer than `least` and more than `most` operands.
    pub(super) fn count_between(
        &self,
        operands: &[Operand<'a>],
        least: usize,
        most: usize,
    ) -> Result<(), LoadError> {
        if operands.len() < least {
            self.count(operands, least)
        } else {
            self.count(&operands[most.min(operands.len())..], 0)
        }
    }

    fn undeclared(&self, name: &str) -> LoadError {
        LoadError::Undeclared { line: self.line, name: name.to_owned() }
    }

    /// A declared register by its name.
    pub(super) fn register_named(&self, name: &str, position: usize) -> Result<Reg, LoadError> {
        match self.scopes.find(name) {
            Some(Symbol::Reg(reg)) => Ok(reg),
            Some(_) => Err(self.operand_error(position, "a register")),
            None => Err(self.undeclared(name)),
        }
    }

    /// The slot of a predicate by its name.
    pub(super) fn predicate(&self, name: &str, position: usize) -> Result<Slot, LoadError> {
        let reg = self.register_named(name, position)?;
        if reg.bank == Bank::Pred { Ok(reg.slot) } else { Err(self.operand_error(position, "a predicate")) }
    }

    /// A predicate operand, and whether it is negated.
    pub(super) fn predicate_operand(
        &mut self,
        operand: &Operand<'a>,
        position: usize,
    ) -> Result<(Slot, bool), LoadError> {
        match operand {
            Operand::Name(name) if let Some(special) = special(name) => {
                Ok((self.constant(Bank::Pred, Constant::Special(special))?, false))
            }
            Operand::Name(name) => Ok((self.predicate(name, position)?, false)),
            Operand::Not(name) => Ok((self.predicate(name, position)?, true)),
            // False is 0; compilers write true as 1 or as −1.
            Operand::Int(value @ -1..=1) => {
                Ok((self.constant(Bank::Pred, Constant::Bits(*value as u64 & 1))?, false))
            }
            _ => Err(self.operand_error(position, "a predicate")),
        }
    }

    /// A register that an instruction writes; `_` gives one that nobody reads.
    pub(super) fn result(
        &mut self,
        operand: &Operand<'a>,
        position: usize,
        shape: Shape,
    ) -> Result<Slot, LoadError> {
        let Operand::Name(name) = operand else {
            return Err(self.operand_error(position, "a register"));
        };
        if *name == "_" {
            return self.allocate(shape.bank, 1);
        }
        let reg = self.register_named(name, position)?;
        self.check_shape(reg, shape, position)?;
        Ok(reg.slot)
    }

    fn check_shape(&self, reg: Reg, shape: Shape, position: usize) -> Result<(), LoadError> {
        if reg.bank == shape.bank && reg.bits == shape.bits {
            return Ok(());
        }
        Err(self.operand_error(
            position,
            match (shape.bank, shape.bits) {
                (Bank::Pred, _) => "a predicate",
                (_, 8) => "an 8-bit register",
                (_, 16) => "a 16-bit register",
                (_, 32) => "a 32-bit register",
                _ => "a 64-bit register",
            },
        ))
    }

    /// A register or constant that an instruction reads.
    pub(super) fn source(
        &mut self,
        operand: &Operand<'a>,
        position: usize,
        shape: Shape,
    ) -> Result<Slot, LoadError> {
        if shape.bank == Bank::Pred {
            let (slot, negated) = self.predicate_operand(operand, position)?;
            return if negated { self.negate(slot) } else { Ok(slot) };
        }
        if let Operand::Name(name) = operand
            && let Some(Symbol::Reg(reg)) = self.scopes.find(name)
        {
            self.check_shape(reg, shape, position)?;
            return Ok(reg.slot);
        }
        let value = self.constant_value(operand, position, shape)?;
        self.constant(shape.bank, value)
    }

    /// A predicate that holds the opposite of another from here on.
    fn negate(&mut self, slot: Slot) -> Result<Slot, LoadError> {
        let negated = self.allocate(Bank::Pred, 1)?;
        let continues = self.continues;
        self.emit(Op::Int(IntOp::NotPred, [negated, slot, 0, 0, 0]));
        // The negation is counted as the instruction, what follows as its rest.
        self.continues |= continues;
        Ok(negated)
    }

    /// The constant that an operand names, in a register of `shape`.
    pub(super) fn constant_value(
        &mut self,
        operand: &Operand<'a>,
        position: usize,
        shape: Shape,
    ) -> Result<Constant, LoadError> {
        match operand {
            Operand::Int(_) if shape.float => Err(self.operand_error(position, "a floating-point constant")),
            Operand::Int(value) => Ok(Constant::Bits(cut(*value as u64, shape.bits))),
            Operand::Float { value, single } => match (shape.bits, single) {
                (32, Some(bits)) => Ok(Constant::Bits((*bits).into())),
                (32, None) => Ok(Constant::Bits((*value as f32).to_bits().into())),
                (64, _) => Ok(Constant::Bits(value.to_bits())),
                _ => Err(self.operand_error(position, "an integer constant")),
            },
            Operand::Name(name) => self.named_constant(name, 0, position),
            Operand::NameOffset(name, offset) => self.named_constant(name, *offset, position),
            _ => Err(self.operand_error(position, "a register or a constant")),
        }
    }

    fn named_constant(&mut self, name: &str, offset: i64, position: usize) -> Result<Constant, LoadError> {
        match self.scopes.find(name) {
            Some(Symbol::Variable(index)) => return Ok(self.variable_address(index, offset)),
            Some(Symbol::FrameParam(..)) if self.addressed.contains_key(name) => {
                return Ok(Constant::Local(self.addressed[name], offset));
            }
            Some(Symbol::Local(at)) => return Ok(Constant::Local(at, offset)),
            Some(Symbol::EntryParam(at)) => return Ok(Constant::Bits((i64::from(at) + offset) as u64)),
            Some(_) => return Err(self.operand_error(position, "a register or a constant")),
            None => {}
        }
        if let Some(&index) = self.names.variables.get(name) {
            if self.names.elsewhere.contains(&index) {
                return Err(LoadError::Undefined { line: self.line, name: name.to_owned() });
            }
            return Ok(self.variable_address(index, offset));
        }
        if let Some(&index) = self.names.functions.get(name) {
            if self.names.is_entry[index as usize] {
                let instruction = format!("{LAUNCH}{name}");
                return Err(LoadError::Unsupported { line: self.line, instruction });
            }
            if !self.names.has_body[index as usize] {
                return Err(LoadError::NoBody { line: self.line, name: name.to_owned() });
            }
            self.program.callees.push(index);
            return Ok(Constant::Function(index));
        }
        if name == "WARP_SZ" {
            return Ok(Constant::Bits(32));
        }
        special(name).map(Constant::Special).ok_or_else(|| self.undeclared(name))
    }

    fn variable_address(&mut self, index: u32, offset: i64) -> Constant {
        if !self.program.variables.contains(&index) {
            self.program.variables.push(index);
        }
        Constant::Variable(index, offset)
    }

    /// A data register of any width, or a constant in one of `bits`.
    pub(super) fn any_source(
        &mut self,
        operand: &Operand<'a>,
        position: usize,
        bits: u8,
    ) -> Result<Reg, LoadError> {
        if let Operand::Name(name) = operand
            && let Some(Symbol::Reg(reg)) = self.scopes.find(name)
        {
            let wide_enough = reg.bank != Bank::Pred && reg.bits >= bits;
            return if wide_enough {
                Ok(reg)
            } else {
                Err(self.operand_error(position, "a wide enough register"))
            };
        }
        let shape = data_shape(bits);
        let value = self.constant_value(operand, position, shape)?;
        Ok(Reg { bank: shape.bank, slot: self.constant(shape.bank, value)?, bits })
    }

    /// A data register of at least `bits` to be written; `_` gives one that nobody reads.
    pub(super) fn any_result(
        &mut self,
        operand: &Operand<'a>,
        position: usize,
        bits: u8,
    ) -> Result<Reg, LoadError> {
        let Operand::Name(name) = operand else {
            return Err(self.operand_error(position, "a register"));
        };
        if *name == "_" {
            let bank = data_shape(bits).bank;
            return Ok(Reg { bank, slot: self.allocate(bank, 1)?, bits });
        }
        let reg = self.register_named(name, position)?;
        let wide_enough = reg.bank != Bank::Pred && reg.bits >= bits;
        if wide_enough { Ok(reg) } else { Err(self.operand_error(position, "a wide enough register")) }
    }

    /// A 32-bit register or constant.
    pub(super) fn word(&mut self, operand: &Operand<'a>, position: usize) -> Result<Slot, LoadError> {
        self.source(operand, position, data_shape(32))
    }

    /// A 32-bit register to be written.
    pub(super) fn word_result(&mut self, operand: &Operand<'a>, position: usize) -> Result<Slot, LoadError> {
        self.result(operand, position, data_shape(32))
    }

    /// `[a]`, `[a+n]`, `[symbol]` or `[n]`.
    pub(super) fn address(&mut self, operand: &Operand<'a>, position: usize) -> Result<Addr, LoadError> {
        let Operand::Address { base, offset } = operand else {
            return Err(self.operand_error(position, "an address"));
        };
        let Some(name) = base else {
            let slot = self.constant(Bank::Double, Constant::Bits(0))?;
            return Ok(Addr { bank: Bank::Double, slot, offset: *offset });
        };
        if let Some(Symbol::Reg(reg)) = self.scopes.find(name) {
            return match reg.bits {
                32 | 64 => Ok(Addr { bank: reg.bank, slot: reg.slot, offset: *offset }),
                _ => Err(self.operand_error(position, "an address in a 32- or 64-bit register")),
            };
        }
        let value = self.named_constant(name, 0, position)?;
        if matches!(value, Constant::Special(_)) {
            return Err(self.operand_error(position, "an address"));
        }
        let slot = self.constant(Bank::Double, value)?;
        Ok(Addr { bank: Bank::Double, slot, offset: *offset })
    }

    /// Where in the frame's parameter area `[name+offset]` lies, if the name is one of its variables.
    pub(super) fn frame_parameter(&self, operand: &Operand<'a>) -> Option<(u32, u32, i64)> {
        let Operand::Address { base: Some(name), offset } = operand else { return None };
        match self.scopes.find(name) {
            Some(Symbol::FrameParam(at, bytes)) => Some((at, bytes, *offset)),
            _ => None,
        }
    }
}

/// The shape of a data register.
pub(super) const fn data_shape(bits: u8) -> Shape {
    Shape { bank: if bits == 64 { Bank::Double } else { Bank::Word }, bits, float: false }
}

fn cut(value: u64, bits: u8) -> u64 {
    if bits >= 64 { value } else { value & ((1 << bits) - 1) }
}

/// A special register that does not change (PTX ISA chapter 10).
fn special(name: &str) -> Option<Special> {
    if let Some((head, axis)) = name.split_once('.') {
        let axis = match axis {
            "x" => 0,
            "y" => 1,
            "z" => 2,
            _ => return None,
        };
        return Some(match head {
            "%tid" => Special::Tid(axis),
            "%ntid" => Special::Ntid(axis),
            "%ctaid" => Special::Ctaid(axis),
            "%nctaid" => Special::Nctaid(axis),
            "%clusterid" => Special::ClusterId(axis),
            "%nclusterid" => Special::ClusterCount(axis),
            "%cluster_ctaid" => Special::ClusterCtaId(axis),
            "%cluster_nctaid" => Special::ClusterCtaCount(axis),
            _ => return None,
        });
    }
    Some(match name {
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::WarpCount,
        "%smid" => Special::SmId,
        "%nsmid" => Special::SmCount,
        // No graph runs here.
        "%gridid" | "%current_graph_exec" => Special::GridId,
        "%lanemask_eq" => Special::LaneMaskEq,
        "%lanemask_le" => Special::LaneMaskLe,
        "%lanemask_lt" => Special::LaneMaskLt,
        "%lanemask_ge" => Special::LaneMaskGe,
        "%lanemask_gt" => Special::LaneMaskGt,
        "%cluster_ctarank" => Special::ClusterRank,
        "%cluster_nctarank" => Special::ClusterRanks,
        "%is_explicit_cluster" => Special::IsCluster,
        "%envreg1" => Special::Workspace(1),
        "%envreg2" => Special::Workspace(0),
        "%reserved_smem_offset_begin" | "%reserved_smem_offset_0" | "%reserved_smem_offset_1" => {
            Special::Reserved(0)
        }
        "%reserved_smem_offset_end" | "%reserved_smem_offset_cap" => Special::Reserved(1),
        "%aggr_smem_size" => Special::TotalSharedBytes,
        "%dynamic_smem_size" => Special::DynamicSharedBytes,
        "%total_smem_size" => Special::TotalSharedBytes,
        _ if name.starts_with("%pm") || name.starts_with("%envreg") => Special::GridId,
        _ => return None,
    })
}
