//! The element types of matrix products, and values of each.

use crate::float::{bf16_to_f32, f16_to_f32};
use crate::small::Small;

/// The type of the matrix operands of an `mma`, `wmma` or `wgmma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixType {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    F64,
    /// Integers, with their bits and whether they have a sign.
    Int(u8, bool),
    /// Single bits, whose products are counted: of `and`, else of `xor`.
    Bit {
        and: bool,
    },
}

impl MatrixType {
    /// By its name.
    pub(crate) fn of(name: &str) -> Option<MatrixType> {
        Some(match name {
            "f16" => MatrixType::F16,
            "bf16" => MatrixType::Bf16,
            "tf32" => MatrixType::Tf32,
            "e4m3" => MatrixType::E4m3,
            "e5m2" => MatrixType::E5m2,
            "f64" => MatrixType::F64,
            "s8" => MatrixType::Int(8, true),
            "u8" => MatrixType::Int(8, false),
            "s4" => MatrixType::Int(4, true),
            "u4" => MatrixType::Int(4, false),
            "b1" => MatrixType::Bit { and: false },
            _ => return None,
        })
    }

    /// Bits of an element.
    pub(crate) fn bits(self) -> usize {
        match self {
            MatrixType::F16 | MatrixType::Bf16 => 16,
            MatrixType::Tf32 => 32,
            MatrixType::E4m3 | MatrixType::E5m2 => 8,
            MatrixType::F64 => 64,
            MatrixType::Int(bits, _) => bits.into(),
            MatrixType::Bit { .. } => 1,
        }
    }

    /// Whether sums are integers.
    pub(crate) fn is_integer(self) -> bool {
        matches!(self, MatrixType::Int(..) | MatrixType::Bit { .. })
    }

    /// Whether two types of this and that may be multiplied: integers of one width, and both small floating-point types.
    pub(crate) fn multiplies_with(self, other: MatrixType) -> bool {
        match (self, other) {
            (MatrixType::Int(a, _), MatrixType::Int(b, _)) => a == b,
            (MatrixType::E4m3 | MatrixType::E5m2, MatrixType::E4m3 | MatrixType::E5m2) => true,
            _ => self == other,
        }
    }

    /// Element `at` of a register, as a number. tf32 has ten bits of fraction; what is below them is not looked at.
    pub(crate) fn number(self, register: u64, at: usize) -> f32 {
        match self {
            MatrixType::F16 => f16_to_f32((register >> (16 * at)) as u16),
            MatrixType::Bf16 => bf16_to_f32((register >> (16 * at)) as u16),
            MatrixType::Tf32 => f32::from_bits(register as u32 & 0xffff_e000),
            MatrixType::E4m3 => Small::E4M3.decode((register >> (8 * at)) as u8),
            MatrixType::E5m2 => Small::E5M2.decode((register >> (8 * at)) as u8),
            _ => 0.0,
        }
    }

    /// Element `at` of a register, as an integer.
    pub(crate) fn integer(self, register: u64, at: usize) -> i32 {
        let bits = self.bits();
        let value = (register >> (bits * at)) as u32 & ((1u64 << bits) - 1) as u32;
        match self {
            MatrixType::Int(_, true) => (value << (32 - bits)) as i32 >> (32 - bits),
            _ => value as i32,
        }
    }
}
