//! One launch of a subject, with everything around it watched.

use super::{Before, Fault};
use crate::inputs::Inputs;
use crate::subject::Subject;
use check::verification::same_bits;
use ferroflash::Error;
use ferroflash::attention::Output;

/// One launch of a subject, and what it does besides writing its output by the event.
pub(super) fn observe(
    subject: &mut dyn Subject,
    set: usize,
    inputs: &Inputs,
    (outputs, workspace): (Before, Option<u8>),
) -> Result<(Option<Fault>, Output), Error> {
    subject.write_inputs(set, inputs)?;
    subject.fill(set, outputs, workspace)?;
    subject.launch(set)?;
    let at_event = subject.output(set)?;
    subject.drain_stream()?;
    let after_stream = subject.output(set)?;
    subject.drain_device()?;
    let after_device = subject.output(set)?;
    let fault = if !same_bits(&at_event, &after_stream) {
        Some(Fault::LateWrite)
    } else if !same_bits(&after_stream, &after_device) {
        Some(Fault::OtherStream)
    } else if subject.inputs(set)? != inputs.qkv {
        Some(Fault::InputsChanged)
    } else {
        None
    };
    Ok((fault, at_event))
}
