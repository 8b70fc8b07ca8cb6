//! Runs a proposer: the prompt on its stdin, the answer on its stdout, within a time and a size.

use crate::error::{Error, Result};
use crate::process::{self, End};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What an answer may be long at most.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Why a program gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// There is nothing to put it into.
    #[error("this machine has no box for an untrusted proposer ({reason}); --trust runs it without one")]
    NoBox {
        /// What the system says.
        reason: String,
    },
    /// It cannot be started.
    #[error("the proposer cannot be started: {reason}")]
    NotStarted {
        /// What was tried, and why it failed.
        reason: String,
    },
    /// It ran past its limit and was killed.
    #[error("the proposer gave no answer within {limit:?} and was stopped")]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// It ended with an error.
    #[error("the proposer failed ({status}): {said}")]
    Failed {
        /// Its exit code or signal.
        status: String,
        /// The last line of its stderr.
        said: String,
    },
    /// It answered, with nothing.
    #[error("the proposer printed nothing")]
    PrintedNothing,
    /// It answered too much.
    #[error("the proposer printed more than {ANSWER_BYTES_MAX} bytes")]
    PrintedTooMuch,
}

/// Asks a program; `command` is its words: no shell is in between. It and whatever it starts are killed when `limit` is over or at Ctrl-C,
/// which a terminal does not send to it. Its stderr goes to `log`.
///
/// # Errors
/// [`Error::Interrupted`], [`Error::Io`]; the inner error is the program's.
pub fn ask(
    command: &[String],
    prompt: &str,
    log: &Path,
    limit: Duration,
) -> Result<std::result::Result<String, ProgramError>> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(Err(ProgramError::NotStarted { reason: "its command is empty".to_owned() }));
    };
    let ended = match process::run(Command::new(program).args(arguments), prompt.as_bytes(), log, limit) {
        Err(error @ Error::Start { .. }) => {
            return Ok(Err(ProgramError::NotStarted { reason: error.to_string() }));
        }
        ended => ended?,
    };
    let failed = match ended.end {
        End::Interrupted => {
            return Err(Error::Interrupted { folder: log.parent().unwrap_or(log).to_owned() });
        }
        End::TimedOut => ProgramError::TimedOut { limit },
        End::PrintedTooMuch => ProgramError::PrintedTooMuch,
        End::Exited(_) if ended.stdout.len() > ANSWER_BYTES_MAX => ProgramError::PrintedTooMuch,
        End::Exited(status) if !status.success() => {
            let said = process::last_line(log).unwrap_or_default();
            ProgramError::Failed { status: status.to_string(), said }
        }
        End::Exited(_) if ended.stdout.trim().is_empty() => ProgramError::PrintedNothing,
        End::Exited(_) => return Ok(Ok(ended.stdout)),
    };
    Ok(Err(failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(script: &str, prompt: &str) -> std::result::Result<String, ProgramError> {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let command = ["sh", "-c", script].map(str::to_owned);
        ask(&command, prompt, log.path(), Duration::from_secs(20)).expect("nothing else fails")
    }

    #[test]
    fn the_prompt_goes_in_and_the_answer_comes_out() {
        // More than a pipe holds.
        let prompt = "line\n".repeat(100_000);
        assert_eq!(asked("cat; echo noise >&2", &prompt), Ok(prompt.clone()));
        assert_eq!(asked("sleep 60 & echo answer", &prompt).as_deref(), Ok("answer\n"), "nobody is held up");
    }

    #[test]
    fn each_failure_has_its_name() {
        assert_eq!(asked("true", ""), Err(ProgramError::PrintedNothing));
        assert_eq!(asked("printf ' \n\n'", ""), Err(ProgramError::PrintedNothing));
        assert_eq!(asked("head -c 5000000 /dev/zero | tr '\\0' x", ""), Err(ProgramError::PrintedTooMuch));
        let failed = asked("echo broken >&2; exit 7", "").expect_err("no answer").to_string();
        assert_eq!(failed, "the proposer failed (exit status: 7): broken");
        let killed = asked("kill -9 $$", "").expect_err("no answer").to_string();
        assert!(killed.contains("signal: 9"), "{killed}");
        let log = tempfile::NamedTempFile::new().expect("a file");
        for command in [Vec::new(), vec!["no-such-program-here".to_owned()]] {
            let asked = ask(&command, "", log.path(), Duration::from_secs(20)).expect("no other error");
            assert!(matches!(asked, Err(ProgramError::NotStarted { .. })), "{asked:?}");
        }
    }
}
