//! dK and dV of one block of keys: keys are stationary, the queries of all query heads of their KV head are streamed, head by head. Kernels
//! of [`crate::backward::row::Pass::DkvDs`] also write dS, from registers.

use super::config::WgmmaBackwardConfig;
use super::consumer::{
    Gradient, Operand, Stationary, issue_gradient, issue_scores_and, issue_scores_onto, keep_out, lane_again,
    load_stationary, no_rows, release, store, sync_consumers, threads, wait_steps, wait_streamed, warp_row,
};
use super::layout;
use super::producer::{At, KEYS, QUERIES, copy_stationary, copy_streamed, start, tell_steps};
use super::turns::{done_with_ds, tile, wait_for_ds};
use crate::backward::params::BackwardParams;
use crate::backward::query_steps::{Step, Steps, ds_head, piece};
use crate::backward::recompute::{
    ByColumn, KeptByColumn, Pairs, bent_gradients, drop_probabilities, hide, hide_by_score, probabilities,
    recompute, score_gradients, score_gradients_kept, scores_of, weights,
};
use crate::backward::row::{DK_REGISTERS, DV_REGISTERS, LIMITS_BYTES, STATISTICS_BYTES};
use crate::backward::score_rows::{load_row, store_row};
use crate::backward::spill::{self, DS_KEYS, Piece, lane_offset, register_offset};
use crate::backward::work::{first_index, key_work};
use crate::config::check_backward;
use crate::dropped::{dropout, factor, factor_of};
use crate::ptx::math::rcp;
use crate::ptx::mbarrier::mbarrier_arrive_if;
use crate::ptx::memory::{ld_global_v2, ld_shared, ld_shared_v4, st_global_b32, st_shared, to_global};
use crate::ptx::warp::{sync_warp, vote_any};
use crate::ptx::warpgroup::{give_registers, take_registers};
use crate::ptx::{of_halves, thread_idx_x_again};
use crate::score::Score;
use crate::shape::Shape;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::visible::Visible;
use crate::wgmma::config::WARPGROUP;
use crate::wgmma::gemm::{WgmmaTile, pack};
use crate::wgmma::ring::Ring;
use crate::work::{query_at, visible_of_query};

/// Rows of a stage at most, for each lane of a warp.
const ROWS_OF_LANE: usize = 4;

/// How statistics lie in a stage, and whether dP starts at −δ. Where weights are dropped, dP counts without them, and δ all the same; where only one
/// of two warpgroups has dP, nobody has timed it in turns.
const fn pairs<C: WgmmaBackwardConfig>() -> Pairs {
    if C::Score::DROPS || C::APART { Pairs::Interleaved } else { Pairs::Negated }
}

/// The kernel: a CTA computes dK and dV of one block of keys of one KV head, or its split of them.
///
/// # Safety
/// As for [`super::dq::dq`], one CTA a split of each block of keys of each KV head, and behind that kernel on the stream, whose statistics it reads.
#[inline(always)]
pub unsafe fn dkv<C: WgmmaBackwardConfig, const PRODUCER_REGISTERS: u32, const CONSUMER_REGISTERS: u32>(
    params: &BackwardParams,
) {
    const { check_backward::<C>() }
    // SAFETY: the caller's; the tile is the same for all threads.
    unsafe {
        // One copies, and one writes statistics.
        start::<C>(2);
        if thread_idx_x_again() < WARPGROUP {
            give_registers::<PRODUCER_REGISTERS>();
            let work = key_work(params, tile::<C>(params));
            let steps = work.as_ref().map(|(work, past)| (Steps::<C>::new(params, work), *past));
            match steps {
                None if thread_idx_x_again() == 0 => {
                    tell_steps::<C>(0);
                    done_with_ds::<C>(params, layout::stages::<C>());
                }
                Some((steps, past)) if thread_idx_x_again() == 0 => produce::<C>(&steps, past),
                Some((steps, _)) if thread_idx_x_again() / 32 == 1 => describe::<C>(&steps),
                _ => {}
            }
        } else {
            match (C::APART, thread_idx_x_again() < 2 * WARPGROUP) {
                (false, _) => {
                    take_registers::<CONSUMER_REGISTERS>();
                    consume::<C, true, true>(params);
                }
                (true, true) => {
                    take_registers::<DK_REGISTERS>();
                    consume::<C, true, false>(params);
                }
                (true, false) => {
                    take_registers::<DV_REGISTERS>();
                    consume::<C, false, true>(params);
                }
            }
        }
    }
}

