//! Matrix multiply-accumulate of a warpgroup (PTX ISA, "wgmma.mma_async", m64nNk16) with float32 accumulators. sm_90a.
//!
//! A warp of the four holds 16 rows of D, in the lane maps of mma.sync: as many n8 tiles as N has. All 128 threads of the
//! warpgroup take part in each call, converged. Between [`wgmma_fence`] and the wait that ends a group nobody touches the
//! registers of its operands; the waits take the accumulators, so that the compiler knows.

use core::arch::asm;

/// A lane's part of D: its four elements of each n8 tile.
pub type Accumulator<const N: usize> = [[f32; 4]; N];

/// `wgmma.fence`: what was written to registers and to shared memory before comes before the wgmma that follow.
#[inline(always)]
pub fn wgmma_fence() {
    // SAFETY: orders accesses of this thread only.
    unsafe { asm!("wgmma.fence.sync.aligned;", options(nostack)) }
}

/// `wgmma.commit_group`: the wgmma since the last group become one.
#[inline(always)]
pub fn wgmma_commit_group() {
    // SAFETY: closes this thread's group only.
    unsafe { asm!("wgmma.commit_group.sync.aligned;", options(nostack)) }
}

/// Calls `$call!` with its arguments, the shape's name and the numbers of its n8 tiles.
#[rustfmt::skip]
macro_rules! for_shape {
    ($n8_tiles:expr, $call:ident!($($argument:tt)*)) => {
        match $n8_tiles {
            4 => $call!($($argument)* "n32", 0 1 2 3),
            8 => $call!($($argument)* "n64", 0 1 2 3 4 5 6 7),
            10 => $call!($($argument)* "n80", 0 1 2 3 4 5 6 7 8 9),
            12 => $call!($($argument)* "n96", 0 1 2 3 4 5 6 7 8 9 10 11),
            14 => $call!($($argument)* "n112", 0 1 2 3 4 5 6 7 8 9 10 11 12 13),
            16 => $call!($($argument)* "n128", 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15),
            18 => $call!($($argument)* "n144", 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17),
            20 => $call!($($argument)* "n160", 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19),
            22 => $call!($($argument)* "n176", 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21),
            24 => $call!($($argument)* "n192", 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23),
            26 => $call!($($argument)* "n208", 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25),
            28 => $call!($($argument)* "n224", 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27),
            30 => $call!($($argument)* "n240", 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29),
            32 => $call!($($argument)* "n256", 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31),
            _ => panic!("block_n or head_dim has no wgmma of its width"),
        }
    };
}

/// Places for the registers of one more n8 tile.
macro_rules! registers_of {
    ($tile:literal) => {
        ", {}, {}, {}, {}"
    };
}

/// An instruction that names an accumulator without a use of it: what writes the registers stays before it, and what reads them behind it.
macro_rules! tied {
    ($instruction:literal, ($($operand:tt)*), $d:ident, $shape:literal, 0 $($tile:literal)*) => {
        asm!(
            concat!($instruction, " // {}, {}, {}, {}", $(registers_of!($tile)),*),
            inout(reg32) $d[0][0], inout(reg32) $d[0][1], inout(reg32) $d[0][2], inout(reg32) $d[0][3],
            $(inout(reg32) $d[$tile][0], inout(reg32) $d[$tile][1], inout(reg32) $d[$tile][2],
                inout(reg32) $d[$tile][3],)*
            $($operand)* options(nostack)
        )
    };
}

/// A product of these types, of operands as they are written behind D, and the operands. D is `inout`; or `out` alone where nothing is added up: else
/// what its registers held before would be alive up to here.
macro_rules! product {
    ($direction:ident, $types:literal, $accumulate:expr, $operands:literal, ($($operand:tt)*), $d:ident,
        $shape:literal, 0 $($tile:literal)*) => {
        asm!(
            concat!("{{ .reg .pred p; setp.ne.b32 p, {accumulate}, 0; wgmma.mma_async.sync.aligned.m64", $shape,
                "k16.f32.", $types, " {{{}, {}, {}, {}", $(registers_of!($tile),)* "}}, ", $operands, "; }}"),
            $direction(reg32) $d[0][0], $direction(reg32) $d[0][1], $direction(reg32) $d[0][2],
            $direction(reg32) $d[0][3],
            $($direction(reg32) $d[$tile][0], $direction(reg32) $d[$tile][1], $direction(reg32) $d[$tile][2],
                $direction(reg32) $d[$tile][3],)*
            $($operand)* accumulate = const $accumulate as i32, options(nostack)
        )
    };
}

