//! `wmma` (PTX ISA §9.7.14.4). Which lane holds which element is left open there, so a plain order is used: an f16 A or B
//! fragment holds a whole row or column of 16 in every lane, the others are cut into 32 equal runs.

use crate::directed::fma;
use crate::finding::Outcome;
use crate::float::{canonical_bits, f16_to_f32, f32_to_f16};
use crate::matrix_type::MatrixType;
use crate::op::{Fragment, MemoryOrder, Reg, Scalar, Space, WmmaAccess, WmmaMma, WmmaType};
use crate::regs::{LANES, Regs};

use super::access::{addresses, check_alignment, lanes};
use super::cta::Cta;
use super::generic::resolve;
use super::undefined::Origin;
use super::warp::Warp;

/// Row and column of element `e` of a lane.
fn place(fragment: Fragment, ty: WmmaType, [m, n, k]: [usize; 3], lane: usize, e: usize) -> (usize, usize) {
    match fragment {
        Fragment::A if ty.is_f16 => (lane % m, e),
        Fragment::B if ty.is_f16 => (e, lane % n),
        Fragment::A => {
            let at = lane * (m * k / LANES) + e;
            (at / k, at % k)
        }
        Fragment::B => {
            let at = lane * (n * k / LANES) + e;
            (at % k, at / k)
        }
        Fragment::Accumulator => {
            let at = lane * (m * n / LANES) + e;
            (at / n, at % n)
        }
    }
}

impl WmmaAccess {
    /// Bytes that the address and the stride are multiples of: as many as a lane's part of the fragment has, of which CUDA C++ asks a stride for
    /// no more than 16.
    fn alignment(&self) -> u32 {
        let bits = self.regs.len() * self.ty.per_register * self.ty.bits;
        (bits as u32 / 8).clamp(1, 16)
    }

    /// The fault of a row or column that starts between such multiples, where that is checked.
    fn check_alignment(&self, regs: &Regs, active: u32, cta: &Cta<'_>) -> Outcome {
        let base = addresses(regs, &self.addr);
        for lane in lanes(active) {
            let stride = self.stride.map_or(0, |s| u64::from(regs.word[s as usize][lane]));
            let second = base[lane].wrapping_add(stride * (self.ty.bits as u64 / 8));
            for address in [base[lane], second] {
                check_alignment(cta, lane, address, self.alignment())?;
            }
        }
        Ok(())
    }

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
            base[lane].wrapping_add((major as u64 * stride + minor as u64) * (self.ty.bits as u64 / 8))
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
        op.check_alignment(&self.frame(frame)?.regs, active, cta)?;
        let (bits, bytes) = (op.ty.bits as u32, op.ty.bits as u32 / 8);
        let per = op.ty.per_register;
        for (i, &reg) in op.regs.iter().enumerate() {
            let (mut values, mut dark, mut origin) = ([0u64; LANES], [0u64; LANES], None);
            for part in 0..per {
                let list = op.element_addresses(&self.frame(frame)?.regs, i * per + part);
                cta.counters.request(op.space, &list, active, bytes, false);
                for (lane, value) in values.iter_mut().enumerate() {
                    self.dark = (0, None);
                    let at = (lane, bytes);
                    let words = self.read(op.space, list[lane], at, MemoryOrder::WEAK, frame, cta)?;
                    *value |= (u64::from(words[0]) | u64::from(words[1]) << 32) << (bits * part as u32);
                    let (mask, from) = self.dark;
                    dark[lane] |= widened(mask) << (bits * part as u32);
                    origin = origin.or(from);
                }
            }
            let regs = &mut self.frame(frame)?.regs;
            lanes(active).for_each(|l| regs.set_bits(reg.bank, reg.slot, l, values[l]));
            for lane in lanes(active) {
                self.shade_register(frame, (reg.bank, reg.slot, lane), dark[lane], origin)?;
            }
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
        op.check_alignment(&self.frame(frame)?.regs, active, cta)?;
        let (bits, bytes) = (op.ty.bits as u32, op.ty.bits as u32 / 8);
        let per = op.ty.per_register;
        for (i, &reg) in op.regs.iter().enumerate() {
            let regs = &self.frame(frame)?.regs;
            let values: [u64; LANES] = std::array::from_fn(|lane| regs.bits(reg.bank, reg.slot, lane));
            for part in 0..per {
                let list = op.element_addresses(&self.frame(frame)?.regs, i * per + part);
                cta.counters.request(op.space, &list, active, bytes, true);
                for (lane, value) in values.iter().enumerate() {
                    let value = value >> (bits * part as u32);
                    let words = [value as u32, (value >> 32) as u32, 0, 0];
                    self.write(op.space, list[lane], (lane, bytes), &words, MemoryOrder::WEAK, frame, cta)?;
                    let (dark, origin) = self.shade_of(frame, reg.bank, reg.slot, lane);
                    let is_dark = dark >> (bits * part as u32) & element_mask(bits) != 0;
                    if is_dark && resolve(op.space, list[lane]).0 == Space::Global {
                        self.undefined(origin, "a result", cta)?;
                        continue;
                    }
                    let mask = if is_dark { (1 << bytes) - 1 } else { 0 };
                    self.shade_stored(op.space, list[lane], (lane, bytes), (mask, origin), frame, cta)?;
                }
            }
        }
        Ok(())
    }

