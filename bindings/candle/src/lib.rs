//! Ferroflash for candle: the functions of candle-flash-attn 0.11.1 with its signatures, on a GPU and on the CPU.
//!
//! Q, K and V are `[batch, seqlen, heads, head_dim]`, or with sequences behind one another `[rows, heads, head_dim]` and u32 starts of
//! `batch + 1` entries. The last query sees the last key. Outputs are fresh and contiguous. `*_with_lse` return the log-sum-exp of each row
//! too, float32 `[batch, heads, seqlen]` or `[heads, rows]`.
//!
//! `Tensor::backward` reaches Q, K and V through O and LSE. What has no gradient on the device (candle's or Ferroflash's, by name) fails
//! there, not before: candle does not say which tensors nobody will ask for gradients of.

mod call;
mod gradient;
mod merge;
mod storage;

use call::Attention;
use candle_core::{Result, Tensor, bail};

/// Attention, causal or full.
pub fn flash_attn(q: &Tensor, k: &Tensor, v: &Tensor, softmax_scale: f32, causal: bool) -> Result<Tensor> {
    Ok(flash_attn_with_lse(q, k, v, softmax_scale, causal)?.0)
}

/// As [`flash_attn`], with LSE.
pub fn flash_attn_with_lse(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<(Tensor, Tensor)> {
    Attention::new(q, k, v, softmax_scale).window(None, causal.then_some(0)).forward()
}

/// O `[batch, seqlen, heads, head_dim]` and LSE `[batch, heads, seqlen]`, or `[rows, heads, head_dim]` and `[heads, rows]`, over two disjoint
/// sets of keys, from those over each. A state whose LSE is −∞ saw no key and leaves no trace.
pub fn merge_states(o_a: &Tensor, lse_a: &Tensor, o_b: &Tensor, lse_b: &Tensor) -> Result<(Tensor, Tensor)> {
    merge::merge_states([o_a, o_b], [lse_a, lse_b])
}

/// A query sees `window_size_left` keys before its own and `window_size_right` after it.
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_alibi_windowed_softcap(q, k, v, None, softmax_scale, window_size_left, window_size_right, 0.0)
}

/// With ALiBi's slopes, float32 `[heads]` or `[batch, heads]`.
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_alibi_windowed(q, k, v, alibi_slopes, softmax_scale, None, causal.then_some(0))
}

/// As [`flash_attn_windowed`], with slopes.
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let window = (window_size_left, window_size_right);
    flash_attn_alibi_windowed_softcap(q, k, v, Some(alibi_slopes), softmax_scale, window.0, window.1, 0.0)
}

/// As [`flash_attn_alibi_windowed`], with scores softcap · tanh(score / softcap); 0 leaves them.
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let attention = Attention::new(q, k, v, softmax_scale).window(window_size_left, window_size_right);
    Ok(attention.alibi(alibi_slopes).softcap(softcap).forward()?.0)
}

/// Sequences behind one another: sequence i has the rows seqlens\[i\] to seqlens\[i + 1\].
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let (o, _) = flash_attn_varlen_with_lse(
        q,
        k,
        v,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        causal,
    )?;
    Ok(o)
}

/// As [`flash_attn_varlen`], with LSE.
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_with_lse(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<(Tensor, Tensor)> {
    let attention = Attention::new(q, k, v, softmax_scale).window(None, causal.then_some(0));
    attention.ragged(seqlens_q, seqlens_k, (max_seqlen_q, max_seqlen_k)).forward()
}

/// As [`flash_attn_varlen`], with a window.
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_varlen_alibi_windowed_softcap(
        q,
        k,
        v,
        None,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
        0.0,
    )
}

/// As [`flash_attn_varlen_windowed`], with K and V in pages `[count, page_block_size, heads, head_dim]`; `block_table` is `[batch, pages]`.
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_paged_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    mm_prefix_ranges: Option<&Tensor>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<Tensor> {
    if mm_prefix_ranges.is_some() {
        bail!("mm_prefix_ranges is not supported");
    }
    if k.dims().get(1) != Some(&page_block_size) {
        bail!("K has shape {:?}, page_block_size is {page_block_size}", k.dims());
    }
    // The starts of a sequence's keys in a row of keys that there is not: their differences are the lengths.
    let rows = seqlens_k.dims1()?.saturating_sub(1);
    let lengths = seqlens_k.narrow(0, 1, rows)?.sub(&seqlens_k.narrow(0, 0, rows)?)?;
    let attention = Attention::new(q, k, v, softmax_scale).window(window_size_left, window_size_right);
    let attention = attention.softcap(softcap.unwrap_or(0.0)).paged(seqlens_q, lengths, block_table);
    Ok(attention.longest((max_seqlen_q, max_seqlen_k)).forward()?.0)
}

/// As [`flash_attn_varlen`], with ALiBi's slopes.
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let right = causal.then_some(0);
    flash_attn_varlen_alibi_windowed(
        q,
        k,
        v,
        alibi_slopes,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        right,
    )
}

/// As [`flash_attn_varlen_windowed`], with ALiBi's slopes.
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_varlen_alibi_windowed_softcap(
        q,
        k,
        v,
        Some(alibi_slopes),
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
        0.0,
    )
}

/// All of it together.
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let attention = Attention::new(q, k, v, softmax_scale).window(window_size_left, window_size_right);
    let attention = attention.ragged(seqlens_q, seqlens_k, (max_seqlen_q, max_seqlen_k));
    Ok(attention.alibi(alibi_slopes).softcap(softcap).forward()?.0)
}
