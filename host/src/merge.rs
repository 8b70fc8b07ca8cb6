//! The merge of O and LSE of several calls over disjoint keys into those of one call over all of them.

use crate::addresses::{aligned, overlap, range};
use crate::error::{Error, StepError};
use crate::problem::{ALIGNMENT_BYTES, ElementStrides, Extent, Layout};
use kernels_gpu::divisor::Divisor;
use kernels_gpu::step_params::MergeParams;
use kernels_gpu::steps::{Number, STEP_THREADS, STEP_VARIANTS, Step, StepRow};

/// The most states that are merged at a time.
pub const STATES_MAX: u32 = 256;
/// The widest rows: a warp's threads take eight elements each.
const WIDTH_MAX: u32 = 256;
/// The most rows that the kernel's divisors take.
const ROWS_MAX: u64 = (1 << 31) - 1;

/// States to be merged: O `[batch, heads, rows, width]` and LSE `[batch, heads, rows]` of each, over keys that no other has.
///
/// With m the greatest LSE of a row, O = Σ e^(LSEₛ − m) Oₛ / Σ e^(LSEₛ − m) and LSE = m + ln Σ e^(LSEₛ − m); natural logarithms. States
/// that saw no key (LSE −∞) leave no trace, whatever their O holds, and a row that none saw a key of has O 0 and LSE −∞. Sums are in
/// float32 and in the order of the states, so that a result repeats in every bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeStates {
    states: u32,
    extent: Extent,
    input: Number,
    output: Number,
    partial: ElementStrides,
    o: ElementStrides,
    partial_len: usize,
    o_len: usize,
}

/// The tensors of a merge, on the device, by address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeTensors {
    /// O of the first state, 16-byte aligned.
    pub partial_o: u64,
    /// LSE of the first state, float32, contiguous.
    pub partial_lse: u64,
    /// O of the second state; each further one is as far behind the one before it. Unused for one state.
    pub next_o: u64,
    /// LSE of the second state, the same way.
    pub next_lse: u64,
    /// O, 16-byte aligned: apart from all states, or the first state's own with its type and strides.
    pub o: u64,
    /// LSE, float32, contiguous, apart from the states'; where it is wanted.
    pub lse: Option<u64>,
    /// A u32: rows of each head that count, as the last of `cu_seqlens_q`; rows behind are not written. Where there are such rows.
    pub rows_used: Option<u64>,
    /// The score of each head's sink, float32 `[heads]`, that counts once beside all states; where there are sinks.
    pub sinks: Option<u64>,
}

impl MergeStates {
    /// States with an O of type `input` into one of type `output`, all contiguous in `layout`.
    ///
    /// # Errors
    /// [`StepError::States`], [`Error::ZeroSized`], [`Error::TooLarge`], [`Error::UnsupportedHeadDim`], [`Error::NoSuchKernel`] where no kernel
    /// has these types: f16, bf16 and f32 become themselves, and f32 any of them.
    pub fn new(
        states: u32,
        extent: Extent,
        layout: Layout,
        (input, output): (Number, Number),
    ) -> Result<MergeStates, Error> {
        if states == 0 || states > STATES_MAX {
            return Err(StepError::States { states, limit: STATES_MAX }.into());
        }
        let named = [("batch", extent.batch), ("heads", extent.heads), ("rows", extent.rows)];
        if let Some((dimension, _)) = named.into_iter().find(|(_, size)| *size == 0) {
            return Err(Error::ZeroSized { tensor: "O", dimension });
        }
        let Extent { batch, heads, rows, width } = extent;
        let all = [heads, rows].into_iter().fold(u64::from(batch), |all, n| all.saturating_mul(n.into()));
        if all > ROWS_MAX {
            let what = "the number of rows of all heads (batch × heads × rows)";
            return Err(Error::TooLarge { what, value: all.to_string(), limit: ROWS_MAX });
        }
        if width == 0 || width > WIDTH_MAX || !width.is_multiple_of(8) {
            return Err(Error::UnsupportedHeadDim { head_dim: width, have: "multiples of 8 up to 256" });
        }
        let row = StepRow { step: Step::Merge, input, output };
        if !STEP_VARIANTS.iter().any(|variant| variant.row == row) {
            let wanted = format!("that merges {input:?} into {output:?}");
            let available = "states merge into their own type, or from F32 into any".to_owned();
            return Err(Error::NoSuchKernel { wanted, available });
        }
        let strides = layout.strides(&extent);
        let merge = MergeStates {
            states,
            extent,
            input,
            output,
            partial: strides,
            o: strides,
            partial_len: 0,
            o_len: 0,
        };
        merge.with_partial_strides(strides)?.with_strides(strides)
    }

    /// With every state's O strided.
    ///
    /// # Errors
    /// Those of [`crate::Problem::with_strides`].
    pub fn with_partial_strides(self, strides: ElementStrides) -> Result<MergeStates, Error> {
        let partial = strides.of(&self.extent);
        let partial_len = partial.span(&self.extent, self.input.bytes(), "the partial O", false)?;
        Ok(MergeStates { partial, partial_len, ..self })
    }

