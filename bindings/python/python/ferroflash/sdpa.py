"""PyTorch's scaled_dot_product_attention by its name, arguments and meaning."""

from . import _again
from ._call import Call, dtype_name
from ._tensors import Torch
from .functional import _computed, flash_attn_func, under_a_mask


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """torch.nn.functional.scaled_dot_product_attention of PyTorch's tensors [..., heads, seqlen, head_dim].

    `is_causal` is PyTorch's: query i sees the keys up to the key i, whatever the lengths. `attn_mask` is bool (True is seen) or added to the
    scores, and can be broadcast to [..., heads, seqlen_q, seqlen_k]. A query that sees nothing gives 0. `dropout_p` is
    flash_attn_func's, and 1 leaves out all weights: O and gradients are 0.
    """
    if attn_mask is None and not dropout_p and not _again.is_traced():
        o = _again.heads_first(query, key, value, scale, is_causal, enable_gqa)
        if o is not None:
            return o
    import torch

    if isinstance(dropout_p, (int, float)) and dropout_p == 1:
        # What is kept is divided by 1 − p elsewhere, which is 0 here. The filled places pass no gradient on.
        o = scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)
        return o.masked_fill(o.new_ones((), dtype=torch.bool), 0.0)

    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is {type(tensor).__name__}, must be PyTorch's tensor: flash_attn_func takes those of other frameworks")
        Torch(torch).check_tensor(name, tensor)
    if attn_mask is not None and attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise TypeError(f"attn_mask is {dtype_name(attn_mask)}, must be bool (True is seen) or what is added to the scores")
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError(f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} dimensions, must have 2 at least")
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask and is_causal exclude each other")
    outer, (q, k, v) = _batched(query, key, value, enable_gqa)
    batch, queries, heads, _ = q.shape
    keys = k.shape[1]
    if attn_mask is not None:
        attn_mask = _of_batch(attn_mask, (*outer, heads, queries, keys))
    elif is_causal and queries < keys:
        k, v = k[:, :queries], v[:, :queries]
    if is_causal and queries > keys:
        call = Call(q, k, v, scale)
        call.dropout_p = float(dropout_p)
        ends = torch.arange(1, queries + 1, dtype=torch.int32, device=q.device).clamp(max=keys)
        call.intervals = torch.stack([torch.zeros_like(ends), ends], -1).expand(batch, -1, -1).contiguous()
        o = _computed(call)[0]
    elif attn_mask is not None:
        o = under_a_mask(q, k, v, attn_mask, softmax_scale=scale, dropout_p=dropout_p)
    else:
        o = flash_attn_func(q, k, v, dropout_p, softmax_scale=scale, causal=is_causal)
    o = o.transpose(1, 2)
    if query.dim() == 2:
        return o[0, 0]
    return o if len(outer) == 1 else o.reshape(*outer, heads, *o.shape[2:])


def _batched(query, key, value, enable_gqa):
    """The dimensions before heads, and Q, K and V as [batch, seqlen, heads, head_dim]."""
    import torch

    shape, shape_k, shape_v = query.shape, key.shape, value.shape
    as_wanted = len(shape) == len(shape_k) == len(shape_v) == 4 and shape[0] == shape_k[0] == shape_v[0]
    if as_wanted and shape_k[1] == shape_v[1] and (enable_gqa or shape[1] == shape_k[1]):
        # Most models' tensors: all that follows would cost the host three times as long as the call.
        return shape[:1], [query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)]
    tensors = [x if x.dim() > 2 else x[None] for x in (query, key, value)]
    heads = [x.shape[-3] for x in tensors]
    if not enable_gqa:
        # Heads are a dimension like those before them: one stands for all.
        most = max(heads)
        tensors = [x if x.shape[-3] == most else x.expand(*x.shape[:-3], most, *x.shape[-2:]) for x in tensors]
    elif heads[1] != heads[2]:
        raise ValueError(f"key has {heads[1]} heads, value {heads[2]}")
    outer = torch.broadcast_shapes(*(x.shape[:-3] for x in tensors))
    return outer, [x.expand(*outer, *x.shape[-3:]).reshape(-1, *x.shape[-3:]).transpose(1, 2) for x in tensors]


def _of_batch(mask, whole):
    """A mask [batch or 1, heads or 1, queries or 1, keys], of what can be broadcast to the whole."""
    *outer, heads, queries, keys = whole
    mask = mask.reshape((1,) * (len(whole) - mask.dim()) + tuple(mask.shape)) if mask.dim() < len(whole) else mask
    if mask.dim() > len(whole) or any(size not in (1, most) for size, most in zip(mask.shape, whole)):
        raise ValueError(f"attn_mask has shape {tuple(mask.shape)}, which cannot be broadcast to {tuple(whole)}")
    mask = mask.expand(*mask.shape[:-1], keys)
    if any(size != 1 for size in mask.shape[:-3]):
        mask = mask.expand(*outer, *mask.shape[-3:])
        return mask.reshape(-1, *mask.shape[-3:])
    return mask.reshape(1, *mask.shape[-3:])
