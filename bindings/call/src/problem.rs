//! A call as a problem of the library.

use crate::error::Error;
use crate::lacking;
use ferroflash::problem::{BiasShape, BlockTable, Mask, Operand, Pages, Score};
use ferroflash::{
    Attention, DeviceTensors, ElementStrides, Plan, PlanOptions, Problem, Sizes, Splits, TensorRole,
};
use ferroflash_cpu::{Bias, Call, Dropout, Dtype, Lengths};
use std::sync::Arc;

/// The problem that a call poses, on the device of this name.
///
/// # Errors
/// [`Error::Unsupported`], [`Error::TooLarge`], [`Error::Library`].
pub(crate) fn problem(call: &Call, device: &'static str) -> Result<Problem, Error> {
    lacking::check(call, device)?;
    let (ragged_q, ragged_k) = (call.lengths.cumulative_q.is_some(), call.lengths.cumulative_k.is_some());
    let longest = |is_ragged: bool, longest: usize, all: usize| {
        if is_ragged && longest > 0 { longest.min(all) } else { all }
    };
    let sizes = Sizes {
        batch: size("batch", call.sizes.batch)?,
        heads_q: size("heads_q", call.sizes.heads_q)?,
        heads_kv: size("heads_kv", call.sizes.heads_kv)?,
        seqlen_q: size("seqlen_q", longest(ragged_q, call.lengths.longest_q, call.sizes.seqlen_q))?,
        seqlen_k: size("seqlen_k", longest(ragged_k, call.lengths.longest_k, call.sizes.seqlen_k))?,
        head_dim: size("head_dim", call.sizes.head_dim)?,
    };
    let dtype = if call.dtype == Dtype::Bf16 { ferroflash::Dtype::Bf16 } else { ferroflash::Dtype::F16 };
    let mut problem = Problem::new(sizes, dtype)?
        .with_mask(mask(call)?)?
        .with_sinks(call.sinks.is_some())
        .with_lengths(call.lengths.used_k.is_some());
    if call.head_dim_v != call.sizes.head_dim {
        problem = problem.with_head_dim_v(size("head_dim of V", call.head_dim_v)?)?;
    }
    if let Some(scale) = call.scale {
        problem = problem.with_scale(scale as f32)?;
    }
    // Below 0, and NaN, is refused.
    if call.softcap != 0.0 {
        problem = problem.with_score(Score::Softcap(call.softcap))?;
    }
    if let Some(alibi) = call.alibi {
        problem = problem.with_score(Score::Alibi { per_batch: alibi.stride != 0 })?;
    }
    if let Some(Bias { own: [batch, heads, queries], .. }) = call.bias {
        problem = problem.with_score(Score::Bias(BiasShape { batch, heads, queries }))?;
    }
    if let Some(Dropout { p, seed, offset }) = call.dropout {
        problem = problem.with_dropout(ferroflash::Dropout { p, seed, offset })?;
    }
    if ragged_q {
        problem = problem.with_packed_queries(size("rows of Q", call.sizes.seqlen_q)?)?;
    }
    if ragged_k {
        problem = problem.with_packed_keys(size("rows of K", call.sizes.seqlen_k)?)?;
    }
    if let Some(pages) = pages(call.pages, &call.lengths, call.sizes.seqlen_k)? {
        problem = problem.with_pages(pages)?;
    }
    let tensors =
        [(TensorRole::Q, call.q), (TensorRole::K, call.k), (TensorRole::V, call.v), (TensorRole::O, call.o)];
    for (role, tensor) in tensors {
        let [batch, head, row] = tensor.strides;
        problem = problem.with_strides(role, ElementStrides { batch, head, row, dim: 1 })?;
    }
    Ok(problem)
}

/// What a call asks of its plan.
pub(crate) fn plan_options(call: &Call) -> PlanOptions {
    let splits = call.splits.map_or(Splits::Auto, |splits| Splits::Count(splits.get()));
    PlanOptions { splits, ..PlanOptions::new() }
}

/// The plan of a call that poses a problem: where it leaves all to the plan, the one that the library keeps.
///
/// # Errors
/// [`Error::Library`].
pub(crate) fn plan(attention: &Attention, call: &Call, problem: &Problem) -> Result<Arc<Plan>, Error> {
    Ok(match call.splits {
        None => attention.plan(problem)?,
        Some(_) => Arc::new(attention.planner().plan(problem, &plan_options(call))?),
    })
}

/// The pages that keys lie in. Sequences that say which entry of K and V is theirs have one page each, as long as the entry.
pub(crate) fn pages(
    pages: Option<ferroflash_cpu::Pages>,
    lengths: &Lengths,
    seqlen_k: usize,
) -> Result<Option<Pages>, Error> {
    let (page, pages, entries) = match pages {
        Some(pages) => (pages.page_size, pages.count, pages.stride.unsigned_abs() as usize),
        None if lengths.entry_k.is_some() => (seqlen_k, lengths.entries_k, 1),
        None => return Ok(None),
    };
    let table = BlockTable::Rows { entries: size("block_table", entries)? };
    Ok(Some(Pages { page: size("page_size", page)?, pages: size("pages", pages)?, table }))
}

/// The mask of a call; a side of a window that hides no key of it is open, so that more plans come into question.
fn mask(call: &Call) -> Result<Mask, Error> {
    let side = |keys: Option<usize>, hides_none_from: usize| {
        keys.filter(|&keys| keys < hides_none_from).map(|keys| size("window_size", keys)).transpose()
    };
    // Query i's own key is i + seqlen_k − seqlen_q, whatever the lengths: the last query's is the last key.
    let left = side(call.window_left, call.sizes.seqlen_k)?;
    let mask = Mask::window(left, side(call.window_right, call.sizes.seqlen_q.saturating_sub(1))?);
    let mask = if call.intervals.is_some() { mask.with_intervals() } else { mask };
    let mask = match call.chunk {
        Some(chunk) => mask.with_chunk(size("attention_chunk", chunk)?),
        None => mask,
    };
    Ok(match call.tree {
        Some(tree) => mask.with_tree(size("keys of tree_mask", tree.keys)?),
        None => mask,
    })
}

pub(crate) fn size(what: &'static str, value: usize) -> Result<u32, Error> {
    u32::try_from(value).map_err(|_| Error::TooLarge { what, value })
}

/// What a call gives beside Q, K and V, by its address.
pub(crate) fn operands(call: &Call) -> impl Iterator<Item = (Operand, u64)> {
    let given = [
        (Operand::CuSeqlensQ, call.lengths.cumulative_q),
        (Operand::CuSeqlensK, call.lengths.cumulative_k),
        (Operand::BlockTable, call.pages.map(|pages| pages.table).or(call.lengths.entry_k)),
        (Operand::Intervals, call.intervals),
        (Operand::TreeMask, call.tree.map(|tree| tree.bits)),
        (Operand::Sinks, call.sinks),
        (Operand::Slopes, call.alibi.map(|alibi| alibi.slopes)),
        (Operand::Bias, call.bias.map(|bias| bias.values)),
    ];
    given.into_iter().filter_map(|(operand, address)| Some((operand, address?)))
}

/// The addresses of a call, which are of the device.
pub(crate) fn device_tensors(call: &Call) -> DeviceTensors {
    let tensors = DeviceTensors::new(call.q.address, call.k.address, call.v.address, call.o.address)
        .with_lse(call.lse)
        .with_seqlens_k(call.lengths.used_k);
    operands(call).fold(tensors, |tensors, (operand, address)| tensors.with_operand(operand, address))
}
