//! `mma.sync` (PTX ISA §9.7.14.5). Products are exact; each element is summed in f32 in order of k. The ISA leaves order and
//! rounding open, so results agree with hardware within a bound, not bit for bit.
//!
//! With g = lane/4, t = lane mod 4 and e elements to a register, register i of A holds row g + 8·(i mod 2), columns e·t to
//! e·t + e − 1, plus 4e·(i/2) — of a matrix of eight rows, row g, plus 4e·i; register i of B holds the same of rows, in column g;
//! D and C hold row g (then g + 8), columns 2t and 2t+1.

use crate::directed::fma;
use crate::float::{bf16_to_f32, canonical_bits, f16_to_f32, f32_to_f16};
use crate::matrix_type::MatrixType;
use crate::op::{Mma, Reg};
use crate::regs::{LANES, Regs};
use crate::wide::{add_product, compiled_twice};

use super::wmma::integer_sum;

/// Runs the instruction in the lanes of `active`; the sources of all lanes take part.
pub(super) fn execute(mma: &Mma, regs: &mut Regs, active: u32) {
    if let Some(rows) = mma.volta {
        return execute_volta(mma, rows, regs, active);
    }
    let plain = mma.m == 16 && mma.k <= 16 && mma.sparse.is_none() && mma.a_type.bits() == 16;
    match mma.a_type {
        MatrixType::F16 if plain => execute_f16(mma, regs, active),
        MatrixType::Bf16 if plain => execute_bf16(mma, regs, active),
        _ => execute_any(mma, regs, active),
    }
}

/// m8n8k4 of f16: lanes 4q to 4q + 3 and those 16 above them make a product of their own (PTX ISA §9.7.14.5.1).
fn execute_volta(mma: &Mma, [a_rows, b_rows]: [bool; 2], regs: &mut Regs, active: u32) {
    let half = |list: &[Reg], lane: usize, i: usize| {
        f16_to_f32((regs.word[list[i / 2].slot as usize][lane] >> (16 * (i % 2))) as u16)
    };
    // Row and column of the i-th sum of the lane of a group that is so many of eight.
    let place = |is_f32: bool, of: usize, i: usize| match is_f32 {
        false => (of, i),
        true => (of / 4 * 4 + (of & 1) + (i & 2), (i & 4) + (of & 2) + (i & 1)),
    };
    let mut results = vec![[0u32; LANES]; mma.d.len()];
    for group in 0..4 {
        let lane = |of: usize| 4 * group + of % 4 + of / 4 * 16;
        let (mut a, mut b, mut sum) = ([[0f32; 4]; 8], [[0f32; 8]; 4], [[0f32; 8]; 8]);
        for of in 0..8 {
            for i in 0..4 {
                let (x, y) = (half(&mma.a, lane(of), i), half(&mma.b, lane(of), i));
                *if a_rows { &mut a[of][i] } else { &mut a[i + of / 4 * 4][of % 4] } = x;
                *if b_rows { &mut b[of % 4][i + of / 4 * 4] } else { &mut b[i][of] } = y;
            }
            for i in 0..8 {
                let (row, column) = place(mma.c_f32, of, i);
                sum[row][column] = match mma.c_f32 {
                    true => f32::from_bits(regs.word[mma.c[i].slot as usize][lane(of)]),
                    false => half(&mma.c, lane(of), i),
                };
            }
        }
        for (row, sums) in a.iter().zip(&mut sum) {
            for (column, sum) in sums.iter_mut().enumerate() {
                *sum = (0..4).fold(*sum, |sum, k| sum + row[k] * b[k][column]);
            }
        }
        for of in 0..8 {
            for i in 0..8 {
                let (row, column) = place(mma.d_f32, of, i);
                let value = sum[row][column];
                match mma.d_f32 {
                    true => results[i][lane(of)] = canonical_bits(value),
                    false => results[i / 2][lane(of)] |= u32::from(f32_to_f16(value)) << (16 * (i % 2)),
                }
            }
        }
    }
    for (reg, values) in mma.d.iter().zip(&results) {
        regs.set_word(reg.slot, active, values);
    }
}

