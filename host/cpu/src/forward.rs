//! The loops: sequences, blocks of query rows, heads.

use crate::call::{Call, Dtype};
use crate::error::Error;
use crate::real::Real;
use crate::rows::{Block, rows};
use crate::sequence::{Sequence, sequences};
use crate::threads::for_each;

/// Query rows that one piece of work has: K and V are widened once for all of them.
const ROWS: usize = 64;

/// # Errors
/// [`Error::OutOfRange`], before anything is written.
///
/// # Safety
/// As [`Call::forward`].
pub(crate) unsafe fn run(call: &Call) -> Result<(), Error> {
    let mut work = Vec::new();
    // SAFETY: the caller's promise.
    for sequence in unsafe { sequences(call)? } {
        for head in 0..call.sizes.heads_kv {
            work.extend((0..sequence.seqlen_q).step_by(ROWS).map(|row| (sequence, head, row)));
        }
    }
    let products = call.sizes.seqlen_k * call.sizes.head_dim * call.group() * ROWS.min(call.sizes.seqlen_q);
    for_each(&work, products, |&(sequence, head, row)| {
        // SAFETY: the caller's promise; no two pieces of work write the same rows.
        unsafe {
            match call.dtype {
                Dtype::F64 => piece::<f64>(call, &sequence, head, row),
                Dtype::F16 | Dtype::Bf16 | Dtype::F32 => piece::<f32>(call, &sequence, head, row),
            }
        }
    });
    Ok(())
}

/// Some query rows of all heads that share a KV head.
///
/// # Safety
/// As [`Call::forward`]; the sequence was checked.
unsafe fn piece<R: Real>(call: &Call, sequence: &Sequence, head_kv: usize, first_row: usize) {
    let count = ROWS.min(sequence.seqlen_q - first_row);
    // SAFETY: the caller's promise.
    let visible = |row: usize| unsafe { sequence.visible(call, first_row + row) }.keys;
    let seen = || (0..count).map(visible).filter(|keys| !keys.is_empty());
    let begin = seen().map(|keys| keys.start).min().unwrap_or(0);
    let end = seen().map(|keys| keys.end).max().unwrap_or(begin);
    // SAFETY: the caller's promise.
    let (keys, values) = unsafe {
        let wide = |tensor, width| sequence.wide::<R>(call, (tensor, width), head_kv, begin..end);
        (wide(&call.k, call.sizes.head_dim), wide(&call.v, call.head_dim_v))
    };
    for head in head_kv * call.group()..(head_kv + 1) * call.group() {
        let block = Block { sequence, head, first_row, count, keys: &keys, values: &values, begin };
        // SAFETY: the caller's promise.
        unsafe { rows(call, &block) };
    }
}
