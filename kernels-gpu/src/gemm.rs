//! The two matrix products of a main-loop step.

use crate::element::{Element, ScoreAccumulation};
use crate::forward::Config;
use crate::geometry;
use crate::tile::{LaneView, OutputFragment, QueryFragment, ScoreFragment};

/// A warp's rows of Q: in registers, or in shared memory where they do not fit.
#[derive(Clone, Copy)]
pub struct Queries<const M: usize, const K: usize> {
    fragment: QueryFragment<M, K>,
    tile: u32,
}

impl<const M: usize, const K: usize> Queries<M, K> {
    /// Reads the rows that `view` sees of the tile at `tile`.
    ///
    /// # Safety
    /// All 32 lanes take part and the tile has been written. It stays as it is while this is used.
    #[inline(always)]
    pub unsafe fn new<C: Config>(tile: u32, view: LaneView) -> Self {
        let mut queries = Self { fragment: [[[0; 4]; K]; M], tile };
        if geometry::q_in_registers(&C::ROW) {
            for m in 0..M {
                for k in 0..K {
                    // SAFETY: the caller's.
                    queries.fragment[m][k] = unsafe { view.load::<C>(tile, m, k) };
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
    unsafe fn operand<C: Config>(&self, view: LaneView, m: usize, k: usize) -> [u32; 4] {
        if geometry::q_in_registers(&C::ROW) {
            self.fragment[m][k]
        } else {
            // SAFETY: the caller's.
            unsafe { view.load::<C>(self.tile, m, k) }
        }
    }
}

/// S = Q·Kᵀ for the rows that `q_view` sees of Q's tile, and the keys that `k_view` sees of the tile at `k_tile`.
///
/// # Safety
/// All 32 lanes take part and the tile has been written.
#[inline(always)]
pub unsafe fn q_kt<C: Config, const M: usize, const N: usize, const K: usize>(
    q: &Queries<M, K>,
    q_view: LaneView,
    k_tile: u32,
    k_view: LaneView,
) -> ScoreFragment<M, N> {
    let mut acc_s = [[C::Scores::ZERO; N]; M];
    for k in 0..K {
        // SAFETY: the caller's.
        let q_frag: [[u32; 4]; M] = core::array::from_fn(|m| unsafe { q.operand::<C>(q_view, m, k) });
        for n in 0..N / 2 {
            // SAFETY: the caller's.
            unsafe {
                let k_frag = k_view.load::<C>(k_tile, n, k);
                for m in 0..M {
                    C::Scores::mma(&mut acc_s[m][2 * n], q_frag[m], k_frag[0], k_frag[1]);
                    C::Scores::mma(&mut acc_s[m][2 * n + 1], q_frag[m], k_frag[2], k_frag[3]);
                }
            }
        }
    }
    acc_s.map(|tiles| tiles.map(C::Scores::widen))
}

/// O += P·V for the keys that `view` sees of the tile at `v_tile`.
///
/// # Safety
/// All 32 lanes take part and the tile has been written.
#[inline(always)]
pub unsafe fn p_v<C: Config, const M: usize, const N: usize, const D: usize>(
    acc_o: &mut OutputFragment<M, D>,
    p: &ScoreFragment<M, N>,
    v_tile: u32,
    view: LaneView,
) {
    for k in 0..N / 2 {
        let p_frag: [[u32; 4]; M] = core::array::from_fn(|m| a_operand::<C>(&p[m][2 * k], &p[m][2 * k + 1]));
        for n in 0..D / 2 {
            // SAFETY: the caller's.
            unsafe {
                let v_frag = view.load_trans::<C>(v_tile, k, n);
                for m in 0..M {
                    C::Element::mma(&mut acc_o[m][2 * n], p_frag[m], v_frag[0], v_frag[1]);
                    C::Element::mma(&mut acc_o[m][2 * n + 1], p_frag[m], v_frag[2], v_frag[3]);
                }
            }
        }
    }
}

/// Two neighbouring 16×8 accumulators, rounded, are a 16×16 A operand: no lane needs another lane's elements.
#[inline(always)]
fn a_operand<C: Config>(left: &[f32; 4], right: &[f32; 4]) -> [u32; 4] {
    [
        C::Element::pack(left[0], left[1]),
        C::Element::pack(left[2], left[3]),
        C::Element::pack(right[0], right[1]),
        C::Element::pack(right[2], right[3]),
    ]
}
