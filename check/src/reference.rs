//! Float64 attention on the CPU: the oracle every kernel is compared with.
//!
//! Two passes over the scores of a few query rows at a time, with no online rescaling: as little in common with
//! the kernels as can be. Threads share the work by KV head and by block of query rows.

mod append;
mod ragged;
mod row;

pub use append::{AppendInputs, Appended, Expected, appended};
pub use ragged::backward::{GradientsOf, gradient_start, gradients, plain_gradients};
pub use ragged::{JudgedRow, Ragged};
pub use row::{Keys, attention_row};

use ferroflash::attention::{HostTensors, Output};
use ferroflash::problem::{Extent, Problem, TensorRole};
use ferroflash::rounding::{narrow, widen};
use kernels_gpu::row::Dtype;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Query rows that go through K and V together: each key is loaded once for all of them.
const ROWS: usize = 8;
/// Keys of one tile of transposed K: at head_dim 64 a tile of float64 is 64 KB.
const KEYS: usize = 128;

/// Called with query rows done and query rows in all, from any thread.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// O and LSE in float64.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// O, in the problem's layout; 0 in the gaps between strided rows.
    pub o: Vec<f64>,
    /// LSE, natural logarithm, contiguous `[batch, heads_q, seqlen_q]`; −∞ where a row sees no key.
    pub lse: Vec<f64>,
}

impl Reference {
    /// O rounded to the dtype and LSE to float32: what the best of kernels returns.
    pub fn rounded(&self, dtype: Dtype) -> Output {
        let o = self.o.iter().map(|&o| narrow(dtype, o)).collect();
        Output::new(o, Some(self.lse.iter().map(|&lse| lse as f32).collect()))
    }
}

/// softmax(scale · Q·Kᵀ + mask) · V and its log-sum-exp, in float64.
///
/// `q`, `k` and `v` are bits of the problem's dtype in its layout. A row without keys gives 0 and −∞; NaN reaches
/// only the rows that see it.
///
/// # Panics
/// If a slice is shorter than the problem needs: check lengths first.
pub fn reference(problem: &Problem, q: &[u16], k: &[u16], v: &[u16], progress: Progress<'_>) -> Reference {
    reference_of(problem, &HostTensors::new(q, k, v), progress)
}

/// As [`reference`](fn@reference), for sequences with lengths; one over seqlen_k counts as seqlen_k. What lies behind a sequence's last key
/// is not read.
///
/// # Panics
/// If a slice is shorter than the problem needs: check lengths first.
pub fn reference_of(problem: &Problem, tensors: &HostTensors<'_>, progress: Progress<'_>) -> Reference {
    if problem.is_ragged() {
        return Ragged::new(problem, tensors).reference(progress);
    }
    let HostTensors { q, k, v, .. } = *tensors;
    let sizes = problem.sizes();
    let [group, heads_kv, seqlen_q, head_dim] =
        [problem.group(), sizes.heads_kv, sizes.seqlen_q, sizes.head_dim].map(|n| n as usize);
    let total = sizes.batch as usize * heads_kv * group * seqlen_q;
    let done = AtomicUsize::new(0);
    let kv_heads: Vec<(usize, usize)> =
        (0..sizes.batch as usize).flat_map(|batch| (0..heads_kv).map(move |head| (batch, head))).collect();

    // Rows of one query head in [seqlen_q, head_dim] order, heads in [batch, heads_q] order.
    let heads: Vec<HeadOutput> = kv_heads
        .into_par_iter()
        .flat_map_iter(|(batch, head_kv)| {
            let kv = KvHead::load(problem, [k, v], keys(problem, tensors.seqlens_k, batch), [batch, head_kv]);
            let heads: Vec<HeadOutput> = (0..group)
                .into_par_iter()
                .map(|member| {
                    let head_q = head_kv * group + member;
                    let query = Matrix::load(problem, TensorRole::Q, q, seqlen_q, [batch, head_q]);
                    let mut output =
                        HeadOutput { o: vec![0.0; seqlen_q * head_dim], lse: vec![0.0; seqlen_q] };
                    output
                        .o
                        .par_chunks_mut(ROWS * head_dim)
                        .zip(output.lse.par_chunks_mut(ROWS))
                        .enumerate()
                        .for_each(|(block, (o, lse))| {
                            row_block(problem, &query, &kv, block * ROWS, o, lse);
                            let rows = lse.len();
                            progress(done.fetch_add(rows, Ordering::Relaxed) + rows, total);
                        });
                    output
                })
                .collect();
            heads
        })
        .collect();
    gather(problem, &heads)
}

struct HeadOutput {
    o: Vec<f64>,
    lse: Vec<f64>,
}

/// A head as contiguous float64 rows.
struct Matrix {
    rows: Vec<f64>,
    head_dim: usize,
}

impl Matrix {
    /// The first `count` rows of a head.
    fn load(
        problem: &Problem,
        role: TensorRole,
        data: &[u16],
        count: usize,
        [batch, head]: [usize; 2],
    ) -> Matrix {
        let head_dim = problem.sizes().head_dim as usize;
        let mut rows = Vec::with_capacity(count * head_dim);
        for row in 0..count {
            let elements = &data[row_start(problem, role, [batch, head, row])..][..head_dim];
            rows.extend(elements.iter().map(|&bits| widen(problem.dtype(), bits)));
        }
        Matrix { rows, head_dim }
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.rows[row * self.head_dim..][..self.head_dim]
    }
}

