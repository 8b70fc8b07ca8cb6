//! Predicted times: what a kernel costs on a device that is not there. The simulator's model of time takes the clocks of a few CTAs of
//! each kernel on one multiprocessor of that device; the planner's cost model, with factors fitted to kept times of an H200, turns
//! them into the time of a problem. Nothing here is measured on the device whose time it predicts: every figure is called predicted and
//! carries the error that its kind had on times that no factor was fitted to.

mod calibration;
mod clocks;

pub use calibration::{Accuracy, Calibration, Family, Part, calibrate, is_left_out, judge};
pub use clocks::{Clocks, clocks, simulated};

use ferroflash::module::Library;
use ferroflash::plan::Plan;
use ferroflash::plan::cost::Coefficients;
use ferroflash::plan::profile::KernelCosts;
use ferroflash::plan::work::Fill;
use ferroflash::{DeviceModel, Error, Profile};
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::Row;
use ptx_sim::Gpu;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Predicts times on a device.
#[derive(Debug)]
pub struct Predictor {
    library: Arc<Library>,
    model: &'static DeviceModel,
    gpu: Gpu,
    calibration: Calibration,
    /// What kernels cost that were simulated already, by entry; before any factor.
    costs: Mutex<BTreeMap<String, Coefficients>>,
}

/// What kernels are simulated to cost before any factor, by their names in profiles.
pub type Simulated = BTreeMap<String, (Row, Coefficients)>;

/// A predicted time.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    /// Device time of one launch, or of two where splits are merged in one of their own; caches warm.
    pub us: f64,
    /// The device, and its clock in MHz.
    pub device: &'static str,
    /// See `device`.
    pub clock_mhz: f64,
    /// How far predictions of this kind were from measured times.
    pub accuracy: Accuracy,
    /// Whether factors were fitted to times of this very device.
    pub is_calibrated: bool,
    /// Whether predictions were compared with times of this device; else `accuracy` is that of the H200 before any factor was fitted to it.
    pub is_compared: bool,
}

/// What predictions were off on devices to which nothing was fitted, only their figures changed; a test compares them again.
const COMPARED: [(&str, Accuracy); 1] =
    [("h100", Accuracy { pairs: 16627, spearman: 0.9974, median: 0.065, p90: 0.163 })];

impl Predictor {
    /// For a device by its model, at its published boost clock. `None` where the model of time does not know it.
    pub fn new(library: Arc<Library>, model: &'static DeviceModel) -> Option<Predictor> {
        let gpu = Gpu::find(model.name)?;
        let calibration = Calibration::embedded().ok()?;
        Some(Predictor { library, model, gpu, calibration, costs: Mutex::default() })
    }

    /// The same at another clock, which a power limit may leave it.
    pub fn at_clock(self, clock_mhz: f64) -> Predictor {
        Predictor { gpu: self.gpu.at_clock(clock_mhz), costs: Mutex::default(), ..self }
    }

    /// What its predictions are calibrated by.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// The predicted time of a plan, which must be for this device. The first of each kernel simulates a few of its CTAs, a third of a second.
    ///
    /// # Errors
    /// Those of simulating the kernel.
    pub fn predict(&self, plan: &Plan) -> Result<Predicted, Error> {
        let row = &plan.kernel().row;
        let costs = self.calibration.costs(row, &self.simulated(plan.kernel())?);
        // Where sequences have lengths of their own, all of them full.
        let work = plan.work(&self.model.info(), Fill::FULL);
        let is_calibrated = self.calibration.device == self.model.title;
        let accuracy = self.accuracy();
        Ok(Predicted {
            us: costs[usize::from(plan.splits() > 1)].time_us(&work),
            device: self.model.title,
            clock_mhz: self.gpu.clock_mhz,
            accuracy: accuracy.unwrap_or(self.calibration.untouched),
            is_calibrated,
            is_compared: accuracy.is_some(),
        })
    }

    /// How far predictions were from times of this device, where they were compared.
    pub fn accuracy(&self) -> Option<Accuracy> {
        if self.calibration.device == self.model.title {
            return Some(self.calibration.apart);
        }
        COMPARED.iter().find(|(name, _)| *name == self.model.name).map(|(_, accuracy)| *accuracy)
    }

