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
    text.push_str(
        "\n| GPU | problem | type | Ferroflash | PyTorch's default | PyTorch's FlashAttention-2 | speed relative to the default |\n\
         |---|---|---|--:|--:|--:|--:|\n",
    );
    for results in devices {
        for (title, words) in SPEEDS {
            let measured = results.problems.iter().find(|problem| problem.title() == title);
            measured
                .into_iter()
                .for_each(|problem| text.push_str(&line(&results.device.name, words, problem)));
        }
    }
    text
}

fn line(device: &str, words: &str, problem: &Problem) -> String {
    let time = |name| problem.timing(name).map_or_else(|| "–".to_owned(), |time| us(time.median_us) + " µs");
    let device = device.strip_prefix("NVIDIA ").unwrap_or(device);
    format!(
        "| {device} | {words} | {} | {} | {} | {} | {} × |\n",
        problem.dtype,
        time(OURS),
        time("default"),
        time("flash"),
        number(problem.ratio("default").map(|ratio| ratio.median), 2),
    )
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
            "Some GPU, 2026-01-31, commit `abc`, PyTorch 2.11.0.\nNVIDIA Other, 2026-01-31, commit `abc`, PyTorch 2.11.0.\n\n| GPU "
        ));
        let words = SPEEDS[4].1;
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        assert_eq!(
            lines,
            [
                format!("| Some GPU | {words} | f16 | 71.00 µs | 142.0 µs | 142.0 µs | 2.00 × |"),
                format!("| Other | {words} | f16 | 71.00 µs | 142.0 µs | 142.0 µs | 2.00 × |"),
            ]
        );
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
