//! The struct of a call, as the header has it, and what it means.

use crate::last_error::Failure;
use ferroflash_call::{Alibi, Backward, Bias, Call, Dropout, Dtype, Lengths, Pages, Sizes, Tensor, Tree};
use std::mem::offset_of;

/// `ferroflash_tensor`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct TensorArgs {
    /// Address of the first element.
    pub data: usize,
    /// Elements from one batch entry to the next.
    pub stride_batch: i64,
    /// Elements from one head to the next.
    pub stride_head: i64,
    /// Elements from one row to the next.
    pub stride_row: i64,
}

/// `ferroflash_forward_args`; the header says what each field means.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ForwardArgs {
    pub size: usize,
    pub dtype: i32,
    pub layout: i32,
    pub mask: i32,
    pub batch: u32,
    pub heads_q: u32,
    pub heads_kv: u32,
    pub seqlen_q: u32,
    pub seqlen_k: u32,
    pub head_dim: u32,
    pub scale: f32,
    pub q: TensorArgs,
    pub k: TensorArgs,
    pub v: TensorArgs,
    pub o: TensorArgs,
    pub lse: usize,
    pub seqlens_k: usize,
    pub window_left: i64,
    pub window_right: i64,
    pub softcap: f32,
    pub reserved: u32,
    pub sinks: usize,
    pub cu_seqlens_q: usize,
    pub cu_seqlens_k: usize,
    pub max_seqlen_q: u32,
    pub max_seqlen_k: u32,
    pub block_table: usize,
    pub table_entries: u32,
    pub page_size: u32,
    pub page_count: u32,
    pub attention_chunk: u32,
    pub alibi_slopes: usize,
    pub alibi_by_batch: u32,
    pub tree_keys: u32,
    pub tree_bits: usize,
    pub intervals: usize,
    pub bias: usize,
    pub bias_shared: u32,
    pub head_dim_v: u32,
    pub dropout_p: f32,
    pub reserved2: u32,
    pub dropout_seed: u64,
    pub dropout_offset: u64,
}

/// `ferroflash_backward_args`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BackwardArgs {
    pub size: usize,
    pub forward: usize,
    pub d_o: TensorArgs,
    pub d_q: TensorArgs,
    pub d_k: TensorArgs,
    pub d_v: TensorArgs,
    pub d_lse: usize,
    pub d_sinks: usize,
    pub ds_bytes_max: u64,
    pub d_bias: usize,
}

/// A struct of plain numbers whose first field is its size.
///
/// # Safety
/// Every byte pattern is a value, zeros are the default, and the first field is a `usize`.
pub(crate) unsafe trait Versioned: Copy + Default {
    /// Its name in the header.
    const NAME: &'static str;
    /// Bytes of its first version.
    const FIRST_SIZE: usize;
}

// SAFETY: plain numbers.
unsafe impl Versioned for ForwardArgs {
    const NAME: &'static str = "sizeof(ferroflash_forward_args)";
    const FIRST_SIZE: usize = offset_of!(ForwardArgs, cu_seqlens_q);
}

// SAFETY: plain numbers.
unsafe impl Versioned for BackwardArgs {
    const NAME: &'static str = "sizeof(ferroflash_backward_args)";
    const FIRST_SIZE: usize = offset_of!(BackwardArgs, ds_bytes_max);
}

/// The dimensions of a bias that may be 1, in order: batch, heads, queries.
const SHARED: [u32; 3] = [1, 2, 4];
/// More than any version will have: what a size field that was not set is likely to exceed.
const SIZE_MAX: usize = 4096;

/// The gradients that the struct describes.
///
/// # Safety
/// `args` is null or holds as many bytes as its first field says, and so does what its `forward` points to.
pub(crate) unsafe fn backward(args: *const BackwardArgs) -> Result<Backward, Failure> {
    // SAFETY: the caller's promise.
    let args: BackwardArgs = unsafe { read(args)? };
    // SAFETY: the same.
    let forward = unsafe { read(args.forward as *const ForwardArgs)? };
    let [of_q, of_k, of_v, of_o] = extents(&forward);
    let gradient = |at: &TensorArgs, extent| tensor(at, forward.layout, extent);
    Ok(Backward {
        call: call_of(&forward)?,
        d_o: gradient(&args.d_o, of_o),
        d_lse: given(args.d_lse),
        d_q: gradient(&args.d_q, of_q),
        d_k: gradient(&args.d_k, of_k),
        d_v: gradient(&args.d_v, of_v),
        d_sinks: given(args.d_sinks),
        d_bias: given(args.d_bias),
        ds_bytes_max: (args.ds_bytes_max > 0).then_some(args.ds_bytes_max),
    })
}

