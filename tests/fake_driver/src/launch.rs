//! A launch: checked against its row and against memory, then computed.

use crate::context::needs_context;
use crate::faults::{self, Output};
use crate::memory::needs_memory;
use crate::module::Function;
use crate::stream::{Stream, submit};
use crate::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_MISALIGNED_ADDRESS, CuResult, attention, call, complain};
use kernels_gpu::divisor::Divisor;
use kernels_gpu::geometry;
use kernels_gpu::params::{ForwardParams, Strides};
use kernels_gpu::table::Variant;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows start on multiples of this many bytes.
const ROW_ALIGNMENT: u64 = 16;

/// A launch of one kernel, its parameters taken in.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) variant: &'static Variant,
    pub(crate) params: ForwardParams,
    pub(crate) ctas: u32,
}

impl Launch {
    /// Batch entries, as the grid has them.
    pub(crate) fn batch(&self) -> u32 {
        self.ctas / self.params.query_blocks.value / self.params.heads_q.value
    }

    /// Computes the launch.
    ///
    /// # Safety
    /// Nobody else uses its tensors.
    pub(crate) unsafe fn run(&self) -> Result<(), CuResult> {
        static LAUNCHES: AtomicU64 = AtomicU64::new(0);
        let number = LAUNCHES.fetch_add(1, Ordering::Relaxed);
        self.check_sizes()?;
        self.check_memory()?;
        std::thread::sleep(faults::launch_delay());
        if let Some(error) = faults::launch_error() {
            return Err(error);
        }
        // SAFETY: every row of every tensor lies in memory; the rest is the caller's promise.
        unsafe {
            attention::compute(self);
            let last = attention::last_row(self);
            match faults::output() {
                Output::Wrong => last.write_bytes(0, self.variant.row.head_dim as usize),
                Output::Unsteady => last.write(last.read() ^ (number % 2) as u16),
                Output::Past => last.add(self.variant.row.head_dim as usize).write(0),
                Output::Lse if self.params.lse != 0 => (self.params.lse as *mut f32).write_unaligned(100.0),
                Output::Lse | Output::Right => {}
            }
        }
        Ok(())
    }

    fn refuse(&self, reason: &str) -> CuResult {
        complain(&format!("{}: {reason}", self.variant.entry));
        CUDA_ERROR_INVALID_VALUE
    }

    fn check_sizes(&self) -> Result<(), CuResult> {
        let (params, row) = (&self.params, &self.variant.row);
        let ForwardParams { heads_q, group, query_blocks, seqlen_q, .. } = *params;
        if query_blocks.value != geometry::query_blocks(row, seqlen_q) {
            return Err(self.refuse("query_blocks is not seqlen_q / block_m"));
        }
        if !heads_q.value.is_multiple_of(group.value) {
            return Err(self.refuse("heads_q is not a multiple of group"));
        }
        let heads = query_blocks.value * heads_q.value;
        if self.ctas == 0 || !self.ctas.is_multiple_of(heads) {
            return Err(self.refuse(&format!("a grid of {} is not a multiple of {heads}", self.ctas)));
        }
        let divides = |divisor: Divisor, n: u32| divisor.divide(n) == (n / divisor.value, n % divisor.value);
        for n in [0, self.ctas / 2, self.ctas - 1] {
            if ![heads_q, group, query_blocks].into_iter().all(|divisor| divides(divisor, n)) {
                return Err(self.refuse(&format!("a divisor does not divide {n}")));
            }
        }
        if params.causal > 1 || !(params.scale_log2 > 0.0 && params.scale_log2.is_finite()) {
            return Err(self.refuse("mask or scale is none"));
        }
        Ok(())
    }

    fn check_memory(&self) -> Result<(), CuResult> {
        let params = &self.params;
        let (batch, heads_q) = (self.batch(), params.heads_q.value);
        let heads_kv = heads_q / params.group.value;
        let queries = [batch, heads_q, params.seqlen_q];
        let keys = [batch, heads_kv, params.seqlen_k];
        for (name, address, strides, counts) in [
            ("Q", params.q, &params.q_strides, queries),
            ("K", params.k, &params.k_strides, keys),
            ("V", params.v, &params.v_strides, keys),
            ("O", params.o, &params.o_strides, queries),
        ] {
            self.check_tensor(name, address, strides, counts)?;
        }
        let lse_bytes = u64::from(batch) * u64::from(heads_q) * u64::from(params.seqlen_q) * 4;
        if params.lse == 0 { Ok(()) } else { needs_memory(params.lse, lse_bytes) }
    }

    fn check_tensor(
        &self,
        name: &str,
        address: u64,
        strides: &Strides,
        counts: [u32; 3],
    ) -> Result<(), CuResult> {
        let strides = [strides.batch, strides.head, strides.row];
        let misaligned = |value: u64| !value.is_multiple_of(ROW_ALIGNMENT);
        if misaligned(address) || strides.iter().any(|&stride| misaligned(stride as u64)) {
            complain(&format!("{}: {name} is misaligned", self.variant.entry));
            return Err(CUDA_ERROR_MISALIGNED_ADDRESS);
        }
        let (mut first, mut last) = (i128::from(address), i128::from(address));
        for (stride, count) in strides.into_iter().zip(counts) {
            let span = i128::from(stride) * i128::from(count - 1);
            if span < 0 { first += span } else { last += span }
        }
        let row_bytes = i128::from(self.variant.row.head_dim * self.variant.row.dtype.bytes());
        needs_memory(first as u64, (last + row_bytes - first) as u64)
            .inspect_err(|_| complain(&format!("{}: {name} lies outside memory", self.variant.entry)))
    }
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
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the function's module is loaded, and its one parameter is a ForwardParams in bytes.
        let (function, params) = unsafe { (&*function, (*params).cast::<ForwardParams>().read_unaligned()) };
        let launch = Launch { variant: function.variant, params, ctas: grid_x };
        let row = &function.variant.row;
        if [grid_y, grid_z, block_y, block_z] != [1; 4] || !extra.is_null() {
            return Err(launch.refuse("grid and block have one dimension"));
        }
        if block_x != geometry::threads(row) || smem_bytes != geometry::smem_bytes(row) {
            return Err(launch.refuse(&format!("{block_x} threads and {smem_bytes} bytes are not its row's")));
        }
        if smem_bytes > function.smem_limit.load(Ordering::Relaxed) {
            return Err(launch.refuse("nobody asked for so much shared memory"));
        }
        // SAFETY: the call's contract.
        unsafe { submit(launch, stream) }
    })
}
