"""New keys and values into a cache, contiguous or in pages, in place, with keys and queries rotated by their positions."""

from dataclasses import dataclass, fields
from typing import Any

from . import _devices
from ._call import _check_alike, _strided, operand


@dataclass
class Append:
    """What is appended: k and v [batch, tokens, heads, head_dim] or, with cu_seqlens_new, [rows, heads, head_dim]."""

    q: Any
    k_cache: Any
    v_cache: Any
    k: Any
    v: Any
    used_k: Any
    entry_k: Any = None
    block_table: Any = None
    rotary_cos: Any = None
    rotary_sin: Any = None
    rotary_seqlens: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_new: Any = None
    interleaved: bool = True
    each_query: bool = False
    # As `Call.names`.
    names = {"cu_seqlens_new": "cu_seqlens_k_new"}


FIELDS = tuple(field.name for field in fields(Append))


class Args:
    """The fields that the native module reads."""

    __slots__ = (
        "dtype sizes tokens new_k new_v k v q rotated_q cumulative_new lengths lengths_after pages rotary".split()
    )


def compute(framework, call):
    """Q as it is rotated (itself where it is not), and how many keys each sequence has then."""
    described = {name: framework.describe(getattr(call, name)) for name in ("q", "k_cache", "v_cache", "k", "v")}
    _, shape, _, dtype, place = described["q"]
    _check_alike(described["q"], described)
    for name, (_, _, strides, *_) in described.items():
        if strides[-1:] != (1,):
            if name in ("k_cache", "v_cache"):
                raise ValueError(f"{name} is not contiguous in head_dim: strides {strides}")
            # The call holds the copy until it is over.
            setattr(call, name, framework.contiguous(getattr(call, name)))
            described[name] = framework.describe(getattr(call, name))
    for name in ("k_cache", "v_cache"):
        framework.check_written(name, getattr(call, name))
    args = Args()
    args.dtype = dtype
    args.sizes = batch, *_ = _sizes(call, *(described[name][1] for name in described))
    if batch == 0 or 0 in described["k_cache"][1]:
        return call.q, call.used_k
    _check_places(described)
    if 0 in described["k"][1]:
        # The device wants at least one row: here of no sequence.
        some = framework.full(call.q, (1, *described["k"][1][-2:]), 0, dtype)
        call.k = call.v = some
        described["k"] = described["v"] = framework.describe(some)
        call.cu_seqlens_new = framework.full(call.q, (batch + 1,), 0, "int32")
    args.tokens = described["k"][1][-3]
    ends, each = (batch + 1,), (batch,)

    def given(name, shape, of="int32"):
        return operand(framework, call, name, shape, of, place)

    used = given("used_k", each)
    args.lengths = given("cu_seqlens_q", ends), None, used, None, given("entry_k", each), described["k_cache"][1][0]
    args.cumulative_new = given("cu_seqlens_new", ends)
    args.pages = None
    if call.block_table is not None:
        pages = call.block_table.shape[-1]
        args.pages = given("block_table", (batch, pages)), pages, *reversed(described["k_cache"][1][:2])
    args.new_k, args.new_v = _strided(described["k"]), _strided(described["v"])
    args.k, args.v = _strided(described["k_cache"]), _strided(described["v_cache"])
    rotated = _rotation(framework, call, args, described["q"], given)
    lengths = framework.empty(call.q, each, "int32")
    args.lengths_after = framework.describe(lengths)[0]
    _devices.device_at(place).append(args, framework.stream(place))
    return rotated, lengths


def _check_places(described):
    """Refuses caches in which one of what is written would replace another."""
    for name in ("k_cache", "v_cache"):
        _, shape, strides, *_ = described[name]
        if any(size > 1 and stride == 0 for size, stride in zip(shape, strides)):
            raise ValueError(f"{name} has several elements at one place (strides {strides}), and new keys and values are written into it")
    if described["k_cache"][0] == described["v_cache"][0] and described["k"][0] != described["v"][0]:
        raise ValueError("k_cache and v_cache are one tensor, and k and v are two: values would replace the keys")


def _rotation(framework, call, args, q, given):
    args.rotary, args.q, args.rotated_q = None, (0, 0, 0, 0), (0, 0, 0, 0)
    if (call.rotary_cos is None) != (call.rotary_sin is None):
        raise ValueError("rotary_cos and rotary_sin must be given both or neither")
    if call.rotary_cos is None:
        if call.rotary_seqlens is not None:
            raise ValueError("rotary_seqlens says where rotations start: give rotary_cos and rotary_sin")
        return call.q
    shape = tuple(call.rotary_cos.shape)
    if len(shape) != 2:
        raise ValueError(f"rotary_cos has shape {shape}, must be [positions, rotary_dim / 2]")
    tables = given("rotary_cos", shape, args.dtype), given("rotary_sin", shape, args.dtype)
    starts = given("rotary_seqlens", (args.sizes[0],))
    args.rotary = *tables, shape[0], 2 * shape[1], bool(call.interleaved), bool(call.each_query), starts
    rotated = framework.empty(call.q, q[1])
    args.q, args.rotated_q = _strided(q), _strided(framework.describe(rotated))
    return rotated


def _sizes(call, q, k_cache, v_cache, k, v):
    ragged_q, ragged_new = call.cu_seqlens_q is not None, call.cu_seqlens_new is not None
    for name, shape, rank in (("q", q, 3 if ragged_q else 4), ("k_cache", k_cache, 4), ("k", k, 3 if ragged_new else 4)):
        if len(shape) != rank:
            raise ValueError(f"{name} has shape {shape}, must have {rank} dimensions")
    for name, shape, other_name, other in (("v", v, "k", k), ("v_cache", v_cache, "k_cache", k_cache)):
        if shape != other:
            raise ValueError(f"{name} has shape {shape}, {other_name} {other}: they must be the same")
    if k[-2:] != k_cache[-2:] or k[-1] != q[-1]:
        raise ValueError(f"k has shape {k}, k_cache {k_cache}, q {q}: heads and head_dim must be the same")
    batch = call.cu_seqlens_q.shape[0] - 1 if ragged_q else q[0]
    if not ragged_new and k[0] != batch:
        raise ValueError(f"k has batch {k[0]}, q {batch}")
    if call.block_table is None and call.entry_k is None and k_cache[0] != batch:
        raise ValueError(f"k_cache has batch {k_cache[0]}, q {batch}: cache_batch_idx says which entries are whose")
    if call.block_table is not None and call.entry_k is not None:
        raise ValueError("cache_batch_idx and block_table exclude each other: index the table before the call")
    held = k_cache[1] * (1 if call.block_table is None else call.block_table.shape[-1])
    return batch, q[-2], k[-2], q[0] if ragged_q else q[1], held, q[-1]
