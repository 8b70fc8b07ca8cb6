//! Two scores of one's own: T5's relative positions, and a block-sparse mask. `cargo xtask build-ptx --score examples/scores` compiles them.

#![no_std]

use ferroflash_score::{Elements, Number, Query, Score, Tables};

/// The scaled product and a learned bias of the head and of how far the key is from the query (Raffel et al. 2020, section 2.1).
///
/// Tables: the biases, float32 `[heads_q, BUCKETS]`; the bucket of each distance from 0 on, u32, the last of them for all that are further.
/// Keys behind the query's own, which a causal mask hides, are as the query's own.
#[derive(Clone, Copy)]
pub struct T5Bias {
    own_key: i32,
    /// The head's first bias.
    biases: u32,
}

/// Buckets of distances.
pub const BUCKETS: u32 = 32;

impl<F: Number> Score<F> for T5Bias {
    const NAME: &'static str = "t5_bias";
    const TABLES: &'static [Elements] = &[Elements::F32, Elements::U32];

    #[inline(always)]
    fn new(query: Query, _tables: &impl Tables<F>) -> Self {
        T5Bias { own_key: query.own_key(), biases: query.head * BUCKETS }
    }

    #[inline(always)]
    fn score(self, scaled: F, key: u32, tables: &impl Tables<F>) -> F {
        let distance = self.own_key.wrapping_sub(key as i32).max(0) as u32;
        let bucket = tables.word::<1>(distance);
        scaled + tables.number::<0>(self.biases + bucket)
    }
}

/// The scaled product under a mask of blocks: of queries and keys in blocks of [`BLOCK`], a query sees the keys of the blocks whose bit is set.
///
/// Table: u32, first the words of a row of blocks, then for each block of queries its words, bit b of word w for block 32 · w + b of keys.
#[derive(Clone, Copy)]
pub struct BlockSparse {
    /// Where the words of the query's block begin.
    row: u32,
}

/// Queries and keys of a block.
pub const BLOCK: u32 = 16;

impl<F: Number> Score<F> for BlockSparse {
    const NAME: &'static str = "block_sparse";
    const TABLES: &'static [Elements] = &[Elements::U32];
    const MASKS: bool = true;

    #[inline(always)]
    fn new(query: Query, tables: &impl Tables<F>) -> Self {
        BlockSparse { row: 1 + query.query / BLOCK * tables.word::<0>(0) }
    }

    #[inline(always)]
    fn score(self, scaled: F, _key: u32, _tables: &impl Tables<F>) -> F {
        scaled
    }

    #[inline(always)]
    fn sees(self, key: u32, tables: &impl Tables<F>) -> bool {
        let block = key / BLOCK;
        tables.word::<0>(self.row + block / 32) >> (block % 32) & 1 != 0
    }
}
