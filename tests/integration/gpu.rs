//! Every kernel of the table on the GPU; ignored, by name and with the reason, where there is none.

use ferroflash::verification::{Grid, Observer, RowReport, verify_rows};
use ferroflash::{Attention, CudaOptions, Error};
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::Dtype;
use kernels_gpu::table::{VARIANTS, Variant};
use libtest_mimic::{Completion, Failed, Trial};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Runs of one problem that must be equal in every bit.
const REPEATS: usize = 250;

/// The tests of this module: one a kernel.
pub(crate) fn trials() -> Vec<Trial> {
    let trial = |variant: &'static Variant| {
        Trial::ignorable_test(format!("gpu::odd_lengths::{}", variant.entry), || kernel_is_right(variant))
    };
    VARIANTS.iter().map(trial).collect()
}

/// Why there is no GPU to test on, or `None` where there is one.
pub(crate) fn missing() -> Option<String> {
    match gpu() {
        Err(error @ (Error::NoDriver { .. } | Error::UnsupportedDevice { .. })) => Some(error.to_string()),
        // What the tests put in a driver's place runs no kernel.
        Ok(_) if find_cuda_helper::symbol(c"ferroflash_fake_driver").is_some() => {
            Some("the driver is the fake one".to_owned())
        }
        _ => None,
    }
}

fn gpu() -> &'static Result<Attention, Error> {
    static GPU: OnceLock<Result<Attention, Error>> = OnceLock::new();
    GPU.get_or_init(|| Attention::cuda(&CudaOptions::default()))
}

struct Quiet;

impl Observer for Quiet {
    fn advanced(&mut self, _: usize, _: usize) {}
    fn finished(&mut self, _: &RowReport) {}
}

fn kernel_is_right(variant: &Variant) -> Result<Completion, Failed> {
    if let Some(reason) = missing() {
        return Ok(Completion::ignored_with(reason));
    }
    let attention = gpu().as_ref().map_err(|error| error.to_string())?;
    let reports = reports(attention, variant.row.head_dim, variant.row.dtype)?;
    let report = reports.iter().find(|report| report.entry == variant.entry);
    let report = report.ok_or_else(|| format!("{} is not among the compiled kernels", variant.entry))?;
    match &report.first_failure {
        None => Ok(Completion::Completed),
        Some(failure) => {
            Err(format!("{} of {} problems are wrong; the first: {failure}", report.failed, report.cases)
                .into())
        }
    }
}

/// The reports of all kernels of a dtype and head_dim, which share their references; verified once.
fn reports(attention: &Attention, head_dim: u32, dtype: Dtype) -> Result<Arc<Vec<RowReport>>, Failed> {
    type Groups = HashMap<(u32, Dtype), Arc<Vec<RowReport>>>;
    static GROUPS: Mutex<Option<Groups>> = Mutex::new(None);
    let mut groups = GROUPS.lock().map_err(|_| "another test of this group panicked")?;
    let groups = groups.get_or_insert_default();
    if let Some(reports) = groups.get(&(head_dim, dtype)) {
        return Ok(reports.clone());
    }
    let of_group = |kernel: &&Arc<Kernel>| (kernel.row.head_dim, kernel.row.dtype) == (head_dim, dtype);
    let kernels: Vec<Arc<Kernel>> = attention.library().kernels().iter().filter(of_group).cloned().collect();
    let reports = verify_rows(&kernels, Grid::Odd, 0, REPEATS, attention, &mut Quiet);
    let reports = Arc::new(reports.map_err(|error| error.to_string())?);
    groups.insert((head_dim, dtype), reports.clone());
    Ok(reports)
}
