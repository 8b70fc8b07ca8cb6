//! Attention on the CPU as honest candidates of the stand-in compute it: in blocks, and in the order that a kernel has.

use super::{Honest, gapped};
use crate::inputs::Inputs;
use check::reference::{keys, row_start, visible_keys};
use ferroflash::attention::Output;
use ferroflash::rounding::{narrow, widen};
use ferroflash::{Dtype, Problem, TensorRole};
use kernels_gpu::row::Accumulation;

/// Products that an accumulator takes at a time.
pub(super) const MMA_DEPTH: usize = 16;
/// Keys of the widest block, within which P·V may accumulate in float16.
const BLOCK_N: usize = 128;

/// Keys of a tile of transposed K, whose scores are summed side by side.
const TILE: usize = 64;

/// Attention in the order that a kernel has, in float32 with P rounded to the element type.
pub(super) fn honest(problem: &Problem, inputs: &Inputs, how: Honest) -> Output {
    let (mut rows, mut lse) = (Vec::new(), Vec::new());
    let sizes = problem.sizes();
    let [head_dim, seqlen_k] = [sizes.head_dim, sizes.seqlen_k].map(|n| n as usize);
    let places = (0..sizes.batch as usize)
        .flat_map(|batch| (0..sizes.heads_kv as usize).map(move |head| [batch, head]));
    for [batch, head_kv] in places {
        let row_of = |role: TensorRole, [head, row]: [usize; 2]| {
            let start = row_start(problem, role, [batch, head, row]);
            let bits = &inputs.qkv[role as usize][start..start + head_dim];
            bits.iter().map(|&bits| widen(problem.dtype(), bits) as f32)
        };
        let mut k_tiles = vec![0.0; seqlen_k.div_ceil(TILE) * TILE * head_dim];
        for (key, place) in (0..seqlen_k).map(|key| (key, key / TILE * TILE * head_dim + key % TILE)) {
            let values = row_of(TensorRole::K, [head_kv, key]);
            k_tiles[place..].iter_mut().step_by(TILE).zip(values).for_each(|(to, value)| *to = value);
        }
        let v: Vec<f32> = (0..seqlen_k).flat_map(|key| row_of(TensorRole::V, [head_kv, key])).collect();
        let keys = keys(problem, inputs.seqlens_k.as_deref(), batch);
        let group = problem.group() as usize;
        for head in head_kv * group..(head_kv + 1) * group {
            for row in 0..sizes.seqlen_q as usize {
                let visible = visible_keys(problem, keys, row);
                let q: Vec<f32> = row_of(TensorRole::Q, [head, row]).collect();
                let scores = scores(problem, &q, &k_tiles, visible, how);
                let (o, row_lse) = blockwise(problem, &scores, &v, how);
                rows.push(o);
                lse.push(row_lse);
            }
        }
    }
    gapped(problem, rows.into_iter(), lse)
}

/// The scores of one row in powers of two, of the keys that it sees.
fn scores(problem: &Problem, q: &[f32], k_tiles: &[f32], visible: usize, how: Honest) -> Vec<f32> {
    let scale_log2 = problem.scale() * std::f32::consts::LOG2_E;
    let steps = q.len() / MMA_DEPTH;
    let mut scores = vec![0.0_f32; visible];
    for (scores, k_tile) in scores.chunks_mut(TILE).zip(k_tiles.chunks(TILE * q.len())) {
        for step in (0..steps).map(|step| if how.from_the_end { steps - 1 - step } else { step }) {
            let mut products = [0.0_f32; TILE];
            for d in step * MMA_DEPTH..(step + 1) * MMA_DEPTH {
                let of_keys = &k_tile[d * TILE..][..scores.len()];
                products.iter_mut().zip(of_keys).for_each(|(product, k)| *product += q[d] * k);
            }
            scores.iter_mut().zip(products).for_each(|(score, product)| *score += product);
            if how.acc == Accumulation::F16 {
                round_to(Dtype::F16, scores);
            }
        }
        scores.iter_mut().for_each(|score| *score *= scale_log2);
    }
    scores
}

/// Rounds each number to an element type.
fn round_to(dtype: Dtype, numbers: &mut [f32]) {
    numbers.iter_mut().for_each(|number| *number = widen(dtype, narrow(dtype, (*number).into())) as f32);
}

/// One row of O and its LSE from its scores, block by block.
fn blockwise(problem: &Problem, scores: &[f32], v: &[f32], how: Honest) -> (Vec<f64>, f32) {
    let head_dim = problem.sizes().head_dim as usize;
    let (mut acc_o, mut row_sum, mut row_max) = (vec![0.0_f32; head_dim], 0.0_f32, f32::NEG_INFINITY);
    let blocks = scores.len().div_ceil(how.block);
    let is_narrow = how.acc == Accumulation::F16;
    for step in 0..blocks {
        let block = if how.from_the_end { blocks - 1 - step } else { step };
        let range = block * how.block..scores.len().min((block + 1) * how.block);
        let (scores, v) = (&scores[range.clone()], &v[range.start * head_dim..range.end * head_dim]);
        // NaN wins, as every row that sees it is NaN.
        let largest =
            scores.iter().fold(f32::NEG_INFINITY, |max, &s| if s.is_nan() || s > max { s } else { max });
        if largest.is_nan() || largest > row_max + f32::from(how.lazy) {
            let factor = (row_max - largest).exp2();
            acc_o.iter_mut().for_each(|o| *o *= factor);
            row_sum *= factor;
            row_max = largest;
        }
        // While every score was −∞, row_max is, and −∞ − −∞ would be NaN.
        let base = if row_max == f32::NEG_INFINITY { 0.0 } else { row_max };
        let mut p: Vec<f32> = scores.iter().map(|score| (score - base).exp2()).collect();
        row_sum = p.iter().fold(row_sum, |sum, p| sum + p);
        round_to(problem.dtype(), &mut p);
        if !is_narrow {
            add_products(&mut acc_o, &p, v);
            continue;
        }
        for (p, v) in p.chunks(BLOCK_N).zip(v.chunks(BLOCK_N * head_dim)) {
            let mut sum = vec![0.0; head_dim];
            for (p, v) in p.chunks(MMA_DEPTH).zip(v.chunks(MMA_DEPTH * head_dim)) {
                add_products(&mut sum, p, v);
                round_to(Dtype::F16, &mut sum);
            }
            acc_o.iter_mut().zip(sum).for_each(|(o, sum)| *o += sum);
        }
    }
    if scores.is_empty() {
        return (vec![0.0; head_dim], f32::NEG_INFINITY);
    }
    let o = acc_o.into_iter().map(|o| f64::from(o / row_sum)).collect();
    (o, (row_max + row_sum.log2()) * std::f32::consts::LN_2)
}

/// P·V of some keys.
fn add_products(sum: &mut [f32], p: &[f32], v: &[f32]) {
    for (p, v) in p.iter().zip(v.chunks_exact(sum.len())) {
        sum.iter_mut().zip(v).for_each(|(sum, v)| *sum += p * v);
    }
}
