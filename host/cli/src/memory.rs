//! Whether the float64 reference of a problem fits into memory, asked before it is begun.

use ferroflash::{Error, Problem};
use std::fs;

/// Bytes that a problem's tensors, reference, bounds and outputs take on the host, about.
fn needed(problem: &Problem) -> u64 {
    let inputs = [problem.q_len(), problem.k_len(), problem.v_len()].map(|elements| elements as u64);
    // 16 bits twice for inputs; float64 twice, float32 once and 16 bits twice for O; float64 thrice for LSE.
    let inputs = inputs.into_iter().fold(0_u64, u64::saturating_add).saturating_mul(4);
    let o = (problem.o_len() as u64).saturating_mul(24);
    let lse = (problem.lse_len() as u64).saturating_mul(24);
    inputs.saturating_add(o).saturating_add(lse)
}

/// Refuses a problem for which the machine has not the memory.
///
/// # Errors
/// [`Error::TooLarge`].
pub(crate) fn check(problem: &Problem) -> Result<(), Error> {
    let needed = needed(problem);
    match available() {
        Some(limit) if needed > limit => {
            let what = "the memory in bytes that this needs on the host";
            Err(Error::TooLarge { what, value: needed.to_string(), limit })
        }
        _ => Ok(()),
    }
}

/// Bytes of memory that programs can still have; `None` where the system does not say.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
