//! The two matrix products of a k-loop step, as a consumer warpgroup issues them.

use crate::element::Element;
use crate::ptx::wgmma::{wgmma_commit_group, wgmma_fence_of, wgmma_wait_group};
use crate::shape::Shape;
use crate::tile::descriptor::{self, Descriptor};
use crate::tile::warp_tile::{Fragments, Tiles, WarpTile};

/// The fragments of a warp as accumulators and operands of wgmma: the instruction's width is theirs.
pub trait WgmmaTile: WarpTile {
    /// S = Q·Kᵀ of 16 elements of head_dim, both from shared memory, or S += with `ACCUMULATE`.
    ///
    /// # Safety
    /// As for [`crate::ptx::wgmma::wgmma_f16`].
    unsafe fn scores<E: Element, const ACCUMULATE: bool>(s: &mut Self::S<[f32; 4]>, q: u64, k: u64);

    /// The first S = Q·Kᵀ of a block, whose registers hold nothing before.
    ///
    /// # Safety
    /// As for [`crate::ptx::wgmma::wgmma_f16`].
    unsafe fn new_scores<E: Element>(q: u64, k: u64) -> Self::S<[f32; 4]>;

    /// As [`Self::new_scores`], Q from registers.
    ///
    /// # Safety
    /// As for [`crate::ptx::wgmma::wgmma_f16_from_registers`].
    unsafe fn new_scores_from_registers<E: Element>(q: [u32; 4], k: u64) -> Self::S<[f32; 4]>;

    /// As [`Self::scores`], Q from registers.
    ///
    /// # Safety
    /// As for [`crate::ptx::wgmma::wgmma_f16_from_registers`].
    unsafe fn scores_from_registers<E: Element, const ACCUMULATE: bool>(
        s: &mut Self::S<[f32; 4]>,
        q: [u32; 4],
        k: u64,
    );

    /// O += P·V of 16 keys, P from registers.
    ///
    /// # Safety
    /// As for [`crate::ptx::wgmma::wgmma_f16_from_registers`].
    unsafe fn output<E: Element>(o: &mut Self::O, p: [u32; 4], v: u64);

    /// O += Aᵀ·V of 16 rows of A and of V, both from shared memory.
    ///
    /// # Safety
    /// As for [`crate::ptx::wgmma::wgmma_f16`].
    unsafe fn output_from_shared<E: Element>(o: &mut Self::O, a: u64, v: u64);

    /// [`crate::ptx::wgmma::wgmma_fence`] for S, which has been written.
    fn fence_scores(s: &mut Self::S<[f32; 4]>);

    /// Waits for all groups but the latest `PENDING`, to one of which S belongs.
    ///
    /// # Safety
    /// All 128 threads of the warpgroup take part.
    unsafe fn wait_scores<const PENDING: i32>(s: &mut Self::S<[f32; 4]>);

    /// Waits for all groups, to one of which O belongs.
    ///
    /// # Safety
    /// All 128 threads of the warpgroup take part.
    unsafe fn wait_output(o: &mut Self::O);
}

impl<const N: usize, const N2: usize, const V: usize, const Q: usize> WgmmaTile
    for Fragments<1, N, N2, V, Q>
{
    #[inline(always)]
    unsafe fn scores<E: Element, const ACCUMULATE: bool>(s: &mut Self::S<[f32; 4]>, q: u64, k: u64) {
        // SAFETY: the caller's.
        unsafe { E::wgmma::<ACCUMULATE, N>(&mut s[0], q, k) }
    }

    #[inline(always)]
    unsafe fn new_scores<E: Element>(q: u64, k: u64) -> Self::S<[f32; 4]> {
        // SAFETY: the caller's.
        [unsafe { E::wgmma_new::<N>(q, k) }]
    }

    #[inline(always)]
    unsafe fn new_scores_from_registers<E: Element>(q: [u32; 4], k: u64) -> Self::S<[f32; 4]> {
        // SAFETY: the caller's.
        [unsafe { E::wgmma_new_from_registers::<N>(q, k) }]
    }

    #[inline(always)]
    unsafe fn scores_from_registers<E: Element, const ACCUMULATE: bool>(
        s: &mut Self::S<[f32; 4]>,
        q: [u32; 4],
        k: u64,
    ) {
        // SAFETY: the caller's.
        unsafe { E::wgmma_from_registers::<ACCUMULATE, true, N>(&mut s[0], q, k) }
    }

    #[inline(always)]
    unsafe fn output<E: Element>(o: &mut Self::O, p: [u32; 4], v: u64) {
        // SAFETY: the caller's.
        unsafe { E::wgmma_from_registers::<true, false, V>(&mut o[0], p, v) }
    }

    #[inline(always)]
    unsafe fn output_from_shared<E: Element>(o: &mut Self::O, a: u64, v: u64) {
        // SAFETY: the caller's.
        unsafe { E::wgmma_rows::<V>(&mut o[0], a, v) }
    }

    #[inline(always)]
    fn fence_scores(s: &mut Self::S<[f32; 4]>) {
        wgmma_fence_of::<N>(&mut s[0]);
    }

    #[inline(always)]
    unsafe fn wait_scores<const PENDING: i32>(s: &mut Self::S<[f32; 4]>) {
        // SAFETY: the caller's.
        unsafe { wgmma_wait_group::<PENDING, N>(&mut s[0]) }
    }

    #[inline(always)]
    unsafe fn wait_output(o: &mut Self::O) {
        // SAFETY: the caller's.
        unsafe { wgmma_wait_group::<0, V>(&mut o[0]) }
    }
}

