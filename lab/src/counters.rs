//! What is counted of a kernel, exactly: the simulator's counters and what ptxas reports, by name.

use kernels_gpu::manifest::Resources;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counts by name: `shared_load.wavefronts`, `sm_80.registers`. Names sort as they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counters(BTreeMap<String, u64>);

/// The three ways to shared memory.
const SHARED: [&str; 3] = ["async_shared", "shared_load", "shared_store"];
/// The three ways to global memory.
const GLOBAL: [&str; 3] = ["async_global", "global_load", "global_store"];

impl Counters {
    /// Adds what ptxas reported for an architecture.
    pub fn with_resources(mut self, arch: &str, resources: &Resources) -> Self {
        self.set(&format!("{arch}.registers"), resources.registers.into());
        self.set(&format!("{arch}.spill_stores"), resources.spill_stores.into());
        self.set(&format!("{arch}.spill_loads"), resources.spill_loads.into());
        self.set(&format!("{arch}.stack"), resources.stack.into());
        self.set(&format!("{arch}.static_smem"), resources.static_smem.into());
        self
    }

    /// Sets a count.
    pub fn set(&mut self, name: &str, count: u64) {
        self.0.insert(name.to_owned(), count);
    }

    /// A count, if it was counted.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// All counts but one.
    pub fn without(&self, name: &str) -> Self {
        self.iter().filter(|(known, _)| *known != name).collect()
    }

    /// All counts by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, count)| (name.as_str(), *count))
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Passes over shared memory's banks, of all accesses, those of wgmma's operands too; none where they were not counted.
    pub fn shared_wavefronts(&self) -> Option<u64> {
        let operands = self.get("wgmma_operand_bytes").unwrap_or(0) / 128;
        Some(self.sum(&SHARED, "wavefronts")? + operands)
    }

    /// Passes that only bank conflicts need.
    pub fn shared_conflicts(&self) -> Option<u64> {
        self.sum(&SHARED, "conflicts")
    }

    /// 32-byte sectors of global memory, of all accesses.
    pub fn global_sectors(&self) -> Option<u64> {
        self.sum(&GLOBAL, "sectors")
    }

    /// Bytes that lanes asked of global memory.
    pub fn global_bytes(&self) -> Option<u64> {
        self.sum(&GLOBAL, "bytes")
    }

    fn sum(&self, groups: &[&str], kind: &str) -> Option<u64> {
        groups.iter().map(|group| self.get(&format!("{group}.{kind}"))).sum()
    }
}

impl<S: Into<String>> FromIterator<(S, u64)> for Counters {
    fn from_iter<T: IntoIterator<Item = (S, u64)>>(counts: T) -> Self {
        Self(counts.into_iter().map(|(name, count)| (name.into(), count)).collect())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn counters(counts: &[(&str, u64)]) -> Counters {
        counts.iter().copied().collect()
    }

    #[test]
    fn sums_need_all_of_their_parts() {
        let mut some = counters(&[("shared_load.wavefronts", 5), ("shared_store.wavefronts", 2)]);
        assert_eq!(some.shared_wavefronts(), None);
        some.set("async_shared.wavefronts", 1);
        assert_eq!(some.shared_wavefronts(), Some(8));
        some.set("wgmma_operand_bytes", 1280);
        assert_eq!(some.shared_wavefronts(), Some(18));
    }

    #[test]
    fn resources_stand_by_architecture_and_files_are_plain() {
        let resources = Resources { registers: 128, spill_loads: 4, ..Default::default() };
        let counters = Counters::default().with_resources("sm_90", &resources);
        assert_eq!(counters.get("sm_90.registers"), Some(128));
        let text = serde_json::to_string(&counters).expect("JSON");
        assert!(text.contains("\"sm_90.spill_loads\":4"), "{text}");
        assert_eq!(serde_json::from_str::<Counters>(&text).expect("the same"), counters);
    }
}