/// Any form, element by element.
fn execute_any(mma: &Mma, regs: &mut Regs, active: u32) {
    let (a_type, b_type) = (mma.a_type, mma.b_type);
    let per = (32 / a_type.bits()).max(1);
    let a_bits = |row: usize, k: usize| {
        let (block, t, part) = (k / (4 * per), k / per % 4, k % per);
        let i = if mma.m == 16 { 2 * block + row / 8 } else { block };
        let reg = mma.a[i];
        (regs.bits(reg.bank, reg.slot, 4 * (row % 8) + t), part)
    };
    let b_bits = |k: usize, column: usize| {
        let (block, t, part) = (k / (4 * per), k / per % 4, k % per);
        let reg = mma.b[block];
        (regs.bits(reg.bank, reg.slot, 4 * column + t), part)
    };
    let mut results = vec![[0u64; LANES]; mma.d.len()];
    for row in 0..mma.m {
        // Where each element of the row stands along k.
        let places = places(mma, regs, row);
        for column in 0..8 {
            let lane = 4 * (row % 8) + column / 2;
            let halves = !mma.d_f32 && !a_type.is_integer() && a_type != MatrixType::F64;
            let i = if halves { row / 8 } else { 2 * (row / 8) + column % 2 };
            let c = regs.bits(mma.c[i].bank, mma.c[i].slot, lane);
            let pairs = places.iter().enumerate().map(|(at, k)| (a_bits(row, at), b_bits(*k, column)));
            let bits = if a_type.is_integer() {
                let (x, y): (Vec<i32>, Vec<i32>) =
                    pairs.map(|(a, b)| (a_type.integer(a.0, a.1), b_type.integer(b.0, b.1))).unzip();
                u64::from(integer_sum(c as u32 as i32, a_type, &x, &y, mma.saturates) as u32)
            } else if a_type == MatrixType::F64 {
                let start = f64::from_bits(c);
                pairs
                    .fold(start, |sum, (a, b)| fma(f64::from_bits(a.0), f64::from_bits(b.0), sum, mma.round))
                    .to_bits()
            } else {
                let start = if halves {
                    f16_to_f32((c >> (16 * (column % 2))) as u16)
                } else {
                    f32::from_bits(c as u32)
                };
                let sum =
                    pairs.fold(start, |sum, (a, b)| sum + a_type.number(a.0, a.1) * b_type.number(b.0, b.1));
                if halves {
                    u64::from(f32_to_f16(sum)) << (16 * (column % 2))
                } else {
                    canonical_bits(sum).into()
                }
            };
            results[i][lane] |= bits;
        }
    }
    for (reg, values) in mma.d.iter().zip(&results) {
        super::access::lanes(active).for_each(|l| regs.set_bits(reg.bank, reg.slot, l, values[l]));
    }
}

/// Where along k each stored element of a row of A stands: all in order, or, of a sparse A, what the metadata say (PTX ISA
/// §9.7.14.6.1): of every four elements two (of tf32, of every two one), by two bits each.
fn places(mma: &Mma, regs: &Regs, row: usize) -> Vec<usize> {
    let Some((slot, selector)) = mma.sparse else { return (0..mma.k).collect() };
    let stored = mma.k / 2;
    let bits = mma.a_type.bits();
    (0..stored)
        .map(|at| {
            // The fields of a row lie in the metadata of lanes of its group of four, 16 fields to a register.
            let (fields_per_row, group) = (if bits == 32 { 2 * stored } else { stored }, row % 8);
            let field = if bits == 32 { 2 * at } else { at };
            let lane = match fields_per_row {
                // 8 fields a row: two rows in one register of one lane, chosen of four.
                ..=8 => 4 * group + selector as usize,
                // 16 fields a row: two lanes, one a row.
                9..=16 => 4 * group + 2 * (selector as usize & 1) + row / 8,
                // 32 fields a row: four lanes, two a row.
                _ => 4 * group + 2 * (row / 8) + field / 16,
            };
            let within = match fields_per_row {
                ..=8 => field + 8 * (row / 8),
                9..=16 => field,
                _ => field % 16,
            };
            let value = (regs.word[slot as usize][lane % LANES] >> (2 * within) & 3) as usize;
            if bits == 32 { 2 * at + value / 2 } else { at / 2 * 4 + value }
        })
        .collect()
}

