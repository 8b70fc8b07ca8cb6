//! Child processes with a time limit and errors that name the command.

use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    #[error("`{command}` could not be started: {reason}")]
    Start { command: String, reason: std::io::Error },
    #[error("`{command}` ended with {status}")]
    Failed { command: String, status: ExitStatus },
    #[error("`{command}` was ended after its {} s", limit.as_secs())]
    TimedOut { command: String, limit: Duration },
}

/// The command line, for messages.
pub(crate) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs to the end; output goes where this program's goes.
pub(crate) fn run(command: &mut Command) -> Result<(), ProcessError> {
    let status = command.status().map_err(|reason| ProcessError::Start { command: line(command), reason })?;
    checked(command, status)
}

/// As [`run`], without input and no longer than `limit`.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<(), ProcessError> {
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .map_err(|reason| ProcessError::Start { command: line(command), reason })?;
    let end = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return checked(command, status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
            Ok(None) => {
                // It may end by itself in between; then there is nothing left to do.
                let _ = child.kill();
                let _ = child.wait();
                return Err(ProcessError::TimedOut { command: line(command), limit });
            }
            Err(reason) => return Err(ProcessError::Start { command: line(command), reason }),
        }
    }
}

/// Standard output of a short command, or nothing where it cannot be had: for questions about what is installed.
pub(crate) fn answer(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn checked(command: &Command, status: ExitStatus) -> Result<(), ProcessError> {
    if status.success() { Ok(()) } else { Err(ProcessError::Failed { command: line(command), status }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_ended() {
        let start = Instant::now();
        let result = run_within(Command::new("sleep").arg("60"), Duration::from_millis(100));
        assert!(matches!(result, Err(ProcessError::TimedOut { .. })));
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn failures_name_the_command() {
        let failed = run(Command::new("sh").args(["-c", "exit 3"])).expect_err("fails");
        assert_eq!(failed.to_string(), "`sh -c exit 3` ended with exit status: 3");
        let missing = run(&mut Command::new("no-such-program")).expect_err("not there");
        assert!(missing.to_string().starts_with("`no-such-program` could not be started"));
        assert!(run_within(&mut Command::new("true"), Duration::from_secs(10)).is_ok());
    }
}
