//! A launch: checked against its kernel and against memory, then computed.

use crate::context::{needs_context, needs_window};
use crate::copy::Copy;
use crate::faults::{self, Output};
use crate::memory::needs_memory;
use crate::merge::Merge;
use crate::module::{Function, Kernel};
use crate::stream::{Stream, Work, submit};
use crate::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_MISALIGNED_ADDRESS, CuResult, attention, call, complain, tensor_map,
};
use kernels_gpu::divisor::Divisor;
use kernels_gpu::geometry;
use kernels_gpu::params::{CombineParams, DenseParams, ForwardParams, OWN_WAITS, Strides, WgmmaParams};
use kernels_gpu::row::{Dtype, Isa, Row, Schedule};
use kernels_gpu::step_params::{CopyParams, MergeParams};
use kernels_gpu::steps::{Step, StepRow, StepVariant};
use kernels_gpu::table::Variant;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows start on multiples of this many bytes.
const ROW_ALIGNMENT: u64 = 16;

/// A launch of one kernel, its parameters taken in.
#[derive(Clone)]
pub(crate) enum Launch {
    Forward(Box<Forward>),
    Combine(Combine),
    Merge(Merge),
    Copy(Box<Copy>),
}

/// A launch of a kernel that computes attention.
#[derive(Clone)]
pub(crate) struct Forward {
    pub(crate) variant: &'static Variant,
    pub(crate) params: ForwardParams,
    /// None where all keys lie in K and V.
    pub(crate) own: Option<OwnKeys>,
    ctas: u32,
}

/// The last keys and values, in tensors of their own.
#[derive(Clone, Copy)]
pub(crate) struct OwnKeys {
    pub(crate) first: u32,
    /// Where key 0 would be, and the strides.
    pub(crate) k: (u64, Strides),
    pub(crate) v: (u64, Strides),
}

impl OwnKeys {
    fn of(params: &DenseParams, row: &Row) -> Result<Option<OwnKeys>, CuResult> {
        let DenseParams { wgmma, own_k, own_v, arrived, .. } = params;
        if wgmma.forward.own_from == 0 {
            return Ok(None);
        }
        let heads_kv = wgmma.forward.heads_q / wgmma.forward.group.value;
        let first = ((wgmma.forward.own_from & !OWN_WAITS) - 1).saturating_mul(row.block_n);
        // SAFETY: a u32 in memory, which nothing writes while a launch of this driver waits for nothing.
        if *arrived != 0 && unsafe { (*arrived as *const u32).read() } < heads_kv {
            return Err(refuse("a kernel with own keys", "it would wait for heads that nobody brings here"));
        }
        Ok(Some(OwnKeys { first, k: tensor_map::place(own_k), v: tensor_map::place(own_v) }))
    }
}

/// A launch of a kernel that merges splits.
#[derive(Clone)]
pub(crate) struct Combine {
    pub(crate) variant: &'static StepVariant,
    dtype: Dtype,
    pub(crate) params: CombineParams,
    ctas: u32,
}

/// One tensor of a launch.
pub(crate) struct Tensor<'a> {
    pub(crate) name: &'static str,
    pub(crate) address: u64,
    pub(crate) strides: &'a Strides,
    /// Batch entries, heads, rows.
    pub(crate) counts: [u32; 3],
    pub(crate) row_bytes: u32,
}

impl Launch {
    /// Computes the launch.
    ///
    /// # Safety
    /// Nobody else uses its tensors.
    pub(crate) unsafe fn run(&self) -> Result<(), CuResult> {
        let number = launch_number();
        match self {
            Launch::Forward(forward) => forward.check()?,
            Launch::Combine(combine) => combine.check()?,
            Launch::Merge(merge) => merge.check()?,
            Launch::Copy(copy) => copy.check()?,
        }
        std::thread::sleep(faults::launch_delay());
        if let Some(error) = faults::launch_error() {
            return Err(error);
        }
        // SAFETY: every row of every tensor lies in memory; the rest is the caller's promise.
        unsafe {
            match self {
                Launch::Forward(forward) => {
                    attention::compute(forward);
                    forward.spoil(number);
                    if forward.is_fused() {
                        attention::merge(&forward.combine_params(), forward.variant.row.dtype);
                        forward.leave_counters();
                    }
                }
                Launch::Combine(combine) => attention::merge(&combine.params, combine.dtype),
                Launch::Merge(merge) => merge.compute(),
                Launch::Copy(copy) => copy.compute(),
            }
        }
        Ok(())
    }

