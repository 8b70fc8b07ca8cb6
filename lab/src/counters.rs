//! What is counted of a kernel, exactly: the simulator's counters and what ptxas reports, by name.

use kernels_gpu::manifest::Resources;
use ptx_sim::{GlobalTraffic, InstructionClass, Report, SharedTraffic};
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
    /// What a launch on the simulator counted. Branches that diverge are left out: how often depends on the schedule.
    pub fn of_report(report: &Report) -> Self {
        let mut counters = Counters::default();
        counters.set("ctas", report.ctas);
        counters.set("warps_per_cta", report.warps_per_cta.into());
        counters.set("shared_bytes", report.shared_bytes);
        counters.set("warp_instructions", report.warp_instructions);
        counters.set("thread_instructions", report.thread_instructions);
        counters.set("tensor_flops", report.tensor_flops);
        counters.set("barriers", report.barriers);
        counters.set("atomics", report.atomics);
        counters.set("local_bytes", report.local_bytes);
        for class in InstructionClass::ALL {
            counters.set(&format!("instructions.{}", class.name()), report.class(class));
        }
        counters.set_global("async_global", &report.async_global);
        counters.set_global("global_load", &report.global_load);
        counters.set_global("global_store", &report.global_store);
        counters.set_shared("async_shared", &report.async_shared);
        counters.set_shared("shared_load", &report.shared_load);
        counters.set_shared("shared_store", &report.shared_store);
        counters
    }

    /// Adds what ptxas reported for an architecture.
    pub fn with_resources(mut self, arch: &str, resources: &Resources) -> Self {
        self.set(&format!("{arch}.registers"), resources.registers.into());
        self.set(&format!("{arch}.spill_stores"), resources.spill_stores.into());
        self.set(&format!("{arch}.spill_loads"), resources.spill_loads.into());
        self.set(&format!("{arch}.stack"), resources.stack.into());
        self.set(&format!("{arch}.static_smem"), resources.static_smem.into());
        self
    }

    fn set_global(&mut self, name: &str, traffic: &GlobalTraffic) {
        self.set(&format!("{name}.requests"), traffic.requests);
        self.set(&format!("{name}.sectors"), traffic.sectors);
        self.set(&format!("{name}.lines"), traffic.lines);
        self.set(&format!("{name}.bytes"), traffic.bytes);
    }

    fn set_shared(&mut self, name: &str, traffic: &SharedTraffic) {
        self.set(&format!("{name}.requests"), traffic.requests);
        self.set(&format!("{name}.wavefronts"), traffic.wavefronts);
        self.set(&format!("{name}.conflicts"), traffic.conflicts);
        self.set(&format!("{name}.bytes"), traffic.bytes);
    }

    /// Sets a count.
    pub fn set(&mut self, name: &str, count: u64) {
        self.0.insert(name.to_owned(), count);
    }

    /// A count, if it was counted.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// All counts by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, count)| (name.as_str(), *count))
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Passes over shared memory's banks, of all accesses; none where they were not counted.
    pub fn shared_wavefronts(&self) -> Option<u64> {
        self.sum(&SHARED, "wavefronts")
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

    /// Shared-memory wavefronts for `flops` operations of the problem: what a search on the simulator makes small.
    pub fn wavefronts_per_flop(&self, flops: f64) -> Option<f64> {
        Some(self.shared_wavefronts()? as f64 / flops).filter(|ratio| ratio.is_finite())
    }

    fn sum(&self, groups: &[&str], kind: &str) -> Option<u64> {
        groups.iter().map(|group| self.get(&format!("{group}.{kind}"))).sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn counters(counts: &[(&str, u64)]) -> Counters {
        let mut counters = Counters::default();
        for (name, count) in counts {
            counters.set(name, *count);
        }
        counters
    }

    #[test]
    fn sums_need_all_of_their_parts() {
        let mut some = counters(&[("shared_load.wavefronts", 5), ("shared_store.wavefronts", 2)]);
        assert_eq!(some.shared_wavefronts(), None);
        some.set("async_shared.wavefronts", 1);
        assert_eq!(some.shared_wavefronts(), Some(8));
        assert_eq!(some.wavefronts_per_flop(4.0), Some(2.0));
        assert_eq!(some.wavefronts_per_flop(0.0), None);
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
