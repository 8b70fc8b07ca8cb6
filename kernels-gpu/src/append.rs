//! New keys and values into a cache, contiguous or in pages, with keys and queries rotated by their positions (RoPE).
//!
//! A CTA takes all heads of one token, so that where the token goes is found once; a thread takes 16 bytes of a row at a time, or two such
//! chunks that are rotated together, so that Q may be rotated in place. Only memory costs anything. Whatever lies in lengths, tables and
//! slots, a row that would lie outside of the cache is left out.

use crate::element::{Element, Stored, half};
use crate::params::Strides;
use crate::ptx::memory::{ld_global_b32, ld_global_v2, ld_global_v4, st_global_b32, st_global_v4, to_global};
use crate::sequence::between;
use crate::step_params::AppendParams;
use crate::steps::STEP_THREADS;
use cuda_std::thread::{block_idx_x, thread_idx_x};

/// A token of a batch of sequences.
#[derive(Clone, Copy)]
struct Token {
    /// Its sequence.
    batch: u32,
    /// Its number in the sequence.
    number: u32,
    /// Where it stands in its tensor: the batch entry, 0 where tokens are packed, and the row.
    entry: u32,
    row: u32,
}

/// The kernel.
///
/// # Safety
/// Launched with [`STEP_THREADS`] threads, [`AppendParams::ctas`] CTAs, and parameters that describe device memory as [`AppendParams`]
/// says. Nobody else touches what is written.
#[inline(always)]
pub unsafe fn append<E: Element>(params: &AppendParams) {
    let cta = block_idx_x();
    // SAFETY: the caller's.
    unsafe {
        if cta < params.tokens {
            append_token::<E>(params, cta);
        } else if cta - params.tokens < params.q_tokens {
            rotate_query::<E>(params, cta - params.tokens);
        } else {
            write_lengths(params);
        }
    }
}

/// Writes a new token's keys and values.
///
/// # Safety
/// As for [`append`].
#[inline(always)]
unsafe fn append_token<E: Element>(params: &AppendParams, index: u32) {
    // SAFETY: the caller's; a chunk is one of the token's rows, and the cache has the page and the row in it.
    unsafe {
        let token =
            token(params, index, params.cu_seqlens_new, params.seqlen_new.divide(index), params.tokens);
        let Some(token) = token else { return };
        let Some((page, within)) = place(params, token, index) else { return };
        let position = position(params, token.batch, token.number);
        let row = |address: u64, strides: &Strides, entry: u32, row: u32, head: u32| {
            let offset = i64::from(entry) * strides.batch
                + i64::from(head) * strides.head
                + i64::from(row) * strides.row;
            to_global(address).wrapping_add_signed(offset)
        };
        let mut at = thread_idx_x();
        while at < params.heads_kv * params.pieces_k.value {
            let (head, piece) = params.pieces_k.divide(at);
            let from = row(params.new_k, &params.new_k_strides, token.entry, token.row, head);
            let to = row(params.k, &params.k_strides, page, within, head);
            rotate::<E>(params, (from, to), piece, position);
            at += STEP_THREADS;
        }
        at = thread_idx_x();
        while at < params.heads_kv * params.chunks_v.value {
            let (head, chunk) = params.chunks_v.divide(at);
            let from = row(params.new_v, &params.new_v_strides, token.entry, token.row, head);
            let to = row(params.v, &params.v_strides, page, within, head);
            copy((from, to), chunk);
            at += STEP_THREADS;
        }
    }
}

/// Rotates the rows of a token of Q.
///
/// # Safety
/// As for [`append`].
#[inline(always)]
unsafe fn rotate_query<E: Element>(params: &AppendParams, index: u32) {
    // SAFETY: the caller's; a chunk is one of the token's rows.
    unsafe {
        let token = token(params, index, params.cu_seqlens_q, params.seqlen_q.divide(index), params.q_tokens);
        let Some(token) = token else { return };
        let position = position(params, token.batch, token.number * params.each_query);
        let row = |address: u64, strides: &Strides, head: u32| {
            let offset = i64::from(token.entry) * strides.batch
                + i64::from(head) * strides.head
                + i64::from(token.row) * strides.row;
            to_global(address).wrapping_add_signed(offset)
        };
        let mut at = thread_idx_x();
        while at < params.heads_q * params.pieces_k.value {
            let (head, piece) = params.pieces_k.divide(at);
            let from = row(params.q, &params.q_strides, head);
            let to = row(params.rotated_q, &params.rotated_q_strides, head);
            rotate::<E>(params, (from, to), piece, position);
            at += STEP_THREADS;
        }
    }
}

/// Writes how many keys each sequence has after the call.
///
/// # Safety
/// As for [`append`].
#[inline(always)]
unsafe fn write_lengths(params: &AppendParams) {
    let mut batch = thread_idx_x();
    while batch < params.batch {
        // SAFETY: the caller's; one element a sequence.
        unsafe {
            let new = match params.cu_seqlens_new {
                0 => params.seqlen_new.value,
                starts => between(starts, batch, params.tokens).1,
            };
            let length = at_batch(params.seqlens_k, batch).saturating_add(new);
            st_global_b32(to_global(params.lengths_after) + u64::from(batch) * 4, length);
        }
        batch += STEP_THREADS;
    }
}

