//! How many ranges of keys: enough to fill the device and no more.

use super::Splits;
use super::preference::{
    CTAS_TO_READ, EFFICIENCY_SHARE, FILLED_SHARE, SPLIT_BLOCKS_LEAST, UNSPLIT_KEY_BLOCKS, WAVES_MANY,
};
use crate::error::Error;
use kernels_gpu::geometry::SPLITS_MAX;

/// Ranges of keys, and the blocks of keys of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Splitting {
    pub(super) splits: u32,
    pub(super) blocks: u32,
}

/// Why there are as many splits as there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Because {
    /// They were asked for.
    Asked,
    /// The tiles alone fill this share of the resident CTAs.
    Filled { share: f64 },
    /// There are only so many blocks of keys.
    FewKeyBlocks { blocks: u32 },
    /// Nothing merges several.
    NoCombine,
    /// The waves are filled to this share, at best to that.
    Efficiency { efficiency: f64, best: f64 },
}

impl Splitting {
    /// One range of all keys.
    pub(super) const fn whole(key_blocks: u32) -> Splitting {
        Splitting { splits: 1, blocks: key_blocks }
    }

    /// As few ranges as `splits` that have equally many blocks, but for the last.
    pub(super) const fn of(key_blocks: u32, splits: u32) -> Splitting {
        let blocks = key_blocks.div_ceil(splits);
        Splitting { splits: key_blocks.div_ceil(blocks), blocks }
    }

    /// What is asked for, for `tiles` on a device of so many SMs, each of which holds so many CTAs at a time.
    ///
    /// # Errors
    /// [`Error::Splits`].
    pub(super) fn new(
        asked: Splits,
        key_blocks: u32,
        block_n: u32,
        tiles: u64,
        (sms, resident): (u32, u32),
    ) -> Result<(Splitting, Because), Error> {
        let refused = |splits, advice: String| Error::Splits { splits, limit: SPLITS_MAX, advice };
        match asked {
            Splits::Auto => Ok(automatic(key_blocks, tiles, sms, resident)),
            Splits::Count(count) if !(1..=SPLITS_MAX).contains(&count) => Err(refused(count, String::new())),
            Splits::Count(count) => Ok((Splitting::of(key_blocks, count), Because::Asked)),
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
                Ok((Splitting { splits, blocks }, Because::Asked))
            }
        }
    }
}

