//! The pattern of a warp's addresses. Most instructions repeat theirs at other places, so what follows from the pattern alone (bank
//! conflicts, lanes at one address) is kept from one execution to the next.

use crate::counters;
use crate::op::Pc;
use crate::regs::{FULL, LANES};

/// Banks repeat after so many bytes.
const PERIOD: u32 = 128;

/// The pattern of the addresses of the active lanes.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    active: u32,
    bytes: u32,
    /// The first address's place in a period.
    phase: u32,
    /// Each lane's address less the first's.
    beyond: [u32; LANES],
    /// The least and the greatest of these, signed.
    span: (i32, i32),
    /// Passes over the banks, and those beyond what the size needs.
    pub(super) wavefronts: (u64, u64),
    /// Distinct addresses, less the first lane's, and their lanes.
    pub(super) groups: Vec<(u32, u32)>,
}

/// The last pattern of every instruction of every function.
#[derive(Debug, Default)]
pub(super) struct Shapes(Vec<Vec<Option<Box<Shape>>>>);

impl Shapes {
    /// The pattern of an instruction's addresses; those of lanes that are not active are the first active lane's.
    #[inline]
    pub(super) fn at(
        &mut self,
        (program, pc): (usize, Pc),
        list: &[u32; LANES],
        active: u32,
        bytes: u32,
    ) -> &Shape {
        let pc = pc as usize;
        if self.0.len() <= program {
            self.0.resize_with(program + 1, Vec::new);
        }
        let shapes = &mut self.0[program];
        if shapes.len() <= pc {
            shapes.resize_with(pc + 1, || None);
        }
        let place = &mut shapes[pc];
        if !place.as_ref().is_some_and(|shape| shape.is_of(list, active, bytes)) {
            *place = None;
        }
        place.get_or_insert_with(|| Box::new(Shape::new(list, active, bytes)))
    }
}

impl Shape {
    #[inline]
    fn is_of(&self, list: &[u32; LANES], active: u32, bytes: u32) -> bool {
        let first = list[first_lane(active)];
        let mut differs = 0;
        for (address, beyond) in list.iter().zip(&self.beyond) {
            differs |= address.wrapping_sub(first) ^ beyond;
        }
        differs == 0 && (self.active, self.bytes, self.phase) == (active, bytes, first % PERIOD)
    }

    /// The bytes from the least address to the end of the greatest, the first active lane's given.
    #[inline]
    pub(super) fn range(&self, first: u32, bytes: u32) -> (i64, i64) {
        let at = |beyond: i32| i64::from(first) + i64::from(beyond);
        (at(self.span.0), at(self.span.1) + i64::from(bytes))
    }

    fn new(list: &[u32; LANES], active: u32, bytes: u32) -> Self {
        let first = list[first_lane(active)];
        let beyond = list.map(|address| address.wrapping_sub(first));
        let mut groups: Vec<(u32, u32)> = Vec::new();
        for lane in super::access::lanes(active) {
            match groups.iter_mut().find(|group| group.0 == beyond[lane]) {
                Some(group) => group.1 |= 1 << lane,
                None => groups.push((beyond[lane], 1 << lane)),
            }
        }
        let signed = || groups.iter().map(|group| group.0 as i32);
        let span = (signed().min().unwrap_or(0), signed().max().unwrap_or(0));
        let wavefronts = counters::shared_wavefronts(&list.map(u64::from), active, bytes);
        Shape { active, bytes, phase: first % PERIOD, beyond, span, wavefronts, groups }
    }
}

/// The first lane of a mask.
#[inline]
pub(super) fn first_lane(active: u32) -> usize {
    active.trailing_zeros() as usize % LANES
}

/// Addresses of 32 bits that are multiples of the access's size, those of lanes that are not active replaced by the first active
/// lane's; `None` if there are others.
#[inline]
pub(super) fn aligned(list: &[u64; LANES], taken: u64, active: u32, bytes: u32) -> Option<[u32; LANES]> {
    let first = list[first_lane(active)].wrapping_sub(taken);
    let (mut low, mut all) = ([0; LANES], 0);
    if active == FULL {
        for lane in 0..LANES {
            let address = list[lane].wrapping_sub(taken);
            all |= address;
            low[lane] = address as u32;
        }
    } else {
        for lane in 0..LANES {
            let address = if active >> lane & 1 == 1 { list[lane].wrapping_sub(taken) } else { first };
            all |= address;
            low[lane] = address as u32;
        }
    }
    (all >> 32 == 0 && all & u64::from(bytes - 1) == 0).then_some(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_known_again_at_another_place_of_the_same_banks() {
        let list = |base: u32| std::array::from_fn(|lane| base + 4 * (lane as u32 / 2));
        let mut shapes = Shapes::default();
        let shape = shapes.at((1, 7), &list(1024), FULL, 4);
        assert_eq!((shape.groups.len(), shape.groups[1], shape.wavefronts), (16, (4, 0b1100), (1, 0)));
        assert_eq!(shape.span, (0, 60));
        assert!(shape.is_of(&list(1152), FULL, 4));
        assert!(!shape.is_of(&list(1028), FULL, 4) && !shape.is_of(&list(1024), 1, 4));
        let column = std::array::from_fn(|lane| 1024 + 128 * lane as u32);
        assert_eq!(shapes.at((1, 7), &column, 0b111, 4).wavefronts, (3, 2));
    }

    #[test]
    fn addresses_that_are_no_multiples_or_too_large_are_told_apart() {
        let mut list = [64u64; LANES];
        assert!(aligned(&list, 0, FULL, 16).is_some());
        list[3] = 68;
        assert!(aligned(&list, 0, FULL, 16).is_none() && aligned(&list, 0, FULL, 4).is_some());
        assert_eq!(aligned(&list, 0, !8, 16), Some([64; LANES]));
        list[3] = 1 << 32;
        assert!(aligned(&list, 0, FULL, 4).is_none());
    }
}
