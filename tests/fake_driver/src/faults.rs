//! What is wrong with this driver and its device, by environment variables; without them, nothing is.
//!
//! | variable | effect |
//! |---|---|
//! | `FAKE_DRIVER_INIT_ERROR=803` | cuInit fails with this error |
//! | `FAKE_DRIVER_DEVICES=0` | so many devices |
//! | `FAKE_DRIVER_CUDA=11.2` | the CUDA version: newer PTX is refused, and before 12.0 there are no tensor maps |
//! | `FAKE_DRIVER_SM=75` | the devices' compute capability |
//! | `FAKE_DRIVER_MEMORY=1048576` | the devices' memory in bytes |
//! | `FAKE_DRIVER_PTX_LOG=text` | every module is refused, with this log |
//! | `FAKE_DRIVER_LAUNCH_ERROR=700` | every launch fails with this error |
//! | `FAKE_DRIVER_LAUNCH_MS=1000` | every launch takes so much longer |
//! | `FAKE_DRIVER_OUTPUT=wrong` | the last row of O is wrong |
//! | `FAKE_DRIVER_OUTPUT=unsteady` | every second launch differs in one bit of O |
//! | `FAKE_DRIVER_OUTPUT=past` | a launch writes one element past O |
//! | `FAKE_DRIVER_OUTPUT=lse` | the first value of LSE is wrong |
//! | `FAKE_DRIVER_OUTPUT=counter` | a launch leaves its work counter at 1 |
//! | `FAKE_DRIVER_OUTPUT=past_partials` | a launch writes past the LSE of its splits |
//! | `FAKE_DRIVER_L2=0` | so many bytes of L2 can be set aside |
//! | `FAKE_DRIVER_PEERS=0` | no device reaches another's memory |
//! | `FAKE_DRIVER_PATIENCE_MS=300` | a stream waits so long for a flag in a call, and from then on behind the host's back |
//! | `FAKE_DRIVER_PITCH=own` | copies of rows at pitches that it did not choose are refused |

use std::str::FromStr;
use std::time::Duration;

/// What is wrong with the output of launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Right,
    Wrong,
    Unsteady,
    Past,
    Lse,
    Counter,
    PastPartials,
}

fn number<T: FromStr>(variable: &str) -> Option<T> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The error of cuInit, if any.
pub(crate) fn init_error() -> Option<i32> {
    number("FAKE_DRIVER_INIT_ERROR")
}

/// Devices.
pub(crate) fn devices() -> i32 {
    number("FAKE_DRIVER_DEVICES").unwrap_or(1)
}

/// Whether devices reach each other's memory.
pub(crate) fn peers_are_reached() -> bool {
    number("FAKE_DRIVER_PEERS") != Some(0)
}

/// How long a call waits for a flag.
pub(crate) fn patience() -> Duration {
    Duration::from_millis(number("FAKE_DRIVER_PATIENCE_MS").unwrap_or(20_000))
}

/// The CUDA version, (13, 0).
pub(crate) fn cuda_version() -> (u32, u32) {
    let version = std::env::var("FAKE_DRIVER_CUDA").unwrap_or_default();
    let parsed = version.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parsed.unwrap_or((13, 0))
}

/// Compute capability, 89 for 8.9.
pub(crate) fn sm() -> i32 {
    number("FAKE_DRIVER_SM").unwrap_or(89)
}

/// Bytes of device memory.
pub(crate) fn memory_bytes() -> usize {
    number("FAKE_DRIVER_MEMORY").unwrap_or(1 << 30)
}

/// With which log every module is refused, if it is.
pub(crate) fn ptx_log() -> Option<String> {
    std::env::var("FAKE_DRIVER_PTX_LOG").ok()
}

/// The error of every launch, if any.
pub(crate) fn launch_error() -> Option<i32> {
    number("FAKE_DRIVER_LAUNCH_ERROR")
}

/// How much longer a launch takes.
pub(crate) fn launch_delay() -> Duration {
    Duration::from_millis(number("FAKE_DRIVER_LAUNCH_MS").unwrap_or(0))
}

/// What is wrong with the output of launches.
pub(crate) fn output() -> Output {
    match std::env::var("FAKE_DRIVER_OUTPUT").as_deref() {
        Ok("wrong") => Output::Wrong,
        Ok("unsteady") => Output::Unsteady,
        Ok("past") => Output::Past,
        Ok("lse") => Output::Lse,
        Ok("counter") => Output::Counter,
        Ok("past_partials") => Output::PastPartials,
        _ => Output::Right,
    }
}

/// Bytes of L2 that can be set aside.
pub(crate) fn l2_persisting_bytes() -> usize {
    number("FAKE_DRIVER_L2").unwrap_or(1 << 19)
}

/// Whether copies of rows at pitches that the driver did not choose are refused.
pub(crate) fn refuses_pitches() -> bool {
    std::env::var("FAKE_DRIVER_PITCH").as_deref() == Ok("own")
}
