//! `wgmma` (PTX ISA §9.7.15.5.2).

use super::Builder;
use super::operand::data_shape;
use crate::error::LoadError;
use crate::op::{MatrixType, Op, Wgmma, WgmmaA};
use crate::parse::ast::Operand;

impl<'a> Builder<'_, 'a> {
    /// `wgmma.mma_async d, a, b, scale-d, imm-scale-a, imm-scale-b{, imm-trans-a}, imm-trans-b`; A in registers has no
    /// transposition. Captures: shape, types of A and B.
    pub(super) fn wgmma(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let n = captures[0].strip_prefix("m64n").and_then(|s| s.strip_suffix("k16")).map(str::parse::<usize>);
        let Some(Ok(n)) = n else { return Err(self.unsupported()) };
        if captures[1] != captures[2] {
            return Err(self.unsupported());
        }
        let input = if captures[1] == "f16" { MatrixType::F16 } else { MatrixType::Bf16 };
        let in_registers = matches!(operands.get(1), Some(Operand::Vector(_)));
        self.count(operands, if in_registers { 7 } else { 8 })?;
        let a = if in_registers {
            WgmmaA::Registers(self.word_vector(&operands[1], 2, 4, false)?)
        } else {
            WgmmaA::Shared(self.source(&operands[1], 2, data_shape(64))?)
        };
        let b = self.source(&operands[2], 3, data_shape(64))?;
        let (scale_d, scale_d_negated) = self.predicate_operand(&operands[3], 4)?;
        let a_negative = self.sign(&operands[4], 5)?;
        let b_negative = self.sign(&operands[5], 6)?;
        let a_mn_major = !in_registers && self.flag(&operands[6], 7)?;
        let b_mn_major = self.flag(&operands[operands.len() - 1], operands.len())?;
        let d = self.word_vector(&operands[0], 1, n / 2, true)?;
        self.emit(Op::Wgmma(Box::new(Wgmma {
            n,
            input,
            d,
            a,
            b,
            scale_d,
            scale_d_negated,
            a_negative,
            b_negative,
            a_mn_major,
            b_mn_major,
        })));
        Ok(())
    }

    fn sign(&self, operand: &Operand<'a>, position: usize) -> Result<bool, LoadError> {
        match operand {
            Operand::Int(1) => Ok(false),
            Operand::Int(-1) => Ok(true),
            _ => Err(self.operand_error(position, "1 or -1")),
        }
    }

    fn flag(&self, operand: &Operand<'a>, position: usize) -> Result<bool, LoadError> {
        match operand {
            Operand::Int(value @ 0..=1) => Ok(*value == 1),
            _ => Err(self.operand_error(position, "0 or 1")),
        }
    }

    /// `wgmma.wait_group n`.
    pub(super) fn wgmma_wait(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 1)?;
        match operands[0] {
            Operand::Int(keep @ 0..=7) => {
                self.emit(Op::WgmmaWait(keep as u32));
                Ok(())
            }
            _ => Err(self.operand_error(1, "a constant from 0 to 7")),
        }
    }
}
