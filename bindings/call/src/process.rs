//! Whether this process is a fork of an earlier one, without a system call, which every call of attention would wait for.

use std::process;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the process that asked first and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A process, as told from those that it forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    forks: u32,
    id: u32,
}

impl Process {
    /// The calling one. From now on forks are counted.
    pub(crate) fn current() -> Process {
        static COUNTED: Once = Once::new();
        COUNTED.call_once(count_forks);
        Process { forks: FORKS.load(Ordering::Relaxed), id: process::id() }
    }

    /// Whether it is the calling one.
    pub(crate) fn is_current(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// Its number.
    pub(crate) fn id(self) -> u32 {
        self.id
    }
}

/// Makes the C library count forks in their children.
#[cfg(unix)]
fn count_forks() {
    extern "C" fn forked() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the function may run between fork and exec: it adds to one number. It is in this library, which takes its handlers back where it is
    // unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
}

/// There are no forks.
#[cfg(not(unix))]
fn count_forks() {}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_another_process() {
        let parent = Process::current();
        assert!(parent.is_current());
        // SAFETY: the child asks for one number and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child without what the test runner registered.
            unsafe { libc::_exit(i32::from(parent.is_current())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child, "there is a child");
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            "the child was the parent to itself"
        );
        assert!(parent.is_current(), "the parent stays itself");
    }
}