/// The producer's part: K and V, then Q and dO of step after step. `past` is the key past the last whose gradients are written.
///
/// # Safety
/// As for [`dkv`], by one thread.
#[inline(always)]
unsafe fn produce<C: WgmmaBackwardConfig>(steps: &Steps<'_, C>, past: u32) {
    let (params, work) = (steps.params, steps.work);
    let (mut ring, mut step) = (layout::stages::<C>(), steps.first());
    // SAFETY: the caller's.
    unsafe {
        st_shared(layout::steps::<C>(), steps.count());
        if C::APART {
            let next = work.first_row + C::Stationary::ROWS;
            let is_alone = (next % DS_KEYS != 0) & (next >= past);
            st_shared(layout::is_alone::<C>(), is_alone.into());
        }
        copy_stationary::<C>(KEYS, At::key(params, work, work.first_row));
        let mut kept = Piece { first: 0, past: 0, start: 0 };
        if C::WRITES_DS {
            kept = piece(params, work, work.first_row / DS_KEYS);
        }
        for _ in 0..steps.count() {
            ring.wait_empty(C::STAGES);
            if C::WRITES_DS {
                let (note, ds) = (layout::note::<C>(ring.buffer), ds_of(steps, &kept, step));
                st_shared(note + 8, ds as u32);
                st_shared(note + 12, (ds >> 32) as u32);
            }
            let first = step.block * C::Streamed::ROWS;
            copy_streamed::<C>(ring, QUERIES, At::query(params, work, work.head_q + step.head, first));
            ring.advance(C::STAGES);
            step = steps.after(step);
        }
        done_with_ds::<C>(params, ring);
    }
}

/// What a warp writes of each stage beside the copies: whether it is seen in part, the statistics of its queries, what the score keeps of
/// them, and where it is seen in part also what they see.
///
/// # Safety
/// As for [`dkv`], by one warp.
#[inline(always)]
unsafe fn describe<C: WgmmaBackwardConfig>(steps: &Steps<'_, C>) {
    let (mut ring, mut step) = (layout::stages::<C>(), steps.first());
    let count = steps.count();
    let past = steps.work.sequence.seqlen_q.get();
    let mut done = 0;
    // SAFETY: the caller's.
    unsafe {
        let mut ahead = statistics_of(steps, step);
        // Before the first stage is full: consumers write dS of a stage only then.
        wait_for_ds::<C>(steps.params);
        while done < count {
            let (now, next) = (ahead, steps.after(step));
            done += 1;
            if done < count {
                // Asked for before the wait, so that they have come when the stage is free.
                ahead = statistics_of(steps, next);
            }
            let is_partial = steps.is_partial(step.block);
            let first = step.block * C::Streamed::ROWS;
            ring.wait_empty(C::STAGES);
            // A row of Q or dO that is not finite has an L or a δ that is not, unless L and δ do not follow from its products alone; behind the
            // last may be another sequence's.
            let is_finite = |bits: u32| f32::from_bits(bits).is_finite();
            let may_taint = C::Score::BENDS
                | (steps.params.forward.ragged.sinks != 0)
                | ((first + C::Streamed::ROWS > past) & !steps.ends_with_tensor())
                | vote_any(!now.iter().flatten().all(|&bits| is_finite(bits)));
            for (i, [lse_log2, mut delta]) in now.into_iter().enumerate() {
                let row = lane_again() + i as u32 * 32;
                if row >= C::Streamed::ROWS {
                    continue;
                }
                if C::Score::DROPS {
                    // dS is without the factor of kept weights until gradients are written: where they are not kept, dP is then just 0.
                    delta = (f32::from_bits(delta) * rcp(factor(&steps.params.forward))).to_bits();
                }
                for (offset, value) in pairs::<C>().written(row, [lse_log2, delta].map(f32::from_bits)) {
                    st_shared(layout::statistics::<C>(ring.buffer) + offset, value.to_bits());
                }
                let query = first + row;
                if C::SCORE_ROW_BYTES > 0 {
                    let (forward, work) = (&steps.params.forward, steps.work);
                    let of =
                        C::Score::row(forward, || query_at(forward, work, (work.head_q + step.head, query)));
                    store_row(layout::score_rows::<C>(ring.buffer) + row * C::SCORE_ROW_BYTES, of);
                }
                if is_partial {
                    let mut limits = Visible::before(0);
                    if query < past {
                        limits = visible_of_query(&steps.params.forward, steps.work, true, || query);
                    }
                    let at = layout::limits::<C>(ring.buffer) + row * LIMITS_BYTES;
                    st_shared(at, limits.begin);
                    st_shared(at + 4, limits.end);
                }
            }
            if lane_again() == 0 {
                let note = layout::note::<C>(ring.buffer);
                let seen = if may_taint { layout::PARTIAL | layout::MAY_TAINT } else { layout::PARTIAL };
                st_shared(note, if is_partial { seen } else { 0 });
                st_shared(note + 4, steps.work.first_row);
            }
            // All lanes have written; one says so.
            sync_warp();
            mbarrier_arrive_if(ring.full(), lane_again() == 0);
            ring.advance(C::STAGES);
            step = next;
        }
    }
}