    fn entry(&self) -> &'static str {
        match self {
            Launch::Forward(forward) => forward.variant.entry,
            Launch::Combine(combine) => combine.variant.entry,
            Launch::Merge(merge) => merge.variant.entry,
            Launch::Copy(copy) => copy.variant.entry,
        }
    }

    fn threads_and_smem(&self) -> (u32, u32) {
        match self {
            Launch::Forward(forward) => {
                let variant = forward.variant;
                (geometry::threads(&variant.row), geometry::smem_bytes(&variant.row))
            }
            Launch::Combine(combine) => (combine.variant.row.threads(), combine.variant.row.smem_bytes()),
            Launch::Merge(merge) => (merge.variant.row.threads(), merge.variant.row.smem_bytes()),
            Launch::Copy(copy) => (copy.variant.row.threads(), copy.variant.row.smem_bytes()),
        }
    }
}

/// Launches before this one.
fn launch_number() -> u64 {
    static LAUNCHES: AtomicU64 = AtomicU64::new(0);
    LAUNCHES.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn refuse(entry: &str, reason: &str) -> CuResult {
    complain(&format!("{entry}: {reason}"));
    CUDA_ERROR_INVALID_VALUE
}

pub(crate) fn check_divisors(entry: &str, divisors: &[Divisor], numbers: [u32; 3]) -> Result<(), CuResult> {
    for n in numbers {
        let divides = |divisor: &Divisor| divisor.divide(n) == (n / divisor.value, n % divisor.value);
        if !divisors.iter().all(divides) {
            return Err(refuse(entry, &format!("a divisor does not divide {n}")));
        }
    }
    Ok(())
}

pub(crate) fn check_tensor(entry: &str, tensor: &Tensor<'_>) -> Result<(), CuResult> {
    let Tensor { name, address, strides, counts, row_bytes } = *tensor;
    let strides = [strides.batch, strides.head, strides.row];
    let misaligned = |value: u64| !value.is_multiple_of(ROW_ALIGNMENT);
    if misaligned(address) || strides.iter().any(|&stride| misaligned(stride as u64)) {
        complain(&format!("{entry}: {name} is misaligned"));
        return Err(CUDA_ERROR_MISALIGNED_ADDRESS);
    }
    let (mut first, mut last) = (i128::from(address), i128::from(address));
    for (stride, count) in strides.into_iter().zip(counts) {
        let span = i128::from(stride) * i128::from(count - 1);
        if span < 0 { first += span } else { last += span }
    }
    needs_memory(first as u64, (last + i128::from(row_bytes) - first) as u64)
        .inspect_err(|_| complain(&format!("{entry}: {name} lies outside memory")))
}

/// Checks float32 or u32 elements that lie side by side.
pub(crate) fn check_array(entry: &str, name: &str, address: u64, elements: u64) -> Result<(), CuResult> {
    if !address.is_multiple_of(4) {
        complain(&format!("{entry}: {name} is misaligned"));
        return Err(CUDA_ERROR_MISALIGNED_ADDRESS);
    }
    needs_memory(address, elements * 4)
        .inspect_err(|_| complain(&format!("{entry}: {name} lies outside memory")))
}

impl Forward {
    /// Rows of O of all heads and batch entries.
    pub(crate) fn rows(&self) -> u64 {
        let ForwardParams { batch, heads_q, seqlen_q, .. } = self.params;
        u64::from(batch) * u64::from(heads_q) * u64::from(seqlen_q)
    }

    /// Whether the splits' O and LSE go to the workspace.
    pub(crate) fn is_partial(&self) -> bool {
        self.variant.row.schedule == Schedule::Split && self.params.split.splits.value > 1
    }

    /// Whether the splits are merged in the same launch.
    fn is_fused(&self) -> bool {
        self.is_partial() && self.params.split.counters != 0
    }

    /// What a launch of the combine kernel would have.
    fn combine_params(&self) -> CombineParams {
        let ForwardParams { o, lse, o_strides, heads_q, seqlen_q, split, .. } = self.params;
        CombineParams {
            partial_o: split.partial_o,
            partial_lse: split.partial_lse,
            o,
            lse,
            o_strides,
            rows: self.rows(),
            heads_q: Divisor::new(heads_q),
            seqlen_q: Divisor::new(seqlen_q),
            chunks: Divisor::new(self.variant.row.head_dim / 4),
            splits: split.splits.value,
            // Of a launch's grid alone, which a tile that merges itself does not have.
            rows_of_cta: 1,
            ctas_of_slice: self.rows() as u32,
            sinks: 0,
            cu_seqlens_q: 0,
            ctas_of_head: Divisor::new(1),
            sequences: 1,
        }
    }

    /// Blocks of query rows of all heads and batch entries.
    fn tiles(&self) -> u64 {
        let ForwardParams { batch, heads_q, seqlen_q, group, .. } = self.params;
        geometry::tiles(&self.variant.row, batch, heads_q, group.value, seqlen_q)
    }

    fn check(&self) -> Result<(), CuResult> {
        self.check_sizes()?;
        let (params, row) = (&self.params, &self.variant.row);
        let entry = self.variant.entry;
        let heads_kv = params.heads_q / params.group.value;
        let queries = [params.batch, params.heads_q, params.seqlen_q];
        let keys = [params.batch, heads_kv, params.seqlen_k];
        let row_bytes = row.head_dim * row.dtype.bytes();
        for (name, address, strides, counts) in [
            ("Q", params.q, &params.q_strides, queries),
            ("K", params.k, &params.k_strides, keys),
            ("V", params.v, &params.v_strides, keys),
            ("O", params.o, &params.o_strides, queries),
        ] {
            check_tensor(entry, &Tensor { name, address, strides, counts, row_bytes })?;
        }
        if params.lse != 0 {
            check_array(entry, "LSE", params.lse, self.rows())?;
        }
        match row.schedule {
            Schedule::Grid => Ok(()),
            Schedule::Persistent => self.check_counter(),
            Schedule::Split => self.check_split(),
            Schedule::Ragged => Err(refuse(entry, "nothing here computes ragged batches")),
        }
    }

    fn check_sizes(&self) -> Result<(), CuResult> {
        let (params, row, entry) = (&self.params, &self.variant.row, self.variant.entry);
        let ForwardParams { heads_q, batch, group, query_blocks, seqlen_q, tile_heads, .. } = *params;
        if group.value == 0 || !heads_q.is_multiple_of(group.value) {
            return Err(refuse(entry, "heads_q is not a multiple of group"));
        }
        if query_blocks.value != geometry::query_blocks(row, seqlen_q, group.value) {
            return Err(refuse(entry, "query_blocks is not the rows of a head / block_m"));
        }
        if tile_heads.value != heads_q / geometry::packed_heads(row, group.value) {
            return Err(refuse(entry, "tile_heads is not the number of heads that make up blocks"));
        }
        let tiles = self.tiles();
        let right = match row.schedule {
            Schedule::Grid => u64::from(self.ctas) == tiles,
            Schedule::Persistent => (1..=tiles).contains(&self.ctas.into()),
            Schedule::Split | Schedule::Ragged => {
                u64::from(self.ctas) == tiles * u64::from(params.split.splits.value)
            }
        };
        if !right {
            return Err(refuse(entry, &format!("a grid of {} for {tiles} tiles", self.ctas)));
        }
        let together = params.heads_together;
        if row.schedule != Schedule::Split && !(batch * tile_heads.value).is_multiple_of(together.value) {
            return Err(refuse(entry, "heads_together does not divide the heads"));
        }
        if params.ascending_blocks > query_blocks.value {
            return Err(refuse(entry, "more ascending blocks than there are"));
        }
        let divisors = [tile_heads, group, query_blocks, together, params.split.splits];
        check_divisors(entry, &divisors, [0, self.ctas / 2, self.ctas - 1])?;
        if params.causal > 1 || !(params.scale_log2 > 0.0 && params.scale_log2.is_finite()) {
            return Err(refuse(entry, "mask or scale is none"));
        }
        Ok(())
    }

    fn check_counter(&self) -> Result<(), CuResult> {
        let (entry, persistent) = (self.variant.entry, self.params.persistent);
        if u64::from(persistent.tiles) != self.tiles() {
            return Err(refuse(entry, "tiles are not those of the sizes"));
        }
        check_counters(entry, persistent.counter, 1)
    }

    fn check_split(&self) -> Result<(), CuResult> {
        let (entry, split) = (self.variant.entry, &self.params.split);
        let key_blocks = geometry::key_blocks(&self.variant.row, self.params.seqlen_k);
        let splits = split.splits.value;
        if split.split_blocks == 0
            || splits > geometry::SPLITS_MAX
            || key_blocks.div_ceil(split.blocks_of(key_blocks)) > splits
        {
            return Err(refuse(entry, "the splits do not cover the keys"));
        }
        if split.seqlens_k != 0 {
            check_array(entry, "the lengths", split.seqlens_k, self.params.batch.into())?;
        }
        if splits > 1 {
            let partial_rows = self.rows() * u64::from(splits);
            let head_dim = u64::from(self.variant.row.head_dim);
            check_partials(entry, split.partial_o, split.partial_lse, partial_rows, head_dim)?;
        }
        match split.counters {
            0 => Ok(()),
            _ if splits == 1 => Err(refuse(entry, "it merges no splits, and has counters")),
            counters if counters + self.tiles() * 4 > split.partial_o => {
                Err(refuse(entry, "the counters reach into the partial O"))
            }
            counters => check_counters(entry, counters, self.tiles()),
        }
    }

    /// Leaves the last counter of a launch that merges splits at 1, where that is asked for.
    ///
    /// # Safety
    /// As [`Launch::run`].
    unsafe fn leave_counters(&self) {
        if let Output::Counter = faults::output() {
            let last = self.params.split.counters + (self.tiles() - 1) * 4;
            // SAFETY: a counter in memory.
            unsafe { (last as *mut u32).write(1) }
        }
    }

    /// Makes the output wrong, where that is asked for.
    ///
    /// # Safety
    /// As [`Launch::run`].
    unsafe fn spoil(&self, number: u64) {
        let head_dim = self.variant.row.head_dim as usize;
        // SAFETY: the caller's; the fault past O is on purpose.
        unsafe {
            let last = attention::last_row(self);
            match faults::output() {
                Output::Wrong if self.is_partial() => {
                    let last = self.params.split.partial_o + (self.rows() - 1) * head_dim as u64 * 4;
                    (last as *mut f32).write_bytes(0x40, head_dim);
                }
                Output::Wrong => last.write_bytes(0, head_dim),
                Output::Unsteady => last.write(last.read() ^ (number % 2) as u16),
                Output::Past => last.add(head_dim).write(0),
                Output::Lse if self.params.lse != 0 => (self.params.lse as *mut f32).write_unaligned(100.0),
                Output::Counter if self.variant.row.schedule == Schedule::Persistent => {
                    (self.params.persistent.counter as *mut u32).write(1);
                }
                Output::PastPartials if self.is_partial() => {
                    let rows = self.rows() * u64::from(self.params.split.splits.value);
                    // The next multiple of 256 bytes is where the workspace ends.
                    let end = (self.params.split.partial_lse + rows * 4).next_multiple_of(256);
                    (end as *mut u32).write(0);
                }
                Output::Lse | Output::Counter | Output::PastPartials | Output::Right => {}
            }
        }
    }
}

/// Checks counters, which are 0 before each launch.
fn check_counters(entry: &str, address: u64, count: u64) -> Result<(), CuResult> {
    check_array(entry, "the counters", address, count)?;
    for at in (0..count).map(|index| address + index * 4) {
        // SAFETY: a u32 in memory.
        match unsafe { (at as *const u32).read() } {
            0 => {}
            value => return Err(refuse(entry, &format!("a counter is {value} before the launch"))),
        }
    }
    Ok(())
}

fn check_partials(entry: &str, o: u64, lse: u64, rows: u64, head_dim: u64) -> Result<(), CuResult> {
    if !o.is_multiple_of(ROW_ALIGNMENT) {
        complain(&format!("{entry}: the partial O is misaligned"));
        return Err(CUDA_ERROR_MISALIGNED_ADDRESS);
    }
    check_array(entry, "the partial O", o, rows * head_dim)?;
    check_array(entry, "the partial LSE", lse, rows)
}

impl Combine {
    fn head_dim(&self) -> u32 {
        self.params.chunks.value * 4
    }

    fn check(&self) -> Result<(), CuResult> {
        let (params, entry) = (&self.params, self.variant.entry);
        let CombineParams { rows, heads_q, seqlen_q, chunks, splits, rows_of_cta, ctas_of_slice, .. } =
            *params;
        if !(2..=geometry::SPLITS_MAX).contains(&splits) {
            return Err(refuse(entry, &format!("{splits} splits")));
        }
        let heads = u64::from(heads_q.value) * u64::from(seqlen_q.value);
        let of_rows = (1..=geometry::COMBINE_CTA_ROWS).contains(&rows_of_cta)
            && u64::from(ctas_of_slice) == rows.div_ceil(rows_of_cta.into());
        if !of_rows || ctas_of_slice != self.ctas || heads == 0 || !rows.is_multiple_of(heads) {
            return Err(refuse(entry, &format!("a grid of {} for {rows} rows", self.ctas)));
        }
        check_divisors(entry, &[heads_q, seqlen_q, chunks], [0, rows as u32 / 2, rows as u32 - 1])?;
        let partial_rows = rows * u64::from(splits);
        check_partials(entry, params.partial_o, params.partial_lse, partial_rows, self.head_dim().into())?;
        let counts = [(rows / heads) as u32, heads_q.value, seqlen_q.value];
        let row_bytes = self.head_dim() * self.dtype.bytes();
        let o = Tensor { name: "O", address: params.o, strides: &params.o_strides, counts, row_bytes };
        check_tensor(entry, &o)?;
        if params.lse == 0 { Ok(()) } else { check_array(entry, "LSE", params.lse, rows) }
    }
}

/// The type of O of a kernel that merges splits; `None` of other steps.
fn merged_into(variant: &StepVariant) -> Option<Dtype> {
    [Dtype::F16, Dtype::Bf16].into_iter().find(|&dtype| variant.row == StepRow::combine(dtype))
}

/// Grid and block of a launch, and its shared memory.
struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    smem_bytes: u32,
}

