//! `mma.sync` m16n8k8 and m16n8k16 (PTX ISA §9.7.14.5.7–8). Products are exact; each element is summed in f32 in order of
//! k. The ISA leaves order and rounding open, so results agree with hardware within a bound, not bit for bit.
//!
//! With g = lane/4 and t = lane mod 4, register i of A holds row g + 8·(i mod 2), columns 2t and 2t+1, plus 8 from i = 2;
//! register i of B holds rows 2t and 2t+1, plus 8·i, of column g; D and C hold row g (then g + 8), columns 2t and 2t+1.

use crate::float::{bf16_to_f32, f16_to_f32, f32_to_f16};
use crate::op::{MatrixType, Mma};
use crate::regs::{LANES, Regs};

/// Runs the instruction in the lanes of `active`; the sources of all lanes take part.
pub(super) fn execute(mma: &Mma, regs: &mut Regs, active: u32) {
    match mma.input {
        MatrixType::F16 => execute_with(mma, regs, active, f16_to_f32),
        MatrixType::Bf16 => execute_with(mma, regs, active, bf16_to_f32),
    }
}

#[inline]
fn execute_with(mma: &Mma, regs: &mut Regs, active: u32, widen: impl Fn(u16) -> f32 + Copy) {
    let k = usize::from(mma.k);
    let (mut a, mut b, mut sum) = ([[0f32; 16]; 16], [[0f32; 8]; 16], [[0f32; 8]; 16]);
    for (i, &slot) in mma.a.iter().enumerate() {
        for (lane, pair) in wide(&regs.word[slot as usize], widen).iter().enumerate() {
            let (row, column) = (lane / 4 + 8 * (i % 2), 2 * (lane % 4) + 8 * (i / 2));
            a[row][column..column + 2].copy_from_slice(pair);
        }
    }
    for (i, &slot) in mma.b.iter().enumerate() {
        for (lane, pair) in wide(&regs.word[slot as usize], widen).iter().enumerate() {
            let (row, column) = (2 * (lane % 4) + 8 * i, lane / 4);
            b[row][column] = pair[0];
            b[row + 1][column] = pair[1];
        }
    }
    read_accumulator(mma, regs, &mut sum);
    for (row, sum) in a.iter().zip(&mut sum) {
        for (x, b) in row[..k].iter().zip(&b) {
            for (sum, y) in sum.iter_mut().zip(b) {
                *sum += x * y;
            }
        }
    }
    write_accumulator(mma, regs, active, &sum);
}

/// Low and high halves of a register, widened.
#[inline]
fn wide(words: &[u32; LANES], widen: impl Fn(u16) -> f32) -> [[f32; 2]; LANES] {
    words.map(|word| [widen(word as u16), widen((word >> 16) as u16)])
}

fn read_accumulator(mma: &Mma, regs: &Regs, sum: &mut [[f32; 8]; 16]) {
    for (i, &slot) in mma.c.iter().enumerate() {
        let words = &regs.word[slot as usize];
        for (lane, &word) in words.iter().enumerate() {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            if mma.c_f32 {
                sum[row + 8 * (i / 2)][column + i % 2] = f32::from_bits(word);
            } else {
                sum[row + 8 * i][column] = f16_to_f32(word as u16);
                sum[row + 8 * i][column + 1] = f16_to_f32((word >> 16) as u16);
            }
        }
    }
}

fn write_accumulator(mma: &Mma, regs: &mut Regs, active: u32, sum: &[[f32; 8]; 16]) {
    for (i, &slot) in mma.d.iter().enumerate() {
        let values: [u32; LANES] = std::array::from_fn(|lane| {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            if mma.d_f32 {
                crate::float::canonical_bits(sum[row + 8 * (i / 2)][column + i % 2])
            } else {
                let pair = [sum[row + 8 * i][column], sum[row + 8 * i][column + 1]].map(f32_to_f16);
                u32::from(pair[0]) | u32::from(pair[1]) << 16
            }
        });
        regs.set_word(slot, active, &values);
    }
}
