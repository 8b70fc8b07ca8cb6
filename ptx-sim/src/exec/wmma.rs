//! `wmma` (PTX ISA §9.7.14.4). Which lane holds which element is left open there, so a plain order is used: an f16 A or B
//! fragment holds a whole row or column of 16 in every lane, the others are cut into 32 equal runs.

use crate::finding::Outcome;
use crate::float::{bf16_to_f32, canonical_bits, f16_to_f32, f32_to_f16};
use crate::op::{Fragment, Scalar, WmmaAccess, WmmaMma};
use crate::regs::{LANES, Regs, Slot};

use super::access::addresses;
use super::cta::Cta;
use super::warp::Warp;

/// Row and column of element `e` of a lane.
fn place(fragment: Fragment, ty: Scalar, [m, n, k]: [usize; 3], lane: usize, e: usize) -> (usize, usize) {
    match (fragment, ty) {
        (Fragment::A, Scalar::F16) => (lane % m, e),
        (Fragment::B, Scalar::F16) => (e, lane % n),
        (Fragment::A, _) => {
            let at = lane * (m * k / LANES) + e;
            (at / k, at % k)
        }
        (Fragment::B, _) => {
            let at = lane * (n * k / LANES) + e;
            (at % k, at / k)
        }
        (Fragment::Accumulator, _) => {
            let at = lane * 8 + e;
            (at / n, at % n)
        }
    }
}

/// Elements in one register.
fn per_register(ty: Scalar) -> usize {
    32 / usize::from(ty.bits())
}

impl WmmaAccess {
    /// The address of every lane's element `e`.
    fn element_addresses(&self, regs: &Regs, e: usize) -> [u64; LANES] {
        let [m, n, k] = self.shape;
        let (rows, columns) = match self.fragment {
            Fragment::A => (m, k),
            Fragment::B => (k, n),
            Fragment::Accumulator => (m, n),
        };
        let base = addresses(regs, &self.addr);
        std::array::from_fn(|lane| {
            let (row, column) = place(self.fragment, self.ty, self.shape, lane, e);
            let dense = if self.row_major { columns } else { rows } as u32;
            let stride = u64::from(self.stride.map_or(dense, |s| regs.word[s as usize][lane]));
            let (major, minor) = if self.row_major { (row, column) } else { (column, row) };
            base[lane].wrapping_add((major as u64 * stride + minor as u64) * u64::from(self.ty.bits() / 8))
        })
    }
}

impl Warp {
    pub(super) fn wmma_load(
        &mut self,
        op: &WmmaAccess,
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let (bits, bytes) = (u32::from(op.ty.bits()), u32::from(op.ty.bits()) / 8);
        let per = per_register(op.ty);
        for (i, &slot) in op.regs.iter().enumerate() {
            let mut values = [0; LANES];
            for part in 0..per {
                let list = op.element_addresses(&self.frame(frame)?.regs, i * per + part);
                cta.counters.request(op.space, &list, active, bytes, false);
                for (lane, value) in values.iter_mut().enumerate() {
                    let words = self.read(op.space, list[lane], (lane, bytes), false, frame, cta)?;
                    *value |= words[0] << (bits * part as u32);
                }
            }
            self.frame(frame)?.regs.set_word(slot, active, &values);
        }
        Ok(())
    }

    pub(super) fn wmma_store(
        &mut self,
        op: &WmmaAccess,
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let (bits, bytes) = (u32::from(op.ty.bits()), u32::from(op.ty.bits()) / 8);
        let per = per_register(op.ty);
        for (i, &slot) in op.regs.iter().enumerate() {
            let values = self.frame(frame)?.regs.word[slot as usize];
            for part in 0..per {
                let list = op.element_addresses(&self.frame(frame)?.regs, i * per + part);
                cta.counters.request(op.space, &list, active, bytes, true);
                for (lane, value) in values.iter().enumerate() {
                    let words = [value >> (bits * part as u32), 0, 0, 0];
                    self.write(op.space, list[lane], (lane, bytes), &words, false, frame, cta)?;
                }
            }
        }
        Ok(())
    }
}

/// A matrix of at most 32 × 32.
type Matrix = [[f32; 32]; 32];

fn gather(regs: &Regs, slots: &[Slot], fragment: Fragment, ty: Scalar, shape: [usize; 3]) -> Matrix {
    let mut matrix = [[0.0; 32]; 32];
    let per = per_register(ty);
    for (i, &slot) in slots.iter().enumerate() {
        for (lane, &word) in regs.word[slot as usize].iter().enumerate() {
            for part in 0..per {
                let (row, column) = place(fragment, ty, shape, lane, i * per + part);
                let half = (word >> (16 * part)) as u16;
                matrix[row][column] = match ty {
                    Scalar::F16 => f16_to_f32(half),
                    Scalar::Bf16 => bf16_to_f32(half),
                    _ => f32::from_bits(word),
                };
            }
        }
    }
    matrix
}

/// `wmma.mma`, in the lanes of `active`.
pub(super) fn execute(mma: &WmmaMma, regs: &mut Regs, active: u32) {
    let [m, n, k] = mma.shape;
    let a = gather(regs, &mma.a, Fragment::A, mma.input, mma.shape);
    let b = gather(regs, &mma.b, Fragment::B, mma.input, mma.shape);
    let mut sum = gather(regs, &mma.c, Fragment::Accumulator, mma.c_type, mma.shape);
    for (row, sum) in a.iter().zip(&mut sum).take(m) {
        for (x, b) in row.iter().zip(&b).take(k) {
            for (sum, y) in sum.iter_mut().zip(b).take(n) {
                *sum += x * y;
            }
        }
    }
    let per = per_register(mma.d_type);
    for (i, &slot) in mma.d.iter().enumerate() {
        let values: [u32; LANES] = std::array::from_fn(|lane| {
            (0..per).fold(0, |word, part| {
                let (row, column) = place(Fragment::Accumulator, mma.d_type, mma.shape, lane, i * per + part);
                let value = sum[row][column];
                let bits = if per == 1 { canonical_bits(value) } else { f32_to_f16(value).into() };
                word | bits << (16 * part)
            })
        });
        regs.set_word(slot, active, &values);
    }
}
