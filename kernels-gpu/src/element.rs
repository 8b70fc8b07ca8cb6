//! Element types and accumulation types, as types: what differs between float16 and bfloat16 kernels.

use crate::math::softmax::LAZY_RESCALE_AT;
#[cfg(ferroflash_wgmma)]
use crate::ptx::wgmma::{self, Accumulator};
use crate::ptx::{math, memory, mma};
use crate::row::{Accumulation, Dtype};

/// What a column of the table is as a type.
pub trait TypeOf {
    /// The type.
    type Type;
}

/// The element type of a [`Dtype`], by its number.
pub enum ElementOf<const DTYPE: u8> {}

impl TypeOf for ElementOf<{ Dtype::F16 as u8 }> {
    type Type = F16;
}

impl TypeOf for ElementOf<{ Dtype::Bf16 as u8 }> {
    type Type = Bf16;
}

/// The accumulation of an [`Accumulation`], by its number.
pub enum AccumulationOf<const ACCUMULATION: u8> {}

impl TypeOf for AccumulationOf<{ Accumulation::F32 as u8 }> {
    type Type = F32Accumulation;
}

impl TypeOf for AccumulationOf<{ Accumulation::F16 as u8 }> {
    type Type = F16Accumulation;
}

/// The element type of Q, K, V and O.
pub trait Element: Copy {
    /// The exponent's bits: all set in NaN and the infinities.
    const EXPONENT: u16;
    /// The greatest power of 2 among the numbers.
    const LOG2_MAX: f32;

    /// Rounds two float32 and packs them, `low` in the lower half.
    fn pack(low: f32, high: f32) -> u32;

    /// An element as float32, exactly.
    fn widen(bits: u16) -> f32;

    /// The two elements of a packed pair as float32, exactly, that of the lower half first.
    fn unpack(pair: u32) -> [f32; 2];

    /// a · b + c of packed pairs.
    fn fma_pair(a: u32, b: u32, c: u32) -> u32;

    /// D += A·B, m16n8k16, float32 accumulators.
    ///
    /// # Safety
    /// All 32 lanes take part.
    unsafe fn mma(d: &mut [f32; 4], a: [u32; 4], b0: u32, b1: u32);

    /// D = A·Bᵀ or D += A·Bᵀ of a warpgroup, m64nNk16, A and B from shared memory.
    ///
    /// # Safety
    /// As for [`wgmma::wgmma_f16`].
    #[cfg(ferroflash_wgmma)]
    unsafe fn wgmma<const ACCUMULATE: bool, const N: usize>(d: &mut Accumulator<N>, a: u64, b: u64);

    /// D += Aᵀ·B of a warpgroup, m64nNk16, 16 rows of A and of B from shared memory.
    ///
    /// # Safety
    /// As for [`wgmma::wgmma_f16`].
    #[cfg(ferroflash_wgmma)]
    unsafe fn wgmma_rows<const N: usize>(d: &mut Accumulator<N>, a: u64, b: u64);

    /// D = A·Bᵀ of a warpgroup, m64nNk16, A and B from shared memory, in registers that hold nothing before.
    ///
    /// # Safety
    /// As for [`wgmma::wgmma_f16`].
    #[cfg(ferroflash_wgmma)]
    unsafe fn wgmma_new<const N: usize>(a: u64, b: u64) -> Accumulator<N>;

    /// As [`Self::wgmma_new`], A from registers.
    ///
    /// # Safety
    /// As for [`wgmma::wgmma_f16_from_registers`].
    #[cfg(ferroflash_wgmma)]
    unsafe fn wgmma_new_from_registers<const N: usize>(a: [u32; 4], b: u64) -> Accumulator<N>;

    /// D = A·B or, with `TRANSPOSED`, A·Bᵀ of a warpgroup, m64nNk16, A from registers; added to D with `ACCUMULATE`.
    ///
    /// # Safety
    /// As for [`wgmma::wgmma_f16_from_registers`].
    #[cfg(ferroflash_wgmma)]
    unsafe fn wgmma_from_registers<const ACCUMULATE: bool, const TRANSPOSED: bool, const N: usize>(
        d: &mut Accumulator<N>,
        a: [u32; 4],
        b: u64,
    );
}

/// float16.
#[derive(Clone, Copy, Debug)]
pub enum F16 {}

