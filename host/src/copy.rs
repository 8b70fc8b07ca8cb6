//! Copies within a device, by a kernel: which bytes, validated, as the launches that move them.

use crate::error::Error;
use kernels_gpu::divisor::Divisor;
use kernels_gpu::step_params::{
    COPY_BLOCKS, COPY_PIECE_BYTES, COPY_PIECE_BYTES_LEAST, COPY_PIECES, CopyBlock, CopyParams,
};
use kernels_gpu::steps::COPY_THREADS;
use std::num::NonZeroU32;

/// The most pieces of a block of a launch.
const PIECES_MOST: u64 = 1 << 30;
/// The longest run that is a row of a block: any of its pieces can be numbered.
const RUN_MOST: u64 = PIECES_MOST * COPY_PIECE_BYTES_LEAST as u64;

/// Bytes that go from one address of the device to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRun {
    /// The first address.
    pub from: u64,
    /// Where to.
    pub to: u64,
    /// Bytes.
    pub bytes: u64,
}

impl CopyRun {
    /// The run in parts of at most `most` bytes.
    fn parts(self, most: u64) -> impl Iterator<Item = CopyRun> {
        let CopyRun { from, to, bytes } = self;
        let part = move |at| CopyRun { from: from + at, to: to + at, bytes: most.min(bytes - at) };
        (0..bytes.div_ceil(most)).map(move |number| part(number * most))
    }
}

/// Runs of one length, equally far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) first: CopyRun,
    pub(crate) rows: u64,
    /// From one run's start to the next, where there are several.
    pub(crate) pitch: [u64; 2],
}

impl Block {
    /// As few blocks as neighbours make, whose rows are at most `pitch_most` bytes apart.
    pub(crate) fn of(runs: impl Iterator<Item = CopyRun>, pitch_most: u64) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        for run in runs.filter(|run| run.bytes > 0) {
            match blocks.last_mut().and_then(|last| Some((last.pitch_to(&run, pitch_most)?, last))) {
                Some((pitch, last)) => (last.rows, last.pitch) = (last.rows + 1, pitch),
                None => blocks.push(Block { first: run, rows: 1, pitch: [0, 0] }),
            }
        }
        blocks
    }

    /// The pitches, if the run is the block's next one: a second run decides them.
    fn pitch_to(&self, run: &CopyRun, pitch_most: u64) -> Option<[u64; 2]> {
        let CopyRun { from, to, bytes } = self.first;
        let apart = |start: u64, next: u64| {
            next.checked_sub(start).filter(|apart| (bytes..=pitch_most).contains(apart))
        };
        let pitch = if self.rows == 1 { [apart(from, run.from)?, apart(to, run.to)?] } else { self.pitch };
        let [of_from, of_to] = pitch.map(|pitch| self.rows * pitch);
        (*run == CopyRun { from: from + of_from, to: to + of_to, bytes }).then_some(pitch)
    }

    fn row(&self, row: u64) -> CopyRun {
        let (CopyRun { from, to, bytes }, [of_from, of_to]) = (self.first, self.pitch);
        CopyRun { from: from + row * of_from, to: to + row * of_to, bytes }
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = CopyRun> {
        (0..self.rows).map(|row| self.row(row))
    }

    /// The bytes of the pieces that it is copied in.
    fn piece_bytes(&self) -> Result<u32, Error> {
        let CopyRun { from, to, bytes } = self.first;
        let [of_from, of_to] = self.pitch;
        // A power of two divides all of them where it divides this.
        let all = from | to | bytes | of_from | of_to;
        let fits = |&piece: &u32| all.is_multiple_of(piece.into());
        [COPY_PIECE_BYTES, COPY_PIECE_BYTES_LEAST].into_iter().find(fits).ok_or(Error::Misaligned {
            tensor: "a copied run",
            what: "address or length",
            value: self
                .runs()
                .flat_map(|run| [run.from, run.to, run.bytes])
                .find(|value| !value.is_multiple_of(COPY_PIECE_BYTES_LEAST.into()))
                .unwrap_or(all)
                .into(),
            required: COPY_PIECE_BYTES_LEAST.into(),
        })
    }

    /// As parts of launches, each with as many rows as its pieces can be numbered.
    fn numbered(&self) -> Result<impl Iterator<Item = CopyBlock>, Error> {
        let (block, piece_bytes) = (*self, self.piece_bytes()?);
        let row_pieces = block.first.bytes / u64::from(piece_bytes);
        let rows_most = (PIECES_MOST / row_pieces).max(1);
        Ok((0..block.rows.div_ceil(rows_most)).map(move |part| {
            let first = part * rows_most;
            let rows = rows_most.min(block.rows - first);
            let CopyRun { from, to, .. } = block.row(first);
            let [from_pitch, to_pitch] = block.pitch;
            CopyBlock {
                from,
                to,
                from_pitch,
                to_pitch,
                row: Divisor::new(row_pieces as u32),
                pieces: (rows * row_pieces) as u32,
                first_share: 0,
                piece_bytes,
            }
        }))
    }
}

