"""The merge of two calls' O and LSE by the kernel of a device that has one."""

from . import _devices
from ._call import _shown, _strided


class Args:
    """The fields that the native module reads."""

    __slots__ = "partial dtype sizes partial_strides strides a b o lse".split()


def is_for_device(framework, o):
    """Whether a kernel merges tensors that lie where this one does."""
    return not framework.is_traced(o) and _devices.device_at(framework.describe(o)[4]).merges


def compute(framework, a, b, dtype=None):
    """O, of another type where one is named, and LSE."""
    (o_a, lse_a), (o_b, lse_b) = a, b
    described = framework.describe(o_a), framework.describe(o_b)
    if described[0][2] != described[1][2] or described[0][2][-1:] != (1,):
        o_a, o_b = framework.contiguous(o_a), framework.contiguous(o_b)
        described = framework.describe(o_a), framework.describe(o_b)
    lse_a, lse_b = framework.contiguous(lse_a), framework.contiguous(lse_b)
    (_, shape, _, partial, place), other = described
    if len(shape) != 4:
        raise ValueError(f"O has shape {shape}, must have 4 dimensions [batch, seqlen, heads, head_dim]")
    if other[1] != shape or other[3] != partial:
        raise ValueError(f"the second O is {other[3]} of shape {other[1]}, the first {partial} of {shape}")
    batch, seqlen, heads, width = shape
    for lse in (lse_a, lse_b):
        _, found, _, found_dtype, found_place = framework.describe(lse)
        if found != (batch, heads, seqlen) or found_dtype != "float32":
            raise ValueError(f"LSE is {found_dtype} of shape {found}, must be float32 of {(batch, heads, seqlen)}")
        if found_place != place or other[4] != place:
            raise ValueError(f"a tensor is on {_shown(found_place)}, O on {_shown(place)}")
    o = framework.empty(o_a, shape, dtype or partial)
    merged = framework.empty(o_a, (batch, heads, seqlen), "float32")
    args = Args()
    args.partial, args.dtype, args.sizes = partial, dtype or partial, (batch, heads, seqlen, width)
    out = _strided(framework.describe(o))
    first, second = _strided(described[0]), _strided(described[1])
    args.partial_strides, args.strides = first[1:], out[1:]
    args.a = first[0], framework.describe(lse_a)[0]
    args.b = second[0], framework.describe(lse_b)[0]
    args.o, args.lse = out[0], framework.describe(merged)[0]
    _devices.device_at(place).merge(args, framework.stream(place))
    return o, merged
