//! What the cost model leaves unsaid of a kernel: by how much its times are longer, as curves over counts that tell launches apart.

use super::numbers::within;
use super::work::{Filled, Merge, Work};
use serde::{Deserialize, Serialize};

/// Rounds of CTAs at which a curve has a value.
const ROUNDS: [f64; 12] = [0.0625, 0.125, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0];
/// MB that all CTAs copy.
const COPIED: [f64; 13] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];
/// Shares of L2 that the tensors take.
const L2: [f64; 12] = [0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2.0, 4.0, 8.0];
/// Keys of a page.
const PAGE: [f64; 5] = [1.0, 16.0, 32.0, 64.0, 128.0];
/// Curves say how far the model is off, which is never more than so much of a logarithm.
const MOST: f64 = 0.2;

/// The logarithms of factors of a kernel's time: piecewise linear, constant beyond the ends. A profile that was fitted before there were
/// curves has flat ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curves {
    /// By rounds of CTAs.
    pub rounds: [f64; ROUNDS.len()],
    /// By MB that all CTAs copy.
    pub copied: [f64; COPIED.len()],
    /// By the share of L2 that the tensors take.
    pub l2: [f64; L2.len()],
    /// By the keys of a page, where there are pages.
    #[serde(default, skip_serializing_if = "is_flat")]
    pub page: [f64; PAGE.len()],
    /// By rounds of CTAs, where keys and values come from memory and each is copied once ([`Filled::streamed`]): how many CTAs it takes to
    /// have all of the bandwidth is another matter than how long they compute.
    #[serde(default, skip_serializing_if = "is_flat")]
    pub streamed: [f64; ROUNDS.len()],
}

/// Whether a curve says nothing.
fn is_flat<const N: usize>(values: &[f64; N]) -> bool {
    *values == [0.0; N]
}

impl Curves {
    /// Values of all of them.
    pub const VALUES: usize = 2 * ROUNDS.len() + COPIED.len() + L2.len() + PAGE.len();

    /// The factor of a time.
    pub fn factor(&self, work: &Work) -> f64 {
        let (copied, l2) = (Place::of_copied(&work.filled), Place::of_l2(work.filled.l2_share));
        let rounds = Place::of_rounds(work);
        let of_launch = self.of_launch(rounds, Place::of_page(work));
        let of_stream = work.filled.streamed() * self.of_stream(rounds);
        Curves::limited(of_launch + self.of_tensors(copied, l2) + of_stream).exp()
    }

    /// As much of a factor's logarithm as curves may say.
    pub(super) fn limited(logarithm: f64) -> f64 {
        within(logarithm, -MOST, MOST)
    }

    /// The part of the logarithm that lengths do not change: of rounds of CTAs, and of pages.
    pub(super) fn of_launch(&self, rounds: Place, page: Option<Place>) -> f64 {
        rounds.on(&self.rounds) + page.map_or(0.0, |page| page.on(&self.page))
    }

    /// The part that counts as far as memory bounds the launch ([`Filled::streamed`]).
    pub(super) fn of_stream(&self, rounds: Place) -> f64 {
        rounds.on(&self.streamed)
    }

    /// The part that follows from what is copied and from the share of L2, which splits do not change.
    pub(super) fn of_tensors(&self, copied: Place, l2: Place) -> f64 {
        copied.on(&self.copied) + l2.on(&self.l2)
    }

    /// How much each value counts in the logarithm of [`Curves::factor`], in the order of [`Curves::from_slice`].
    pub fn weights(work: &Work) -> [f64; Curves::VALUES] {
        let (copied, l2) = (Place::of_copied(&work.filled), Place::of_l2(work.filled.l2_share));
        let (rounds, page) = (Place::of_rounds(work), Place::of_page(work));
        let curves = [
            (ROUNDS.len(), 1.0, Some(rounds)),
            (COPIED.len(), 1.0, Some(copied)),
            (L2.len(), 1.0, Some(l2)),
            (PAGE.len(), 1.0, page),
            (ROUNDS.len(), work.filled.streamed(), Some(rounds)),
        ];
        let (mut weights, mut start) = ([0.0; Curves::VALUES], 0);
        for (length, weight, place) in curves {
            if let Some(Place { behind, share }) = place {
                weights[start + behind] = weight * (1.0 - share);
                weights[start + behind + 1] = weight * share;
            }
            start += length;
        }
        weights
    }

