"""The call as a PyTorch operator, so that torch.compile takes it as one opaque step without a graph break."""

from . import _cache
from ._call import Call, compute
from ._tensors import Torch

try:
    import torch
except ImportError:
    torch = None

_SCHEMA = (
    "forward(Tensor q, Tensor k, Tensor v, Tensor? alibi_slopes, Tensor? sinks, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k,"
    " Tensor? used_k, Tensor? first_k, Tensor? entry_k, Tensor? block_table, Tensor? tree, float? scale, bool causal, int left, int right,"
    " int longest_q, int longest_k, int chunk, int tree_keys, float softcap, bool lse) -> (Tensor, Tensor)"
)


_APPEND_SCHEMA = (
    "append(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k, Tensor v, Tensor used_k, Tensor? entry_k, Tensor? block_table,"
    " Tensor? rotary_cos, Tensor? rotary_sin, Tensor? rotary_seqlens, Tensor? cu_seqlens_q, Tensor? cu_seqlens_new, bool interleaved,"
    " bool each_query) -> (Tensor, Tensor)"
)


def append(call):
    """Q as it is rotated and the lengths after, through the operator where PyTorch traces, and directly otherwise."""
    if not torch.compiler.is_compiling() and type(call.q) is torch.Tensor:
        return _cache.compute(Torch(torch), call)
    rotated, lengths = torch.ops.ferroflash.append(*[getattr(call, name) for name in _cache.FIELDS])
    return call.q if call.rotary_cos is None else rotated, lengths


def _append(*arguments):
    call = _cache.Append(*arguments)
    rotated, lengths = _cache.compute(Torch(torch), call)
    # An operator's result is none of its inputs.
    return call.q.new_empty(0) if call.rotary_cos is None else rotated, lengths


def _fake_append(*arguments):
    call = _cache.Append(*arguments)
    shape = (0,) if call.rotary_cos is None else call.q.shape
    return call.q.new_empty(shape), torch.empty_like(call.used_k)


def call(framework, call):
    """O and LSE, through the operator where PyTorch traces, and directly otherwise."""
    device = call.q.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        call.q, call.k, call.v = (tensor.to(dtype) for tensor in (call.q, call.k, call.v))
    if not torch.compiler.is_compiling() and type(call.q) is torch.Tensor:
        return compute(framework, call)
    left, right = (-1 if keys is None else keys for keys in call.window)
    o, lse = torch.ops.ferroflash.forward(
        call.q,
        call.k,
        call.v,
        call.alibi_slopes,
        call.sinks,
        call.cu_seqlens_q,
        call.cu_seqlens_k,
        call.used_k,
        call.first_k,
        call.entry_k,
        call.block_table,
        call.tree,
        call.scale,
        call.causal,
        left,
        right,
        *call.longest,
        call.chunk,
        call.tree_keys,
        call.softcap,
        call.lse,
    )
    return o, lse if call.lse else None


def _defined():
    library = torch.library.Library("ferroflash", "DEF")
    library.define(_SCHEMA)
    library.impl("forward", _forward, "CPU")
    library.impl("forward", _forward, "CUDA")
    torch.library.register_fake("ferroflash::forward", _fake, lib=library)
    library.define(_APPEND_SCHEMA)
    library.impl("append", _append, "CPU")
    library.impl("append", _append, "CUDA")
    torch.library.register_fake("ferroflash::append", _fake_append, lib=library)
    return library


def _call(*arguments):
    q, k, v, alibi, sinks, cu_q, cu_k, used, first, entry, table, tree, scale, *rest = arguments
    causal, left, right, *longest, chunk, tree_keys, softcap, lse = rest
    call = Call(q, k, v, scale, causal, (left, right), softcap, alibi, sinks, lse)
    call.cu_seqlens_q, call.cu_seqlens_k, call.used_k = cu_q, cu_k, used
    call.first_k, call.entry_k, call.block_table, call.longest = first, entry, table, tuple(longest)
    call.tree, call.tree_keys, call.chunk = tree, tree_keys, chunk
    return call


def _forward(*arguments):
    o, lse = compute(Torch(torch), _call(*arguments))
    return o, lse if lse is not None else o.new_empty(0, dtype=torch.float32)


def _fake(*arguments):
    call = _call(*arguments)
    o = torch.empty(call.q.shape, dtype=call.q.dtype, device=call.q.device)
    if not call.lse:
        shape = (0,)
    elif call.cu_seqlens_q is not None:
        shape = (call.q.shape[1], call.q.shape[0])
    else:
        shape = (call.q.shape[0], call.q.shape[2], call.q.shape[1])
    return o, o.new_empty(shape, dtype=torch.float32)


# Before any call, as a first call that torch.compile traces cannot define an operator. It lasts as long as the library object.
_library = None if torch is None else _defined()
