//! What a cache, a rotated Q and lengths hold after new keys and values were appended, from the definitions, token by token.

use ferroflash::append::{AppendRole, KvAppend, NewTokens, Rotary};
use ferroflash::problem::{BlockTable, ElementStrides, Extent, KeySequences, QuerySequences, TensorRole};
use ferroflash::rounding::widen;
use kernels_gpu::row::Dtype;

/// What a call is given, on the host; bits of the problem's dtype in their strides.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct AppendInputs {
    pub new_k: Vec<u16>,
    pub new_v: Vec<u16>,
    pub q: Vec<u16>,
    pub cos: Vec<u16>,
    pub sin: Vec<u16>,
    pub seqlens_k: Option<Vec<u32>>,
    pub rotary_starts: Option<Vec<u32>>,
    pub cu_seqlens_new: Option<Vec<u32>>,
    pub cu_seqlens_q: Option<Vec<u32>>,
    pub block_table: Option<Vec<i32>>,
    pub page_indptr: Option<Vec<u32>>,
    pub slots: Option<Vec<i64>>,
}

/// What an element is after the call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expected {
    /// What it was before.
    Untouched,
    /// These bits: it was copied.
    Bits(u16),
    /// A number, and how far from it rounding may end: it was rotated.
    Near {
        /// The number.
        value: f64,
        /// The distance.
        allowed: f64,
    },
}

/// What is right after the call, by tensor, gaps between strided rows included.
#[derive(Clone, Debug, PartialEq)]
pub struct Appended {
    /// The cache of keys.
    pub k: Vec<Expected>,
    /// The cache of values.
    pub v: Vec<Expected>,
    /// The rotated Q; empty where none is.
    pub rotated_q: Vec<Expected>,
    /// The keys of each sequence; empty where the lengths before are not known.
    pub lengths: Vec<u32>,
}

/// What is right.
///
/// # Panics
/// If a slice is shorter than the call needs.
pub fn appended(append: &KvAppend, inputs: &AppendInputs) -> Appended {
    let problem = append.problem();
    let sizes = problem.sizes();
    let mut right = Appended {
        k: vec![Expected::Untouched; problem.k_len()],
        v: vec![Expected::Untouched; problem.v_len()],
        rotated_q: Vec::new(),
        lengths: Vec::new(),
    };
    for batch in 0..sizes.batch as usize {
        let length = inputs.seqlens_k.as_ref().map(|lengths| lengths[batch]);
        let (first, count) = match (append.new_tokens(), &inputs.cu_seqlens_new) {
            (NewTokens::Each(count), _) => (batch as u32 * count, count),
            (NewTokens::Packed(_), Some(starts)) => (starts[batch], starts[batch + 1] - starts[batch]),
            (NewTokens::Packed(_), None) => (0, 0),
        };
        right.lengths.extend(length.map(|length| length + count));
        for number in 0..count {
            let Some((page, row)) = place(append, inputs, batch, (first + number, number)) else { continue };
            let position = position(inputs, batch, number);
            for head in 0..sizes.heads_kv {
                let to = [page, head, row];
                let from = match append.new_tokens() {
                    NewTokens::Each(_) => [batch as u32, head, number],
                    NewTokens::Packed(_) => [0, head, first + number],
                };
                let tensors = [
                    (AppendRole::NewK, TensorRole::K, &inputs.new_k, append.rotary()),
                    (AppendRole::NewV, TensorRole::V, &inputs.new_v, None),
                ];
                for (role, of_cache, new, rotary) in tensors {
                    let from = offset(append.strides(role), from);
                    let new = &new[from..from + append.extent(role).width as usize];
                    let to = offset(problem.strides(of_cache), to);
                    let cache = if of_cache == TensorRole::K { &mut right.k } else { &mut right.v };
                    let values =
                        rotated(problem.dtype(), new, rotary.map(|rotary| (rotary, inputs, position)));
                    cache[to..to + new.len()].copy_from_slice(&values);
                }
            }
        }
    }
    if append.rotates_queries() {
        right.rotated_q = queries(append, inputs);
    }
    right
}

fn queries(append: &KvAppend, inputs: &AppendInputs) -> Vec<Expected> {
    let problem = append.problem();
    let Extent { heads, rows, width, .. } = problem.extent(TensorRole::Q);
    let mut right = vec![Expected::Untouched; append.len(AppendRole::RotatedQ)];
    for batch in 0..problem.sizes().batch as usize {
        let (entry, first, count) = match (problem.queries(), &inputs.cu_seqlens_q) {
            (QuerySequences::Packed { .. }, Some(starts)) => {
                (0, starts[batch], starts[batch + 1] - starts[batch])
            }
            _ => (batch as u32, 0, rows),
        };
        for number in 0..count {
            let position = position(inputs, batch, if append.rotates_each_query() { number } else { 0 });
            for head in 0..heads {
                let at = [entry, head, first + number];
                let from = offset(problem.strides(TensorRole::Q), at);
                let to = offset(append.strides(AppendRole::RotatedQ), at);
                let rotary = append.rotary().map(|rotary| (rotary, inputs, position));
                let values = rotated(problem.dtype(), &inputs.q[from..from + width as usize], rotary);
                right[to..to + values.len()].copy_from_slice(&values);
            }
        }
    }
    right
}

