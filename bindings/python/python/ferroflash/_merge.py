"""The merge of O and LSE of several calls over disjoint keys: by their device, or where PyTorch watches, by its arithmetic."""

import math
from itertools import pairwise

from . import _again, _devices
from ._call import _shown, _strided, dtype_name, lse_dtype
from ._tensors import torch


class Args:
    """The fields that the native module reads."""

    __slots__ = "partial dtype states sizes partial_strides strides a b o lse".split()


def compute(framework, states, dtype=None):
    """O, of another type where one is named, and LSE [batch, heads, seqlen], from states (O, LSE) of the same shapes."""
    o, lse = states[0]
    framework.check_tensor("O", o)
    shape, partial, place = tuple(o.shape), dtype_name(o), framework.place(o)
    if len(shape) == 3 and all(o.ndim == 3 and lse.ndim == 2 for o, lse in states):
        # Sequences behind one another: rows are merged one by one.
        return tuple(merged[0] for merged in compute(framework, [(o[None], lse[None]) for o, lse in states], dtype))
    if len(shape) != 4:
        raise ValueError(f"O has shape {shape}, must have dimensions [batch, seqlen, heads, head_dim] or [rows, heads, head_dim]")
    batch, seqlen, heads, _ = shape
    for o, lse in states:
        framework.check_tensor("O", o)
        found, found_dtype, found_place = tuple(o.shape), dtype_name(o), framework.place(o)
        if (found, found_dtype) != (shape, partial):
            raise ValueError(f"an O is {found_dtype} of shape {found}, the first {partial} of {shape}")
        framework.check_tensor("LSE", lse)
        found, found_dtype, lse_place = tuple(lse.shape), dtype_name(lse), framework.place(lse)
        if found != (batch, heads, seqlen) or found_dtype != lse_dtype(partial):
            raise ValueError(f"LSE is {found_dtype} of shape {found}, must be {lse_dtype(partial)} of {(batch, heads, seqlen)}")
        if found_place != place or lse_place != place:
            raise ValueError(f"a tensor is on {_shown(lse_place if found_place == place else found_place)}, O on {_shown(place)}")
    is_watched = torch is not None and isinstance(o, torch.Tensor) and _again.is_watched(*(tensor for state in states for tensor in state))
    if not is_watched:
        for tensor in (tensor for state in states for tensor in state):
            # Refuses what cannot be read, as one whose storage was freed.
            framework.describe(tensor)
    # No device merges float64.
    if not is_watched and partial != "float64" and 0 not in shape:
        return _by_device(framework, states, shape, partial, dtype or partial, place)
    return _by_arithmetic(framework, states, dtype or partial, lse_dtype(partial))


def _by_device(framework, states, shape, partial, dtype, place):
    (batch, seqlen, heads, width), described = shape, [framework.describe(o) for o, _ in states]
    apart = {after[0] - before[0] for before, after in pairwise(described)}
    if len({strides for _, _, strides, *_ in described}) > 1 or described[0][2][-1] != 1 or len(apart) > 1:
        stacked = framework.contiguous(framework.math().stack([o for o, _ in states]))
        described = [framework.describe(o) for o in stacked]
    # One tensor, so that every state is as far from the next.
    lses = framework.contiguous(framework.math().stack([lse for _, lse in states]))
    lse = [framework.describe(lse)[0] for lse in lses]
    like = states[0][0]
    o, merged = framework.empty(like, shape, dtype), framework.empty(like, (batch, heads, seqlen), "float32")
    first, out = _strided(described[0]), _strided(framework.describe(o))
    args = Args()
    args.partial, args.dtype, args.states = partial, dtype, len(states)
    args.sizes, args.partial_strides, args.strides = (batch, heads, seqlen, width), first[1:], out[1:]
    # One state has no next.
    following = min(1, len(states) - 1)
    args.a, args.b = (first[0], lse[0]), (described[following][0], lse[following])
    args.o, args.lse = out[0], framework.describe(merged)[0]
    _devices.device_at(place).merge(args, framework.stream(place))
    return o, merged


def _by_arithmetic(framework, states, dtype, sums):
    np = framework.math()
    lse = states[0][1]
    for _, other in states[1:]:
        lse = np.logaddexp(lse, other)
    # A row that sees nothing in any state has the LSE −∞, and no state's share of it is a number.
    base = np.where(lse == -math.inf, 0.0, lse)
    shares = [np.swapaxes(np.exp(side - base), 1, 2)[..., None] for _, side in states]
    # What a state without keys holds is anything.
    sides = [np.where(share == 0, 0.0, framework.cast(o, sums)) for share, (o, _) in zip(shares, states)]
    return framework.cast(sum(share * side for share, side in zip(shares, sides)), dtype), lse
