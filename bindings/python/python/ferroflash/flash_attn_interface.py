"""The functions of flash-attn 3's module of this name, with its arguments and defaults.

What is not supported is refused by name. Arguments that only say how something is computed (pack_gqa, sm_margin, scheduler_metadata, and
num_splits but for a cache) are the plan's own business: values that leave it the choice are accepted, others refused. `learnable_sink`
[heads] is flash-attn 4's argument of that name.
"""

from . import _merge
from ._call import Call, flag, length
from ._tensors import framework_of
from .functional import _computed, _with_new, splits

# The values that ask for nothing, by argument, and what else to do.
REFUSED = {
    "qv": ((None,), "there is no second part of Q"),
    "q_descale": ((None,), "there is no fp8 yet"),
    "k_descale": ((None,), "there is no fp8 yet"),
    "v_descale": ((None,), "there is no fp8 yet"),
    "seqused_q": ((None,), "shorten cu_seqlens_q"),
    "num_splits": ((0, 1), "the plan decides into how many ranges the keys are split; leave it 0"),
    "pack_gqa": ((None,), "the plan decides which heads are packed; leave it None"),
    "sm_margin": ((0,), "kernels take all multiprocessors"),
    "scheduler_metadata": ((None,), "there is none: get_scheduler_metadata returns None"),
    "out": ((None,), "O is allocated"),
}

# What the functions here call fields that have another name elsewhere.
_NAMES = {"sinks": "learnable_sink", "block_table": "page_table"}


def _refuse(**arguments):
    for name, value in arguments.items():
        nothing, advice = REFUSED[name]
        if not any(value is no or isinstance(value, int) and value == no for no in nothing):
            shown = value if isinstance(value, (int, float, str)) else type(value).__name__
            raise NotImplementedError(f"{name}={shown} is not supported: {advice}")


def _chunk(keys):
    if not isinstance(keys, int) or keys < 0:
        raise ValueError(f"attention_chunk={keys!r} is no number of keys, or 0 for none")
    return keys


def _returned(o, lse, with_lse):
    return (o, lse) if with_lse else o


def flash_attn_func(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
    *,
    learnable_sink=None,
):
    """As ferroflash.flash_attn_func; with `return_attn_probs` it returns (O, LSE)."""
    del deterministic
    _refuse(
        qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        num_splits=num_splits, pack_gqa=pack_gqa, sm_margin=sm_margin,
    )
    call = Call(q, k, v, softmax_scale, causal, window_size, softcap, None, learnable_sink, lse=return_attn_probs)
    call.chunk, call.names = _chunk(attention_chunk), _NAMES
    return _returned(*_computed(call), return_attn_probs)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    seqused_q=None,
    seqused_k=None,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
    *,
    learnable_sink=None,
):
    """As ferroflash.flash_attn_varlen_func, of whose keys each sequence has seqused_k [batch] where they are given."""
    del deterministic
    _refuse(
        seqused_q=seqused_q, qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        num_splits=num_splits, pack_gqa=pack_gqa, sm_margin=sm_margin,
    )
    call = Call(q, k, v, softmax_scale, causal, window_size, softcap, None, learnable_sink, lse=return_attn_probs)
    call.chunk = _chunk(attention_chunk)
    call.cu_seqlens_q, call.cu_seqlens_k, call.used_k = cu_seqlens_q, cu_seqlens_k, seqused_k
    call.names = _NAMES | {"used_k": "seqused_k"}
    call.longest = length(max_seqlen_q), length(max_seqlen_k)
    return _returned(*_computed(call), return_attn_probs)


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
    *,
    learnable_sink=None,
):
    """As ferroflash.flash_attn_with_kvcache; with `cu_seqlens_q`, Q is [rows, heads, head_dim], and with `cu_seqlens_k_new` so are k and v.
    Rotations start at `rotary_seqlens` [batch] where they are given.
    """
    _refuse(
        qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        scheduler_metadata=scheduler_metadata, pack_gqa=pack_gqa, sm_margin=sm_margin,
    )
    call = Call(q, k_cache, v_cache, softmax_scale, causal, window_size, softcap, None, learnable_sink, lse=return_softmax_lse)
    call.chunk, call.names, call.num_splits = _chunk(attention_chunk), _NAMES, splits(num_splits)
    call.used_k, call.entry_k = cache_seqlens, cache_batch_idx
    call.first_k, call.block_table, call.cu_seqlens_q = cache_leftpad, page_table, cu_seqlens_q
    if max_seqlen_q is not None:
        call.longest = length(max_seqlen_q), 0
    new = dict(rotary_cos=rotary_cos, rotary_sin=rotary_sin, interleaved=flag("rotary_interleaved", rotary_interleaved))
    new |= dict(rotary_seqlens=rotary_seqlens, cu_seqlens_new=cu_seqlens_k_new)
    return _returned(*_with_new(call, k, v, new), return_softmax_lse)


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """O [batch, seqlen, heads, head_dim] of type `out_dtype` (float32 where none is named) and LSE [batch, seqlen, heads], from splits of
    the keys: O [splits, batch, seqlen, heads, head_dim] and LSE [splits, batch, seqlen, heads], float32; or of all with rows in place of batch and
    seqlen.
    """
    _refuse(out=out)
    framework, into = framework_of(out_partial)
    out_partial, lse_partial = into(out_partial), into(lse_partial)
    framework.check_gradients((out_partial, lse_partial), "flash_attn_combine has")
    lse = framework.math().swapaxes(lse_partial, -1, -2)
    dtype = None if out_dtype is None else str(out_dtype).removeprefix("torch.")
    o, merged = _merge.compute(framework, list(zip(out_partial, lse)), dtype)
    return framework.result(o), framework.result(framework.math().swapaxes(merged, -1, -2))


def get_scheduler_metadata(*arguments, **keywords):
    """None: nothing is prepared before a call, and `scheduler_metadata` takes it."""
    del arguments, keywords