impl Element for F16 {
    const EXPONENT: u16 = 0x7c00;
    const LOG2_MAX: f32 = 15.0;

    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        math::pack_f16(low, high)
    }

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        math::unpack_f16(bits.into())[0]
    }

    #[inline(always)]
    fn unpack(pair: u32) -> [f32; 2] {
        math::unpack_f16(pair)
    }

    #[inline(always)]
    fn fma_pair(a: u32, b: u32, c: u32) -> u32 {
        math::fma_f16x2(a, b, c)
    }

    #[inline(always)]
    unsafe fn mma(d: &mut [f32; 4], a: [u32; 4], b0: u32, b1: u32) {
        // SAFETY: the caller's.
        unsafe { mma::mma_f32_f16(d, a, b0, b1) }
    }

    #[cfg(ferroflash_wgmma)]
    #[inline(always)]
    unsafe fn wgmma<const ACCUMULATE: bool, const N: usize>(d: &mut Accumulator<N>, a: u64, b: u64) {
        // SAFETY: the caller's.
        unsafe { wgmma::wgmma_f16::<ACCUMULATE, N>(d, a, b) }
    }

    #[cfg(ferroflash_wgmma)]
    #[inline(always)]
    unsafe fn wgmma_rows<const N: usize>(d: &mut Accumulator<N>, a: u64, b: u64) {
        // SAFETY: the caller's.
        unsafe { wgmma::wgmma_f16_rows::<N>(d, a, b) }
    }

    #[cfg(ferroflash_wgmma)]
    #[inline(always)]
    unsafe fn wgmma_new<const N: usize>(a: u64, b: u64) -> Accumulator<N> {
        // SAFETY: the caller's.
        unsafe { wgmma::wgmma_f16_new::<N>(a, b) }
    }

    #[cfg(ferroflash_wgmma)]
    #[inline(always)]
    unsafe fn wgmma_new_from_registers<const N: usize>(a: [u32; 4], b: u64) -> Accumulator<N> {
        // SAFETY: the caller's.
        unsafe { wgmma::wgmma_f16_new_from_registers::<N>(a, b) }
    }

    #[cfg(ferroflash_wgmma)]
    #[inline(always)]
    unsafe fn wgmma_from_registers<const ACCUMULATE: bool, const TRANSPOSED: bool, const N: usize>(
        d: &mut Accumulator<N>,
        a: [u32; 4],
        b: u64,
    ) {
        // SAFETY: the caller's.
        unsafe { wgmma::wgmma_f16_from_registers::<ACCUMULATE, TRANSPOSED, N>(d, a, b) }
    }
}

/// bfloat16.
#[derive(Clone, Copy, Debug)]
pub enum Bf16 {}

impl Element for Bf16 {
    const EXPONENT: u16 = 0x7f80;
    const LOG2_MAX: f32 = 127.0;

    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        math::pack_bf16(low, high)
    }

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn unpack(pair: u32) -> [f32; 2] {
        [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
    }

    #[inline(always)]
    fn fma_pair(a: u32, b: u32, c: u32) -> u32 {
        math::fma_bf16x2(a, b, c)
    }

    #[inline(always)]
    unsafe fn mma(d: &mut [f32; 4], a: [u32; 4], b0: u32, b1: u32) {
        // SAFETY: the caller's.
        unsafe { mma::mma_f32_bf16(d, a, b0, b1) }
    }

    #[cfg(ferroflash_wgmma)]
    #[inline(always)]
    unsafe fn wgmma<const ACCUMULATE: bool, const N: usize>(d: &mut Accumulator<N>, a: u64, b: u64) {
        // SAFETY: the caller's.
        unsafe { wgmma::wgmma_bf16::<ACCUMULATE, N>(d, a, b) }
    }

    #[cfg(ferroflash_wgmma)]
    #[inline(always)]
    unsafe fn wgmma_rows<const N: usize>(d: &mut Accumulator<N>, a: u64, b: u64) {
        // SAFETY: the caller's.
        unsafe { wgmma::wgmma_bf16_rows::<N>(d, a, b) }
    }

    #[cfg(ferroflash_wgmma)]
    #[inline(always)]
    unsafe fn wgmma_new<const N: usize>(a: u64, b: u64) -> Accumulator<N> {
        // SAFETY: the caller's.
        unsafe { wgmma::wgmma_bf16_new::<N>(a, b) }
    }

    #[cfg(ferroflash_wgmma)]
    #[inline(always)]
    unsafe fn wgmma_new_from_registers<const N: usize>(a: [u32; 4], b: u64) -> Accumulator<N> {
        // SAFETY: the caller's.
        unsafe { wgmma::wgmma_bf16_new_from_registers::<N>(a, b) }
    }

    #[cfg(ferroflash_wgmma)]
    #[inline(always)]
    unsafe fn wgmma_from_registers<const ACCUMULATE: bool, const TRANSPOSED: bool, const N: usize>(
        d: &mut Accumulator<N>,
        a: [u32; 4],
        b: u64,
    ) {
        // SAFETY: the caller's.
        unsafe { wgmma::wgmma_bf16_from_registers::<ACCUMULATE, TRANSPOSED, N>(d, a, b) }
    }
}

/// The type that elements have in memory; they are computed with in float32.
pub trait Stored {
    /// Bytes of an element.
    const BYTES: u32;

    /// Eight elements.
    ///
    /// # Safety
    /// `global` is a multiple of 16 with that many readable elements behind it.
    unsafe fn load(global: u64) -> [f32; 8];

