//! The tensor maps that launches have needed so far: a call on the tensors of an earlier one encodes nothing.

use crate::device::{Device, TensorBox};
use crate::error::Error;
use foldhash::HashMap;
use kernels_gpu::params::TensorMap;
use std::sync::{PoisonError, RwLock};

/// The most maps that are kept: Q, K and V of 341 calls on different tensors.
const KEPT_MAX: usize = 1024;

/// Maps by the tensors they describe. A map is a pure function of address, sizes, strides and box, so it never goes stale.
#[derive(Default)]
pub(crate) struct TensorMaps {
    by_tensor: RwLock<HashMap<TensorBox, TensorMap>>,
}

impl TensorMaps {
    /// The maps of some tensors.
    ///
    /// # Errors
    /// Those of [`Device::tensor_map`].
    pub(crate) fn get<const N: usize>(
        &self,
        device: &dyn Device,
        tensors: &[TensorBox; N],
    ) -> Result<[TensorMap; N], Error> {
        // A thread that panicked while holding the lock left a complete map.
        let known = self.by_tensor.read().unwrap_or_else(PoisonError::into_inner);
        let kept = tensors.each_ref().map(|tensor| known.get(tensor).copied());
        drop(known);
        let mut maps = [TensorMap::default(); N];
        for ((map, kept), tensor) in maps.iter_mut().zip(kept).zip(tensors) {
            *map = match kept {
                Some(kept) => kept,
                None => self.encode(device, tensor)?,
            };
        }
        Ok(maps)
    }

    fn encode(&self, device: &dyn Device, tensor: &TensorBox) -> Result<TensorMap, Error> {
        let map = device.tensor_map(tensor)?;
        let mut known = self.by_tensor.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KEPT_MAX {
            // Whoever has so many tensors comes back to few of them; those are encoded again.
            known.clear();
        }
        known.insert(*tensor, map);
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::Recorder;
    use kernels_gpu::row::Dtype;

    #[test]
    fn each_tensor_is_encoded_once_while_there_is_room() {
        let device = Recorder::new(90, 132);
        let maps = TensorMaps::default();
        let tensor = TensorBox::new("K", Dtype::F16, [("head_dim", 64, 2), ("rows", 100, 128)], [64, 32]);
        let tensor = tensor.expect("as hardware takes it");
        let of = |address: u64| [tensor.at(address), tensor.at(address + 16), tensor.at(address)];
        let first = maps.get(device.as_ref(), &of(4096)).expect("encoded");
        let again = maps.get(device.as_ref(), &of(4096)).expect("known");
        assert_eq!((first, first[0]), (again, first[2]));
        assert_ne!(first[0], first[1], "another address");
        // The third is the first, which was not known yet when they were looked up.
        assert_eq!(device.encoded(), 3);
        for i in 0..KEPT_MAX as u64 {
            maps.get(device.as_ref(), &of(i << 20)).expect("encoded");
        }
        assert!(maps.by_tensor.read().expect("unpoisoned").len() <= KEPT_MAX);
        assert_eq!(maps.get(device.as_ref(), &of(4096)).expect("encoded again"), first);
    }
}
