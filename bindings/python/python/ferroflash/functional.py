"""flash-attn's functions, with its names, arguments and defaults."""

from operator import index

from . import _merge as merge
from . import _again, _native, torch_op
from ._cache import Append
from ._cache import compute as appended
from ._call import Call, check_tensors, compute, dtype_name, flag, length, numbers, put_tree, widened
from ._tensors import Torch, framework_of

def splits(given):
    """What a caller gave for num_splits, as a number."""
    count = index(given)
    if not 0 <= count < 2**31:
        raise ValueError(f"num_splits is {count}, must be 0 (the plan decides), 1 (the keys are not split), or the most ranges of keys")
    return count


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
    tree_mask=None,
    attn_bias=None,
):
    """softmax(scale · Q·Kᵀ) · V of [batch, seqlen, heads, head_dim] tensors; K and V may have fewer heads (GQA, MQA).

    A query's own key is i + seqlen_k − seqlen_q: `causal` hides the keys after it, and `window_size` those farther than (left, right), −1 for
    none. Results are the same on every run, so `deterministic` changes nothing. With `return_attn_probs` it returns (O, LSE, None): the
    probabilities themselves are never stored. LSE is [batch, heads, seqlen_q], −∞ for a query that sees no key. `sinks`, [heads],
    are logits that take part in each softmax without a value. `dropout_p` leaves out weights by the random numbers of PyTorch's generator of the
    device: under the same torch.manual_seed the same ones. `tree_mask`, bool [batch, seqlen_q, keys], says which of the last keys each query
    sees, as in a tree of drafts; all other masks hold as well. `attn_bias`, [batch, heads, seqlen_q, seqlen_k] or 1 in place of all but the last,
    is added to the scores after the scale, rounded to the type of Q; a key with −∞ has no weight. (None of these is an argument of flash-attn.)
    """
    del deterministic
    if tree_mask is None and attn_bias is None and not dropout_p and not _again.is_traced():
        found = _again.as_given(q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes, sinks, return_attn_probs)
        if found is not None:
            return _returned(*found, return_attn_probs)
    call = Call(q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes, sinks, lse=return_attn_probs)
    call.dropout_p = float(dropout_p)
    if attn_bias is not None:
        framework, into = framework_of(q)
        bias = into(attn_bias)
        framework.check_tensor("attn_bias", bias)
        if dtype_name(bias).startswith(("bool", "int", "uint", "complex")):
            raise TypeError(
                f"attn_bias is {dtype_name(bias)}, must be what is added to the scores: give a mask as bool to scaled_dot_product_attention, or as tree_mask"
            )
        call.attn_bias = framework.compact(bias, into(q))
    return _returned(*_computed(call, tree_mask), return_attn_probs)


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
    tree_mask=None,
):
    """As flash_attn_func, for sequences behind one another in [rows, heads, head_dim]: sequence i has the rows cu_seqlens[i] to
    cu_seqlens[i + 1] (int32). With `block_table` [batch, pages], K and V are pages [count, page_size, heads, head_dim]. LSE is [heads, rows].
    On a GPU no sequence may be longer than `max_seqlen_q` and `max_seqlen_k` say; on the CPU they are not needed.
    """
    del deterministic
    is_plain = tree_mask is None and block_table is None and type(max_seqlen_q) is int and type(max_seqlen_k) is int
    if is_plain and not dropout_p and not _again.is_traced():
        longest = max_seqlen_q, max_seqlen_k
        found = _again.as_given(
            q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes, sinks, return_attn_probs, None, None, None,
            cu_seqlens_q, cu_seqlens_k, longest,
        )
        if found is not None:
            return _returned(*found, return_attn_probs)
    call = Call(q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes, sinks, lse=return_attn_probs)
    call.dropout_p = float(dropout_p)
    call.cu_seqlens_q, call.cu_seqlens_k, call.block_table = cu_seqlens_q, cu_seqlens_k, block_table
    call.longest = length(max_seqlen_q), length(max_seqlen_k)
    if block_table is not None:
        call.cu_seqlens_k, call.used_k = None, cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    return _returned(*_computed(call, tree_mask), return_attn_probs)


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
    tree_mask=None,
):
    """Attention over a KV cache [batch, seqlen, heads, head_dim], of which sequence i has cache_seqlens[i] keys, from cache_leftpad[i] on.

    `k` and `v` are written into the cache behind them first, in place. With `block_table` the cache is pages [count, page_size, heads,
    head_dim]; `cache_batch_idx` says which entry of the cache is a sequence's. `rotary_cos` and `rotary_sin` [positions, rotary_dim / 2]
    rotate the new keys by where they are written, and query i by the position cache_seqlens + i, or all by cache_seqlens where no mask
    depends on positions; `rotary_interleaved` pairs elements 2i and 2i + 1, else i and i + rotary_dim / 2. `num_splits` is the most ranges that
    the keys are split into on a GPU: 1 splits nothing, 0 leaves it to the plan. Returns O, or (O, LSE).
    """
    interleaved = flag("rotary_interleaved", rotary_interleaved)
    num_splits = splits(num_splits)
    is_plain = k is v is rotary_cos is rotary_sin is cache_leftpad is tree_mask is None and type(cache_seqlens) is not int and not num_splits
    if is_plain and not _again.is_traced():
        found = _again.as_given(
            q, k_cache, v_cache, softmax_scale, causal, window_size, softcap, alibi_slopes, sinks, return_softmax_lse,
            cache_seqlens, cache_batch_idx, block_table,
        )
        if found is not None:
            return found if return_softmax_lse else found[0]
    call = Call(q, k_cache, v_cache, softmax_scale, causal, window_size, softcap, alibi_slopes, sinks, lse=return_softmax_lse)
    call.used_k, call.entry_k = cache_seqlens, cache_batch_idx
    call.first_k, call.block_table, call.num_splits = cache_leftpad, block_table, num_splits
    new = dict(rotary_cos=rotary_cos, rotary_sin=rotary_sin, interleaved=interleaved)
    o, lse = _with_new(call, k, v, new, tree_mask)
    return (o, lse) if return_softmax_lse else o