    /// Rounds and stores eight elements.
    ///
    /// # Safety
    /// `global` is a multiple of 16 with that many writable elements behind it.
    unsafe fn store(global: u64, elements: [f32; 8]);
}

impl<E: Element> Stored for E {
    const BYTES: u32 = 2;

    #[inline(always)]
    unsafe fn load(global: u64) -> [f32; 8] {
        // SAFETY: the caller's.
        let words = unsafe { memory::ld_global_v4(global) };
        core::array::from_fn(|i| half::<E>(words[i / 2], i % 2))
    }

    #[inline(always)]
    unsafe fn store(global: u64, elements: [f32; 8]) {
        let words = core::array::from_fn(|i| E::pack(elements[2 * i], elements[2 * i + 1]));
        // SAFETY: the caller's.
        unsafe { memory::st_global_v4(global, words) }
    }
}

/// An element of a packed pair, 0 for the lower one.
#[inline(always)]
pub fn half<E: Element>(pair: u32, which: usize) -> f32 {
    E::widen((pair >> (16 * which)) as u16)
}

/// float32.
#[derive(Clone, Copy, Debug)]
pub enum F32 {}

impl Stored for F32 {
    const BYTES: u32 = 4;

    #[inline(always)]
    unsafe fn load(global: u64) -> [f32; 8] {
        // SAFETY: the caller's.
        let halves = unsafe { [memory::ld_global_v4(global), memory::ld_global_v4(global + 16)] };
        core::array::from_fn(|i| f32::from_bits(halves[i / 4][i % 4]))
    }

    #[inline(always)]
    unsafe fn store(global: u64, elements: [f32; 8]) {
        let [a, b, c, d, e, f, g, h] = elements.map(f32::to_bits);
        // SAFETY: the caller's.
        unsafe {
            memory::st_global_v4(global, [a, b, c, d]);
            memory::st_global_v4(global + 16, [e, f, g, h]);
        }
    }
}

/// What the products of a main-loop step accumulate in.
pub trait Accumulates<E> {
    /// A lane's four elements of a 16×8 tile of a product.
    type Tile: Copy;
    /// A tile of zeros.
    const ZERO: Self::Tile;
    /// How far, in powers of 2, a row's scores may grow past row_max before O and row_sum are rescaled: P stays below 2 to that power.
    const RESCALE_AT: f32;

    /// D += A·B, m16n8k16.
    ///
    /// # Safety
    /// All 32 lanes take part.
    unsafe fn mma(d: &mut Self::Tile, a: [u32; 4], b0: u32, b1: u32);

    /// The tile in float32.
    fn widen(tile: Self::Tile) -> [f32; 4];

    /// Where a step begins that adds to a float32 sum.
    fn begin(sum: [f32; 4]) -> Self::Tile;

    /// That sum and what the step added.
    fn end(sum: [f32; 4], added: Self::Tile) -> [f32; 4];
}

/// float32 accumulation.
pub enum F32Accumulation {}

impl<E: Element> Accumulates<E> for F32Accumulation {
    type Tile = [f32; 4];
    const ZERO: Self::Tile = [0.0; 4];
    const RESCALE_AT: f32 = LAZY_RESCALE_AT;

    #[inline(always)]
    unsafe fn mma(d: &mut Self::Tile, a: [u32; 4], b0: u32, b1: u32) {
        // SAFETY: the caller's.
        unsafe { E::mma(d, a, b0, b1) }
    }

    #[inline(always)]
    fn widen(tile: Self::Tile) -> [f32; 4] {
        tile
    }

    #[inline(always)]
    fn begin(sum: [f32; 4]) -> Self::Tile {
        sum
    }

    #[inline(always)]
    fn end(_: [f32; 4], added: Self::Tile) -> [f32; 4] {
        added
    }
}

/// float16 accumulation, of float16 elements only.
pub enum F16Accumulation {}

impl Accumulates<F16> for F16Accumulation {
    type Tile = [u32; 2];
    const ZERO: Self::Tile = [0; 2];
    // P is 1 at most, so that a step's sum is as far from 65504 as it can be.
    const RESCALE_AT: f32 = 0.0;

    #[inline(always)]
    unsafe fn mma(d: &mut Self::Tile, a: [u32; 4], b0: u32, b1: u32) {
        // SAFETY: the caller's.
        unsafe { mma::mma_f16_f16(d, a, b0, b1) }
    }

    #[inline(always)]
    fn widen(tile: Self::Tile) -> [f32; 4] {
        let [low, high] = [math::unpack_f16(tile[0]), math::unpack_f16(tile[1])];
        [low[0], low[1], high[0], high[1]]
    }

    #[inline(always)]
    fn begin(_: [f32; 4]) -> Self::Tile {
        <Self as Accumulates<F16>>::ZERO
    }

    #[inline(always)]
    fn end(sum: [f32; 4], added: Self::Tile) -> [f32; 4] {
        let added = <Self as Accumulates<F16>>::widen(added);
        core::array::from_fn(|i| sum[i] + added[i])
    }
}