/// Heads, rows and width of Q, K, V and O.
fn extents(args: &ForwardArgs) -> [(u32, u32, u32); 4] {
    let rows_k = if args.block_table == 0 { args.seqlen_k } else { args.page_size };
    let (width, width_v) = (args.head_dim, head_dim_v(args));
    [
        (args.heads_q, args.seqlen_q, width),
        (args.heads_kv, rows_k, width),
        (args.heads_kv, rows_k, width_v),
        (args.heads_q, args.seqlen_q, width_v),
    ]
}

fn head_dim_v(args: &ForwardArgs) -> u32 {
    if args.head_dim_v == 0 { args.head_dim } else { args.head_dim_v }
}

/// The call that the struct describes.
///
/// # Safety
/// `args` is null or holds as many bytes as its first field says.
pub(crate) unsafe fn call(args: *const ForwardArgs) -> Result<Call, Failure> {
    // SAFETY: the caller's promise.
    call_of(&unsafe { read(args)? })
}

fn call_of(args: &ForwardArgs) -> Result<Call, Failure> {
    let dtype = dtype("dtype", args.dtype)?;
    layout(args.layout)?;
    if let Some(reserved) = [args.reserved, args.reserved2].into_iter().find(|reserved| *reserved != 0) {
        return Err(Failure::number("reserved", reserved.into(), "0"));
    }
    if args.bias_shared >= 1 << SHARED.len() {
        let dimensions = "a sum of ferroflash.h's FERROFLASH_SHARED_...";
        return Err(Failure::number("bias_shared", args.bias_shared.into(), dimensions));
    }
    let sizes = Sizes {
        batch: args.batch as usize,
        heads_q: args.heads_q as usize,
        heads_kv: args.heads_kv as usize,
        seqlen_q: args.seqlen_q as usize,
        seqlen_k: match args.block_table {
            0 => args.seqlen_k as usize,
            _ => args.table_entries as usize * args.page_size as usize,
        },
        head_dim: args.head_dim as usize,
    };
    let pages = pages(args.block_table, [args.table_entries, args.page_size, args.page_count])?;
    if args.tree_keys != 0 && args.tree_bits == 0 {
        return Err(Failure::null("tree_bits, and tree_keys is not 0,"));
    }
    let (window_left, window_right) = window(args)?;
    let [of_q, of_k, of_v, of_o] = extents(args);
    let alibi_stride = if args.alibi_by_batch == 0 { 0 } else { args.heads_q.into() };
    Ok(Call {
        q: tensor(&args.q, args.layout, of_q),
        k: tensor(&args.k, args.layout, of_k),
        v: tensor(&args.v, args.layout, of_v),
        o: tensor(&args.o, args.layout, of_o),
        lse: given(args.lse),
        scale: (args.scale != 0.0).then_some(args.scale.into()),
        window_left,
        window_right,
        softcap: args.softcap,
        sinks: given(args.sinks),
        alibi: given(args.alibi_slopes).map(|slopes| Alibi { slopes, stride: alibi_stride }),
        chunk: (args.attention_chunk != 0).then_some(args.attention_chunk as usize),
        tree: given(args.tree_bits).map(|bits| Tree { bits, keys: args.tree_keys as usize }),
        intervals: given(args.intervals),
        bias: given(args.bias)
            .map(|values| Bias { values, own: SHARED.map(|dimension| args.bias_shared & dimension == 0) }),
        head_dim_v: head_dim_v(args) as usize,
        // Below 0, and NaN, is refused.
        dropout: (args.dropout_p != 0.0).then_some(Dropout {
            p: args.dropout_p,
            seed: args.dropout_seed,
            offset: args.dropout_offset,
        }),
        lengths: Lengths {
            used_k: given(args.seqlens_k),
            cumulative_q: given(args.cu_seqlens_q),
            cumulative_k: given(args.cu_seqlens_k),
            longest_q: args.max_seqlen_q as usize,
            longest_k: args.max_seqlen_k as usize,
            ..Lengths::default()
        },
        pages,
        ..Call::bshd(dtype, sizes)
    })
}

