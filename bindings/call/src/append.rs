//! Appending to a cache as a call of the library.

use crate::error::Error;
use crate::problem::{pages, size};
use ferroflash::append::AppendRole;
use ferroflash::problem::KeySequences;
use ferroflash::{
    AppendTensors, Dtype, ElementStrides, KvAppend, NewTokens, Problem, Rotary, Sizes, TensorRole,
};
use ferroflash_cpu::{Append, Tensor};

/// The call that appends, on the device of this name.
///
/// # Errors
/// [`Error::Unsupported`], [`Error::TooLarge`], [`Error::Library`].
pub(crate) fn kv_append(append: &Append, device: &'static str) -> Result<KvAppend, Error> {
    append.check().or_else(|error| match error {
        // The library has its own words for these, and for addresses.
        ferroflash_cpu::Error::Null { .. } => Ok(()),
        error => Err(error),
    })?;
    let dtype = match append.dtype {
        ferroflash_cpu::Dtype::F16 => Dtype::F16,
        ferroflash_cpu::Dtype::Bf16 => Dtype::Bf16,
        ferroflash_cpu::Dtype::F32 | ferroflash_cpu::Dtype::F64 => {
            let (what, advice) = ("float32", ": convert to float16 or bfloat16");
            return Err(Error::Unsupported { what, device, advice });
        }
    };
    let (lengths, rows_q) = (&append.lengths, size("seqlen_q", append.sizes.seqlen_q.max(1))?);
    let sizes = Sizes {
        batch: size("batch", append.sizes.batch)?,
        heads_q: size("heads_q", append.sizes.heads_q)?,
        heads_kv: size("heads_kv", append.sizes.heads_kv)?,
        seqlen_q: rows_q,
        seqlen_k: size("seqlen_k", append.sizes.seqlen_k)?,
        head_dim: size("head_dim", append.sizes.head_dim)?,
    };
    let each_query = append.rotary.is_some_and(|rotary| rotary.each_query);
    let mut problem = Problem::new(sizes, dtype)?.with_causal(each_query);
    if lengths.cumulative_q.is_some() {
        problem = problem.with_packed_queries(rows_q)?;
    }
    if let Some(pages) = pages(append.pages, lengths, append.sizes.seqlen_k)? {
        problem = problem.with_pages(pages)?;
    }
    for (role, tensor) in [(TensorRole::K, append.k), (TensorRole::V, append.v)] {
        problem = problem.with_strides(role, strides(tensor))?;
    }
    if append.rotates_queries() {
        problem = problem.with_strides(TensorRole::Q, strides(append.q[0]))?;
    }
    let tokens = size("new tokens", append.tokens)?;
    let new =
        if append.cumulative_new.is_some() { NewTokens::Packed(tokens) } else { NewTokens::Each(tokens) };
    let mut call = KvAppend::new(&problem, new)?
        .with_strides(AppendRole::NewK, strides(append.new_k))?
        .with_strides(AppendRole::NewV, strides(append.new_v))?;
    if append.rotates_queries() {
        call = call.with_strides(AppendRole::RotatedQ, strides(append.q[1]))?;
    }
    if let Some(rotary) = append.rotary {
        call = call.with_rotary(Rotary {
            dim: size("rotary_dim", rotary.dim)?,
            positions: size("rows of rotary_cos", rotary.positions)?,
            interleaved: rotary.interleaved,
        })?;
        if rotary.starts.is_some() {
            call = call.with_rotary_starts();
        }
        if append.rotates_queries() {
            call = call.with_rotated_queries()?;
        }
    }
    Ok(call)
}

fn strides(tensor: Tensor) -> ElementStrides {
    let [batch, head, row] = tensor.strides;
    ElementStrides { batch, head, row, dim: 1 }
}

/// The addresses of the call, which are of the device.
pub(crate) fn append_tensors(append: &Append, call: &KvAppend) -> AppendTensors {
    let (rotates_q, rotary) = (append.rotates_queries(), append.rotary);
    let paged = matches!(call.problem().keys(), KeySequences::Paged(_));
    AppendTensors {
        new_k: append.new_k.address,
        new_v: append.new_v.address,
        k: append.k.address,
        v: append.v.address,
        q: rotates_q.then_some(append.q[0].address),
        rotated_q: rotates_q.then_some(append.q[1].address),
        cos: rotary.map(|rotary| rotary.cos),
        sin: rotary.map(|rotary| rotary.sin),
        seqlens_k: append.lengths.used_k,
        lengths_after: append.lengths_after,
        rotary_starts: rotary.and_then(|rotary| rotary.starts),
        cu_seqlens_new: append.cumulative_new,
        cu_seqlens_q: append.lengths.cumulative_q.filter(|_| rotates_q),
        block_table: append.pages.map(|pages| pages.table).or(append.lengths.entry_k).filter(|_| paged),
        ..AppendTensors::default()
    }
}

