"""Gradients of a call: dQ, dK, dV, the sinks' and the bias', by the device that computed it."""

from . import _devices
from ._call import _strided, filled, is_empty, numbers, with_intervals


class Args:
    """The fields that the native module reads."""

    __slots__ = "forward d_o d_lse d_q d_k d_v d_sinks d_bias ds_bytes_max".split()


def check(framework, call):
    """Refuses a call whose gradients its device does not compute."""
    with_intervals(framework, call)
    args, place, o_shape, _ = numbers(framework, call)
    if not is_empty(args, o_shape, call):
        # O is not there yet: as it will lie.
        *_, rows, heads, width = o_shape
        args.o = (0, rows * heads * width, width, heads * width)
        _devices.device_at(place).check_gradients(args)


def compute(framework, call, o, lse, d_o, d_lse, of_sinks, of_bias):
    """The gradients, those of the sinks and of the bias None unless they are wanted; `d_lse` may be None."""
    with_intervals(framework, call)
    forward, place, o_shape, _ = numbers(framework, call)
    # What belongs to no sequence is not written.
    made = framework.empty if call.cu_seqlens_q is None and call.cu_seqlens_k is None and call.used_k is None else _zeros(framework)
    if is_empty(forward, o_shape, call):
        made = _zeros(framework)
    d_q, d_k, d_v = (made(tensor, tuple(tensor.shape)) for tensor in (call.q, call.k, call.v))
    d_sinks = framework.full(call.sinks, tuple(call.sinks.shape), 0.0, "float32") if of_sinks else None
    d_bias = _zeros(framework)(call.attn_bias, tuple(call.attn_bias.shape)) if of_bias else None
    if 0 in o_shape or forward.sizes[0] == 0:
        return d_q, d_k, d_v, d_sinks, d_bias
    if 0 in call.k.shape:
        of_lse = d_lse.sum((0, 2) if d_lse.ndim == 3 else 1) if of_sinks and d_lse is not None else d_sinks
        return d_q, d_k, d_v, of_lse, d_bias
    args = Args()
    args.forward, args.ds_bytes_max = forward, _devices.ds_bytes_max()
    o, d_o = framework.aligned(o), framework.aligned(d_o)
    forward.o, args.d_o = _strided(framework.describe(o)), _strided(framework.describe(d_o))
    forward.lse = framework.describe(lse)[0]
    if d_lse is not None:
        d_lse = framework.contiguous(d_lse)
    args.d_lse, args.d_sinks, args.d_bias = (None if x is None else framework.describe(x)[0] for x in (d_lse, d_sinks, d_bias))
    args.d_q, args.d_k, args.d_v = (_strided(framework.describe(tensor)) for tensor in (d_q, d_k, d_v))
    _devices.run(framework, place, "backward", args)
    return d_q, d_k, d_v, d_sinks, d_bias


def _zeros(framework):
    return lambda like, shape: filled(framework, like, shape, 0)
