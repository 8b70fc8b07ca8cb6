//! The im2col mode of tensor maps (PTX ISA §5.5.4): a copy takes a row of pixels out of a bounding box around the images, one after
//! the other along W, then H, then D, then N, each moved by the offsets of the filter's tap. Pixels outside the images are zero.

/// The bounding box, of dimensions 1 to rank − 2 (W, H, D).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Im2col {
    /// Where it begins, from the first pixel on.
    pub(crate) lower: Vec<i16>,
    /// Where it ends, from the last pixel on.
    pub(crate) upper: Vec<i16>,
}

impl Im2col {
    /// What a corner may be in each direction, for a tensor of that rank: the fields of the hardware's map share 32 bits.
    pub(crate) fn corner_range(rank: usize) -> std::ops::RangeInclusive<i16> {
        match rank {
            3 => i16::MIN..=i16::MAX,
            4 => -128..=127,
            _ => -16..=15,
        }
    }

    /// Coordinates of dimensions 1 to rank − 1 of `count` pixels, from the first on.
    pub(crate) fn pixels(
        &self,
        first: &[i32],
        offsets: &[u16],
        (dims, steps): (&[u64], &[u16]),
        count: u64,
    ) -> Vec<Vec<i64>> {
        let mut base: Vec<i64> = first.iter().map(|at| i64::from(*at)).collect();
        let mut list = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let moved =
                base.iter().enumerate().map(|(i, at)| at + offsets.get(i).map_or(0, |o| i64::from(*o)));
            list.push(moved.collect());
            let mut axis = 0;
            // The last is N, which has no bounds.
            while let Some(at) = base.get_mut(axis) {
                *at += i64::from(steps[axis + 1]);
                let Some((lower, upper)) = self.lower.get(axis).zip(self.upper.get(axis)) else { break };
                if *at < dims[axis + 1] as i64 + i64::from(*upper) {
                    break;
                }
                *at = i64::from(*lower);
                axis += 1;
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_run_along_the_bounding_box_and_on_in_the_next_image() {
        // A filter of 3 × 3 with a pad of 1 over images of 4 × 3.
        let map = Im2col { lower: vec![-1, -1], upper: vec![-1, -1] };
        let list = map.pixels(&[1, 1, 0], &[2, 0], (&[8, 4, 3, 2], &[1; 4]), 5);
        // The base pixels are (1, 1), (2, 1), then those of the next image from its lower corner on.
        assert_eq!(list, [[3, 1, 0], [4, 1, 0], [1, -1, 1], [2, -1, 1], [3, -1, 1]]);
    }

    #[test]
    fn steps_skip_pixels() {
        let map = Im2col { lower: vec![0], upper: vec![0] };
        let list = map.pixels(&[0, 0], &[], (&[8, 5, 2], &[1, 2, 1]), 4);
        assert_eq!(list, [[0, 0], [2, 0], [4, 0], [0, 1]]);
    }
}
