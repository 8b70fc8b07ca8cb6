//! Programs that run in a process group of their own and are killed, all of it, at their limit or at Ctrl-C.

use crate::error::{Error, Result};
use crate::interrupt;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often a running program is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What a program may print on each of its streams.
const PRINTED_BYTES_MAX: u64 = 64 << 20;

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself.
    Exited(ExitStatus),
    /// It was killed at its limit.
    TimedOut,
    /// It was killed as it printed without end.
    PrintedTooMuch,
    /// It was killed at Ctrl-C.
    Interrupted,
}

/// What a program did.
#[derive(Clone, Debug)]
pub struct Ended {
    /// How it ended.
    pub end: End,
    /// What it printed on stdout.
    pub stdout: String,
    /// How long it ran.
    pub time: Duration,
}

/// The command line, for messages.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs a program with `input` on its stdin; stderr goes to the file `log`. Kills it, and whatever it started, at `limit`.
///
/// # Errors
/// [`Error::Start`], [`Error::Io`] where the log cannot be written.
pub fn run(command: &mut Command, input: &[u8], log: &Path, limit: Duration) -> Result<Ended> {
    let start = |source| Error::Start { command: line(command), source };
    let mut given = tempfile::tempfile().map_err(start)?;
    std::io::Write::write_all(&mut given, input).map_err(|source| Error::io(log, source))?;
    std::io::Seek::rewind(&mut given).map_err(start)?;
    run_from(command, given, log, limit)
}

/// As [`run`], for a tool that says what it found on stdout: that goes to the log too.
///
/// # Errors
/// Those of [`run`].
pub fn run_logged(command: &mut Command, input: &[u8], log: &Path, limit: Duration) -> Result<Ended> {
    let ended = run(command, input, log, limit)?;
    let file = File::options().append(true).open(log);
    file.and_then(|mut file| std::io::Write::write_all(&mut file, ended.stdout.as_bytes()))
        .map_err(|source| Error::io(log, source))?;
    Ok(ended)
}

/// As [`run`], with a file as stdin.
fn run_from(command: &mut Command, given: File, log: &Path, limit: Duration) -> Result<Ended> {
    let start = |source| Error::Start { command: line(command), source };
    let file = File::create(log).map_err(|source| Error::io(log, source))?;
    // Files rather than pipes: a program that prints without end blocks nobody.
    let mut printed = tempfile::tempfile().map_err(start)?;
    let stdout = printed.try_clone().map_err(start)?;
    let begun = Instant::now();
    let mut child = command
        .stdin(given)
        .stdout(stdout)
        .stderr(Stdio::from(file))
        .process_group(0)
        .spawn()
        .map_err(|source| Error::Start { command: line(command), source })?;
    let is_printing = || {
        let lengths = [printed.metadata(), std::fs::metadata(log)];
        lengths.iter().flatten().all(|file| file.len() <= PRINTED_BYTES_MAX)
    };
    let end = wait(&mut child, begun + limit, is_printing);
    let mut stdout = Vec::new();
    std::io::Seek::rewind(&mut printed)
        .and_then(|()| printed.read_to_end(&mut stdout))
        .map_err(|source| Error::Start { command: line(command), source })?;
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    Ok(Ended { end, stdout, time: begun.elapsed() })
}

/// As [`run`], for a program that has to succeed; returns what it printed.
///
/// # Errors
/// [`Error::Failed`], [`Error::TimedOut`], [`Error::Interrupted`], and those of [`run`].
pub fn succeed(command: &mut Command, log: &Path, limit: Duration) -> Result<String> {
    let ended = run(command, b"", log, limit)?;
    output(ended, command, log, limit)
}

/// As [`succeed`], for a program that works under a lock: it holds it too, as its stdin, until it ends, also where whoever
/// started it is killed before.
///
/// # Errors
/// Those of [`succeed`].
pub fn succeed_under(lock: &File, command: &mut Command, log: &Path, limit: Duration) -> Result<String> {
    let held = lock.try_clone().map_err(|source| Error::Start { command: line(command), source })?;
    let ended = run_from(command, held, log, limit)?;
    output(ended, command, log, limit)
}

fn output(ended: Ended, command: &Command, log: &Path, limit: Duration) -> Result<String> {
    match ended.end {
        End::Exited(status) if status.success() => Ok(ended.stdout),
        End::Exited(status) => {
            let reason = last_line(log).unwrap_or_else(|| status.to_string());
            Err(Error::Failed { command: line(command), reason, log: log.to_owned() })
        }
        End::TimedOut => Err(Error::TimedOut { command: line(command), limit }),
        End::PrintedTooMuch => {
            let reason = format!("it printed more than {PRINTED_BYTES_MAX} bytes");
            Err(Error::Failed { command: line(command), reason, log: log.to_owned() })
        }
        End::Interrupted => {
            Err(Error::Interrupted { folder: log.parent().unwrap_or(Path::new(".")).to_owned() })
        }
    }
}

