//! Nsight Compute's figures: a small set of metrics, its CSV, and the verdict that follows.

use crate::profile::{Bound, Figure, Verdict};
use kernels_gpu::row::Isa;

/// What is asked of ncu: throughputs, occupancy, tensor pipe, sectors, bank conflicts, spills, waves, time.
pub const METRICS: [&str; 14] = [
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.sum",
    "lts__t_sectors.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "smsp__sass_inst_executed_op_local.sum",
    "launch__waves_per_multiprocessor",
    "launch__grid_size",
    "gpu__time_duration.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "lts__t_sector_hit_rate.pct",
    "dram__bytes.sum",
];

/// Reads the CSV that `ncu --csv --page raw` or `--page details` prints, whatever it says before: the last launch's metrics.
pub fn parse_ncu(text: &str) -> Vec<Figure> {
    // ncu says what it does on lines of ==PROF== before the table, among what the program itself prints.
    let lines = text.lines().skip_while(|line| !line.starts_with("\"ID\","));
    let table: String = lines.filter(|line| line.starts_with('"')).map(|line| format!("{line}\n")).collect();
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(table.as_bytes());
    let titles = reader.headers().cloned().unwrap_or_default();
    let column = |title: &str| titles.iter().position(|found| found == title);
    let columns = (column("Metric Name"), column("Metric Unit"), column("Metric Value"));
    let (Some(name), Some(unit), Some(value)) = columns else { return Vec::new() };
    let mut figures: Vec<Figure> = Vec::new();
    for record in reader.records().flatten() {
        let cell = |at: usize| record.get(at).unwrap_or_default();
        let Ok(number) = cell(value).replace(',', "").parse::<f64>() else { continue };
        let unit = if cell(unit) == "%" { " %".to_owned() } else { format!(" {}", cell(unit)) };
        let figure = Figure::new(cell(name), number, unit.trim_end());
        match figures.iter_mut().find(|known| known.name == figure.name) {
            Some(known) => *known = figure,
            None => figures.push(figure),
        }
    }
    figures
}

/// The verdict of ncu's figures of a kernel with these instructions; `None` where those it takes are lacking. Kernels with wgmma never
/// lack warps: one warpgroup keeps the tensor cores busy.
pub fn verdict_of_ncu(figures: &[Figure], isa: Isa) -> Option<Verdict> {
    let find = |start: &str| figures.iter().find(|figure| figure.name.starts_with(start)).cloned();
    let sm = find("sm__throughput")?;
    let memory = find("gpu__compute_memory_throughput")?;
    let warps = find("sm__warps_active")?;
    if let (Some(waves), Some(grid)) = (find("launch__waves"), find("launch__grid_size"))
        && waves.value < 0.5
    {
        return Some(Verdict { bound: Bound::Parallelism, proof: [waves, grid] });
    }
    let busy = 60.0;
    let verdict = if sm.value >= busy && sm.value >= memory.value {
        Verdict { bound: Bound::Compute, proof: [sm, memory] }
    } else if memory.value >= busy {
        Verdict { bound: Bound::Memory, proof: [memory, sm] }
    } else if warps.value < 20.0 && isa == Isa::Mma {
        Verdict { bound: Bound::Occupancy, proof: [warps, sm] }
    } else {
        Verdict { bound: Bound::Latency, proof: [sm, memory] }
    };
    Some(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn csv(sm: &str, memory: &str, warps: &str, waves: &str) -> String {
        let line = |name: &str, unit: &str, value: &str| {
            format!("\"0\",\"7\",\"fwd\",\"Raw\",\"{name}\",\"{unit}\",\"{value}\"\n")
        };
        format!(
            "==PROF== Connected to process 7\n\"Launched\"==PROF== Disconnected from process 7\n{}{}{}{}{}{}",
            "\"ID\",\"Process ID\",\"Kernel Name\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n",
            line(METRICS[0], "%", sm),
            line(METRICS[1], "%", memory),
            line(METRICS[3], "%", warps),
            line(METRICS[8], "", waves),
            line(METRICS[9], "", "1,024"),
        )
    }

    #[test]
    fn the_csv_behind_ncus_talk_is_read() {
        let figures = parse_ncu(&csv("71.5", "40", "33", "2.1"));
        assert_eq!(figures.len(), 5);
        assert_eq!((figures[4].value, figures[0].unit.as_str()), (1024.0, " %"));
        assert_eq!(parse_ncu("==ERROR== ERR_NVGPUCTRPERM\n"), []);
    }

    #[test]
    fn each_verdict_has_its_figures() {
        let bound_of = |sm, memory, warps, waves, isa| {
            verdict_of_ncu(&parse_ncu(&csv(sm, memory, warps, waves)), isa).map(|verdict| verdict.bound)
        };
        let bound = |sm, memory, warps, waves| bound_of(sm, memory, warps, waves, Isa::Mma);
        assert_eq!(bound("71.5", "40", "33", "2.1"), Some(Bound::Compute));
        assert_eq!(bound("30", "80", "33", "2.1"), Some(Bound::Memory));
        assert_eq!(bound("30", "20", "10", "2.1"), Some(Bound::Occupancy));
        assert_eq!(bound_of("30", "20", "10", "2.1", Isa::Wgmma), Some(Bound::Latency));
        assert_eq!(bound("30", "20", "30", "2.1"), Some(Bound::Latency));
        assert_eq!(bound("30", "20", "30", "0.2"), Some(Bound::Parallelism));
        assert_eq!(verdict_of_ncu(&[], Isa::Mma), None);
    }
}
