//! The clocks of a kernel's CTAs on one multiprocessor, by the simulator's model of time.

use crate::random_input::{self, InputKind};
use ferroflash::device::sim::{SimDevice, SimOptions};
use ferroflash::module::Library;
use ferroflash::plan::Plan;
use ferroflash::plan::cost::Coefficients;
use ferroflash::{
    Attention, DeviceModel, Error, HostTensors, PlanOptions, Problem, RowSelection, Sizes, Splits,
};
use kernels_gpu::geometry;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::Row;
use ptx_sim::{Checks, Gpu, Timer, Unit};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Blocks of keys of the two problems that tell a CTA's start from its blocks.
const BLOCKS: [u32; 2] = [2, 6];

/// What CTAs of a kernel take, in clocks: once alone on a multiprocessor, once their share of one that holds as many as fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clocks {
    /// CTAs that a multiprocessor holds.
    pub resident: u32,
    /// A CTA's start and end.
    pub start: f64,
    /// See `start`, busy.
    pub start_busy: f64,
    /// A block of keys.
    pub block: f64,
    /// See `block`, busy.
    pub block_busy: f64,
    /// What a causal mask adds to a CTA, alone and busy.
    pub masked: f64,
    /// See `masked`, busy.
    pub masked_busy: f64,
    /// The share of a busy multiprocessor's time that its tensor cores are.
    pub tensor: f64,
}

/// Takes the clocks of a kernel.
///
/// # Errors
/// Those of simulating it; [`Error`] of a plan where the device does not run it.
pub fn clocks(
    library: &Arc<Library>,
    kernel: &Kernel,
    model: &'static DeviceModel,
    gpu: &Gpu,
) -> Result<Clocks, Error> {
    let device = Arc::new(SimDevice::new(SimOptions::default().with_model(model).with_checks(Checks::NONE)));
    let attention = Attention::new(device.clone(), library.clone())?;
    let plan = |ctas, blocks, causal| plan(&attention, kernel, (ctas, blocks), causal);
    let resident = plan(1, 1, false)?.resident_ctas();
    let timed = |ctas: u32, blocks: u32, causal: bool| -> Result<(f64, f64), Error> {
        let plan = plan(ctas, blocks, causal)?;
        let timer = Timer::new(gpu, resident);
        device.take_time(Some(timer.clone()));
        let qkv = random_input::qkv(plan.problem(), InputKind::Random, 0);
        let run = attention.forward_with(&plan, &HostTensors::from(&qkv), true);
        device.take_time(None);
        run?;
        Ok((timer.clocks() as f64, timer.busy(Unit::Tensor)))
    };
    let [few, many] = BLOCKS;
    let line = |ctas: u32| -> Result<(f64, f64, f64, f64), Error> {
        let share = f64::from(ctas);
        let (short, long) = (timed(ctas, few, false)?, timed(ctas, many, false)?);
        let block = (long.0 - short.0) / f64::from(many - few) / share;
        let masked = (timed(ctas, few, true)?.0 - short.0) / share;
        Ok((short.0 / share - block * f64::from(few), block, masked, long.1))
    };
    let (start, block, masked, tensor) = line(1)?;
    let (start_busy, block_busy, masked_busy, tensor) =
        if resident == 1 { (start, block, masked, tensor) } else { line(resident)? };
    Ok(Clocks { resident, start, start_busy, block, block_busy, masked, masked_busy, tensor })
}

/// The cost model's coefficients for a kernel that takes `clocks`, before factors: from the device's figures, nothing fitted.
pub fn simulated(row: &Row, clocks: &Clocks, model: &DeviceModel, gpu: &Gpu) -> Coefficients {
    let us = |clocks: f64| gpu.us(clocks).max(0.01);
    let cut = 1.0 + f64::from(geometry::rows_of_block(row, 1)) / f64::from(row.block_n);
    let l2_mb_per_us = f64::from(gpu.sms) * gpu.l2_bytes * gpu.clock_mhz * 1e-6;
    Coefficients {
        start: us(clocks.start),
        start_busy: us(clocks.start_busy),
        block: us(clocks.block),
        block_busy: us(clocks.block_busy),
        masked: us(clocks.masked_busy / cut),
        memory: 1.0 / (0.9e-3 * f64::from(model.bandwidth_gb_s)),
        copy: 1.0 / l2_mb_per_us,
        merge_bytes: 2.0 / l2_mb_per_us,
        ..Coefficients::START
    }
}

/// A plan with one tile for each of `ctas` CTAs and `blocks` whole blocks of keys.
fn plan(
    attention: &Attention,
    kernel: &Kernel,
    (ctas, blocks): (u32, u32),
    causal: bool,
) -> Result<Plan, Error> {
    let row = &kernel.row;
    let rows = geometry::rows_of_block(row, 1).max(1);
    // A causal mask cuts the last blocks as it does in the middle of a sequence.
    let sizes = Sizes {
        batch: 1,
        heads_q: ctas,
        heads_kv: ctas,
        seqlen_q: rows,
        seqlen_k: blocks * row.block_n,
        head_dim: row.head_dim,
    };
    let problem = Problem::new(sizes, row.dtype)?.with_causal(causal);
    let splits = if row.schedule.splits() { Splits::Count(1) } else { Splits::Auto };
    let options =
        PlanOptions { rows: RowSelection::Named(kernel.entry.clone()), splits, ..PlanOptions::new() };
    attention.planner().plan(&problem, &options)
}
