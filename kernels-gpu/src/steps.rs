//! The table of kernels beside those that compute attention: what merges partial results, what appends to caches, the gradients of sinks and
//! of biases, the statistics of queries, the sums of CTAs that share a block of keys, and copies.
//! One line a kernel.

use crate::backward::BIAS_TILE;
use crate::geometry::{COMBINE_SMEM_BYTES, COMBINE_THREADS};
use crate::row::Dtype;

/// Calls `$callback!` back with every step kernel: its entry, what it does, and the types of what it reads and of what it writes.
#[macro_export]
macro_rules! for_each_step_kernel {
    ($callback:ident) => {
        $callback! {
            combine_f16   => { Combine, F32,  F16 };
            combine_bf16  => { Combine, F32,  Bf16 };
            merge_f16     => { Merge,   F16,  F16 };
            merge_bf16    => { Merge,   Bf16, Bf16 };
            merge_f32_f16 => { Merge,   F32,  F16 };
            merge_f32_bf16=> { Merge,   F32,  Bf16 };
            merge_f32     => { Merge,   F32,  F32 };
            append_f16    => { Append,  F16,  F16 };
            append_bf16   => { Append,  Bf16, Bf16 };
            sink_gradient => { SinkGradient, F32, F32 };
            bias_gradient_f16 => { BiasGradient, F16, F16 };
            bias_gradient_bf16 => { BiasGradient, Bf16, Bf16 };
            statistics_f16 => { Statistics, F16, F32 };
            statistics_bf16=> { Statistics, Bf16, F32 };
            sum_gradients_f16 => { SumGradients, F32, F16 };
            sum_gradients_bf16 => { SumGradients, F32, Bf16 };
            copy_runs     => { Copy,    F32,  F32 };
        }
    };
}

/// Threads of a CTA of a merge, of an append kernel, and of those of statistics, of a bias' gradient and of sums.
pub const STEP_THREADS: u32 = 128;
/// Threads of a CTA of a copy kernel: enough for a multiprocessor's share of the memory's speed.
pub const COPY_THREADS: u32 = 512;
/// Threads of a CTA of the kernel of sinks' gradients, which sums over all rows of a head: all that a CTA can have.
pub const SINK_THREADS: u32 = 1024;

/// What a step kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "manifest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Step {
    /// Merges the splits of [`crate::row::Schedule::Split`] and [`crate::row::Schedule::Ragged`].
    Combine,
    /// Merges O and LSE of calls over disjoint keys.
    Merge,
    /// Writes new keys and values into a cache, rotated.
    Append,
    /// Sums the gradient of each head's sink over its rows.
    SinkGradient,
    /// Computes the gradient of a bias, summed over what it is the same for.
    BiasGradient,
    /// Computes the statistics of queries, before a backward pass that keeps dS.
    Statistics,
    /// Adds up the sums of CTAs that share a block of keys, to dK and dV.
    SumGradients,
    /// Copies within the device, whatever the bytes are.
    Copy,
}

/// The type of elements that a step kernel reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "manifest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Number {
    /// float16.
    F16,
    /// bfloat16.
    Bf16,
    /// float32.
    F32,
}

impl Number {
    /// The type of a tensor's elements.
    pub const fn of(dtype: Dtype) -> Number {
        match dtype {
            Dtype::F16 => Number::F16,
            Dtype::Bf16 => Number::Bf16,
        }
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            Number::F16 | Number::Bf16 => 2,
            Number::F32 => 4,
        }
    }
}

impl From<Dtype> for Number {
    fn from(dtype: Dtype) -> Number {
        Number::of(dtype)
    }
}

/// What tells one step kernel from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "manifest", derive(serde::Serialize, serde::Deserialize))]
pub struct StepRow {
    /// What it does.
    pub step: Step,
    /// What it reads.
    pub input: Number,
    /// What it writes.
    pub output: Number,
}

impl StepRow {
    /// The kernel that merges splits into an O of this type.
    pub const fn combine(dtype: Dtype) -> StepRow {
        StepRow { step: Step::Combine, input: Number::F32, output: Number::of(dtype) }
    }

    /// The kernel of sinks' gradients.
    pub const SINK_GRADIENT: StepRow =
        StepRow { step: Step::SinkGradient, input: Number::F32, output: Number::F32 };

    /// The kernel that copies.
    pub const COPY: StepRow = StepRow { step: Step::Copy, input: Number::F32, output: Number::F32 };

    /// The kernel of a bias' gradient.
    pub const fn bias_gradient(dtype: Dtype) -> StepRow {
        StepRow { step: Step::BiasGradient, input: Number::of(dtype), output: Number::of(dtype) }
    }

    /// The kernel of the statistics of queries of a dtype.
    pub const fn statistics(dtype: Dtype) -> StepRow {
        StepRow { step: Step::Statistics, input: Number::of(dtype), output: Number::F32 }
    }

    /// The kernel that adds up what CTAs that share a block of keys have of its gradients.
    pub const fn sum_gradients(dtype: Dtype) -> StepRow {
        StepRow { step: Step::SumGradients, input: Number::F32, output: Number::of(dtype) }
    }

    /// Threads of a CTA.
    pub const fn threads(&self) -> u32 {
        match self.step {
            Step::Combine => COMBINE_THREADS,
            Step::Merge | Step::Append | Step::Statistics | Step::BiasGradient | Step::SumGradients => {
                STEP_THREADS
            }
            Step::Copy => COPY_THREADS,
            Step::SinkGradient => SINK_THREADS,
        }
    }

    /// Dynamic shared memory of a CTA, in bytes.
    pub const fn smem_bytes(&self) -> u32 {
        match self.step {
            Step::Combine => COMBINE_SMEM_BYTES,
            Step::Merge | Step::Append | Step::Statistics | Step::SumGradients | Step::Copy => 0,
            // Blocks of Q, K, dO and V.
            Step::BiasGradient => 4 * BIAS_TILE * BIAS_TILE * 2,
            // A sum of each warp.
            Step::SinkGradient => SINK_THREADS / 32 * 4,
        }
    }
}

/// A step kernel: its entry's name and its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepVariant {
    /// The entry's name in the PTX.
    pub entry: &'static str,
    /// The row.
    pub row: StepRow,
}

macro_rules! step_variants {
    ($($entry:ident => { $step:ident, $input:ident, $output:ident };)*) => {
        /// Every step kernel.
        pub const STEP_VARIANTS: &[StepVariant] = &[$(StepVariant {
            entry: stringify!($entry),
            row: StepRow { step: Step::$step, input: Number::$input, output: Number::$output },
        }),*];
    };
}
for_each_step_kernel!(step_variants);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_stands_twice() {
        let mut rows: Vec<StepRow> = STEP_VARIANTS.iter().map(|variant| variant.row).collect();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), STEP_VARIANTS.len());
    }
}
