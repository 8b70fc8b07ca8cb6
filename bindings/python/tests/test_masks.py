"""Chunks of keys and trees of drafts against a mask of pairs in float64; on the CPU and by the kernels on the simulator."""

import math

import numpy as np
import pytest

from ferroflash import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from ferroflash import flash_attn_interface as fa3
from test_functions import assert_close, random, simulator  # noqa: F401

int32 = lambda *values: np.array(values, np.int32)


def of_pairs(q, k, v, visible):
    """O and LSE of [seqlen, heads, head_dim], of the pairs that are visible."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    weights = np.exp(np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[2])) * visible
    total = weights.sum(2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.einsum("hij,jhd->ihd", weights / total[..., None], v)), np.log(total)


def own_keys(queries, keys):
    return np.arange(queries)[:, None] + keys - queries, np.arange(keys)[None]


def of_chunks(queries, keys, chunk, causal):
    own, key = own_keys(queries, keys)
    return (own // chunk == key // chunk) & (~np.bool_(causal) | (key <= own))


def of_tree(mask, keys, causal=False):
    """The tree's keys are the last ones; of a tree that is longer than the sequence, the last."""
    queries, tree = mask.shape
    own, key = own_keys(queries, keys)
    visible = np.ones((queries, keys), bool) & (~np.bool_(causal) | (key <= own))
    shown = min(tree, keys)
    visible[:, keys - shown :] &= mask[:, tree - shown :]
    return visible


def check_chunks(dtype, tolerance, d=64):
    for (sq, sk), chunk, causal in [((7, 20), 8, False), ((7, 20), 8, True), ((33, 33), 5, True), ((9, 4), 3, False), ((5, 70), 64, True)]:
        q, k, v = random(1, sq, 4, d, dtype=dtype), random(1, sk, 2, d, seed=1, dtype=dtype), random(1, sk, 2, d, seed=2, dtype=dtype)
        o, lse = fa3.flash_attn_func(q, k, v, causal=causal, attention_chunk=chunk, return_attn_probs=True)
        expected = of_pairs(q[0], k[0], v[0], of_chunks(sq, sk, chunk, causal))
        assert_close(o[0], expected[0], tolerance)
        assert_close(lse[0], expected[1], tolerance)
    k, v = random(2, 24, 2, d, seed=1, dtype=dtype), random(2, 24, 2, d, seed=2, dtype=dtype)
    q, used = random(2, 3, 4, d, dtype=dtype), int32(17, 24)
    o = fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, causal=True, attention_chunk=10)
    for b in range(2):
        assert_close(o[b], of_pairs(q[b], k[b, : used[b]], v[b, : used[b]], of_chunks(3, used[b], 10, True))[0], tolerance)


def check_trees(dtype, tolerance, d=64):
    for (sq, sk), tree, causal in [((6, 40), 6, False), ((35, 90), 35, False), ((6, 40), 33, True), ((4, 9), 1, False)]:
        q, k, v = random(2, sq, 4, d, dtype=dtype), random(2, sk, 2, d, seed=1, dtype=dtype), random(2, sk, 2, d, seed=2, dtype=dtype)
        mask = random(2, sq, tree, seed=3) > 0
        o, lse, _ = flash_attn_func(q, k, v, causal=causal, tree_mask=mask, return_attn_probs=True)
        for b in range(2):
            expected = of_pairs(q[b], k[b], v[b], of_tree(mask[b], sk, causal))
            assert_close(o[b], expected[0], tolerance)
            assert_close(lse[b], expected[1], tolerance)
    # Drafts of a cache, one of which is shorter than the tree.
    q, mask, used = random(2, 5, 4, d, dtype=dtype), random(2, 5, 5, seed=3) > 0, int32(3, 17)
    k, v = random(2, 20, 2, d, seed=1, dtype=dtype), random(2, 20, 2, d, seed=2, dtype=dtype)
    o = flash_attn_with_kvcache(q, k, v, cache_seqlens=used, tree_mask=mask)
    for b in range(2):
        assert_close(o[b], of_pairs(q[b], k[b, : used[b]], v[b, : used[b]], of_tree(mask[b], used[b]))[0], tolerance)
    # Rows of sequences behind one another.
    ends_q, ends_k = int32(0, 2, 7), int32(0, 11, 30)
    q, k, v = random(7, 4, d, dtype=dtype), random(30, 2, d, seed=1, dtype=dtype), random(30, 2, d, seed=2, dtype=dtype)
    mask = random(7, 4, seed=3) > 0
    o = flash_attn_varlen_func(q, k, v, ends_q, ends_k, 5, 19, tree_mask=mask)
    for b in range(2):
        rows, keys = slice(*ends_q[b : b + 2]), slice(*ends_k[b : b + 2])
        expected = of_pairs(q[rows], k[keys], v[keys], of_tree(mask[rows], ends_k[b + 1] - ends_k[b]))
        assert_close(o[rows], expected[0], tolerance)


def test_chunks():
    check_chunks("float32", 2e-5)


def test_trees():
    check_trees("float32", 2e-5)


def test_the_kernels_have_chunks(simulator):  # noqa: F811
    check_chunks("float16", 4e-3)


def test_the_kernels_have_trees(simulator):  # noqa: F811
    check_trees("float16", 4e-3)


def test_what_a_tree_hides_may_be_no_number():
    q, k, v = random(1, 2, 1, 16), random(1, 6, 1, 16, seed=1), random(1, 6, 1, 16, seed=2)
    k[0, 5], v[0, 4] = math.nan, math.inf
    mask = np.array([[[True, False, False], [True, False, False]]])
    o = flash_attn_func(q, k, v, tree_mask=mask)
    assert_close(o[0], of_pairs(q[0], k[0, :4], v[0, :4], np.ones((2, 4), bool))[0])


@pytest.mark.parametrize("options, kind, message", [
    (dict(tree_mask=np.ones((2, 4, 3), np.int32)), ValueError, "tree_mask is int32"),
    (dict(tree_mask=np.ones((2, 5, 3), bool)), ValueError, r"of shape \(2, 5, 3\), must be bool of \(2, 4, 'keys'\)"),
    (dict(tree_mask=np.ones((2, 4, 0), bool)), ValueError, "of shape"),
])
def test_masks_of_another_shape_are_refused(options, kind, message):
    q = random(2, 4, 2, 16)
    with pytest.raises(kind, match=message):
        flash_attn_func(q, q, q, **options)


@pytest.mark.parametrize("chunk", [-1, 2.5, None])
def test_what_is_no_chunk_is_refused(chunk):
    q = random(2, 4, 2, 16)
    with pytest.raises(ValueError, match="attention_chunk"):
        fa3.flash_attn_func(q, q, q, attention_chunk=chunk)


def test_the_kernels_lack_trees_with_softcap(simulator):  # noqa: F811
    q = random(2, 4, 2, 64, dtype="float16")
    with pytest.raises(NotImplementedError, match="tree_mask with softcap"):
        flash_attn_func(q, q, q, softcap=2.0, tree_mask=np.ones((2, 4, 3), bool))