/// Appends on the simulator: what lies in host memory is copied to it and back.
///
/// # Safety
/// As [`Append::run`].
#[cfg(feature = "sim")]
pub(crate) unsafe fn simulate(
    attention: &ferroflash::Attention,
    append: &Append,
    device: &'static str,
) -> Result<(), Error> {
    use crate::simulate::write_rows;
    use ferroflash::StreamHandle;
    use ferroflash::device::Buffer;
    let call = kv_append(append, device)?;
    let problem = *call.problem();
    let sim = attention.device();
    // SAFETY: the caller's promise: each tensor is as long as the call says.
    let of = |address: u64, elements: usize| unsafe {
        Buffer::from_elements(sim, std::slice::from_raw_parts(address as *const u16, elements))
    };
    let words = |address: Option<u64>, elements: usize| {
        // SAFETY: the caller's promise.
        let copy = |address: u64| unsafe {
            Buffer::from_elements(sim, std::slice::from_raw_parts(address as *const u32, elements))
        };
        address.map(copy).transpose()
    };
    let at = append_tensors(append, &call);
    let (batch, table) = (append.sizes.batch, call.table_len());
    let (new_k, new_v) =
        (of(at.new_k, call.len(AppendRole::NewK))?, of(at.new_v, call.len(AppendRole::NewV))?);
    let (k, v) = (of(at.k, problem.k_len())?, of(at.v, problem.v_len())?);
    let q = at.q.map(|address| of(address, problem.q_len())).transpose()?;
    let rotated_q = at.rotated_q.map(|address| of(address, call.len(AppendRole::RotatedQ))).transpose()?;
    let (cos, sin) =
        (at.cos.map(|cos| of(cos, table)).transpose()?, at.sin.map(|sin| of(sin, table)).transpose()?);
    let entries = problem.operand_len(ferroflash::Operand::BlockTable).unwrap_or(0);
    let (lengths, after) = (words(at.seqlens_k, batch)?, words(at.lengths_after, batch)?);
    let (starts, cu_new) = (words(at.rotary_starts, batch)?, words(at.cu_seqlens_new, batch + 1)?);
    let (cu_q, block_table) = (words(at.cu_seqlens_q, batch + 1)?, words(at.block_table, entries)?);
    let address =
        |buffer: &Option<Buffer<dyn ferroflash::device::Device>>| buffer.as_ref().map(Buffer::address);
    let tensors = AppendTensors {
        new_k: new_k.address(),
        new_v: new_v.address(),
        k: k.address(),
        v: v.address(),
        q: address(&q),
        rotated_q: address(&rotated_q),
        cos: address(&cos),
        sin: address(&sin),
        seqlens_k: address(&lengths),
        lengths_after: address(&after),
        rotary_starts: address(&starts),
        cu_seqlens_new: address(&cu_new),
        cu_seqlens_q: address(&cu_q),
        block_table: address(&block_table),
        ..AppendTensors::default()
    };
    // SAFETY: the buffers are as long as the call says, and the simulator is done when it returns; what is written back is the caller's
    // to be written.
    unsafe {
        attention.append(&call, &tensors, StreamHandle::DEFAULT)?;
        // Row by row: a cache may hold keys and values in turns.
        let back = |buffer: &Buffer<_>, place, address: u64, elements: usize| {
            let mut read = vec![0; elements];
            buffer.read(0, &mut read).map(|()| write_rows(place, address, &read))
        };
        let of_cache = |role| (problem.extent(role), problem.strides(role));
        back(&k, of_cache(TensorRole::K), at.k, problem.k_len())?;
        back(&v, of_cache(TensorRole::V), at.v, problem.v_len())?;
        if let (Some(buffer), Some(address)) = (&rotated_q, at.rotated_q) {
            let role = AppendRole::RotatedQ;
            back(buffer, (call.extent(role), call.strides(role)), address, call.len(role))?;
        }
        if let (Some(buffer), Some(address)) = (&after, at.lengths_after) {
            buffer.read(0, std::slice::from_raw_parts_mut(address as *mut u32, batch))?;
        }
    }
    Ok(())
}
