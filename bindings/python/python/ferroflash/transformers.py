"""Ferroflash as an attention implementation of Hugging Face transformers."""

from .functional import flash_attn_func, flash_attn_varlen_func


def register(name="ferro"):
    """Registers the attention function and its mask function under a name, for `attn_implementation=` and `set_attn_implementation`.

    The name must not contain "flash": transformers takes such names for packages or kernels that it loads by itself. Returns the name.
    """
    if "flash" in name:
        raise ValueError(f'name {name!r} contains "flash", which transformers takes for a package of its own: choose another, as "ferro"')
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

    AttentionInterface.register(name, attention_forward)
    # Without a mask function the model would get no mask, and attend to padding.
    AttentionMaskInterface.register(name, flash_attention_mask)
    return name


def attention_forward(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    sliding_window=None,
    softcap=None,
    is_causal=None,
    s_aux=None,
    position_bias=None,
    output_attentions=False,
    cu_seq_lens_q=None,
    cu_seq_lens_k=None,
    max_length_q=None,
    max_length_k=None,
    **kwargs,
):
    """Q, K and V are [batch, heads, seqlen, head_dim]; O is [batch, seqlen, heads, head_dim]. `attention_mask` is 2-D, of keys, or None."""
    if position_bias is not None:
        raise NotImplementedError("position_bias is not supported")
    if output_attentions:
        raise NotImplementedError("output_attentions is not supported: the probabilities are never stored")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    # transformers' sliding window counts the query's own key.
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0 if causal else sliding_window - 1)
    options = {
        "dropout_p": dropout,
        "softmax_scale": scaling,
        "causal": causal,
        "window_size": window,
        "softcap": softcap or 0.0,
        "sinks": None if s_aux is None else s_aux.float().contiguous(),
    }
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        rows = (tensor.flatten(0, 1) for tensor in (q, k, v))
        lengths = cu_seq_lens_q.int(), cu_seq_lens_k.int(), max_length_q or q.shape[1], max_length_k or k.shape[1]
        return flash_attn_varlen_func(*rows, *lengths, **options).view(q.shape), None
    if attention_mask is None:
        return flash_attn_func(q, k, v, **options), None
    if attention_mask.dim() != 2:
        raise NotImplementedError(f"attention_mask of {attention_mask.dim()} dimensions is not supported: only padding, [batch, keys]")
    return _without_padding(q, k, v, attention_mask.bool(), options), None


def _without_padding(q, k, v, mask, options):
    """Attention of the rows that are no padding, put back in their places; rows of padding are 0. The queries are the last of the keys."""
    import torch

    queries, keys = mask[:, -q.shape[1] :], mask[:, -k.shape[1] :]

    def ends(rows):
        lengths = rows.sum(1)
        return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()

    o = q.new_zeros(q.shape)
    o[queries] = flash_attn_varlen_func(
        q[queries], k[keys], v[keys], ends(queries), ends(keys), q.shape[1], k.shape[1], **options
    )
    return o
