//! Into how many ranges the keys are split: as asked, or the numbers among which the cost model chooses.

use super::Splits;
use crate::error::Error;
use kernels_gpu::geometry::SPLITS_MAX;
use kernels_gpu::params::SplitParams;

/// Ranges of keys, and the blocks of keys of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Splitting {
    pub(super) splits: u32,
    /// Of a sequence that has all keys.
    pub(super) blocks: u32,
    /// Whether each sequence's own keys are divided, so that no range of a short one is empty.
    pub(super) by_sequence: bool,
}

/// Numbers of splits that are always considered; the others fill rounds of CTAs.
const USUAL: [u32; 13] = [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128];
/// Rounds of CTAs, in quarters of what the device holds, that numbers of splits are to fill.
const QUARTERS: [u64; 5] = [1, 2, 3, 4, 8];
/// Blocks of keys of short ranges.
const SHORT: [u32; 4] = [1, 2, 3, 4];
/// CTAs beyond so many rounds only add to what is merged.
const ROUNDS_MOST: u64 = 4;

impl Splitting {
    /// One range of all keys.
    pub(super) const fn whole(key_blocks: u32) -> Splitting {
        Splitting { splits: 1, blocks: key_blocks, by_sequence: false }
    }

    /// As few ranges as `splits` that have equally many blocks, but for the last.
    pub(super) const fn of(key_blocks: u32, splits: u32) -> Splitting {
        let blocks = key_blocks.div_ceil(splits);
        Splitting { splits: key_blocks.div_ceil(blocks), blocks, by_sequence: false }
    }

    /// The same ranges where all sequences have all keys, and where they have lengths, of each sequence's own.
    pub(super) const fn by_sequence(self, key_blocks: u32) -> Splitting {
        Splitting { by_sequence: key_blocks <= SplitParams::shared_most(self.splits), ..self }
    }

    /// As kernels are told.
    pub(super) fn params(self) -> SplitParams {
        if self.by_sequence {
            SplitParams::of_shares(self.splits)
        } else {
            SplitParams::of_equal(self.splits, self.blocks)
        }
    }

    /// What is asked for; `None` where it is left to the cost model.
    ///
    /// # Errors
    /// [`Error::Splits`].
    pub(super) fn asked(asked: Splits, key_blocks: u32, block_n: u32) -> Result<Option<Splitting>, Error> {
        let refused = |splits, advice: String| Error::Splits { splits, limit: SPLITS_MAX, advice };
        match asked {
            Splits::Auto => Ok(None),
            Splits::Count(count) if !(1..=SPLITS_MAX).contains(&count) => Err(refused(count, String::new())),
            Splits::Count(count) => Ok(Some(Splitting::of(key_blocks, count))),
            Splits::Size(0) => Err(refused(0, ": a split size is at least 1 key".to_owned())),
            Splits::Size(keys) => {
                let blocks = keys.div_ceil(block_n);
                let splits = key_blocks.div_ceil(blocks);
                if splits > SPLITS_MAX {
                    let least = u64::from(key_blocks.div_ceil(SPLITS_MAX)) * u64::from(block_n);
                    let advice = format!(
                        ": with so many keys a split size of {keys} makes too many; give at least {least}"
                    );
                    return Err(refused(splits, advice));
                }
                Ok(Some(Splitting { splits, blocks, by_sequence: false }))
            }
        }
    }

    /// The most that [`Splitting::choices`] finds.
    pub(super) const CHOICES: usize = USUAL.len() + QUARTERS.len() + SHORT.len();

    /// The numbers of splits among which the cost model chooses, for so many tiles on a device that holds `capacity` CTAs: usual ones, and
    /// those that fill rounds; each once. `room` is for them.
    pub(super) fn choices(
        room: &mut [Splitting; Splitting::CHOICES],
        key_blocks: u32,
        tiles: u64,
        capacity: u64,
    ) -> &[Splitting] {
        let tiles = tiles.max(1);
        let most = u64::from(SPLITS_MAX.min(key_blocks)).min((ROUNDS_MOST * capacity / tiles).max(1)) as u32;
        let mut found = 0;
        let mut seen = [0u64; SPLITS_MAX as usize / 64 + 1];
        let mut consider = |count: u32| {
            if !(1..=most).contains(&count) {
                return;
            }
            let splitting = Splitting::of(key_blocks, count);
            let (word, bit) = (splitting.splits as usize / 64, 1 << (splitting.splits % 64));
            if seen[word] & bit == 0 {
                seen[word] |= bit;
                room[found] = splitting;
                found += 1;
            }
        };
        USUAL.iter().take_while(|&&count| count <= most).for_each(|&count| consider(count));
        QUARTERS.iter().for_each(|quarters| consider((capacity * quarters / 4 / tiles) as u32));
        SHORT.iter().for_each(|&blocks| consider(key_blocks.div_ceil(blocks)));
        &room[..found]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_no_empty_range_and_fill_the_device() {
        for (key_blocks, tiles, capacity) in [(1, 1, 132), (128, 64, 264), (1000, 3, 396), (7, 5000, 132)] {
            let mut room = [Splitting::whole(0); Splitting::CHOICES];
            let choices = Splitting::choices(&mut room, key_blocks, tiles, capacity);
            assert!(choices.contains(&Splitting::whole(key_blocks)));
            for Splitting { splits, blocks, .. } in choices {
                assert!(splits * blocks >= key_blocks && (splits - 1) * blocks < key_blocks, "none is empty");
            }
        }
        let filled = |splitting: &Splitting| splitting.splits == 4;
        let mut room = [Splitting::whole(0); Splitting::CHOICES];
        assert!(Splitting::choices(&mut room, 128, 64, 264).iter().any(filled), "256 of 264 CTAs");
    }

    #[test]
    fn counts_and_sizes_are_taken_as_far_as_there_are_blocks() {
        let of = |asked, key_blocks| {
            let splitting = Splitting::asked(asked, key_blocks, 64)?.expect("asked");
            Ok::<_, Error>((splitting.splits, splitting.blocks))
        };
        assert_eq!(of(Splits::Count(3), 7).expect("possible"), (3, 3));
        assert_eq!(of(Splits::Count(256), 7).expect("possible"), (7, 1));
        assert_eq!(of(Splits::Count(5), 8).expect("possible"), (4, 2));
        assert_eq!(of(Splits::Size(65), 7).expect("possible"), (4, 2));
        assert_eq!(of(Splits::Size(1 << 30), 7).expect("possible"), (1, 1 << 24));
        for (asked, splits) in [(Splits::Count(0), 0), (Splits::Count(257), 257), (Splits::Size(0), 0)] {
            assert!(matches!(of(asked, 7), Err(Error::Splits { splits: s, limit: 256, .. }) if s == splits));
        }
        let error = of(Splits::Size(64), 257).expect_err("too many");
        assert!(error.to_string().contains("give at least 128"), "{error}");
    }
}
