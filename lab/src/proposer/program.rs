//! Runs a proposer: the prompt on its stdin, the answer on its stdout, within a time and a size.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// What an answer may be long at most.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// What is kept of stderr: its end.
const STDERR_KEPT: usize = 2000;
/// How often a running program is looked at.
const POLL: Duration = Duration::from_millis(5);

/// What a program answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its stdout.
    pub answer: String,
    /// The end of its stderr.
    pub stderr: String,
    /// How long it took.
    pub took: Duration,
}

/// Why a program gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// There is nothing to put it into.
    #[error("this machine has no box for an untrusted proposer ({reason}); --trust runs it without one")]
    NoBox {
        /// What the system says.
        reason: String,
    },
    /// The command has no words.
    #[error("the proposer's command is empty")]
    NoCommand,
    /// It cannot be started.
    #[error("the proposer `{program}` cannot be started: {source}")]
    NotStarted {
        /// The program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// It ran past its limit and was killed.
    #[error("the proposer `{program}` gave no answer within {limit:?} and was stopped")]
    TimedOut {
        /// The program.
        program: String,
        /// The limit.
        limit: Duration,
    },
    /// It was stopped before its end, as the session ends.
    #[error("the proposer `{program}` was stopped")]
    Stopped {
        /// The program.
        program: String,
    },
    /// It ended with an error.
    #[error("the proposer `{program}` failed ({status}): {stderr}")]
    Failed {
        /// The program.
        program: String,
        /// Its exit code or signal.
        status: String,
        /// The end of its stderr.
        stderr: String,
    },
    /// It answered, with nothing.
    #[error("the proposer `{program}` printed nothing")]
    PrintedNothing {
        /// The program.
        program: String,
    },
    /// It answered too much.
    #[error("the proposer `{program}` printed more than {ANSWER_BYTES_MAX} bytes")]
    PrintedTooMuch {
        /// The program.
        program: String,
    },
    /// Its answer is no text.
    #[error("the proposer `{program}` printed what is not UTF-8")]
    NotText {
        /// The program.
        program: String,
    },
    /// The system failed it.
    #[error("the proposer `{program}`: {source}")]
    System {
        /// The program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
}

/// Asks a program. `command` is its words: no shell is in between; `name` is what errors call it. It and whatever it starts are killed when `limit` is over, or
/// when `stop` becomes true: a terminal's Ctrl-C does not reach it.
///
/// # Errors
/// A program that does not start, fails, hangs, is stopped, or prints nothing, too much, or no text.
pub fn ask(
    command: &[String],
    name: &str,
    prompt: &str,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Reply, ProgramError> {
    let (program, arguments) = command.split_first().ok_or(ProgramError::NoCommand)?;
    let name = || name.to_owned();
    let started = Instant::now();
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own, so that what it starts can be ended with it.
        .process_group(0)
        .spawn()
        .map_err(|source| ProgramError::NotStarted { program: name(), source })?;
    feed(&mut child, prompt);
    let answer = child.stdout.take().map(|pipe| collect(pipe, ANSWER_BYTES_MAX));
    let stderr = child.stderr.take().map(collect_end);
    let system = |source| ProgramError::System { program: name(), source };
    let ended = wait(&child, started + limit, stop);
    // Also after a good end: nobody that it left behind may hold the pipes open, or go on working.
    kill_group(&child);
    // It has ended or was killed, so this does not wait.
    let status = child.wait().map_err(system)?;
    match ended.map_err(system)? {
        End::Own => {}
        End::Stopped => return Err(ProgramError::Stopped { program: name() }),
        End::TimedOut => return Err(ProgramError::TimedOut { program: name(), limit }),
    }
    let (answer, stderr) = (received(answer), text_end(&received(stderr)));
    // Before its status: nobody read on, so its pipe may have broken.
    if answer.len() as u64 > ANSWER_BYTES_MAX {
        return Err(ProgramError::PrintedTooMuch { program: name() });
    }
    if !status.success() {
        return Err(ProgramError::Failed { program: name(), status: describe(status), stderr });
    }
    let answer = String::from_utf8(answer).map_err(|_| ProgramError::NotText { program: name() })?;
    if answer.trim().is_empty() {
        return Err(ProgramError::PrintedNothing { program: name() });
    }
    Ok(Reply { answer, stderr, took: started.elapsed() })
}

/// Writes the prompt beside everything else: a program that does not read must not stop us, and one that ends early is no error.
fn feed(child: &mut Child, prompt: &str) {
    if let Some(mut stdin) = child.stdin.take() {
        let prompt = prompt.to_owned();
        std::thread::spawn(move || {
            let _ = stdin.write_all(prompt.as_bytes());
        });
    }
}

/// Reads a pipe beside everything else, one byte over the limit at most.
fn collect(pipe: impl Read + Send + 'static, limit: u64) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is still an answer.
        let _ = pipe.take(limit.saturating_add(1)).read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

/// Reads a pipe beside everything else, and keeps its end.
fn collect_end(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let (mut kept, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = pipe.read(&mut piece) {
            kept.extend_from_slice(&piece[..count]);
            kept.drain(..kept.len().saturating_sub(STDERR_KEPT));
        }
        let _ = sender.send(kept);
    });
    receiver
}

/// What was read of a pipe. The group is dead, so its end is near, unless a process left the group and holds it open.
fn received(receiver: Option<Receiver<Vec<u8>>>) -> Vec<u8> {
    receiver.and_then(|receiver| receiver.recv_timeout(Duration::from_secs(2)).ok()).unwrap_or_default()
}

/// Why waiting ended.
enum End {
    Own,
    Stopped,
    TimedOut,
}

/// Waits for the program's end. It stays a zombie, so that its number, and its group's, are not given to anyone else.
fn wait(child: &Child, until: Instant, stop: &AtomicBool) -> std::io::Result<End> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        if let Some(pid) = pid(child)
            && waitid(WaitId::Pid(pid), options)?.is_some()
        {
            return Ok(End::Own);
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(End::Stopped);
        }
        if Instant::now() >= until {
            return Ok(End::TimedOut);
        }
        std::thread::sleep(POLL);
    }
}