    /// A row of A makes a row of D undefined, a column of B a column, an element of C an element.
    pub(super) fn shade_wmma(&mut self, mma: &WmmaMma, frame: usize, active: u32) {
        let Some(shade) = self.frames[frame].as_mut().and_then(|f| f.shade.as_mut()) else { return };
        let dark = |list: &[Reg], fragment: Fragment, ty: WmmaType| {
            let of_element =
                |bits: u64, part: usize| bits >> (ty.bits * part) & element_mask(ty.bits as u32) != 0;
            gather(&shade.regs, list, fragment, ty, mma.shape, of_element)
        };
        let a = dark(&mma.a, Fragment::A, input(mma.a_type));
        let b = dark(&mma.b, Fragment::B, input(mma.a_type));
        let c = dark(&mma.c, Fragment::Accumulator, sums(mma.c_type));
        let origin = [&mma.a, &mma.b, &mma.c]
            .into_iter()
            .flatten()
            .filter(|reg| shade.dark(reg.bank, reg.slot) != 0)
            .find_map(|reg| shade.first_origin(reg.bank, reg.slot, u32::MAX))
            .map(|origin| Origin { computed: true, ..origin });
        let is_dark = |row: usize, column: usize| {
            c[row][column] || a[row].iter().any(|dark| *dark) || b.iter().any(|row| row[column])
        };
        let ty = sums(mma.d_type);
        for (i, reg) in mma.d.iter().enumerate() {
            for lane in lanes(active) {
                let bits = (0..ty.per_register).fold(0, |bits, part| {
                    let e = i * ty.per_register + part;
                    let (row, column) = place(Fragment::Accumulator, ty, mma.shape, lane, e);
                    let element = element_mask(ty.bits as u32) << (ty.bits * part);
                    bits | if is_dark(row, column) { element } else { 0 }
                });
                shade.set(reg.bank, reg.slot, lane, bits, origin);
            }
        }
    }
}

/// The bits of an element.
fn element_mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

/// A byte of ones for every bit, of eight.
fn widened(bytes: u32) -> u64 {
    (0..8).filter(|byte| bytes >> byte & 1 == 1).fold(0, |bits, byte| bits | 0xff << (8 * byte))
}

/// The elements of A and B, and of C and D.
fn input(ty: MatrixType) -> WmmaType {
    WmmaType { bits: ty.bits(), per_register: (32 / ty.bits()).max(1), is_f16: ty == MatrixType::F16 }
}

fn sums(ty: Scalar) -> WmmaType {
    let per_register = if ty == Scalar::F16 { 2 } else { 1 };
    WmmaType { bits: ty.bits().into(), per_register, is_f16: false }
}

/// The registers' bits of a fragment, by row and column.
fn gather<T: Copy + Default>(
    regs: &Regs,
    list: &[Reg],
    fragment: Fragment,
    ty: WmmaType,
    shape: [usize; 3],
    value: impl Fn(u64, usize) -> T,
) -> Vec<Vec<T>> {
    let [m, n, k] = shape;
    let (rows, columns) = match fragment {
        Fragment::A => (m, k),
        Fragment::B => (k, n),
        Fragment::Accumulator => (m, n),
    };
    let mut matrix = vec![vec![T::default(); columns]; rows];
    for (i, reg) in list.iter().enumerate() {
        for lane in 0..LANES {
            let bits = regs.bits(reg.bank, reg.slot, lane);
            for part in 0..ty.per_register {
                let (row, column) = place(fragment, ty, shape, lane, i * ty.per_register + part);
                matrix[row][column] = value(bits, part);
            }
        }
    }
    matrix
}

