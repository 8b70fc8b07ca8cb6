"""flash-attn's functions, with its names, arguments and defaults."""

from . import _native, torch_op
from ._call import Call, compute, numbers
from ._tensors import Torch, framework_of

# Arguments of flash-attn that no device supports yet: the value that asks for nothing, and what else to do.
REFUSED = {
    "dropout_p": (0.0, "there is no dropout"),
    "rotary_cos": (None, "rotate Q and K before the call"),
    "rotary_sin": (None, "rotate Q and K before the call"),
    "num_splits": (0, "the plan decides into how many ranges the keys are split; leave it 0"),
}


def _refuse(**arguments):
    for name, value in arguments.items():
        nothing, advice = REFUSED[name]
        if value is not nothing and value != nothing:
            raise NotImplementedError(f"{name}={value!r} is not supported: {advice}")


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    *,
    sinks=None,
):
    """softmax(scale · Q·Kᵀ) · V of [batch, seqlen, heads, head_dim] tensors; K and V may have fewer heads (GQA, MQA).

    A query's own key is i + seqlen_k − seqlen_q: `causal` hides the keys after it, and `window_size` those farther than (left, right), −1 for
    none. Results are the same on every run, so `deterministic` changes nothing. With `return_attn_probs` it returns (O, LSE, None): the
    probabilities themselves are never stored. LSE is [batch, heads, seqlen_q], −∞ for a query that sees no key. `sinks`, [heads],
    are logits that take part in each softmax without a value (not an argument of flash-attn).
    """
    del deterministic
    _refuse(dropout_p=dropout_p)
    call = Call(q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes, sinks, lse=return_attn_probs)
    return _returned(*_computed(call), return_attn_probs)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
    *,
    sinks=None,
):
    """As flash_attn_func, for sequences behind one another in [rows, heads, head_dim]: sequence i has the rows cu_seqlens[i] to
    cu_seqlens[i + 1] (int32). With `block_table` [batch, pages], K and V are pages [count, page_size, heads, head_dim]. LSE is [heads, rows].
    On a GPU no sequence may be longer than `max_seqlen_q` and `max_seqlen_k` say; on the CPU they are not needed.
    """
    del deterministic
    _refuse(dropout_p=dropout_p)
    call = Call(q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes, sinks, lse=return_attn_probs)
    call.cu_seqlens_q, call.cu_seqlens_k, call.block_table = cu_seqlens_q, cu_seqlens_k, block_table
    call.longest = int(max_seqlen_q), int(max_seqlen_k)
    if block_table is not None:
        call.cu_seqlens_k, call.used_k = None, cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    return _returned(*_computed(call), return_attn_probs)


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
    *,
    sinks=None,
):
    """Attention over a KV cache [batch, seqlen, heads, head_dim], of which sequence i has cache_seqlens[i] keys, from cache_leftpad[i] on.

    `k` and `v` are written into the cache behind them first, in place. With `block_table` the cache is pages [count, page_size, heads,
    head_dim]; `cache_batch_idx` says which entry of the cache is a sequence's. Returns O, or (O, LSE).
    """
    del rotary_interleaved  # It says how rotary_cos is applied, which is refused.
    _refuse(rotary_cos=rotary_cos, rotary_sin=rotary_sin, num_splits=num_splits)
    framework, into = framework_of(q)
    call = Call(q, k_cache, v_cache, softmax_scale, causal, window_size, softcap, alibi_slopes, sinks, lse=return_softmax_lse)
    call.used_k, call.entry_k = cache_seqlens, cache_batch_idx
    call.first_k, call.block_table = cache_leftpad, block_table
    batch = q.shape[0]
    if isinstance(cache_seqlens, int):
        call.used_k = framework.full(into(q), (batch,), cache_seqlens, "int32")
    if (k is None) != (v is None):
        raise ValueError("k and v must be given both or neither")
    if k is not None:
        if call.used_k is None:
            raise ValueError("cache_seqlens must be given with k and v: it says where they are written")
        call.used_k = _append(framework, call, k, v)
    o, lse = _computed(call)
    return (o, lse) if return_softmax_lse else o


def flash_attn_qkvpacked_func(
    qkv,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """flash_attn_func of [batch, seqlen, 3, heads, head_dim]."""
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_kvpacked_func(
    q,
    kv,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """flash_attn_func of Q and [batch, seqlen, 2, heads, head_dim]."""
    k, v = kv[:, :, 0], kv[:, :, 1]
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def merge_states(o_a, lse_a, o_b, lse_b):
    """O and LSE over two disjoint sets of keys, from those over each: O [batch, seqlen, heads, head_dim], LSE [batch, heads, seqlen]."""
    framework, into = framework_of(o_a)
    o_a, lse_a, o_b, lse_b = map(into, (o_a, lse_a, o_b, lse_b))
    math = framework.math()
    lse = math.logaddexp(lse_a, lse_b)
    # A row that sees nothing on either side has the LSE −∞, and no side's share of it is a number.
    shares = [math.exp(side - math.where(lse == -math.inf, 0.0, lse)) for side in (lse_a, lse_b)]
    shares = [math.swapaxes(share, 1, 2)[..., None] for share in shares]
    dtype = framework.describe(o_a)[3]
    o = sum(share * framework.cast(side, "float32") for share, side in zip(shares, (o_a, o_b)))
    return framework.result(framework.cast(o, dtype)), framework.result(lse)


def plan(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), device_model=None):
    """What flash_attn_func would launch for these tensors, and why, as text; with `device_model` ("h200") on a GPU of that model."""
    from ._devices import device_at

    framework, into = framework_of(q)
    call = Call(into(q), into(k), into(v), softmax_scale, causal, window_size)
    args, place, *_ = numbers(framework, call)
    args.o = args.q
    return device_at(place).explain(args) if device_model is None else _native.explain_model(device_model, args)


def _computed(call):
    framework, into = framework_of(call.q)
    if type(framework) is Torch:
        framework.check_gradients((call.q, call.k, call.v, call.alibi_slopes, call.sinks))
        return torch_op.call(framework, call)
    for name in TENSORS:
        if getattr(call, name) is not None:
            setattr(call, name, into(getattr(call, name)))
    framework.check_gradients([getattr(call, name) for name in TENSORS])
    o, lse = compute(framework, call)
    return framework.result(o), None if lse is None else framework.result(lse)


TENSORS = "q k v alibi_slopes sinks cu_seqlens_q cu_seqlens_k used_k first_k entry_k block_table".split()


def _returned(o, lse, with_lse):
    return (o, lse, None) if with_lse else o


def _append(framework, call, k, v):
    """Writes new keys and values behind those of the cache; returns how many there are then."""
    batch, count = k.shape[:2]
    used = call.used_k
    positions = used[:, None] + framework.arange(used, count)
    if call.block_table is None:
        entries = framework.arange(used, batch) if call.entry_k is None else call.entry_k
        at = entries[:, None], positions
    else:
        page_size = call.k.shape[1]
        pages = call.block_table[framework.arange(used, batch)[:, None], positions // page_size]
        at = pages, positions % page_size
    call.k[at], call.v[at] = k, v
    return framework.cast(used + count, "int32")
