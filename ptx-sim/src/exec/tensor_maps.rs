//! Tensor maps as bulk copies read them, and as a kernel changes them (PTX ISA §9.7.9.28): fields replaced in place, and a copy that is released to others.

use crate::finding::{FindingKind, Outcome};
use crate::op::{Addr, MemoryOrder, Proxy, Space, TensorMapReplace};
use crate::race::RaceAccess;
use crate::tensor_map::TensorMap;

use super::access::{addresses, check_alignment, lanes};
use super::bulk::bytes_of;
use super::cta::Cta;
use super::generic::resolve;
use super::warp::Warp;

/// What a change of a tensor map lacks that its proxy has not been told of.
const LACKS: [(Proxy, &str); 2] = [
    (
        Proxy::TensorMapReleased,
        "no fence.proxy.tensormap::generic.release or tensormap.cp_fenceproxy after the change",
    ),
    (Proxy::TensorMap, "no fence.proxy.tensormap::generic.acquire before the use"),
];

impl Warp {
    /// The bytes of a tensor map, as the proxy of tensor maps reads them: what threads wrote there needs its fence.
    pub(super) fn read_tensor_map(
        &mut self,
        address: u64,
        lane: usize,
        frame: usize,
        cta: &mut Cta<'_>,
    ) -> Outcome<[u8; TensorMap::BYTES]> {
        let mut bytes = [0; TensorMap::BYTES];
        for (i, part) in bytes.chunks_mut(16).enumerate() {
            let at = address.wrapping_add(16 * i as u64);
            let words = self.read_defined(Space::Generic, at, (lane, 16), frame, cta)?;
            part.copy_from_slice(&bytes_of(&words));
            if cta.launch.config.checks.async_copies
                && resolve(Space::Generic, at).0 == Space::Global
                && let Some((allocation, offset)) = self.locate(lane, at, 16, cta)?
                && allocation.is_stored()
            {
                for (proxy, lacks) in LACKS {
                    let access = RaceAccess::ProxyRead(proxy);
                    let noted = self.note_global(access, allocation, (lane, offset, 16), None, cta);
                    noted.map_err(|fault| match fault.kind {
                        FindingKind::ProxyFence => fault.saying(lacks),
                        _ => fault,
                    })?;
                }
            }
        }
        Ok(bytes)
    }

    /// `tensormap.replace`.
    pub(super) fn tensor_map_replace(
        &mut self,
        op: &TensorMapReplace,
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let list = addresses(&self.frame(frame)?.regs, &op.addr);
        for lane in lanes(active) {
            let value = self.frame(frame)?.regs.bits(op.value.bank, op.value.slot, lane);
            let Some((at, bytes, value)) = TensorMap::field(op.field, op.dimension, value) else { continue };
            check_alignment(cta, lane, list[lane], 64)?;
            for (at, bytes, value) in [(0, 8, TensorMap::TAG), (at, bytes, value)] {
                let words = [value as u32, (value >> 32) as u32, 0, 0];
                let address = list[lane].wrapping_add(at);
                self.write(op.space, address, (lane, bytes), &words, MemoryOrder::WEAK, frame, cta)?;
            }
        }
        Ok(())
    }

    /// `tensormap.cp_fenceproxy`, which the warp does once.
    pub(super) fn tensor_map_copy(
        &mut self,
        (to, from): (&Addr, &Addr),
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let regs = &self.frame(frame)?.regs;
        let (to, from) = (addresses(regs, to), addresses(regs, from));
        let Some(lane) = lanes(active).next() else { return Ok(()) };
        for at in (0..TensorMap::BYTES as u64).step_by(16) {
            let words = self.read(
                Space::Shared,
                from[lane].wrapping_add(at),
                (lane, 16),
                MemoryOrder::WEAK,
                frame,
                cta,
            )?;
            let address = to[lane].wrapping_add(at);
            self.write(Space::Global, address, (lane, 16), &words, MemoryOrder::WEAK, frame, cta)?;
        }
        Ok(())
    }
}
