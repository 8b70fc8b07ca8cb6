//! Undefined bytes on their way between memory and registers.

use crate::finding::Outcome;
use crate::memory::Words;
use crate::op::{Access, MemoryOrder, Space};
use crate::regs::{Bank, LANES};
use crate::window;

use super::access::sign_extend;
use super::cta::Cta;
use super::generic::resolve;
use super::undefined::Origin;
use super::warp::Warp;

impl Warp {
    /// The undefined bytes of what was read go to the registers.
    pub(super) fn shade_loaded(&mut self, access: &Access, frame: usize, lane: usize) -> Outcome {
        let (mask, origin) = self.dark;
        if mask == 0 && self.frame(frame)?.shade.is_none() {
            return Ok(());
        }
        let each = usize::from(access.element_bytes);
        for (i, reg) in access.regs.iter().enumerate() {
            let bits =
                (0..each).filter(|b| mask >> (i * each + b) & 1 == 1).fold(0u64, |m, b| m | 0xff << (8 * b));
            let bits = if access.signed { sign_extend(bits, access.element_bytes, reg) } else { bits };
            let bits = if reg.bank == Bank::Word { bits & 0xffff_ffff } else { bits };
            self.shade_register(frame, (reg.bank, reg.slot, lane), bits, origin)?;
        }
        Ok(())
    }

    /// The undefined bytes of what a lane stores, and where they come from. Of bit fields one bit of a byte may be defined:
    /// then the byte counts as defined.
    pub(super) fn dark_stored(&self, access: &Access, frame: usize, lane: usize) -> (u32, Option<Origin>) {
        let (mut mask, mut from) = (0, None);
        if self.frames[frame].as_ref().is_none_or(|f| f.shade.is_none()) {
            return (mask, from);
        }
        let each = u32::from(access.element_bytes);
        for (i, reg) in access.regs.iter().enumerate() {
            let (bits, origin) = self.shade_of(frame, reg.bank, reg.slot, lane);
            for byte in (0..each).filter(|b| bits >> (8 * b) & 0xff == 0xff) {
                mask |= 1 << (i as u32 * each + byte);
                from = from.or(origin);
            }
        }
        (mask, from)
    }

    /// Memory holds what nobody defined after a copy of it.
    pub(super) fn shade_stored(
        &mut self,
        space: Space,
        address: u64,
        (lane, bytes): (usize, u32),
        (mask, origin): (u32, Option<Origin>),
        frame: usize,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let (space, address) = resolve(space, address);
        match space {
            Space::Global if mask != 0 => {
                if let Some((allocation, offset)) = self.locate(lane, address, bytes, cta)? {
                    allocation.forget(offset, bytes, mask);
                }
            }
            Space::Local if mask != 0 => self.local.forget(lane, address, bytes, mask, origin),
            Space::Shared | Space::Cluster => {
                let rank = cta.rank_of(space, lane, &mut { address })?;
                let target = cta.at_rank(rank);
                if let Some(offset) = target.shared.offset(lane, window::in_cta(address), bytes)? {
                    target.shade_shared(offset, bytes, (mask, origin));
                }
            }
            Space::Frame => {
                let at = lane * (self.frame(frame)?.params.len() / LANES) + address as usize;
                self.shade_params(frame, at, mask, bytes, origin);
            }
            _ => {}
        }
        Ok(())
    }

    /// A read of what must be defined: one that is not copied alone.
    pub(super) fn read_defined(
        &mut self,
        space: Space,
        address: u64,
        (lane, bytes): (usize, u32),
        frame: usize,
        cta: &mut Cta<'_>,
    ) -> Outcome<Words> {
        self.dark = (0, None);
        let words = self.read(space, address, (lane, bytes), MemoryOrder::WEAK, frame, cta)?;
        if self.dark.0 != 0 {
            self.undefined(self.dark.1, "the instruction", cta)?;
        }
        Ok(words)
    }

    /// Notes which bytes of a read nobody wrote.
    pub(super) fn darken(&mut self, mask: u32, (lane, address): (usize, u64), space: Space, cta: &Cta<'_>) {
        let (shared, global) = (space == Space::Shared, space == Space::Global);
        if mask != 0 {
            let address = address + u64::from(mask.trailing_zeros());
            let at = self.place();
            let copied = match space {
                Space::Local => self.local.origin(lane, address),
                Space::Shared => cta.origin_at(address),
                _ => None,
            };
            let here = Origin { shared, global, ..Origin::new(at, lane, Some(address)) };
            self.dark = (mask, Some(copied.unwrap_or(here)));
        }
    }
}