/// A struct as this version knows it: fields that the caller's version lacks are 0, and those that this one lacks must be.
///
/// # Safety
/// As [`call`].
pub(crate) unsafe fn read<A: Versioned>(args: *const A) -> Result<A, Failure> {
    if args.is_null() {
        return Err(Failure::null("args"));
    }
    // SAFETY: the first field is there, whatever follows.
    let size = unsafe { args.cast::<usize>().read() };
    if !(A::FIRST_SIZE..=SIZE_MAX).contains(&size) {
        return Err(Failure::number("size", size as i64, A::NAME));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(args.cast::<u8>(), size) };
    let (known, unknown) = bytes.split_at(size_of::<A>().min(size));
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(Failure::unsupported(
            "args sets a field of a newer version of ferroflash.h than this library's",
        ));
    }
    let mut read = A::default();
    // SAFETY: the struct is plain numbers, and as many bytes of it as are known are written.
    unsafe { std::ptr::copy_nonoverlapping(known.as_ptr(), (&raw mut read).cast(), known.len()) };
    Ok(read)
}

/// An address, `None` where it is null.
pub(crate) fn given(address: usize) -> Option<u64> {
    (address != 0).then_some(address as u64)
}

/// The pages of a cache: its table's address, and entries of a sequence, rows of a page, pages.
pub(crate) fn pages(table: usize, [entries, page_size, count]: [u32; 3]) -> Result<Option<Pages>, Failure> {
    if table == 0 && page_size != 0 {
        return Err(Failure::null("block_table, and page_size is not 0,"));
    }
    let (stride, page_size, count) = (entries.into(), page_size as usize, count as usize);
    Ok(given(table).map(|table| Pages { table, stride, page_size, count }))
}

/// A type of elements by its number.
pub(crate) fn dtype(what: &str, value: i32) -> Result<Dtype, Failure> {
    let known = usize::try_from(value).ok();
    let known = known.and_then(|index| [Dtype::F16, Dtype::Bf16, Dtype::F32].get(index).copied());
    known.ok_or_else(|| outside(what, value))
}

/// Refuses an order of the dimensions that there is not.
pub(crate) fn layout(value: i32) -> Result<(), Failure> {
    if (0..2).contains(&value) { Ok(()) } else { Err(outside("layout", value)) }
}

fn outside(what: &str, value: i32) -> Failure {
    Failure::number(what, value.into(), "one of ferroflash.h's")
}

/// How far a query sees before and after its own key.
fn window(args: &ForwardArgs) -> Result<(Option<usize>, Option<usize>), Failure> {
    let keys = |what, value: i64| match value {
        -1 => Ok(None),
        value => usize::try_from(value)
            .map(Some)
            .map_err(|_| Failure::number(what, value, "a number of keys, or -1 for all")),
    };
    match args.mask {
        0 => Ok((None, None)),
        1 => Ok((None, Some(0))),
        2 => Ok((keys("window_left", args.window_left)?, keys("window_right", args.window_right)?)),
        mask => Err(outside("mask", mask)),
    }
}

/// A tensor, contiguous where it has no strides.
pub(crate) fn tensor(args: &TensorArgs, layout: i32, (heads, seqlen, head_dim): (u32, u32, u32)) -> Tensor {
    let [heads, seqlen, head_dim] = [heads, seqlen, head_dim].map(i64::from);
    let strides = match [args.stride_batch, args.stride_head, args.stride_row] {
        [0, 0, 0] => {
            let batch = heads.saturating_mul(seqlen).saturating_mul(head_dim);
            if layout == 0 {
                [batch, seqlen * head_dim, head_dim]
            } else {
                [batch, head_dim, heads * head_dim]
            }
        }
        strides => strides,
    };
    Tensor { address: args.data as u64, strides }
}
