//! Which lanes of a warp have seen which others' memory accesses, where `bar.warp.sync` names some lanes only (PTX ISA
//! §9.7.13.2): every lane carries a vector clock, which the barrier joins among its lanes.

use crate::regs::LANES;

/// The order among the lanes since the warp's clock last went on.
#[derive(Clone, Debug)]
pub(crate) struct LaneOrder {
    /// Partial barriers so far.
    barriers: u8,
    /// For each lane, how many partial barriers each other lane had passed when the first last heard of it.
    seen: [[u8; LANES]; LANES],
}

impl Default for LaneOrder {
    fn default() -> Self {
        LaneOrder { barriers: 0, seen: [[0; LANES]; LANES] }
    }
}

impl LaneOrder {
    /// Partial barriers so far.
    pub(crate) fn barriers(&self) -> u8 {
        self.barriers
    }

    /// A barrier of these lanes; false if it cannot be counted any more.
    pub(crate) fn join(&mut self, members: u32) -> bool {
        let Some(barriers) = self.barriers.checked_add(1) else { return false };
        self.barriers = barriers;
        let is_member = |lane: &usize| members >> lane & 1 == 1;
        let mut joined = [0; LANES];
        for lane in (0..LANES).filter(is_member) {
            for (sum, seen) in joined.iter_mut().zip(&self.seen[lane]) {
                *sum = (*sum).max(*seen);
            }
        }
        (0..LANES).filter(is_member).for_each(|lane| joined[lane] = barriers);
        (0..LANES).filter(is_member).for_each(|lane| self.seen[lane] = joined);
        true
    }

    /// Whether every access of `earlier`, made after so many barriers, comes before what `later` do now.
    pub(crate) fn ordered(&self, earlier: u32, barriers: u8, later: u32) -> bool {
        let lanes = |mask: u32| (0..LANES).filter(move |lane| mask >> lane & 1 == 1);
        lanes(earlier).all(|a| lanes(later).all(|b| a == b || self.seen[b][a] > barriers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barriers_order_their_own_lanes_and_those_before_them() {
        let mut order = LaneOrder::default();
        assert!(order.ordered(1, 0, 1) && !order.ordered(1, 0, 2));
        assert!(order.join(0b0011));
        assert!(order.ordered(0b01, 0, 0b10) && !order.ordered(0b01, 0, 0b100));
        // What comes after the barrier is not ordered by it.
        assert!(!order.ordered(0b01, 1, 0b10));
        assert!(order.join(0b0110));
        // Lane 2 has heard of lane 0 through lane 1.
        assert!(order.ordered(0b01, 0, 0b100) && !order.ordered(0b01, 1, 0b100));
        assert!((0..253).all(|_| order.join(3)) && !order.join(3));
    }
}