/// Where dS of a step goes.
#[inline(always)]
fn ds_of<C: WgmmaBackwardConfig>(steps: &Steps<'_, C>, kept: &Piece, step: Step) -> u64 {
    let (params, work) = (steps.params, steps.work);
    let head = ds_head(params, work, work.head_q + step.head);
    to_global(kept.address(params, head, step.block * C::Streamed::ROWS))
}

/// Writes the warp's dS of a stage.
///
/// # Safety
/// All lanes take part; the stage has landed, and its dS is writable.
#[inline(always)]
unsafe fn write_ds<C: WgmmaBackwardConfig>((stage, first_key): (u32, u32), ds: &Operand<C>) {
    // SAFETY: the caller's; each lane has places of its own.
    unsafe {
        let [.., low, high] = ld_shared_v4(layout::note::<C>(stage));
        let first = if C::APART { first_key % DS_KEYS } else { 0 };
        let lane = of_halves([low, high]) + u64::from(lane_offset(first + warp_row::<C>(), lane_again()));
        spill::write::<C::Warp>(lane, ds);
        if C::APART && ld_shared(layout::is_alone::<C>()) != 0 {
            let lane = lane + u64::from(lane_offset(C::Stationary::ROWS, 0));
            for register in 0..C::Streamed::ROWS / 4 {
                st_global_b32(lane + u64::from(register_offset(register / 2, register % 2)), 0);
            }
        }
    }
}

/// L·log2(e) and δ of a lane's queries of a step; zeros where they do not exist.
///
/// # Safety
/// As for [`dkv`].
#[inline(always)]
unsafe fn statistics_of<C: WgmmaBackwardConfig>(
    steps: &Steps<'_, C>,
    step: Step,
) -> [[u32; 2]; ROWS_OF_LANE] {
    let (forward, work) = (&steps.params.forward, steps.work);
    let first = first_index(forward, work, work.head_q + step.head);
    core::array::from_fn(|i| {
        let row = lane_again() + i as u32 * 32;
        let query = step.block * C::Streamed::ROWS + row;
        if row < C::Streamed::ROWS && query < work.sequence.seqlen_q.get() {
            let index = first + u64::from(query);
            let at = to_global(steps.params.statistics) + index * u64::from(STATISTICS_BYTES);
            // SAFETY: the caller's; the query exists.
            unsafe { ld_global_v2(at) }
        } else {
            [0; 2]
        }
    })
}

/// A consumer's part: its 64 keys, and dK, dV or both of them.
///
/// # Safety
/// As for [`dkv`], by all threads of the consumer's warpgroup.
#[inline(always)]
unsafe fn consume<C: WgmmaBackwardConfig, const DK: bool, const DV: bool>(params: &BackwardParams) {
    let mut ring = layout::stages::<C>();
    let mut gradients = [C::Warp::NO_O, C::Warp::NO_O];
    let mut tainted = false;
    // SAFETY: the caller's; steps are the same for all consumers.
    unsafe {
        let mut steps = wait_steps::<C>();
        const {
            assert!(
                C::IN_REGISTERS == 0 || matches!(pairs::<C>(), Pairs::Negated),
                "rows in registers are read where dP starts at −δ alone"
            )
        }
        let mut stationary = no_rows::<C>();
        if C::IN_REGISTERS > 0 && steps > 0 {
            stationary = load_stationary::<C>();
        }
        while steps > 0 {
            let (note, first_key) = wait_streamed::<C>(ring);
            if note != 0 {
                tainted |=
                    step::<C, DK, DV, true>(params, &mut gradients, &stationary, (ring, first_key), note);
            } else {
                step::<C, DK, DV, false>(params, &mut gradients, &stationary, (ring, first_key), note);
            }
            release::<C>(&mut ring);
            steps -= 1;
        }
        // Worked out only here, as registers kept across the loop spill.
        let index = tile::<C>(params);
        let Some((work, past)) = key_work(params, index) else { return };
        let steps = Steps::<C>::new(params, &work);
        let to = steps.destinations(past, index);
        let [d_k, d_v] = gradients;
        let factor = factor_of::<C::Score>(&params.forward);
        if DK {
            store::<C>(d_k, params.scale * factor, warp_row::<C>(), &to[0]);
        }
        if DV {
            store::<C>(d_v, factor, warp_row::<C>(), &to[1]);
        }
        if tainted {
            // dK and dV are written.
            sync_consumers::<C>();
            steps.spread(&to, [true; 2], threads::<C>());
        }
    }
}

