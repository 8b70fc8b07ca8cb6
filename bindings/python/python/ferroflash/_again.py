"""Calls on PyTorch's tensors like those before: the native module starts them without describing, checking and planning them again."""

from . import _native

try:
    import torch
except ImportError:
    torch = None


def _opened():
    """The kept calls; None where there is no PyTorch, or one without DLPack's C exchange API."""
    capsule = getattr(getattr(torch, "Tensor", None), "__dlpack_c_exchange_api__", None)
    return None if capsule is None else _native.Calls(capsule)


def forget():
    """Makes no call again, as another device computes them from now on."""
    if _calls is not None:
        _calls.forget()


def started(call):
    """O and LSE of a call whose like was made before; None where it must be made as if for the first time."""
    # This is on the way of every call: what is asked here is asked in as few steps as Python has for it.
    q, k, v, sinks, slopes, bias = call.q, call.k, call.v, call.sinks, call.alibi_slopes, call.attn_bias
    if _calls is None or not type(q) is type(k) is type(v) is torch.Tensor or _is_watching() or not _is_plain(call):
        return None
    if q.is_neg() or k.is_neg() or v.is_neg() or not q.dim() or not v.dim():
        return None
    if (sinks is not None or slopes is not None or bias is not None) and _is_negated((sinks, slopes, bias)):
        return None
    width, lse = v.shape[-1], None
    # In half the time of a tensor of another shape; only what lies by strides has a like.
    if q.shape[-1] != width or q.layout is not torch.strided:
        o = q.new_empty((*q.shape[:-1], width))
    elif q.is_contiguous():
        o = torch.empty_like(q)
    else:
        o = torch.empty_like(q, memory_format=torch.contiguous_format)
    if call.lse:
        batch, seqlen, heads, _ = q.shape
        lse = q.new_empty((batch, heads, seqlen), dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
    return (o, lse) if _calls.start(_tensors(call, o, lse), _options(call)) else None


def is_watched(tensor, *others):
    """Whether a call must be an operator to be seen: by a trace, a transform, a mode, a tensor of another class, or one of `others` too that
    is negated when it is read."""
    return type(tensor) is not torch.Tensor or _is_watching() or tensor.is_neg() or _is_negated(others)


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
    if _calls is not None and _is_plain(call):
        _calls.keep(device, args, _tensors(call, o, lse), _options(call))


def _is_plain(call):
    """Whether only the tensors' addresses tell the call from the next: nothing is cast, copied or filled for it."""
    q, k, v = call.q, call.k, call.v
    if not type(q) is type(k) is type(v) is torch.Tensor:
        return False
    if call.first_k is not None or (call.lse and (call.cu_seqlens_q is not None or q.dim() != 4)):
        return False
    if torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or call.sinks is not None
        or call.alibi_slopes is not None
        or call.attn_bias is not None
    ):
        return False
    return not torch._C._is_any_autocast_enabled()


def _tensors(call, o, lse):
    """In the order of `again.rs`."""
    return (
        call.q, call.k, call.v, o, lse, call.alibi_slopes, call.sinks,
        call.cu_seqlens_q, call.cu_seqlens_k, call.used_k, call.entry_k, call.block_table, call.tree, call.intervals, call.attn_bias,
    )


def _options(call):
    left, right = call.window
    longest_q, longest_k = call.longest
    return call.scale, bool(call.causal), left, right, call.softcap, longest_q, longest_k, call.chunk, call.tree_keys, call.gradients


_calls = _opened()
