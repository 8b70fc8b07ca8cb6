//! The prompt: what a proposer is told. EvoEngineer's three kinds of information, by configuration.

use crate::insights::Insight;
use crate::search::keep::KeepRule;
use kernels_gpu::row::Row;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};

/// Earlier proposals that are shown: those that were kept, and those that were not.
const KEPT_SHOWN: usize = 3;
const FAILED_SHOWN: usize = 5;
/// Lines of an earlier patch that are shown.
const PATCH_LINES: usize = 60;
/// Characters of such a line that are shown.
const LINE_CHARS: usize = 160;
/// What a prompt is long at most, in bytes: source that has no room is named instead.
const BYTES_MAX: usize = 60_000;
/// What earlier proposals take of it at most.
const EARLIER_BYTES_MAX: usize = 20_000;
/// Insights that are shown.
const INSIGHTS_SHOWN: usize = 8;

/// Which information a prompt holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Configuration {
    /// The task only
    Free,
    /// The task, and insights
    Insight,
    /// The task, earlier proposals, and insights
    Full,
}

/// I1, the task.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The number of the proposal, from 1.
    pub number: usize,
    /// The device, as it names itself.
    pub device: String,
    /// The row of the kernel that is to become faster.
    pub row: Row,
    /// What is made small: `median time in µs`.
    pub measure: String,
    /// The shapes with the kernel's current figures, `4,16,512,64 causal` and `38.1 µs`.
    pub figures: Vec<(String, String)>,
    /// What is known of the device and the kernel, a sentence each.
    pub facts: Vec<String>,
    /// What was kept so far, as one patch.
    pub kept: Option<String>,
    /// When a proposal is kept.
    pub keep: KeepRule,
    /// The source that may change: paths from the repository's root, and texts.
    pub sources: Vec<(String, String)>,
}

/// I2, an earlier proposal and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Earlier {
    /// Why it should have been faster.
    pub hypothesis: String,
    /// How much faster it should have been.
    pub expected_gain: f64,
    /// The change.
    pub patch: String,
    /// Whether it was kept.
    pub kept: bool,
    /// What became of it, with the figures or the reason.
    pub verdict: String,
    /// How many times faster it was, if it came to be measured.
    pub speed_up: Option<f64>,
}

/// Writes the prompt. What the configuration has no use for is left out.
pub fn render(
    configuration: Configuration,
    task: &Task,
    earlier: &[Earlier],
    insights: &[Insight],
) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_task(&mut text, task);
    if configuration == Configuration::Full {
        let mut told = String::new();
        let _ = write_earlier(&mut told, earlier);
        text += &told[..told.floor_char_boundary(EARLIER_BYTES_MAX)];
        text += if told.len() > EARLIER_BYTES_MAX { "\n```\n(cut)\n" } else { "" };
    }
    if configuration != Configuration::Free {
        let _ = write_insights(&mut text, insights);
    }
    let room = BYTES_MAX.saturating_sub(text.len() + ANSWER.len());
    let _ = write_sources(&mut text, task, room);
    text + ANSWER
}

const ANSWER: &str = "\
# Your answer

One change, and only this, on stdout:

Hypothesis: why it is faster, in a sentence or two.
Expected gain: a percentage, such as 4 %
Patch:
a unified diff with paths from the repository's root (a/kernels-gpu/src/… and b/kernels-gpu/src/…), as `git diff` prints it, or
blocks of lines to replace, each below the file's path, whose first part stands there once, exactly so:
kernels-gpu/src/…
<<<<<<< SEARCH
lines as they are
=======
lines as they shall be
>>>>>>> REPLACE
";

