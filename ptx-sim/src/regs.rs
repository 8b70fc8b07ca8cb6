//! A warp's registers: one array of 32 lanes a register, one bit a lane for predicates.

use crate::float::{self, Format};

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;
/// All lanes.
pub(crate) const FULL: u32 = u32::MAX;

/// Index of a register within its bank.
pub(crate) type Slot = u32;

/// Where a register is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Bank {
    /// 8-, 16- and 32-bit registers, zero-extended.
    Word,
    /// 64-bit registers.
    Double,
    /// Predicates, bit `lane` of a word.
    Pred,
}

/// The register file of one frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct Regs {
    pub(crate) word: Vec<[u32; LANES]>,
    pub(crate) double: Vec<[u64; LANES]>,
    pub(crate) pred: Vec<u32>,
}

impl Regs {
    pub(crate) fn new(words: usize, doubles: usize, preds: usize) -> Self {
        Regs { word: vec![[0; LANES]; words], double: vec![[0; LANES]; doubles], pred: vec![0; preds] }
    }

    pub(crate) fn set_word(&mut self, slot: Slot, mask: u32, values: &[u32; LANES]) {
        blend(&mut self.word[slot as usize], values, mask);
    }

    pub(crate) fn set_pred(&mut self, slot: Slot, mask: u32, bits: u32) {
        let pred = &mut self.pred[slot as usize];
        *pred = *pred & !mask | bits & mask;
    }

    /// A register of either data bank, zero-extended.
    pub(crate) fn bits(&self, bank: Bank, slot: Slot, lane: usize) -> u64 {
        match bank {
            Bank::Word => self.word[slot as usize][lane].into(),
            Bank::Double => self.double[slot as usize][lane],
            Bank::Pred => (self.pred[slot as usize] >> lane & 1).into(),
        }
    }

    /// Writes the same to every lane of a register; a word keeps the low half, a predicate the lowest bit.
    pub(crate) fn fill(&mut self, bank: Bank, slot: Slot, value: u64) {
        match bank {
            Bank::Word => self.word[slot as usize] = [value as u32; LANES],
            Bank::Double => self.double[slot as usize] = [value; LANES],
            Bank::Pred => self.pred[slot as usize] = if value & 1 == 1 { u32::MAX } else { 0 },
        }
    }

    /// Writes one lane of a data register; a word keeps the low half.
    pub(crate) fn set_bits(&mut self, bank: Bank, slot: Slot, lane: usize, value: u64) {
        match bank {
            Bank::Word => self.word[slot as usize][lane] = value as u32,
            Bank::Double => self.double[slot as usize][lane] = value,
            Bank::Pred => self.set_pred(slot, 1 << lane, ((value & 1) as u32) << lane),
        }
    }
}

/// The bit of every lane.
const LANE_BITS: [u32; LANES] = {
    let mut bits = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        bits[lane] = 1 << lane;
        lane += 1;
    }
    bits
};

/// Without a branch a lane, so that it is done several lanes at a time.
#[inline]
fn blend<T: Copy>(to: &mut [T; LANES], from: &[T; LANES], mask: u32) {
    if mask == FULL {
        *to = *from;
    } else {
        for lane in 0..LANES {
            to[lane] = if mask & LANE_BITS[lane] != 0 { from[lane] } else { to[lane] };
        }
    }
}

/// How an instruction reads or writes a register: its bank, its width and the conversion on the way.
pub(crate) trait Kind {
    /// What the instruction computes with.
    type Value: Copy + Default;
    const BANK: Bank;
    /// Bits of the register operand; 1 for predicates.
    const BITS: u8;
    /// Whether a constant operand is a float.
    const FLOAT: bool;
    fn load(regs: &Regs, slot: Slot) -> [Self::Value; LANES];
    fn store(regs: &mut Regs, slot: Slot, mask: u32, values: &[Self::Value; LANES]);
}

/// The lanes of a fixed array, each put through `f`.
#[inline]
fn each<T: Copy, R: Copy + Default>(from: &[T; LANES], f: impl Fn(T) -> R) -> [R; LANES] {
    let mut to = [R::default(); LANES];
    for lane in 0..LANES {
        to[lane] = f(from[lane]);
    }
    to
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident: $value:ty, $bank:ident $bits:literal, $load:expr, $store:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;
        impl Kind for $name {
            type Value = $value;
            const BANK: Bank = kinds!(@bank $bank);
            const BITS: u8 = $bits;
            const FLOAT: bool = kinds!(@float $name);
            #[inline]
            fn load(regs: &Regs, slot: Slot) -> [$value; LANES] {
                each(&regs.$bank[slot as usize], $load)
            }
            #[inline]
            fn store(regs: &mut Regs, slot: Slot, mask: u32, values: &[$value; LANES]) {
                blend(&mut regs.$bank[slot as usize], &each(values, $store), mask);
            }
        }
    )*};
    (@bank word) => { Bank::Word };
    (@bank double) => { Bank::Double };
    (@float F) => { true };
    (@float Z) => { true };
    (@float G) => { true };
    (@float $other:ident) => { false };
}

