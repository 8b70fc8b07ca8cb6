//! What a good kernel reaches, met or named: the tensor pipe, the SM, the L2 cache, the banks, DRAM.

use crate::kernels::{Counted, Machine};
use crate::profile::Figure;
use serde::{Deserialize, Serialize};

/// One target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// What is wanted, `SM busy ≥ 70 %`.
    pub wanted: String,
    /// What was found; `None` where nothing measured it.
    pub found: Option<f64>,
    /// Whether it is met.
    pub met: Option<bool>,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Target { wanted, found, met } = self;
        match (found, met) {
            (Some(found), Some(true)) => write!(f, "{wanted}: {}", crate::table::short(*found)),
            (Some(found), _) => write!(f, "MISSED {wanted}: {}", crate::table::short(*found)),
            (None, _) => write!(f, "{wanted}: not measured"),
        }
    }
}

/// How many times the bytes of each tensor, once, DRAM may move.
const DRAM_TIMES: f64 = 1.2;
/// CTAs a multiprocessor that a launch shall have, where there is work for so many.
const CTAS_PER_SM: f64 = 4.0;

/// The targets of a kernel on a problem, by what was counted and what ncu measured.
pub fn targets(counted: &Counted, machine: &Machine, metrics: &[Figure]) -> Vec<Target> {
    let metric = |start: &str| {
        let figure = metrics.iter().find(|figure| figure.name.starts_with(start))?;
        Some(figure.value * scale(figure.unit.trim()))
    };
    let least = |name: &str, wanted: f64, found: Option<f64>| Target {
        wanted: format!("{name} ≥ {wanted:.0}"),
        met: found.map(|found| found >= wanted),
        found,
    };
    let most = |name: &str, wanted: f64, found: Option<f64>| Target {
        wanted: format!("{name} ≤ {wanted:.0}"),
        met: found.map(|found| found <= wanted),
        found,
    };
    let tensor = metric("sm__pipe_tensor_cycles_active");
    let mut targets = vec![
        least("CTAs an SM", CTAS_PER_SM, Some(counted.ctas as f64 / f64::from(machine.sm_count.max(1)))),
        least("tensor pipe %", 80.0, tensor),
        least("SM busy %", 70.0, metric("sm__throughput")),
    ];
    let floor = counted.problem.bytes();
    if floor <= machine.l2_bytes as f64 {
        targets.push(least("L2 hits %", 70.0, metric("lts__t_sector_hit_rate")));
    }
    let conflicts = metric("l1tex__data_bank_conflicts").unwrap_or(counted.conflicts() as f64);
    targets.push(most("bank conflicts", 0.0, Some(conflicts)));
    targets.push(most("DRAM bytes", DRAM_TIMES * floor, metric("dram__bytes.sum")));
    targets
}

/// ncu gives bytes in units of thousands.
fn scale(unit: &str) -> f64 {
    match unit {
        "Kbyte" => 1e3,
        "Mbyte" => 1e6,
        "Gbyte" => 1e9,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem_spec::{Mask, ProblemSpec};

    #[test]
    fn each_target_is_met_missed_or_not_measured() {
        let shape = "1,1,1,64,64,64".parse().expect("a shape");
        let problem = ProblemSpec { shape, dtype: ferroflash::Dtype::F16, mask: Mask::Full };
        let counted = Counted { problem, ctas: 232, clocks: 1.0, numbers: Default::default() };
        let machine = Machine::simulator();
        let metrics = [
            Figure::new("sm__throughput.avg.pct_of_peak_sustained_elapsed", 45.0, " %"),
            Figure::new("sm__pipe_tensor_cycles_active.avg.pct", 81.0, " %"),
            Figure::new("dram__bytes.sum", 40.0, " Kbyte"),
        ];
        let said: Vec<String> =
            targets(&counted, &machine, &metrics).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "CTAs an SM ≥ 4: 4.00",
                "tensor pipe % ≥ 80: 81.00",
                "MISSED SM busy % ≥ 70: 45.00",
                "L2 hits % ≥ 70: not measured",
                "bank conflicts ≤ 0: 0",
                "MISSED DRAM bytes ≤ 39322: 40000",
            ]
        );
    }
}
