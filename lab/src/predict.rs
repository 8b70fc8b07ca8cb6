//! What a change of a row is expected to do, said before it is measured.

use crate::config::Problems;
use crate::kernels::Machine;
use crate::problem_spec::{Mask, ProblemSpec};
use crate::profile::{Work, clocks};
use ferroflash::{Row, Schedule};
use kernels_gpu::geometry;
use kernels_gpu::row::{Accumulation, Isa};

/// Predicts what is measured without a GPU, by arithmetic on the main loop: it ranks rows, and everything that it says is marked as
/// predicted.
#[derive(Clone, Debug)]
pub struct Model {
    problems: Problems,
    machine: Machine,
}

impl Model {
    /// The problems that rows are measured on, and the device.
    pub fn new(problems: &Problems, machine: &Machine) -> Model {
        Model { problems: problems.clone(), machine: machine.clone() }
    }

    /// Clocks of a multiprocessor's units, as [`clocks`] weighs them, in the geometric mean over the problems; infinity for a row that
    /// has none.
    pub fn clocks(&self, row: &Row) -> f64 {
        let simulated = self.machine.simulated;
        let machine = &self.machine.running(row.isa);
        let specs = self.problems.of_row(row, simulated).unwrap_or_default();
        let logs: Vec<f64> =
            specs.iter().map(|spec| clocks(&work(row, spec, machine).units(machine.sm)).ln()).collect();
        if logs.is_empty() { f64::INFINITY } else { (logs.iter().sum::<f64>() / logs.len() as f64).exp() }
    }

    /// How much less one row takes than another: 0.25 is a quarter less.
    pub fn gain(&self, from: &Row, to: &Row) -> f64 {
        1.0 - self.clocks(to) / self.clocks(from)
    }

    /// A hypothesis about a change.
    pub fn hypothesis(&self, from: &Row, to: &Row) -> String {
        let change = change(from, to);
        if change.is_empty() {
            return "the start, as it is".to_owned();
        }
        let gain = 100.0 * self.gain(from, to);
        let effect = if gain.abs() < 0.5 {
            "its units need as much; copies, occupancy or the balance of CTAs may gain".to_owned()
        } else if gain > 0.0 {
            format!("{gain:.0} % fewer clocks of a multiprocessor's units are predicted")
        } else {
            let more = -gain;
            format!(
                "{more:.0} % more clocks are predicted; occupancy or the balance of CTAs would have to pay for it"
            )
        };
        format!("{change}: {effect}")
    }
}

/// Other instructions for each score: masks, maxima, sums, rounding; a guess that is alike for all rows.
const PER_SCORE: f64 = 11.0;

/// What the busiest multiprocessor has to do in its main loops.
fn work(row: &Row, spec: &ProblemSpec, machine: &Machine) -> Work {
    let [batch, heads_q, heads_kv, seqlen_q, seqlen_k, _] = spec.shape.0.map(u64::from);
    let (block_m, block_n) = (u64::from(row.block_m), u64::from(row.block_n));
    // Kernels that split keys have the query heads of a KV head beside each other.
    let packed = if row.schedule == Schedule::Split { heads_q / heads_kv } else { 1 };
    let blocks = (seqlen_q * packed).div_ceil(block_m);
    let steps_of = |block: u64| {
        let last = ((block + 1) * block_m).div_ceil(packed).min(seqlen_q);
        let visible = match spec.mask {
            Mask::Full => seqlen_k,
            Mask::Causal => (last + seqlen_k).saturating_sub(seqlen_q),
        };
        visible.div_ceil(block_n)
    };
    let heads = batch * heads_q / packed;
    let (ctas, steps) = (blocks * heads, heads * (0..blocks).map(steps_of).sum::<u64>());
    let rounds = ctas.div_ceil(u64::from(machine.sm_count).max(1));
    let share = steps as f64 * rounds as f64 / ctas.max(1) as f64;
    let (m, n, d) = (block_m as f64, block_n as f64, f64::from(row.head_dim));
    let bytes = f64::from(row.dtype.bytes());
    let is_wgmma = row.isa == Isa::Wgmma;
    // Each warp reads its keys of K and V once for every m-tile's worth of rows it holds; a warpgroup all of them for its 64.
    let (keys, readers) = match is_wgmma {
        true => (n, m / 64.0),
        false => (f64::from(geometry::keys_per_warp(row)), f64::from(row.warps)),
    };
    let read = readers * 2.0 * keys * d * bytes;
    let q_rows = if is_wgmma { m } else { f64::from(row.warps * geometry::m_tiles(row) * 16) };
    let q = if geometry::q_in_registers(row) { 0.0 } else { q_rows * d * bytes };
    let copied = 2.0 * n * d * bytes;
    let flops = 4.0 * m * n * d;
    let products = if is_wgmma { 0.0 } else { flops / 4096.0 + (read + q) / 512.0 };
    // Float16 sums are widened: those of Q·Kᵀ, and those of P·V, which each warp that shares the rows adds to its O.
    let widened = match row.acc {
        Accumulation::F16 => (n + 2.0 * d * f64::from(geometry::warps_n(row))) * m / 32.0,
        Accumulation::F32 => 0.0,
    };
    Work {
        tensor_flops: share * flops,
        is_wgmma,
        warp_instructions: share * (products + widened + PER_SCORE * m * n / 32.0),
        special: share * m * n / 32.0,
        wavefronts: share * (read + copied + q) / 128.0,
        global_bytes: share * copied,
        dram_bytes: 0.0,
    }
}

/// The columns in which two rows differ, `block_n 32 → 64, stages 1 → 2`; empty for equal rows.
pub fn change(from: &Row, to: &Row) -> String {
    let columns = |row: &Row| serde_json::to_value(row).unwrap_or_default();
    let (before, after) = (columns(from), columns(to));
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else { return String::new() };
    let differing = before.iter().filter_map(|(name, old)| {
        let new = after.get(name)?;
        (old != new).then(|| format!("{name} {} → {}", plain(old), plain(new)))
    });
    differing.collect::<Vec<_>>().join(", ")
}

fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::tests::usual_row;

    #[test]
    fn taller_warps_are_predicted_to_need_less_and_the_change_is_named_by_column() {
        let model = Model::new(&Problems::default(), &Machine::simulator());
        let row = usual_row();
        let low = Row { block_m: 64, block_n: 64, warps: 4, stages: 2, min_ctas: 1, warp_rows: 16, ..row };
        let tall = Row { block_m: 128, warp_rows: 32, ..low };
        assert!((0.02..0.3).contains(&model.gain(&low, &tall)), "{}", model.gain(&low, &tall));
        assert_eq!(change(&low, &tall), "block_m 64 → 128, warp_rows 16 → 32");
        assert_eq!(change(&low, &low), "");
        assert!(
            model.hypothesis(&low, &tall).contains("% fewer clocks"),
            "{}",
            model.hypothesis(&low, &tall)
        );
        assert!(model.hypothesis(&tall, &low).contains("% more clocks"));
        assert_eq!(model.hypothesis(&low, &low), "the start, as it is");
        assert!(model.gain(&low, &Row { acc: Accumulation::F16, ..low }) < -0.01, "sums are widened");
        let other = Row { min_ctas: 2, ..low };
        assert!(model.hypothesis(&low, &other).contains("need as much"));
    }
}
