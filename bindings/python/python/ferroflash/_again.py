"""Calls on PyTorch's tensors like those before: the native module starts them without describing, checking and planning them again."""

from . import _native
from ._tensors import torch


def _opened():
    """The kept calls; None where there is no PyTorch, or one without DLPack's C exchange API."""
    capsule = getattr(getattr(torch, "Tensor", None), "__dlpack_c_exchange_api__", None)
    return None if capsule is None else _native.Calls(torch, capsule)


def forget():
    """Makes no call again, as another device computes them from now on."""
    if _calls is not None:
        _calls.forget()


def started(call):
    """O and LSE of a call whose like was made before; None where it must be made as if for the first time."""
    # This is on the way of every call: what can be asked there is asked by the native module.
    if _calls is None or call.first_k is not None or call.dropout_p or is_traced():
        return None
    if not type(call.longest[0]) is type(call.longest[1]) is type(call.tree_keys) is int:
        # A length that a trace follows would become a number when it is read.
        return None
    return _calls.again(_tensors(call), _options(call))


def is_watched(tensor, *others):
    """Whether a call must be an operator to be seen: by a trace, a transform, a mode, a tensor of another class, or one of `others` too that
    is negated when it is read. A tensor without memory (of the device "meta") has shapes alone, which the operator knows."""
    return type(tensor) is not torch.Tensor or _is_watching() or tensor.is_neg() or tensor.is_meta or _is_negated(others)


def _is_watching():
    """Whether PyTorch wants to see calls: for a trace, a transform or a mode."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
    )


def _is_negated(tensors):
    # A generator would take three times as long.
    for tensor in tensors:
        if tensor is not None and isinstance(tensor, torch.Tensor) and tensor.is_neg():
            return True
    return False


def keep(device, args, call, o, lse):
    """Keeps a call that was made, so that the next like it is started at once."""
    # Each call with dropout is another one.
    if _calls is not None and call.first_k is None and not call.dropout_p:
        _calls.keep(device, args, _tensors(call), _options(call), (o, lse))


def _tensors(call):
    """In the order of `again.rs`."""
    return (
        call.q, call.k, call.v, call.alibi_slopes, call.sinks, call.cu_seqlens_q, call.cu_seqlens_k, call.used_k, call.entry_k,
        call.block_table, call.tree, call.intervals, call.attn_bias,
    )


def _options(call):
    left, right = call.window
    longest_q, longest_k = call.longest
    causal, lse = bool(call.causal), bool(call.lse)
    return call.scale, causal, left, right, call.softcap, longest_q, longest_k, call.chunk, call.tree_keys, call.num_splits, call.gradients, lse


def _nothing(*_):
    """What there is to find or to ask where there is no PyTorch, or one that is too old."""
    return None


def _compiler(name):
    return getattr(getattr(torch, "compiler", None), name, None)


_calls = _opened()
# As `started`, of a function's arguments as they were given, where no `Call` is made yet, which takes as long to make as all that is asked there.
# Not to be called where a function `is_traced`.
as_given = getattr(_calls, "again_as_given", _nothing)
# As `as_given`, of scaled_dot_product_attention's arguments: O alone.
heads_first = getattr(_calls, "again_heads_first", _nothing)
# Whether torch.compile traces the caller; what other tracers give a function are no plain tensors. It is asked in every call, so that it stands here
# under its own name.
is_traced = _compiler("is_dynamo_compiling") or _compiler("is_compiling") or _nothing
