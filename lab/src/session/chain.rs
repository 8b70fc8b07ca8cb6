//! Records that hold each other: every line's hash is of the line and of all before it, from the header on.
//!
//! Whoever changes, drops or moves a line has to write all that follow anew. The secret that hidden problems are drawn from is promised
//! by its hash when a run begins and told when it ends, so anyone can draw the same problems later.

use super::journal::Line;
use super::{Header, portable};
use ferroflash::module::sha256_hex;
use serde_json::json;

/// The record of a secret's hash, before the first candidate.
pub const PROMISED: &str = "promised";
/// The record of the secret, behind the last.
pub const TOLD: &str = "told";

/// What shows that records are not as they were written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A line has no hash, as those of earlier versions of the lab.
    #[error(
        "record {line} has no hash: the session is of another version of the lab, or was written by something else"
    )]
    Unchained {
        /// The line, from 1.
        line: usize,
    },
    /// A line's hash is not that of the line and those before.
    #[error("record {line} or one before it was changed, dropped or moved: its hash is another")]
    Broken {
        /// The line, from 1.
        line: usize,
    },
    /// Something was done while nothing was promised, or when the secret was told already.
    #[error("record {line} is of no run: it stands before a secret is promised, or behind where it is told")]
    OfNoRun {
        /// The line, from 1.
        line: usize,
    },
    /// A secret that nobody promised.
    #[error("the secret that was told is not the one that was promised")]
    OtherSecret,
    /// The last run did not end, or its secret was taken away.
    #[error(
        "the session has not told its secret: it was killed, or its end is cut off; end it with --resume"
    )]
    Untold,
}

/// The hash of a session's header, which the first line's is of.
pub fn root(header: &Header) -> String {
    sha256_hex(portable(json!(header)).to_string().as_bytes())
}

/// The hash of a line behind another hash.
pub fn link(previous: &str, line: &Line) -> String {
    let text = portable(json!([line.kind, line.at_s, line.body]));
    sha256_hex(format!("{previous} {text}").as_bytes())
}

/// What a secret is promised by.
pub fn promise(secret: u64) -> String {
    sha256_hex(format!("secret {secret}").as_bytes())
}

