//! What a device does while a graph is replayed.

use super::{Bench, replay_between};
use ferroflash::device::graph::{Graph, Mark, Timeline};
use ferroflash::device::nvml::Reading;
use ferroflash::error::Error;
use std::time::{Duration, Instant};

/// What a device does under a load, where NVML tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Load {
    /// SM clock in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Whether the power limit holds it down: then a kernel that does less takes less time, and one that merely waits less may not.
    pub is_power_limited: Option<bool>,
}

impl Load {
    /// The clock, marked where the power limit holds it down: `1650 P`, and `-` where nothing is known.
    pub fn clock(&self) -> String {
        let mark = if self.is_power_limited == Some(true) { " P" } else { "" };
        self.sm_clock_mhz.map_or("-".to_owned(), |mhz| format!("{mhz}{mark}"))
    }
}

impl Bench {
    /// What the device does while a graph is replayed: asked behind all timed replays, as NVML may disturb them.
    pub(super) fn load(
        &self,
        timeline: &Timeline,
        graph: &Graph,
        marks: &(Mark, Mark),
    ) -> Result<Load, Error> {
        const LOAD: Duration = Duration::from_millis(20);
        let mut load = Load::default();
        let Some(nvml) = &self.nvml else { return Ok(load) };
        let start = Instant::now();
        while start.elapsed() < LOAD {
            for _ in 0..4 {
                replay_between(timeline, graph, marks)?;
            }
            let Reading { sm_clock_mhz, is_power_limited, .. } = nvml.read();
            load = Load { sm_clock_mhz, is_power_limited };
            timeline.finish()?;
        }
        Ok(load)
    }
}
