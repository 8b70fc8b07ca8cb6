//! Attention from a parameter block, in float64: each CTA of the grid computes its query rows.

use crate::launch::Launch;
use half::{bf16, f16};
use kernels_gpu::params::Strides;
use kernels_gpu::row::Dtype;

/// Computes every CTA of a launch, heads in parallel.
///
/// # Safety
/// Every row of its tensors lies in memory, and nobody else uses them.
pub(crate) unsafe fn compute(launch: &Launch) {
    let heads = launch.ctas.div_ceil(launch.params.query_blocks.value);
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u32).min(heads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for head in (thread..heads).step_by(threads as usize) {
                    // SAFETY: the caller's; each head writes rows of its own.
                    unsafe { compute_head(launch, head) }
                }
            });
        }
    });
}

/// The last row of O of the last head.
pub(crate) fn last_row(launch: &Launch) -> *mut u16 {
    let (batch, head) = (launch.batch() - 1, launch.params.heads_q.value - 1);
    row(launch.params.o, &launch.params.o_strides, [batch, head, launch.params.seqlen_q - 1])
}

fn row(address: u64, strides: &Strides, [batch, head, row]: [u32; 3]) -> *mut u16 {
    let offset =
        i64::from(batch) * strides.batch + i64::from(head) * strides.head + i64::from(row) * strides.row;
    address.wrapping_add_signed(offset) as *mut u16
}

/// # Safety
/// As for [`compute`].
unsafe fn compute_head(launch: &Launch, index: u32) {
    let (params, head_dim) = (&launch.params, launch.variant.row.head_dim as usize);
    let (batch, head_q) = (index / params.heads_q.value, index % params.heads_q.value);
    let head_kv = head_q / params.group.value;
    // SAFETY: the caller's.
    let read = |address, strides, at| unsafe {
        widen(launch.variant.row.dtype, row(address, strides, at), head_dim)
    };
    let tensor = |address, strides| -> Vec<Vec<f64>> {
        (0..params.seqlen_k).map(|key| read(address, strides, [batch, head_kv, key])).collect()
    };
    let (k, v) = (tensor(params.k, &params.k_strides), tensor(params.v, &params.v_strides));
    // The grid's CTAs of this head; one too few leaves its rows unwritten.
    let ctas = (launch.ctas - index * params.query_blocks.value).min(params.query_blocks.value);
    for query in 0..(ctas * launch.variant.row.block_m).min(params.seqlen_q) {
        let q = read(params.q, &params.q_strides, [batch, head_q, query]);
        let hidden = if params.causal == 1 { params.seqlen_q - 1 - query } else { 0 };
        let visible = params.seqlen_k.saturating_sub(hidden) as usize;
        let (o, lse) = attend(&q, &k[..visible], &v[..visible], f64::from(params.scale_log2));
        // SAFETY: the caller's.
        unsafe {
            narrow(launch.variant.row.dtype, &o, row(params.o, &params.o_strides, [batch, head_q, query]));
            if params.lse != 0 {
                let at = u64::from(index) * u64::from(params.seqlen_q) + u64::from(query);
                (params.lse as *mut f32).add(at as usize).write_unaligned(lse as f32);
            }
        }
    }
}

/// O and LSE of one query; 0 and −∞ where it sees no key.
fn attend(q: &[f64], k: &[Vec<f64>], v: &[Vec<f64>], scale_log2: f64) -> (Vec<f64>, f64) {
    let scores: Vec<f64> = k.iter().map(|k| scale_log2 * dot(q, k)).collect();
    let row_max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut o, mut row_sum) = (vec![0.0; q.len()], 0.0);
    for (score, v) in scores.iter().zip(v) {
        let p = (score - row_max).exp2();
        row_sum += p;
        for (o, v) in o.iter_mut().zip(v) {
            *o += p * v;
        }
    }
    if k.is_empty() {
        return (o, f64::NEG_INFINITY);
    }
    o.iter_mut().for_each(|o| *o /= row_sum);
    (o, (row_max + row_sum.log2()) * std::f64::consts::LN_2)
}

/// A sum in eight parts, which the compiler keeps side by side; head_dim is a multiple of 32.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum()
}

/// # Safety
/// `row` is valid for reads of `head_dim` elements.
unsafe fn widen(dtype: Dtype, row: *const u16, head_dim: usize) -> Vec<f64> {
    // SAFETY: the caller's.
    let bits = unsafe { std::slice::from_raw_parts(row, head_dim) };
    let widen = |bits: u16| match dtype {
        Dtype::F16 => f16::from_bits(bits).to_f64(),
        Dtype::Bf16 => bf16::from_bits(bits).to_f64(),
    };
    bits.iter().map(|&bits| widen(bits)).collect()
}

/// # Safety
/// `row` is valid for writes of as many elements.
unsafe fn narrow(dtype: Dtype, values: &[f64], row: *mut u16) {
    for (i, &value) in values.iter().enumerate() {
        let bits = match dtype {
            Dtype::F16 => f16::from_f64(value).to_bits(),
            Dtype::Bf16 => bf16::from_f64(value).to_bits(),
        };
        // SAFETY: the caller's.
        unsafe { row.add(i).write(bits) };
    }
}