/// # Safety
/// The function's module is loaded, and `params` points to its one parameter; the stream lives, or is null.
unsafe fn launch(
    function: *const Function,
    shape: &Shape,
    stream: *const Stream,
    params: *const *const c_void,
) -> Result<(), CuResult> {
    needs_context()?;
    let ctas = shape.grid[0];
    // SAFETY: the caller's.
    let (function, launch) = unsafe {
        let (function, params) = (&*function, *params);
        let launch = match function.kernel {
            Kernel::Forward(variant) => {
                let mut own = None;
                let params = match variant.row.isa {
                    Isa::Mma => params.cast::<ForwardParams>().read_unaligned(),
                    Isa::Wgmma => {
                        let mut wgmma = params.cast::<WgmmaParams>().read_unaligned();
                        if variant.row.schedule != Schedule::Ragged {
                            own = OwnKeys::of(&params.cast::<DenseParams>().read_unaligned(), &variant.row)?;
                        }
                        if own.is_some() {
                            // The parameters beside the maps say where own values lie, which the maps of these do, too.
                            let (v, v_strides) = tensor_map::place(&wgmma.v);
                            wgmma.forward = ForwardParams { v, v_strides, ..wgmma.forward };
                        }
                        if !tensor_map::are_right(&wgmma, &variant.row) {
                            return Err(refuse(variant.entry, "a tensor map is not that of its tensor"));
                        }
                        wgmma.forward
                    }
                };
                Launch::Forward(Box::new(Forward { variant, params, own, ctas }))
            }
            Kernel::Step(variant) if variant.row.step == Step::Merge => {
                let params = params.cast::<MergeParams>().read_unaligned();
                Launch::Merge(Merge { variant, params, ctas })
            }
            Kernel::Step(variant) if variant.row == StepRow::COPY => {
                let params = params.cast::<CopyParams>().read_unaligned();
                Launch::Copy(Box::new(Copy { variant, params, ctas }))
            }
            Kernel::Step(variant) => {
                let Some(dtype) = merged_into(variant) else {
                    return Err(refuse(
                        variant.entry,
                        "this driver computes attention, merges and copies alone",
                    ));
                };
                let params = params.cast::<CombineParams>().read_unaligned();
                Launch::Combine(Combine { variant, dtype, params, ctas })
            }
        };
        (function, launch)
    };
    let entry = launch.entry();
    let [[_, grid_y, grid_z], [threads, block_y, block_z]] = [shape.grid, shape.block];
    if [grid_y, grid_z, block_y, block_z] != [1; 4] || ctas == 0 {
        return Err(refuse(entry, "grid and block have one dimension"));
    }
    if (threads, shape.smem_bytes) != launch.threads_and_smem() {
        return Err(refuse(
            entry,
            &format!("{threads} threads and {} bytes are not its own", shape.smem_bytes),
        ));
    }
    if shape.smem_bytes > function.smem_limit.load(Ordering::Relaxed) {
        return Err(refuse(entry, "nobody asked for so much shared memory"));
    }
    // SAFETY: the caller's.
    unsafe { submit(Work::Launch(launch), stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: *const Function,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    smem_bytes: u32,
    stream: *const Stream,
    params: *const *const c_void,
    extra: *const c_void,
) -> CuResult {
    let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], smem_bytes };
    call(|| {
        if !extra.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the call's contract.
        unsafe { launch(function, &shape, stream, params) }
    })
}