struct KvHead {
    /// Kᵀ in tiles of [`KEYS`] keys, each `[head_dim, KEYS]`, padded with zero keys.
    k_tiles: Vec<f64>,
    v: Matrix,
    /// Keys of the sequence.
    keys: usize,
}

impl KvHead {
    fn load(problem: &Problem, [k, v]: [&[u16]; 2], keys: usize, head: [usize; 2]) -> KvHead {
        let k = Matrix::load(problem, TensorRole::K, k, keys, head);
        let head_dim = k.head_dim;
        let mut k_tiles = vec![0.0; keys.div_ceil(KEYS) * KEYS * head_dim];
        for key in 0..keys {
            let tile = &mut k_tiles[key / KEYS * KEYS * head_dim..];
            for (d, &value) in k.row(key).iter().enumerate() {
                tile[d * KEYS + key % KEYS] = value;
            }
        }
        KvHead { k_tiles, v: Matrix::load(problem, TensorRole::V, v, keys, head), keys }
    }
}

/// Index of the first element of row `[batch, head, row]` in a tensor's buffer.
pub fn row_start(problem: &Problem, role: TensorRole, [batch, head, row]: [usize; 3]) -> usize {
    let strides = problem.strides(role);
    // Validated: no stride is negative, and the whole tensor is addressable.
    batch * strides.batch as usize + head * strides.head as usize + row * strides.row as usize
}

/// The query row of this index in the order of LSE, as `[batch, head, row]`.
pub fn row_coordinates(problem: &Problem, index: usize) -> [usize; 3] {
    let Extent { heads, rows, .. } = problem.extent(TensorRole::Q);
    let [heads, rows] = [heads, rows].map(|n| n as usize);
    [index / rows / heads, index / rows % heads, index % rows]
}

/// Keys of a sequence.
pub fn keys(problem: &Problem, seqlens_k: Option<&[u32]>, batch: usize) -> usize {
    let most = problem.sizes().seqlen_k;
    seqlens_k.map_or(most, |lengths| lengths[batch].min(most)) as usize
}

/// Of a sequence's keys those that a query row sees, from key 0: all, or under the causal mask those up to its own position.
pub fn visible_keys(problem: &Problem, keys: usize, row: usize) -> usize {
    let seqlen_q = problem.sizes().seqlen_q as usize;
    if problem.causal() { (row + 1 + keys).saturating_sub(seqlen_q).min(keys) } else { keys }
}

fn row_block(problem: &Problem, q: &Matrix, kv: &KvHead, first_row: usize, o: &mut [f64], lse: &mut [f64]) {
    let scale = f64::from(problem.scale());
    let rows = lse.len();
    // The last row of a block sees the most keys.
    let keys = visible_keys(problem, kv.keys, first_row + rows - 1);
    let width = keys.div_ceil(KEYS) * KEYS;
    let mut s = vec![0.0; rows * width];
    for (tile, k_tile) in kv.k_tiles.chunks_exact(KEYS * q.head_dim).take(width / KEYS).enumerate() {
        for row in 0..rows {
            let s_tile = &mut s[row * width + tile * KEYS..][..KEYS];
            for (&q, k_row) in q.row(first_row + row).iter().zip(k_tile.chunks_exact(KEYS)) {
                add_scaled(s_tile, q, k_row);
            }
        }
    }
    for row in 0..rows {
        let visible = visible_keys(problem, kv.keys, first_row + row);
        lse[row] = softmax(&mut s[row * width..][..visible], scale);
    }
    for key in 0..keys {
        let v_row = kv.v.row(key);
        // What a row does not see stays out of its sum altogether, as 0 · NaN is NaN.
        let first =
            (0..rows).find(|&row| key < visible_keys(problem, kv.keys, first_row + row)).unwrap_or(rows);
        for row in first..rows {
            add_scaled(&mut o[row * q.head_dim..][..q.head_dim], s[row * width + key], v_row);
        }
    }
}

/// `sum += factor * values`.
fn add_scaled(sum: &mut [f64], factor: f64, values: &[f64]) {
    for (sum, &value) in sum.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

/// Turns the scores of one row into probabilities and returns its log-sum-exp.
fn softmax(s: &mut [f64], scale: f64) -> f64 {
    if s.is_empty() {
        return f64::NEG_INFINITY;
    }
    let row_max = s.iter().fold(f64::NEG_INFINITY, |max, &s| max.max(s * scale));
    let mut row_sum = 0.0;
    for s in s.iter_mut() {
        *s = (*s * scale - row_max).exp();
        row_sum += *s;
    }
    for p in s.iter_mut() {
        *p /= row_sum;
    }
    row_max + row_sum.ln()
}

/// Puts the heads where the problem's layout wants them.
fn gather(problem: &Problem, heads: &[HeadOutput]) -> Reference {
    let heads_q = problem.sizes().heads_q as usize;
    let head_dim = problem.sizes().head_dim as usize;
    let mut o = vec![0.0; problem.o_len()];
    for (index, head) in heads.iter().enumerate() {
        for (row, values) in head.o.chunks_exact(head_dim).enumerate() {
            let at = row_start(problem, TensorRole::O, [index / heads_q, index % heads_q, row]);
            o[at..at + head_dim].copy_from_slice(values);
        }
    }
    Reference { o, lse: heads.iter().flat_map(|head| head.lse.iter().copied()).collect() }
}
