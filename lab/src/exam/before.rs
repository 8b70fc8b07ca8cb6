//! The contents of O, LSE and the bands around all tensors before a launch: drawn from the secret, so that a kernel cannot learn from them that the lab
//! examines it.

use super::POISON;
use fastrand::Rng;
use ferroflash::attention::Output;

/// What O and LSE are full of before a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The NaN of all ones.
    Poison,
    /// NaN of any sign and payload but those that arithmetic gives.
    Nan(u64),
    /// Numbers as attention computes them.
    Numbers(u64),
    /// Zeros, as fresh memory has them.
    Zeros,
}

impl Before {
    /// NaN of one kind or another: an element that is not written shows.
    pub fn any_nan(random: &mut Rng) -> Before {
        if random.bool() { Before::Poison } else { Before::Nan(random.u64(..)) }
    }

    /// Numbers or zeros: a kernel that reads O before it writes it computes another output.
    pub fn any_numbers(random: &mut Rng) -> Before {
        if random.u8(0..4) == 0 { Before::Zeros } else { Before::Numbers(random.u64(..)) }
    }

    /// Any of them.
    pub fn any(random: &mut Rng) -> Before {
        if random.bool() { Before::any_nan(random) } else { Before::any_numbers(random) }
    }

    /// As many elements of O, and of LSE as bits.
    pub fn fill(self, [o, lse]: [usize; 2]) -> (Vec<u16>, Vec<u32>) {
        match self {
            Before::Poison => (vec![POISON; o], vec![u32::MAX; lse]),
            Before::Zeros => (vec![0; o], vec![0; lse]),
            Before::Nan(seed) => {
                let mut words = nan_words(seed);
                let o = words.by_ref().take(o).collect();
                let halves: Vec<u16> = words.take(2 * lse).collect();
                (o, halves.chunks(2).map(|half| u32::from(half[0]) << 16 | u32::from(half[1])).collect())
            }
            Before::Numbers(seed) => {
                let mut random = Rng::with_seed(seed);
                let o = number_words(seed).take(o).collect();
                (o, (0..lse).map(|_| random.f32().mul_add(8.0, 0.5).to_bits()).collect())
            }
        }
    }

    /// An output with the NaN of all ones wherever it still is what it was before; of numbers, which a launch may compute by chance, where eight elements in a row of O
    /// are, or two of LSE. Zeros stay: a launch may have written them.
    pub fn marked(self, mut output: Output) -> Output {
        let lse_len = output.lse.as_ref().map_or(0, Vec::len);
        let (o, lse) = self.fill([output.o.len(), lse_len]);
        let (o_run, lse_least) = match self {
            Before::Poison | Before::Zeros => return output,
            Before::Nan(_) => (1, 1),
            Before::Numbers(_) => (8, 2),
        };
        let runs = output.o.chunks_mut(o_run).zip(o.chunks(o_run));
        runs.filter(|(now, before)| now == before).for_each(|(now, _)| now.fill(POISON));
        if let Some(now) = &mut output.lse {
            let is_kept: Vec<bool> =
                now.iter().zip(&lse).map(|(now, before)| now.to_bits() == *before).collect();
            if is_kept.iter().filter(|kept| **kept).count() >= lse_least.min(now.len()) {
                let kept = now.iter_mut().zip(is_kept).filter(|(_, kept)| *kept);
                kept.for_each(|(lse, _)| *lse = f32::from_bits(u32::MAX));
            }
        }
        output
    }
}

/// Words that are NaN as float16, as bfloat16 and, two of them, as float32: of each sign, and none the NaN that arithmetic gives.
pub(crate) fn nan_words(seed: u64) -> impl Iterator<Item = u16> {
    let mut random = Rng::with_seed(seed);
    std::iter::repeat_with(move || u16::from(random.bool()) << 15 | random.u16(0x7f81..=0x7ffe))
}

/// Words that are numbers of the size of an output's, as float16 and bfloat16.
pub(crate) fn number_words(seed: u64) -> impl Iterator<Item = u16> {
    let mut random = Rng::with_seed(seed);
    std::iter::repeat_with(move || u16::from(random.bool()) << 15 | random.u16(0x3c00..=0x3fff))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::Dtype;
    use ferroflash::rounding::widen;

    #[test]
    fn what_is_not_written_is_marked_and_what_is_written_stays() {
        for before in [Before::Poison, Before::Nan(1), Before::Numbers(2)] {
            let (o, lse) = before.fill([64, 4]);
            let mut output = Output::new(o, Some(lse.into_iter().map(f32::from_bits).collect()));
            output.o[16..32].fill(0x3c00);
            output.lse.as_mut().expect("wanted")[0] = 1.5;
            let marked = before.marked(output);
            let lse = marked.lse.expect("wanted");
            assert!(marked.o[..16].iter().chain(&marked.o[32..]).all(|&bits| bits == POISON), "{before:?}");
            assert!(marked.o[16..32].iter().all(|&bits| bits == 0x3c00), "{before:?}");
            assert_eq!((lse[0], lse[1].to_bits()), (1.5, u32::MAX), "{before:?}");
        }
    }

    #[test]
    fn what_stands_there_is_nan_of_both_signs_or_numbers_in_every_format() {
        for (before, is_nan) in [(Before::Nan(3), true), (Before::Numbers(3), false), (Before::Zeros, false)]
        {
            let (o, lse) = before.fill([1000, 1000]);
            for dtype in [Dtype::F16, Dtype::Bf16] {
                assert!(o.iter().all(|&bits| widen(dtype, bits).is_nan() == is_nan), "{before:?}");
            }
            assert!(lse.iter().all(|&bits| f32::from_bits(bits).is_nan() == is_nan), "{before:?}");
            assert!(
                before == Before::Zeros
                    || o.iter().any(|bits| bits >> 15 == 1) && o.iter().any(|bits| bits >> 15 == 0)
            );
            assert!(!o.contains(&POISON) && !o.contains(&0x7fff));
        }
    }
}
