//! Matrix descriptors of `wgmma` (PTX ISA §9.7.15.5.1): where in shared memory the 16-byte chunks of an operand lie. Only the
//! canonical layouts are taken; what the manual leaves undefined is refused.
//!
//! With S the swizzle's span: a K-major tile is rows of S bytes along k, eight to a group, groups `stride` apart. An MN-major
//! tile is rows of S bytes along m or n, eight of k to a group, groups `stride` apart, the next S bytes `leading` away. Without
//! a swizzle a row is 16 bytes, eight to a core matrix; `leading` steps along k and `stride` along m or n, in both.

use crate::tensor_map::Swizzle;

/// A descriptor, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    start: u64,
    leading: u64,
    stride: u64,
    swizzle: Swizzle,
    mn_major: bool,
}

/// Bits that are not part of a field, and the base offset, which only patterns need that do not start where they repeat.
const RESERVED: u64 = 0x3ffe_c000_c000_c000;

impl Descriptor {
    /// The descriptor of an operand with `extent` rows or columns and 16 of k; else what is wrong with it.
    pub(super) fn decode(bits: u64, mn_major: bool, extent: u64) -> Result<Descriptor, &'static str> {
        if bits & RESERVED != 0 {
            return Err("reserved bits or the base offset of a matrix descriptor are not zero");
        }
        let field = |low: u32| (bits >> low & 0x3fff) << 4;
        let swizzle = match bits >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::B128,
            2 => Swizzle::B64,
            _ => Swizzle::B32,
        };
        let descriptor =
            Descriptor { start: field(0), leading: field(16), stride: field(32), swizzle, mn_major };
        descriptor.check(extent)?;
        Ok(descriptor)
    }

    fn check(&self, extent: u64) -> Result<(), &'static str> {
        let span = self.swizzle.span();
        let (steps_leading, steps_stride) = match (self.swizzle, self.mn_major) {
            (Swizzle::None, _) => (true, extent > 8),
            (_, false) => (false, extent > 8),
            (_, true) => (2 * extent > span, true),
        };
        if steps_leading && self.leading == 0 || steps_stride && self.stride == 0 {
            return Err("a matrix descriptor without the byte offset that its layout steps by");
        }
        if self.swizzle == Swizzle::None {
            return Ok(());
        }
        let pattern = 8 * span;
        if self.start % pattern >= span {
            return Err("a matrix descriptor that does not start in the first row of the swizzle's pattern");
        }
        // The bytes of a row that are read: all of k, or the rows or columns up to the span.
        let row = if self.mn_major { (2 * extent).min(span) } else { 32 };
        if self.start % span + row > span {
            return Err("a matrix descriptor whose rows leave the swizzle's span");
        }
        let aligned = |steps: bool, bytes: u64| !steps || bytes.is_multiple_of(pattern);
        if !aligned(steps_leading, self.leading) || !aligned(steps_stride, self.stride) {
            return Err("a matrix descriptor whose offsets are no multiples of the swizzle's pattern");
        }
        Ok(())
    }

    /// Shared address of the chunk that starts at row or column `mn` and at `k`.
    pub(super) fn chunk(&self, mn: u64, k: u64) -> u64 {
        let span = self.swizzle.span();
        let linear = match (self.swizzle, self.mn_major) {
            (Swizzle::None, false) => mn / 8 * self.stride + mn % 8 * 16 + k / 8 * self.leading,
            (Swizzle::None, true) => mn / 8 * self.stride + k % 8 * 16 + k / 8 * self.leading,
            (_, false) => mn / 8 * self.stride + mn % 8 * span + 2 * k,
            (_, true) => {
                let (atom, inside) = (mn / (span / 2), mn % (span / 2));
                atom * self.leading + k / 8 * self.stride + k % 8 * span + 2 * inside
            }
        };
        self.swizzle.apply(self.start + linear)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(start: u64, leading: u64, stride: u64, swizzle: u64) -> u64 {
        start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | swizzle << 62
    }

    #[test]
    fn every_layout_has_a_place_of_its_own_for_every_chunk() {
        for (swizzle, span) in [(0, 16), (1, 128), (2, 64), (3, 32)] {
            for mn_major in [false, true] {
                let groups = if mn_major { 16 * span } else { 8 * span };
                let (leading, stride) = match (swizzle, mn_major) {
                    (0, _) => (8 * 128, 128),
                    (_, true) => (groups, 8 * span),
                    (_, false) => (16, 8 * span),
                };
                let d = Descriptor::decode(bits(4096, leading, stride, swizzle), mn_major, 64).unwrap();
                let (step_mn, step_k) = if mn_major { (8, 1) } else { (1, 8) };
                let chunks =
                    (0..64).step_by(step_mn).flat_map(|mn| (0..16).step_by(step_k).map(move |k| (mn, k)));
                let mut places: Vec<u64> = chunks.map(|(mn, k)| d.chunk(mn, k)).collect();
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), 128, "{d:?}");
                assert!(places.iter().all(|p| p % 16 == 0 && *p >= 4096));
            }
        }
    }

    #[test]
    fn a_step_along_k_stays_in_the_pattern() {
        // Row 5, k 8 of the second slice of 16: chunk 3 of the row, exchanged with 3 ^ 5.
        let d = Descriptor::decode(bits(1024 + 32, 16, 1024, 1), false, 64).unwrap();
        assert_eq!(d.chunk(5, 8), 1024 + 5 * 128 + (3 ^ 5) * 16);
        // Column 72, k 3: the second atom.
        let d = Descriptor::decode(bits(1024, 16384, 1024, 1), true, 128).unwrap();
        assert_eq!(d.chunk(72, 3), 1024 + 16384 + 3 * 128 + (1 ^ 3) * 16);
    }

    #[test]
    fn other_layouts_are_refused() {
        let refused =
            |bits, mn_major, extent: u64| Descriptor::decode(bits, mn_major, extent).unwrap_err().to_owned();
        assert!(refused(1 << 49, false, 64).contains("base offset"));
        assert!(refused(bits(1024, 16, 0, 1), false, 64).contains("without the byte offset"));
        assert!(refused(bits(1024 + 128, 16, 1024, 1), false, 64).contains("first row"));
        assert!(refused(bits(1024 + 112, 16, 1024, 1), false, 64).contains("leave"));
        assert!(refused(bits(1024, 16, 1008, 1), false, 64).contains("multiples"));
        assert!(refused(bits(1024, 0, 128, 0), false, 64).contains("without the byte offset"));
    }
}