fn kill_group(child: &Child) {
    if let Some(group) = pid(child) {
        // Fails where nobody is left, which is what is wanted.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

fn text_end(bytes: &[u8]) -> String {
    let end = &bytes[bytes.len().saturating_sub(STDERR_KEPT)..];
    String::from_utf8_lossy(end).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn asked(command: &[String], prompt: &str, limit: Duration) -> Result<Reply, ProgramError> {
        ask(command, command.first().map_or("", String::as_str), prompt, limit, &AtomicBool::new(false))
    }

    fn words(command: &[&str]) -> Vec<String> {
        command.iter().map(|word| (*word).to_owned()).collect()
    }

    fn shell(script: &str) -> Vec<String> {
        words(&["sh", "-c", script])
    }

    #[test]
    fn the_prompt_goes_in_and_the_answer_comes_out() {
        // More than a pipe holds.
        let prompt = "line\n".repeat(100_000);
        let reply = asked(&words(&["cat"]), &prompt, LONG).expect("an answer");
        assert_eq!(reply.answer, prompt);
        let reply = asked(&shell("echo answer; echo noise >&2"), &prompt, LONG).expect("an answer");
        assert_eq!((reply.answer.as_str(), reply.stderr.as_str()), ("answer\n", "noise"));
    }

    #[test]
    fn a_program_that_never_ends_is_killed_with_all_that_it_started() {
        let limit = Duration::from_millis(300);
        let started = Instant::now();
        for command in [
            words(&["sleep", "60"]),
            shell("sleep 60 & sleep 60 & wait"),
            shell("trap '' TERM; while :; do :; done"),
        ] {
            let error = asked(&command, "", limit).expect_err("no answer");
            assert!(matches!(error, ProgramError::TimedOut { .. }), "{error}");
        }
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_session_that_ends_stops_its_program() {
        let stop = AtomicBool::new(false);
        let started = Instant::now();
        let error = std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask(&words(&["sleep", "60"]), "sleep", "", LONG, &stop));
            std::thread::sleep(Duration::from_millis(100));
            stop.store(true, Ordering::Relaxed);
            asking.join().expect("a thread").expect_err("no answer")
        });
        assert!(matches!(error, ProgramError::Stopped { .. }), "{error}");
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn what_a_program_leaves_behind_holds_nobody_up() {
        let started = Instant::now();
        let reply = asked(&shell("sleep 60 & echo answer"), "", LONG).expect("an answer");
        assert_eq!(reply.answer, "answer\n");
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn each_failure_has_its_name() {
        let error = |command: &[String]| asked(command, "x", LONG).expect_err("no answer");
        assert!(matches!(error(&[]), ProgramError::NoCommand));
        assert!(matches!(error(&words(&["no-such-program-here"])), ProgramError::NotStarted { .. }));
        assert!(matches!(error(&words(&["true"])), ProgramError::PrintedNothing { .. }));
        assert!(matches!(error(&shell("printf ' \n\n'")), ProgramError::PrintedNothing { .. }));
        assert!(matches!(error(&shell("printf '\\377'")), ProgramError::NotText { .. }));
        let failed = error(&shell("echo broken >&2; exit 7"));
        assert_eq!(failed.to_string(), "the proposer `sh` failed (exit code 7): broken");
        let killed = error(&shell("kill -9 $$"));
        assert!(killed.to_string().contains("signal 9"), "{killed}");
    }

    #[test]
    fn too_much_is_refused_and_not_kept() {
        for command in [words(&["yes"]), shell("head -c 5000000 /dev/zero | tr '\\0' x")] {
            let error = asked(&command, "", LONG).expect_err("no answer");
            assert!(matches!(error, ProgramError::PrintedTooMuch { .. }), "{error}");
        }
    }
}
