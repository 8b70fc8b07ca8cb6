//! A proposer's answer: a hypothesis, an expected gain, and a patch.
//!
//! ```text
//! Hypothesis: V can wait until S is computed, which frees a barrier.
//! Expected gain: 4 %
//! Patch:
//! diff --git a/kernels-gpu/src/mma/forward.rs b/kernels-gpu/src/mma/forward.rs
//! …
//! ```
//!
//! Programs that speak in Markdown are understood too: headings, bold labels, and the patch in a code block.

use super::edit::has_blocks;
use serde::{Deserialize, Serialize};

/// What a hypothesis may be long, in characters; the rest is left out.
const SECTION_CHARS: usize = 2000;

/// What a proposer proposes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// Why it should be faster.
    pub hypothesis: String,
    /// How much faster it should be: 0.04 is 4 %.
    pub expected_gain: f64,
    /// The change, as a unified diff from the repository's root; as it was answered, also SEARCH/REPLACE blocks.
    pub patch: String,
}

/// Why an answer is no proposal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// The answer is empty.
    #[error("the proposer printed nothing")]
    Nothing,
    /// There is no hypothesis.
    #[error("the proposer's answer has no line `Hypothesis: …`")]
    NoHypothesis,
    /// There is no expected gain.
    #[error("the proposer's answer has no line `Expected gain: … %`")]
    NoGain,
    /// The expected gain is no percentage.
    #[error("the expected gain `{text}` is no percentage such as 4 %")]
    BadGain {
        /// What stands there.
        text: String,
    },
    /// There is no patch.
    #[error("the proposer's answer has neither a unified diff nor SEARCH/REPLACE blocks")]
    NoPatch,
}

impl Proposal {
    /// Reads an answer.
    ///
    /// # Errors
    /// Names the first part that is missing.
    pub fn parse(answer: &str) -> Result<Self, ProposalError> {
        if answer.trim().is_empty() {
            return Err(ProposalError::Nothing);
        }
        let lines: Vec<&str> = answer.lines().collect();
        let patch_at = (0..lines.len()).find(|&at| starts_diff(&lines[at..]) || has_blocks(lines[at]));
        let text = &lines[..patch_at.unwrap_or(lines.len())];
        let hypothesis = section(text, "hypothesis").ok_or(ProposalError::NoHypothesis)?;
        let gain = section(text, "expected gain").ok_or(ProposalError::NoGain)?;
        let expected_gain = percentage(&gain).ok_or(ProposalError::BadGain { text: gain })?;
        let patch = match patch_at.ok_or(ProposalError::NoPatch)? {
            // The file's name stands above the first block.
            at if !starts_diff(&lines[at..]) => lines.iter().flat_map(|line| [line, "\n"]).collect(),
            at => patch(&lines[at..]),
        };
        Ok(Self { hypothesis, expected_gain, patch })
    }
}

fn starts_diff(lines: &[&str]) -> bool {
    let is_old = lines.first().is_some_and(|line| line.starts_with("--- "));
    let is_new = lines.get(1).is_some_and(|line| line.starts_with("+++ "));
    (is_old && is_new) || lines.first().is_some_and(|line| line.starts_with("diff --git "))
}

/// The lines of a patch, of all its code blocks if it stands in some.
fn patch(lines: &[&str]) -> String {
    let (mut text, mut is_in) = (String::new(), true);
    for (at, line) in lines.iter().enumerate() {
        // A context line that looks like a fence begins with a space.
        is_in = (is_in && !line.starts_with("```")) || starts_diff(&lines[at..]);
        if is_in {
            text += &format!("{line}\n");
        }
    }
    text
}

/// The text after a label, to the next label or heading.
fn section(lines: &[&str], label: &str) -> Option<String> {
    let at = lines.iter().position(|line| after_label(line, label).is_some())?;
    let first = after_label(lines[at], label)?;
    let more = lines[at + 1..].iter().take_while(|line| !is_label(line)).map(|line| line.trim());
    let words: Vec<&str> = std::iter::once(first).chain(more).filter(|line| !line.is_empty()).collect();
    // It is shown to people and to the next proposer.
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = words.join(" ").chars().take(SECTION_CHARS).map(plain).collect();
    Some(text).filter(|text| !text.is_empty())
}

fn is_label(line: &str) -> bool {
    let is_fence = line.trim_start().starts_with("```");
    is_fence
        || ["hypothesis", "expected gain", "patch"].iter().any(|label| after_label(line, label).is_some())
}

