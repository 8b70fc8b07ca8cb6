//! Integer, logic, shift and address arithmetic.

use super::lane_ops;
use crate::bits;
use crate::window;

lane_ops! {
    /// Integer, logic, shift and address arithmetic.
    enum IntOp {
        AddHalf "add {u16 s16}" (H H -> H) "9.7.1.1" "d = a + b" |a, b| a.wrapping_add(b);
        SubHalf "sub {u16 s16}" (H H -> H) "9.7.1.2" "d = a − b" |a, b| a.wrapping_sub(b);
        MulLoHalf "mul lo {u16 s16}" (H H -> H) "9.7.1.3" "d = low half of a × b" |a, b| a.wrapping_mul(b);
        MulHiUHalf "mul hi u16" (H H -> H) "9.7.1.3"
            "d = high half of a × b, unsigned"
            |a, b| ((u32::from(a) * u32::from(b)) >> 16) as u16;
        MulHiSHalf "mul hi s16" (I I -> I) "9.7.1.3"
            "d = high half of a × b, signed"
            |a, b| ((i32::from(a) * i32::from(b)) >> 16) as i16;
        MulWideUHalf "mul wide u16" (H H -> W) "9.7.1.3"
            "d = a × b, twice as wide, unsigned"
            |a, b| u32::from(a) * u32::from(b);
        MulWideSHalf "mul wide s16" (I I -> S) "9.7.1.3"
            "d = a × b, twice as wide, signed"
            |a, b| i32::from(a) * i32::from(b);
        MadWideUHalf "mad wide u16" (H H W -> W) "9.7.1.4"
            "d = a × b + c, twice as wide, unsigned"
            |a, b, c| (u32::from(a) * u32::from(b)).wrapping_add(c);
        MadWideSHalf "mad wide s16" (I I S -> S) "9.7.1.4"
            "d = a × b + c, twice as wide, signed"
            |a, b, c| (i32::from(a) * i32::from(b)).wrapping_add(c);
        MadLoHalf "mad lo {u16 s16}" (H H H -> H) "9.7.1.4"
            "d = low half of a × b, plus c"
            |a, b, c| a.wrapping_mul(b).wrapping_add(c);
        MadHiUHalf "mad hi u16" (H H H -> H) "9.7.1.4"
            "d = high half of a × b, plus c, unsigned"
            |a, b, c| (((u32::from(a) * u32::from(b)) >> 16) as u16).wrapping_add(c);
        MadHiSHalf "mad hi s16" (I I I -> I) "9.7.1.4"
            "d = high half of a × b, plus c, signed"
            |a, b, c| (((i32::from(a) * i32::from(b)) >> 16) as i16).wrapping_add(c);
        DivUHalf "div u16" (H H -> H) "9.7.1.8"
            "d = a / b, unsigned; all ones where b = 0"
            |a, b| a.checked_div(b).unwrap_or(u16::MAX);
        DivSHalf "div s16" (I I -> I) "9.7.1.8"
            "d = a / b, toward zero; all ones where b = 0"
            |a, b| if b == 0 { -1 } else { a.wrapping_div(b) };
        RemUHalf "rem u16" (H H -> H) "9.7.1.9"
            "d = a mod b, unsigned; all ones where b = 0"
            |a, b| a.checked_rem(b).unwrap_or(u16::MAX);
        RemSHalf "rem s16" (I I -> I) "9.7.1.9"
            "d = a mod b with the sign of a; all ones where b = 0"
            |a, b| if b == 0 { -1 } else { a.wrapping_rem(b) };
        AbsHalf "abs s16" (I -> I) "9.7.1.10" "d = |a|" |a| a.wrapping_abs();
        NegHalf "neg s16" (I -> I) "9.7.1.11" "d = −a" |a| a.wrapping_neg();
        MinUHalf "min u16" (H H -> H) "9.7.1.12" "d = the smaller, unsigned" |a, b| a.min(b);
        MinSHalf "min s16" (I I -> I) "9.7.1.12" "d = the smaller, signed" |a, b| a.min(b);
        MaxUHalf "max u16" (H H -> H) "9.7.1.13" "d = the larger, unsigned" |a, b| a.max(b);
        MaxSHalf "max s16" (I I -> I) "9.7.1.13" "d = the larger, signed" |a, b| a.max(b);
        SadHalfU "sad u16" (H H H -> H) "9.7.1.7"
            "d = c + |a − b|, unsigned"
            |a, b, c| c.wrapping_add(a.abs_diff(b));
        SadHalfS "sad s16" (I I I -> I) "9.7.1.7"
            "d = c + |a − b|, signed"
            |a, b, c| c.wrapping_add(a.abs_diff(b) as i16);
        AndHalf "and b16" (H H -> H) "9.7.8.1" "d = a & b" |a, b| a & b;
        OrHalf "or b16" (H H -> H) "9.7.8.2" "d = a | b" |a, b| a | b;
        XorHalf "xor b16" (H H -> H) "9.7.8.3" "d = a ^ b" |a, b| a ^ b;
        NotHalf "not b16" (H -> H) "9.7.8.4" "d = !a" |a| !a;
        CnotHalf "cnot b16" (H -> H) "9.7.8.5" "d = (a = 0)" |a| u16::from(a == 0);
        ShlHalf "shl b16" (H W -> H) "9.7.8.8"
            "d = a << b; 0 beyond the width"
            |a, b| a.checked_shl(b).unwrap_or(0);
        ShrUHalf "shr {u16 b16}" (H W -> H) "9.7.8.9"
            "d = a >> b; 0 beyond the width"
            |a, b| a.checked_shr(b).unwrap_or(0);
        ShrSHalf "shr s16" (I W -> I) "9.7.8.9" "d = a >> b filled with the sign" |a, b| a >> b.min(15);
        MovHalf "mov {b16 u16 s16}" (H -> H) "9.7.9.3"
            "d = a, a constant, a special register or an address"
            |a| a;
        SelpHalf "selp {b16 u16 s16 f16}" (H H P -> H) "9.7.6.3"
            "d = p ? a : b"
            |a, b, p| if p { a } else { b };
        SlctHalf "slct {b16 u16 s16 f16} s32" (H H S -> H) "9.7.6.4"
            "d = c ≥ 0 ? a : b"
            |a, b, c| if c >= 0 { a } else { b };
        AddWord "add {u32 s32}" (W W -> W) "9.7.1.1" "d = a + b" |a, b| a.wrapping_add(b);
        SubWord "sub {u32 s32}" (W W -> W) "9.7.1.2" "d = a − b" |a, b| a.wrapping_sub(b);
        MulLoWord "mul lo {u32 s32}" (W W -> W) "9.7.1.3" "d = low half of a × b" |a, b| a.wrapping_mul(b);
        MulHiUWord "mul hi u32" (W W -> W) "9.7.1.3"
            "d = high half of a × b, unsigned"
            |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32;
        MulHiSWord "mul hi s32" (S S -> S) "9.7.1.3"
            "d = high half of a × b, signed"
            |a, b| ((i64::from(a) * i64::from(b)) >> 32) as i32;
        MulWideUWord "mul wide u32" (W W -> D) "9.7.1.3"
            "d = a × b, twice as wide, unsigned"
            |a, b| u64::from(a) * u64::from(b);
        MulWideSWord "mul wide s32" (S S -> L) "9.7.1.3"
            "d = a × b, twice as wide, signed"
            |a, b| i64::from(a) * i64::from(b);
        MadWideUWord "mad wide u32" (W W D -> D) "9.7.1.4"
            "d = a × b + c, twice as wide, unsigned"
            |a, b, c| (u64::from(a) * u64::from(b)).wrapping_add(c);
        MadWideSWord "mad wide s32" (S S L -> L) "9.7.1.4"
            "d = a × b + c, twice as wide, signed"
            |a, b, c| (i64::from(a) * i64::from(b)).wrapping_add(c);
        MadLoWord "mad lo {u32 s32}" (W W W -> W) "9.7.1.4"
            "d = low half of a × b, plus c"
            |a, b, c| a.wrapping_mul(b).wrapping_add(c);
        MadHiUWord "mad hi u32" (W W W -> W) "9.7.1.4"
            "d = high half of a × b, plus c, unsigned"
            |a, b, c| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c);
        MadHiSWord "mad hi s32" (S S S -> S) "9.7.1.4"
            "d = high half of a × b, plus c, signed"
            |a, b, c| (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c);
        DivUWord "div u32" (W W -> W) "9.7.1.8"
            "d = a / b, unsigned; all ones where b = 0"
            |a, b| a.checked_div(b).unwrap_or(u32::MAX);
        DivSWord "div s32" (S S -> S) "9.7.1.8"
            "d = a / b, toward zero; all ones where b = 0"
            |a, b| if b == 0 { -1 } else { a.wrapping_div(b) };
        RemUWord "rem u32" (W W -> W) "9.7.1.9"
            "d = a mod b, unsigned; all ones where b = 0"
            |a, b| a.checked_rem(b).unwrap_or(u32::MAX);
        RemSWord "rem s32" (S S -> S) "9.7.1.9"
            "d = a mod b with the sign of a; all ones where b = 0"
            |a, b| if b == 0 { -1 } else { a.wrapping_rem(b) };
        AbsWord "abs s32" (S -> S) "9.7.1.10" "d = |a|" |a| a.wrapping_abs();
        NegWord "neg s32" (S -> S) "9.7.1.11" "d = −a" |a| a.wrapping_neg();
        MinUWord "min u32" (W W -> W) "9.7.1.12" "d = the smaller, unsigned" |a, b| a.min(b);
        MinSWord "min s32" (S S -> S) "9.7.1.12" "d = the smaller, signed" |a, b| a.min(b);
        MaxUWord "max u32" (W W -> W) "9.7.1.13" "d = the larger, unsigned" |a, b| a.max(b);
        MaxSWord "max s32" (S S -> S) "9.7.1.13" "d = the larger, signed" |a, b| a.max(b);
        SadWordU "sad u32" (W W W -> W) "9.7.1.7"
            "d = c + |a − b|, unsigned"
            |a, b, c| c.wrapping_add(a.abs_diff(b));
        SadWordS "sad s32" (S S S -> S) "9.7.1.7"
            "d = c + |a − b|, signed"
            |a, b, c| c.wrapping_add(a.abs_diff(b) as i32);
        AndWord "and b32" (W W -> W) "9.7.8.1" "d = a & b" |a, b| a & b;
        OrWord "or b32" (W W -> W) "9.7.8.2" "d = a | b" |a, b| a | b;
        XorWord "xor b32" (W W -> W) "9.7.8.3" "d = a ^ b" |a, b| a ^ b;
        NotWord "not b32" (W -> W) "9.7.8.4" "d = !a" |a| !a;
        CnotWord "cnot b32" (W -> W) "9.7.8.5" "d = (a = 0)" |a| u32::from(a == 0);
        ShlWord "shl b32" (W W -> W) "9.7.8.8"
            "d = a << b; 0 beyond the width"
            |a, b| a.checked_shl(b).unwrap_or(0);
        ShrUWord "shr {u32 b32}" (W W -> W) "9.7.8.9"
            "d = a >> b; 0 beyond the width"
            |a, b| a.checked_shr(b).unwrap_or(0);
        ShrSWord "shr s32" (S W -> S) "9.7.8.9" "d = a >> b filled with the sign" |a, b| a >> b.min(31);
        MovWord "mov {b32 u32 s32 f32}" (W -> W) "9.7.9.3"
            "d = a, a constant, a special register or an address"
            |a| a;
        SelpWord "selp {b32 u32 s32 f32}" (W W P -> W) "9.7.6.3"
            "d = p ? a : b"
            |a, b, p| if p { a } else { b };
        SlctWord "slct {b32 u32 s32 f32} s32" (W W S -> W) "9.7.6.4"
            "d = c ≥ 0 ? a : b"
            |a, b, c| if c >= 0 { a } else { b };
        AddDouble "add {u64 s64}" (D D -> D) "9.7.1.1" "d = a + b" |a, b| a.wrapping_add(b);
        SubDouble "sub {u64 s64}" (D D -> D) "9.7.1.2" "d = a − b" |a, b| a.wrapping_sub(b);
        MulLoDouble "mul lo {u64 s64}" (D D -> D) "9.7.1.3" "d = low half of a × b" |a, b| a.wrapping_mul(b);
        MulHiUDouble "mul hi u64" (D D -> D) "9.7.1.3"
            "d = high half of a × b, unsigned"
            |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64;
        MulHiSDouble "mul hi s64" (L L -> L) "9.7.1.3"
            "d = high half of a × b, signed"
            |a, b| ((i128::from(a) * i128::from(b)) >> 64) as i64;
        MadLoDouble "mad lo {u64 s64}" (D D D -> D) "9.7.1.4"
            "d = low half of a × b, plus c"
            |a, b, c| a.wrapping_mul(b).wrapping_add(c);
        MadHiUDouble "mad hi u64" (D D D -> D) "9.7.1.4"
            "d = high half of a × b, plus c, unsigned"
            |a, b, c| (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c);
        MadHiSDouble "mad hi s64" (L L L -> L) "9.7.1.4"
            "d = high half of a × b, plus c, signed"
            |a, b, c| (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c);
        DivUDouble "div u64" (D D -> D) "9.7.1.8"
            "d = a / b, unsigned; all ones where b = 0"
            |a, b| a.checked_div(b).unwrap_or(u64::MAX);
        DivSDouble "div s64" (L L -> L) "9.7.1.8"
            "d = a / b, toward zero; all ones where b = 0"
            |a, b| if b == 0 { -1 } else { a.wrapping_div(b) };
        RemUDouble "rem u64" (D D -> D) "9.7.1.9"
            "d = a mod b, unsigned; all ones where b = 0"
            |a, b| a.checked_rem(b).unwrap_or(u64::MAX);
        RemSDouble "rem s64" (L L -> L) "9.7.1.9"
            "d = a mod b with the sign of a; all ones where b = 0"
            |a, b| if b == 0 { -1 } else { a.wrapping_rem(b) };
        AbsDouble "abs s64" (L -> L) "9.7.1.10" "d = |a|" |a| a.wrapping_abs();
        NegDouble "neg s64" (L -> L) "9.7.1.11" "d = −a" |a| a.wrapping_neg();
        MinUDouble "min u64" (D D -> D) "9.7.1.12" "d = the smaller, unsigned" |a, b| a.min(b);
        MinSDouble "min s64" (L L -> L) "9.7.1.12" "d = the smaller, signed" |a, b| a.min(b);
        MaxUDouble "max u64" (D D -> D) "9.7.1.13" "d = the larger, unsigned" |a, b| a.max(b);
        MaxSDouble "max s64" (L L -> L) "9.7.1.13" "d = the larger, signed" |a, b| a.max(b);
        SadDoubleU "sad u64" (D D D -> D) "9.7.1.7"
            "d = c + |a − b|, unsigned"
            |a, b, c| c.wrapping_add(a.abs_diff(b));
        SadDoubleS "sad s64" (L L L -> L) "9.7.1.7"
            "d = c + |a − b|, signed"
            |a, b, c| c.wrapping_add(a.abs_diff(b) as i64);
        AndDouble "and b64" (D D -> D) "9.7.8.1" "d = a & b" |a, b| a & b;
        OrDouble "or b64" (D D -> D) "9.7.8.2" "d = a | b" |a, b| a | b;
        XorDouble "xor b64" (D D -> D) "9.7.8.3" "d = a ^ b" |a, b| a ^ b;
        NotDouble "not b64" (D -> D) "9.7.8.4" "d = !a" |a| !a;
        CnotDouble "cnot b64" (D -> D) "9.7.8.5" "d = (a = 0)" |a| u64::from(a == 0);
        ShlDouble "shl b64" (D W -> D) "9.7.8.8"
            "d = a << b; 0 beyond the width"
            |a, b| a.checked_shl(b).unwrap_or(0);
        ShrUDouble "shr {u64 b64}" (D W -> D) "9.7.8.9"
            "d = a >> b; 0 beyond the width"
            |a, b| a.checked_shr(b).unwrap_or(0);
        ShrSDouble "shr s64" (L W -> L) "9.7.8.9" "d = a >> b filled with the sign" |a, b| a >> b.min(63);
        MovDouble "mov {b64 u64 s64 f64}" (D -> D) "9.7.9.3"
            "d = a, a constant, a special register or an address"
            |a| a;
        SelpDouble "selp {b64 u64 s64 f64}" (D D P -> D) "9.7.6.3"
            "d = p ? a : b"
            |a, b, p| if p { a } else { b };
        SlctDouble "slct {b64 u64 s64 f64} s32" (D D S -> D) "9.7.6.4"
            "d = c ≥ 0 ? a : b"
            |a, b, c| if c >= 0 { a } else { b };
        PopcWord "popc b32" (W -> W) "9.7.1.14" "d = number of ones" |a| a.count_ones();
        ClzWord "clz b32" (W -> W) "9.7.1.15" "d = number of leading zeros" |a| a.leading_zeros();
        BfindUWord "bfind u32" (W -> W) "9.7.1.16"
            "d = position of the highest one; all ones if none"
            |a| a.checked_ilog2().unwrap_or(u32::MAX);
        BfindSWord "bfind s32" (S -> W) "9.7.1.16"
            "d = position of the highest bit unlike the sign"
            |a| (if a < 0 { !a } else { a }).checked_ilog2().unwrap_or(u32::MAX);
        BfindShiftUWord "bfind shiftamt u32" (W -> W) "9.7.1.16"
            "d = shift that brings the highest one to the top"
            |a| a.checked_ilog2().map_or(u32::MAX, |p| 31 - p);
        BrevWord "brev b32" (W -> W) "9.7.1.18" "d = a with its bits in reverse order" |a| a.reverse_bits();
        BfeUWord "bfe u32" (W W W -> W) "9.7.1.19"
            "d = field of c bits at b, zero-extended"
            |a, b, c| bits::extract_unsigned(a.into(), b, c, 32) as u32;
        BfeSWord "bfe s32" (S W W -> S) "9.7.1.19"
            "d = field of c bits at b, sign-extended"
            |a, b, c| bits::extract_signed(a.into(), b, c, 32) as i32;
        BfiWord "bfi b32" (W W W W -> W) "9.7.1.20"
            "d = b with d bits of a put in at c"
            |a, b, c, e| bits::insert(a.into(), b.into(), c, e, 32) as u32;
        PopcDouble "popc b64" (D -> W) "9.7.1.14" "d = number of ones" |a| a.count_ones();
        ClzDouble "clz b64" (D -> W) "9.7.1.15" "d = number of leading zeros" |a| a.leading_zeros();
        BfindUDouble "bfind u64" (D -> W) "9.7.1.16"
            "d = position of the highest one; all ones if none"
            |a| a.checked_ilog2().unwrap_or(u32::MAX);
        BfindSDouble "bfind s64" (L -> W) "9.7.1.16"
            "d = position of the highest bit unlike the sign"
            |a| (if a < 0 { !a } else { a }).checked_ilog2().unwrap_or(u32::MAX);
        BfindShiftUDouble "bfind shiftamt u64" (D -> W) "9.7.1.16"
            "d = shift that brings the highest one to the top"
            |a| a.checked_ilog2().map_or(u32::MAX, |p| 63 - p);
        BrevDouble "brev b64" (D -> D) "9.7.1.18" "d = a with its bits in reverse order" |a| a.reverse_bits();
        BfeUDouble "bfe u64" (D W W -> D) "9.7.1.19"
            "d = field of c bits at b, zero-extended"
            |a, b, c| bits::extract_unsigned(a, b, c, 64);
        BfeSDouble "bfe s64" (L W W -> L) "9.7.1.19"
            "d = field of c bits at b, sign-extended"
            |a, b, c| bits::extract_signed(a, b, c, 64);
        BfiDouble "bfi b64" (D D W W -> D) "9.7.1.20"
            "d = b with d bits of a put in at c"
            |a, b, c, e| bits::insert(a, b, c, e, 64);
        AddSat "add sat s32" (S S -> S) "9.7.1.1" "d = a + b, clamped" |a, b| a.saturating_add(b);
        SubSat "sub sat s32" (S S -> S) "9.7.1.2" "d = a − b, clamped" |a, b| a.saturating_sub(b);
        Mul24U "mul24 lo u32" (W W -> W) "9.7.1.5"
            "d = low half of the product of 24-bit numbers, unsigned"
            |a, b| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff);
        Dp4aU "dp4a u32 u32" (W W W -> W) "9.7.1.23"
            "d = c + Σ of four byte products, unsigned"
            bits::dot4_unsigned;
        Dp4aS "dp4a s32 s32" (W W W -> W) "9.7.1.23"
            "d = c + Σ of four byte products, signed"
            bits::dot4_signed;
        ShfL "shf l wrap b32" (W W W -> W) "9.7.8.7"
            "d = high word of (b:a) << (c mod 32)"
            |a, b, c| bits::funnel_left(a, b, c & 31);
        ShfLClamp "shf l clamp b32" (W W W -> W) "9.7.8.7"
            "d = high word of (b:a) << min(c, 32)"
            |a, b, c| bits::funnel_left(a, b, c.min(32));
        ShfR "shf r wrap b32" (W W W -> W) "9.7.8.7"
            "d = low word of (b:a) >> (c mod 32)"
            |a, b, c| bits::funnel_right(a, b, c & 31);
        ShfRClamp "shf r clamp b32" (W W W -> W) "9.7.8.7"
            "d = low word of (b:a) >> min(c, 32)"
            |a, b, c| bits::funnel_right(a, b, c.min(32));
        Lop3 "lop3 b32" (W W W W -> W) "9.7.8.6"
            "d = the bitwise function of a, b, c whose truth table is the fourth operand"
            bits::lop3;
        Prmt "prmt b32" (W W W -> W) "9.7.9.7" "d = four bytes of b:a chosen by the nibbles of c" bits::permute;
        PrmtF4e "prmt b32 f4e" (W W W -> W) "9.7.9.7"
            "d = bytes of b:a in the f4e order of c"
            |a, b, c| bits::permute(a, b, bits::forward_4(c));
        PrmtB4e "prmt b32 b4e" (W W W -> W) "9.7.9.7"
            "d = bytes of b:a in the b4e order of c"
            |a, b, c| bits::permute(a, b, bits::backward_4(c));
        PrmtRc8 "prmt b32 rc8" (W W W -> W) "9.7.9.7"
            "d = bytes of b:a in the rc8 order of c"
            |a, b, c| bits::permute(a, b, bits::replicate_8(c));
        PrmtEcl "prmt b32 ecl" (W W W -> W) "9.7.9.7"
            "d = bytes of b:a in the ecl order of c"
            |a, b, c| bits::permute(a, b, bits::edge_left(c));
        PrmtEcr "prmt b32 ecr" (W W W -> W) "9.7.9.7"
            "d = bytes of b:a in the ecr order of c"
            |a, b, c| bits::permute(a, b, bits::edge_right(c));
        PrmtRc16 "prmt b32 rc16" (W W W -> W) "9.7.9.7"
            "d = bytes of b:a in the rc16 order of c"
            |a, b, c| bits::permute(a, b, bits::replicate_16(c));
        AndPred "and pred" (P P -> P) "9.7.8.1" "p = a and b" |a, b| a & b;
        OrPred "or pred" (P P -> P) "9.7.8.2" "p = a or b" |a, b| a | b;
        XorPred "xor pred" (P P -> P) "9.7.8.3" "p = a xor b" |a, b| a ^ b;
        NotPred "not pred" (P -> P) "9.7.8.4" "p = not a" |a| !a;
        MovPred "mov pred" (P -> P) "9.7.9.3" "p = a" |a| a;
        CvtaToGlobal "cvta to {global const} u64" (D -> D) "9.7.9.20"
            "d = the global address of a generic one; they are equal"
            |a| a;
        CvtaGlobal "cvta {global const} u64" (D -> D) "9.7.9.20"
            "d = the generic address of a global one; they are equal"
            |a| a;
        CvtaToShared "cvta to {shared shared::cta shared::cluster} u64" (D -> D) "9.7.9.20"
            "d = the shared address of a generic one"
            |a| window::anyones(a).wrapping_sub(window::SHARED_WINDOW);
        CvtaShared "cvta {shared shared::cta shared::cluster} u64" (D D -> D) "9.7.9.20"
            "d = the generic address of a shared one"
            |a, window| a.wrapping_add(window);
        IsspacepShared "isspacep {shared shared::cta shared::cluster}" (D -> P) "9.7.9.19"
            "p = whether a generic address is in shared memory"
            |a| window::holds(window::SHARED_WINDOW, a);
        CvtaToLocal "cvta to local u64" (D -> D) "9.7.9.20"
            "d = the local address of a generic one"
            |a| window::anyones(a).wrapping_sub(window::LOCAL_WINDOW);
        CvtaLocal "cvta local u64" (D D -> D) "9.7.9.20"
            "d = the generic address of a local one"
            |a, window| a.wrapping_add(window);
        IsspacepLocal "isspacep local" (D -> P) "9.7.9.19"
            "p = whether a generic address is in local memory"
            |a| window::holds(window::LOCAL_WINDOW, a);
        CvtaToParam "cvta to {param param::entry} u64" (D -> D) "9.7.9.20"
            "d = the param address of a generic one"
            |a| a.wrapping_sub(window::PARAM_WINDOW);
        CvtaParam "cvta {param param::entry} u64" (D -> D) "9.7.9.20"
            "d = the generic address of a param one"
            |a| a.wrapping_add(window::PARAM_WINDOW);
        IsspacepParam "isspacep {param param::entry}" (D -> P) "9.7.9.19"
            "p = whether a generic address is in param memory"
            |a| window::holds(window::PARAM_WINDOW, a);
        IsspacepConst "isspacep const" (D -> P) "9.7.9.19"
            "p = whether a generic address is in constant memory"
            |a| window::holds(window::CONST_WINDOW, a);
        IsspacepGlobal "isspacep global" (D -> P) "9.7.9.19"
            "p = whether a generic address is in global memory"
            window::is_global;
    }
}