def _with_new(call, k, v, new, tree_mask=None):
    """O and LSE over a cache once new keys and values are in it; `new` says how they are rotated and where they start."""
    framework, into = framework_of(call.q)
    rotary = new.get("rotary_cos"), new.get("rotary_sin")
    framework.check_gradients((call.q, call.k, call.v, k, v, *rotary, call.sinks), "flash_attn_with_kvcache has")
    if type(call.used_k).__module__ == "numpy" and call.used_k.shape == ():
        call.used_k = index(call.used_k)
    if isinstance(call.used_k, int):
        if not 0 <= call.used_k < 2**31:
            raise ValueError(f"cache_seqlens is {call.used_k}, must be 0 to {2**31 - 1}")
        batch = call.q.shape[0] if call.cu_seqlens_q is None else call.cu_seqlens_q.shape[0] - 1
        call.used_k = framework.full(into(call.q), (batch,), call.used_k, "int32")
    if (k is None) != (v is None):
        raise ValueError("k and v must be given both or neither")
    if k is None:
        for name in ("rotary_cos", "rotary_sin", "rotary_seqlens", "cu_seqlens_new"):
            if new.get(name) is not None:
                raise ValueError(f"{name} is given without k and v: it is of new keys and values")
        return _computed(call, tree_mask)
    if call.used_k is None:
        raise ValueError("cache_seqlens must be given with k and v: it says where they are written")
    each_query = call.causal or any(keys is not None and keys >= 0 for keys in call.window)
    given = dict(cu_seqlens_q=call.cu_seqlens_q, each_query=each_query, **new)
    append = Append(call.q, call.k, call.v, k, v, call.used_k, call.entry_k, call.block_table, **given)
    for name in APPENDED:
        if getattr(append, name) is not None:
            setattr(append, name, into(getattr(append, name)))
    check_tensors(framework, append, APPENDED)
    call.q, call.used_k = torch_op.append(append) if type(framework) is Torch else appended(framework, append)
    # Q is not of the caller's framework any more where that is neither PyTorch nor NumPy.
    return _computed(call, tree_mask, (framework, into))


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
    # The gradient of `unbind` is one copy.
    return flash_attn_func(
        *_parts(qkv, 3), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
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
    return flash_attn_func(
        q, *_parts(kv, 2), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_varlen_qkvpacked_func(
    qkv,
    cu_seqlens,
    max_seqlen,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """flash_attn_varlen_func of [rows, 3, heads, head_dim]."""
    lengths = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    options = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn_varlen_func(*_parts(qkv, 3), *lengths, *options)


def flash_attn_varlen_kvpacked_func(
    q,
    kv,
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
):
    """flash_attn_varlen_func of Q and [rows, 2, heads, head_dim]."""
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    options = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn_varlen_func(q, *_parts(kv, 2), *lengths, *options)


def _parts(packed, count):
    """Q, K and V, or K and V, which are one tensor."""
    framework_of(packed)
    if len(packed.shape) < 4 or packed.shape[-3] != count:
        names = "qkv" if count == 3 else "kv"
        raise ValueError(f"{names} has shape {tuple(packed.shape)}, must be [..., {count}, heads, head_dim]")
    # The gradient of `unbind` is one copy; what has none is indexed.
    return packed.unbind(-3) if hasattr(packed, "unbind") else [packed[..., part, :, :] for part in range(count)]


def merge_states(o_a, lse_a, o_b, lse_b):
    """O and LSE over two disjoint sets of keys, from those over each: O [batch, seqlen, heads, head_dim], LSE [batch, heads, seqlen], or
    [rows, heads, head_dim] and [heads, rows]."""
    framework, into = framework_of(o_a)
    o_a, lse_a, o_b, lse_b = map(into, (o_a, lse_a, o_b, lse_b))
    framework.check_gradients((o_a, lse_a, o_b, lse_b), "merge_states has")
    return tuple(map(framework.result, merge.compute(framework, [(o_a, lse_a), (o_b, lse_b)])))


def plan(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), device_model=None):
    """What flash_attn_func would launch for these tensors, and why, as text; with `device_model` ("h200") on a GPU of that model."""
    from ._devices import device_at

    framework, into = framework_of(q)
    call = Call(into(q), into(k), into(v), softmax_scale, causal, window_size)
    widened(framework, call, None if device_model is None else True)
    args, place, (*_, rows, heads, width), _ = numbers(framework, call)
    # O as it would lie; Q may have elements at one place.
    args.o = (0, rows * heads * width, width, heads * width)
    return device_at(place).explain(args) if device_model is None else _native.explain_model(device_model, args)


def under_a_mask(q, k, v, mask, **options):
    """flash_attn_func of PyTorch's tensors under a mask [batch, heads, seqlen_q, seqlen_k] or 1: bool (True is seen), or a bias."""
    import torch

    if mask.dtype != torch.bool:
        return flash_attn_func(q, k, v, attn_bias=mask, **options)
    if mask.shape[1] == 1 and k.shape[1] > 0:
        return flash_attn_func(q, k, v, tree_mask=mask[:, 0].expand(q.shape[0], q.shape[1], k.shape[1]), **options)
    return flash_attn_func(q, k, v, attn_bias=as_bias(mask, q), **options)


def as_bias(mask, like):
    """A bool mask as a bias of the type of another tensor."""
    return like.new_zeros(()).where(mask, float("-inf"))


def _computed(call, tree_mask=None, given=None):
    framework, into = given or framework_of(call.q)
    if tree_mask is not None:
        put_tree(framework, call, into(tree_mask))
    is_torch = type(framework) is Torch
    found = _again.started(call) if is_torch else None
    if found is not None:
        return found
    if not 0 <= call.dropout_p < 1:
        raise ValueError(f"dropout_p={call.dropout_p} cannot be: it is at least 0 and below 1")
    if call.dropout_p and not is_torch:
        raise NotImplementedError(f"dropout_p={call.dropout_p} is not supported: its random numbers are PyTorch's, give tensors of PyTorch")
    if not is_torch:
        for name in TENSORS:
            if getattr(call, name) is not None:
                setattr(call, name, into(getattr(call, name)))
    check_tensors(framework, call, TENSORS)
    if call.sinks is not None and dtype_name(call.sinks) in ("float16", "bfloat16"):
        # As models keep them; they are added up in float32.
        call.sinks = framework.cast(call.sinks, "float32")
    width = widened(framework, call)
    o, lse = torch_op.call(framework, call) if is_torch else compute(framework, call)
    o = o if width is None else o[..., :width]
    return (o, lse) if is_torch else (framework.result(o), None if lse is None else framework.result(lse))


APPENDED = (
    "q k_cache v_cache k v used_k entry_k block_table rotary_cos rotary_sin rotary_seqlens cu_seqlens_q cu_seqlens_new".split()
)
TENSORS = "q k v alibi_slopes attn_bias sinks cu_seqlens_q cu_seqlens_k used_k first_k entry_k block_table".split()


def _returned(o, lse, with_lse):
    return (o, lse, None) if with_lse else o
