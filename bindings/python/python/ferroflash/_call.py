"""A call on tensors: shapes are checked against each other, outputs are made, and all becomes the numbers of the native module."""

from operator import index

from . import _again, _devices
from ._tensors import torch


class Call:
    """What is computed, in flash-attn's layout: Q [batch, seqlen_q, heads, head_dim] or, with cu_seqlens_q, [rows, heads, head_dim]."""

    # No dataclass, as this is on the way of every call: a field that is not given is the class's.
    cu_seqlens_q = cu_seqlens_k = used_k = first_k = entry_k = block_table = intervals = tree = attn_bias = None
    longest, chunk, tree_keys = (0, 0), 0, 0
    # Ranges that kernels split the keys into at most; 0 leaves it to the plan.
    num_splits = 0
    # The probability with which weights are left out, and which ones: seed and offset.
    dropout_p, seeds = 0.0, None
    # Whether its gradients will be asked for.
    gradients = False
    # What the caller calls a field, where it is another name than usual.
    names = {}

    def __init__(self, q, k, v, scale=None, causal=False, window=(-1, -1), softcap=0.0, alibi_slopes=None, sinks=None, lse=False):
        if causal is not False and causal is not True:
            causal = flag("causal", causal)
        if type(window) is not tuple or len(window) != 2 or not type(window[0]) is type(window[1]) is int:
            window = _pair(window)
        for name, number in (("softmax_scale", scale), ("softcap", softcap)):
            if number is not None and not hasattr(number, "__float__"):
                raise TypeError(f"{name} is {number!r}, must be a number")
        self.q, self.k, self.v, self.scale, self.causal, self.window = q, k, v, scale, causal, window
        self.softcap, self.alibi_slopes, self.sinks, self.lse = 0.0 if softcap is None else softcap, alibi_slopes, sinks, lse


def _pair(window):
    """What a caller gave for a window as a tuple of two."""
    try:
        left, right = (keys if keys is None else index(keys) for keys in window)
    except (TypeError, ValueError):
        raise TypeError(f"window_size is {window!r}, must be two numbers of keys (left, right), -1 for all") from None
    return left, right


def flag(name, value):
    """A bool of what a caller gave for one: of a word that is not empty it would be true, "False" included."""
    if value is None or isinstance(value, (bool, int)) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise TypeError(f"{name} is {value!r}, must be True or False")


def length(given):
    """A length that a caller gave, as a number; one that a trace follows stays what it is, as a number would be of this trace alone."""
    return given if isinstance(given, (int, getattr(torch, "SymInt", int))) else index(given)


# What flash-attn's functions call the fields of a call.
_NAMES = dict(used_k="cache_seqlens", entry_k="cache_batch_idx", first_k="cache_leftpad")


def shown_name(call, field):
    """What the caller calls a field."""
    return call.names.get(field) or _NAMES.get(field, field)


# The dimensions of tensors whose shapes other checks begin with.
_DIMENSIONS = dict(sinks=1, cu_seqlens_q=1, cu_seqlens_k=1, cu_seqlens_new=1, used_k=1, first_k=1, entry_k=1, rotary_seqlens=1, block_table=2)


def check_tensors(framework, call, names):
    """Refuses what is no tensor of the framework, by its name, and dimensions that the checks of shapes take for granted."""
    for name in names:
        tensor, dimensions = getattr(call, name), _DIMENSIONS.get(name)
        if tensor is None and name not in ("q", "k", "v"):
            continue
        shown = shown_name(call, name)
        framework.check_tensor(shown, tensor)
        if dimensions is not None and tensor.ndim != dimensions:
            raise ValueError(f"{shown} has shape {tuple(tensor.shape)}, must have {dimensions} dimension{'s' * (dimensions > 1)}")


class Args:
    """The fields that the native module reads."""

    __slots__ = "dtype sizes head_dim_v q k v o lse scale window softcap alibi bias dropout sinks intervals chunk tree lengths longest pages splits".split()