/// The token of this index among all; `None` where it belongs to no sequence. `unpacked` is its sequence and its number in that, where every
/// sequence has as many; else `starts` say it.
///
/// # Safety
/// As for [`append`].
#[inline(always)]
unsafe fn token(
    params: &AppendParams,
    index: u32,
    starts: u64,
    unpacked: (u32, u32),
    tokens: u32,
) -> Option<Token> {
    if starts == 0 {
        let (batch, number) = unpacked;
        return Some(Token { batch, number, entry: batch, row: number });
    }
    // The last sequence that starts at this token or before: of several, those before it are empty.
    let (mut low, mut past) = (0, params.batch);
    while past - low > 1 {
        let middle = low + (past - low) / 2;
        // SAFETY: the caller's.
        let (start, _) = unsafe { between(starts, middle, tokens) };
        if start <= index { low = middle } else { past = middle }
    }
    // SAFETY: the caller's.
    let (start, length) = unsafe { between(starts, low, tokens) };
    let number = index.wrapping_sub(start);
    (number < length).then_some(Token { batch: low, number, entry: 0, row: index })
}

/// An element of u32 `[batch]`.
///
/// # Safety
/// The batch entry has one.
#[inline(always)]
unsafe fn at_batch(address: u64, batch: u32) -> u32 {
    // SAFETY: the caller's.
    unsafe { ld_global_b32(to_global(address) + u64::from(batch) * 4) }
}

/// The position that a token is rotated by, if any is.
///
/// # Safety
/// As for [`append`].
#[inline(always)]
unsafe fn position(params: &AppendParams, batch: u32, number: u32) -> u32 {
    if params.rotated_chunks == 0 {
        return 0;
    }
    let starts = if params.rotary_starts == 0 { params.seqlens_k } else { params.rotary_starts };
    // SAFETY: the caller's.
    let start = unsafe { at_batch(starts, batch) };
    start.saturating_add(number).min(params.positions - 1)
}

/// The page of the cache that a new token goes to, and its row there; `None` where there is no such place.
///
/// # Safety
/// As for [`append`].
#[inline(always)]
unsafe fn place(params: &AppendParams, token: Token, index: u32) -> Option<(u32, u32)> {
    // SAFETY: the caller's; an entry of the table is read where the sequence has it.
    unsafe {
        if params.slots != 0 {
            let [low, high] = ld_global_v2(to_global(params.slots) + u64::from(index) * 8);
            // Neither below 0 nor past what a divisor divides.
            let slot = (high == 0 && low < 1 << 31).then_some(low)?;
            let (page, within) = params.page.divide(slot);
            return (page < params.pages).then_some((page, within));
        }
        let key = at_batch(params.seqlens_k, token.batch).saturating_add(token.number);
        let key = (key < 1 << 31).then_some(key)?;
        let (entry, within) = params.page.divide(key);
        if params.block_table == 0 {
            return (entry == 0).then_some((token.batch, within));
        }
        let (first, entries) = match params.page_indptr {
            0 => (token.batch * params.table_stride, params.table_stride),
            starts => between(starts, token.batch, params.table_stride),
        };
        if entry >= entries {
            return None;
        }
        // A negative number is past the last page, too.
        let page = ld_global_b32(to_global(params.block_table) + u64::from(first + entry) * 4);
        (page < params.pages).then_some((page, within))
    }
}

/// Copies a chunk of eight elements.
///
/// # Safety
/// Both rows have it.
#[inline(always)]
unsafe fn copy((from, to): (u64, u64), chunk: u32) {
    let along = u64::from(chunk * 16);
    // SAFETY: the caller's.
    unsafe { st_global_v4(to + along, ld_global_v4(from + along)) }
}

/// Writes a piece of a row of K or Q, rotated where it is one of the first that are.
///
/// # Safety
/// Both rows have it, and the tables the position.
#[inline(always)]
unsafe fn rotate<E: Element>(params: &AppendParams, (from, to): (u64, u64), piece: u32, position: u32) {
    let rotated = params.rotated_chunks;
    // Half as many angles as elements.
    let table = |address: u64, angle: u32| {
        to_global(address) + (u64::from(position) * u64::from(rotated * 4) + u64::from(angle)) * 2
    };
    // SAFETY: the caller's.
    unsafe {
        if params.interleaved != 0 && piece < rotated {
            let [cos, sin] = [params.cos, params.sin].map(|address| ld_global_v2(table(address, piece * 4)));
            let at = u64::from(piece * 16);
            let x = <E as Stored>::load(from + at);
            let turned = |i: usize| {
                let pair = i / 2;
                let (cos, sin) = (half::<E>(cos[pair / 2], pair % 2), half::<E>(sin[pair / 2], pair % 2));
                let (first, second) = (x[2 * pair], x[2 * pair + 1]);
                if i % 2 == 0 { first * cos - second * sin } else { first * sin + second * cos }
            };
            <E as Stored>::store(to + at, core::array::from_fn(turned));
        } else if params.interleaved == 0 && piece < rotated / 2 {
            let [cos, sin] =
                [params.cos, params.sin].map(|address| <E as Stored>::load(table(address, piece * 8)));
            let [low, high] = [piece, piece + rotated / 2].map(|chunk| u64::from(chunk * 16));
            let (first, second) = (<E as Stored>::load(from + low), <E as Stored>::load(from + high));
            <E as Stored>::store(to + low, core::array::from_fn(|i| first[i] * cos[i] - second[i] * sin[i]));
            <E as Stored>::store(to + high, core::array::from_fn(|i| first[i] * sin[i] + second[i] * cos[i]));
        } else {
            let partners = if params.interleaved == 0 { rotated / 2 } else { 0 };
            copy((from, to), piece + partners);
        }
    }
}
