//! Arithmetic on f16 and bf16, one or two to a register.

use super::lane_ops;
use crate::float;
use crate::half;

lane_ops! {
    /// Arithmetic on f16 and bf16, one or two to a register.
    enum HalfOp {
        AddF16 "add [rn] f16" (T T -> T) "9.7.4.1" "d = a + b" float::add_odd;
        SubF16 "sub [rn] f16" (T T -> T) "9.7.4.2" "d = a − b" |a, b| float::add_odd(a, -b);
        MulF16 "mul [rn] f16" (T T -> T) "9.7.4.3" "d = a × b" |a, b| a * b;
        FmaF16 "fma rn f16" (T T T -> T) "9.7.4.4" "d = a × b + c, rounded once" float::fma_odd;
        FmaReluF16 "fma rn relu f16" (T T T -> T) "9.7.4.4"
            "d = max(a × b + c, 0)"
            |a, b, c| half::relu(float::fma_odd(a, b, c));
        AbsF16 "abs f16" (T -> T) "9.7.4.6" "d = |a|" |a| a.abs();
        NegF16 "neg f16" (T -> T) "9.7.4.5" "d = −a" |a| -a;
        MinF16 "min f16" (T T -> T) "9.7.4.7" "d = the smaller, the other if one is NaN" float::min;
        MaxF16 "max f16" (T T -> T) "9.7.4.8" "d = the larger, the other if one is NaN" float::max;
        MinNanF16 "min NaN f16" (T T -> T) "9.7.4.7" "d = the smaller, NaN if either is" float::min_nan;
        MaxNanF16 "max NaN f16" (T T -> T) "9.7.4.8" "d = the larger, NaN if either is" float::max_nan;
        Ex2F16 "ex2 approx f16" (T -> T) "9.7.4.10" "d = 2^a" |a| a.exp2();
        TanhF16 "tanh approx f16" (T -> T) "9.7.4.9" "d = tanh a" |a| a.tanh();
        AddF16Pair "add [rn] f16x2" (X X -> X) "9.7.4.1"
            "d = a + b, both halves"
            |a, b| half::pair2(a, b, float::add_odd);
        SubF16Pair "sub [rn] f16x2" (X X -> X) "9.7.4.2"
            "d = a − b, both halves"
            |a, b| half::pair2(a, b, |a, b| float::add_odd(a, -b));
        MulF16Pair "mul [rn] f16x2" (X X -> X) "9.7.4.3"
            "d = a × b, both halves"
            |a, b| half::pair2(a, b, |a, b| a * b);
        FmaF16Pair "fma rn f16x2" (X X X -> X) "9.7.4.4"
            "d = a × b + c, both halves"
            |a, b, c| half::pair3(a, b, c, float::fma_odd);
        FmaReluF16Pair "fma rn relu f16x2" (X X X -> X) "9.7.4.4"
            "d = max(a × b + c, 0), both halves"
            |a, b, c| half::pair3(a, b, c, |a, b, c| half::relu(float::fma_odd(a, b, c)));
        AbsF16Pair "abs f16x2" (X -> X) "9.7.4.6" "d = |a|, both halves" |a| a.map(f64::abs);
        NegF16Pair "neg f16x2" (X -> X) "9.7.4.5" "d = −a, both halves" |a| a.map(|x| -x);
        MinF16Pair "min f16x2" (X X -> X) "9.7.4.7"
            "d = the smaller, both halves"
            |a, b| half::pair2(a, b, float::min);
        MaxF16Pair "max f16x2" (X X -> X) "9.7.4.8"
            "d = the larger, both halves"
            |a, b| half::pair2(a, b, float::max);
        MinNanF16Pair "min NaN f16x2" (X X -> X) "9.7.4.7"
            "d = the smaller, NaN if either is, both halves"
            |a, b| half::pair2(a, b, float::min_nan);
        MaxNanF16Pair "max NaN f16x2" (X X -> X) "9.7.4.8"
            "d = the larger, NaN if either is, both halves"
            |a, b| half::pair2(a, b, float::max_nan);
        Ex2F16Pair "ex2 approx f16x2" (X -> X) "9.7.4.10" "d = 2^a, both halves" |a| a.map(f64::exp2);
        TanhF16Pair "tanh approx f16x2" (X -> X) "9.7.4.9" "d = tanh a, both halves" |a| a.map(f64::tanh);
        AddBf16 "add [rn] bf16" (B B -> B) "9.7.4.1" "d = a + b" float::add_odd;
        SubBf16 "sub [rn] bf16" (B B -> B) "9.7.4.2" "d = a − b" |a, b| float::add_odd(a, -b);
        MulBf16 "mul [rn] bf16" (B B -> B) "9.7.4.3" "d = a × b" |a, b| a * b;
        FmaBf16 "fma rn bf16" (B B B -> B) "9.7.4.4" "d = a × b + c, rounded once" float::fma_odd;
        FmaReluBf16 "fma rn relu bf16" (B B B -> B) "9.7.4.4"
            "d = max(a × b + c, 0)"
            |a, b, c| half::relu(float::fma_odd(a, b, c));
        AbsBf16 "abs bf16" (B -> B) "9.7.4.6" "d = |a|" |a| a.abs();
        NegBf16 "neg bf16" (B -> B) "9.7.4.5" "d = −a" |a| -a;
        MinBf16 "min bf16" (B B -> B) "9.7.4.7" "d = the smaller, the other if one is NaN" float::min;
        MaxBf16 "max bf16" (B B -> B) "9.7.4.8" "d = the larger, the other if one is NaN" float::max;
        MinNanBf16 "min NaN bf16" (B B -> B) "9.7.4.7" "d = the smaller, NaN if either is" float::min_nan;
        MaxNanBf16 "max NaN bf16" (B B -> B) "9.7.4.8" "d = the larger, NaN if either is" float::max_nan;
        Ex2Bf16 "ex2 approx ftz bf16" (B -> B) "9.7.4.10" "d = 2^a" |a| a.exp2();
        TanhBf16 "tanh approx bf16" (B -> B) "9.7.4.9" "d = tanh a" |a| a.tanh();
        AddBf16Pair "add [rn] bf16x2" (Y Y -> Y) "9.7.4.1"
            "d = a + b, both halves"
            |a, b| half::pair2(a, b, float::add_odd);
        SubBf16Pair "sub [rn] bf16x2" (Y Y -> Y) "9.7.4.2"
            "d = a − b, both halves"
            |a, b| half::pair2(a, b, |a, b| float::add_odd(a, -b));
        MulBf16Pair "mul [rn] bf16x2" (Y Y -> Y) "9.7.4.3"
            "d = a × b, both halves"
            |a, b| half::pair2(a, b, |a, b| a * b);
        FmaBf16Pair "fma rn bf16x2" (Y Y Y -> Y) "9.7.4.4"
            "d = a × b + c, both halves"
            |a, b, c| half::pair3(a, b, c, float::fma_odd);
        FmaReluBf16Pair "fma rn relu bf16x2" (Y Y Y -> Y) "9.7.4.4"
            "d = max(a × b + c, 0), both halves"
            |a, b, c| half::pair3(a, b, c, |a, b, c| half::relu(float::fma_odd(a, b, c)));
        AbsBf16Pair "abs bf16x2" (Y -> Y) "9.7.4.6" "d = |a|, both halves" |a| a.map(f64::abs);
        NegBf16Pair "neg bf16x2" (Y -> Y) "9.7.4.5" "d = −a, both halves" |a| a.map(|x| -x);
        MinBf16Pair "min bf16x2" (Y Y -> Y) "9.7.4.7"
            "d = the smaller, both halves"
            |a, b| half::pair2(a, b, float::min);
        MaxBf16Pair "max bf16x2" (Y Y -> Y) "9.7.4.8"
            "d = the larger, both halves"
            |a, b| half::pair2(a, b, float::max);
        MinNanBf16Pair "min NaN bf16x2" (Y Y -> Y) "9.7.4.7"
            "d = the smaller, NaN if either is, both halves"
            |a, b| half::pair2(a, b, float::min_nan);
        MaxNanBf16Pair "max NaN bf16x2" (Y Y -> Y) "9.7.4.8"
            "d = the larger, NaN if either is, both halves"
            |a, b| half::pair2(a, b, float::max_nan);
        Ex2Bf16Pair "ex2 approx ftz bf16x2" (Y -> Y) "9.7.4.10" "d = 2^a, both halves" |a| a.map(f64::exp2);
        TanhBf16Pair "tanh approx bf16x2" (Y -> Y) "9.7.4.9" "d = tanh a, both halves" |a| a.map(f64::tanh);
    }
}
