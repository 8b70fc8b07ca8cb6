//! The thing that is examined: something that claims to compute attention, with its tensors and the streams it works on.

use crate::exam::{Before, Question};
use crate::inputs::Inputs;
use ferroflash::Error;
use ferroflash::attention::Output;

/// A candidate on its device.
///
/// The examiner writes inputs, fills the outputs, launches, and reads the outputs as they are when the event behind the
/// launch is reached. What a candidate does outside of that is a fault with a name.
pub trait Subject {
    /// Allocates the tensors of a question's problem, at least two sets of them, which keep their addresses until the next call; what lies
    /// around them is drawn from `secret`.
    ///
    /// # Errors
    /// What allocating reports.
    fn pose(&mut self, question: &Question, secret: u64) -> Result<(), Error>;

    /// Loads the candidate anew, on a device that has seen no launch of it; what was posed is gone.
    ///
    /// # Errors
    /// What opening reports.
    fn restart(&mut self) -> Result<(), Error>;

    /// Copies Q, K, V and lengths to one set's.
    ///
    /// # Errors
    /// What the device reports.
    fn write_inputs(&mut self, set: usize, inputs: &Inputs) -> Result<(), Error>;

    /// Fills a set's O and LSE, and its workspace but for the counters with a byte, where there is one.
    ///
    /// # Errors
    /// What the device reports.
    fn fill(&mut self, set: usize, outputs: Before, workspace: Option<u8>) -> Result<(), Error>;

    /// Launches on one set and records the event behind the launch; then waits for the event and for nothing else.
    ///
    /// # Errors
    /// What launching reports; where the launch stops because a rule is broken, the rule.
    fn launch(&mut self, set: usize) -> Result<(), Error>;

    /// Waits for everything that was put on the timed stream, also behind the event.
    ///
    /// # Errors
    /// What the device reports.
    fn drain_stream(&mut self) -> Result<(), Error>;

    /// Waits for everything on the device.
    ///
    /// # Errors
    /// What the device reports.
    fn drain_device(&mut self) -> Result<(), Error>;

    /// Q, K and V of a set as they are now.
    ///
    /// # Errors
    /// [`Error::GuardBand`] where something around them was written, or lengths and operands changed; what the device reports.
    fn inputs(&mut self, set: usize) -> Result<[Vec<u16>; 3], Error>;

    /// O and LSE of a set as they are now.
    ///
    /// # Errors
    /// [`Error::GuardBand`] where something beside them was written, [`Error::CounterNotZero`]; what the device reports.
    fn output(&mut self, set: usize) -> Result<Output, Error>;
}

/// Sets of tensors that a subject has.
pub const SETS: usize = 2;
