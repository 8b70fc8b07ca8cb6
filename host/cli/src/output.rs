//! What the terminal shows: results on stdout, everything else on stderr, colour and progress only on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

/// The first error of writing results.
static UNWRITTEN: OnceLock<io::Error> = OnceLock::new();

/// One line of results. A reader that went away is no error; what else fails, [`unwritten`] says.
pub(crate) fn print(line: &str) {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => drop(UNWRITTEN.set(error)),
        _ => {}
    }
}

/// Why results could not be written to stdout, where any could not.
pub(crate) fn unwritten() -> Option<&'static io::Error> {
    UNWRITTEN.get()
}

/// One line of JSON for machines.
pub(crate) fn print_json(value: &serde_json::Value) {
    print(&value.to_string());
}

/// One line beside the results.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "ferroflash: {line}");
}

/// The one line of an error.
pub(crate) fn say_error(message: &str) {
    let line = message.replace('\n', " ");
    say(&format!("{} {line}", paint(io::stderr().is_terminal(), "31", "error:")));
}

/// "passed" or "FAILED", for stdout.
pub(crate) fn passed(passed: bool) -> String {
    let terminal = io::stdout().is_terminal();
    if passed { paint(terminal, "32", "passed") } else { paint(terminal, "31", "FAILED") }
}

fn paint(terminal: bool, colour: &str, text: &str) -> String {
    let wanted = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if wanted { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A progress bar on stderr; nothing where that is no terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn new(what: &'static str) -> Progress {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        Progress { bar }
    }

    pub(crate) fn set(&self, done: usize, total: usize) {
        self.bar.set_length(total as u64);
        // Threads report out of order.
        if done as u64 > self.bar.position() {
            self.bar.set_position(done as u64);
        }
    }

    /// Starts over, with a new message.
    pub(crate) fn restart(&self, what: String) {
        self.bar.set_message(what);
        self.bar.set_position(0);
    }

    /// Prints a line above the bar.
    pub(crate) fn suspend(&self, line: &str) {
        self.bar.suspend(|| print(line));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
