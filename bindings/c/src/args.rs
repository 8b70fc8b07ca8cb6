//! The struct of a call, as the header has it, and what it means.

use crate::last_error::Failure;
use ferroflash_call::{Call, Dtype, Lengths, Sizes, Tensor};

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
}

/// Bytes of the first version of the struct.
const FIRST_SIZE: usize = size_of::<ForwardArgs>();
/// More than any version will have: what a size field that was not set is likely to exceed.
const SIZE_MAX: usize = 4096;

/// The call that the struct describes.
///
/// # Safety
/// `args` is null or holds as many bytes as its first field says.
pub(crate) unsafe fn call(args: *const ForwardArgs) -> Result<Call, Failure> {
    // SAFETY: the caller's promise.
    let args = unsafe { read(args)? };
    let chosen = |what, value: i32, names: &[Dtype]| {
        let index = usize::try_from(value).ok();
        index.and_then(|index| names.get(index).copied()).ok_or_else(|| outside(what, value))
    };
    let dtype = chosen("dtype", args.dtype, &[Dtype::F16, Dtype::Bf16, Dtype::F32])?;
    if !(0..2).contains(&args.layout) {
        return Err(outside("layout", args.layout));
    }
    if args.reserved != 0 {
        return Err(Failure::number("reserved", args.reserved.into(), "0"));
    }
    let sizes = Sizes {
        batch: args.batch as usize,
        heads_q: args.heads_q as usize,
        heads_kv: args.heads_kv as usize,
        seqlen_q: args.seqlen_q as usize,
        seqlen_k: args.seqlen_k as usize,
        head_dim: args.head_dim as usize,
    };
    let (window_left, window_right) = window(&args)?;
    let given = |address: usize| (address != 0).then_some(address as u64);
    Ok(Call {
        q: tensor(&args.q, args.layout, (args.heads_q, args.seqlen_q, args.head_dim)),
        k: tensor(&args.k, args.layout, (args.heads_kv, args.seqlen_k, args.head_dim)),
        v: tensor(&args.v, args.layout, (args.heads_kv, args.seqlen_k, args.head_dim)),
        o: tensor(&args.o, args.layout, (args.heads_q, args.seqlen_q, args.head_dim)),
        lse: given(args.lse),
        scale: (args.scale != 0.0).then_some(args.scale),
        window_left,
        window_right,
        softcap: args.softcap,
        sinks: given(args.sinks),
        lengths: Lengths { used_k: given(args.seqlens_k), ..Lengths::default() },
        ..Call::bshd(dtype, sizes)
    })
}

/// The struct as this version knows it: fields that the caller's version lacks are 0, and those that this one lacks must be.
///
/// # Safety
/// As [`call`].
unsafe fn read(args: *const ForwardArgs) -> Result<ForwardArgs, Failure> {
    if args.is_null() {
        return Err(Failure::null("args"));
    }
    // SAFETY: the first field is there, whatever follows.
    let size = unsafe { args.cast::<usize>().read() };
    if !(FIRST_SIZE..=SIZE_MAX).contains(&size) {
        let allowed = "sizeof(ferroflash_forward_args)";
        return Err(Failure::number("size", size as i64, allowed));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(args.cast::<u8>(), size) };
    let (known, unknown) = bytes.split_at(size_of::<ForwardArgs>().min(size));
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(Failure::unsupported(
            "args sets a field of a newer version of ferroflash.h than this library's",
        ));
    }
    let mut read = ForwardArgs::default();
    // SAFETY: the struct is plain numbers, and as many bytes of it as are known are written.
    unsafe { std::ptr::copy_nonoverlapping(known.as_ptr(), (&raw mut read).cast(), known.len()) };
    Ok(read)
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

fn tensor(args: &TensorArgs, layout: i32, (heads, seqlen, head_dim): (u32, u32, u32)) -> Tensor {
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