    /// Curves of these values, in the order of their fields; those that are missing are 0.
    pub fn from_slice(values: &[f64]) -> Curves {
        let mut curves = Curves::default();
        let Curves { rounds, copied, l2, page, streamed } = &mut curves;
        let places = rounds.iter_mut().chain(copied).chain(l2).chain(page).chain(streamed);
        places.zip(values).for_each(|(place, &value)| *place = value);
        curves
    }
}

/// The curves of a kernel, by how its splits are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MergeCurves {
    /// Without splits of the keys.
    pub whole: Curves,
    /// With several, merged in the same launch.
    pub fused: Curves,
    /// With several, merged in a launch of its own.
    pub split: Curves,
}

impl MergeCurves {
    /// Whether they say nothing.
    pub fn is_flat(&self) -> bool {
        *self == MergeCurves::default()
    }

    /// Those of a way to merge.
    pub fn of(&self, merge: Merge) -> &Curves {
        match merge {
            Merge::Nothing => &self.whole,
            Merge::Fused => &self.fused,
            Merge::Kernel => &self.split,
        }
    }

    /// The same, to be written.
    pub fn of_mut(&mut self, merge: Merge) -> &mut Curves {
        match merge {
            Merge::Nothing => &mut self.whole,
            Merge::Fused => &mut self.fused,
            Merge::Kernel => &mut self.split,
        }
    }
}

/// Where a launch lies on a curve: behind which value, and how far on the way to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    behind: usize,
    share: f64,
}

impl Place {
    pub(super) fn of_rounds(work: &Work) -> Place {
        Place::new(&ROUNDS, work.ctas / (work.sms * work.resident))
    }

    pub(super) fn of_copied(filled: &Filled) -> Place {
        Place::new(&COPIED, filled.copied_mb)
    }

    pub(super) fn of_l2(share: f64) -> Place {
        Place::new(&L2, share)
    }

    pub(super) fn of_page(work: &Work) -> Option<Place> {
        (work.page > 0.0).then(|| Place::new(&PAGE, work.page))
    }

    fn new<const N: usize>(knots: &[f64; N], x: f64) -> Place {
        let behind = knots[1..N - 1].partition_point(|&knot| knot <= x);
        let (from, to) = (knots[behind], knots[behind + 1]);
        Place { behind, share: within((x - from) / (to - from), 0.0, 1.0) }
    }

    /// The value there.
    fn on(self, values: &[f64]) -> f64 {
        values[self.behind] * (1.0 - self.share) + values[self.behind + 1] * self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_lies_between_its_neighbours_and_never_beyond_the_ends() {
        let place = |rounds| {
            let Place { behind, share } = Place::new(&ROUNDS, rounds);
            (behind, share)
        };
        assert_eq!(place(0.01), (0, 0.0));
        assert_eq!(place(1.0), (5, 0.0));
        assert_eq!(place(2.5), (8, 0.5));
        assert_eq!(place(100.0), (10, 1.0));
    }

    #[test]
    fn values_are_taken_in_the_order_in_which_they_are_weighed() {
        let values: Vec<f64> = (0..Curves::VALUES).map(|i| i as f64 / 1024.0).collect();
        let curves = Curves::from_slice(&values);
        assert_eq!(
            (curves.rounds[1], curves.copied[0], curves.l2[11], curves.page[4], curves.streamed[11]),
            (1.0 / 1024.0, 12.0 / 1024.0, 36.0 / 1024.0, 41.0 / 1024.0, 53.0 / 1024.0)
        );
        assert_eq!(Curves::from_slice(&[]), Curves::default());
    }
}
