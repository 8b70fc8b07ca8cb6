//! Arithmetic on f32 and f64.

use super::lane_ops;
use crate::float::{self, Round};

lane_ops! {
    /// Arithmetic on f32 and f64.
    enum FloatOp {
        Add "add [rn] f32" (F F -> F) "9.7.3.1" "d = a + b" |a, b| a + b;
        Sub "sub [rn] f32" (F F -> F) "9.7.3.2" "d = a − b" |a, b| a - b;
        Mul "mul [rn] f32" (F F -> F) "9.7.3.3" "d = a × b" |a, b| a * b;
        Fma "fma rn f32" (F F F -> F) "9.7.3.4" "d = a × b + c, rounded once" float::fma_f32;
        Mad "mad rn f32" (F F F -> F) "9.7.3.5" "d = a × b + c, rounded once" float::fma_f32;
        AddRz "add rz f32" (F F -> F) "9.7.3.1"
            "d = a + b, rz"
            |a, b| float::to_f32(float::add_odd(a.into(), b.into()), Round::Zero);
        SubRz "sub rz f32" (F F -> F) "9.7.3.2"
            "d = a − b, rz"
            |a, b| float::to_f32(float::add_odd(a.into(), -f64::from(b)), Round::Zero);
        MulRz "mul rz f32" (F F -> F) "9.7.3.3"
            "d = a × b, rz"
            |a, b| float::to_f32(f64::from(a) * f64::from(b), Round::Zero);
        FmaRz "fma rz f32" (F F F -> F) "9.7.3.4"
            "d = a × b + c, rz"
            |a, b, c| float::to_f32(float::fma_odd(a.into(), b.into(), c.into()), Round::Zero);
        AddRm "add rm f32" (F F -> F) "9.7.3.1"
            "d = a + b, rm"
            |a, b| float::to_f32(float::add_odd(a.into(), b.into()), Round::Down);
        SubRm "sub rm f32" (F F -> F) "9.7.3.2"
            "d = a − b, rm"
            |a, b| float::to_f32(float::add_odd(a.into(), -f64::from(b)), Round::Down);
        MulRm "mul rm f32" (F F -> F) "9.7.3.3"
            "d = a × b, rm"
            |a, b| float::to_f32(f64::from(a) * f64::from(b), Round::Down);
        FmaRm "fma rm f32" (F F F -> F) "9.7.3.4"
            "d = a × b + c, rm"
            |a, b, c| float::to_f32(float::fma_odd(a.into(), b.into(), c.into()), Round::Down);
        AddRp "add rp f32" (F F -> F) "9.7.3.1"
            "d = a + b, rp"
            |a, b| float::to_f32(float::add_odd(a.into(), b.into()), Round::Up);
        SubRp "sub rp f32" (F F -> F) "9.7.3.2"
            "d = a − b, rp"
            |a, b| float::to_f32(float::add_odd(a.into(), -f64::from(b)), Round::Up);
        MulRp "mul rp f32" (F F -> F) "9.7.3.3"
            "d = a × b, rp"
            |a, b| float::to_f32(f64::from(a) * f64::from(b), Round::Up);
        FmaRp "fma rp f32" (F F F -> F) "9.7.3.4"
            "d = a × b + c, rp"
            |a, b, c| float::to_f32(float::fma_odd(a.into(), b.into(), c.into()), Round::Up);
        AddFtz "add [rn] ftz f32" (Z Z -> Z) "9.7.3.1" "d = a + b, subnormals flushed" |a, b| a + b;
        SubFtz "sub [rn] ftz f32" (Z Z -> Z) "9.7.3.2" "d = a − b, subnormals flushed" |a, b| a - b;
        MulFtz "mul [rn] ftz f32" (Z Z -> Z) "9.7.3.3" "d = a × b, subnormals flushed" |a, b| a * b;
        FmaFtz "fma rn ftz f32" (Z Z Z -> Z) "9.7.3.4"
            "d = a × b + c, rounded once, subnormals flushed"
            float::fma_f32;
        MadFtz "mad rn ftz f32" (Z Z Z -> Z) "9.7.3.5"
            "d = a × b + c, rounded once, subnormals flushed"
            float::fma_f32;
        AddRzFtz "add rz ftz f32" (Z Z -> Z) "9.7.3.1"
            "d = a + b, rz, subnormals flushed"
            |a, b| float::to_f32(float::add_odd(a.into(), b.into()), Round::Zero);
        SubRzFtz "sub rz ftz f32" (Z Z -> Z) "9.7.3.2"
            "d = a − b, rz, subnormals flushed"
            |a, b| float::to_f32(float::add_odd(a.into(), -f64::from(b)), Round::Zero);
        MulRzFtz "mul rz ftz f32" (Z Z -> Z) "9.7.3.3"
            "d = a × b, rz, subnormals flushed"
            |a, b| float::to_f32(f64::from(a) * f64::from(b), Round::Zero);
        FmaRzFtz "fma rz ftz f32" (Z Z Z -> Z) "9.7.3.4"
            "d = a × b + c, rz, subnormals flushed"
            |a, b, c| float::to_f32(float::fma_odd(a.into(), b.into(), c.into()), Round::Zero);
        AddRmFtz "add rm ftz f32" (Z Z -> Z) "9.7.3.1"
            "d = a + b, rm, subnormals flushed"
            |a, b| float::to_f32(float::add_odd(a.into(), b.into()), Round::Down);
        SubRmFtz "sub rm ftz f32" (Z Z -> Z) "9.7.3.2"
            "d = a − b, rm, subnormals flushed"
            |a, b| float::to_f32(float::add_odd(a.into(), -f64::from(b)), Round::Down);
        MulRmFtz "mul rm ftz f32" (Z Z -> Z) "9.7.3.3"
            "d = a × b, rm, subnormals flushed"
            |a, b| float::to_f32(f64::from(a) * f64::from(b), Round::Down);
        FmaRmFtz "fma rm ftz f32" (Z Z Z -> Z) "9.7.3.4"
            "d = a × b + c, rm, subnormals flushed"
            |a, b, c| float::to_f32(float::fma_odd(a.into(), b.into(), c.into()), Round::Down);
        AddRpFtz "add rp ftz f32" (Z Z -> Z) "9.7.3.1"
            "d = a + b, rp, subnormals flushed"
            |a, b| float::to_f32(float::add_odd(a.into(), b.into()), Round::Up);
        SubRpFtz "sub rp ftz f32" (Z Z -> Z) "9.7.3.2"
            "d = a − b, rp, subnormals flushed"
            |a, b| float::to_f32(float::add_odd(a.into(), -f64::from(b)), Round::Up);
        MulRpFtz "mul rp ftz f32" (Z Z -> Z) "9.7.3.3"
            "d = a × b, rp, subnormals flushed"
            |a, b| float::to_f32(f64::from(a) * f64::from(b), Round::Up);
        FmaRpFtz "fma rp ftz f32" (Z Z Z -> Z) "9.7.3.4"
            "d = a × b + c, rp, subnormals flushed"
            |a, b, c| float::to_f32(float::fma_odd(a.into(), b.into(), c.into()), Round::Up);
        AddSat "add [rn] sat f32" (F F -> U) "9.7.3.1" "d = a + b, clamped to [0, 1]" |a, b| a + b;
        SubSat "sub [rn] sat f32" (F F -> U) "9.7.3.2" "d = a − b, clamped to [0, 1]" |a, b| a - b;
        MulSat "mul [rn] sat f32" (F F -> U) "9.7.3.3" "d = a × b, clamped to [0, 1]" |a, b| a * b;
        FmaSat "fma rn sat f32" (F F F -> U) "9.7.3.4"
            "d = a × b + c, rounded once, clamped to [0, 1]"
            float::fma_f32;
        MadSat "mad rn sat f32" (F F F -> U) "9.7.3.5"
            "d = a × b + c, rounded once, clamped to [0, 1]"
            float::fma_f32;
        AddFtzSat "add [rn] ftz sat f32" (Z Z -> V) "9.7.3.1"
            "d = a + b, subnormals flushed, clamped to [0, 1]"
            |a, b| a + b;
        SubFtzSat "sub [rn] ftz sat f32" (Z Z -> V) "9.7.3.2"
            "d = a − b, subnormals flushed, clamped to [0, 1]"
            |a, b| a - b;
        MulFtzSat "mul [rn] ftz sat f32" (Z Z -> V) "9.7.3.3"
            "d = a × b, subnormals flushed, clamped to [0, 1]"
            |a, b| a * b;
        FmaFtzSat "fma rn ftz sat f32" (Z Z Z -> V) "9.7.3.4"
            "d = a × b + c, rounded once, subnormals flushed, clamped to [0, 1]"
            float::fma_f32;
        MadFtzSat "mad rn ftz sat f32" (Z Z Z -> V) "9.7.3.5"
            "d = a × b + c, rounded once, subnormals flushed, clamped to [0, 1]"
            float::fma_f32;
        Div "div {rn full approx} f32" (F F -> F) "9.7.3.8" "d = a / b" |a, b| a / b;
        Rcp "rcp {rn approx} f32" (F -> F) "9.7.3.13" "d = 1 / a" |a| 1.0 / a;
        Sqrt "sqrt {rn approx} f32" (F -> F) "9.7.3.15" "d = √a" |a| a.sqrt();
        Rsqrt "rsqrt approx f32" (F -> F) "9.7.3.17" "d = 1 / √a" |a| (1.0 / f64::from(a).sqrt()) as f32;
        Sin "sin approx f32" (F -> F) "9.7.3.19" "d = sin a" |a| f64::from(a).sin() as f32;
        Cos "cos approx f32" (F -> F) "9.7.3.20" "d = cos a" |a| f64::from(a).cos() as f32;
        Lg2 "lg2 approx f32" (F -> F) "9.7.3.21" "d = log₂ a" |a| f64::from(a).log2() as f32;
        Ex2 "ex2 approx f32" (F -> F) "9.7.3.22" "d = 2^a" float::ex2;
        Abs "abs f32" (F -> F) "9.7.3.9" "d = |a|" |a| a.abs();
        Neg "neg f32" (F -> F) "9.7.3.10" "d = −a" |a| -a;
        Min "min f32" (F F -> F) "9.7.3.11" "d = the smaller, the other if one is NaN" float::min;
        Max "max f32" (F F -> F) "9.7.3.12" "d = the larger, the other if one is NaN" float::max;
        MinNan "min NaN f32" (F F -> F) "9.7.3.11" "d = the smaller, NaN if either is" float::min_nan;
        MaxNan "max NaN f32" (F F -> F) "9.7.3.12" "d = the larger, NaN if either is" float::max_nan;
        DivFtz "div {rn full approx} ftz f32" (Z Z -> Z) "9.7.3.8" "d = a / b, subnormals flushed" |a, b| a / b;
        RcpFtz "rcp {rn approx} ftz f32" (Z -> Z) "9.7.3.13" "d = 1 / a, subnormals flushed" |a| 1.0 / a;
        SqrtFtz "sqrt {rn approx} ftz f32" (Z -> Z) "9.7.3.15" "d = √a, subnormals flushed" |a| a.sqrt();
        RsqrtFtz "rsqrt approx ftz f32" (Z -> Z) "9.7.3.17"
            "d = 1 / √a, subnormals flushed"
            |a| (1.0 / f64::from(a).sqrt()) as f32;
        SinFtz "sin approx ftz f32" (Z -> Z) "9.7.3.19"
            "d = sin a, subnormals flushed"
            |a| f64::from(a).sin() as f32;
        CosFtz "cos approx ftz f32" (Z -> Z) "9.7.3.20"
            "d = cos a, subnormals flushed"
            |a| f64::from(a).cos() as f32;
        Lg2Ftz "lg2 approx ftz f32" (Z -> Z) "9.7.3.21"
            "d = log₂ a, subnormals flushed"
            |a| f64::from(a).log2() as f32;
        Ex2Ftz "ex2 approx ftz f32" (Z -> Z) "9.7.3.22" "d = 2^a, subnormals flushed" float::ex2;
        AbsFtz "abs ftz f32" (Z -> Z) "9.7.3.9" "d = |a|, subnormals flushed" |a| a.abs();
        NegFtz "neg ftz f32" (Z -> Z) "9.7.3.10" "d = −a, subnormals flushed" |a| -a;
        MinFtz "min ftz f32" (Z Z -> Z) "9.7.3.11"
            "d = the smaller, the other if one is NaN, subnormals flushed"
            float::min;
        MaxFtz "max ftz f32" (Z Z -> Z) "9.7.3.12"
            "d = the larger, the other if one is NaN, subnormals flushed"
            float::max;
        MinNanFtz "min ftz NaN f32" (Z Z -> Z) "9.7.3.11"
            "d = the smaller, NaN if either is, subnormals flushed"
            float::min_nan;
        MaxNanFtz "max ftz NaN f32" (Z Z -> Z) "9.7.3.12"
            "d = the larger, NaN if either is, subnormals flushed"
            float::max_nan;
        Tanh "tanh approx f32" (F -> F) "9.7.3.23" "d = tanh a" |a| f64::from(a).tanh() as f32;
        CopysignSingle "copysign f32" (W W -> W) "9.7.3.7"
            "d = b with the sign of a"
            |a, b| b & 0x7fff_ffff | a & 0x8000_0000;
        TestpFiniteSingle "testp finite f32" (F -> P) "9.7.3.6" "p = a is finite" |a| a.is_finite();
        TestpFiniteDouble "testp finite f64" (G -> P) "9.7.3.6" "p = a is finite" |a| a.is_finite();
        TestpInfiniteSingle "testp infinite f32" (F -> P) "9.7.3.6" "p = a is infinite" |a| a.is_infinite();
        TestpInfiniteDouble "testp infinite f64" (G -> P) "9.7.3.6" "p = a is infinite" |a| a.is_infinite();
        TestpNumberSingle "testp number f32" (F -> P) "9.7.3.6" "p = a is number" |a| !a.is_nan();
        TestpNumberDouble "testp number f64" (G -> P) "9.7.3.6" "p = a is number" |a| !a.is_nan();
        TestpNotanumberSingle "testp notanumber f32" (F -> P) "9.7.3.6" "p = a is notanumber" |a| a.is_nan();
        TestpNotanumberDouble "testp notanumber f64" (G -> P) "9.7.3.6" "p = a is notanumber" |a| a.is_nan();
        TestpNormalSingle "testp normal f32" (F -> P) "9.7.3.6" "p = a is normal" |a| a.is_normal() || a == 0.0;
        TestpNormalDouble "testp normal f64" (G -> P) "9.7.3.6" "p = a is normal" |a| a.is_normal() || a == 0.0;
        TestpSubnormalSingle "testp subnormal f32" (F -> P) "9.7.3.6" "p = a is subnormal" |a| a.is_subnormal();
        TestpSubnormalDouble "testp subnormal f64" (G -> P) "9.7.3.6" "p = a is subnormal" |a| a.is_subnormal();
        AddDouble "add [rn] f64" (G G -> G) "9.7.3.1" "d = a + b" |a, b| a + b;
        SubDouble "sub [rn] f64" (G G -> G) "9.7.3.2" "d = a − b" |a, b| a - b;
        MulDouble "mul [rn] f64" (G G -> G) "9.7.3.3" "d = a × b" |a, b| a * b;
        FmaDouble "fma rn f64" (G G G -> G) "9.7.3.4" "d = a × b + c, rounded once" |a, b, c| a.mul_add(b, c);
        MadDouble "mad rn f64" (G G G -> G) "9.7.3.5" "d = a × b + c, rounded once" |a, b, c| a.mul_add(b, c);
        DivDouble "div rn f64" (G G -> G) "9.7.3.8" "d = a / b" |a, b| a / b;
        RcpDouble "rcp rn f64" (G -> G) "9.7.3.13" "d = 1 / a" |a| 1.0 / a;
        SqrtDouble "sqrt rn f64" (G -> G) "9.7.3.15" "d = √a" |a| a.sqrt();
        AbsDouble "abs f64" (G -> G) "9.7.3.9" "d = |a|" |a| a.abs();
        NegDouble "neg f64" (G -> G) "9.7.3.10" "d = −a" |a| -a;
        MinDouble "min f64" (G G -> G) "9.7.3.11" "d = the smaller, the other if one is NaN" float::min;
        MaxDouble "max f64" (G G -> G) "9.7.3.12" "d = the larger, the other if one is NaN" float::max;
        CopysignDouble "copysign f64" (G G -> G) "9.7.3.7" "d = b with the sign of a" |a, b| b.copysign(a);
    }
}
