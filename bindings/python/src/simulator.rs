//! `ferroflash.sim`: any PTX on NumPy's arrays, executed and checked on the CPU. The package turns arrays and numbers into bytes.

use ptx_sim::{Checks, Gpu, LaunchConfig, Memory, Predictor, Schedule, SimError};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(
    _native,
    Finding,
    PyException,
    "A rule that a kernel broke: the message, and the finding as JSON."
);

/// Whether it is a buffer and whether that is written, and its bytes.
type Argument = (bool, bool, Vec<u8>);

/// A module of PTX.
#[pyclass(frozen)]
pub(crate) struct SimModule(ptx_sim::Module);

#[pymethods]
impl SimModule {
    #[new]
    fn new(ptx: &str) -> PyResult<SimModule> {
        ptx_sim::Module::parse(ptx).map(SimModule).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The kernels.
    fn entries(&self) -> Vec<String> {
        self.0.entries().map(str::to_owned).collect()
    }

    /// Names and bytes of a kernel's parameters.
    fn parameters(&self, entry: &str) -> PyResult<Vec<(String, u32)>> {
        let found =
            self.0.entry(entry).ok_or_else(|| PyValueError::new_err(format!("no kernel {entry:?}")))?;
        Ok(found.params().iter().map(|param| (param.name.clone(), param.bytes)).collect())
    }

    /// Runs a grid: what each buffer holds afterwards, and the report as JSON.
    #[pyo3(signature = (entry, sizes, arguments, seed, checked))]
    fn launch(
        &self,
        py: Python<'_>,
        entry: &str,
        sizes: Sizes,
        arguments: Vec<Argument>,
        seed: Option<u64>,
        checked: bool,
    ) -> PyResult<(Vec<Vec<u8>>, String)> {
        let (mut memory, params, buffers) = self.block(entry, &arguments)?;
        let config = LaunchConfig {
            schedule: seed.map_or(Schedule::Deterministic, Schedule::Seeded),
            checks: if checked { Checks::ALL } else { Checks::NONE },
            ..self.config(&sizes)
        };
        let run = || ptx_sim::launch(&self.0, entry, &params, &mut memory, &config);
        let report = py.detach(run).map_err(raised)?;
        let read = |&(address, bytes): &(u64, usize)| {
            let mut out = vec![0; bytes];
            memory.read(address, &mut out).map(|()| out)
        };
        let contents: Result<Vec<_>, _> = buffers.iter().map(read).collect();
        Ok((contents.map_err(|error| PyValueError::new_err(error.to_string()))?, report.to_json()))
    }

    /// The predicted time on a device in microseconds, and in words.
    fn predict(
        &self,
        py: Python<'_>,
        entry: &str,
        sizes: Sizes,
        arguments: Vec<Argument>,
        device: &str,
        registers: u32,
    ) -> PyResult<(f64, String)> {
        let gpu = Gpu::find(device).ok_or_else(|| {
            let known = Gpu::ALL.map(|gpu| gpu.name).join(", ");
            PyValueError::new_err(format!("device {device:?} is not known: {known}"))
        })?;
        let (mut memory, params, _) = self.block(entry, &arguments)?;
        let config = self.config(&sizes);
        let predict =
            || Predictor::new(gpu, registers).predict(&self.0, entry, &params, &mut memory, &config);
        let predicted = py.detach(predict).map_err(raised)?;
        Ok((predicted.us, predicted.to_string()))
    }
}

/// CTAs, threads of one, dynamic shared memory in bytes.
type Sizes = ([u32; 3], [u32; 3], u32);

/// Memory with the buffers, the parameter block, and where the buffers lie.
type Block = (Memory, Vec<u8>, Vec<(u64, usize)>);

impl SimModule {
    fn config(&self, (grid, block, shared): &Sizes) -> LaunchConfig {
        LaunchConfig {
            dynamic_smem_bytes: *shared,
            limits: self.0.limits(),
            ..LaunchConfig::new(*grid, *block)
        }
    }

    fn block(&self, entry: &str, arguments: &[Argument]) -> PyResult<Block> {
        let found =
            self.0.entry(entry).ok_or_else(|| PyValueError::new_err(format!("no kernel {entry:?}")))?;
        let (mut memory, mut params) = (Memory::new(), vec![0; found.param_bytes()]);
        let mut buffers = Vec::new();
        for (param, (is_buffer, is_written, bytes)) in found.params().iter().zip(arguments) {
            let value = if *is_buffer {
                let address = memory.alloc(bytes.len());
                if *is_written {
                    memory.write(address, bytes).map_err(|error| PyValueError::new_err(error.to_string()))?;
                }
                buffers.push((address, bytes.len()));
                address.to_le_bytes().to_vec()
            } else {
                bytes.clone()
            };
            let room = params.get_mut(param.offset as usize..).and_then(|rest| rest.get_mut(..value.len()));
            match room.filter(|_| value.len() == param.bytes as usize) {
                Some(room) => room.copy_from_slice(&value),
                None => {
                    let message =
                        format!("parameter {} takes {} bytes, not {}", param.name, param.bytes, value.len());
                    return Err(PyValueError::new_err(message));
                }
            }
        }
        Ok((memory, params, buffers))
    }
}

fn raised(error: SimError) -> PyErr {
    match error {
        SimError::Finding(finding) => Finding::new_err((finding.to_string(), finding.to_json())),
        error => PyValueError::new_err(error.to_string()),
    }
}