/// `wmma.mma`, in the lanes of `active`.
pub(super) fn execute(mma: &WmmaMma, regs: &mut Regs, active: u32) {
    let (ty, shape) = (mma.a_type, mma.shape);
    let input = input(ty);
    let bits = if ty.is_integer() {
        let a = gather(regs, &mma.a, Fragment::A, input, shape, |x, at| mma.a_type.integer(x, at));
        let b = gather(regs, &mma.b, Fragment::B, input, shape, |x, at| mma.b_type.integer(x, at));
        let c = gather(regs, &mma.c, Fragment::Accumulator, sums(mma.c_type), shape, |x, _| x as u32 as i32);
        products(&a, &b, c, |sum, row, column| integer_sum(sum, ty, row, column, mma.saturates) as u32 as u64)
    } else if ty == MatrixType::F64 {
        let number = |x: u64, _: usize| f64::from_bits(x);
        let a = gather(regs, &mma.a, Fragment::A, input, shape, number);
        let b = gather(regs, &mma.b, Fragment::B, input, shape, number);
        let c = gather(regs, &mma.c, Fragment::Accumulator, sums(mma.c_type), shape, number);
        products(&a, &b, c, |sum, row, column| {
            row.iter()
                .zip(column)
                .fold(sum, |sum, (x, y): (&f64, &f64)| fma(*x, *y, sum, mma.round))
                .to_bits()
        })
    } else {
        let a = gather(regs, &mma.a, Fragment::A, input, shape, |x, at| mma.a_type.number(x, at));
        let b = gather(regs, &mma.b, Fragment::B, input, shape, |x, at| mma.b_type.number(x, at));
        let c =
            gather(regs, &mma.c, Fragment::Accumulator, sums(mma.c_type), shape, |x, at| match mma.c_type {
                Scalar::F16 => f16_to_f32((x >> (16 * at)) as u16),
                _ => f32::from_bits(x as u32),
            });
        products(&a, &b, c, |sum, row, column| {
            let sum = row.iter().zip(column).fold(sum, |sum, (x, y): (&f32, &f32)| sum + x * y);
            match mma.d_type {
                Scalar::F16 => f32_to_f16(sum).into(),
                _ => canonical_bits(sum).into(),
            }
        })
    };
    let ty = sums(mma.d_type);
    for (i, reg) in mma.d.iter().enumerate() {
        for lane in lanes(active) {
            let value = (0..ty.per_register).fold(0, |word, part| {
                let (row, column) = place(Fragment::Accumulator, ty, shape, lane, i * ty.per_register + part);
                word | bits[row][column] << (16 * part)
            });
            regs.set_bits(reg.bank, reg.slot, lane, value);
        }
    }
}

fn products<T: Copy, S>(
    a: &[Vec<T>],
    b: &[Vec<T>],
    c: Vec<Vec<S>>,
    sum: impl Fn(S, &[T], &[T]) -> u64,
) -> Vec<Vec<u64>> {
    let columns: Vec<Vec<T>> = (0..b[0].len()).map(|n| b.iter().map(|row| row[n]).collect()).collect();
    let one = |(row, sums): (&Vec<T>, Vec<S>)| {
        sums.into_iter().zip(&columns).map(|(c, column)| sum(c, row, column)).collect()
    };
    a.iter().zip(c).map(one).collect()
}

/// The sum of the products of integers or bits.
pub(super) fn integer_sum(sum: i32, ty: MatrixType, row: &[i32], column: &[i32], saturates: bool) -> i32 {
    let product = |x: i32, y: i32| match ty {
        MatrixType::Bit { and: true } => x & y,
        MatrixType::Bit { and: false } => x ^ y,
        _ => x * y,
    };
    let total = row.iter().zip(column).fold(i64::from(sum), |sum, (x, y)| sum + i64::from(product(*x, *y)));
    if saturates { total.clamp(i32::MIN.into(), i32::MAX.into()) as i32 } else { total as i32 }
}
