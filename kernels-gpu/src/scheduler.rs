//! Which query rows a CTA computes, and which blocks of keys they see.

use crate::params::ForwardParams;

/// The query rows of one CTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Batch entry.
    pub batch: u32,
    /// Query head.
    pub head_q: u32,
    /// The KV head that the query head reads.
    pub head_kv: u32,
    /// First query row.
    pub first_row: u32,
}

impl Work {
    /// The work of CTA `index`: query blocks vary fastest, so that neighbours in time share K and V in L2.
    /// Causal blocks are taken from the end, where most keys are visible: the longest work starts first.
    pub fn new(params: &ForwardParams, index: u32, block_m: u32) -> Self {
        let (head_index, block) = params.query_blocks.divide(index);
        let block = if params.causal != 0 { params.query_blocks.value - 1 - block } else { block };
        let (batch, head_q) = params.heads_q.divide(head_index);
        Self { batch, head_q, head_kv: params.group.quotient(head_q), first_row: block * block_m }
    }
}

/// The first key that query row `row` does not see: all keys before it are visible.
pub fn visible_end(params: &ForwardParams, row: u32) -> u32 {
    if params.causal == 0 {
        return params.seqlen_k;
    }
    // Bottom-right alignment: the last query row sees every key. Lengths are below 2^31, so the sum fits; rows past
    // the last exist in a ragged block.
    (row + 1 + params.seqlen_k).saturating_sub(params.seqlen_q).min(params.seqlen_k)
}

/// Blocks of keys that the query rows of a CTA see: `0..full` entirely, `full..end` in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBlocks {
    /// Blocks in which every row sees every key.
    pub full: u32,
    /// Blocks in which any row sees any key.
    pub end: u32,
}

impl KeyBlocks {
    /// The blocks for query rows from `first_row`.
    pub fn new(params: &ForwardParams, first_row: u32, block_m: u32, block_n: u32) -> Self {
        let past_rows =
            if params.seqlen_q - first_row < block_m { params.seqlen_q } else { first_row + block_m };
        let end = visible_end(params, past_rows - 1).div_ceil(block_n);
        Self { full: visible_end(params, first_row) / block_n, end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::divisor::Divisor;

    fn params(seqlen_q: u32, seqlen_k: u32, causal: bool) -> ForwardParams {
        let (heads_q, group) = (Divisor::new(6), Divisor::new(3));
        ForwardParams { seqlen_q, seqlen_k, causal: causal.into(), heads_q, group, ..Default::default() }
    }

    #[test]
    fn blocks_are_full_or_partial_as_counting_pairs_says() {
        let lengths = [1, 2, 31, 32, 33, 63, 64, 65, 100, 128, 129];
        for causal in [false, true] {
            for (q, k) in lengths.iter().flat_map(|&q| lengths.iter().map(move |&k| (q, k))) {
                let params = params(q, k, causal);
                let sees = |row: u32, key: u32| key < k && (!causal || key + q <= row + k);
                for first_row in (0..q).step_by(64) {
                    let rows = first_row..(first_row + 64).min(q);
                    let blocks = KeyBlocks::new(&params, first_row, 64, 32);
                    for block in 0..k.div_ceil(32) + 1 {
                        let mut keys = block * 32..block * 32 + 32;
                        let any = rows.clone().any(|row| keys.clone().any(|key| sees(row, key)));
                        let all = rows.clone().all(|row| keys.all(|key| sees(row, key)));
                        assert_eq!(block < blocks.end, any, "q {q} k {k} causal {causal} block {block}");
                        assert!(block >= blocks.full || all, "q {q} k {k} causal {causal} block {block}");
                    }
                    assert!(blocks.full <= blocks.end);
                }
            }
        }
    }

    #[test]
    fn every_block_of_every_head_is_taken_once_and_causal_ones_from_the_end() {
        let mut params = ForwardParams { query_blocks: Divisor::new(3), ..params(150, 150, false) };
        let work: Vec<Work> = (0..36).map(|index| Work::new(&params, index, 64)).collect();
        for (index, work) in work.iter().enumerate() {
            let index = index as u32;
            assert_eq!((work.batch, work.head_q), (index / 18, index / 3 % 6));
            assert_eq!((work.head_kv, work.first_row), (work.head_q / 3, index % 3 * 64));
        }
        params.causal = 1;
        assert_eq!(Work::new(&params, 0, 64).first_row, 128);
        assert_eq!(Work::new(&params, 2, 64).first_row, 0);
    }
}
