//! Attention from a parameter block, in float64, and the merge of splits.

use crate::launch::Forward;
use half::{bf16, f16};
use kernels_gpu::params::{CombineParams, Strides};
use kernels_gpu::row::Dtype;

/// Computes a launch, heads in parallel.
///
/// # Safety
/// Every row of its tensors lies in memory, and nobody else uses them.
pub(crate) unsafe fn compute(launch: &Forward) {
    let heads = launch.params.batch * launch.params.heads_q;
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
pub(crate) fn last_row(launch: &Forward) -> *mut u16 {
    let params = &launch.params;
    row(params.o, &params.o_strides, [params.batch - 1, params.heads_q - 1, params.seqlen_q - 1])
}

fn row(address: u64, strides: &Strides, [batch, head, row]: [u32; 3]) -> *mut u16 {
    let offset =
        i64::from(batch) * strides.batch + i64::from(head) * strides.head + i64::from(row) * strides.row;
    address.wrapping_add_signed(offset) as *mut u16
}

/// # Safety
/// As for [`compute`].
unsafe fn compute_head(launch: &Forward, index: u32) {
    let (params, row_of_table) = (&launch.params, &launch.variant.row);
    let (dtype, head_dim) = (row_of_table.dtype, row_of_table.head_dim as usize);
    let (batch, head_q) = (index / params.heads_q, index % params.heads_q);
    let head_kv = head_q / params.group.value;
    let lengths = params.split.seqlens_k as *const u32;
    // SAFETY: the caller's.
    let length = || unsafe { lengths.add(batch as usize).read() };
    let keys = if lengths.is_null() { params.seqlen_k } else { length().min(params.seqlen_k) };
    // SAFETY: the caller's.
    let read = |(address, strides): (u64, Strides), at| unsafe {
        widen(dtype, row(address, &strides, at), head_dim)
    };
    let tensor = |others: (u64, Strides), own: Option<(u64, Strides)>| -> Vec<Vec<f64>> {
        let first = launch.own.map_or(keys, |own| own.first);
        let place = |key| own.filter(|_| key >= first).unwrap_or(others);
        (0..keys).map(|key| read(place(key), [batch, head_kv, key])).collect()
    };
    let k = tensor((params.k, params.k_strides), launch.own.map(|own| own.k));
    let v = tensor((params.v, params.v_strides), launch.own.map(|own| own.v));
    for query in 0..params.seqlen_q {
        let q = read((params.q, params.q_strides), [batch, head_q, query]);
        let hidden = if params.causal == 1 { params.seqlen_q - 1 - query } else { 0 };
        let visible = keys.saturating_sub(hidden) as usize;
        let at = u64::from(index) * u64::from(params.seqlen_q) + u64::from(query);
        let attend = |keys: std::ops::Range<usize>| {
            attend(&q, &k[keys.clone()], &v[keys], f64::from(params.scale_log2))
        };
        if launch.is_partial() {
            let split_blocks = params.split.blocks_of(keys.div_ceil(row_of_table.block_n));
            let split_keys = (split_blocks * row_of_table.block_n) as usize;
            for split in 0..params.split.splits.value as usize {
                let first = (split * split_keys).min(visible);
                let (o, lse) = attend(first..(first + split_keys).min(visible));
                let index = split as u64 * launch.rows() + at;
                let partial_o = (params.split.partial_o as *mut f32).wrapping_add(index as usize * head_dim);
                // SAFETY: the caller's.
                unsafe {
                    o.iter().enumerate().for_each(|(d, &o)| partial_o.add(d).write(o as f32));
                    (params.split.partial_lse as *mut f32).add(index as usize).write(lse as f32);
                }
            }
            continue;
        }
        let (o, lse) = attend(0..visible);
        // SAFETY: the caller's.
        unsafe {
            narrow(dtype, &o, row(params.o, &params.o_strides, [batch, head_q, query]));
            if params.lse != 0 {
                (params.lse as *mut f32).add(at as usize).write_unaligned(lse as f32);
            }
        }
    }
}

/// Merges the splits of every row.
///
/// # Safety
/// As for [`compute`].
pub(crate) unsafe fn merge(params: &CombineParams, dtype: Dtype) {
    let head_dim = params.chunks.value as usize * 4;
    for at in 0..params.rows as usize {
        let partial = |split: u32| split as usize * params.rows as usize + at;
        // SAFETY: the caller's.
        let lse = |split| f64::from(unsafe { (params.partial_lse as *const f32).add(partial(split)).read() });
        // The largest that is a number.
        let most = (0..params.splits).map(lse).fold(f64::NEG_INFINITY, f64::max);
        let (mut o, mut sum) = (vec![0.0; head_dim], 0.0);
        for split in (0..params.splits).filter(|&split| lse(split) != f64::NEG_INFINITY) {
            let weight = (lse(split) - most).exp();
            sum += weight;
            let row = (params.partial_o as *const f32).wrapping_add(partial(split) * head_dim);
            for (d, o) in o.iter_mut().enumerate() {
                // SAFETY: the caller's.
                *o += weight * f64::from(unsafe { row.add(d).read() });
            }
        }
        if sum != 0.0 {
            o.iter_mut().for_each(|o| *o /= sum);
        }
        let (heads_q, seqlen_q) = (params.heads_q.value, params.seqlen_q.value);
        let (head, query) = (at as u32 / seqlen_q, at as u32 % seqlen_q);
        let o_row = row(params.o, &params.o_strides, [head / heads_q, head % heads_q, query]);
        // Not so where every split is NaN.
        let lse = if sum == 0.0 { f64::NEG_INFINITY } else { most + sum.ln() };
        // SAFETY: the caller's.
        unsafe {
            narrow(dtype, &o, o_row);
            if params.lse != 0 {
                (params.lse as *mut f32).add(at).write_unaligned(lse as f32);
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
