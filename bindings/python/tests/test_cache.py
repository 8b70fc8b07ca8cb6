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
