//! Sentences from counters: what limits a kernel, and what a change did to it. For people, and for a proposer's prompt.

use crate::counters::Counters;

/// A sentence with its figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Insight {
    /// The sentence.
    pub text: String,
    /// How much it matters beside others: the change or the loss as a logarithm, in proportion to what the counter costs.
    pub weight: f64,
}

/// How to speak of a counter.
struct Subject {
    /// The counter. A leading dot: of every architecture.
    counter: &'static str,
    /// The thing that there is more or less of.
    noun: &'static str,
    /// What fewer of it mean.
    fewer: &'static str,
    /// What more of it mean.
    more: &'static str,
    /// What it costs beside others.
    cost: f64,
}

const fn subject(
    counter: &'static str,
    noun: &'static str,
    [fewer, more]: [&'static str; 2],
    cost: f64,
) -> Subject {
    Subject { counter, noun, fewer, more, cost }
}

const SUBJECTS: [Subject; 19] = [
    subject(
        "warp_instructions",
        "warp instructions",
        ["there is less to issue", "the schedulers issue more for the same result"],
        1.0,
    ),
    subject(
        "tensor_flops",
        "FLOPs on tensor cores",
        [
            "less of the work is hidden by the mask",
            "tiles compute more that nobody sees, or compute it twice",
        ],
        2.0,
    ),
    subject(
        "shared_load.wavefronts",
        "wavefronts of loads from shared memory",
        [
            "fragments are read less often, or with fewer conflicts",
            "fragments are read more often, or with conflicts",
        ],
        1.5,
    ),
    subject(
        "shared_load.conflicts",
        "wavefronts lost to bank conflicts of loads",
        ["the swizzle fits the reads", "the reads do not fit the swizzle"],
        1.0,
    ),
    subject(
        "shared_store.conflicts",
        "wavefronts lost to bank conflicts of stores",
        ["the stores fit the banks", "the stores do not fit the banks"],
        0.5,
    ),
    subject(
        "async_shared.conflicts",
        "wavefronts lost to bank conflicts of copies",
        ["the copies fit the swizzle", "the copies do not fit the swizzle"],
        0.5,
    ),
    subject(
        "async_global.sectors",
        "sectors copied from global memory",
        [
            "K and V are read less often: taller blocks, or fewer hidden ones",
            "K and V are read more often, or not in whole sectors",
        ],
        1.0,
    ),
    subject(
        "async_global.lines",
        "128-byte lines touched by copies",
        ["neighbouring threads copy neighbouring chunks", "threads that copy together are far apart"],
        0.7,
    ),
    subject(
        "global_store.sectors",
        "sectors written to global memory",
        ["O goes out in wider pieces", "O goes out in pieces"],
        0.5,
    ),
    subject(
        "barriers",
        "arrivals at barriers",
        ["warps wait for each other less", "warps wait for each other more"],
        0.5,
    ),
    subject(
        "instructions.float",
        "float instructions",
        ["the softmax does less", "the softmax does more: rescaling, masks, sums"],
        0.8,
    ),
    subject(
        "instructions.special",
        "special-function instructions",
        ["fewer exponentials", "more exponentials, and there are 16 lanes for them in an SM"],
        0.8,
    ),
    subject(
        "instructions.integer",
        "integer instructions",
        ["addresses cost less", "addresses, limits or masks cost more"],
        0.6,
    ),
    subject("instructions.convert", "conversions", ["less is rounded", "more is rounded"], 0.4),
    subject(
        "instructions.control",
        "branches",
        [
            "loops are unrolled further, or conditions are gone",
            "loops are rolled up, or there are more conditions",
        ],
        0.3,
    ),
    subject(
        "local_bytes",
        "bytes of local memory accessed",
        [
            "arrays stay in registers",
            "arrays lie in memory: an index is not constant, or registers are short",
        ],
        2.0,
    ),
    subject(
        "shared_bytes",
        "bytes of shared memory a CTA",
        ["more CTAs fit on an SM", "fewer CTAs fit on an SM"],
        0.4,
    ),
    subject(".registers", "registers a thread", ["more warps fit on an SM", "fewer warps fit on an SM"], 0.5),
    subject(
        ".spill_loads",
        "bytes of spill loads",
        ["fragments fit into registers", "fragments do not fit into registers"],
        2.0,
    ),
];

/// Changes below this are not worth a sentence.
const LEAST_CHANGE: f64 = 0.01;

/// What changed from one kernel to another on the same problem, the weightiest first.
pub fn differences(before: &Counters, after: &Counters) -> Vec<Insight> {
    let mut insights = Vec::new();
    for (name, old) in before.iter() {
        let Some(new) = after.get(name).filter(|new| *new != old) else { continue };
        let Some(subject) = subject_of(name) else { continue };
        let (old_count, new_count) = (old as f64, new as f64);
        let relative = (new_count - old_count) / old_count.max(1.0);
        if relative.abs() < LEAST_CHANGE {
            continue;
        }
        let amount = if old == 0 || relative >= 1.0 {
            format!("{new} instead of {old}")
        } else {
            format!("{old} → {new}, {:+.1} %", 100.0 * relative)
        };
        let (direction, meaning) = if new < old { ("Fewer", subject.fewer) } else { ("More", subject.more) };
        let arch = name.strip_suffix(subject.counter).filter(|arch| !arch.is_empty());
        let on = arch.map_or(String::new(), |arch| format!(" on {arch}"));
        let weight = subject.cost * ((new_count + 1.0) / (old_count + 1.0)).ln().abs();
        insights.push(Insight {
            text: format!("{direction} {}{on} ({amount}): {meaning}.", subject.noun),
            weight,
        });
    }
    by_weight(insights)
}

fn subject_of(name: &str) -> Option<&'static Subject> {
    SUBJECTS.iter().find(|subject| match subject.counter.strip_prefix('.') {
        Some(_) => name.ends_with(subject.counter),
        None => name == subject.counter,
    })
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
    fn the_change_that_costs_most_comes_first_with_its_figures() {
        let before =
            counters(&[("shared_load.wavefronts", 1000), ("barriers", 100), ("warp_instructions", 5000)]);
        let after =
            counters(&[("shared_load.wavefronts", 400), ("barriers", 110), ("warp_instructions", 5010)]);
        let text = texts(differences(&before, &after));
        assert_eq!(
            text,
            "Fewer wavefronts of loads from shared memory (1000 → 400, -60.0 %): fragments are read less often, or with fewer conflicts.\n\
             More arrivals at barriers (100 → 110, +10.0 %): warps wait for each other more.\n"
        );
    }

    #[test]
    fn what_was_none_and_what_is_of_an_architecture_is_said_so() {
        let before = counters(&[("shared_load.conflicts", 0), ("sm_90.registers", 128)]);
        let after = counters(&[("shared_load.conflicts", 7), ("sm_90.registers", 168)]);
        let text = texts(differences(&before, &after));
        assert!(text.contains("More wavefronts lost to bank conflicts of loads (7 instead of 0)"), "{text}");
        assert!(text.contains("More registers a thread on sm_90 (128 → 168, +31.2 %)"), "{text}");
    }

    #[test]
    fn equal_counters_and_unknown_ones_say_nothing() {
        let some = counters(&[("barriers", 5), ("strange", 1)]);
        assert_eq!(differences(&some, &some), []);
        assert_eq!(differences(&some, &counters(&[("strange", 9)])), []);
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