compiled_twice! {
    fn execute_f16(mma: &Mma, regs: &mut Regs, active: u32) {
        execute_with::<FUSED>(mma, regs, active, f16_to_f32, true);
    }
}

compiled_twice! {
    fn execute_bf16(mma: &Mma, regs: &mut Regs, active: u32) {
        execute_with::<FUSED>(mma, regs, active, bf16_to_f32, false);
    }
}

/// The even columns of eight, then the odd ones: so each four lanes hold them in two registers, or in the halves of one.
pub(super) const COLUMN_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Rows whose sums stay in registers together.
const ROWS: usize = 4;

/// Products of f16, with factors of 11 bits, are `exact`; those of bf16 may be too small for f32.
#[inline(always)]
fn execute_with<const FUSED: bool>(
    mma: &Mma,
    regs: &mut Regs,
    active: u32,
    widen: impl Fn(u16) -> f32 + Copy,
    exact: bool,
) {
    let mut a = [[[0f32; LANES]; 2]; 4];
    for (a, reg) in a.iter_mut().zip(&mma.a) {
        *a = halves(&regs.word[reg.slot as usize], widen);
    }
    // Row k has its columns in `COLUMN_ORDER`.
    let mut b = [[0f32; 8]; 16];
    for (rows, reg) in b.chunks_exact_mut(8).zip(&mma.b) {
        let halves = halves(&regs.word[reg.slot as usize], widen);
        for (at, column) in COLUMN_ORDER.into_iter().enumerate() {
            for t in 0..4 {
                rows[2 * t][at] = halves[0][4 * column + t];
                rows[2 * t + 1][at] = halves[1][4 * column + t];
            }
        }
    }
    let mut sums = read_accumulator(mma, regs);
    for down in 0..2 {
        for (first, sums) in (0..8).step_by(ROWS).zip(sums[down].chunks_exact_mut(ROWS)) {
            if mma.k == 16 {
                add_products::<16, FUSED>(&a, &b, (down, first), sums, exact);
            } else {
                add_products::<8, FUSED>(&a, &b, (down, first), sums, exact);
            }
        }
    }
    write_accumulator(mma, regs, active, &sums);
}

/// Adds the products of the first K columns of A and rows of B, in order of k, to rows from `first` on of the upper or lower half.
#[inline(always)]
fn add_products<const K: usize, const FUSED: bool>(
    a: &[[[f32; LANES]; 2]; 4],
    b: &[[f32; 8]; 16],
    (down, first): (usize, usize),
    sums: &mut [[f32; 8]],
    exact: bool,
) {
    let mut totals = [[0f32; 8]; ROWS];
    totals.copy_from_slice(sums);
    for k in 0..K {
        let column = &a[down + k / 8 * 2][k % 2];
        for (row, total) in totals.iter_mut().enumerate() {
            let x = column[4 * (first + row) + k % 8 / 2];
            for (total, y) in total.iter_mut().zip(&b[k]) {
                *total = add_product::<FUSED>(*total, x, *y, exact);
            }
        }
    }
    sums.copy_from_slice(&totals);
}

/// Low and high halves of words, widened.
#[inline(always)]
pub(super) fn halves<const N: usize>(words: &[u32; N], widen: impl Fn(u16) -> f32) -> [[f32; N]; 2] {
    let mut halves = [[0f32; N]; 2];
    for (lane, &word) in words.iter().enumerate() {
        halves[0][lane] = widen(word as u16);
        halves[1][lane] = widen((word >> 16) as u16);
    }
    halves
}