fn write_task(text: &mut String, task: &Task) -> fmt::Result {
    let Task { row, keep, .. } = task;
    writeln!(text, "# Task\n\nProposal number: {}\n", task.number)?;
    writeln!(
        text,
        "Make a flash attention kernel faster. It is written in Rust, compiled to PTX for sm_80 and later, and runs on {}. \
         The kernel is {}: {row:?}.\n",
        task.device,
        row.entry_name()
    )?;
    writeln!(text, "Measured: {}\n", task.measure)?;
    writeln!(text, "| shape | now |\n|---|---|")?;
    for (shape, figure) in &task.figures {
        writeln!(text, "| {shape} | {figure} |")?;
    }
    if !task.facts.is_empty() {
        writeln!(text, "\nKnown of it:\n")?;
        task.facts.iter().try_for_each(|fact| writeln!(text, "- {fact}"))?;
    }
    writeln!(
        text,
        "\n# Constraints\n\n\
         - Only Rust files below {} may change; no renames, links or mode changes.\n\
         - Results stay within twice the error of a plain implementation in the same dtype, on shapes and inputs that you do not \
           know, with NaN and infinities where they belong; no data races, no access out of bounds, nothing that outlives a launch.\n\
         - table.rs, row.rs, row_check.rs, params.rs, params/ and manifest.rs stay as they are, and threads, grid and shared memory of a CTA, which \
           geometry.rs says: the host launches by them. Tests \
           stay as they are, word by word, but for new names and arguments. No more `static`, `extern`, `include!`, `env!`, `file!`, `global_asm!`, `#[path]`, features, or symbols by name; no \
           clocks, no `%smid`, and no table that is indexed at run time, which would be a variable of the PTX.\n\
         - The change is kept if it is at least {:.0} % faster on {} shapes and no worse than noise elsewhere.",
        super::DEVICE_SOURCE,
        100.0 * keep.gain,
        keep.shapes
    )
}

fn write_earlier(text: &mut String, earlier: &[Earlier]) -> fmt::Result {
    if earlier.is_empty() {
        return Ok(());
    }
    let mut kept: Vec<&Earlier> = earlier.iter().filter(|proposal| proposal.kept).collect();
    kept.sort_by(|a, b| b.speed_up.unwrap_or(0.0).total_cmp(&a.speed_up.unwrap_or(0.0)));
    let failed: Vec<&Earlier> = earlier.iter().rev().filter(|proposal| !proposal.kept).collect();
    writeln!(
        text,
        "\n# Earlier proposals\n\nThose that were kept are in the source below. Do not repeat those that failed."
    )?;
    for proposal in kept.into_iter().take(KEPT_SHOWN).chain(failed.into_iter().take(FAILED_SHOWN)) {
        let outcome = if proposal.kept { "Kept" } else { "Failed" };
        writeln!(text, "\n## {outcome}: {}\n", proposal.hypothesis)?;
        write!(text, "Expected {:+.1} %", 100.0 * proposal.expected_gain)?;
        if let Some(speed_up) = proposal.speed_up {
            write!(text, ", measured {:+.1} %", 100.0 * (speed_up - 1.0))?;
        }
        writeln!(text, ". {}\n\n```diff", proposal.verdict)?;
        for line in proposal.patch.lines().take(PATCH_LINES) {
            writeln!(text, "{}", line.chars().take(LINE_CHARS).collect::<String>())?;
        }
        let more = proposal.patch.lines().count().saturating_sub(PATCH_LINES);
        if more > 0 {
            writeln!(text, "({more} more lines)")?;
        }
        writeln!(text, "```")?;
    }
    Ok(())
}

fn write_insights(text: &mut String, insights: &[Insight]) -> fmt::Result {
    if insights.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n# What the counters say\n")?;
    for insight in insights.iter().take(INSIGHTS_SHOWN) {
        writeln!(text, "- {}", insight.text)?;
    }
    Ok(())
}