/// What follows `label:` on a line, whatever Markdown stands around the label.
fn after_label<'a>(line: &'a str, label: &str) -> Option<&'a str> {
    let is_mark = |c: char| matches!(c, '#' | '*' | '_' | ' ' | '\t');
    let line = line.trim_start_matches(is_mark);
    let head = line.get(..label.len())?;
    let rest = line[label.len()..].trim_start_matches(is_mark);
    let is_heading = rest.is_empty();
    let rest = if is_heading { rest } else { rest.strip_prefix(':')? };
    head.eq_ignore_ascii_case(label).then(|| rest.trim_start_matches(['*', '_']).trim())
}

/// `4 %`, `+4%`, `about 4.5 %`: the first number that a per cent sign follows.
fn percentage(text: &str) -> Option<f64> {
    let (number, _) = text.split_once('%')?;
    let number = number.trim_end();
    let start =
        number.rfind(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+'))).map_or(0, |at| {
            // Past the character, which may take several bytes.
            at + number[at..].chars().next().map_or(1, char::len_utf8)
        });
    let percent: f64 = number[start..].parse().ok()?;
    percent.is_finite().then_some(percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIFF: &str = "diff --git a/kernels-gpu/src/a.rs b/kernels-gpu/src/a.rs\n--- a/kernels-gpu/src/a.rs\n+++ b/kernels-gpu/src/a.rs\n@@ -1 +1 @@\n-a\n+b\n";

    #[test]
    fn the_plain_form_is_read() {
        let answer = format!("Hypothesis: fewer barriers.\nExpected gain: 4 %\nPatch:\n{DIFF}");
        let proposal = Proposal::parse(&answer).expect("a proposal");
        assert_eq!(proposal.hypothesis, "fewer barriers.");
        assert_eq!(proposal.expected_gain, 0.04);
        assert_eq!(proposal.patch, DIFF);
    }

    #[test]
    fn markdown_talk_and_several_lines_are_read() {
        let answer = format!(
            "Sure! Here is my idea.\n\n## Hypothesis\nThe copies\nare not coalesced.\n\n**Expected gain:** about 12.5%\n\n### Patch\n```diff\n{DIFF}```\nHope this helps: --- good luck\n"
        );
        let proposal = Proposal::parse(&answer).expect("a proposal");
        assert_eq!(proposal.hypothesis, "The copies are not coalesced.");
        assert_eq!(proposal.expected_gain, 0.125);
        assert_eq!(proposal.patch, DIFF);
    }

    #[test]
    fn a_patch_in_several_code_blocks_is_one_and_what_is_said_too_long_is_cut() {
        let other = DIFF.replace("a.rs", "b.rs");
        let said = format!("{}\u{1b}[2J", "long ".repeat(100));
        let answer = format!(
            "--- my answer\nHypothesis: {said}\nExpected gain: 1 %\n```diff\n{DIFF}```\nand\n```diff\n{other}```\nbye\n"
        );
        let proposal = Proposal::parse(&answer).expect("a proposal");
        assert_eq!(proposal.patch, format!("{DIFF}{other}"));
        assert!(!proposal.hypothesis.contains('\u{1b}'));
        let endless = Proposal::parse(&answer.replace("long ", &"long ".repeat(1000))).expect("a proposal");
        assert_eq!(endless.hypothesis.chars().count(), SECTION_CHARS);
    }

    #[test]
    fn blocks_are_read_with_the_file_above_them() {
        let blocks = "kernels-gpu/src/a.rs\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n";
        let answer = format!("Hypothesis: fewer.\nExpected gain: 4 %\nPatch:\n{blocks}");
        let proposal = Proposal::parse(&answer).expect("a proposal");
        assert_eq!((proposal.hypothesis.as_str(), proposal.expected_gain), ("fewer.", 0.04));
        assert!(proposal.patch.ends_with(blocks));
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = |answer: &str| Proposal::parse(answer).expect_err("refused");
        assert_eq!(error(" \n\n"), ProposalError::Nothing);
        assert_eq!(error("I cannot help."), ProposalError::NoHypothesis);
        assert_eq!(error("Hypothesis:\nExpected gain: 1 %\n"), ProposalError::NoHypothesis);
        assert_eq!(error("Hypothesis: x\n"), ProposalError::NoGain);
        assert_eq!(error("Hypothesis: x\nExpected gain: 1 %\n"), ProposalError::NoPatch);
        for gain in ["a lot", "%", "1.2.3 %", "é%", "5"] {
            let answer = format!("Hypothesis: x\nExpected gain: {gain}\n{DIFF}");
            assert_eq!(error(&answer), ProposalError::BadGain { text: gain.to_owned() });
        }
    }

    #[test]
    fn percentages_of_all_kinds() {
        for (text, gain) in [("+3%", 0.03), ("-2 %", -0.02), ("≈3.5 % on long ones, 1 % else", 0.035)] {
            assert_eq!(percentage(text), Some(gain), "{text}");
        }
    }
}
