//! Comparisons into a predicate.

use super::lane_ops;

lane_ops! {
    /// Comparisons into a predicate.
    enum CompareOp {
        EqHalf "setp eq {b16 u16 s16}" (H H -> P) "9.7.6.2" "p = a = b" |a, b| a == b;
        NeHalf "setp ne {b16 u16 s16}" (H H -> P) "9.7.6.2" "p = a ≠ b" |a, b| a != b;
        LtUHalf "setp {lt lo} u16" (H H -> P) "9.7.6.2" "p = a < b, unsigned" |a, b| a < b;
        LtSHalf "setp lt s16" (I I -> P) "9.7.6.2" "p = a < b, signed" |a, b| a < b;
        LeUHalf "setp {le ls} u16" (H H -> P) "9.7.6.2" "p = a ≤ b, unsigned" |a, b| a <= b;
        LeSHalf "setp le s16" (I I -> P) "9.7.6.2" "p = a ≤ b, signed" |a, b| a <= b;
        GtUHalf "setp {gt hi} u16" (H H -> P) "9.7.6.2" "p = a > b, unsigned" |a, b| a > b;
        GtSHalf "setp gt s16" (I I -> P) "9.7.6.2" "p = a > b, signed" |a, b| a > b;
        GeUHalf "setp {ge hs} u16" (H H -> P) "9.7.6.2" "p = a ≥ b, unsigned" |a, b| a >= b;
        GeSHalf "setp ge s16" (I I -> P) "9.7.6.2" "p = a ≥ b, signed" |a, b| a >= b;
        EqWord "setp eq {b32 u32 s32}" (W W -> P) "9.7.6.2" "p = a = b" |a, b| a == b;
        NeWord "setp ne {b32 u32 s32}" (W W -> P) "9.7.6.2" "p = a ≠ b" |a, b| a != b;
        LtUWord "setp {lt lo} u32" (W W -> P) "9.7.6.2" "p = a < b, unsigned" |a, b| a < b;
        LtSWord "setp lt s32" (S S -> P) "9.7.6.2" "p = a < b, signed" |a, b| a < b;
        LeUWord "setp {le ls} u32" (W W -> P) "9.7.6.2" "p = a ≤ b, unsigned" |a, b| a <= b;
        LeSWord "setp le s32" (S S -> P) "9.7.6.2" "p = a ≤ b, signed" |a, b| a <= b;
        GtUWord "setp {gt hi} u32" (W W -> P) "9.7.6.2" "p = a > b, unsigned" |a, b| a > b;
        GtSWord "setp gt s32" (S S -> P) "9.7.6.2" "p = a > b, signed" |a, b| a > b;
        GeUWord "setp {ge hs} u32" (W W -> P) "9.7.6.2" "p = a ≥ b, unsigned" |a, b| a >= b;
        GeSWord "setp ge s32" (S S -> P) "9.7.6.2" "p = a ≥ b, signed" |a, b| a >= b;
        EqDouble "setp eq {b64 u64 s64}" (D D -> P) "9.7.6.2" "p = a = b" |a, b| a == b;
        NeDouble "setp ne {b64 u64 s64}" (D D -> P) "9.7.6.2" "p = a ≠ b" |a, b| a != b;
        LtUDouble "setp {lt lo} u64" (D D -> P) "9.7.6.2" "p = a < b, unsigned" |a, b| a < b;
        LtSDouble "setp lt s64" (L L -> P) "9.7.6.2" "p = a < b, signed" |a, b| a < b;
        LeUDouble "setp {le ls} u64" (D D -> P) "9.7.6.2" "p = a ≤ b, unsigned" |a, b| a <= b;
        LeSDouble "setp le s64" (L L -> P) "9.7.6.2" "p = a ≤ b, signed" |a, b| a <= b;
        GtUDouble "setp {gt hi} u64" (D D -> P) "9.7.6.2" "p = a > b, unsigned" |a, b| a > b;
        GtSDouble "setp gt s64" (L L -> P) "9.7.6.2" "p = a > b, signed" |a, b| a > b;
        GeUDouble "setp {ge hs} u64" (D D -> P) "9.7.6.2" "p = a ≥ b, unsigned" |a, b| a >= b;
        GeSDouble "setp ge s64" (L L -> P) "9.7.6.2" "p = a ≥ b, signed" |a, b| a >= b;
        EqSingle "setp eq f32" (F F -> P) "9.7.6.2" "p = a = b and neither is NaN" |a, b| a == b;
        EquSingle "setp equ f32" (F F -> P) "9.7.6.2"
            "p = a = b or either is NaN"
            |a, b| a == b || a.is_nan() || b.is_nan();
        NeSingle "setp ne f32" (F F -> P) "9.7.6.2"
            "p = a ≠ b and neither is NaN"
            |a, b| a != b && !a.is_nan() && !b.is_nan();
        NeuSingle "setp neu f32" (F F -> P) "9.7.6.2" "p = a ≠ b or either is NaN" |a, b| a != b;
        LtSingle "setp lt f32" (F F -> P) "9.7.6.2" "p = a < b and neither is NaN" |a, b| a < b;
        LtuSingle "setp ltu f32" (F F -> P) "9.7.6.2"
            "p = a < b or either is NaN"
            |a, b| a < b || a.is_nan() || b.is_nan();
        LeSingle "setp le f32" (F F -> P) "9.7.6.2" "p = a ≤ b and neither is NaN" |a, b| a <= b;
        LeuSingle "setp leu f32" (F F -> P) "9.7.6.2"
            "p = a ≤ b or either is NaN"
            |a, b| a <= b || a.is_nan() || b.is_nan();
        GtSingle "setp gt f32" (F F -> P) "9.7.6.2" "p = a > b and neither is NaN" |a, b| a > b;
        GtuSingle "setp gtu f32" (F F -> P) "9.7.6.2"
            "p = a > b or either is NaN"
            |a, b| a > b || a.is_nan() || b.is_nan();
        GeSingle "setp ge f32" (F F -> P) "9.7.6.2" "p = a ≥ b and neither is NaN" |a, b| a >= b;
        GeuSingle "setp geu f32" (F F -> P) "9.7.6.2"
            "p = a ≥ b or either is NaN"
            |a, b| a >= b || a.is_nan() || b.is_nan();
        NumSingle "setp num f32" (F F -> P) "9.7.6.2" "p = neither is NaN" |a, b| !a.is_nan() && !b.is_nan();
        NanSingle "setp nan f32" (F F -> P) "9.7.6.2" "p = either is NaN" |a, b| a.is_nan() || b.is_nan();
        EqSingleFtz "setp eq ftz f32" (Z Z -> P) "9.7.6.2" "p = a = b and neither is NaN" |a, b| a == b;
        EquSingleFtz "setp equ ftz f32" (Z Z -> P) "9.7.6.2"
            "p = a = b or either is NaN"
            |a, b| a == b || a.is_nan() || b.is_nan();
        NeSingleFtz "setp ne ftz f32" (Z Z -> P) "9.7.6.2"
            "p = a ≠ b and neither is NaN"
            |a, b| a != b && !a.is_nan() && !b.is_nan();
        NeuSingleFtz "setp neu ftz f32" (Z Z -> P) "9.7.6.2" "p = a ≠ b or either is NaN" |a, b| a != b;
        LtSingleFtz "setp lt ftz f32" (Z Z -> P) "9.7.6.2" "p = a < b and neither is NaN" |a, b| a < b;
        LtuSingleFtz "setp ltu ftz f32" (Z Z -> P) "9.7.6.2"
            "p = a < b or either is NaN"
            |a, b| a < b || a.is_nan() || b.is_nan();
        LeSingleFtz "setp le ftz f32" (Z Z -> P) "9.7.6.2" "p = a ≤ b and neither is NaN" |a, b| a <= b;
        LeuSingleFtz "setp leu ftz f32" (Z Z -> P) "9.7.6.2"
            "p = a ≤ b or either is NaN"
            |a, b| a <= b || a.is_nan() || b.is_nan();
        GtSingleFtz "setp gt ftz f32" (Z Z -> P) "9.7.6.2" "p = a > b and neither is NaN" |a, b| a > b;
        GtuSingleFtz "setp gtu ftz f32" (Z Z -> P) "9.7.6.2"
            "p = a > b or either is NaN"
            |a, b| a > b || a.is_nan() || b.is_nan();
        GeSingleFtz "setp ge ftz f32" (Z Z -> P) "9.7.6.2" "p = a ≥ b and neither is NaN" |a, b| a >= b;
        GeuSingleFtz "setp geu ftz f32" (Z Z -> P) "9.7.6.2"
            "p = a ≥ b or either is NaN"
            |a, b| a >= b || a.is_nan() || b.is_nan();
        NumSingleFtz "setp num ftz f32" (Z Z -> P) "9.7.6.2"
            "p = neither is NaN"
            |a, b| !a.is_nan() && !b.is_nan();
        NanSingleFtz "setp nan ftz f32" (Z Z -> P) "9.7.6.2"
            "p = either is NaN"
            |a, b| a.is_nan() || b.is_nan();
        EqF64 "setp eq f64" (G G -> P) "9.7.6.2" "p = a = b and neither is NaN" |a, b| a == b;
        EquF64 "setp equ f64" (G G -> P) "9.7.6.2"
            "p = a = b or either is NaN"
            |a, b| a == b || a.is_nan() || b.is_nan();
        NeF64 "setp ne f64" (G G -> P) "9.7.6.2"
            "p = a ≠ b and neither is NaN"
            |a, b| a != b && !a.is_nan() && !b.is_nan();
        NeuF64 "setp neu f64" (G G -> P) "9.7.6.2" "p = a ≠ b or either is NaN" |a, b| a != b;
        LtF64 "setp lt f64" (G G -> P) "9.7.6.2" "p = a < b and neither is NaN" |a, b| a < b;
        LtuF64 "setp ltu f64" (G G -> P) "9.7.6.2"
            "p = a < b or either is NaN"
            |a, b| a < b || a.is_nan() || b.is_nan();
        LeF64 "setp le f64" (G G -> P) "9.7.6.2" "p = a ≤ b and neither is NaN" |a, b| a <= b;
        LeuF64 "setp leu f64" (G G -> P) "9.7.6.2"
            "p = a ≤ b or either is NaN"
            |a, b| a <= b || a.is_nan() || b.is_nan();
        GtF64 "setp gt f64" (G G -> P) "9.7.6.2" "p = a > b and neither is NaN" |a, b| a > b;
        GtuF64 "setp gtu f64" (G G -> P) "9.7.6.2"
            "p = a > b or either is NaN"
            |a, b| a > b || a.is_nan() || b.is_nan();
        GeF64 "setp ge f64" (G G -> P) "9.7.6.2" "p = a ≥ b and neither is NaN" |a, b| a >= b;
        GeuF64 "setp geu f64" (G G -> P) "9.7.6.2"
            "p = a ≥ b or either is NaN"
            |a, b| a >= b || a.is_nan() || b.is_nan();
        NumF64 "setp num f64" (G G -> P) "9.7.6.2" "p = neither is NaN" |a, b| !a.is_nan() && !b.is_nan();
        NanF64 "setp nan f64" (G G -> P) "9.7.6.2" "p = either is NaN" |a, b| a.is_nan() || b.is_nan();
        EqF16 "setp eq [ftz] f16" (T T -> P) "9.7.6.2" "p = a = b and neither is NaN" |a, b| a == b;
        EquF16 "setp equ [ftz] f16" (T T -> P) "9.7.6.2"
            "p = a = b or either is NaN"
            |a, b| a == b || a.is_nan() || b.is_nan();
        NeF16 "setp ne [ftz] f16" (T T -> P) "9.7.6.2"
            "p = a ≠ b and neither is NaN"
            |a, b| a != b && !a.is_nan() && !b.is_nan();
        NeuF16 "setp neu [ftz] f16" (T T -> P) "9.7.6.2" "p = a ≠ b or either is NaN" |a, b| a != b;
        LtF16 "setp lt [ftz] f16" (T T -> P) "9.7.6.2" "p = a < b and neither is NaN" |a, b| a < b;
        LtuF16 "setp ltu [ftz] f16" (T T -> P) "9.7.6.2"
            "p = a < b or either is NaN"
            |a, b| a < b || a.is_nan() || b.is_nan();
        LeF16 "setp le [ftz] f16" (T T -> P) "9.7.6.2" "p = a ≤ b and neither is NaN" |a, b| a <= b;
        LeuF16 "setp leu [ftz] f16" (T T -> P) "9.7.6.2"
            "p = a ≤ b or either is NaN"
            |a, b| a <= b || a.is_nan() || b.is_nan();
        GtF16 "setp gt [ftz] f16" (T T -> P) "9.7.6.2" "p = a > b and neither is NaN" |a, b| a > b;
        GtuF16 "setp gtu [ftz] f16" (T T -> P) "9.7.6.2"
            "p = a > b or either is NaN"
            |a, b| a > b || a.is_nan() || b.is_nan();
        GeF16 "setp ge [ftz] f16" (T T -> P) "9.7.6.2" "p = a ≥ b and neither is NaN" |a, b| a >= b;
        GeuF16 "setp geu [ftz] f16" (T T -> P) "9.7.6.2"
            "p = a ≥ b or either is NaN"
            |a, b| a >= b || a.is_nan() || b.is_nan();
        NumF16 "setp num [ftz] f16" (T T -> P) "9.7.6.2" "p = neither is NaN" |a, b| !a.is_nan() && !b.is_nan();
        NanF16 "setp nan [ftz] f16" (T T -> P) "9.7.6.2" "p = either is NaN" |a, b| a.is_nan() || b.is_nan();
        EqBf16 "setp eq bf16" (B B -> P) "9.7.6.2" "p = a = b and neither is NaN" |a, b| a == b;
        EquBf16 "setp equ bf16" (B B -> P) "9.7.6.2"
            "p = a = b or either is NaN"
            |a, b| a == b || a.is_nan() || b.is_nan();
        NeBf16 "setp ne bf16" (B B -> P) "9.7.6.2"
            "p = a ≠ b and neither is NaN"
            |a, b| a != b && !a.is_nan() && !b.is_nan();
        NeuBf16 "setp neu bf16" (B B -> P) "9.7.6.2" "p = a ≠ b or either is NaN" |a, b| a != b;
        LtBf16 "setp lt bf16" (B B -> P) "9.7.6.2" "p = a < b and neither is NaN" |a, b| a < b;
        LtuBf16 "setp ltu bf16" (B B -> P) "9.7.6.2"
            "p = a < b or either is NaN"
            |a, b| a < b || a.is_nan() || b.is_nan();
        LeBf16 "setp le bf16" (B B -> P) "9.7.6.2" "p = a ≤ b and neither is NaN" |a, b| a <= b;
        LeuBf16 "setp leu bf16" (B B -> P) "9.7.6.2"
            "p = a ≤ b or either is NaN"
            |a, b| a <= b || a.is_nan() || b.is_nan();
        GtBf16 "setp gt bf16" (B B -> P) "9.7.6.2" "p = a > b and neither is NaN" |a, b| a > b;
        GtuBf16 "setp gtu bf16" (B B -> P) "9.7.6.2"
            "p = a > b or either is NaN"
            |a, b| a > b || a.is_nan() || b.is_nan();
        GeBf16 "setp ge bf16" (B B -> P) "9.7.6.2" "p = a ≥ b and neither is NaN" |a, b| a >= b;
        GeuBf16 "setp geu bf16" (B B -> P) "9.7.6.2"
            "p = a ≥ b or either is NaN"
            |a, b| a >= b || a.is_nan() || b.is_nan();
        NumBf16 "setp num bf16" (B B -> P) "9.7.6.2" "p = neither is NaN" |a, b| !a.is_nan() && !b.is_nan();
        NanBf16 "setp nan bf16" (B B -> P) "9.7.6.2" "p = either is NaN" |a, b| a.is_nan() || b.is_nan();
    }
}
