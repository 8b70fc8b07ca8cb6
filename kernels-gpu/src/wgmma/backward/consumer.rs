//! What both passes do with a warpgroup's 64 stationary rows: the products of a step, and the way out of its gradients.

use super::config::WgmmaBackwardConfig;
use super::layout;
use crate::backward::nonfinite::{self, Destination};
use crate::ptx::mbarrier::{fence_proxy_async, mbarrier_wait};
use crate::ptx::memory::{ld_shared, ld_shared_v4};
use crate::ptx::warp::{first_lane, sync_warp};
use crate::ptx::warpgroup::{named_barrier_or, named_barrier_sync};
use crate::ptx::wgmma::{wgmma_commit_group, wgmma_fence};
use crate::ptx::{opaque, thread_idx_x_again};
use crate::shape::Shape;
use crate::tile::descriptor;
use crate::tile::smem_tile::{LaneView, SmemTile};
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::wgmma::config::{CONSUMERS_BARRIER, WARPGROUP};
use crate::wgmma::gemm::{
    WgmmaTile, issue_new_scores, issue_new_scores_from_registers, issue_output, issue_scores,
};
use crate::wgmma::ring::Ring;

/// S or dP, and then P or dS, of a warp's rows and a stage.
pub(super) type Scores<C> = <<C as crate::config::BackwardConfig>::Warp as WarpTile>::S<[f32; 4]>;
/// P or dS, rounded.
pub(super) type Operand<C> = <<C as crate::config::BackwardConfig>::Warp as WarpTile>::P;
/// A gradient of a warp's rows.
pub(super) type Gradient<C> = <<C as crate::config::BackwardConfig>::Warp as WarpTile>::O;

/// The thread, counted from the first that computes, and how many compute. Read again at each call, as registers are short.
#[inline(always)]
pub(super) fn threads<C: WgmmaBackwardConfig>() -> (u32, u32) {
    (thread_idx_x_again() - WARPGROUP, C::CONSUMER_THREADS)
}

/// Lane of the warp, read again at each call.
#[inline(always)]
pub(super) fn lane_again() -> u32 {
    thread_idx_x_again() % 32
}

/// The warp's first row in the stationary block, read again at each call.
#[inline(always)]
pub(super) fn warp_row<C: WgmmaBackwardConfig>() -> u32 {
    let thread = thread_idx_x_again() - WARPGROUP;
    (if C::APART { thread % WARPGROUP } else { thread }) / 32 * 16
}

/// Waits for the stationary tiles.
///
/// # Safety
/// After the barriers were initialised.
#[inline(always)]
pub(super) unsafe fn wait_stationary<C: WgmmaBackwardConfig>() {
    // SAFETY: the barrier is used once.
    unsafe { mbarrier_wait(layout::stationary_barrier::<C>(), 0) }
}

/// Waits for the stationary tiles, where there are any, and how many steps the tile has. Consumers do not work that out themselves: what they
/// need after the main loop would be the same, and be kept in registers until then.
///
/// # Safety
/// As for [`wait_stationary`].
#[inline(always)]
pub(super) unsafe fn wait_steps<C: WgmmaBackwardConfig>() -> u32 {
    // SAFETY: the caller's; the number is written before the barrier says so.
    unsafe {
        wait_stationary::<C>();
        ld_shared(layout::steps::<C>())
    }
}

/// Waits for a stage: its [`layout::note`], which is 0 where it is seen whole, and the first key.
///
/// # Safety
/// As for [`Ring::wait_full`], by all lanes.
#[inline(always)]
pub(super) unsafe fn wait_streamed<C: WgmmaBackwardConfig>(ring: Ring) -> (u32, u32) {
    // SAFETY: the caller's; the note is written before the barrier says so.
    let [note, first, ..] = unsafe {
        ring.wait_full();
        ld_shared_v4(layout::note::<C>(ring.buffer))
    };
    (first_lane(note), first)
}

/// The warp is done with a stage: on to the next one.
///
/// # Safety
/// All lanes take part, and products that read the stage are waited for.
#[inline(always)]
pub(super) unsafe fn release<C: WgmmaBackwardConfig>(ring: &mut Ring) {
    // Every lane has read notes, statistics and limits; one says so.
    sync_warp();
    // SAFETY: the caller's.
    unsafe { ring.release(C::STAGES, lane_again()) }
    ring.advance(C::STAGES);
}

/// A warp's rows of the stationary tiles, of those that stay in registers.
pub(super) type Stationary<C> = [<<C as crate::config::BackwardConfig>::Warp as WarpTile>::Q; 2];

/// None, where they stay in shared memory.
#[inline(always)]
pub(super) fn no_rows<C: WgmmaBackwardConfig>() -> Stationary<C> {
    [<C::Warp as WarpTile>::Q::splat([0; 4]); 2]
}

/// Reads the warp's rows of the stationary tiles that stay in registers.
///
/// # Safety
/// All lanes take part; the tiles have landed.
#[inline(always)]
pub(super) unsafe fn load_stationary<C: WgmmaBackwardConfig>() -> Stationary<C> {
    const {
        assert!(
            C::IN_REGISTERS == 0 || C::Stationary::COLUMNS == 1,
            "a tile of several columns has another swizzle"
        )
    }
    let view = LaneView::a_operand(warp_row::<C>(), lane_again());
    core::array::from_fn(|which| {
        let tile = SmemTile::<C::Stationary>::at(layout::stationary::<C>(which as u32));
        <C::Warp as WarpTile>::Q::from_fn(|_, step| {
            // SAFETY: the caller's.
            if (which as u32) < C::IN_REGISTERS { unsafe { tile.load(view, 0, step) } } else { [0; 4] }
        })
    })
}

