//! The hidden command: one job from stdin, its report on stdout.

use crate::error::{EXIT_DONE, Error, Result};
use crate::job::{self, Job, Report};
use std::io::{Read, Write};
use std::path::Path;

/// Does the job.
///
/// # Errors
/// [`Error::Io`] where stdin or stdout fails. A job that cannot be read is reported as failed.
pub fn run() -> Result<u8> {
    // A lab that was killed leaves no kernel behind that hangs. Where the system does not know how, the limit is all there is.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|source| Error::io(Path::new("stdin"), source))?;
    let report = match serde_json::from_str::<Job>(&text) {
        Ok(job) => job::run(&job),
        Err(error) => Report::Failed(format!("not a job: {error}")),
    };
    let text = serde_json::to_string(&report).unwrap_or_default();
    std::io::stdout().write_all(text.as_bytes()).map_err(|source| Error::io(Path::new("stdout"), source))?;
    Ok(EXIT_DONE)
}
