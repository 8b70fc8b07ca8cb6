//! The conversions that kernels lean on; the others are the `cvt` row of the family table.

use super::lane_ops;
use crate::float::{self, Format, Round};
use crate::half;

lane_ops! {
    /// The conversions that kernels lean on; the others are the `cvt` row of the family table.
    enum ConvertOp {
        WordToDouble "cvt {u64 s64 b64} {u32 b32}" (W -> D) "9.7.9.21" "d = a, zero-extended" |a| a.into();
        SignedWordToDouble "cvt {u64 s64} s32" (S -> L) "9.7.9.21" "d = a, sign-extended" |a| a.into();
        DoubleToWord "cvt {u32 s32} {u64 s64}" (D -> W) "9.7.9.21" "d = the low half of a" |a| a as u32;
        F16ToF32 "cvt f32 f16" (H -> F) "9.7.9.21" "d = a, exact" float::f16_to_f32;
        Bf16ToF32 "cvt f32 bf16" (H -> W) "9.7.9.21" "d = a, exact, NaN unchanged" |a| u32::from(a) << 16;
        F32ToF16 "cvt rn f16 f32" (F -> H) "9.7.9.21" "d = a rounded to nearest even" float::f32_to_f16;
        F32ToBf16 "cvt rn bf16 f32" (F -> H) "9.7.9.21" "d = a rounded to nearest even" float::f32_to_bf16;
        F32PairToF16Pair "cvt rn f16x2 f32" (F F -> W) "9.7.9.21"
            "d = a in the high half and b in the low half, to nearest even"
            |a, b| u32::from(float::f32_to_f16(a)) << 16 | u32::from(float::f32_to_f16(b));
        F32PairToBf16Pair "cvt rn bf16x2 f32" (F F -> W) "9.7.9.21"
            "d = a in the high half and b in the low half, to nearest even"
            |a, b| u32::from(float::f32_to_bf16(a)) << 16 | u32::from(float::f32_to_bf16(b));
        F32PairToF16PairRz "cvt rz f16x2 f32" (F F -> W) "9.7.9.21"
            "d = a in the high half and b in the low half, toward zero"
            |a, b| half::pack(a, b, Format::F16, Round::Zero);
        F32PairToBf16PairRz "cvt rz bf16x2 f32" (F F -> W) "9.7.9.21"
            "d = a in the high half and b in the low half, toward zero"
            |a, b| half::pack(a, b, Format::BF16, Round::Zero);
        F32PairToF16PairRelu "cvt rn relu f16x2 f32" (F F -> W) "9.7.9.21"
            "d = max(a, 0) in the high half and max(b, 0) in the low half"
            |a, b| half::pack(half::relu32(a), half::relu32(b), Format::F16, Round::Nearest);
        F32PairToBf16PairRelu "cvt rn relu bf16x2 f32" (F F -> W) "9.7.9.21"
            "d = max(a, 0) in the high half and max(b, 0) in the low half"
            |a, b| half::pack(half::relu32(a), half::relu32(b), Format::BF16, Round::Nearest);
        F32ToTf32 "cvt rna tf32 f32" (F -> W) "9.7.9.21"
            "d = a rounded to 10 bits of fraction, ties away from zero"
            half::tf32;
    }
}