/// Copies of runs of bytes, as launches.
pub(crate) struct Copies {
    /// The parameters of each.
    pub(crate) launches: Vec<CopyParams>,
    /// The CTAs of each at most.
    pub(crate) ctas: u32,
}

impl Copies {
    /// # Errors
    /// [`Error::Misaligned`].
    pub(crate) fn of(runs: &[CopyRun], ctas: Option<NonZeroU32>) -> Result<Copies, Error> {
        let runs = runs.iter().flat_map(|run| run.parts(RUN_MOST));
        let mut blocks = Vec::new();
        for block in Block::of(runs, u64::MAX) {
            blocks.extend(block.numbered()?);
        }
        let launches = blocks.chunks(COPY_BLOCKS).map(launch_of).collect();
        Ok(Copies { launches, ctas: ctas.map_or(u32::MAX, NonZeroU32::get) })
    }
}

/// The launch that copies these blocks, at most [`COPY_BLOCKS`].
fn launch_of(blocks: &[CopyBlock]) -> CopyParams {
    let mut params = CopyParams::default();
    for (place, block) in params.blocks.iter_mut().zip(blocks) {
        *place = CopyBlock { first_share: params.shares, ..*block };
        params.shares += block.pieces.div_ceil(COPY_THREADS * COPY_PIECES);
    }
    for unused in &mut params.blocks[blocks.len()..] {
        unused.first_share = u32::MAX;
    }
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::side::PITCH_MOST;

    fn runs(places: &[(u64, u64, u64)]) -> Vec<CopyRun> {
        places.iter().map(|&(from, to, bytes)| CopyRun { from, to, bytes }).collect()
    }

    #[test]
    fn neighbours_that_are_equally_far_apart_are_one_block() {
        // Heads of a chunk, then heads of the next chunk, packed one behind the other.
        let heads = runs(&[(0, 1000, 32), (100, 1032, 32), (200, 1064, 32), (40, 1096, 60), (140, 1156, 60)]);
        let blocks = Block::of(heads.iter().copied(), PITCH_MOST);
        let shape = |block: &Block| (block.first, block.rows, block.pitch);
        let found: Vec<_> = blocks.iter().map(shape).collect();
        assert_eq!(found, [(heads[0], 3, [100, 32]), (heads[3], 2, [100, 60])]);
        assert_eq!(blocks.iter().flat_map(Block::runs).collect::<Vec<_>>(), heads);
    }

    #[test]
    fn whatever_does_not_fit_is_a_block_of_its_own_and_nothing_is_lost() {
        let mut state = 5u64;
        let mut drawn = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..2000 {
            let count = drawn(12);
            let some: Vec<_> = (0..count).map(|_| (drawn(6) * 64, drawn(6) * 64, drawn(3) * 32)).collect();
            let runs = runs(&some);
            let blocks = Block::of(runs.iter().copied(), PITCH_MOST);
            let copied: Vec<_> = blocks.iter().flat_map(Block::runs).collect();
            let wanted: Vec<_> = runs.into_iter().filter(|run| run.bytes > 0).collect();
            assert_eq!(copied, wanted);
            for block in blocks.iter().filter(|block| block.rows > 1) {
                assert!(block.pitch.iter().all(|&pitch| pitch >= block.first.bytes), "{block:?}");
            }
        }
        let far = runs(&[(0, 0, 8), (1 << 31, 8, 8), (1 << 32, 16, 8)]);
        assert_eq!(Block::of(far.iter().copied(), PITCH_MOST).len(), 3, "no device takes so large a pitch");
    }

    /// What launches would copy, piece by piece.
    fn copied(copies: &Copies) -> Vec<(u64, u64, u64)> {
        let mut pieces = Vec::new();
        for params in &copies.launches {
            let used: Vec<_> = params.blocks.iter().filter(|block| block.first_share != u32::MAX).collect();
            let ends = used.iter().skip(1).map(|block| block.first_share).chain([params.shares]);
            for (block, end) in used.iter().zip(ends) {
                let most = (end - block.first_share) * COPY_THREADS * COPY_PIECES;
                assert!(block.pieces <= most && block.pieces + COPY_THREADS * COPY_PIECES > most);
                let bytes = u64::from(block.piece_bytes);
                pieces.extend((0..block.pieces).map(|piece| {
                    let (row, column) = block.row.divide(piece);
                    let at = |pitch| u64::from(row) * pitch + u64::from(column) * bytes;
                    (block.from + at(block.from_pitch), block.to + at(block.to_pitch), bytes)
                }));
            }
        }
        pieces
    }

    #[test]
    fn launches_copy_every_byte_once_in_the_largest_pieces() {
        let wide: Vec<_> = (0..17).map(|n| (n * 4096, (1 << 20) + n * n * 512, 160)).collect();
        let narrow = [(1 << 21, 1 << 22, 20), ((1 << 21) + 64, (1 << 22) + 20, 20)];
        let all: Vec<_> = wide.iter().copied().chain(narrow).collect();
        let copies = Copies::of(&runs(&all), None).expect("aligned");
        assert_eq!(copies.launches.len(), 2, "{} blocks at most each", COPY_BLOCKS);
        let mut bytes: Vec<_> = copied(&copies)
            .iter()
            .flat_map(|&(from, to, n)| (0..n).map(move |b| (from + b, to + b)))
            .collect();
        bytes.sort_unstable();
        let mut wanted: Vec<_> =
            all.iter().flat_map(|&(from, to, n)| (0..n).map(move |b| (from + b, to + b))).collect();
        wanted.sort_unstable();
        assert_eq!(bytes, wanted);
        let sizes = copied(&copies).iter().filter(|(.., bytes)| *bytes == 4).count();
        assert_eq!(sizes, 10, "only what is not a multiple of 16 goes by 4");
    }

    #[test]
    fn what_pieces_cannot_number_is_several_blocks() {
        // Two rows of 12 GiB, which one block of 2^30 pieces does not hold, and 5000 of 1 MiB.
        let long = runs(&[(0, 1 << 40, 3 << 32), (1 << 36, 1 << 41, 3 << 32)]);
        let many: Vec<_> = (0..20_000).map(|n| (n << 21, (1 << 42) + (n << 20), 1 << 20)).collect();
        for runs in [long, runs(&many)] {
            let copies = Copies::of(&runs, None).expect("aligned");
            let blocks = copies.launches.iter().flat_map(|params| &params.blocks);
            let used: Vec<_> = blocks.filter(|block| block.first_share != u32::MAX).collect();
            let pieces: u64 = used.iter().map(|block| u64::from(block.pieces) * 16).sum();
            assert_eq!(pieces, runs.iter().map(|run| run.bytes).sum::<u64>());
            assert!(used.iter().all(|block| u64::from(block.pieces) <= PIECES_MOST));
            assert!(used.iter().all(|block| block.from < runs[runs.len() - 1].from + runs[0].bytes));
        }
    }

    #[test]
    fn bytes_between_words_are_refused_by_their_values() {
        let refused = Copies::of(&runs(&[(16, 32, 16), (66, 128, 16)]), None).map(|_| ());
        assert!(matches!(refused, Err(Error::Misaligned { value: 66, required: 4, .. })), "{refused:?}");
        assert!(Copies::of(&[], None).expect("nothing").launches.is_empty());
    }
}
