"""A call on tensors: shapes are checked against each other, outputs are made, and all becomes the numbers of the native module."""

from dataclasses import dataclass
from typing import Any

from . import _devices


@dataclass
class Call:
    """What is computed, in flash-attn's layout: Q [batch, seqlen_q, heads, head_dim] or, with cu_seqlens_q, [rows, heads, head_dim]."""

    q: Any
    k: Any
    v: Any
    scale: Any = None
    causal: bool = False
    window: tuple = (-1, -1)
    softcap: float = 0.0
    alibi_slopes: Any = None
    sinks: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    used_k: Any = None
    first_k: Any = None
    entry_k: Any = None
    block_table: Any = None
    longest: tuple = (0, 0)
    lse: bool = False


class Args:
    """The fields that the native module reads."""

    __slots__ = "dtype sizes q k v o lse scale window softcap alibi sinks lengths longest pages".split()


def numbers(framework, call):
    """The native module's arguments without outputs, the place of the tensors, and the shapes of O and LSE."""
    described = {name: framework.describe(getattr(call, name)) for name in "qkv"}
    place, dtype = described["q"][4], described["q"][3]
    for name in "kv":
        if described[name][4] != place:
            raise ValueError(f"{name} is on {_shown(described[name][4])}, q on {_shown(place)}")
        if described[name][3] != dtype:
            raise ValueError(f"{name} is {described[name][3]}, q {dtype}")
    args = Args()
    args.dtype, args.scale, args.softcap = dtype, call.scale, call.softcap
    args.sizes = batch, heads_q, _, seqlen_q, _, head_dim = _sizes(call, {n: d[1] for n, d in described.items()})
    args.q, args.k, args.v = (_strided(described[name]) for name in "qkv")
    args.window = _window(call)
    args.lse, args.longest = None, call.longest

    def given(name, shape, dtype="int32"):
        tensor = getattr(call, name)
        return None if tensor is None else _plain(framework, tensor, name, shape, dtype, place)

    ends, each = (batch + 1,), (batch,)
    cumulative = given("cu_seqlens_q", ends), given("cu_seqlens_k", ends)
    args.lengths = *cumulative, given("used_k", each), given("first_k", each), given("entry_k", each)
    args.sinks = given("sinks", (heads_q,), "float32")
    args.alibi = None
    if call.alibi_slopes is not None:
        by_batch = len(call.alibi_slopes.shape) == 2
        shape = (batch, heads_q) if by_batch else (heads_q,)
        args.alibi = given("alibi_slopes", shape, "float32"), heads_q if by_batch else 0
    args.pages = None
    if call.block_table is not None:
        pages = call.block_table.shape[-1]
        table = given("block_table", (batch, pages))
        args.pages = table, pages, described["k"][1][1], described["k"][1][0]
    ragged = call.cu_seqlens_q is not None
    lse_shape = (heads_q, seqlen_q) if ragged else (batch, heads_q, seqlen_q)
    return args, place, tuple(described["q"][1][:-1]) + (head_dim,), lse_shape


def compute(framework, call):
    """O and LSE (None where it is not wanted)."""
    last = [framework.describe(tensor)[2][-1] == 1 or tensor.shape[-1] == 1 for tensor in (call.q, call.k, call.v)]
    if not all(last):
        call.q, call.k, call.v = (
            tensor if is_unit else framework.contiguous(tensor) for tensor, is_unit in zip((call.q, call.k, call.v), last)
        )
    args, place, o_shape, lse_shape = numbers(framework, call)
    if 0 in o_shape[:-1]:
        return framework.empty(call.q, o_shape), framework.empty(call.q, lse_shape, "float32") if call.lse else None
    # Rows that belong to no sequence are written by nobody.
    ragged = call.cu_seqlens_q is not None
    o = framework.full(call.q, o_shape, 0, args.dtype) if ragged else framework.empty(call.q, o_shape)
    lse = None
    if call.lse:
        minus_infinity = float("-inf")
        lse = framework.full(call.q, lse_shape, minus_infinity, "float32") if ragged else framework.empty(call.q, lse_shape, "float32")
        args.lse = framework.describe(lse)[0]
    args.o = _strided(framework.describe(o))
    _devices.run(framework, place, args)
    return o, lse


def _sizes(call, shapes):
    ragged_q, ragged_k, paged = call.cu_seqlens_q is not None, call.cu_seqlens_k is not None, call.block_table is not None
    ranks = {"q": 3 if ragged_q else 4, "k": 3 if ragged_k else 4, "v": 3 if ragged_k else 4}
    for name, rank in ranks.items():
        if len(shapes[name]) != rank:
            names = "[rows, heads, head_dim]" if rank == 3 else "[batch, seqlen, heads, head_dim]"
            raise ValueError(f"{name} has shape {shapes[name]}, must have {rank} dimensions {names}")
    if shapes["v"] != shapes["k"]:
        raise ValueError(f"v has shape {shapes['v']}, k {shapes['k']}: they must be the same")
    *_, heads_q, head_dim = shapes["q"]
    *_, heads_kv, head_dim_k = shapes["k"]
    if head_dim_k != head_dim:
        raise ValueError(f"k has head_dim {head_dim_k}, q {head_dim}")
    if heads_kv == 0 or heads_q % heads_kv:
        raise ValueError(f"q has {heads_q} heads, k {heads_kv}: the first must be a multiple of the second")
    batch = call.cu_seqlens_q.shape[0] - 1 if ragged_q else shapes["q"][0]
    if not ragged_k and not paged and call.entry_k is None and shapes["k"][0] != batch:
        raise ValueError(f"k has batch {shapes['k'][0]}, q {batch}")
    seqlen_k = shapes["k"][0] if ragged_k else shapes["k"][1]
    if paged:
        seqlen_k *= call.block_table.shape[-1]
    return batch, heads_q, heads_kv, shapes["q"][0] if ragged_q else shapes["q"][1], seqlen_k, head_dim


def _strided(described):
    address, shape, strides, *_ = described
    if len(shape) == 3:
        return address, 0, strides[1], strides[0]
    return address, strides[0], strides[2], strides[1]


def _window(call):
    left, right = call.window
    if call.causal:
        right = 0
    return tuple(None if keys is None or keys < 0 else keys for keys in (left, right))


def _plain(framework, tensor, name, shape, dtype, place):
    """The address of a small contiguous tensor."""
    address, found, strides, found_dtype, found_place = framework.describe(tensor)
    if found != shape:
        raise ValueError(f"{name} has shape {found}, must have {shape}")
    if found_dtype != dtype:
        raise ValueError(f"{name} is {found_dtype}, must be {dtype}")
    if found_place != place:
        raise ValueError(f"{name} is on {_shown(found_place)}, q on {_shown(place)}")
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size > 1 and stride != expected:
            raise ValueError(f"{name} is not contiguous: strides {strides}")
        expected *= size
    return address


def _shown(place):
    return place if isinstance(place, str) else ":".join(map(str, place))
