"""Ferroflash as a peer of a program that times attention libraries side by side: each function takes bf16 CUDA tensors, allocates, and
returns a function without arguments whose launches go to the current stream and can be captured into a graph.

Dense tensors are [batch, seqlen, heads, head_dim], packed ones [rows, heads, head_dim]. Backward passes are deterministic either way."""

import ferroflash


def forward(q, k, v, causal):
    return lambda: ferroflash.flash_attn_func(q, k, v, causal=causal, return_attn_probs=True)[0]


def varlen_forward(q, k, v, cu_seqlens, max_seqlen, causal):
    lengths = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    return lambda: ferroflash.flash_attn_varlen_func(q, k, v, *lengths, causal=causal, return_attn_probs=True)[0]


def paged_decode(q, k_pages, v_pages, block_table, seqlens):
    """k_pages, v_pages: [pages, keys of a page, heads, head_dim]."""
    options = dict(cache_seqlens=seqlens, block_table=block_table, causal=True)
    return lambda: ferroflash.flash_attn_with_kvcache(q, k_pages, v_pages, **options)


def window_forward(q, k, v, window):
    options = dict(causal=True, window_size=(window - 1, 0), return_attn_probs=True)
    return lambda: ferroflash.flash_attn_func(q, k, v, **options)[0]


def softcap_forward(q, k, v, cap):
    options = dict(causal=True, softcap=cap, return_attn_probs=True)
    return lambda: ferroflash.flash_attn_func(q, k, v, **options)[0]


def backward(q, k, v, d_o, causal, deterministic):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return _gradients(ferroflash.flash_attn_func(*leaves, causal=causal), leaves, d_o)


def varlen_backward(q, k, v, d_o, cu_seqlens, max_seqlen, causal, deterministic):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    lengths = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    return _gradients(ferroflash.flash_attn_varlen_func(*leaves, *lengths, causal=causal), leaves, d_o)


def _gradients(o, leaves, d_o):
    from torch.autograd import grad

    return lambda: grad(o, leaves, d_o, retain_graph=True)
