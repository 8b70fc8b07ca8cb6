//! Ctrl-C: the first ends the session after the candidate in flight is killed, a second one ends the program at once.

use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Watches for Ctrl-C from now on.
///
/// # Errors
/// Where the system does not let a handler be set.
pub fn watch() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(crate::error::EXIT_INTERRUPTED));
        }
    })
}

/// Whether Ctrl-C was pressed.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
