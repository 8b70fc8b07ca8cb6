//! A proposer that replays a script: known good and bad patches, silence, failures. For tests, and for going through a loop
//! without a language model.
//!
//! The script is a JSON list; proposal number n of a session gets its n-th answer, whatever happened in between:
//!
//! ```json
//! [
//!   { "reply": { "hypothesis": "…", "expected_gain": 0.04, "patch": "diff --git …" } },
//!   { "flaw": "no-swizzle" },
//!   { "text": "what a talkative program prints" },
//!   "silence",
//!   { "fail": 3 },
//!   "hang"
//! ]
//! ```

use super::proposal::Proposal;
use crate::invert::{FLAWS, FlawChange};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// A proposal, as it should be.
    Reply(Proposal),
    /// One of the lab's flaws that are patches, as if it were meant to help: a patch that works and is slower.
    Flaw(String),
    /// Any text.
    Text(String),
    /// Nothing.
    Silence,
    /// Nothing, and an exit code.
    Fail(u8),
    /// No end.
    Hang,
}

/// Why a script cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The script cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The script is not a list of answers.
    #[error("{}: not a list of answers: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// It names a flaw that is no patch of the lab.
    #[error("`{name}` is no flaw that is a patch")]
    NoFlaw {
        /// The name.
        name: String,
    },
    /// The prompt does not say which proposal is wanted.
    #[error("the prompt has no line `Proposal number: …`")]
    NoNumber,
    /// The prompt cannot be read, or the answer not written.
    #[error(transparent)]
    Pipe(#[from] std::io::Error),
}

/// Reads a script.
///
/// # Errors
/// A file that cannot be read, or is no list of answers.
pub fn read(path: &Path) -> Result<Vec<Answer>, ScriptError> {
    let unreadable = |source| ScriptError::Unreadable { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    serde_json::from_str(&text).map_err(|source| ScriptError::Malformed { path: path.to_owned(), source })
}

/// The answer to a prompt: silence after the last.
///
/// # Errors
/// A prompt that does not number its proposal.
pub fn answer<'a>(script: &'a [Answer], prompt: &str) -> Result<&'a Answer, ScriptError> {
    let number = prompt.lines().find_map(|line| line.strip_prefix("Proposal number: "));
    let number: usize = number.and_then(|number| number.trim().parse().ok()).ok_or(ScriptError::NoNumber)?;
    Ok(number.checked_sub(1).and_then(|at| script.get(at)).unwrap_or(&Answer::Silence))
}

/// Runs the proposer: a prompt on `input`, an answer on `output`. Returns the process's exit code.
///
/// # Errors
/// A script or prompt that says nothing, and broken pipes.
pub fn run(script: &Path, mut input: impl Read, mut output: impl Write) -> Result<u8, ScriptError> {
    let script = read(script)?;
    let mut prompt = String::new();
    input.read_to_string(&mut prompt)?;
    match answer(&script, &prompt)? {
        Answer::Reply(proposal) => write_proposal(&mut output, proposal)?,
        Answer::Flaw(name) => write_proposal(&mut output, &flaw(name)?)?,
        Answer::Text(text) => output.write_all(text.as_bytes())?,
        Answer::Silence => {}
        Answer::Fail(code) => return Ok(*code),
        Answer::Hang => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
    }
    output.flush()?;
    Ok(0)
}

fn flaw(name: &str) -> Result<Proposal, ScriptError> {
    let found = FLAWS.iter().find_map(|flaw| match flaw.change {
        FlawChange::Patch(patch) if flaw.name == name => Some((flaw, patch)),
        _ => None,
    });
    let (flaw, patch) = found.ok_or_else(|| ScriptError::NoFlaw { name: name.to_owned() })?;
    Ok(Proposal { hypothesis: flaw.what.to_owned(), expected_gain: 0.05, patch: patch.to_owned() })
}

fn write_proposal(output: &mut impl Write, proposal: &Proposal) -> std::io::Result<()> {
    let percent = 100.0 * proposal.expected_gain;
    write!(
        output,
        "Hypothesis: {}\nExpected gain: {percent} %\nPatch:\n{}",
        proposal.hypothesis, proposal.patch
    )
}

#[cfg(test)]
mod tests {
    use super::super::proposal::ProposalError;
    use super::*;

    const SCRIPT: &str = r#"[
        { "reply": { "hypothesis": "h", "expected_gain": 0.04, "patch": "diff --git a/x b/x\n" } },
        { "flaw": "no-swizzle" },
        { "text": "no idea" },
        "silence",
        { "fail": 3 },
        { "flaw": "none" }
    ]"#;

    fn replayed(number: usize) -> Result<(u8, String), ScriptError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("script.json");
        std::fs::write(&path, SCRIPT).expect("written");
        let mut output = Vec::new();
        let prompt = format!("# Task\n\nProposal number: {number}\n");
        let code = run(&path, prompt.as_bytes(), &mut output)?;
        Ok((code, String::from_utf8(output).expect("text")))
    }

    #[test]
    fn each_number_gets_its_answer_and_after_the_last_there_is_silence() {
        let (code, text) = replayed(1).expect("an answer");
        let proposal = Proposal::parse(&text).expect("a proposal");
        assert_eq!((code, proposal.expected_gain, proposal.hypothesis.as_str()), (0, 0.04, "h"));
        let flaw = Proposal::parse(&replayed(2).expect("an answer").1).expect("a proposal");
        assert!(flaw.patch.contains("+++ b/kernels-gpu/src/tile/swizzle.rs"), "{}", flaw.patch);
        let talk = replayed(3).expect("an answer").1;
        assert_eq!(Proposal::parse(&talk), Err(ProposalError::NoHypothesis));
        assert_eq!(replayed(4).expect("silence"), (0, String::new()));
        assert_eq!(replayed(5).expect("a failure"), (3, String::new()));
        assert!(matches!(replayed(6), Err(ScriptError::NoFlaw { .. })));
        assert_eq!(replayed(7).expect("silence"), (0, String::new()));
    }

    #[test]
    fn scripts_and_prompts_that_say_nothing_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("script.json");
        assert!(matches!(run(&path, &b""[..], Vec::new()), Err(ScriptError::Unreadable { .. })));
        std::fs::write(&path, "[\"sleep\"]").expect("written");
        assert!(matches!(run(&path, &b""[..], Vec::new()), Err(ScriptError::Malformed { .. })));
        std::fs::write(&path, "[]").expect("written");
        assert!(matches!(run(&path, &b"hello"[..], Vec::new()), Err(ScriptError::NoNumber)));
    }
}