    /// A profile with the predicted costs of every kernel that the device runs. `done` is called for each kernel.
    ///
    /// # Errors
    /// Those of simulating them.
    pub fn profile(&self, done: &dyn Fn(usize, usize)) -> Result<Profile, Error> {
        let simulated = self.simulate(&|_| true, done)?;
        let costs = simulated.into_iter().map(|(name, (row, costs))| {
            let [whole, split] = self.calibration.costs(&row, &costs);
            let split = row.schedule.splits().then_some(split);
            (name, KernelCosts { whole: Some(whole), split, ..KernelCosts::default() })
        });
        let info = self.model.info();
        let fitted_to = format!(
            "nothing: predicted by the simulator, calibrated on {} ({})",
            self.calibration.device, self.calibration.fitted_to
        );
        Ok(Profile { device: info.name, sm_count: info.sm_count, fitted_to, kernels: costs.collect() })
    }

    /// The simulated costs, before any factor, of the kernels with these names in profiles that the device runs. `done` is called for each
    /// kernel.
    ///
    /// # Errors
    /// Those of simulating them.
    pub fn simulate(
        &self,
        wanted: &dyn Fn(&str) -> bool,
        done: &dyn Fn(usize, usize),
    ) -> Result<Simulated, Error> {
        let kernels: BTreeMap<String, &Arc<Kernel>> =
            self.library.kernels().iter().map(|kernel| (Profile::key(&kernel.entry), kernel)).collect();
        let kernels: Vec<_> = kernels.into_iter().filter(|(name, _)| wanted(name)).collect();
        let mut list = BTreeMap::new();
        for (at, (name, kernel)) in kernels.iter().enumerate() {
            done(at, kernels.len());
            match self.simulated(kernel) {
                Ok(costs) => {
                    list.insert(name.clone(), (kernel.row, costs));
                }
                // Another device's kernel, or one for scores that a plain problem has not.
                Err(Error::NoSuchKernel { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(list)
    }

    /// What a kernel is simulated to cost, before any factor.
    fn simulated(&self, kernel: &Kernel) -> Result<Coefficients, Error> {
        let known = || self.costs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(costs) = known().get(&kernel.entry) {
            return Ok(*costs);
        }
        let clocks = clocks(&self.library, kernel, self.model, &self.gpu)?;
        let costs = simulated(&kernel.row, &clocks, self.model, &self.gpu);
        known().insert(kernel.entry.clone(), costs);
        Ok(costs)
    }
}

impl fmt::Display for Predicted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Predicted { us, device, clock_mhz, accuracy, is_compared, .. } = self;
        let (half, most) = (100.0 * accuracy.median, 100.0 * accuracy.p90);
        let unknown = "; never compared with this device: as far off as on the H200 before calibration";
        let whose = if *is_compared { "" } else { unknown };
        write!(
            f,
            "{us:.1} µs predicted for {device} at {clock_mhz:.0} MHz (±{half:.0} % for half of all predictions, ±{most:.0} % for nine of ten{whose})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::device::model::MODELS;

    #[test]
    fn the_calibration_in_the_source_can_be_read_and_says_how_good_it_is() {
        let calibration = Calibration::embedded().expect("a calibration");
        assert_eq!(calibration.device, DeviceModel::H200.title);
        assert!(calibration.apart.pairs >= 200 && calibration.apart.spearman >= 0.9);
        assert!(calibration.apart.median <= 0.15 && calibration.apart.median < calibration.untouched.median);
    }

    #[test]
    fn the_model_of_time_knows_every_device_that_can_be_planned_for() {
        for model in MODELS {
            let gpu = Gpu::find(model.name).expect(model.name);
            assert_eq!((gpu.sms, gpu.l2_mib), (model.sm_count, model.l2_mib), "{}", model.name);
            assert_eq!(gpu.memory_gb_s, f64::from(model.bandwidth_gb_s), "{}", model.name);
            // The data sheet's products follow from multiprocessors, clock and rate.
            let rate = gpu.mma[0].max(gpu.wgmma);
            let tflops = f64::from(gpu.sms) * 4.0 * 2.0 * rate * gpu.clock_mhz * 1e-6;
            let stated = f64::from(model.tensor_tflops);
            assert!((tflops / stated - 1.0).abs() < 0.1, "{}: {tflops} for {stated}", model.name);
        }
    }
}
