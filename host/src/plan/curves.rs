//! What the cost model leaves unsaid of a kernel: by how much its times are longer, as curves over three counts that tell launches apart.

use super::work::{Merge, Work};
use serde::{Deserialize, Serialize};

/// Rounds of CTAs at which a curve has a value.
const ROUNDS: [f64; 12] = [0.0625, 0.125, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0];
/// MB that all CTAs copy.
const COPIED: [f64; 13] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];
/// Shares of L2 that the tensors take.
const L2: [f64; 12] = [0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2.0, 4.0, 8.0];
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
}

impl Curves {
    /// Values of all three.
    pub const VALUES: usize = ROUNDS.len() + COPIED.len() + L2.len();

    /// The factor of a time.
    pub fn factor(&self, work: &Work) -> f64 {
        let Places([rounds, copied, l2]) = Places::of(work);
        let at = |values: &[f64], (place, share): (usize, f64)| {
            values[place] * (1.0 - share) + values[place + 1] * share
        };
        (at(&self.rounds, rounds) + at(&self.copied, copied) + at(&self.l2, l2)).clamp(-MOST, MOST).exp()
    }

    /// The least factor that it has anywhere.
    pub(super) fn least(&self) -> f64 {
        let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
        (least(&self.rounds) + least(&self.copied) + least(&self.l2)).clamp(-MOST, MOST).exp()
    }

    /// How much each value counts in the logarithm of [`Curves::factor`], in the order of [`Curves::from_slice`].
    pub fn weights(work: &Work) -> [f64; Curves::VALUES] {
        let mut weights = [0.0; Curves::VALUES];
        let starts = [0, ROUNDS.len(), ROUNDS.len() + COPIED.len()];
        for (start, (place, share)) in starts.into_iter().zip(Places::of(work).0) {
            weights[start + place] = 1.0 - share;
            weights[start + place + 1] = share;
        }
        weights
    }

    /// Curves of these values: those by rounds, those by what is copied, those by L2; those that are missing are 0.
    pub fn from_slice(values: &[f64]) -> Curves {
        let mut curves = Curves::default();
        let places = curves.rounds.iter_mut().chain(&mut curves.copied).chain(&mut curves.l2);
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

/// Where a launch lies on each curve: behind which value, and how far on the way to the next.
struct Places([(usize, f64); 3]);

impl Places {
    fn of(work: &Work) -> Places {
        let rounds = work.ctas / (work.sms * work.resident);
        Places([place(&ROUNDS, rounds), place(&COPIED, work.copied_mb), place(&L2, work.l2_share)])
    }
}

fn place(knots: &[f64], x: f64) -> (usize, f64) {
    let behind = knots[1..knots.len() - 1].iter().filter(|&&knot| knot <= x).count();
    let (from, to) = (knots[behind], knots[behind + 1]);
    (behind, ((x - from) / (to - from)).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_lies_between_its_neighbours_and_never_beyond_the_ends() {
        assert_eq!(place(&ROUNDS, 0.01), (0, 0.0));
        assert_eq!(place(&ROUNDS, 1.0), (5, 0.0));
        assert_eq!(place(&ROUNDS, 2.5), (8, 0.5));
        assert_eq!(place(&ROUNDS, 100.0), (10, 1.0));
    }

    #[test]
    fn values_are_taken_in_the_order_in_which_they_are_weighed() {
        let values: Vec<f64> = (0..Curves::VALUES).map(|i| i as f64 / 1024.0).collect();
        let curves = Curves::from_slice(&values);
        assert_eq!(
            (curves.rounds[1], curves.copied[0], curves.l2[11]),
            (1.0 / 1024.0, 12.0 / 1024.0, 36.0 / 1024.0)
        );
        assert_eq!(Curves::from_slice(&[]), Curves::default());
        assert_eq!(curves.least(), (37.0 / 1024.0f64).exp());
    }
}
