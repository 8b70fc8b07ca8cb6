//! The structs of the calls beside attention: appending to a cache, and merging states.

use crate::args::{TensorArgs, Versioned, dtype, given, layout, pages, read, tensor};
use crate::last_error::Failure;
use ferroflash_call::{Append, Lengths, Merge, Rotary, Sizes, Tensor};

/// `ferroflash_append_args`; the header says what each field means.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct AppendArgs {
    pub size: usize,
    pub dtype: i32,
    pub layout: i32,
    pub batch: u32,
    pub heads_q: u32,
    pub heads_kv: u32,
    pub seqlen_q: u32,
    pub seqlen_k: u32,
    pub head_dim: u32,
    pub tokens: u32,
    pub reserved: u32,
    pub new_k: TensorArgs,
    pub new_v: TensorArgs,
    pub k: TensorArgs,
    pub v: TensorArgs,
    pub q: TensorArgs,
    pub rotated_q: TensorArgs,
    pub seqlens_k: usize,
    pub seqlens_after: usize,
    pub cu_seqlens_new: usize,
    pub block_table: usize,
    pub table_entries: u32,
    pub page_size: u32,
    pub page_count: u32,
    pub rotary_dim: u32,
    pub rotary_cos: usize,
    pub rotary_sin: usize,
    pub rotary_positions: u32,
    pub rotary_interleaved: u32,
    pub rotary_each_query: u32,
    pub reserved2: u32,
    pub rotary_starts: usize,
}

/// `ferroflash_merge_args`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct MergeArgs {
    pub size: usize,
    pub partial_dtype: i32,
    pub dtype: i32,
    pub layout: i32,
    pub states: u32,
    pub batch: u32,
    pub heads: u32,
    pub seqlen: u32,
    pub head_dim: u32,
    pub partial_o: TensorArgs,
    pub next_o: usize,
    pub partial_lse: usize,
    pub next_lse: usize,
    pub o: TensorArgs,
    pub lse: usize,
}

// SAFETY: plain numbers.
unsafe impl Versioned for AppendArgs {
    const NAME: &'static str = "sizeof(ferroflash_append_args)";
    const FIRST_SIZE: usize = size_of::<AppendArgs>();
}

// SAFETY: plain numbers.
unsafe impl Versioned for MergeArgs {
    const NAME: &'static str = "sizeof(ferroflash_merge_args)";
    const FIRST_SIZE: usize = size_of::<MergeArgs>();
}

/// The call that appends.
///
/// # Safety
/// `args` is null or holds as many bytes as its first field says.
pub(crate) unsafe fn append(args: *const AppendArgs) -> Result<Append, Failure> {
    // SAFETY: the caller's promise.
    let args = unsafe { read(args)? };
    let dtype = dtype("dtype", args.dtype)?;
    layout(args.layout)?;
    if args.reserved != 0 || args.reserved2 != 0 {
        let reserved = if args.reserved == 0 { args.reserved2 } else { args.reserved };
        return Err(Failure::number("reserved", reserved.into(), "0"));
    }
    let pages = pages(args.block_table, [args.table_entries, args.page_size, args.page_count])?;
    let paged = pages.is_some();
    let rows = if paged { args.page_size } else { args.seqlen_k };
    let held = if paged { args.table_entries as usize * args.page_size as usize } else { rows as usize };
    let of = |given: &TensorArgs, heads, rows| tensor(given, args.layout, (heads, rows, args.head_dim));
    let no_q = args.q.data == 0;
    let q = |given| if no_q { Tensor::default() } else { of(given, args.heads_q, args.seqlen_q) };
    let rotary = (args.rotary_dim != 0).then(|| Rotary {
        cos: args.rotary_cos as u64,
        sin: args.rotary_sin as u64,
        positions: args.rotary_positions as usize,
        dim: args.rotary_dim as usize,
        interleaved: args.rotary_interleaved != 0,
        each_query: args.rotary_each_query != 0,
        starts: given(args.rotary_starts),
    });
    if rotary.is_some() && (args.rotary_cos == 0 || args.rotary_sin == 0) {
        return Err(Failure::null("rotary_cos or rotary_sin"));
    }
    if !no_q && (rotary.is_none() || args.rotated_q.data == 0) {
        return Err(Failure::invalid("q is given without rotary_dim, or without rotated_q: it is rotated"));
    }
    Ok(Append {
        dtype,
        sizes: Sizes {
            batch: args.batch as usize,
            heads_q: if no_q { args.heads_kv } else { args.heads_q } as usize,
            heads_kv: args.heads_kv as usize,
            seqlen_q: if no_q { 1 } else { args.seqlen_q as usize },
            seqlen_k: held,
            head_dim: args.head_dim as usize,
        },
        tokens: args.tokens as usize,
        new_k: of(&args.new_k, args.heads_kv, args.tokens),
        new_v: of(&args.new_v, args.heads_kv, args.tokens),
        k: of(&args.k, args.heads_kv, rows),
        v: of(&args.v, args.heads_kv, rows),
        q: [q(&args.q), q(&args.rotated_q)],
        cumulative_new: given(args.cu_seqlens_new),
        lengths: Lengths { used_k: given(args.seqlens_k), ..Lengths::default() },
        lengths_after: given(args.seqlens_after),
        pages,
        rotary,
    })
}

/// The merge.
///
/// # Safety
/// As [`append`].
pub(crate) unsafe fn merge(args: *const MergeArgs) -> Result<Merge, Failure> {
    // SAFETY: the caller's promise.
    let args = unsafe { read(args)? };
    layout(args.layout)?;
    let of = |given| tensor(given, args.layout, (args.heads, args.seqlen, args.head_dim));
    Ok(Merge {
        states: args.states as usize,
        batch: args.batch as usize,
        heads: args.heads as usize,
        rows: args.seqlen as usize,
        width: args.head_dim as usize,
        partial_dtype: dtype("partial_dtype", args.partial_dtype)?,
        dtype: dtype("dtype", args.dtype)?,
        partial_o: of(&args.partial_o),
        partial_lse: args.partial_lse as u64,
        next_o: args.next_o as u64,
        next_lse: args.next_lse as u64,
        o: of(&args.o),
        lse: given(args.lse),
    })
}
