//! The loops: sequences, blocks of query rows, heads.

use crate::call::{Call, Lengths};
use crate::error::Error;
use crate::read::{at, float, integer, read_row};
use crate::rows::{Block, TreeRows, rows};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Query rows that one piece of work has: K and V are widened to float32 once for all of them.
const ROWS: usize = 64;
/// Products of an element of Q and one of K that are worth a thread: under a millisecond one thread is done before others start.
const PRODUCTS: usize = 1 << 20;

/// Where one sequence lies, checked.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    batch: usize,
    /// Rows of Q before its first.
    q_start: usize,
    seqlen_q: usize,
    /// Rows of K before its first.
    k_start: usize,
    /// The first key that counts, and the one after the last.
    first_k: usize,
    seqlen_k: usize,
    /// Which entry of K and V holds it.
    entry_k: usize,
}

/// # Errors
/// [`Error::OutOfRange`], before anything is written.
///
/// # Safety
/// As [`Call::forward`].
pub(crate) unsafe fn run(call: &Call) -> Result<(), Error> {
    let mut work = Vec::new();
    for batch in 0..call.sizes.batch {
        // SAFETY: the caller's promise.
        let sequence = unsafe { sequence(call, batch)? };
        for head in 0..call.sizes.heads_kv {
            work.extend((0..sequence.seqlen_q).step_by(ROWS).map(|row| (sequence, head, row)));
        }
    }
    let next = AtomicUsize::new(0);
    let products = call.sizes.seqlen_k * call.sizes.head_dim * call.group() * ROWS.min(call.sizes.seqlen_q);
    let worth = products.saturating_mul(work.len()) / PRODUCTS;
    let threads = processors().min(work.len()).min(worth);
    let worker = || {
        while let Some(&(sequence, head, row)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            // SAFETY: the caller's promise; no two pieces of work write the same rows.
            unsafe { piece(call, &sequence, head, row) };
        }
    };
    if threads <= 1 {
        worker();
    } else {
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(worker))));
    }
    Ok(())
}

/// Processors that this process may use, asked once: the system reads files for the answer.
fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
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
        let (k_start, held) = range("cu_seqlens_k", cumulative_k, rows_k)?;
        let used = integer(used_k, batch as i64).unwrap_or(held as i64);
        let seqlen_k = checked("the number of keys", used, 0, held)?;
        let first = integer(first_k, batch as i64).unwrap_or(0);
        let first_k = checked("the first key", first, 0, held)?.min(seqlen_k);
        let most_entries = if entry_k.is_some() { entries_k.saturating_sub(1) } else { batch };
        let entry = integer(entry_k, batch as i64).unwrap_or(batch as i64);
        let entry_k = checked("the cache entry", entry, 0, most_entries)?;
        if let Some(pages) = call.pages {
            for page in first_k / pages.page_size..seqlen_k.div_ceil(pages.page_size) {
                let value = integer(Some(pages.table), batch as i64 * pages.stride + page as i64);
                checked("a page", value.unwrap_or(0), 0, pages.count.saturating_sub(1))?;
            }
        }
        Ok(Sequence { batch, q_start, seqlen_q, k_start, first_k, seqlen_k, entry_k })
    }
}

/// Which row of the tensors that have one a query, of all sequences, is a query's.
fn row_of_all(call: &Call, sequence: &Sequence, row: usize) -> usize {
    let before = if call.lengths.cumulative_q.is_some() { 0 } else { sequence.batch * call.sizes.seqlen_q };
    before + sequence.q_start + row
}

/// Some query rows of all heads that share a KV head.
///
/// # Safety
/// As [`Call::forward`]; the sequence was checked.
unsafe fn piece(call: &Call, sequence: &Sequence, head_kv: usize, first_row: usize) {
    let head_dim = call.sizes.head_dim;
    let count = ROWS.min(sequence.seqlen_q - first_row);
    let offset = sequence.seqlen_k as i64 - sequence.seqlen_q as i64;
    let visible = |row: usize| {
        let own = row as i64 + offset;
        let from = call.window_left.map_or(0, |left| own.saturating_sub(left as i64));
        let to =
            call.window_right.map_or(i64::MAX, |right| own.saturating_add(right as i64).saturating_add(1));
        let (from, to) = call.chunk.map_or((from, to), |chunk| {
            let first = own.div_euclid(chunk as i64).saturating_mul(chunk as i64);
            (from.max(first), to.min(first.saturating_add(chunk as i64)))
        });
        let interval = (row_of_all(call, sequence, row) * 2) as i64;
        // SAFETY: the caller's promise: two entries a query.
        let given = |end: i64| unsafe { integer(call.intervals, interval + end) };
        let (from, to) = (from.max(given(0).unwrap_or(from)), to.min(given(1).unwrap_or(to)));
        let from = from.clamp(sequence.first_k as i64, sequence.seqlen_k as i64) as usize;
        from..(to.clamp(from as i64, sequence.seqlen_k as i64) as usize)
    };
    let seen = || (0..count).map(|row| visible(first_row + row)).filter(|keys| !keys.is_empty());
    let begin = seen().map(|keys| keys.start).min().unwrap_or(0);
    let end = seen().map(|keys| keys.end).max().unwrap_or(begin);
    // SAFETY: the caller's promise.
    let [keys, values] = unsafe {
        [call.k, call.v].map(|tensor| {
            let mut wide = vec![0.0; end.saturating_sub(begin) * head_dim];
            for (key, row) in (begin..end).zip(wide.chunks_exact_mut(head_dim)) {
                let (entry, key) = match call.pages {
                    Some(pages) => {
                        let page = (key / pages.page_size) as i64 + sequence.batch as i64 * pages.stride;
                        (integer(Some(pages.table), page).unwrap_or(0), key % pages.page_size)
                    }
                    None if call.lengths.cumulative_k.is_some() => (0, sequence.k_start + key),
                    None => (sequence.entry_k as i64, key),
                };
                let [batch, head, step] = tensor.strides;
                let elements = entry * batch + head_kv as i64 * head + key as i64 * step;
                read_row(call.dtype, at(tensor.address, elements, call.dtype.bytes()), row);
            }
            wide
        })
    };
    let batch = if call.lengths.cumulative_q.is_some() { 0 } else { sequence.batch as i64 };
    for member in 0..call.group() {
        let head = (head_kv * call.group() + member) as i64;
        let row = (sequence.q_start + first_row) as i64;
        let start = |strides: [i64; 3]| batch * strides[0] + head * strides[1] + row * strides[2];
        let lse_row = (batch * call.sizes.heads_q as i64 + head) * call.sizes.seqlen_q as i64 + row;
        // SAFETY: the caller's promise.
        unsafe {
            let block = Block {
                keys: &keys,
                values: &values,
                begin,
                q: at(call.q.address, start(call.q.strides), call.dtype.bytes()),
                o: at(call.o.address, start(call.o.strides), call.dtype.bytes()),
                lse: call.lse.map(|address| at(address, lse_row, 4)),
                slope: call
                    .alibi
                    .map(|alibi| float(alibi.slopes, sequence.batch as i64 * alibi.stride + head)),
                sink: call.sinks.map(|address| float(address, head)),
                own: first_row as i64 + offset,
                tree: call.tree.map(|tree| TreeRows {
                    bits: at(tree.bits, (row_of_all(call, sequence, first_row) * tree.words()) as i64, 4),
                    words: tree.words(),
                    first: sequence.seqlen_k as i64 - tree.keys as i64,
                }),
            };
            rows(call, &block, (0..count).map(|row| visible(first_row + row)));
        }
    }
}
