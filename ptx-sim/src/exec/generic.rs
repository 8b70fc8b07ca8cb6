//! Generic addresses: which space they name, and whether it is the thread's own.

use crate::finding::{Fault, FindingKind, Outcome};
use crate::op::Space;
use crate::regs::LANES;
use crate::window;

use super::cta::Cta;
use super::warp::Warp;

/// The space and the address in it of a generic address (PTX ISA §5.1).
pub(super) fn resolve(space: Space, address: u64) -> (Space, u64) {
    if space != Space::Generic {
        return (space, address);
    }
    for (window, space) in [
        (window::SHARED_WINDOW, Space::Cluster),
        (window::LOCAL_WINDOW, Space::Local),
        (window::PARAM_WINDOW, Space::Param),
    ] {
        if window::holds(window, address) {
            return (space, window::anyones(address) - window);
        }
    }
    (Space::Global, address)
}

impl Warp {
    /// The same for what a lane accesses, which no other CTA's shared memory nor another thread's local memory can be.
    pub(super) fn resolve_own(
        &self,
        space: Space,
        address: u64,
        lane: usize,
        cta: &Cta<'_>,
    ) -> Outcome<(Space, u64)> {
        let resolved = resolve(space, address);
        if space != Space::Generic || !cta.launch.config.checks.bounds {
            return Ok(resolved);
        }
        let (window, detail) = match resolved.0 {
            Space::Cluster => (cta.shared_window, "this points to the shared memory of another CTA"),
            Space::Local => {
                let thread = self.index * LANES as u32 + lane as u32;
                (
                    cta.launch.local_window(cta.index, thread),
                    "this points to the local memory of another thread",
                )
            }
            _ => return Ok(resolved),
        };
        if window::is_of_another(window, address) {
            return Err(Fault::at(FindingKind::OutOfBounds, lane, window::anyones(address)).saying(detail));
        }
        Ok(resolved)
    }
}
