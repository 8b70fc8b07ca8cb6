//! Where the sequences of a call lie, and which keys each query sees.

use crate::call::{Call, Lengths, Tensor};
use crate::error::Error;
use crate::read::{at, integer, number};
use crate::real::Real;
use std::ops::Range;

/// Where one sequence lies, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    pub(crate) batch: usize,
    /// Rows of Q before its first.
    pub(crate) q_start: usize,
    pub(crate) seqlen_q: usize,
    /// Rows of K before its first.
    pub(crate) k_start: usize,
    /// Keys that lie there, of which some may not count.
    pub(crate) held_k: usize,
    /// The first key that counts, and the one after the last.
    pub(crate) first_k: usize,
    pub(crate) seqlen_k: usize,
    /// Which entry of K and V holds it.
    pub(crate) entry_k: usize,
}

/// The bits of a tree, from a query on.
#[derive(Clone, Copy)]
struct TreeRow {
    bits: u64,
    /// The first key of the tree; a sequence may be shorter than the tree.
    first: i64,
}

/// What a query sees: a range of keys, of which a tree may hide some.
#[derive(Clone)]
pub(crate) struct Visible {
    pub(crate) keys: Range<usize>,
    tree: Option<TreeRow>,
}

impl Visible {
    /// Whether a key of the range is hidden.
    ///
    /// # Safety
    /// As [`Call::forward`].
    pub(crate) unsafe fn hides(&self, key: usize) -> bool {
        let Some(tree) = self.tree else { return false };
        let number = key as i64 - tree.first;
        if number < 0 {
            return false;
        }
        // SAFETY: the caller's promise.
        let bits = unsafe { integer(Some(tree.bits), number / 32) }.unwrap_or(0);
        bits >> (number % 32) & 1 == 0
    }
}

/// All sequences, checked.
///
/// # Errors
/// [`Error::OutOfRange`].
///
/// # Safety
/// As [`Call::forward`].
pub(crate) unsafe fn sequences(call: &Call) -> Result<Vec<Sequence>, Error> {
    // SAFETY: the caller's promise.
    (0..call.sizes.batch).map(|batch| unsafe { sequence(call, batch) }).collect()
}

/// # Safety
/// As [`Call::forward`].
unsafe fn sequence(call: &Call, batch: usize) -> Result<Sequence, Error> {
    let Lengths { cumulative_q, cumulative_k, used_k, first_k, entry_k, entries_k, .. } = call.lengths;
    let checked = |what, value: i64, from: usize, to: usize| {
        let (from, to) = (from as i64, to as i64);
        let is_in = (from..=to).contains(&value);
        if is_in { Ok(value as usize) } else { Err(Error::OutOfRange { what, batch, value, from, to }) }
    };
    let (rows_q, rows_k) = (call.sizes.seqlen_q, call.sizes.seqlen_k);
    // SAFETY: the caller's promise: these have `batch` or `batch + 1` entries.
    unsafe {
        let range = |what, cumulative, rows: usize| -> Result<(usize, usize), Error> {
            let Some(start) = integer(cumulative, batch as i64) else { return Ok((0, rows)) };
            let end = integer(cumulative, batch as i64 + 1).unwrap_or(start);
            let start = checked(what, start, 0, rows)?;
            Ok((start, checked(what, end, start, rows)? - start))
        };
        let (q_start, seqlen_q) = range("cu_seqlens_q", cumulative_q, rows_q)?;
        let (k_start, held_k) = range("cu_seqlens_k", cumulative_k, rows_k)?;
        let used = integer(used_k, batch as i64).unwrap_or(held_k as i64);
        let seqlen_k = checked("the number of keys", used, 0, held_k)?;
        let first = integer(first_k, batch as i64).unwrap_or(0);
        let first_k = checked("the first key", first, 0, held_k)?.min(seqlen_k);
        let most_entries = if entry_k.is_some() { entries_k.saturating_sub(1) } else { batch };
        let entry = integer(entry_k, batch as i64).unwrap_or(batch as i64);
        let entry_k = checked("the cache entry", entry, 0, most_entries)?;
        if let Some(pages) = call.pages {
            for page in first_k / pages.page_size..seqlen_k.div_ceil(pages.page_size) {
                let value = integer(Some(pages.table), batch as i64 * pages.stride + page as i64);
                checked("a page", value.unwrap_or(0), 0, pages.count.saturating_sub(1))?;
            }
        }
        Ok(Sequence { batch, q_start, seqlen_q, k_start, held_k, first_k, seqlen_k, entry_k })
    }
}

impl Sequence {
    /// The key that a query is at.
    pub(crate) fn own(&self, row: usize) -> i64 {
        row as i64 + self.seqlen_k as i64 - self.seqlen_q as i64
    }

