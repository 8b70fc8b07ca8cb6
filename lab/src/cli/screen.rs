//! What the terminal shows: results on stdout, everything else on stderr, progress only on a terminal.

use crate::stages::Watcher;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Write;
use std::time::Duration;

/// One line of results. A reader that went away is no error.
pub(crate) fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// One line beside the results.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "lab: {line}");
}

/// A progress bar: candidate, stage, best so far, time left.
pub(crate) struct Screen {
    bar: ProgressBar,
    best: Option<String>,
    doing: String,
    left: String,
}

impl Screen {
    /// A bar of so many candidates.
    pub(crate) fn new(candidates: u64) -> Screen {
        let bar = ProgressBar::with_draw_target(Some(candidates), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{pos}/{len} {bar:20} {msg}  {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(500));
        Screen { bar, best: None, doing: String::new(), left: String::new() }
    }

    /// One candidate is done.
    pub(crate) fn done(&mut self, line: &str) {
        self.bar.suspend(|| say(line));
        self.bar.inc(1);
    }

    /// The best so far.
    pub(crate) fn best(&mut self, best: String) {
        self.best = Some(best);
        self.show();
    }

    /// So many candidates are done, and so many seconds are left, where that is known.
    pub(crate) fn progress(&mut self, candidates: u64, seconds_left: Option<f64>) {
        self.bar.set_position(candidates);
        self.left = seconds_left.map(|seconds| format!("  about {seconds:.0} s left")).unwrap_or_default();
        self.show();
    }

    /// Takes the bar away.
    pub(crate) fn finish(&mut self) {
        self.bar.finish_and_clear();
    }

    fn show(&self) {
        let best = self.best.as_ref().map_or(String::new(), |best| format!("  best {best}"));
        self.bar.set_message(format!("{}{best}{}", self.doing, self.left));
    }
}

impl Watcher for Screen {
    fn stage(&mut self, candidate: &str, stage: &str) {
        self.doing = format!("{candidate}: {stage}");
        self.show();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