/// A low and a high half, rounded to f16.
#[inline]
pub(super) fn packed(halves: [f32; 2]) -> u32 {
    let [low, high] = halves.map(f32_to_f16);
    u32::from(low) | u32::from(high) << 16
}

/// The upper and the lower eight rows, with columns in `COLUMN_ORDER`.
#[inline(always)]
fn read_accumulator(mma: &Mma, regs: &Regs) -> [[[f32; 8]; 8]; 2] {
    let mut sums = [[[0f32; 8]; 8]; 2];
    for (i, reg) in mma.c.iter().enumerate() {
        let words = &regs.word[reg.slot as usize];
        if mma.c_f32 {
            for (row, words) in sums[i / 2].iter_mut().zip(words.as_chunks::<4>().0) {
                row.as_chunks_mut::<4>().0[i % 2] = words.map(f32::from_bits);
            }
        } else {
            for (row, words) in sums[i].iter_mut().zip(words.as_chunks::<4>().0) {
                row.copy_from_slice(halves(words, f16_to_f32).as_flattened());
            }
        }
    }
    sums
}

#[inline(always)]
fn write_accumulator(mma: &Mma, regs: &mut Regs, active: u32, sums: &[[[f32; 8]; 8]; 2]) {
    for (i, reg) in mma.d.iter().enumerate() {
        let mut values = [0; LANES];
        if mma.d_f32 {
            for (words, row) in values.as_chunks_mut::<4>().0.iter_mut().zip(&sums[i / 2]) {
                *words = row.as_chunks::<4>().0[i % 2].map(canonical_bits);
            }
        } else {
            for (words, row) in values.as_chunks_mut::<4>().0.iter_mut().zip(&sums[i]) {
                *words = std::array::from_fn(|t| packed([row[t], row[t + 4]]));
            }
        }
        regs.set_word(reg.slot, active, &values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regs::Bank;

    /// Registers of numbers that follow from `seed`: infinities, NaN and numbers that are nearly zero among them.
    fn registers(mut seed: u32, kept: u32) -> Regs {
        let mut regs = Regs::new(14, 0, 0);
        for (slot, lane) in (0..10).flat_map(|slot| (0..LANES).map(move |lane| (slot, lane))) {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let mixed = (seed ^ seed >> 15).wrapping_mul(0x2c1b_3c6d);
            regs.word[slot][lane] = if slot < 6 { mixed & kept } else { mixed };
        }
        regs
    }

    #[test]
    fn sums_have_the_same_bits_however_they_are_compiled() {
        let list = |from: u32, count: u32| -> Vec<Reg> {
            (from..from + count).map(|slot| Reg { bank: Bank::Word, slot, bits: 32 }).collect()
        };
        for (seed, kept) in
            (0..200).flat_map(|seed| [(seed, u32::MAX), (seed, 0x83ff_83ff), (seed, 0xbfff_bfff)])
        {
            for (ty, k) in [(MatrixType::F16, 16), (MatrixType::F16, 8), (MatrixType::Bf16, 16)] {
                let mma = Mma {
                    m: 16,
                    k,
                    a_type: ty,
                    b_type: ty,
                    c_f32: true,
                    d_f32: true,
                    saturates: false,
                    round: crate::float::Round::Nearest,
                    sparse: None,
                    volta: None,
                    a: list(0, k as u32 / 4),
                    b: list(4, k as u32 / 8),
                    c: list(6, 4),
                    d: list(10, 4),
                };
                let (mut plain, mut wide) = (registers(seed, kept), registers(seed, kept));
                let is_f16 = ty == MatrixType::F16;
                let widen = if is_f16 { f16_to_f32 } else { bf16_to_f32 };
                execute_with::<false>(&mma, &mut plain, u32::MAX, widen, is_f16);
                execute(&mma, &mut wide, u32::MAX);
                assert_eq!(plain.word, wide.word, "{ty:?}, {seed}");
            }
        }
    }
}