    /// The keys that a query sees.
    ///
    /// # Safety
    /// As [`Call::forward`].
    pub(crate) unsafe fn visible(&self, call: &Call, row: usize) -> Visible {
        let own = self.own(row);
        // "All" is any number to a caller, `usize::MAX` too.
        let number = |keys: usize| i64::try_from(keys).unwrap_or(i64::MAX);
        let from = call.window_left.map_or(0, |left| own.saturating_sub(number(left)));
        let to =
            call.window_right.map_or(i64::MAX, |right| own.saturating_add(number(right)).saturating_add(1));
        let (from, to) = call.chunk.map(number).map_or((from, to), |chunk| {
            let first = own.div_euclid(chunk).saturating_mul(chunk);
            (from.max(first), to.min(first.saturating_add(chunk)))
        });
        let row_of_all = self.row_of_all(call, row) as i64;
        // SAFETY: the caller's promise: two entries a query.
        let given = |end: i64| unsafe { integer(call.intervals, row_of_all * 2 + end) };
        let (from, to) = (from.max(given(0).unwrap_or(from)), to.min(given(1).unwrap_or(to)));
        let from = from.clamp(self.first_k as i64, self.seqlen_k as i64) as usize;
        let tree = call.tree.map(|tree| TreeRow {
            bits: at(tree.bits, row_of_all * tree.words() as i64, 4),
            first: self.seqlen_k as i64 - tree.keys as i64,
        });
        Visible { keys: from..(to.clamp(from as i64, self.seqlen_k as i64) as usize), tree }
    }

    /// Which row of the tensors that have one a query, of all sequences, is a query's.
    fn row_of_all(&self, call: &Call, row: usize) -> usize {
        let before = if call.lengths.cumulative_q.is_some() { 0 } else { self.batch * call.sizes.seqlen_q };
        before + self.q_start + row
    }

    /// The address of a query's row of Q, O or a gradient of these.
    pub(crate) fn query_row(&self, call: &Call, tensor: &Tensor, head: usize, row: usize) -> u64 {
        let batch = if call.lengths.cumulative_q.is_some() { 0 } else { self.batch as i64 };
        let [by_batch, by_head, by_row] = tensor.strides;
        let elements = batch * by_batch + head as i64 * by_head + (self.q_start + row) as i64 * by_row;
        at(tensor.address, elements, call.dtype.bytes())
    }

    /// Which number of LSE is a query's.
    pub(crate) fn lse_row(&self, call: &Call, head: usize, row: usize) -> i64 {
        let batch = if call.lengths.cumulative_q.is_some() { 0 } else { self.batch };
        ((batch * call.sizes.heads_q + head) * call.sizes.seqlen_q + self.q_start + row) as i64
    }

    /// The address of a key's row of K, V or a gradient of these.
    ///
    /// # Safety
    /// As [`Call::forward`].
    pub(crate) unsafe fn key_row(&self, call: &Call, tensor: &Tensor, head_kv: usize, key: usize) -> u64 {
        let (entry, key) = match call.pages {
            Some(pages) => {
                let page = (key / pages.page_size) as i64 + self.batch as i64 * pages.stride;
                // SAFETY: the caller's promise.
                (unsafe { integer(Some(pages.table), page) }.unwrap_or(0), key % pages.page_size)
            }
            None if call.lengths.cumulative_k.is_some() => (0, self.k_start + key),
            None => (self.entry_k as i64, key),
        };
        let [by_batch, by_head, by_row] = tensor.strides;
        let elements = entry * by_batch + head_kv as i64 * by_head + key as i64 * by_row;
        at(tensor.address, elements, call.dtype.bytes())
    }

    /// Rows of K or V of a range of keys.
    ///
    /// # Safety
    /// As [`Call::forward`].
    pub(crate) unsafe fn wide<R: Real>(
        &self,
        call: &Call,
        (tensor, width): (&Tensor, usize),
        head_kv: usize,
        keys: Range<usize>,
    ) -> Vec<R> {
        let mut wide = vec![R::ZERO; keys.len() * width];
        for (key, row) in keys.zip(wide.chunks_exact_mut(width)) {
            // SAFETY: the caller's promise.
            unsafe { R::read_row(call.dtype, self.key_row(call, tensor, head_kv, key), row) };
        }
        wide
    }

    /// What is added to the score of a query and a key beside ALiBi.
    ///
    /// # Safety
    /// As [`Call::forward`].
    pub(crate) unsafe fn bias<R: Real>(&self, call: &Call, head: usize, row: usize, key: usize) -> R {
        let Some(bias) = call.bias else { return R::ZERO };
        let strides = bias.strides(&call.sizes);
        let places = [self.batch, head, row];
        let element: i64 = strides.iter().zip(places).map(|(stride, place)| stride * place as i64).sum();
        // SAFETY: the caller's promise.
        unsafe { number(call.dtype, bias.values, element + key as i64) }
    }

    /// The slope of ALiBi and the sink of a head.
    ///
    /// # Safety
    /// As [`Call::forward`].
    pub(crate) unsafe fn of_head<R: Real>(&self, call: &Call, head: usize) -> (Option<R>, Option<R>) {
        use crate::call::Dtype::F32;
        let slope = |alibi: crate::call::Alibi| {
            // SAFETY: the caller's promise.
            unsafe { number(F32, alibi.slopes, self.batch as i64 * alibi.stride + head as i64) }
        };
        // SAFETY: the caller's promise.
        let sink = |address| unsafe { number(F32, address, head as i64) };
        (call.alibi.map(slope), call.sinks.map(sink))
    }
}
