//! The README's speeds: five problems of the kinds that models have, on each device.

use crate::results::{OURS, Problem, Results};
use crate::results_table::{number, us};
use std::fmt::Write;

/// Problems of the headline set by title, and what they are to somebody who runs models.
const SPEEDS: [(&str, &str); 5] = [
    ("4,16,16,4096,4096,128 bf16 causal", "4 sequences of 4096 tokens, 16 heads, head_dim 128, causal"),
    ("1,16,16,16384,16384,128 bf16 causal", "1 sequence of 16384 tokens, 16 heads, head_dim 128, causal"),
    ("4,32,32,4096,4096,64 f16 full", "4 sequences of 4096 tokens, 32 heads, head_dim 64, no mask"),
    ("8,16,16,512,512,64 f16 causal", "8 sequences of 512 tokens, 16 heads, head_dim 64, causal"),
    (
        "8,32,8,1,8192,128 f16 full",
        "decoding: 1 new token for each of 8 sequences with 8192 keys, 32 query heads, 8 KV heads, head_dim 128",
    ),
];

/// A table for all devices, after a line that says what was measured when.
pub(crate) fn markdown(devices: &[Results]) -> String {
    let mut text = String::new();
    for results in devices {
        let day = results.date.split('T').next().unwrap_or_default();
        let _ = write!(text, "{}, {day}", results.device.name);
        if let Some(commit) = &results.commit {
            let _ = write!(text, ", commit `{commit}`");
        }
        let _ = writeln!(text, ", PyTorch {}.", results.torch.version);
    }
    text.push_str("\n| problem | type |");
    for results in devices {
        let name = short(results);
        let _ = write!(text, " {name} | × PyTorch's default | × its FlashAttention-2 |");
    }
    let _ = writeln!(text, "\n|---|---|{}", "--:|--:|--:|".repeat(devices.len()));
    for (title, words) in SPEEDS {
        let of = |results: &Results| {
            let measured = results.problems.iter().find(|problem| problem.title() == title);
            measured.map_or_else(
                || (None, " – | – | – |".to_owned()),
                |problem| (Some(problem.dtype.clone()), times(problem)),
            )
        };
        let found: Vec<(Option<String>, String)> = devices.iter().map(of).collect();
        // Of devices that have it all measured the same.
        if let Some(dtype) = found.iter().find_map(|(dtype, _)| dtype.as_ref()) {
            let cells: String = found.iter().map(|(_, cells)| cells.as_str()).collect();
            let _ = writeln!(text, "| {words} | {dtype} |{cells}");
        }
    }
    text
}

/// The device's name without its maker's.
fn short(results: &Results) -> &str {
    results.device.name.strip_prefix("NVIDIA ").unwrap_or(&results.device.name)
}

/// Our time, and how many times as long PyTorch takes.
fn times(problem: &Problem) -> String {
    let ours = problem.timing(OURS).map_or_else(|| "–".to_owned(), |time| us(time.median_us) + " µs");
    let ratio = |name| number(problem.ratio(name).map(|ratio| ratio.median), 2);
    format!(" {ours} | {} | {} |", ratio("default"), ratio("flash"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{self, tests};

    #[test]
    fn problems_that_were_not_measured_are_left_out() {
        let mut other = tests::results();
        other.device.name = "NVIDIA Other".to_owned();
        let text = markdown(&[tests::results(), other]);
        assert!(text.starts_with(
            "Some GPU, 2026-01-31, commit `abc`, PyTorch 2.11.0.\nNVIDIA Other, 2026-01-31, commit `abc`, PyTorch 2.11.0.\n\n| problem "
        ));
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).collect();
        let of = |name| format!("{name} | × PyTorch's default | × its FlashAttention-2 |");
        let heading = format!("| problem | type | {} {}", of("Some GPU"), of("Other"));
        let words = SPEEDS[4].1;
        let row = format!("| {words} | f16 | 71.00 µs | 2.00 | 2.00 | 71.00 µs | 2.00 | 2.00 |");
        assert_eq!(lines, [heading, row]);
    }

    #[test]
    fn every_speed_is_of_a_headline_problem() {
        let devices = results::newest(&crate::workspace::root(), results::HEADLINE).expect("readable");
        for results in devices {
            let titles: Vec<String> = results.problems.iter().map(Problem::title).collect();
            SPEEDS
                .iter()
                .for_each(|(title, _)| assert!(titles.iter().any(|known| known == title), "{title}"));
        }
    }
}
