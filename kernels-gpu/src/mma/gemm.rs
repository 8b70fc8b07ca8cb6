//! The two matrix products of a main-loop step.

use crate::element::{Accumulates, Element};
use crate::shape::Shape;
use crate::tile::smem_tile::{LaneView, SmemTile};
use crate::tile::warp_tile::{Tiles, WarpTile};

/// A warp's rows of Q: in registers, or in shared memory where they do not fit.
#[derive(Clone, Copy, Debug)]
pub struct Queries<S: Shape, W: WarpTile> {
    fragment: W::Q,
    tile: SmemTile<S>,
    in_registers: bool,
}

impl<S: Shape, W: WarpTile> Queries<S, W> {
    /// Reads the rows that `view` sees of the tile, where they are to stay in registers.
    ///
    /// # Safety
    /// All 32 lanes take part and the tile has been written. It stays as it is while this is used.
    #[inline(always)]
    pub unsafe fn new(tile: SmemTile<S>, view: LaneView<S>, in_registers: bool) -> Self {
        let mut queries = Self { fragment: Tiles::splat([0; 4]), tile, in_registers };
        if in_registers {
            for m in 0..W::M {
                for (k, operand) in queries.fragment.row_mut(m).iter_mut().enumerate() {
                    // SAFETY: the caller's.
                    *operand = unsafe { tile.load(view, m, k) };
                }
            }
        }
        queries
    }

    /// The A operand of m16 tile `m` and k16 step `k`.
    ///
    /// # Safety
    /// As for [`Self::new`].
    #[inline(always)]
    unsafe fn operand(&self, view: LaneView<S>, m: usize, k: usize) -> [u32; 4] {
        if self.in_registers {
            self.fragment.row(m)[k]
        } else {
            // SAFETY: the caller's.
            unsafe { self.tile.load(view, m, k) }
        }
    }
}

/// S = Q·Kᵀ for the rows that `q_view` sees of Q's tile, and the keys that `k_view` sees of K's.
///
/// # Safety
/// All 32 lanes take part and the tiles have been written.
#[inline(always)]
pub unsafe fn q_kt<E, A: Accumulates<E>, Q: Shape, K: Shape, W: WarpTile>(
    q: &Queries<Q, W>,
    q_view: LaneView<Q>,
    k_tile: SmemTile<K>,
    k_view: LaneView<K>,
) -> W::S<[f32; 4]> {
    let mut acc_s = W::S::<A::Tile>::splat(A::ZERO);
    // SAFETY: the caller's.
    unsafe { add_q_kt::<E, A, Q, K, W>(&mut acc_s, q, q_view, k_tile, k_view) }
    W::S::from_fn(|m, n| A::widen(acc_s.row(m)[n]))
}

/// S += Q·Kᵀ, as [`q_kt`].
///
/// # Safety
/// As for [`q_kt`].
#[inline(always)]
pub unsafe fn add_q_kt<E, A: Accumulates<E>, Q: Shape, K: Shape, W: WarpTile>(
    acc_s: &mut W::S<A::Tile>,
    q: &Queries<Q, W>,
    q_view: LaneView<Q>,
    k_tile: SmemTile<K>,
    k_view: LaneView<K>,
) {
    for k in 0..Q::STEPS as usize {
        // SAFETY: the caller's.
        let q_frag = W::A::from_fn(|m, _| unsafe { q.operand(q_view, m, k) });
        for n in 0..<W::P as Tiles<[u32; 4]>>::N {
            // SAFETY: the caller's.
            unsafe {
                let k_frag = k_tile.load(k_view, n, k);
                for m in 0..W::M {
                    let acc_s = acc_s.row_mut(m);
                    A::mma(&mut acc_s[2 * n], q_frag.row(m)[0], k_frag[0], k_frag[1]);
                    A::mma(&mut acc_s[2 * n + 1], q_frag.row(m)[0], k_frag[2], k_frag[3]);
                }
            }
        }
    }
}

/// O += P·V for the keys that `view` sees of V's tile.
///
/// # Safety
/// All 32 lanes take part and the tile has been written.
#[inline(always)]
pub unsafe fn p_v<E: Element, A: Accumulates<E>, V: Shape, W: WarpTile>(
    acc_o: &mut W::O,
    p: &W::S<[f32; 4]>,
    v_tile: SmemTile<V>,
    view: LaneView<V>,
) {
    let mut sums = W::Sums::<A::Tile>::from_fn(|m, n| A::begin(acc_o.row(m)[n]));
    for k in 0..<W::P as Tiles<[u32; 4]>>::N {
        let p_frag = W::A::from_fn(|m, _| a_operand::<E>(&p.row(m)[2 * k], &p.row(m)[2 * k + 1]));
        for n in 0..<W::O as Tiles<[f32; 4]>>::N / 2 {
            // SAFETY: the caller's.
            unsafe {
                let v_frag = v_tile.load_trans(view, k, n);
                for m in 0..W::M {
                    let sums = sums.row_mut(m);
                    A::mma(&mut sums[2 * n], p_frag.row(m)[0], v_frag[0], v_frag[1]);
                    A::mma(&mut sums[2 * n + 1], p_frag.row(m)[0], v_frag[2], v_frag[3]);
                }
            }
        }
    }
    *acc_o = W::O::from_fn(|m, n| A::end(acc_o.row(m)[n], sums.row(m)[n]));
}

/// Two neighbouring 16×8 accumulators, rounded, are a 16×16 A operand: no lane needs another lane's elements.
#[inline(always)]
pub fn a_operand<E: Element>(left: &[f32; 4], right: &[f32; 4]) -> [u32; 4] {
    [
        E::pack(left[0], left[1]),
        E::pack(left[2], left[3]),
        E::pack(right[0], right[1]),
        E::pack(right[2], right[3]),
    ]
}