/// dV += Pᵀ·dO and dK += dSᵀ·Q of a stage, for the tile from key `first_key` on. With `PARTIAL`, some query sees the keys only in part; whether anything in it was not finite.
///
/// # Safety
/// All threads of the warpgroup take part, and all consumers where the stage, whose note this is, may hold what is not finite; it has landed.
#[inline(always)]
unsafe fn step<C: WgmmaBackwardConfig, const DK: bool, const DV: bool, const PARTIAL: bool>(
    params: &BackwardParams,
    [d_k, d_v]: &mut [Gradient<C>; 2],
    stationary: &Stationary<C>,
    (ring, first_key): (Ring, u32),
    note: u32,
) -> bool {
    let forward = &params.forward;
    let beside = (layout::statistics::<C>(ring.buffer), layout::limits::<C>(ring.buffer));
    let (mut p_operand, mut ds_operand) = (Operand::<C>::splat([0; 4]), Operand::<C>::splat([0; 4]));
    let mut found = false;
    // SAFETY: the caller's.
    unsafe {
        let row = |column: u32| load_row(layout::score_rows::<C>(ring.buffer) + column * C::SCORE_ROW_BYTES);
        let statistics = || {
            let lane_key = first_key + warp_row::<C>() + lane_again() / 4;
            ByColumn::new(pairs::<C>(), beside, (lane_key, lane_again()), forward.ragged.sink_tokens, row)
        };
        let (score, mut kept) = (C::Score::new(forward), KeptByColumn::default());
        if C::Score::DROPS {
            kept = statistics().kept_bits::<C::Warp, C::Score>(&dropout(forward));
        }
        let (mut p, mut ds) = if matches!(pairs::<C>(), Pairs::Negated) {
            let dp = statistics().initial_dp::<C::Warp>();
            issue_scores_onto::<C>(ring.buffer, stationary, dp)
        } else {
            issue_scores_and::<C, DK>(ring.buffer)
        };
        let statistics = statistics();
        if PARTIAL {
            C::Warp::wait_scores::<0>(&mut p);
            if DK {
                C::Warp::wait_scores::<0>(&mut ds);
            }
            if DK && !C::Score::DROPS {
                recompute::<C::Warp, C::Score>(&mut p, &mut ds, &statistics, score);
            } else {
                probabilities::<C::Warp, C::Score>(&mut p, &statistics, score, false);
            }
            if DK && C::Score::DROPS {
                score_gradients_kept::<C::Warp, C::Score, _>(&p, &mut ds, &statistics, kept);
            }
            if DV && C::Score::DROPS {
                drop_probabilities::<C::Warp>(&mut p, kept);
            }
            hide::<C::Warp, C::Score, 2>([&mut p, &mut ds], &statistics);
            hide_by_score::<C::Warp, C::Score, 2>([&mut p, &mut ds], &statistics, score);
            if note & layout::MAY_TAINT != 0 {
                found = keep_out::<C>((layout::streamed::<C>(ring.buffer, 0), 2 * C::Streamed::BYTES));
            }
            if DV {
                pack::<C::Element, C::Warp>(&p, &mut p_operand);
                issue_gradient::<C>(d_v, &p_operand, ring.buffer, 1);
            }
        } else {
            // P while dP is on its way, and dS while dV is.
            if DK {
                C::Warp::wait_scores::<1>(&mut p);
            } else {
                C::Warp::wait_scores::<0>(&mut p);
            }
            if C::Score::BENDS {
                scores_of::<C::Warp, C::Score>(&mut p, &statistics, score);
            } else {
                probabilities::<C::Warp, C::Score>(&mut p, &statistics, score, C::SCORES_PACED);
            }
            if DV {
                let mut left = p;
                if C::Score::BENDS {
                    weights::<C::Warp, C::Score>(&mut left, &statistics, score);
                }
                if C::Score::DROPS {
                    drop_probabilities::<C::Warp>(&mut left, kept);
                }
                pack::<C::Element, C::Warp>(&left, &mut p_operand);
                issue_gradient::<C>(d_v, &p_operand, ring.buffer, 1);
            }
            if DK && DV {
                C::Warp::wait_scores::<1>(&mut ds);
            } else if DK {
                C::Warp::wait_scores::<0>(&mut ds);
            }
            if DK && C::Score::DROPS {
                score_gradients_kept::<C::Warp, C::Score, _>(&p, &mut ds, &statistics, kept);
            } else if DK && C::Score::BENDS {
                bent_gradients::<C::Warp, C::Score>(&p, &mut ds, &statistics, score);
            } else if DK {
                score_gradients::<C::Warp, C::Score>(&p, &mut ds, &statistics);
            }
        }
        if DK {
            pack::<C::Element, C::Warp>(&ds, &mut ds_operand);
            if C::WRITES_DS {
                write_ds::<C>((ring.buffer, first_key), &ds_operand);
            }
            issue_gradient::<C>(d_k, &ds_operand, ring.buffer, 0);
        }
        if DV {
            C::Warp::wait_output(d_v);
        }
        if DK {
            C::Warp::wait_output(d_k);
        }
    }
    found
}