kinds! {
    /// 32 unsigned bits.
    W: u32, word 32, |x| x, |x| x;
    /// 32 signed bits.
    S: i32, word 32, |x| x as i32, |x| x as u32;
    /// 16 unsigned bits.
    H: u16, word 16, |x| x as u16, u32::from;
    /// 16 signed bits.
    I: i16, word 16, |x| x as i16, |x| u32::from(x as u16);
    /// 8 unsigned bits.
    O: u8, word 8, |x| x as u8, u32::from;
    /// 64 unsigned bits.
    D: u64, double 64, |x| x, |x| x;
    /// 64 signed bits.
    L: i64, double 64, |x| x as i64, |x| x as u64;
    /// f32, results with the canonical NaN.
    F: f32, word 32, f32::from_bits, float::canonical_bits;
    /// f32, subnormal operands and results flushed to zero (`.ftz`).
    Z: f32, word 32, |x| float::flush(f32::from_bits(x)), |x| float::canonical_bits(float::flush(x));
    /// f32 result clamped to [0, 1], NaN to 0 (`.sat`).
    U: f32, word 32, f32::from_bits, |x| float::saturate(x).to_bits();
    /// f32 result flushed and clamped (`.ftz.sat`).
    V: f32, word 32, f32::from_bits, |x| float::saturate(float::flush(x)).to_bits();
    /// f64.
    G: f64, double 64, f64::from_bits, f64::to_bits;
    /// f16, computed in f64 and rounded once to nearest even.
    T: f64, word 16, |x| float::f16_to_f32(x as u16).into(), |x| Format::F16.encode(x).into();
    /// f16x2, low half first.
    X: [f64; 2], word 32,
        |x| [float::f16_to_f32(x as u16).into(), float::f16_to_f32((x >> 16) as u16).into()],
        |x| u32::from(Format::F16.encode(x[0])) | u32::from(Format::F16.encode(x[1])) << 16;
    /// bf16, computed in f64 and rounded once to nearest even.
    B: f64, word 16, |x| float::bf16_to_f32(x as u16).into(), |x| Format::BF16.encode(x).into();
    /// bf16x2, low half first.
    Y: [f64; 2], word 32,
        |x| [float::bf16_to_f32(x as u16).into(), float::bf16_to_f32((x >> 16) as u16).into()],
        |x| u32::from(Format::BF16.encode(x[0])) | u32::from(Format::BF16.encode(x[1])) << 16;
}

/// A predicate.
pub(crate) struct P;

impl Kind for P {
    type Value = bool;
    const BANK: Bank = Bank::Pred;
    const BITS: u8 = 1;
    const FLOAT: bool = false;
    #[inline]
    fn load(regs: &Regs, slot: Slot) -> [bool; LANES] {
        let bits = regs.pred[slot as usize];
        let mut to = [false; LANES];
        for (lane, to) in to.iter_mut().enumerate() {
            *to = bits & LANE_BITS[lane] != 0;
        }
        to
    }
    #[inline]
    fn store(regs: &mut Regs, slot: Slot, mask: u32, values: &[bool; LANES]) {
        let mut bits = 0;
        for (lane, &value) in values.iter().enumerate() {
            bits |= if value { LANE_BITS[lane] } else { 0 };
        }
        regs.set_pred(slot, mask, bits);
    }
}

/// Slots of a lane-wise operation: the result, then up to four operands.
pub(crate) type Slots = [Slot; 5];

/// One operand to one result, in every lane of `mask`.
#[inline]
pub(crate) fn map1<A: Kind, R: Kind>(
    regs: &mut Regs,
    mask: u32,
    s: &Slots,
    f: impl Fn(A::Value) -> R::Value,
) {
    let a = A::load(regs, s[1]);
    R::store(regs, s[0], mask, &each(&a, f));
}

/// Two operands to one result.
#[inline]
pub(crate) fn map2<A: Kind, B: Kind, R: Kind>(
    regs: &mut Regs,
    mask: u32,
    s: &Slots,
    f: impl Fn(A::Value, B::Value) -> R::Value,
) {
    let (a, b) = (A::load(regs, s[1]), B::load(regs, s[2]));
    let mut to = [R::Value::default(); LANES];
    for lane in 0..LANES {
        to[lane] = f(a[lane], b[lane]);
    }
    R::store(regs, s[0], mask, &to);
}

/// Three operands to one result.
#[inline]
pub(crate) fn map3<A: Kind, B: Kind, C: Kind, R: Kind>(
    regs: &mut Regs,
    mask: u32,
    s: &Slots,
    f: impl Fn(A::Value, B::Value, C::Value) -> R::Value,
) {
    let (a, b, c) = (A::load(regs, s[1]), B::load(regs, s[2]), C::load(regs, s[3]));
    let mut to = [R::Value::default(); LANES];
    for lane in 0..LANES {
        to[lane] = f(a[lane], b[lane], c[lane]);
    }
    R::store(regs, s[0], mask, &to);
}

/// Four operands to one result.
#[inline]
pub(crate) fn map4<A: Kind, B: Kind, C: Kind, E: Kind, R: Kind>(
    regs: &mut Regs,
    mask: u32,
    s: &Slots,
    f: impl Fn(A::Value, B::Value, C::Value, E::Value) -> R::Value,
) {
    let (a, b, c, e) = (A::load(regs, s[1]), B::load(regs, s[2]), C::load(regs, s[3]), E::load(regs, s[4]));
    let mut to = [R::Value::default(); LANES];
    for lane in 0..LANES {
        to[lane] = f(a[lane], b[lane], c[lane], e[lane]);
    }
    R::store(regs, s[0], mask, &to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_write_leaves_the_other_lanes() {
        let mut regs = Regs::new(3, 0, 1);
        regs.word[0] = [7; LANES];
        regs.word[1] = [2; LANES];
        regs.word[2] = [3; LANES];
        map2::<W, W, W>(&mut regs, 0b101, &[0, 1, 2, 0, 0], |a, b| a + b);
        assert_eq!(regs.word[0][..4], [5, 7, 5, 7]);
        map2::<W, W, P>(&mut regs, 0b110, &[0, 1, 2, 0, 0], |a, b| a < b);
        assert_eq!(regs.pred[0], 0b110);
    }
}