/// Looks through a session's records. Lines that cannot be read, as that in which a run was killed, say nothing and hide nothing.
///
/// # Errors
/// The first thing that is not as it was written.
pub fn verify(header: &Header, lines: &[Line]) -> Result<(), ChainError> {
    let mut last = root(header);
    let mut promised: Option<&str> = None;
    for (index, line) in lines.iter().enumerate() {
        if line.chain.is_empty() {
            return Err(ChainError::Unchained { line: index + 1 });
        }
        last = link(&last, line);
        if last != line.chain {
            return Err(ChainError::Broken { line: index + 1 });
        }
        match line.kind.as_str() {
            // A run that was killed has told nothing.
            PROMISED => promised = line.body.as_str(),
            _ if promised.is_none() => return Err(ChainError::OfNoRun { line: index + 1 }),
            TOLD if line.body.as_u64().map(promise).as_deref() != promised.take() => {
                return Err(ChainError::OtherSecret);
            }
            _ => {}
        }
    }
    if lines.last().is_none_or(|line| line.kind != TOLD) { Err(ChainError::Untold) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::header;
    use crate::session::{self, RECORDS_FILE, Session};
    use std::path::PathBuf;

    /// A session of three candidates that ended, for one seed.
    fn ended(runs: &std::path::Path, seed: u64) -> PathBuf {
        let mut session = Session::create(runs, header("evolve")).expect("created");
        session.promise(seed).expect("written");
        for number in 0..3 {
            let path = format!("/opt/runs/{number}/x.log");
            session
                .append("evaluation", &json!({ "us": 7.3 + number as f64 / 3.0, "log": path }))
                .expect("written");
        }
        session.append(TOLD, &seed).expect("written");
        session.folder().to_owned()
    }

    fn verified(folder: &std::path::Path) -> Result<(), ChainError> {
        let (header, lines) = session::read(folder, &mut |_| ()).expect("readable");
        verify(&header, &lines)
    }

    #[test]
    fn records_that_were_tampered_with_are_named_under_every_seed() {
        for seed in (0..10_u64).map(|seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let runs = tempfile::tempdir().expect("a folder");
            let folder = ended(runs.path(), seed);
            assert_eq!(verified(&folder), Ok(()));
            let path = folder.join(RECORDS_FILE);
            let text = std::fs::read_to_string(&path).expect("readable");
            let lines: Vec<&str> = text.lines().collect();
            let after = |lines: &[&str]| {
                std::fs::write(&path, lines.iter().flat_map(|line| [line, "\n"]).collect::<String>())
                    .expect("written");
                verified(&folder)
            };
            let edited = lines[1].replace("7.3", "3.7");
            assert_eq!(
                after(&[lines[0], &edited, lines[2], lines[3], lines[4]]),
                Err(ChainError::Broken { line: 2 })
            );
            assert_eq!(
                after(&[lines[0], lines[2], lines[3], lines[4]]),
                Err(ChainError::Broken { line: 2 }),
                "dropped"
            );
            assert_eq!(
                after(&[lines[0], lines[2], lines[1], lines[3], lines[4]]),
                Err(ChainError::Broken { line: 2 }),
                "moved"
            );
            assert_eq!(after(&[lines[0], lines[1], lines[1]]), Err(ChainError::Broken { line: 3 }), "twice");
            assert_eq!(after(&lines[..4]), Err(ChainError::Untold), "its end cut off");
            let appended = r#"{"kind":"evaluation","at_s":9,"body":{"us":1}}"#;
            assert_eq!(after(&[&lines[..], &[appended]].concat()), Err(ChainError::Unchained { line: 6 }));
            let without: Vec<String> = lines
                .iter()
                .map(|line| format!("{}}}", line.split(",\"chain\"").next().expect("text")))
                .collect();
            let without: Vec<&str> = without.iter().map(String::as_str).collect();
            assert_eq!(after(&without), Err(ChainError::Unchained { line: 1 }));
            let cut = "{\"kind\":\"eval";
            assert_eq!(after(&[&lines[..1], &[cut], &lines[1..]].concat()), Ok(()), "a run was killed there");

            // Another secret than was promised, chained as it should be.
            let other = ended(runs.path(), seed ^ 1);
            let promised = std::fs::read_to_string(other.join(RECORDS_FILE)).expect("readable");
            assert_eq!(
                after(&[&lines[..4], &[promised.lines().last().expect("a line")]].concat()),
                Err(ChainError::Broken { line: 5 })
            );
            let mut forged = Session::create(runs.path(), header("evolve")).expect("created");
            forged.promise(seed).expect("written");
            forged.append(TOLD, &(seed ^ 1)).expect("written");
            assert_eq!(verified(forged.folder()), Err(ChainError::OtherSecret));

            // What was done without a secret, or when it was known.
            for early in [true, false] {
                let mut forged = Session::create(runs.path(), header("evolve")).expect("created");
                let done = |session: &mut Session| session.append("evaluation", &1).expect("written");
                if early {
                    done(&mut forged);
                }
                forged.promise(seed).expect("written");
                forged.append(TOLD, &seed).expect("written");
                if !early {
                    done(&mut forged);
                }
                let line = if early { 1 } else { 3 };
                assert_eq!(verified(forged.folder()), Err(ChainError::OfNoRun { line }));
            }

            // Another header: a commit, say, or a configuration.
            std::fs::write(&path, &text).expect("written");
            assert_eq!(verified(&folder), Ok(()));
            let path = folder.join(session::HEADER_FILE);
            let header = std::fs::read_to_string(&path).expect("readable");
            std::fs::write(&path, header.replace("\"commit\": null", "\"commit\": \"abc\""))
                .expect("written");
            assert_eq!(verified(&folder), Err(ChainError::Broken { line: 1 }));
        }
    }

    #[test]
    fn honest_sessions_hold_also_where_they_were_killed_resumed_and_kept() {
        let (home, runs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let mut session = Session::create(runs.path(), header("evolve")).expect("created");
        session.promise(1).expect("written");
        session.append("evaluation", &json!({ "us": 0.1, "log": "/opt/a/b.log" })).expect("written");
        let folder = session.folder().to_owned();
        drop(session);
        assert_eq!(verified(&folder), Err(ChainError::Untold), "killed");
        let mut again = Session::resume(&folder, "evolve", &mut |_| ()).expect("resumed");
        again.promise(2).expect("written");
        again.append("evaluation", &1e-300).expect("written");
        again.append(TOLD, &2_u64).expect("written");
        drop(again);
        assert_eq!(verified(&folder), Ok(()));
        let kept =
            crate::results::keep(home.path(), &folder, &mut |warning| panic!("{warning}")).expect("kept");
        assert_eq!(verified(&kept), Ok(()), "without the machine's paths it holds too");
    }
}