/// CUlaunchConfig of cuda.h.
#[repr(C)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    smem_bytes: u32,
    stream: *const Stream,
    attributes: *const LaunchAttribute,
    attribute_count: u32,
}

/// CUlaunchAttribute of cuda.h with an access-policy window.
#[repr(C)]
struct LaunchAttribute {
    id: u32,
    padding: u32,
    address: u64,
    bytes: usize,
    hit_ratio: f32,
    hit_property: u32,
    miss_property: u32,
    rest: [u32; 9],
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: *const Function,
    params: *const *const c_void,
    extra: *const c_void,
) -> CuResult {
    /// CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, and CU_ACCESS_PROPERTY_PERSISTING.
    const WINDOW: u32 = 1;
    const PERSISTING: u32 = 2;
    /// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, a yes or no. Here each kernel is over before the next one starts.
    const OVERLAP: u32 = 6;
    call(|| {
        // SAFETY: by the call's contract, the configuration lives, and has as many attributes as it says.
        unsafe {
            let config = &*config;
            for i in 0..config.attribute_count as usize {
                let attribute = &*config.attributes.add(i);
                if attribute.id == OVERLAP {
                    if !(*function).waits {
                        complain("a kernel that does not wait starts under the one before it");
                        return Err(CUDA_ERROR_INVALID_VALUE);
                    }
                    continue;
                }
                let ratio = attribute.hit_ratio > 0.0 && attribute.hit_ratio <= 1.0;
                if attribute.id != WINDOW || attribute.hit_property != PERSISTING || !ratio {
                    complain("an attribute is no window of persisting accesses");
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                needs_window(attribute.bytes)?;
            }
            if !extra.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let shape = Shape { grid: config.grid, block: config.block, smem_bytes: config.smem_bytes };
            launch(function, &shape, config.stream, params)
        }
    })
}