/// The page and the row in it that a token goes to; its index among all new tokens, and its number in its sequence.
fn place(
    append: &KvAppend,
    inputs: &AppendInputs,
    batch: usize,
    (index, number): (u32, u32),
) -> Option<(u32, u32)> {
    let cache = append.problem().extent(TensorRole::K);
    if let Some(slots) = &inputs.slots {
        let slot = u64::try_from(slots[index as usize]).ok()?;
        let page = u32::try_from(slot / u64::from(cache.rows)).ok()?;
        return (page < cache.batch).then_some((page, (slot % u64::from(cache.rows)) as u32));
    }
    let key = u64::from(inputs.seqlens_k.as_ref()?[batch]) + u64::from(number);
    let KeySequences::Paged(pages) = append.problem().keys() else {
        return (key < cache.rows.into()).then_some((batch as u32, key as u32));
    };
    let table = inputs.block_table.as_ref()?;
    let (first, entries) = match (pages.table, &inputs.page_indptr) {
        (BlockTable::Csr { .. }, Some(starts)) => (starts[batch], starts[batch + 1] - starts[batch]),
        (BlockTable::Rows { entries } | BlockTable::Csr { entries }, _) => (batch as u32 * entries, entries),
    };
    let entry = u32::try_from(key / u64::from(cache.rows)).ok().filter(|entry| *entry < entries)?;
    let page = u32::try_from(table[(first + entry) as usize]).ok().filter(|page| *page < cache.batch)?;
    Some((page, (key % u64::from(cache.rows)) as u32))
}

fn position(inputs: &AppendInputs, batch: usize, number: u32) -> u32 {
    let starts = inputs.rotary_starts.as_ref().or(inputs.seqlens_k.as_ref());
    starts.map_or(0, |starts| starts[batch]) + number
}

fn offset(strides: ElementStrides, [batch, head, row]: [u32; 3]) -> usize {
    (i64::from(batch) * strides.batch + i64::from(head) * strides.head + i64::from(row) * strides.row)
        as usize
}

/// A row by the definition of RoPE: each pair (x, y) of the first elements becomes (x cos − y sin, x sin + y cos).
fn rotated(dtype: Dtype, row: &[u16], rotary: Option<(Rotary, &AppendInputs, u32)>) -> Vec<Expected> {
    let mut values: Vec<Expected> = row.iter().map(|&bits| Expected::Bits(bits)).collect();
    let Some((Rotary { dim, positions, interleaved }, inputs, position)) = rotary else { return values };
    let half = dim as usize / 2;
    for angle in 0..half {
        let (first, second) = if interleaved { (2 * angle, 2 * angle + 1) } else { (angle, angle + half) };
        let at = position.min(positions - 1) as usize * half + angle;
        let [x, y, cos, sin] =
            [row[first], row[second], inputs.cos[at], inputs.sin[at]].map(|bits| widen(dtype, bits));
        values[first] = near(dtype, x * cos - y * sin, (x * cos).abs() + (y * sin).abs());
        values[second] = near(dtype, x * sin + y * cos, (x * sin).abs() + (y * cos).abs());
    }
    values
}

/// One rounding to the dtype, of a number that float32 computed from terms of this size.
fn near(dtype: Dtype, value: f64, size: f64) -> Expected {
    let (share, least) = match dtype {
        Dtype::F16 => (f64::exp2(-11.0), f64::exp2(-25.0)),
        Dtype::Bf16 => (f64::exp2(-8.0), f64::exp2(-134.0)),
    };
    Expected::Near { value, allowed: share * value.abs() + least + size * f64::exp2(-22.0) }
}

impl Expected {
    /// Whether an element of these bits, which were others before, is this.
    pub fn is_met(self, dtype: Dtype, before: u16, bits: u16) -> bool {
        match self {
            Expected::Untouched => bits == before,
            Expected::Bits(copied) => bits == copied,
            Expected::Near { value, allowed } => {
                let found = widen(dtype, bits);
                (found - value).abs() <= allowed || value.is_nan() && found.is_nan()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::rounding::narrow;

    #[test]
    fn a_quarter_turn_swaps_the_pairs() {
        let dtype = Dtype::F16;
        let bits =
            |values: &[f64]| -> Vec<u16> { values.iter().map(|&value| narrow(dtype, value)).collect() };
        let inputs = AppendInputs { cos: bits(&[0.0; 8]), sin: bits(&[1.0; 8]), ..AppendInputs::default() };
        let row: Vec<f64> = (0..24).map(f64::from).collect();
        for (interleaved, expected) in [(true, [-1.0, 0.0, -3.0, 2.0]), (false, [-8.0, -9.0, -10.0, -11.0])] {
            let rotary = Rotary { dim: 16, positions: 1, interleaved };
            let turned = rotated(dtype, &bits(&row), Some((rotary, &inputs, 0)));
            for (found, expected) in turned.iter().zip(expected) {
                assert!(found.is_met(dtype, 0, narrow(dtype, expected)), "{found:?} is {expected}");
            }
            assert_eq!(turned[16..], bits(&row[16..]).into_iter().map(Expected::Bits).collect::<Vec<_>>());
        }
    }
}