/// The last line of a log that says something.
pub fn last_line(log: &Path) -> Option<String> {
    let text = std::fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
}

/// What a compiler complains of: its errors with their first lines, as far as a few screens go.
pub fn complaint(log: &Path) -> Option<String> {
    const LINES: usize = 8;
    const BYTES: usize = 3000;
    let text = String::from_utf8_lossy(&std::fs::read(log).ok()?).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let errors = (0..lines.len()).filter(|&at| lines[at].trim_start().starts_with("error"));
    let mut said = String::new();
    for at in errors {
        let of_error = lines[at..].iter().take(LINES).take_while(|line| !line.trim().is_empty());
        let paragraph = of_error.map(|line| line.trim_end()).collect::<Vec<_>>().join("\n");
        if !said.contains(&paragraph) && said.len() + paragraph.len() < BYTES {
            said = if said.is_empty() { paragraph } else { format!("{said}\n{paragraph}") };
        }
    }
    (!said.is_empty()).then_some(said)
}

/// Waits for a program's end, or ends it. Until it is waited for it stays a zombie, so that its number, and its group's, are given to
/// nobody else before the group is killed: what a program left behind does not outlive it.
fn wait(child: &mut Child, deadline: Instant, is_within: impl Fn() -> bool) -> End {
    use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let has_ended = || pid.is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)));
    let end = loop {
        if has_ended() {
            break None;
        } else if interrupt::requested() {
            break Some(End::Interrupted);
        } else if !is_within() {
            break Some(End::PrintedTooMuch);
        } else if Instant::now() >= deadline {
            break Some(End::TimedOut);
        }
        std::thread::sleep(LOOK_EVERY);
    };
    // Fails where nobody is left, which is what is wanted.
    let _ = pid.map(|group| kill_process_group(group, Signal::KILL));
    // Killed, it ends; a process that hangs in the driver is left to the system.
    let deadline = Instant::now() + Duration::from_secs(10);
    while end.is_some() && Instant::now() < deadline && !has_ended() {
        std::thread::sleep(LOOK_EVERY);
    }
    let status = if has_ended() { child.wait().ok() } else { None };
    end.or(status.map(End::Exited)).unwrap_or(End::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_is_given_its_input_and_its_streams_are_kept_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let ended = run(&mut shell("cat; echo said >&2; exit 3"), b"given", &log, Duration::from_secs(10))
            .expect("runs");
        assert_eq!(ended.stdout, "given");
        assert!(matches!(ended.end, End::Exited(status) if status.code() == Some(3)));
        assert_eq!(last_line(&log).as_deref(), Some("said"));
        let tool = &mut shell("cat; echo said >&2");
        let ended = run_logged(tool, b"found", &log, Duration::from_secs(10)).expect("runs");
        let logged = std::fs::read_to_string(&log).expect("written");
        assert_eq!((ended.stdout.as_str(), logged.as_str()), ("found", "said\nfound"));
        let error =
            succeed(&mut shell("echo why >&2; exit 1"), &log, Duration::from_secs(10)).expect_err("fails");
        assert!(error.to_string().contains("why"), "{error}");
    }

    #[test]
    fn a_compilers_errors_come_with_their_places() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let text = "   Compiling x\nerror[E0425]: cannot find value `k`\n --> src/a.rs:3:5\n  |\n3 | k\n\nwarning: y\nerror: aborting\n";
        std::fs::write(&log, text).expect("written");
        let said = complaint(&log).expect("errors");
        assert!(said.starts_with("error[E0425]: cannot find value `k`\n --> src/a.rs:3:5\n"), "{said}");
        assert!(said.ends_with("error: aborting") && !said.contains("warning"), "{said}");
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_all_it_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let limit = Duration::from_millis(300);
        let mark = folder.path().join("mark");
        let script = format!("(sleep 1; touch {}) & echo begun; sleep 60", mark.display());
        let ended = run(&mut shell(&script), b"", &log, limit).expect("runs");
        assert_eq!((ended.end, ended.stdout.as_str()), (End::TimedOut, "begun\n"));
        assert!(ended.time < Duration::from_secs(5), "{:?}", ended.time);
        std::thread::sleep(Duration::from_millis(1200));
        assert!(!mark.exists(), "the grandchild is gone too");
        for endless in ["yes", "yes >&2", "trap '' TERM; while :; do echo x; done"] {
            let begun = Instant::now();
            let ended = run(&mut shell(endless), b"", &log, Duration::from_secs(2)).expect("runs");
            assert!(matches!(ended.end, End::PrintedTooMuch | End::TimedOut), "{endless}: {:?}", ended.end);
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
    }
}