/// Where the warpgroup's rows start in a stationary tile. Found again in each step, or descriptors of all products are kept in registers, and
/// spill.
#[inline(always)]
fn rows_again<C: WgmmaBackwardConfig>() -> u32 {
    let warpgroup = first_lane(thread_idx_x_again() / WARPGROUP) - 1;
    if C::APART { first_lane(opaque(0)) } else { descriptor::row_step::<C::Stationary>(4 * warpgroup) }
}

/// Issues S of the warpgroup's rows and a stage, and then dP if it is asked for, a group each; both tiles are in shared memory.
///
/// # Safety
/// All 128 threads of the warpgroup take part; the tiles have landed, and stay until the groups are done.
#[inline(always)]
pub(super) unsafe fn issue_scores_and<C: WgmmaBackwardConfig, const DP: bool>(
    stage: u32,
) -> (Scores<C>, Scores<C>) {
    let rows = rows_again::<C>();
    let issue = |which| {
        let (a, b) = (layout::stationary::<C>(which) + rows, layout::streamed::<C>(stage, which));
        // SAFETY: the caller's.
        unsafe { issue_new_scores::<C::Element, C::Stationary, C::Streamed, C::Warp>(a, b) }
    };
    wgmma_fence();
    (issue(0), if DP { issue(1) } else { Scores::<C>::splat([0.0; 4]) })
}

/// As [`issue_scores_and`], with dP added to `dp`, and stationary rows from registers where they are there.
///
/// # Safety
/// As for [`issue_scores_and`].
#[inline(always)]
pub(super) unsafe fn issue_scores_onto<C: WgmmaBackwardConfig>(
    stage: u32,
    [k, v]: &Stationary<C>,
    mut dp: Scores<C>,
) -> (Scores<C>, Scores<C>) {
    let rows = rows_again::<C>();
    let [(k_smem, q), (v_smem, d_o)] =
        [0, 1].map(|which| (layout::stationary::<C>(which) + rows, layout::streamed::<C>(stage, which)));
    C::Warp::fence_scores(&mut dp);
    // SAFETY: the caller's.
    unsafe {
        let s = if C::IN_REGISTERS > 0 {
            issue_new_scores_from_registers::<C::Element, C::Streamed, C::Warp>(k, q)
        } else {
            issue_new_scores::<C::Element, C::Stationary, C::Streamed, C::Warp>(k_smem, q)
        };
        let (v, d_o) = ((v, C::IN_REGISTERS > 1), (d_o, 0..C::Streamed::STEPS));
        issue_scores::<C::Element, C::Stationary, C::Streamed, C::Warp, true>(&mut dp, v, v_smem, d_o);
        wgmma_commit_group();
        (s, dp)
    }
}

/// Issues a gradient's product of P or dS with a tile of a stage, as one group.
///
/// # Safety
/// As for [`issue_both`], for the operands too.
#[inline(always)]
pub(super) unsafe fn issue_gradient<C: WgmmaBackwardConfig>(
    gradient: &mut Gradient<C>,
    factors: &Operand<C>,
    stage: u32,
    which: u32,
) {
    wgmma_fence();
    // Found again, as above.
    let stage = if C::APART { first_lane(opaque(stage)) } else { stage };
    let tile = layout::streamed::<C>(stage, which);
    // SAFETY: the caller's.
    unsafe { issue_output::<C::Element, C::Streamed, C::Warp>(gradient, factors, tile) }
}

/// Keeps what is not finite in tiles of a stage out of the products along its rows; whether there was any. Of the tiles' start and bytes.
///
/// # Safety
/// All consumers take part, once their products with the stage so far are done.
#[inline(always)]
pub(super) unsafe fn keep_out<C: WgmmaBackwardConfig>(tiles: (u32, u32)) -> bool {
    // SAFETY: all consumers come to the barriers.
    unsafe {
        nonfinite::keep_out::<C::Element>(
            tiles,
            threads::<C>(),
            |found| named_barrier_or(CONSUMERS_BARRIER, C::CONSUMER_THREADS, found),
            || {
                fence_proxy_async();
                sync_consumers::<C>();
            },
        )
    }
}

/// Waits for all consumers.
///
/// # Safety
/// All of them take part.
#[inline(always)]
pub(super) unsafe fn sync_consumers<C: WgmmaBackwardConfig>() {
    // SAFETY: the caller's.
    unsafe { named_barrier_sync(CONSUMERS_BARRIER, C::CONSUMER_THREADS) }
}

/// Writes a warp's rows of a gradient from `first` of the block on times `factor`.
///
/// # Safety
/// All 32 lanes take part, and the destination is writable.
#[inline(always)]
pub(super) unsafe fn store<C: WgmmaBackwardConfig>(
    gradient: Gradient<C>,
    factor: f32,
    first: u32,
    to: &Destination,
) {
    // SAFETY: the caller's.
    unsafe { to.store::<C::Element, C::Warp>(gradient, factor, first, lane_again) }
}
