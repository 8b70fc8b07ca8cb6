//! The options that ask for predicted times.

use crate::failure::Failure;
use check::predict::{Predicted, Predictor};
use ferroflash::DeviceModel;
use ferroflash::module::Library;
use serde_json::{Value, json};
use std::sync::Arc;

/// Whether times are predicted, and at which clock.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PredictArgs {
    /// Predict the time on that device from what the simulator's model of time takes for a few CTAs; never a measured time
    #[arg(long)]
    predict: bool,

    /// Clock of the multiprocessors that a prediction assumes, as a power limit may leave it [default: the published boost clock]
    #[arg(long, value_name = "MHZ", requires = "predict", value_parser = clap::value_parser!(u32).range(100..=10_000))]
    clock: Option<u32>,
}

impl PredictArgs {
    /// What predicts, if it is asked for.
    pub(crate) fn predictor(
        &self,
        library: impl FnOnce() -> Result<Arc<Library>, Failure>,
        model: Option<&'static DeviceModel>,
    ) -> Result<Option<Predictor>, Failure> {
        if !self.predict {
            return Ok(None);
        }
        let found = match model {
            Some(model) => Predictor::new(library()?, model),
            None => None,
        };
        let predictor = found.ok_or(Failure::NotPredicted)?;
        Ok(Some(match self.clock {
            Some(clock) => predictor.at_clock(clock.into()),
            None => predictor,
        }))
    }
}

/// A prediction as JSON, under a name that says what it is.
pub(crate) fn to_json(predicted: &Predicted) -> Value {
    let Predicted { us, device, clock_mhz, accuracy, is_calibrated, is_compared } = predicted;
    json!({
        "predicted_us": us,
        "device": device,
        "clock_mhz": clock_mhz,
        "error_median": accuracy.median,
        "error_p90": accuracy.p90,
        "calibrated_on_this_device": is_calibrated,
        "compared_with_this_device": is_compared,
    })
}
