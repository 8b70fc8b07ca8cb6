//! Attention as plain same-dtype implementations compute it: what the errors of kernels are measured against.

use super::o_indices;
use crate::reference::{Ragged, keys, row_start, visible_keys};
use ferroflash::attention::HostTensors;
use ferroflash::problem::{Problem, TensorRole};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kernels_gpu::row::{Accumulation, Dtype};
use rayon::prelude::*;
use std::collections::BTreeSet;

/// Products summed by one mma before the accumulator is rounded.
pub(super) const MMA_DEPTH: usize = 16;
/// Keys whose products with V are summed in the accumulation type; these sums are added up in float32. No block of keys is wider.
const BLOCK_N: usize = 128;

/// Where [`plain()`] rounds, and in which order it sums. What is plain is all of these: their roundings have little in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Whether it rounds whatever an operation gives, the scaled S too and P behind the division by row_sum; else what kernels must
    /// round: S as it accumulates, and P before the division, which O gets.
    rounds_each: bool,
    /// Which 16 channels come first, counted in sixteens, and how far behind each the next ones are, from the end to the beginning.
    first: usize,
    stride: usize,
}

/// Places in which sums of float16 begin, at most.
const STARTS: usize = 4;

impl Plain {
    /// Those that bounds for an accumulation are made of. Sums in float32 are the same to the dtype's rounding in any order.
    pub fn all(head_dim: usize, accumulation: Accumulation) -> Vec<Plain> {
        let fused = |first, stride| Plain { rounds_each: false, first, stride };
        let mut all = vec![Plain { rounds_each: true, ..fused(0, 1) }, fused(0, 1)];
        if accumulation == Accumulation::F16 {
            let steps = head_dim.div_ceil(MMA_DEPTH);
            let starts = steps.min(STARTS);
            // Forwards, backwards, and two ways between, where these reach every sixteen.
            for stride in [1, steps - 1, 3, steps.saturating_sub(3)] {
                let reaches_all = |way: &Plain| way.steps(steps).collect::<BTreeSet<_>>().len() == steps;
                let first = |start: usize| if stride == 1 { start } else { steps - 1 - start };
                let ways = (0..starts).map(|start| fused(first(start * steps / starts), stride));
                let others: Vec<Plain> = ways.filter(|way| reaches_all(way) && !all.contains(way)).collect();
                all.extend(others);
            }
        }
        all
    }

    /// Whether the scaled S is rounded, and what P and O are divided by.
    pub(crate) fn parts(self, row_sum: f32) -> (bool, [f32; 2]) {
        (self.rounds_each, if self.rounds_each { [row_sum, 1.0] } else { [1.0, row_sum] })
    }

    fn steps(self, count: usize) -> impl Iterator<Item = usize> {
        (0..count).map(move |at| (self.first + at * self.stride) % count)
    }
}

/// Attention as a chain of same-dtype operations computes it: what the kernels' errors are measured against.
///
/// S accumulates in float32 (or in float16, rounded after every 16 products) and is scaled; softmax is float32; P is rounded
/// to the dtype; P·V accumulates in float32 (or in float16 as S does, within 128 keys); O is rounded to the dtype.
///
/// # Panics
/// If a slice is shorter than the problem needs.
pub fn plain(
    problem: &Problem,
    tensors: &HostTensors<'_>,
    accumulation: Accumulation,
    how: Plain,
) -> Vec<f32> {
    if problem.is_ragged() {
        return Ragged::new(problem, tensors).plain(how);
    }
    let HostTensors { q, k, v, seqlens_k, .. } = *tensors;
    let sizes = problem.sizes();
    let [heads_q, seqlen_q, head_dim] = [sizes.heads_q, sizes.seqlen_q, sizes.head_dim].map(|n| n as usize);
    let heads: Vec<Vec<f32>> = (0..sizes.batch as usize * heads_q)
        .into_par_iter()
        .map(|index| {
            let (batch, head) = (index / heads_q, index % heads_q);
            let load = |data: &[u16], role, head, rows| -> Vec<f32> {
                let starts = (0..rows).map(|row| row_start(problem, role, [batch, head, row]));
                starts.flat_map(|at| widen_slice(problem.dtype(), &data[at..at + head_dim])).collect()
            };
            let head_kv = head / problem.group() as usize;
            let q = load(q, TensorRole::Q, head, seqlen_q);
            let seqlen_k = keys(problem, seqlens_k, batch);
            let k = load(k, TensorRole::K, head_kv, seqlen_k);
            let v = load(v, TensorRole::V, head_kv, seqlen_k);
            plain_head(problem, [&q, &k, &v], accumulation, how)
        })
        .collect();
    let mut o = vec![0.0; problem.o_len()];
    for (at, value) in o_indices(problem).zip(heads.into_iter().flatten()) {
        o[at] = value;
    }
    o
}