fn automatic(key_blocks: u32, tiles: u64, sms: u32, resident: u32) -> (Splitting, Because) {
    let share = tiles as f64 / f64::from((sms * resident.min(CTAS_TO_READ)).max(1));
    let whole = Splitting::whole(key_blocks);
    let efficiency = |splitting: &Splitting| {
        let waves = share * f64::from(splitting.splits);
        waves / waves.ceil()
    };
    let last_wave_is_full = share <= 1.0 || share >= WAVES_MANY || efficiency(&whole) >= FILLED_SHARE;
    if share >= FILLED_SHARE && last_wave_is_full {
        return (whole, Because::Filled { share });
    }
    if key_blocks <= UNSPLIT_KEY_BLOCKS {
        return (whole, Because::FewKeyBlocks { blocks: key_blocks });
    }
    let most = SPLITS_MAX.min(key_blocks / SPLIT_BLOCKS_LEAST).min((WAVES_MANY / share) as u32);
    // Numbers that make the same ranges as a smaller one are left out.
    let eligible = || {
        let splittings = (1..=most).map(|count| (count, Splitting::of(key_blocks, count)));
        splittings.filter(|(count, splitting)| *count == splitting.splits).map(|(_, splitting)| splitting)
    };
    let best = eligible().fold(0.0, |best: f64, splitting| best.max(efficiency(&splitting)));
    let enough = eligible().find(|splitting| efficiency(splitting) >= EFFICIENCY_SHARE * best);
    // The best one itself is enough.
    let splitting = enough.unwrap_or(whole);
    (splitting, Because::Efficiency { efficiency: efficiency(&splitting), best })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auto(key_blocks: u32, tiles: u64, sms: u32, resident: u32) -> (u32, u32) {
        let (splitting, _) =
            Splitting::new(Splits::Auto, key_blocks, 64, tiles, (sms, resident)).expect("possible");
        (splitting.splits, splitting.blocks)
    }

    #[test]
    fn nothing_is_split_where_tiles_fill_the_device_or_keys_are_few() {
        assert_eq!(auto(64, 7, 4, 2), (1, 64), "seven tiles of eight CTAs");
        assert_eq!(auto(64, 2048, 132, 3), (1, 64), "7.8 waves");
        assert_eq!(auto(UNSPLIT_KEY_BLOCKS, 1, 132, 2), (1, UNSPLIT_KEY_BLOCKS));
        assert_eq!(auto(9, 1, 132, 2), (2, 5), "no split has fewer than four blocks");
        assert!(auto(64, 300, 132, 2).0 > 1, "1.14 waves are 57 % full");
    }

    #[test]
    fn the_fewest_splits_that_fill_the_waves_are_taken() {
        // 64 tiles on 132 SMs: 4 splits make 256 CTAs, two an SM but for 8, however many an SM holds.
        assert_eq!(auto(128, 64, 132, 2), (4, 32));
        assert_eq!(auto(128, 64, 132, 3), (4, 32));
        for (key_blocks, tiles) in
            (5_u32..300).step_by(7).flat_map(|blocks| (1..100).map(move |tiles: u64| (blocks, tiles)))
        {
            let filled = |splits: u32| {
                let waves = tiles as f64 / 264.0 * f64::from(splits);
                waves / waves.ceil()
            };
            let possible = |splits: &u32| {
                let blocks = key_blocks.div_ceil(*splits);
                let waves = tiles as f64 / 264.0 * f64::from(*splits);
                let few = *splits <= key_blocks / SPLIT_BLOCKS_LEAST && waves <= WAVES_MANY;
                few && key_blocks.div_ceil(blocks) == *splits
            };
            let counts = || (1..=SPLITS_MAX).filter(possible);
            let best = counts().map(filled).fold(0.0, f64::max);
            let (splits, blocks) = auto(key_blocks, tiles, 132, 2);
            let fewest = counts().find(|&splits| filled(splits) >= EFFICIENCY_SHARE * best);
            assert_eq!(Some(splits), fewest, "{key_blocks} blocks, {tiles} tiles");
            assert!(splits * blocks >= key_blocks && (splits - 1) * blocks < key_blocks, "none is empty");
        }
    }

    #[test]
    fn counts_and_sizes_are_taken_as_far_as_there_are_blocks() {
        let of = |asked, key_blocks| {
            Splitting::new(asked, key_blocks, 64, 1, (132, 2)).map(|(splitting, _)| splitting)
        };
        assert_eq!(of(Splits::Count(3), 7).expect("possible"), Splitting { splits: 3, blocks: 3 });
        assert_eq!(of(Splits::Count(256), 7).expect("possible"), Splitting { splits: 7, blocks: 1 });
        assert_eq!(of(Splits::Count(5), 8).expect("possible"), Splitting { splits: 4, blocks: 2 });
        assert_eq!(of(Splits::Size(65), 7).expect("possible"), Splitting { splits: 4, blocks: 2 });
        assert_eq!(of(Splits::Size(1 << 30), 7).expect("possible"), Splitting { splits: 1, blocks: 1 << 24 });
        for (asked, splits) in [(Splits::Count(0), 0), (Splits::Count(257), 257), (Splits::Size(0), 0)] {
            assert!(matches!(of(asked, 7), Err(Error::Splits { splits: s, limit: 256, .. }) if s == splits));
        }
        let error = of(Splits::Size(64), 257).expect_err("too many");
        assert!(error.to_string().contains("give at least 128"), "{error}");
    }
}
