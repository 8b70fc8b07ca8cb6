//! NaN and infinities of streamed rows that only some stationary rows see: kept from the others, and given to those.
//!
//! P and dS are 0 for hidden pairs, but 0 · NaN is NaN. So blocks that are seen only in part are looked through before they are multiplied
//! along their rows; what is not finite is replaced by 0 there ([`keep_out`]), and at the end given to the rows that see it ([`spread`]).

use super::sums::Sums;
use crate::config::BackwardConfig;
use crate::element::Element;
use crate::keys::KeyRows;
use crate::math::epilogue::store_rows_from_registers;
use crate::math::restore::add;
use crate::math::scrub::{in_tile, scrub_tile};
use crate::ptx::memory::{ld_global_b16, ld_global_b32, st_global_b16, st_global_f32};
use crate::ptx::opaque;
use crate::shape::Shape;
use crate::tile::warp_tile::WarpTile;

/// Replaces NaN and infinities in `bytes` bytes of tiles by 0; whether there were any, for all threads alike. `sync_or` is a barrier that
/// says whether any thread has found one, `sync` one behind which products see what was written.
///
/// # Safety
/// All `threads` threads that compute take part, `thread` this one's index, and the tiles have landed. They have computed S and dP of them.
#[inline(always)]
pub unsafe fn keep_out<E: Element>(
    (start, bytes): (u32, u32),
    threads: (u32, u32),
    sync_or: impl Fn(bool) -> bool,
    sync: impl Fn(),
) -> bool {
    // SAFETY: the caller's; the barrier lies between all reads of S and dP and the first write, the second one behind the last.
    unsafe {
        let found = sync_or(in_tile::<E>(start, bytes, threads));
        if found {
            scrub_tile::<E>(start, bytes, threads);
            sync();
        }
        found
    }
}

/// Where a tile of gradients goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// The rows of its head.
    pub rows: KeyRows,
    /// The tile's first row, and the one past the last that is written.
    pub range: (u32, u32),
    /// Elements of a row.
    pub width: u32,
    /// Where its sums go instead, if other CTAs have some of them.
    pub sums: Sums,
}

impl Destination {
    /// Writes a warp's rows of a gradient from `first` of the tile on times `factor`, from registers. `lane` is asked again where it is needed, so that
    /// it need not be kept.
    ///
    /// # Safety
    /// All 32 lanes take part, and the destination is writable.
    #[inline(always)]
    pub unsafe fn store<E: Element, W: WarpTile>(
        &self,
        gradient: W::O,
        factor: f32,
        first: u32,
        lane: impl Fn() -> u32,
    ) {
        if self.sums.are_wanted() {
            // SAFETY: the caller's.
            return unsafe { self.sums.store::<W>(&gradient, factor, first, lane()) };
        }
        let address = |eight: u32| {
            let row = self.range.0 + first + eight * 8 + lane() / 4;
            (row < self.range.1, self.rows.address(row, 0))
        };
        let is_within = |column: u32| column < self.width;
        // SAFETY: the caller's.
        unsafe { store_rows_from_registers::<E, W>(gradient, [factor; 2], lane(), is_within, address) }
    }
}

/// What an element that is not finite makes of the sums it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taint {
    /// NaN, as its factor is: K's in dQ and Q's in dK, whose scores were not finite either.
    NotANumber,
    /// Itself, as its factor is positive: dO's in dV.
    Itself,
}

/// Rows of a streamed block, as the bound of [`spread`]'s loop: one that the compiler does not know where the loop is to stay one.
#[inline(always)]
pub fn rows_to_spread<C: BackwardConfig>() -> u32 {
    if C::SPREADS_IN_LOOP { opaque(C::Streamed::ROWS) } else { C::Streamed::ROWS }
}

/// Gives the elements of streamed rows that are not finite to a tile of gradients, already written, in the rows that see them: for each row
/// and each of `steps` blocks of `rows` streamed rows, `source(step, streamed row, row)` is the address of a row that it sees, of blocks
/// that are seen in part.
///
/// # Safety
/// All `threads` threads of the CTA take part, `thread` this one's index, after a barrier behind the stores of the gradients. The
/// addresses are readable.
#[inline(always)]
pub unsafe fn spread<E: Element>(
    to: &Destination,
    tile_rows: u32,
    (steps, rows): (u32, u32),
    taint: Taint,
    (thread, threads): (u32, u32),
    source: impl Fn(u32, u32, u32) -> Option<u64>,
) {
    // The compiler does not know that a width is not 0.
    let width = to.width.max(1);
    let mut element = thread;
    while element < tile_rows * width {
        let (row, column) = (to.range.0 + element / width, element % width);
        if row < to.range.1 {
            let mut step = 0;
            while step < steps {
                let mut streamed = 0;
                while streamed < rows {
                    if let Some(at) = source(step, streamed, row) {
                        // SAFETY: the caller's; an element of a streamed row, and this thread's of a gradient.
                        unsafe {
                            let value = ld_global_b16(at + u64::from(column * 2));
                            if value & E::EXPONENT == E::EXPONENT {
                                let value = if taint == Taint::NotANumber { 0x7fff } else { value };
                                if to.sums.are_wanted() {
                                    let at = to.sums.address(row - to.range.0, column);
                                    let sum = f32::from_bits(ld_global_b32(at));
                                    st_global_f32(at, sum + E::widen(value));
                                } else {
                                    let at = to.rows.address(row, column * 2);
                                    st_global_b16(at, add::<E>(ld_global_b16(at), value));
                                }
                            }
                        }
                    }
                    streamed += 1;
                }
                step += 1;
            }
        }
        element += threads;
    }
}