def numbers(framework, call):
    """The native module's arguments without outputs, the place of the tensors, and the shapes of O and LSE."""
    q, k, v = framework.describe(call.q), framework.describe(call.k), framework.describe(call.v)
    if not q[2][-1:] == k[2][-1:] == v[2][-1:] == (1,):
        # The call holds the copies until it is over.
        call.q, call.k, call.v = framework.contiguous(call.q), framework.contiguous(call.k), framework.contiguous(call.v)
        q, k, v = framework.describe(call.q), framework.describe(call.k), framework.describe(call.v)
    if not (_is_aligned(q) and _is_aligned(k) and _is_aligned(v)) and _devices.has_kernels(q[4]):
        call.q = framework.aligned(call.q)
        if not is_cached(call):
            call.k, call.v = framework.aligned(call.k), framework.aligned(call.v)
        q, k, v = framework.describe(call.q), framework.describe(call.k), framework.describe(call.v)
    _, shape, _, dtype, place = q
    _check_alike(q, {"k": k, "v": v})
    args = Args()
    args.dtype, args.scale, args.softcap = dtype, call.scale, call.softcap
    args.sizes = batch, heads_q, _, seqlen_q, _, _ = _sizes(call, shape, k[1], v[1])
    args.head_dim_v = v[1][-1]
    args.q, args.k, args.v = _strided(q), _strided(k), _strided(v)
    args.window = _window(call)
    args.lse, args.longest, args.splits = None, call.longest, call.num_splits

    def given(name, shape, dtype="int32"):
        return operand(framework, call, name, shape, dtype, place)

    ends, each = (batch + 1,), (batch,)
    cumulative = given("cu_seqlens_q", ends), given("cu_seqlens_k", ends)
    entries = k[1][0] if call.entry_k is not None else 0
    args.lengths = *cumulative, given("used_k", each), given("first_k", each), given("entry_k", each), entries
    args.intervals = given("intervals", (batch, seqlen_q, 2) if call.cu_seqlens_q is None else (seqlen_q, 2))
    words = -(-call.tree_keys // 32)
    tree = given("tree", (batch, seqlen_q, words) if call.cu_seqlens_q is None else (seqlen_q, words))
    args.tree, args.chunk = None if tree is None else (tree, call.tree_keys), call.chunk
    args.sinks = given("sinks", (heads_q,), "float32")
    args.alibi = None
    if call.alibi_slopes is not None:
        by_batch = len(call.alibi_slopes.shape) == 2
        slopes = (batch, heads_q) if by_batch else (heads_q,)
        args.alibi = given("alibi_slopes", slopes, "float32"), heads_q if by_batch else 0
    args.bias = None
    if call.attn_bias is not None:
        if call.cu_seqlens_q is not None or is_cached(call):
            raise NotImplementedError("attn_bias is supported for dense batches alone: those of flash_attn_func")
        whole, found = (batch, heads_q, seqlen_q, args.sizes[4]), framework.describe(call.attn_bias)[1]
        if len(found) != 4 or found[3] != whole[3] or any(size not in (1, most) for size, most in zip(found, whole)):
            raise ValueError(f"attn_bias has shape {found}, must have {whole}, of which all but the last may be 1")
        args.bias = given("attn_bias", found, dtype), [size != 1 for size in found[:3]]
    args.dropout = (call.dropout_p, *call.seeds) if call.dropout_p else None
    args.pages = None
    if call.block_table is not None:
        pages = call.block_table.shape[-1]
        args.pages = given("block_table", (batch, pages)), pages, k[1][1], k[1][0]
    lse_shape = (batch, heads_q, seqlen_q) if call.cu_seqlens_q is None else (heads_q, seqlen_q)
    return args, place, (*shape[:-1], args.head_dim_v), lse_shape


def compute(framework, call):
    """O and LSE (None where it is not wanted)."""
    given = call.q, call.k, call.v
    with_intervals(framework, call)
    args, place, o_shape, lse_shape = numbers(framework, call)
    if is_empty(args, o_shape, call):
        return _without_keys(framework, call, o_shape, lse_shape, args.sizes[0])
    # Nobody writes rows that belong to no sequence: O has anything there, as flash-attn's has, and LSE −∞.
    ragged = call.cu_seqlens_q is not None
    o = framework.empty(call.q, o_shape)
    lse = None
    if call.lse:
        minus_infinity = float("-inf")
        sums = lse_dtype(args.dtype)
        lse = framework.full(call.q, lse_shape, minus_infinity, sums) if ragged else framework.empty(call.q, lse_shape, sums)
        args.lse = framework.describe(lse)[0]
    args.o = _strided(framework.describe(o))
    device = _devices.run(framework, place, "forward", args)
    # Not of copies, which the next call would need as well.
    if all(tensor is now for tensor, now in zip(given, (call.q, call.k, call.v))):
        _again.keep(device, args, call, o, lse)
    return o, lse


def is_cached(call):
    """Whether K and V are a cache, of which a call makes no copy."""
    return call.used_k is not None or call.entry_k is not None or call.block_table is not None


def _is_aligned(described):
    """Whether rows of two-byte elements begin at multiples of 16 bytes, as the kernels read them."""
    address, shape, strides, *_ = described
    if address % 16:
        return False
    for size, stride in zip(shape[:-1], strides):
        if stride % 8 and size > 1:
            return False
    return True


def widened(framework, call, has_kernels=None):
    """Fills rows with zeros up to a multiple of 8 elements, or over 256 of 16, which the kernels want, of what is not in a cache. The width
    that O has without them; None where nothing was changed. Whether kernels compute it is asked where it is not said."""
    if not 3 <= call.q.ndim == call.k.ndim == call.v.ndim:
        return None
    width, width_v = call.q.shape[-1], call.v.shape[-1]
    missing, missing_v = (-of % (16 if of > 256 else 8) for of in (width, width_v))
    if not (missing or missing_v) or is_cached(call) or call.k.shape[-1] != width:
        return None
    has_kernels = _devices.has_kernels(framework.device_type(call.q)) if has_kernels is None else has_kernels
    if not width or not width_v or not has_kernels:
        return None
    if call.scale is None:
        call.scale = width**-0.5
    call.q, call.k = framework.filled_up(call.q, missing), framework.filled_up(call.k, missing)
    call.v = framework.filled_up(call.v, missing_v)
    return width_v


def is_empty(args, o_shape, call):
    """Whether there is no query, no key, or no sequence that any belongs to."""
    return 0 in o_shape or 0 in call.k.shape or args.sizes[0] == 0


def dtype_name(tensor):
    """The type of a tensor's elements by its name, in a trace as well."""
    return str(tensor.dtype).rpartition(".")[2]


def lse_dtype(dtype):
    """The type of LSE: float32, or float64 of such tensors."""
    return "float64" if dtype == "float64" else "float32"


def filled(framework, like, shape, value):
    """A tensor of the type of another, filled with a value."""
    return framework.full(like, shape, value, framework.describe(like)[3])


def _without_keys(framework, call, o_shape, lse_shape, batch):
    """O and LSE of queries that see nothing, of none, or of rows that belong to none of no sequences."""
    lse = None
    if call.lse:
        lse = framework.full(call.q, lse_shape, float("-inf"), lse_dtype(framework.describe(call.q)[3]))
        if call.sinks is not None and batch > 0:
            lse[...] = call.sinks[:, None]
    return filled(framework, call.q, o_shape, 0), lse


def with_intervals(framework, call):
    """First keys as intervals, where the device does not take them."""
    if call.first_k is not None and not _devices.device_at(framework.describe(call.q)[4]).takes_first_keys:
        call.intervals, call.first_k = _behind(framework, call), None


def _behind(framework, call):
    """Intervals of keys, for every query from its sequence's first one that counts on."""
    if call.cu_seqlens_q is not None:
        raise NotImplementedError("cache_leftpad with cu_seqlens_q is not supported on a GPU yet")
    intervals = framework.full(call.q, (*call.q.shape[:2], 2), 2**31 - 1, "int32")
    intervals[..., 0] = call.first_k[:, None]
    return intervals


def _check_alike(q, others):
    """Refuses tensors that are on another device than q, or of another type."""
    *_, dtype, place = q
    for name, (*_, found_dtype, found_place) in others.items():
        if found_place != place:
            raise ValueError(f"{name} is on {_shown(found_place)}, q on {_shown(place)}")
        if found_dtype != dtype:
            raise ValueError(f"{name} is {found_dtype}, q {dtype}")


def _sizes(call, q, k, v):
    ragged_q, ragged_k, paged = call.cu_seqlens_q is not None, call.cu_seqlens_k is not None, call.block_table is not None
    for name, shape, rank in (("q", q, 3 if ragged_q else 4), ("k", k, 3 if ragged_k else 4)):
        if len(shape) != rank:
            names = "[rows, heads, head_dim]" if rank == 3 else "[batch, seqlen, heads, head_dim]"
            raise ValueError(f"{name} has shape {shape}, must have {rank} dimensions {names}")
    if v[:-1] != k[:-1]:
        raise ValueError(f"v has shape {v}, k {k}: they must be the same but for head_dim")
    heads_q, head_dim = q[-2:]
    heads_kv, head_dim_k = k[-2:]
    if head_dim_k != head_dim:
        raise ValueError(f"k has head_dim {head_dim_k}, q {head_dim}")
    if heads_kv == 0 or heads_q % heads_kv:
        raise ValueError(f"q has {heads_q} heads, k {heads_kv}: the first must be a multiple of the second")
    batch = call.cu_seqlens_q.shape[0] - 1 if ragged_q else q[0]
    if not ragged_k and not paged and call.entry_k is None and k[0] != batch:
        raise ValueError(f"k has batch {k[0]}, q {batch}")
    if paged and call.entry_k is not None:
        raise ValueError("cache_batch_idx and block_table exclude each other: index the table before the call")
    seqlen_k = k[0] if ragged_k else k[1]
    if paged:
        seqlen_k *= call.block_table.shape[-1]
    return batch, heads_q, heads_kv, q[0] if ragged_q else q[1], seqlen_k, head_dim


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


def operand(framework, call, field, shape, dtype, place):
    """The address of a small tensor of a call, or None. One that has gaps (a table's first columns, slopes that a batch shares) is copied; the call
    holds the copy until it is over."""
    tensor = getattr(call, field)
    if tensor is None:
        return None
    address, found, strides, found_dtype, found_place = framework.describe(tensor)
    if found != shape:
        raise ValueError(f"{shown_name(call, field)} has shape {found}, must have {shape}")
    if found_dtype != dtype:
        raise ValueError(f"{shown_name(call, field)} is {found_dtype}, must be {dtype}")
    if found_place != place:
        raise ValueError(f"{shown_name(call, field)} is on {_shown(found_place)}, q on {_shown(place)}")
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size > 1 and stride != expected and 0 not in shape:
            setattr(call, field, framework.contiguous(tensor))
            return framework.describe(getattr(call, field))[0]
        expected *= size
    return address


def _shown(place):
    return place if isinstance(place, str) else ":".join(map(str, place))


def put_tree(framework, call, mask):
    """Puts a mask of the last keys, bool [batch, seqlen_q, keys] or [rows, keys], into a call: as bits, or where PyTorch watches, as it is, so
    that a trace holds nothing that depends on how many words there are. The operator packs it then."""
    framework.check_tensor("tree_mask", mask)
    shape, dtype = tuple(mask.shape), dtype_name(mask)
    rows = tuple(call.q.shape[:-2])
    if dtype not in ("bool", "bool_") or shape[:-1] != rows or shape[-1] == 0:
        raise ValueError(f"tree_mask is {dtype} of shape {shape}, must be bool of {(*rows, 'keys')}")
    is_watched = torch is not None and isinstance(mask, torch.Tensor) and _again.is_watched(mask)
    call.tree_keys, call.tree = shape[-1], mask if is_watched else packed(framework, mask)


def packed(framework, mask):
    """The bits of a mask, 32 to a word."""
    *rows, keys = mask.shape
    words = -(-keys // 32)
    bits = framework.filled_up(framework.cast(mask, "uint8"), 32 * words - keys)
    octets = bits.reshape((*rows, 4 * words, 8)) << framework.cast(framework.arange(mask, 8), "uint8")
    return framework.contiguous(framework.octets(octets)).view(framework.dtype("int32"))