    /// With O strided.
    ///
    /// # Errors
    /// Those of [`crate::Problem::with_strides`].
    pub fn with_strides(self, strides: ElementStrides) -> Result<MergeStates, Error> {
        let o = strides.of(&self.extent);
        let o_len = o.span(&self.extent, self.output.bytes(), "O", true)?;
        Ok(MergeStates { o, o_len, ..self })
    }

    /// States.
    pub fn states(&self) -> u32 {
        self.states
    }

    /// Bytes that every state's O spans, gaps between strided rows included.
    pub fn partial_bytes(&self) -> usize {
        self.partial_len * self.input.bytes() as usize
    }

    /// Bytes that O spans.
    pub fn o_bytes(&self) -> usize {
        self.o_len * self.output.bytes() as usize
    }

    /// Elements of a state's LSE, and of LSE.
    pub fn lse_len(&self) -> usize {
        self.rows() as usize
    }

    /// The strides of every state's O, in elements.
    pub fn partial_strides(&self) -> ElementStrides {
        self.partial
    }

    /// The strides of O, in elements.
    pub fn strides(&self) -> ElementStrides {
        self.o
    }

    /// The kernel that does it.
    pub(crate) fn kernel(&self) -> StepRow {
        StepRow { step: Step::Merge, input: self.input, output: self.output }
    }

    /// CTAs of a launch.
    pub(crate) fn ctas(&self) -> u32 {
        let rows = self.rows();
        rows.div_ceil(STEP_THREADS >> self.threads_log2())
    }

    fn rows(&self) -> u32 {
        self.extent.batch * self.extent.heads * self.extent.rows
    }

    fn threads_log2(&self) -> u32 {
        (self.extent.width / 8).next_power_of_two().trailing_zeros()
    }

    /// The kernel's parameters with these addresses, which [`MergeStates::check`] has seen.
    pub(crate) fn params(&self, tensors: &MergeTensors) -> MergeParams {
        let MergeTensors { partial_o, partial_lse, next_o, next_lse, o, lse, rows_used, sinks } = *tensors;
        let distance =
            |from: u64, to: u64| if self.states == 1 { 0 } else { to.wrapping_sub(from).cast_signed() };
        MergeParams {
            partial_o,
            partial_lse,
            o_next: distance(partial_o, next_o),
            lse_next: distance(partial_lse, next_lse),
            o,
            lse: lse.unwrap_or(0),
            partial_strides: self.partial.bytes(self.input.bytes()),
            o_strides: self.o.bytes(self.output.bytes()),
            rows_used: rows_used.unwrap_or(0),
            sinks: sinks.unwrap_or(0),
            rows: self.rows(),
            heads: Divisor::new(self.extent.heads),
            seqlen: Divisor::new(self.extent.rows),
            states: self.states,
            chunks: self.extent.width / 8,
            threads_log2: self.threads_log2(),
        }
    }

    /// Refuses what is missing, misaligned, or overlaps what is read.
    ///
    /// # Errors
    /// [`Error::Misaligned`], [`Error::Operand`].
    pub(crate) fn check(&self, tensors: &MergeTensors) -> Result<(), Error> {
        let MergeTensors { partial_o, partial_lse, next_o, next_lse, o, lse, rows_used, sinks } = *tensors;
        let several = self.states > 1;
        for (tensor, address, is_taken, required) in [
            ("the partial O", partial_o, true, ALIGNMENT_BYTES),
            ("the partial LSE", partial_lse, true, 4),
            ("the next partial O", next_o, several, ALIGNMENT_BYTES),
            ("the next partial LSE", next_lse, several, 4),
            ("O", o, true, ALIGNMENT_BYTES),
        ] {
            if is_taken && address == 0 {
                return Err(Error::Operand { operand: tensor, reason: "its address is null" });
            }
            if is_taken {
                aligned(tensor, address, required)?;
            }
        }
        for (tensor, address) in [("LSE", lse), ("rows_used", rows_used), ("sinks", sinks)] {
            aligned(tensor, address.unwrap_or(0), 4)?;
        }
        let own_o = range(o, self.o_len, self.output.bytes());
        let own_lse = lse.map(|lse| range(lse, self.rows() as usize, 4));
        let (mut state_o, mut state_lse) = (partial_o, partial_lse);
        for state in 0..self.states {
            let in_place =
                state == 0 && o == partial_o && (self.input, self.partial) == (self.output, self.o);
            let other = range(state_o, self.partial_len, self.input.bytes());
            if !in_place && overlap(&own_o, &other) {
                return Err(Error::Operand { operand: "O", reason: "it overlaps a partial one" });
            }
            let other = range(state_lse, self.rows() as usize, 4);
            if own_lse.as_ref().is_some_and(|own| overlap(own, &other)) {
                let reason = "it is written while the partial ones are read: give other memory";
                return Err(Error::Operand { operand: "LSE", reason });
            }
            state_o = state_o.wrapping_add(next_o.wrapping_sub(partial_o));
            state_lse = state_lse.wrapping_add(next_lse.wrapping_sub(partial_lse));
        }
        Ok(())
    }
}