/// One head, all of whose tensors are contiguous.
fn plain_head(problem: &Problem, [q, k, v]: [&[f32]; 3], accumulation: Accumulation, how: Plain) -> Vec<f32> {
    let dtype = problem.dtype();
    let head_dim = problem.sizes().head_dim as usize;
    let seqlen_k = k.len() / head_dim;
    let mut k_transposed = vec![0.0; k.len()];
    for (key, row) in k.chunks_exact(head_dim).enumerate() {
        for (d, &value) in row.iter().enumerate() {
            k_transposed[d * seqlen_k + key] = value;
        }
    }
    let mut o = vec![0.0; q.len()];
    o.par_chunks_mut(head_dim).zip(q.par_chunks(head_dim)).enumerate().for_each(|(row, (o, q))| {
        let visible = visible_keys(problem, seqlen_k, row);
        let mut s = vec![0.0; visible];
        for step in how.steps(head_dim.div_ceil(MMA_DEPTH)) {
            for d in step * MMA_DEPTH..head_dim.min((step + 1) * MMA_DEPTH) {
                add_scaled(&mut s, q[d], &k_transposed[d * seqlen_k..][..visible]);
            }
            if accumulation == Accumulation::F16 {
                round_slice(Dtype::F16, &mut s);
            }
        }
        s.iter_mut().for_each(|s| *s *= problem.scale());
        if how.rounds_each {
            round_slice(dtype, &mut s);
        }
        let row_sum = exponentials(&mut s);
        let (_, [of_p, of_o]) = how.parts(row_sum);
        s.iter_mut().for_each(|p| *p /= of_p);
        round_slice(dtype, &mut s);
        match accumulation {
            Accumulation::F32 => add_products(o, &s, v),
            Accumulation::F16 => {
                for (p, v) in s.chunks(BLOCK_N).zip(v.chunks(BLOCK_N * head_dim)) {
                    let mut sum = vec![0.0; head_dim];
                    for (p, v) in p.chunks(MMA_DEPTH).zip(v.chunks(MMA_DEPTH * head_dim)) {
                        add_products(&mut sum, p, v);
                        round_slice(Dtype::F16, &mut sum);
                    }
                    add_scaled(o, 1.0, &sum);
                }
            }
        }
        if visible > 0 {
            o.iter_mut().for_each(|o| *o /= of_o);
        }
        round_slice(dtype, o);
    });
    o
}

/// P·V of one row.
fn add_products(sum: &mut [f32], p: &[f32], v: &[f32]) {
    for (&p, v) in p.iter().zip(v.chunks_exact(sum.len())) {
        add_scaled(sum, p, v);
    }
}

fn add_scaled(sum: &mut [f32], factor: f32, values: &[f32]) {
    for (sum, &value) in sum.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

/// Turns scores into exp(score − the largest), and gives their sum.
fn exponentials(s: &mut [f32]) -> f32 {
    let row_max = s.iter().fold(f32::NEG_INFINITY, |max, &s| max.max(s));
    s.iter_mut().for_each(|s| *s = (*s - row_max).exp());
    s.iter().sum()
}

fn widen_slice(dtype: Dtype, bits: &[u16]) -> Vec<f32> {
    match dtype {
        Dtype::F16 => bits.iter().map(|&bits| f16::from_bits(bits).to_f32()).collect(),
        Dtype::Bf16 => bits.iter().map(|&bits| bf16::from_bits(bits).to_f32()).collect(),
    }
}

/// Rounds every value to the dtype and back.
fn round_slice(dtype: Dtype, values: &mut [f32]) {
    match dtype {
        Dtype::F16 => {
            let mut rounded = vec![f16::ZERO; values.len()];
            rounded.convert_from_f32_slice(values);
            rounded.convert_to_f32_slice(values);
        }
        Dtype::Bf16 => {
            for value in values {
                *value = bf16::from_f32(*value).to_f32();
            }
        }
    }
}
