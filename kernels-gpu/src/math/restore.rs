//! Adds to O the NaN and infinities of V that were replaced by 0 ([`crate::math::scrub`]), in the rows that see them.

use crate::element::Element;
use crate::keys::{KeyRows, RaggedKeys};
use crate::ptx::memory::{ld_global_b16, ld_global_b32, st_global_b16, st_global_f32};
use crate::queries::QueryRows;
use crate::visible::{KeyBlocks, Visible};

/// Keys that some row of a tile sees only in part, and where V's rows of them lie.
#[derive(Clone, Copy, Debug)]
pub struct PartlyVisible {
    /// The first such key.
    pub first: u32,
    /// Past the last key that the tile works on.
    pub end: u32,
    /// V's rows.
    pub v: KeyRows,
}

/// The rows of O of a ragged batch that are looked through: `rows` rows of `head_dim` elements from `first_row` on, by `threads` threads of which this is
/// number `thread`.
#[derive(Clone, Copy, Debug)]
pub struct Restored {
    /// The first row.
    pub first_row: u32,
    /// Rows.
    pub rows: u32,
    /// Elements of each.
    pub head_dim: u32,
    /// This thread's index.
    pub thread: u32,
    /// Threads.
    pub threads: u32,
    /// Whether O is a split's partial O.
    pub partial: bool,
}

/// Adds to O, already written, the non-finite elements of V at the keys of `keys` that each row sees: for `rows` rows of `head_dim`
/// elements from `first_row` on. `visible_end` gives the first key that a row does not see; `partial` says that O is a split's
/// partial O. Called by all `threads` threads; `thread` is this one's index.
///
/// # Safety
/// All those threads take part, after a barrier that makes their writes to the rows of O visible to each other, and no others
/// write those rows. V is readable at the keys, and O writable.
#[inline(always)]
pub unsafe fn restore<E: Element>(
    queries: &QueryRows<'_>,
    keys: PartlyVisible,
    partial: bool,
    (first_row, rows, head_dim): (u32, u32, u32),
    (thread, threads): (u32, u32),
    visible_end: impl Fn(u32) -> u32,
) {
    let v_start = keys.v.start();
    let mut element = thread;
    while element < rows * head_dim {
        let (row, column) = (first_row + element / head_dim, element % head_dim);
        if row < queries.past() {
            let end = visible_end(row).min(keys.end);
            let mut key = keys.first;
            while key < end {
                let v_at = v_start.wrapping_add_signed(keys.v.distance(key.into())) + u64::from(column * 2);
                // SAFETY: an element of V, and this thread's element of O or of the partial O.
                unsafe {
                    let v = ld_global_b16(v_at);
                    if v & E::EXPONENT == E::EXPONENT {
                        if partial {
                            let index = queries.partial_index(row);
                            let o_at = queries.partial_o(index, head_dim) + u64::from(column * 4);
                            let o = f32::from_bits(ld_global_b32(o_at));
                            st_global_f32(o_at, o + widened::<E>(v));
                        } else {
                            let o_at = queries.o(row) + u64::from(column * 2);
                            st_global_b16(o_at, add::<E>(ld_global_b16(o_at), v));
                        }
                    }
                }
                key += 1;
            }
        }
        element += threads;
    }
}

/// As [`restore`], of a ragged batch: at the keys of all of `blocks`' steps that some row sees only in part. `sees` says whether the score shows
/// a key of `visible` to a row.
///
/// # Safety
/// As for [`restore`].
#[inline(always)]
pub unsafe fn restore_ragged<E: Element>(
    queries: &QueryRows<'_>,
    keys: RaggedKeys<'_>,
    (blocks, block_n, sink_tokens): (KeyBlocks, u32, u32),
    restored: Restored,
    visible: impl Fn(u32) -> Visible,
    sees: impl Fn(u32, u32) -> bool,
) {
    // The compiler does not know that a width is not 0.
    let restored = Restored { head_dim: restored.head_dim.max(1), ..restored };
    let mut element = restored.thread;
    while element < restored.rows * restored.head_dim {
        let (row, column) = (restored.first_row + element / restored.head_dim, element % restored.head_dim);
        if row < queries.past() {
            let Visible { begin, end } = visible(row);
            let mut step = blocks.first;
            while step < blocks.end {
                if blocks.is_partial(step) {
                    let mut key = blocks.block(step) * block_n;
                    let past = (key + block_n).min(end);
                    while key < past {
                        // SAFETY: a key of the sequence; an element of V, and this thread's element of O or of the partial O.
                        unsafe {
                            if (key >= begin || key < sink_tokens) && sees(row, key) {
                                if let Some([_, v_row]) = keys.row(key) {
                                    let v_at = v_row + u64::from(column * 2);
                                    add_element::<E>(queries, restored, (row, column), v_at);
                                }
                            }
                        }
                        key += 1;
                    }
                }
                step += 1;
            }
        }
        element += restored.threads;
    }
}

/// Adds the element of V at `v_at` to one of O, unless it is finite.
///
/// # Safety
/// As for [`restore`].
#[inline(always)]
unsafe fn add_element<E: Element>(
    queries: &QueryRows<'_>,
    restored: Restored,
    (row, column): (u32, u32),
    v_at: u64,
) {
    // SAFETY: the caller's.
    unsafe {
        let v = ld_global_b16(v_at);
        if v & E::EXPONENT == E::EXPONENT {
            if restored.partial {
                let index = queries.partial_index(row);
                let o_at = queries.partial_o(index, restored.head_dim) + u64::from(column * 4);
                let o = f32::from_bits(ld_global_b32(o_at));
                st_global_f32(o_at, o + widened::<E>(v));
            } else {
                let o_at = queries.o(row) + u64::from(column * 2);
                st_global_b16(o_at, add::<E>(ld_global_b16(o_at), v));
            }
        }
    }
}

/// The sum of `o` and a non-finite `v` times a positive weight.
#[inline(always)]
pub fn add<E: Element>(o: u16, v: u16) -> u16 {
    const MAGNITUDE: u16 = 0x7fff;
    let is_nan = |bits: u16| bits & MAGNITUDE > E::EXPONENT;
    let opposite_infinities = o & MAGNITUDE == E::EXPONENT && o != v;
    if is_nan(o) || is_nan(v) || opposite_infinities { MAGNITUDE } else { v }
}

/// A non-finite `v` as float32.
#[inline(always)]
fn widened<E: Element>(v: u16) -> f32 {
    let infinity = f32::from_bits(u32::from(v >> 15) << 31 | f32::INFINITY.to_bits());
    if v & 0x7fff > E::EXPONENT { f32::NAN } else { infinity }
}