fn write_sources(text: &mut String, task: &Task, mut room: usize) -> fmt::Result {
    if let Some(kept) = task.kept.as_ref().filter(|kept| kept.len() < room / 4) {
        writeln!(
            text,
            "\n# Kept so far, as one patch; the source has it\n\n```diff\n{}\n```",
            kept.trim_end()
        )?;
        room -= kept.len() + 80;
    }
    writeln!(text, "\n# Source that the kernel is made of, without tests")?;
    let mut left_out = Vec::new();
    for (path, source) in &task.sources {
        let shown = format!("\n## {path}\n\n```rust\n{}\n```\n", source.trim_end());
        // For the names of what has no room.
        if shown.len() + 2000 > room {
            left_out.push(path.as_str());
            continue;
        }
        room -= shown.len();
        text.push_str(&shown);
    }
    if !left_out.is_empty() {
        writeln!(text, "\nThere is no room for {}; a box has them in its folder.", left_out.join(", "))?;
    }
    writeln!(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::tests::usual_row;

    fn task() -> Task {
        Task {
            number: 3,
            device: "NVIDIA H200".to_owned(),
            row: usual_row(),
            measure: "median time in µs".to_owned(),
            figures: vec![("4,16,512,64 causal".to_owned(), "38.1 µs".to_owned())],
            facts: vec!["The device: 132 multiprocessors".to_owned()],
            kept: Some("+kept\n".to_owned()),
            keep: KeepRule::default(),
            sources: vec![("kernels-gpu/src/softmax.rs".to_owned(), "fn step() {}\n".to_owned())],
        }
    }

    fn earlier(name: &str, kept: bool, speed_up: Option<f64>) -> Earlier {
        Earlier {
            hypothesis: name.to_owned(),
            expected_gain: 0.05,
            patch: "-a\n+b\n".repeat(50),
            kept,
            verdict: "Simulator: race on k_smem.".to_owned(),
            speed_up,
        }
    }

    fn rendered(configuration: Configuration) -> String {
        let mut proposals = vec![earlier("good", true, Some(1.031)), earlier("better", true, Some(1.05))];
        proposals.extend((0..9).map(|i| earlier(&format!("bad {i}"), false, None)));
        let insight = Insight { text: "Registers spill.".to_owned(), weight: 1.0 };
        render(configuration, &task(), &proposals, &[insight])
    }

    #[test]
    fn whoever_proposed_endlessly_leaves_room_for_the_source() {
        let endless = |name: &str| Earlier {
            hypothesis: format!("{name} {}", "long ".repeat(100_000)),
            patch: "+é".repeat(1 << 19),
            ..earlier(name, false, None)
        };
        let text = render(Configuration::Full, &task(), &[endless("a"), endless("b")], &[]);
        assert!(text.len() < BYTES_MAX && text.contains("fn step() {}") && text.contains("(cut)"));
    }

    #[test]
    fn configurations_hold_what_they_are_named_for() {
        let holds = |configuration| {
            let text = rendered(configuration);
            assert!(text.contains("38.1 µs") && text.contains("fn step() {}") && text.ends_with(ANSWER));
            (text.contains("# Earlier proposals"), text.contains("Registers spill."))
        };
        assert_eq!(holds(Configuration::Free), (false, false));
        assert_eq!(holds(Configuration::Insight), (false, true));
        assert_eq!(holds(Configuration::Full), (true, true));
    }

    #[test]
    fn a_prompt_has_a_size_and_names_what_has_no_room() {
        let mut long = task();
        long.sources = (0..9).map(|at| (format!("kernels-gpu/src/{at}.rs"), "x".repeat(10_000))).collect();
        let text = render(Configuration::Full, &long, &[], &[]);
        assert!(text.len() <= BYTES_MAX, "{}", text.len());
        assert!(text.contains("## kernels-gpu/src/0.rs") && !text.contains("## kernels-gpu/src/8.rs"));
        assert!(text.contains("There is no room for") && text.contains("kernels-gpu/src/8.rs; a box"));
        assert!(text.contains("132 multiprocessors") && text.contains("+kept"));
    }

    #[test]
    fn the_best_of_the_kept_and_the_latest_of_the_failed_are_shown() {
        let text = rendered(Configuration::Full);
        let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is missing:\n{text}"));
        assert!(place("## Kept: better") < place("## Kept: good"));
        assert!(place("## Kept: good") < place("## Failed: bad 8"));
        assert!(text.contains("## Failed: bad 4") && !text.contains("## Failed: bad 3"));
        assert!(text.contains("Expected +5.0 %, measured +3.1 %. Simulator: race on k_smem."));
        assert!(text.contains("(40 more lines)"));
    }
}
