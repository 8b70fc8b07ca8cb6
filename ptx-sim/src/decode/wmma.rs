//! The older matrix interface: `wmma.load`, `wmma.store`, `wmma.mma`.

use super::Builder;
use super::lane::scalar;
use crate::error::LoadError;
use crate::op::{Fragment, Op, Scalar, Space, WmmaAccess, WmmaMma};
use crate::parse::ast::Operand;

impl<'a> Builder<'_, 'a> {
    /// Captures of a load: matrix, layout, shape, space, type; of a store: the same without the matrix.
    pub(super) fn wmma_access(
        &mut self,
        is_store: bool,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count_between(operands, 2, 3)?;
        let (matrix, captures) = if is_store { ("d", captures) } else { (captures[0], &captures[1..]) };
        let fragment = match matrix {
            "a" => Fragment::A,
            "b" => Fragment::B,
            _ => Fragment::Accumulator,
        };
        let (shape, ty) = (shape(captures[1]), scalar(captures[3]));
        let legal = match fragment {
            Fragment::Accumulator => ty != Scalar::Bf16,
            _ => ty != Scalar::F32,
        };
        if !legal {
            return Err(self.unsupported());
        }
        let space = match captures[2] {
            "" => Space::Generic,
            "global" => Space::Global,
            _ => Space::Shared,
        };
        let (address, data) = if is_store { (0, 1) } else { (1, 0) };
        let addr = self.address(&operands[address], address + 1)?;
        let regs =
            self.word_vector(&operands[data], data + 1, register_count(fragment, shape, ty), !is_store)?;
        let stride = match operands.get(2) {
            Some(operand) => Some(self.word(operand, 3)?),
            None => None,
        };
        let row_major = captures[0] == "row";
        let access = Box::new(WmmaAccess { fragment, shape, row_major, ty, space, addr, stride, regs });
        self.emit(if is_store { Op::WmmaStore(access) } else { Op::WmmaLoad(access) });
        Ok(())
    }

    /// Captures: layouts of A and B, shape, type of D, types of A and B (absent for f16), type of C.
    pub(super) fn wmma_mma(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 4)?;
        let input = if captures[4].is_empty() { Scalar::F16 } else { Scalar::Bf16 };
        let (shape, d_type, c_type) = (shape(captures[2]), scalar(captures[3]), scalar(captures[6]));
        let bf16_in_f32 = d_type == Scalar::F32 && c_type == Scalar::F32;
        if captures[4] != captures[5] || input == Scalar::Bf16 && !bf16_in_f32 {
            return Err(self.unsupported());
        }
        let a = self.word_vector(&operands[1], 2, register_count(Fragment::A, shape, input), false)?;
        let b = self.word_vector(&operands[2], 3, register_count(Fragment::B, shape, input), false)?;
        let c =
            self.word_vector(&operands[3], 4, register_count(Fragment::Accumulator, shape, c_type), false)?;
        let d =
            self.word_vector(&operands[0], 1, register_count(Fragment::Accumulator, shape, d_type), true)?;
        self.emit(Op::WmmaMma(Box::new(WmmaMma { shape, input, d_type, c_type, d, a, b, c })));
        Ok(())
    }
}

fn shape(name: &str) -> [usize; 3] {
    match name {
        "m32n8k16" => [32, 8, 16],
        "m8n32k16" => [8, 32, 16],
        _ => [16, 16, 16],
    }
}

/// Registers of a fragment in one lane (PTX ISA §9.7.14.4.1).
fn register_count(fragment: Fragment, [m, n, k]: [usize; 3], ty: Scalar) -> usize {
    match (fragment, ty) {
        (Fragment::Accumulator, Scalar::F32) => 8,
        (Fragment::Accumulator, _) => 4,
        (_, Scalar::F16) => 8,
        (Fragment::A, _) => m * k / 64,
        (Fragment::B, _) => n * k / 64,
    }
}
