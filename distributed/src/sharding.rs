//! Which rows of a sequence each rank holds: zigzag, so that under the causal mask all ranks have as much to do.

use crate::context::shape_of;
use ferroflash::Problem;
use ferroflash::problem::TensorRole;
use std::ops::Range;

/// Granules that chunks may be multiples of, the largest first.
const GRANULES: [u32; 6] = [128, 64, 32, 16, 8, 1];
/// A chunk has at least so many granules, so that chunks of unequal length cost little.
const GRANULES_LEAST: u32 = 16;

/// A sequence in 2·N chunks: rank r of N holds chunks r and 2·N − 1 − r, one after the other.
///
/// Chunks start at multiples of a granule, and are as equal as that leaves them; of short sequences some are empty. Where
/// the granule is a multiple of a kernel's query block, a rank's blocks are those of one device, and so are the bits of O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharding {
    world: u32,
    granule: u32,
    /// Where each chunk starts, and where the last ends.
    starts: Vec<u32>,
}

impl Sharding {
    /// A sequence of `length` rows for `world` ranks (at least 1), in chunks of as many whole granules as leave none much longer.
    pub fn new(length: u32, world: u32) -> Sharding {
        let chunk = length / (2 * world.max(1));
        let granule = GRANULES.into_iter().find(|granule| chunk >= granule * GRANULES_LEAST).unwrap_or(1);
        Sharding::with_granule(length, world, granule)
    }

    /// The same with chunks that start at multiples of `granule`, at least 1.
    pub fn with_granule(length: u32, world: u32, granule: u32) -> Sharding {
        let (world, granule) = (world.max(1), granule.max(1));
        let chunks = u64::from(2 * world);
        let start = |chunk: u64| {
            let exact = u64::from(length) * chunk / chunks;
            let rounded = (exact + u64::from(granule) / 2) / u64::from(granule) * u64::from(granule);
            if chunk == chunks { length } else { rounded.min(length.into()) as u32 }
        };
        Sharding { world, granule, starts: (0..=chunks).map(start).collect() }
    }

    /// Ranks.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// Rows of the sequence.
    pub fn length(&self) -> u32 {
        self.starts[self.starts.len() - 1]
    }

    /// What chunks start at multiples of.
    pub fn granule(&self) -> u32 {
        self.granule
    }

    /// The rows of a chunk.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn chunk(&self, chunk: u32) -> Range<u32> {
        self.starts[chunk as usize]..self.starts[chunk as usize + 1]
    }

    /// The numbers of a rank's two chunks.
    pub fn chunks_of(&self, rank: u32) -> [u32; 2] {
        [rank, 2 * self.world - 1 - rank]
    }

    /// The rows of the sequence that a rank holds, in the order in which it holds them.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn rows_of(&self, rank: u32) -> [Range<u32>; 2] {
        self.chunks_of(rank).map(|chunk| self.chunk(chunk))
    }

    /// Where a rank's two chunks lie among the rows that it holds.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn local_of(&self, rank: u32) -> [Range<u32>; 2] {
        let [first, second] = self.rows_of(rank).map(|rows| rows.len() as u32);
        [0..first, first..first + second]
    }

    /// How many rows a rank holds.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn rows(&self, rank: u32) -> u32 {
        self.local_of(rank)[1].end
    }

    /// The most rows that a rank holds.
    pub fn rows_most(&self) -> u32 {
        (0..self.world).map(|rank| self.rows(rank)).max().unwrap_or(0)
    }
}

/// Neighbouring bytes of a tensor, as they lie in the whole and on the rank that holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRun {
    /// Bytes from the start of the whole tensor.
    pub whole: u64,
    /// Bytes from the start of the rank's.
    pub local: u64,
    /// How many.
    pub bytes: u64,
}

impl ShardRun {
    /// Where it starts in the whole and in the rank's tensor, and its length, in elements of 16 bits.
    pub fn elements(&self) -> (usize, usize, usize) {
        (self.whole as usize / 2, self.local as usize / 2, self.bytes as usize / 2)
    }
}

/// The runs of a rank's two chunks of one of a problem's tensors, contiguous in the problem's layout.
pub fn shard_runs(problem: &Problem, role: TensorRole, sharding: &Sharding, rank: u32) -> Vec<ShardRun> {
    let whole = shape_of(problem, role);
    let local = whole.with_rows(sharding.rows(rank));
    let of_chunk = |(rows, at): (Range<u32>, Range<u32>)| {
        let pairs = whole.runs(0..whole.heads, rows).into_iter().zip(local.runs(0..local.heads, at));
        pairs.map(|((whole, bytes), (local, _))| ShardRun { whole, local, bytes }).collect::<Vec<_>>()
    };
    sharding.rows_of(rank).into_iter().zip(sharding.local_of(rank)).flat_map(of_chunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_belongs_to_one_rank_whatever_the_length() {
        for (length, world) in [(1, 1), (1, 8), (7, 2), (15, 8), (16, 8), (1031, 3), (8192, 4), (100_003, 7)]
        {
            for sharding in [Sharding::new(length, world), Sharding::with_granule(length, world, 64)] {
                let mut owners = vec![0; length as usize];
                for rank in 0..world {
                    let rows = sharding.rows_of(rank);
                    assert_eq!(sharding.rows(rank), rows.iter().map(|rows| rows.len() as u32).sum::<u32>());
                    rows.into_iter().flatten().for_each(|row| owners[row as usize] += 1);
                }
                assert!(owners.iter().all(|&owners| owners == 1), "{length} rows, {world} ranks");
            }
        }
    }

    #[test]
    fn chunks_start_at_granules_and_differ_little() {
        for (length, world) in [(8192, 2), (100_003, 7), (1 << 20, 64), (5000, 4)] {
            let sharding = Sharding::new(length, world);
            let granule = sharding.granule();
            let chunks: Vec<Range<u32>> = (0..2 * world).map(|chunk| sharding.chunk(chunk)).collect();
            assert!(chunks.iter().all(|chunk| chunk.start.is_multiple_of(granule)), "{length} {world}");
            let mean = f64::from(length) / f64::from(2 * world);
            let most = chunks.iter().map(|chunk| chunk.len() as f64).fold(0.0, f64::max);
            assert!(most <= mean * 1.07, "{length} rows in {} chunks: {most}", 2 * world);
        }
    }
}
