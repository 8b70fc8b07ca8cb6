"""flash-attn's functions on the CPU against attention by definition in float64, on NumPy's and PyTorch's tensors."""

import inspect
import itertools
import math
import re

import numpy as np
import pytest

import ferroflash
from ferroflash import _native, flash_attn_func, flash_attn_interface, flash_attn_varlen_func, flash_attn_with_kvcache

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


def random(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def definition(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None, sinks=None, scale=None):
    """O and LSE of [seqlen, heads, head_dim] in float64, by a mask of pairs."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("ihd,jhd->hij", q, k) * (scale or 1 / math.sqrt(q.shape[2]))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    distance = np.arange(len(k))[None] - (np.arange(len(q))[:, None] + len(k) - len(q))
    if slopes is not None:
        scores = scores - np.asarray(slopes)[:, None, None] * np.abs(distance)
    left, right = window
    right = 0 if causal else right
    hidden = (distance < -left) & (left >= 0) | (distance > right) & (right >= 0)
    weights = np.exp(scores) * ~hidden
    total = weights.sum(2) + (0 if sinks is None else np.exp(np.asarray(sinks, dtype=np.float64))[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        o = np.nan_to_num(np.einsum("hij,jhd->ihd", weights / total[..., None], v))
        return o, np.log(total)


def assert_close(found, expected, tolerance=2e-5):
    found, expected = (x[0] for x in ((np.asarray(found, dtype=np.float64),), (np.asarray(expected),)))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=tolerance)


SIGNATURES = {
    "flash_attn_func": "q k v dropout_p=0.0 softmax_scale=None causal=False window_size=(-1, -1) softcap=0.0 alibi_slopes=None"
    " deterministic=False return_attn_probs=False",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p=0.0 softmax_scale=None causal=False"
    " window_size=(-1, -1) softcap=0.0 alibi_slopes=None deterministic=False return_attn_probs=False block_table=None",
    "flash_attn_with_kvcache": "q k_cache v_cache k=None v=None rotary_cos=None rotary_sin=None cache_seqlens=None cache_batch_idx=None"
    " cache_leftpad=None block_table=None softmax_scale=None causal=False window_size=(-1, -1) softcap=0.0 rotary_interleaved=True"
    " alibi_slopes=None num_splits=0 return_softmax_lse=False",
    "flash_attn_qkvpacked_func": "qkv dropout_p=0.0 softmax_scale=None causal=False window_size=(-1, -1) softcap=0.0 alibi_slopes=None"
    " deterministic=False return_attn_probs=False",
    "flash_attn_kvpacked_func": "q kv dropout_p=0.0 softmax_scale=None causal=False window_size=(-1, -1) softcap=0.0 alibi_slopes=None"
    " deterministic=False return_attn_probs=False",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_order_and_defaults_are_flash_attns(name):
    parameters = inspect.signature(getattr(ferroflash, name)).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert " ".join(str(p) for p in positional) == SIGNATURES[name]


GRID = list(
    itertools.product(
        [(1, 1), (5, 9), (9, 5), (33, 65)],
        [(4, 4), (6, 2), (4, 1)],
        [dict(), dict(causal=True), dict(window_size=(3, 0)), dict(window_size=(2, 4)), dict(causal=True, softcap=2.0)],
    )
)


@pytest.mark.parametrize("seqlens, heads, options", GRID)
@pytest.mark.parametrize("d", [40, 64])
def test_dense(seqlens, heads, options, d):
    (sq, sk), (hq, hkv) = seqlens, heads
    q, k, v = random(2, sq, hq, d), random(2, sk, hkv, d, seed=1), random(2, sk, hkv, d, seed=2)
    slopes, sinks = random(hq, seed=3) ** 2, random(hq, seed=4)
    for extra in ({}, dict(alibi_slopes=slopes), dict(sinks=sinks)):
        o, lse, probabilities = flash_attn_func(q, k, v, return_attn_probs=True, **options, **extra)
        assert probabilities is None
        for b in range(2):
            expected = definition(
                q[b], k[b], v[b], options.get("causal"), options.get("window_size", (-1, -1)), options.get("softcap"),
                extra.get("alibi_slopes"), extra.get("sinks"),
            )
            assert_close(o[b], expected[0])
            assert_close(lse[b], expected[1])


def test_ragged_and_paged_sequences():
    ends_q, ends_k = np.array([0, 3, 3, 10], np.int32), np.array([0, 7, 9, 20], np.int32)
    q, k, v = random(10, 4, 32), random(20, 2, 32, seed=1), random(20, 2, 32, seed=2)
    # The same keys in pages of 4, scattered.
    table = np.array([[5, 1, 0], [3, 0, 0], [2, 6, 4]], np.int32)
    pages_k, pages_v = random(7, 4, 2, 32, seed=5), random(7, 4, 2, 32, seed=6)
    for b in range(3):
        for j in range(ends_k[b + 1] - ends_k[b]):
            pages_k[table[b, j // 4], j % 4], pages_v[table[b, j // 4], j % 4] = k[ends_k[b] + j], v[ends_k[b] + j]
    for kv, block_table in (((k, v), None), ((pages_k, pages_v), table)):
        o, lse, _ = flash_attn_varlen_func(
            q, *kv, ends_q, ends_k, 7, 11, causal=True, return_attn_probs=True, block_table=block_table
        )
        for b in range(3):
            rows, keys = slice(*ends_q[b : b + 2]), slice(*ends_k[b : b + 2])
            expected = definition(q[rows], k[keys], v[keys], causal=True)
            assert_close(o[rows], expected[0])
            assert_close(lse[:, rows], expected[1])


@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=needs_torch)])
def test_a_cache_grows_in_place(library):
    tensor = torch.from_numpy if library == "torch" else np.copy
    q = random(3, 2, 4, 32)
    cache_k, cache_v = random(5, 16, 2, 32, seed=1), random(5, 16, 2, 32, seed=2)
    new_k, new_v = random(3, 2, 2, 32, seed=3), random(3, 2, 2, 32, seed=4)
    used, entries = np.array([4, 14, 0], np.int32), np.array([4, 0, 2], np.int32)
    leftpad = np.array([1, 0, 0], np.int32)
    k, v = tensor(cache_k.copy()), tensor(cache_v.copy())
    o, lse = flash_attn_with_kvcache(
        tensor(q), k, v, tensor(new_k), tensor(new_v), cache_seqlens=tensor(used), cache_batch_idx=tensor(entries),
        cache_leftpad=tensor(leftpad), causal=True, return_softmax_lse=True,
    )
    for b in range(3):
        cache_k[entries[b], used[b] : used[b] + 2], cache_v[entries[b], used[b] : used[b] + 2] = new_k[b], new_v[b]
        at = entries[b], slice(leftpad[b], used[b] + 2)
        expected = definition(q[b], cache_k[at], cache_v[at], causal=True)
        assert_close(o[b], expected[0])
        assert_close(lse[b], expected[1])
    assert (np.asarray(k) == cache_k).all() and (np.asarray(v) == cache_v).all()
    # An integer is every sequence's length.
    o = flash_attn_with_kvcache(tensor(q), k[:3], v[:3], cache_seqlens=5)
    assert_close(o[1], definition(q[1], cache_k[1, :5], cache_v[1, :5])[0])


def test_a_paged_cache_grows_in_place():
    q, new_k, new_v = random(2, 1, 2, 16), random(2, 1, 2, 16, seed=3), random(2, 1, 2, 16, seed=4)
    k, v = random(6, 4, 2, 16, seed=1), random(6, 4, 2, 16, seed=2)
    table, used = np.array([[3, 1], [5, 2]], np.int32), np.array([5, 3], np.int32)
    o = flash_attn_with_kvcache(q, k, v, new_k, new_v, cache_seqlens=used, block_table=table)
    assert (k[1, 1] == new_k[0, 0]).all() and (v[5, 3] == new_v[1, 0]).all()
    for b in range(2):
        keys, values = (np.concatenate(x[table[b]])[: used[b] + 1] for x in (k, v))
        assert_close(o[b], definition(q[b], keys, values)[0])


def test_packed_functions_are_the_same_function():
    qkv = random(2, 5, 3, 4, 32)
    expected = flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], causal=True)
    assert (ferroflash.flash_attn_qkvpacked_func(qkv, causal=True) == expected).all()
    assert (ferroflash.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True) == expected).all()


def test_states_merge():
    q, k, v = random(2, 3, 4, 32), random(2, 8, 2, 32, seed=1), random(2, 8, 2, 32, seed=2)
    sides = [flash_attn_func(q, k[:, at], v[:, at], return_attn_probs=True)[:2] for at in (slice(0, 5), slice(5, 8))]
    whole = flash_attn_func(q, k, v, return_attn_probs=True)
    o, lse = ferroflash.merge_states(*sides[0], *sides[1])
    assert_close(o, whole[0])
    assert_close(lse, whole[1])
    nothing = np.zeros_like(o), np.full_like(lse, -np.inf)
    o, lse = ferroflash.merge_states(*nothing, *nothing)
    assert (o == 0).all() and (lse == -np.inf).all()


def test_float16_rounds_once_and_views_need_no_copy():
    q, k, v = (random(2, 4, 9, 64, seed=s, dtype="float16").swapaxes(1, 2) for s in range(3))
    o = flash_attn_func(q, k, v)
    assert o.dtype == np.float16
    assert_close(o[1], definition(q[1], k[1], v[1])[0], 2e-3)
    strided = random(2, 9, 4, 128, seed=0)[..., ::2]
    assert_close(flash_attn_func(strided, strided, strided)[0], definition(strided[0], strided[0], strided[0])[0])


REFUSED = [
    (dict(dropout_p=0.1), NotImplementedError, "dropout_p=0.1"),
    (dict(softmax_scale=-1.0), ValueError, "scale -1"),
    (dict(softcap=-1.0), ValueError, "softcap -1"),
    (dict(alibi_slopes=np.zeros(3, np.float32)), ValueError, r"alibi_slopes has shape \(3,\), must have \(4,\)"),
    (dict(alibi_slopes=np.zeros(4)), ValueError, "alibi_slopes is float64"),
    (dict(q=random(2, 5, 4)), ValueError, "q has shape"),
    (dict(q=random(2, 5, 3, 32)), ValueError, "q has 3 heads, k 2"),
    (dict(q=random(2, 5, 4, 16)), ValueError, "k has head_dim 32, q 16"),
    (dict(k=random(1, 9, 2, 32)), ValueError, "v has shape"),
    (dict(v=random(2, 9, 2, 32, dtype="float16")), ValueError, "v is float16, q float32"),
    (dict(q=random(2, 5, 4, 32, dtype="int16"), k=random(2, 9, 2, 32, dtype="int16"), v=random(2, 9, 2, 32, dtype="int16")),
     NotImplementedError, "dtype int16"),
    (dict(q=[1]), TypeError, "list is no tensor"),
]


@pytest.mark.parametrize("change, kind, message", REFUSED)
def test_bad_input_is_refused_with_its_values(change, kind, message):
    given = dict(q=random(2, 5, 4, 32), k=random(2, 9, 2, 32), v=random(2, 9, 2, 32)) | change
    with pytest.raises(kind, match=message):
        flash_attn_func(**given)


def test_a_bool_bias_is_refused():
    q = random(1, 3, 2, 8)
    libraries = [np] if torch is None else [np, torch]
    for library in libraries:
        of = np.asarray if library is np else torch.from_numpy
        with pytest.raises(TypeError, match="attn_bias is bool"):
            flash_attn_func(of(q), of(q), of(q), attn_bias=of(np.ones((1, 1, 3, 3), bool)))


def test_bad_lengths_and_tables_are_refused_with_their_values():
    q, k = random(2, 1, 2, 16), random(3, 4, 2, 16)
    int32 = lambda *values: np.array(values, np.int32)
    for arguments, message in [
        (dict(cache_seqlens=int32(1, 9), block_table=int32([0, 1], [1, 2])), "sequence 1 is 9"),
        (dict(cache_seqlens=int32(1, 5), block_table=int32([0, 1], [1, 7])), "page of sequence 1 is 7"),
        (dict(cache_seqlens=int32(1, 5, 5), block_table=int32([0, 1], [1, 2])), "must have"),
        (dict(cache_seqlens=np.array([1, 5]), block_table=int32([0, 1], [1, 2])), "used_k is int64|cache_seqlens is int64"),
        (dict(k=q, v=q), "cache_seqlens must be given"),
        (dict(k=q), "both or neither"),
    ]:
        with pytest.raises(ValueError, match=message):
            flash_attn_with_kvcache(q, k, k, **arguments)
    with pytest.raises(ValueError, match="num_splits is -1"):
        flash_attn_with_kvcache(q, k, k, num_splits=-1)
    both = dict(cache_batch_idx=int32(0, 1), block_table=int32([0, 1], [1, 2]))
    with pytest.raises(ValueError, match="exclude each other"):
        flash_attn_with_kvcache(q, k, k, cache_seqlens=int32(1, 2), **both)
    with pytest.raises(ValueError, match="cache entry of sequence 1 is 7"):
        flash_attn_with_kvcache(q, k, k, cache_batch_idx=int32(0, 7))
    with pytest.raises(ValueError, match="cu_seqlens_k of sequence 0 is 9"):
        flash_attn_varlen_func(q[0], k[0], k[0], int32(0, 1), int32(0, 9), 1, 9)


def test_a_plan_is_explained_for_any_model():
    q = np.zeros((4, 4096, 16, 128), np.float16)
    assert "wgmma" in ferroflash.plan(q, q, q, causal=True, device_model="h200")
    assert "on NVIDIA L4" in ferroflash.plan(q, q, q, device_model="l4")
    assert "CPU" in ferroflash.plan(q, q, q)
    with pytest.raises(ValueError, match="h200"):
        ferroflash.plan(q, q, q, device_model="h2000")


def test_what_a_gpu_lacks_is_refused_by_name():
    call = ferroflash._call.Call(*[np.zeros((1, 8, 2, 64), np.float32)] * 3)
    args, *_ = ferroflash._call.numbers(ferroflash._tensors.NumPy(np), call)
    args.o = args.q
    assert _native.LACKING_ON_GPU[0] == "float32"
    with pytest.raises(NotImplementedError, match="float32 is not supported on a GPU yet: convert"):
        _native.explain_model("h200", args)


@pytest.fixture
def simulator():
    try:
        ferroflash.use_cpu_device("simulator")
    except RuntimeError as error:
        pytest.skip(f"no compiled kernels: {error}")
    yield
    ferroflash.use_cpu_device("reference")


SIMULATED = [dict(), dict(causal=True), dict(window_size=(3, 1)), dict(softcap=1.5, causal=True), dict(alibi_slopes=[0.5, 0.1]), dict(sinks=[0.3, -1.0])]


@pytest.mark.parametrize("options", SIMULATED)
def test_the_simulator_runs_the_kernels(simulator, options):
    q, k = random(1, 3, 2, 64, dtype="float16"), random(1, 20, 1, 64, seed=1, dtype="float16")
    arrays = {name: np.array(options[name], np.float32) for name in ("alibi_slopes", "sinks") if name in options}
    o, lse, _ = flash_attn_func(q, k, k, return_attn_probs=True, **options | arrays)
    expected = definition(
        q[0], k[0], k[0], options.get("causal"), options.get("window_size", (-1, -1)), options.get("softcap"),
        arrays.get("alibi_slopes"), arrays.get("sinks"),
    )
    assert_close(o[0], expected[0], 4e-3)
    assert_close(lse[0], expected[1], 2e-3)
    with pytest.raises(NotImplementedError, match="float32"):
        flash_attn_func(*(x.astype(np.float32) for x in (q, k, k)))


@pytest.mark.parametrize("paged", [False, True])
def test_the_simulator_runs_ragged_sequences(simulator, paged):
    ends_q, ends_k = np.array([0, 3, 3, 10], np.int32), np.array([0, 7, 9, 20], np.int32)
    q = random(10, 4, 64, dtype="float16")
    k, v = random(20, 2, 64, seed=1, dtype="float16"), random(20, 2, 64, seed=2, dtype="float16")
    kv, table = (k, v), None
    if paged:
        table = np.array([[5, 1, 0], [3, 0, 0], [2, 6, 4]], np.int32)
        kv = np.zeros((7, 4, 2, 64), np.float16), np.zeros((7, 4, 2, 64), np.float16)
        for b, j in [(b, j) for b in range(3) for j in range(ends_k[b + 1] - ends_k[b])]:
            for pages, rows in zip(kv, (k, v)):
                pages[table[b, j // 4], j % 4] = rows[ends_k[b] + j]
    o, lse, _ = flash_attn_varlen_func(q, *kv, ends_q, ends_k, 7, 11, causal=True, return_attn_probs=True, block_table=table)
    for b in range(3):
        rows, keys = slice(*ends_q[b : b + 2]), slice(*ends_k[b : b + 2])
        expected = definition(q[rows], k[keys], v[keys], causal=True)
        assert_close(o[rows], expected[0], 4e-3)
        assert_close(lse[:, rows], expected[1], 2e-3)


def kvcache_calls():
    """O of a call on a cache by the number of splits that is asked for, and what it is, by flash-attn's function and flash-attn 3's."""
    q, k = random(2, 1, 4, 64, dtype="float16"), random(2, 300, 2, 64, seed=1, dtype="float16")
    used = np.array([300, 77], np.int32)
    expected = np.stack([definition(q[b], k[b, : used[b]], k[b, : used[b]])[0] for b in range(2)])
    functions = flash_attn_with_kvcache, flash_attn_interface.flash_attn_with_kvcache
    return [lambda splits, of=of: of(q, k, k, cache_seqlens=used, num_splits=splits) for of in functions], expected


def test_a_cache_takes_any_number_of_splits():
    calls, expected = kvcache_calls()
    for call in calls:
        for splits in (0, 1, 2, np.int64(3), 100):
            assert_close(call(splits), expected, 4e-3)
        with pytest.raises(TypeError):
            call("two")


def test_the_kernels_split_keys_as_they_are_told(simulator):
    calls, expected = kvcache_calls()
    for call in calls:
        for splits in (0, 1, 2, 100):
            assert_close(call(splits), expected, 4e-3)
        with pytest.raises(ValueError, match="1000 splits"):
            call(1000)


@pytest.mark.parametrize("device", ["l4", "h200"])
def test_a_plan_has_as_many_splits_as_are_asked_for(device):
    q, k = np.zeros((1, 1, 8, 128), np.float16), np.zeros((1, 32768, 8, 128), np.float16)
    for asked, is_right in ((0, lambda n: n > 1), (1, lambda n: n == 1), (3, lambda n: n == 3)):
        call = ferroflash._call.Call(q, k, k)
        call.used_k, call.num_splits = np.array([32768], np.int32), asked
        args, *_ = ferroflash._call.numbers(ferroflash._tensors.NumPy(np), call)
        args.o = args.q
        text = _native.explain_model(device, args)
        assert is_right(int(re.search(r"(\d+) splits of the keys", text).group(1))), (asked, text)


def test_a_plan_is_of_what_a_call_is_filled_up_to():
    plans = [ferroflash.plan(*[random(1, 5, 2, d).astype("float16")] * 3, softmax_scale=0.5, device_model="h200") for d in (12, 16)]
    assert plans[0] == plans[1]


def test_a_plan_is_of_shapes_and_not_of_how_q_lies():
    q, k = np.broadcast_to(np.zeros((1, 64, 1, 64), np.float16), (2, 64, 4, 64)), np.zeros((2, 64, 4, 64), np.float16)
    assert "CPU" in ferroflash.plan(q, k, k)
    assert "on NVIDIA L4" in ferroflash.plan(q, k, k, device_model="l4")


def test_a_folder_without_kernels_is_refused_by_what_python_has(tmp_path):
    ferroflash.use_kernels(tmp_path)
    try:
        with pytest.raises(RuntimeError, match="FERROFLASH_PTX") as refused:
            ferroflash.use_cpu_device("simulator")
    finally:
        ferroflash.use_kernels(None)
    # Options are the command's.
    assert " --" not in str(refused.value)


def test_a_cpu_device_of_another_name_is_refused():
    with pytest.raises(ValueError, match="simulator"):
        ferroflash.use_cpu_device("emulator")


def test_arrays_of_the_other_byte_order_and_unaligned_ones_are_refused():
    q = random(1, 5, 2, 16)
    with pytest.raises(ValueError, match="of the other byte order"):
        flash_attn_func(q.astype(">f4"), q, q)
    room = np.zeros(q.nbytes + 1, "uint8")[1:].view("float32").reshape(q.shape)
    with pytest.raises(ValueError, match="unaligned"):
        flash_attn_func(q, room, q)


def test_a_masked_array_is_refused():
    q = random(1, 5, 2, 16)
    with pytest.raises(TypeError, match="masked array"):
        flash_attn_func(q, np.ma.masked_array(q, q > 0), q)


def test_options_of_other_kinds_are_refused_by_name():
    q = random(1, 5, 2, 16)
    for options, message in (
        (dict(window_size=5), "window_size is 5"),
        (dict(window_size=(1, 2, 3)), "window_size is"),
        (dict(window_size=(1.5, 0)), r"window_size is \(1.5, 0\)"),
        (dict(softmax_scale="a"), "softmax_scale is 'a'"),
        (dict(softcap="a"), "softcap is 'a'"),
        (dict(attn_bias=np.ones((1, 1, 5, 5), "int64")), "attn_bias is int64"),
    ):
        with pytest.raises(TypeError, match=message):
            flash_attn_func(q, q, q, **options)
    assert_close(flash_attn_func(q, q, q, softcap=None), flash_attn_func(q, q, q))
    assert_close(flash_attn_func(q, q, q, window_size=(None, np.int64(0))), flash_attn_func(q, q, q, causal=True))


@needs_torch
@pytest.mark.parametrize("layout", ["strided", "jagged"])
def test_nested_tensors_are_refused_by_name(layout):
    q = torch.nested.nested_tensor([torch.randn(3, 2, 16), torch.randn(5, 2, 16)], layout=getattr(torch, layout))
    for function in (flash_attn_func, ferroflash.scaled_dot_product_attention):
        with pytest.raises(TypeError, match="a nested tensor is not supported"):
            function(q, q, q)


@needs_torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sinks_may_be_of_the_models_type(dtype):
    q, k, v = (torch.randn(1, 5, 2, 16).to(getattr(torch, dtype)) for _ in range(3))
    sinks = torch.randn(2).to(q.dtype).requires_grad_()
    o = flash_attn_func(q, k, v, sinks=sinks)
    torch.testing.assert_close(o, flash_attn_func(q, k, v, sinks=sinks.detach().float()))
    o.sum().backward()
    assert sinks.grad.dtype == sinks.dtype and sinks.grad.abs().max() > 0


def test_a_wrong_name_of_the_cpu_device_is_refused(monkeypatch):
    from ferroflash import _devices

    monkeypatch.setattr(_devices, "_cpu", "simulato")
    monkeypatch.setattr(_devices, "_opened", {})
    with pytest.raises(ValueError, match="device 'simulato' is not known"):
        flash_attn_func(*[random(1, 5, 2, 24)] * 3)
    with pytest.raises(ValueError, match="model 'h100' is of a simulated GPU"):
        ferroflash.use_cpu_device("reference", "h100")
