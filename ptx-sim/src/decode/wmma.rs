//! The older matrix interface: `wmma.load`, `wmma.store`, `wmma.mma`.

use super::Builder;
use super::lane::scalar;
use super::operand::data_shape;
use crate::error::LoadError;
use crate::matrix_type::MatrixType;
use crate::op::{Constant, Fragment, Op, Scalar, Space, WmmaAccess, WmmaMma, WmmaType};
use crate::parse::ast::Operand;
use crate::regs::Bank;
use crate::table::integer::IntOp;

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
        let (mut shape, name) = (shape(captures[1]), captures[3]);
        let legal = match fragment {
            Fragment::Accumulator => matches!(name, "f16" | "f32" | "f64" | "s32"),
            _ => !matches!(name, "f32" | "s32"),
        };
        if !legal {
            return Err(self.unsupported());
        }
        let mut ty = element(name);
        if ty.bits < 8 {
            // What is smaller than a byte is moved a register at a time, which rows are a multiple of.
            shape[2] /= ty.per_register;
            ty = WmmaType { bits: 32, per_register: 1, is_f16: false };
        }
        let stride_per = element(name).per_register / ty.per_register;
        let space = match captures[2] {
            "" => Space::Generic,
            "global" => Space::Global,
            _ => Space::Shared,
        };
        let (address, data) = if is_store { (0, 1) } else { (1, 0) };
        let addr = self.address(&operands[address], address + 1)?;
        let count = register_count(fragment, shape, ty);
        let width = if ty.bits == 64 { 64 } else { 32 };
        let regs = self.registers(&operands[data], data + 1, count, width, !is_store)?;
        let mut stride = match operands.get(2) {
            Some(operand) => Some(self.word(operand, 3)?),
            None => None,
        };
        if let (Some(slot), true) = (stride, element(name).bits < 8) {
            let shift = self.constant(Bank::Word, Constant::Bits(stride_per.trailing_zeros().into()))?;
            let scaled = self.result(&Operand::Name("_"), 3, data_shape(32))?;
            self.emit(Op::Int(IntOp::ShrUWord, [scaled, slot, shift, 0, 0]));
            stride = Some(scaled);
        }
        let row_major = captures[0] == "row";
        let access = Box::new(WmmaAccess { fragment, shape, row_major, ty, space, addr, stride, regs });
        self.emit(if is_store { Op::WmmaStore(access) } else { Op::WmmaLoad(access) });
        Ok(())
    }

    /// Captures: operation of bits (twice), layouts of A and B, shape, type of D, types of A and B (absent for f16), type of
    /// C, satfinite.
    pub(super) fn wmma_mma(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 4)?;
        let named = |name: &str| MatrixType::of(if name.is_empty() { "f16" } else { name });
        let (Some(mut a_type), Some(mut b_type)) = (named(captures[6]), named(captures[7])) else {
            return Err(self.unsupported());
        };
        if let MatrixType::Bit { and } = &mut a_type {
            *and = captures[0] == "and";
            b_type = a_type;
        }
        let (shape, d_type, c_type) = (shape(captures[4]), scalar(captures[5]), scalar(captures[8]));
        let sums_match = match a_type {
            MatrixType::F16 => {
                matches!((d_type, c_type), (Scalar::F16 | Scalar::F32, Scalar::F16 | Scalar::F32))
            }
            MatrixType::F64 => d_type == Scalar::F64 && c_type == Scalar::F64,
            _ if a_type.is_integer() => d_type == Scalar::S(32) && c_type == Scalar::S(32),
            _ => d_type == Scalar::F32 && c_type == Scalar::F32,
        };
        if !sums_match || !a_type.multiplies_with(b_type) {
            return Err(self.unsupported());
        }
        let input = WmmaType {
            bits: a_type.bits(),
            per_register: (32 / a_type.bits()).max(1),
            is_f16: a_type == MatrixType::F16,
        };
        let sums = |ty: Scalar| {
            element(match ty {
                Scalar::F16 => "f16",
                Scalar::F64 => "f64",
                _ => "f32",
            })
        };
        let width = |ty: WmmaType| if ty.bits == 64 { 64 } else { 32 };
        let a = register_count(Fragment::A, shape, input);
        let a = self.registers(&operands[1], 2, a, width(input), false)?;
        let b = register_count(Fragment::B, shape, input);
        let b = self.registers(&operands[2], 3, b, width(input), false)?;
        let c = register_count(Fragment::Accumulator, shape, sums(c_type));
        let c = self.registers(&operands[3], 4, c, width(sums(c_type)), false)?;
        let d = register_count(Fragment::Accumulator, shape, sums(d_type));
        let d = self.registers(&operands[0], 1, d, width(sums(d_type)), true)?;
        let (saturates, round) = (captures[9] == "satfinite", super::warp::direction(captures[9]));
        self.emit(Op::WmmaMma(Box::new(WmmaMma {
            shape,
            a_type,
            b_type,
            d_type,
            c_type,
            saturates,
            round,
            d,
            a,
            b,
            c,
        })));
        Ok(())
    }
}

fn element(name: &str) -> WmmaType {
    let bits = match name {
        "f64" => 64,
        "f16" | "bf16" => 16,
        "s8" | "u8" => 8,
        "s4" | "u4" => 4,
        "b1" => 1,
        _ => 32,
    };
    WmmaType { bits, per_register: (32 / bits).max(1), is_f16: name == "f16" }
}

fn shape(name: &str) -> [usize; 3] {
    let number = |text: &str| text.parse().unwrap_or(16);
    let (m, rest) = name[1..].split_once('n').unwrap_or(("16", "16k16"));
    let (n, k) = rest.split_once('k').unwrap_or(("16", "16"));
    [number(m), number(n), number(k)]
}

/// Registers of a fragment in one lane (PTX ISA §9.7.14.4.1).
fn register_count(fragment: Fragment, [m, n, k]: [usize; 3], ty: WmmaType) -> usize {
    let elements = match fragment {
        // Every row and column is held twice.
        Fragment::A | Fragment::B if ty.is_f16 => 16 * 32,
        Fragment::A => m * k,
        Fragment::B => n * k,
        Fragment::Accumulator => m * n,
    };
    elements / 32 / ty.per_register
}