/// Issues S = Q·Kᵀ of a block, in the k16 `steps` of head_dim that a part of K at `k_smem` has, the first part first; the group is still open. Added
/// to S with `ADD`. Q comes from `q_fragment` where `q_in_registers`, and else from the warpgroup's rows at `q_smem`.
///
/// # Safety
/// All 128 threads of the warpgroup take part, behind a [`crate::ptx::wgmma::wgmma_fence`]. Q and K have landed, and neither they nor the
/// fragments are touched until the group is done.
#[inline(always)]
pub(super) unsafe fn issue_scores<E: Element, Q: Shape, K: Shape, W: WgmmaTile, const ADD: bool>(
    s: &mut W::S<[f32; 4]>,
    (q_fragment, q_in_registers): (&W::Q, bool),
    q_smem: u32,
    (k_smem, steps): (u32, core::ops::Range<u32>),
) {
    let first = steps.start;
    let q = Descriptor::along_head_dim::<Q>().at(q_smem);
    let k = Descriptor::along_head_dim::<K>().at(k_smem);
    // SAFETY: the caller's.
    unsafe {
        for step in steps {
            let q = q.advance(descriptor::head_dim_step::<Q>(step)).bits();
            let k = k.advance(descriptor::head_dim_step::<K>(step - first)).bits();
            let operand = q_fragment.row(0)[step as usize];
            match (q_in_registers, ADD || step > 0) {
                (true, false) => W::scores_from_registers::<E, false>(s, operand, k),
                (true, true) => W::scores_from_registers::<E, true>(s, operand, k),
                (false, false) => W::scores::<E, false>(s, q, k),
                (false, true) => W::scores::<E, true>(s, q, k),
            }
        }
    }
}

/// Issues the product of the warpgroup's rows of a tile at `a_smem` with the rows of another, both along head_dim, as one group.
///
/// # Safety
/// As for [`issue_scores`].
#[inline(always)]
pub(super) unsafe fn issue_new_scores<E: Element, A: Shape, B: Shape, W: WgmmaTile>(
    a_smem: u32,
    b_smem: u32,
) -> W::S<[f32; 4]> {
    let a = Descriptor::along_head_dim::<A>().at(a_smem);
    let b = Descriptor::along_head_dim::<B>().at(b_smem);
    // SAFETY: the caller's.
    let s = unsafe {
        let mut s = W::new_scores::<E>(a.bits(), b.bits());
        for step in 1..A::STEPS {
            let a = a.advance(descriptor::head_dim_step::<A>(step)).bits();
            let b = b.advance(descriptor::head_dim_step::<B>(step)).bits();
            W::scores::<E, true>(&mut s, a, b);
        }
        s
    };
    wgmma_commit_group();
    s
}

/// As [`issue_new_scores`], of rows that each warp has in registers.
///
/// # Safety
/// As for [`issue_scores`].
#[inline(always)]
pub(super) unsafe fn issue_new_scores_from_registers<E: Element, B: Shape, W: WgmmaTile>(
    a: &W::Q,
    b_smem: u32,
) -> W::S<[f32; 4]> {
    let (a, b) = (a.row(0), Descriptor::along_head_dim::<B>().at(b_smem));
    // SAFETY: the caller's.
    let s = unsafe {
        let mut s = W::new_scores_from_registers::<E>(a[0], b.bits());
        for step in 1..B::STEPS {
            let b = b.advance(descriptor::head_dim_step::<B>(step)).bits();
            W::scores_from_registers::<E, true>(&mut s, a[step as usize], b);
        }
        s
    };
    wgmma_commit_group();
    s
}

/// Rounds P, or dS, for the next product: two neighbouring n8 tiles of a warp's rows are one k16 step of an A operand.
#[inline(always)]
pub(super) fn pack<E: Element, W: WgmmaTile>(s: &W::S<[f32; 4]>, p: &mut W::P) {
    let s = s.row(0);
    for (k, p) in p.row_mut(0).iter_mut().enumerate() {
        let (left, right) = (s[2 * k], s[2 * k + 1]);
        *p = [
            E::pack(left[0], left[1]),
            E::pack(left[2], left[3]),
            E::pack(right[0], right[1]),
            E::pack(right[2], right[3]),
        ];
    }
}

/// Issues O += P·V with the V at `v_smem`, as one group.
///
/// # Safety
/// As for [`issue_scores`], for V and the fragments.
#[inline(always)]
pub(super) unsafe fn issue_output<E: Element, V: Shape, W: WgmmaTile>(
    acc_o: &mut W::O,
    p: &W::P,
    v_smem: u32,
) {
    let v = Descriptor::along_rows::<V>().at(v_smem);
    for (step, p) in (0..).zip(p.row(0)) {
        let v = v.advance(descriptor::row_step::<V>(step)).bits();
        // SAFETY: the caller's.
        unsafe { W::output::<E>(acc_o, *p, v) }
    }
    wgmma_commit_group();
}
