//! The merge of O and LSE of several calls, in float64.

use crate::CuResult;
use crate::launch::{Tensor, check_array, check_tensor, refuse};
use half::{bf16, f16};
use kernels_gpu::params::Strides;
use kernels_gpu::step_params::MergeParams;
use kernels_gpu::steps::{Number, StepVariant};

/// A launch of a kernel that merges calls.
#[derive(Clone)]
pub(crate) struct Merge {
    pub(crate) variant: &'static StepVariant,
    pub(crate) params: MergeParams,
    pub(crate) ctas: u32,
}

impl Merge {
    fn width(&self) -> u32 {
        self.params.chunks * 8
    }

    pub(crate) fn check(&self) -> Result<(), CuResult> {
        let (params, entry) = (&self.params, self.variant.entry);
        let MergeParams { rows, heads, seqlen, states, .. } = *params;
        let of_heads = heads.value * seqlen.value;
        if states == 0 || of_heads == 0 || rows == 0 || !rows.is_multiple_of(of_heads) {
            return Err(refuse(entry, "states or rows are none"));
        }
        if self.ctas != rows.div_ceil(self.variant.row.threads() >> params.threads_log2) {
            return Err(refuse(entry, &format!("a grid of {} for {rows} rows", self.ctas)));
        }
        if params.rows_used != 0 || params.sinks != 0 {
            return Err(refuse(entry, "nothing here knows sinks, or rows of nobody"));
        }
        let counts = [rows / of_heads, heads.value, seqlen.value];
        for state in 0..states {
            let address = self.state_o(state);
            let row_bytes = self.width() * self.variant.row.input.bytes();
            let strides = &params.partial_strides;
            check_tensor(entry, &Tensor { name: "a partial O", address, strides, counts, row_bytes })?;
            check_array(entry, "a partial LSE", self.state_lse(state), rows.into())?;
        }
        let row_bytes = self.width() * self.variant.row.output.bytes();
        let o = Tensor { name: "O", address: params.o, strides: &params.o_strides, counts, row_bytes };
        check_tensor(entry, &o)?;
        if params.lse == 0 { Ok(()) } else { check_array(entry, "LSE", params.lse, rows.into()) }
    }

    fn state_o(&self, state: u32) -> u64 {
        self.params.partial_o.wrapping_add_signed(self.params.o_next * i64::from(state))
    }

    fn state_lse(&self, state: u32) -> u64 {
        self.params.partial_lse.wrapping_add_signed(self.params.lse_next * i64::from(state))
    }

    /// # Safety
    /// The launch was checked, and nobody else uses its tensors.
    pub(crate) unsafe fn compute(&self) {
        let MergeParams { rows, heads, seqlen, states, .. } = self.params;
        for at in 0..rows {
            let (head, row) = (at / seqlen.value, at % seqlen.value);
            let place = [head / heads.value, head % heads.value, row];
            // SAFETY: an element of a partial LSE.
            let lse =
                |state| f64::from(unsafe { (self.state_lse(state) as *const f32).add(at as usize).read() });
            let most = (0..states).map(lse).fold(f64::NEG_INFINITY, f64::max);
            let (mut o, mut sum) = (vec![0.0; self.width() as usize], 0.0);
            for state in (0..states).filter(|&state| lse(state) != f64::NEG_INFINITY) {
                let weight = (lse(state) - most).exp();
                sum += weight;
                let from = address(self.state_o(state), &self.params.partial_strides, place);
                for (d, o) in o.iter_mut().enumerate() {
                    // SAFETY: an element of a partial O.
                    *o += weight * unsafe { read(self.variant.row.input, from, d) };
                }
            }
            let to = address(self.params.o, &self.params.o_strides, place);
            for (d, o) in o.into_iter().enumerate() {
                // SAFETY: an element of O.
                unsafe { write(self.variant.row.output, to, d, if sum == 0.0 { 0.0 } else { o / sum }) }
            }
            let lse = if sum == 0.0 { f64::NEG_INFINITY } else { most + sum.ln() };
            if self.params.lse != 0 {
                // SAFETY: an element of LSE.
                unsafe { (self.params.lse as *mut f32).add(at as usize).write(lse as f32) }
            }
        }
    }
}

fn address(start: u64, strides: &Strides, [batch, head, row]: [u32; 3]) -> u64 {
    let offset =
        i64::from(batch) * strides.batch + i64::from(head) * strides.head + i64::from(row) * strides.row;
    start.wrapping_add_signed(offset)
}

/// # Safety
/// There is such an element at the address.
unsafe fn read(number: Number, address: u64, at: usize) -> f64 {
    // SAFETY: the caller's.
    unsafe {
        match number {
            Number::F16 => f16::from_bits((address as *const u16).add(at).read()).to_f64(),
            Number::Bf16 => bf16::from_bits((address as *const u16).add(at).read()).to_f64(),
            Number::F32 => (address as *const f32).add(at).read().into(),
        }
    }
}

/// # Safety
/// There is such an element at the address.
unsafe fn write(number: Number, address: u64, at: usize, value: f64) {
    // SAFETY: the caller's.
    unsafe {
        match number {
            Number::F16 => (address as *mut u16).add(at).write(f16::from_f64(value).to_bits()),
            Number::Bf16 => (address as *mut u16).add(at).write(bf16::from_f64(value).to_bits()),
            Number::F32 => (address as *mut f32).add(at).write(value as f32),
        }
    }
}
