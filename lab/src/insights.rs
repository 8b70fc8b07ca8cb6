//! Sentences from counters: what limits a kernel, and what a change did to it. For people, and for a proposer's prompt.

use crate::counters::Counters;
use crate::gate::{Change, Counted, compare_counters};

/// A sentence with its figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Insight {
    /// The sentence.
    pub text: String,
    /// How much it matters beside others: the change or the loss as a logarithm.
    pub weight: f64,
}

/// Changes below this are not worth a sentence.
const LEAST_CHANGE: f64 = 0.01;

/// What changed from one kernel to another on the same problem, the largest change first.
pub fn differences(before: &Counters, after: &Counters) -> Vec<Insight> {
    let Counted { worse, better } = compare_counters(before, after);
    let insight = |change: Change| {
        let (old, new) = (change.best as f64, change.now? as f64);
        let percent = 100.0 * (new - old) / old.max(1.0);
        let weight = ((new + 1.0) / (old + 1.0)).ln().abs();
        (percent.abs() >= 100.0 * LEAST_CHANGE)
            .then(|| Insight { text: format!("{change} ({percent:+.1} %)"), weight })
    };
    by_weight(worse.into_iter().chain(better).filter_map(insight).collect())
}

/// What a kernel loses, the weightiest first; empty where the counters show no loss.
pub fn losses(counters: &Counters) -> Vec<Insight> {
    let get = |name: &str| counters.get(name).map(|count| count as f64);
    let mut insights = Vec::new();
    let mut say = |is_loss: bool, weight: f64, text: String| {
        if is_loss {
            insights.push(Insight { text, weight });
        }
    };
    if let (Some(conflicts), Some(wavefronts)) = (counters.shared_conflicts(), counters.shared_wavefronts())
        && wavefronts > 0
    {
        let share = conflicts as f64 / wavefronts as f64;
        let text = format!(
            "{:.1} % of the shared-memory wavefronts ({conflicts} of {wavefronts}) are bank conflicts.",
            100.0 * share
        );
        say(share > 0.02, 2.0 * share, text);
    }
    if let (Some(sectors), Some(bytes)) = (counters.global_sectors(), counters.global_bytes())
        && bytes > 0
    {
        let excess = sectors as f64 * 32.0 / bytes as f64 - 1.0;
        let text = format!(
            "Global memory moves {:.1} % more than the lanes ask for ({sectors} sectors for {bytes} bytes): accesses are not in whole sectors.",
            100.0 * excess
        );
        say(excess > 0.05, excess, text);
    }
    for (name, bytes) in counters.iter().filter(|(name, bytes)| name.ends_with(".spill_loads") && *bytes > 0)
    {
        let arch = name.trim_end_matches(".spill_loads");
        say(true, 1.0, format!("Registers spill on {arch}: {bytes} bytes are loaded again."));
    }
    if let (Some(instructions), Some(tensor)) = (get("warp_instructions"), get("instructions.tensor"))
        && tensor > 0.0
    {
        let others = (instructions - tensor) / tensor;
        let text = format!(
            "For each mma, {others:.1} other instructions are issued: over about 8 the schedulers, not the tensor cores, are the limit."
        );
        say(others > 8.0, (others / 8.0).ln(), text);
    }
    if let (Some(barriers), Some(tensor)) = (get("barriers"), get("instructions.tensor"))
        && tensor > 0.0
    {
        let each = tensor / barriers.max(1.0);
        let text = format!(
            "Only {each:.1} mma are issued between two barriers of a warp: blocks are small for the waiting."
        );
        say(each < 16.0, 0.3 * (16.0 / each).ln(), text);
    }
    by_weight(insights)
}

fn by_weight(mut insights: Vec<Insight>) -> Vec<Insight> {
    insights.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    insights
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::tests::counters;

    fn texts(insights: Vec<Insight>) -> String {
        insights.into_iter().map(|insight| insight.text + "\n").collect()
    }

    #[test]
    fn the_largest_change_comes_first_with_its_figures() {
        let before =
            counters(&[("shared_load.wavefronts", 1000), ("barriers", 100), ("warp_instructions", 5000)]);
        let after =
            counters(&[("shared_load.wavefronts", 400), ("barriers", 110), ("warp_instructions", 5010)]);
        assert_eq!(
            texts(differences(&before, &after)),
            "shared_load.wavefronts: 1000 → 400 (-60.0 %)\nbarriers: 100 → 110 (+10.0 %)\n"
        );
        assert_eq!(differences(&before, &before), []);
        assert_eq!(losses(&Counters::default()), []);
    }

    #[test]
    fn each_loss_is_found_and_a_kernel_without_loss_has_none() {
        let mut good = counters(&[
            ("warp_instructions", 600),
            ("instructions.tensor", 100),
            ("barriers", 4),
            ("sm_90.spill_loads", 0),
        ]);
        for name in ["async_shared", "shared_load", "shared_store"] {
            good.set(&format!("{name}.wavefronts"), 100);
            good.set(&format!("{name}.conflicts"), 0);
        }
        for name in ["async_global", "global_load", "global_store"] {
            good.set(&format!("{name}.sectors"), 10);
            good.set(&format!("{name}.bytes"), 320);
        }
        assert_eq!(losses(&good), []);
        for (name, count, sign) in [
            ("shared_load.conflicts", 80, "bank conflicts"),
            ("global_load.sectors", 20, "whole sectors"),
            ("sm_90.spill_loads", 8, "spill on sm_90: 8 bytes"),
            ("warp_instructions", 1500, "14.0 other instructions"),
            ("barriers", 50, "Only 2.0 mma"),
        ] {
            let mut bad = good.clone();
            bad.set(name, count);
            let text = texts(losses(&bad));
            assert!(text.contains(sign) && text.lines().count() == 1, "{name}: {text}");
        }
    }
}