/// `wgmma.wait_group`: all groups but the latest `PENDING` are done; `d` belongs to one that is.
///
/// # Safety
/// All 128 threads take part.
#[inline(always)]
pub unsafe fn wgmma_wait_group<const PENDING: i32, const N: usize>(d: &mut Accumulator<N>) {
    // SAFETY: the caller's.
    unsafe {
        for_shape!(N, tied!("wgmma.wait_group.sync.aligned {pending};", (pending = const PENDING,), d,))
    }
}

/// [`wgmma_fence`] for an accumulator that has been written: the writes stay before it.
#[inline(always)]
pub fn wgmma_fence_of<const N: usize>(d: &mut Accumulator<N>) {
    // SAFETY: orders accesses of this thread only.
    unsafe { for_shape!(N, tied!("wgmma.fence.sync.aligned;", (), d,)) }
}

macro_rules! wgmma {
    ($($(#[$doc:meta])* $shared:ident, $rows:ident, $new:ident, $new_registers:ident, $registers:ident => $types:literal;)*) => { $(
        $(#[$doc])*
        /// D = A·Bᵀ or, with `ACCUMULATE`, D += A·Bᵀ, of 16 elements of head_dim: A and B are rows in shared memory.
        ///
        /// # Safety
        /// All 128 threads take part, and nobody writes what the descriptors name before the group is done. D is not touched
        /// between the last [`wgmma_fence`] and that end.
        #[inline(always)]
        pub unsafe fn $shared<const ACCUMULATE: bool, const N: usize>(d: &mut Accumulator<N>, a: u64, b: u64) {
            // SAFETY: the caller's.
            unsafe { for_shape!(N, product!(inout, $types, ACCUMULATE, "{a}, {b}, p, 1, 1, 0, 0", (a = in(reg64) a, b = in(reg64) b,), d,)) }
        }

        $(#[$doc])*
        /// D += Aᵀ·B of 16 rows of A and of B in shared memory.
        ///
        /// # Safety
        /// As for the other form.
        #[inline(always)]
        pub unsafe fn $rows<const N: usize>(d: &mut Accumulator<N>, a: u64, b: u64) {
            // SAFETY: the caller's.
            unsafe { for_shape!(N, product!(inout, $types, true, "{a}, {b}, p, 1, 1, 1, 1", (a = in(reg64) a, b = in(reg64) b,), d,)) }
        }

        $(#[$doc])*
        /// As the other form without accumulation, D in registers that hold nothing before.
        ///
        /// # Safety
        /// As for the other form.
        #[inline(always)]
        pub unsafe fn $new<const N: usize>(a: u64, b: u64) -> Accumulator<N> {
            let mut d = [[0.0; 4]; N];
            // SAFETY: the caller's.
            unsafe { for_shape!(N, product!(out, $types, false, "{a}, {b}, p, 1, 1, 0, 0", (a = in(reg64) a, b = in(reg64) b,), d,)) };
            d
        }

        $(#[$doc])*
        /// As the form before, A in registers as for mma.sync.
        ///
        /// # Safety
        /// As for the other form; A's registers are not written either.
        #[inline(always)]
        pub unsafe fn $new_registers<const N: usize>(a: [u32; 4], b: u64) -> Accumulator<N> {
            let mut d = [[0.0; 4]; N];
            // SAFETY: the caller's.
            unsafe { for_shape!(N, product!(out, $types, false, "{{{a0}, {a1}, {a2}, {a3}}}, {b}, p, 1, 1, 0", (a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3], b = in(reg64) b,), d,)) };
            d
        }

        $(#[$doc])*
        /// A is in registers as for mma.sync, B has its rows in shared memory. D = A·B of 16 rows of B or, with `TRANSPOSED`, A·Bᵀ of 16
        /// elements of each; added to D with `ACCUMULATE`.
        ///
        /// # Safety
        /// As for the other form; A's registers are not written either.
        #[inline(always)]
        pub unsafe fn $registers<const ACCUMULATE: bool, const TRANSPOSED: bool, const N: usize>(
            d: &mut Accumulator<N>,
            a: [u32; 4],
            b: u64,
        ) {
            // SAFETY: the caller's.
            unsafe { for_shape!(N, product!(inout, $types, ACCUMULATE, "{{{a0}, {a1}, {a2}, {a3}}}, {b}, p, 1, 1, {b_along_rows}", (a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3], b = in(reg64) b, b_along_rows = const !TRANSPOSED as i32,), d,)) }
        }
    )* };
}

wgmma! {
    /// float16 operands.
    wgmma_f16, wgmma_f16_rows, wgmma_f16_new, wgmma_f16_new_from_registers, wgmma_f16_from_registers => "f16.f16";
    /// bfloat16 operands.
    wgmma_bf16, wgmma_bf16_rows, wgmma_bf16_new, wgmma_bf16_new_from_registers, wgmma_bf16_from_registers => "bf16.bf16";
}
