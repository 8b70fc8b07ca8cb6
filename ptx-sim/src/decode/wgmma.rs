//! `wgmma` (PTX ISA §9.7.15.5.2).

use super::Builder;
use super::operand::data_shape;
use crate::error::LoadError;
use crate::matrix_type::MatrixType;
use crate::op::{Op, Wgmma, WgmmaA};
use crate::parse::ast::Operand;

impl<'a> Builder<'_, 'a> {
    /// `wgmma.mma_async d, a, b, scale-d{, imm-scale-a, imm-scale-b{, imm-trans-a}{, imm-trans-b}}`: integers have no signs,
    /// 16-bit types alone have transpositions, and A in registers none. Captures: shape, types of D, A and B.
    pub(super) fn wgmma(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let n =
            captures[0].strip_prefix("m64n").and_then(|s| s.split_once('k')).map(|s| s.0.parse::<usize>());
        let Some(Ok(n)) = n else { return Err(self.unsupported()) };
        let (Some(mut a_type), Some(mut b_type)) = (MatrixType::of(captures[2]), MatrixType::of(captures[3]))
        else {
            return Err(self.unsupported());
        };
        if let MatrixType::Bit { and } = &mut a_type {
            *and = true;
            b_type = a_type;
        }
        let d_f16 = captures[1] == "f16";
        // bf16 and tf32 sum in f32 only.
        if !a_type.multiplies_with(b_type) || d_f16 && a_type == MatrixType::Bf16 {
            return Err(self.unsupported());
        }
        let in_registers = matches!(operands.get(1), Some(Operand::Vector(_)));
        let (signs, turns) = match a_type {
            _ if a_type.is_integer() => (0, 0),
            MatrixType::F16 | MatrixType::Bf16 => (2, if in_registers { 1 } else { 2 }),
            _ => (2, 0),
        };
        self.count(operands, 4 + signs + turns)?;
        let a = if in_registers {
            WgmmaA::Registers(self.word_vector(&operands[1], 2, 4, false)?)
        } else {
            WgmmaA::Shared(self.source(&operands[1], 2, data_shape(64))?)
        };
        let b = self.source(&operands[2], 3, data_shape(64))?;
        let (scale_d, scale_d_negated) = self.predicate_operand(&operands[3], 4)?;
        let a_negative = signs > 0 && self.sign(&operands[4], 5)?;
        let b_negative = signs > 0 && self.sign(&operands[5], 6)?;
        let a_mn_major = turns == 2 && self.flag(&operands[6], 7)?;
        let b_mn_major = turns > 0 && self.flag(&operands[operands.len() - 1], operands.len())?;
        let d = self.word_vector(&operands[0], 1, if d_f16 { n / 4 } else { n / 2 }, true)?;
        let saturates = captures.get(4) == Some(&"satfinite");
        self.emit(Op::Wgmma(Box::new(Wgmma {
            n,
            a_type,
            b_type,
            d_f16,
            saturates,
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
