"""Caches that grow, with rotated keys and queries, against their definition; on the CPU and by the kernels on the simulator."""

import itertools

import numpy as np
import pytest

import ferroflash
from ferroflash import flash_attn_func, flash_attn_with_kvcache, merge_states
from test_functions import assert_close, definition, random, simulator  # noqa: F401

int32 = lambda *values: np.array(values, np.int32)


def rotated(x, cos, sin, positions, interleaved):
    """[tokens, heads, head_dim] rotated by the position of each token, in float64."""
    x, half = np.asarray(x, dtype=np.float64).copy(), cos.shape[1]
    c, s = (np.asarray(table, dtype=np.float64)[positions][:, None] for table in (cos, sin))
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    first, second = (x[..., at].copy() for at in pairs)
    x[..., pairs[0]], x[..., pairs[1]] = first * c - second * s, first * s + second * c
    return x


def tables(positions, rotary_dim, dtype):
    angles = np.arange(positions)[:, None] * 10000.0 ** -(np.arange(0, rotary_dim, 2) / rotary_dim)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def check_growing(dtype, tolerance, paged, interleaved, rotary_dim, causal, leftpad=None):
    """Three sequences, of which one is new, with three new tokens each and two queries."""
    d, used = 64, int32(4, 0, 13)
    q, new_k, new_v = random(3, 2, 4, d, dtype=dtype), random(3, 3, 2, d, seed=3, dtype=dtype), random(3, 3, 2, d, seed=4, dtype=dtype)
    k, v = random(6, 16, 2, d, seed=1, dtype=dtype), random(6, 16, 2, d, seed=2, dtype=dtype)
    extra, entries = {}, None
    if paged:
        k, v = k.reshape(24, 4, 2, d), v.reshape(24, 4, 2, d)
        table = np.random.default_rng(0).permutation(24)[:12].astype(np.int32).reshape(3, 4)
        extra["block_table"] = table
        rows = [np.stack([(x // 1) for x in table[b]]) for b in range(3)]
        at = lambda cache, b: cache[rows[b]].reshape(16, 2, d)
    else:
        entries = int32(5, 2, 0)
        extra["cache_batch_idx"] = entries
        at = lambda cache, b: cache[entries[b]]
    if leftpad is not None:
        extra["cache_leftpad"] = leftpad
    if rotary_dim:
        extra["rotary_cos"], extra["rotary_sin"] = cos, sin = tables(40, rotary_dim, dtype)
        extra["rotary_interleaved"] = interleaved
    before_k, before_v = k.copy(), v.copy()
    o, lse = flash_attn_with_kvcache(
        q, k, v, new_k, new_v, cache_seqlens=used, causal=causal, return_softmax_lse=True, **extra
    )
    for b in range(3):
        keys, values, queries = at(before_k, b).astype(np.float64), at(before_v, b).astype(np.float64), q[b].astype(np.float64)
        end = used[b] + 3
        new = np.asarray(new_k[b], np.float64)
        if rotary_dim:
            new = rotated(new_k[b], cos, sin, used[b] + np.arange(3), interleaved)
            queries = rotated(q[b], cos, sin, used[b] + np.arange(2) * causal, interleaved)
        keys[used[b] : end], values[used[b] : end] = new, new_v[b]
        assert_close(at(k, b), keys, tolerance)
        assert (at(v, b) == values.astype(dtype)).all()
        first = 0 if leftpad is None else leftpad[b]
        expected = definition(queries, keys[first:end], values[first:end], causal=causal)
        assert_close(o[b], expected[0], 2 * tolerance)
        assert_close(lse[b], expected[1], 2 * tolerance)
    untouched = np.ones(len(k), bool)
    untouched[extra["block_table"].ravel() if paged else entries] = False
    assert (k[untouched] == before_k[untouched]).all() and (v[untouched] == before_v[untouched]).all()
    assert (used == int32(4, 0, 13)).all()


GROWING = list(itertools.product([False, True], [False, True], [0, 32, 64], [False, True]))


@pytest.mark.parametrize("paged, interleaved, rotary_dim, causal", GROWING)
def test_a_cache_grows_by_rotated_keys(paged, interleaved, rotary_dim, causal):
    check_growing("float32", 2e-5, paged, interleaved, rotary_dim, causal)
    check_growing("float16", 4e-3, paged, interleaved, rotary_dim, causal)


def test_a_padded_cache_grows_by_rotated_keys():
    check_growing("float32", 2e-5, False, True, 32, True, leftpad=int32(2, 0, 13))


@pytest.mark.parametrize("paged, interleaved, rotary_dim, causal", GROWING[::3])
def test_the_kernels_grow_a_cache(simulator, paged, interleaved, rotary_dim, causal):  # noqa: F811
    check_growing("float16", 4e-3, paged, interleaved, rotary_dim, causal)


def test_the_kernels_take_a_padded_cache(simulator):  # noqa: F811
    check_growing("float16", 4e-3, False, False, 64, True, leftpad=int32(2, 0, 13))


@pytest.mark.parametrize("change, kind, message", [
    (dict(k=None, v=None), ValueError, "rotary_cos is given without k and v"),
    (dict(rotary_sin=None), ValueError, "both or neither"),
    (dict(rotary_cos=np.zeros((8, 16), np.float32)), ValueError, "8 rows, and a sequence of the cache may have 16|must have"),
    (dict(rotary_cos=np.zeros((40, 12), np.float32), rotary_sin=np.zeros((40, 12), np.float32)), ValueError, "rotary_dim 24"),
    (dict(rotary_cos=np.zeros((40, 16), np.float16)), ValueError, "rotary_cos is float16"),
    (dict(cache_seqlens=int32(4, 15)), ValueError, "before the new ones of sequence 1 is 15, must be 0 to 13"),
    (dict(k=np.zeros((2, 3, 1, 64), np.float32)), ValueError, "v has shape"),
    (dict(v_cache=np.zeros((2, 15, 2, 64), np.float32)), ValueError, "v_cache has shape"),
])
def test_what_cannot_be_appended_is_refused_with_its_values(change, kind, message):
    cos, sin = tables(40, 32, "float32")
    given = dict(
        q=random(2, 1, 4, 64), k_cache=random(2, 16, 2, 64), v_cache=random(2, 16, 2, 64), k=random(2, 3, 2, 64), v=random(2, 3, 2, 64),
        rotary_cos=cos, rotary_sin=sin, cache_seqlens=int32(4, 5),
    )
    with pytest.raises(kind, match=message):
        flash_attn_with_kvcache(**(given | change))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_kernel_merges_states(simulator, dtype):  # noqa: F811
    o = [random(2, 3, 4, 40, seed=s, dtype=dtype) for s in range(2)]
    lse = [random(2, 4, 3, seed=s + 2) for s in range(2)]
    lse[0][0, 0, 0] = -np.inf
    lse[0][1, 1], lse[1][1, 1] = -np.inf, -np.inf
    found = merge_states(o[0], lse[0], o[1], lse[1])
    ferroflash.use_cpu_device("reference")
    expected = merge_states(o[0], lse[0], o[1], lse[1])
    assert found[0].dtype == expected[0].dtype
    assert_close(found[0], expected[0], 2e-3 if dtype == "float16" else 2e-6)
    assert_close(found[1], expected[1], 2e-6)
    ferroflash.use_cpu_device("simulator")
    with pytest.raises(ValueError, match=r"LSE is float32 of shape \(2, 3, 4\)"):
        merge_states(o[0], lse[0].swapaxes(1, 2).copy(), o[1], lse[1])


def test_tables_lengths_and_slopes_with_gaps_mean_what_they_hold():
    torch = pytest.importorskip("torch")
    q, k, v = torch.randn(2, 1, 4, 16), torch.randn(6, 4, 2, 16), torch.randn(6, 4, 2, 16)
    wide = torch.randperm(6).int().view(2, 3).repeat(1, 4)
    slopes, whole = torch.rand(4), dict(cache_seqlens=torch.tensor([9, 9], dtype=torch.int32))
    gaps = dict(cache_seqlens=torch.tensor([9], dtype=torch.int32).expand(2), block_table=wide[:, :3], alibi_slopes=slopes.expand(2, 4))
    whole |= dict(block_table=wide[:, :3].contiguous(), alibi_slopes=slopes)
    for _ in range(2):
        torch.testing.assert_close(flash_attn_with_kvcache(q, k, v, **gaps), flash_attn_with_kvcache(q, k, v, **whole))
        wide.copy_(wide.roll(1, 0))
        whole["block_table"] = wide[:, :3].contiguous()
    cache = k.clone()
    flash_attn_with_kvcache(q, cache, v, q[:, :, :2], q[:, :, :2], cache_seqlens=gaps["cache_seqlens"], block_table=gaps["block_table"])
    assert (cache[wide[:, 2].long(), 1] == q[:, 0, :2]).all()


def test_nothing_new_leaves_a_cache_and_rotates_queries():
    q, k, v, new = random(2, 3, 4, 32), random(2, 9, 2, 32, seed=1), random(2, 9, 2, 32, seed=2), random(2, 0, 2, 32)
    before, (cos, sin), lengths = k.copy(), tables(16, 16, "float32"), int32(4, 7)
    o = flash_attn_with_kvcache(q, k, v, new, new, cos, sin, cache_seqlens=lengths, causal=True)
    assert (k == before).all()
    for i, length in enumerate(lengths):
        turned = rotated(q[i], cos, sin, np.arange(length, length + 3), True)
        assert_close(o[i], definition(turned, k[i, :length], v[i, :length], causal=True)[0])
    assert flash_attn_with_kvcache(q[:0], k[:0], v[:0], k[:0, :1], v[:0, :1], cache_seqlens=int32()).shape == (0, 3, 4, 32)


def test_a_read_only_cache_is_refused():
    q, k, new = random(2, 1, 2, 16), random(2, 9, 2, 16), random(2, 1, 2, 16)
    k.flags.writeable = False
    with pytest.raises(ValueError, match="k_cache is read-only"):
        flash_attn_with_kvcache(q, k, k.copy(), new, new, cache_seqlens=int32(4, 7))
    flash_attn_with_kvcache(q, k, k, cache_seqlens=int32(4, 7))


def test_a_cache_in_which_new_keys_would_replace_others_is_refused():
    q, k, new, others = random(2, 1, 2, 16), random(2, 9, 2, 16), random(2, 1, 2, 16), random(2, 1, 2, 16, seed=1)
    shared = np.lib.stride_tricks.as_strided(k, k.shape, (0, *k.strides[1:]), writeable=True)
    with pytest.raises(ValueError, match="v_cache has several elements at one place"):
        flash_attn_with_kvcache(q, k, shared, new, new, cache_seqlens=int32(4, 7))
    with pytest.raises(ValueError, match="k_cache and v_cache are one tensor"):
        flash_attn_with_kvcache(q, k, k, new, others, cache_seqlens=int32(4, 7))
    # One tensor of both is a cache of keys that are their own values.
    flash_attn_with_kvcache(q, k, k, new, new, cache_seqlens=int32(4, 7))
    assert_close(k[0, 4], new[0, 0])


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(cache_seqlens=np.array([4, 7])), "cache_seqlens is int64, must be int32"),
        (dict(cache_seqlens=[4, 7]), "cache_seqlens is list"),
        (dict(cache_seqlens=4, cache_batch_idx=np.array([0, 1])), "cache_batch_idx is int64"),
        (dict(cache_seqlens=4, cache_leftpad=int32(1)), r"cache_leftpad has shape \(1,\), must have \(2,\)"),
    ],
)
def test_errors_name_the_callers_arguments(options, message):
    q, k = random(2, 1, 2, 16), random(2, 9, 2, 16)
    with pytest.raises((ValueError, TypeError), match=message):
        flash_attn_with_kvcache(q, k, k, **options)


def test_one_length_may_be_numpys_number():
    q, k = random(2, 1, 2, 16), random(2, 9, 2, 16)
    assert_close(flash_attn_with_kvcache(q, k, k, cache_seqlens=np.int64(4)), flash_attn_with_kvcache(q, k, k, cache_seqlens=4))


def test_sequences_behind_one_another_merge():
    q, k, v, ends = random(7, 4, 16), random(10, 2, 16, seed=1), random(10, 2, 16, seed=2), int32(0, 3, 7)
    halves = [(int32(0, 2, 5), slice(0, 5)), (int32(0, 2, 5), slice(5, 10))]
    states = [
        ferroflash.flash_attn_varlen_func(q, k[at], v[at], ends, keys, 4, 3, return_attn_probs=True)[:2] for keys, at in halves
    ]
    o, lse = merge_states(*states[0], *states[1])
    for first, last, keys in ((0, 3, [0, 1, 5, 6]), (3, 7, [2, 3, 4, 7, 8, 9])):
        expected, sums = definition(q[first:last], k[keys], v[keys])
        assert_close(o[first:last], expected)
        assert_close(lse[:, first:last], sums)
    from ferroflash.flash_attn_interface import flash_attn_combine

    combined, sums = flash_attn_combine(np.stack([o for o, _ in states]), np.stack([lse.T for _, lse in states]))
    assert_close(combined, o)
    assert_close(sums, lse.T)


def test_states_of_float64_merge_in_float64():
    q, k, v = (random(2, 5, 4, 16, seed=seed, dtype="float64") for seed in range(3))
    states = [flash_attn_func(q, k[:, at], v[:, at], return_attn_probs=True)[:2] for at in (slice(0, 2), slice(2, 5))]
    assert_close(merge_states(*states[0], *states[1])[0], flash_attn_func(q, k, v), 1e-12)
