"""flash-attn 3's functions: their signatures, what they compute beyond flash-attn 2's, what they refuse."""

import inspect

import numpy as np
import pytest

from ferroflash import flash_attn_interface as fa3
from test_cache import rotated, tables
from test_functions import assert_close, definition, random, simulator  # noqa: F401

int32 = lambda *values: np.array(values, np.int32)
SHARED = (
    "softmax_scale=None causal=False qv=None q_descale=None k_descale=None v_descale=None window_size=(-1, -1) attention_chunk=0"
    " softcap=0.0 num_splits=1 pack_gqa=None deterministic=False sm_margin=0 return_attn_probs=False"
)
SIGNATURES = {
    "flash_attn_func": "q k v " + SHARED,
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q=None seqused_k=None " + SHARED,
    "flash_attn_with_kvcache": "q k_cache v_cache k=None v=None qv=None rotary_cos=None rotary_sin=None cache_seqlens=None"
    " cache_batch_idx=None cache_leftpad=None page_table=None cu_seqlens_q=None cu_seqlens_k_new=None max_seqlen_q=None"
    " rotary_seqlens=None q_descale=None k_descale=None v_descale=None softmax_scale=None causal=False window_size=(-1, -1)"
    " attention_chunk=0 softcap=0.0 rotary_interleaved=True scheduler_metadata=None num_splits=0 pack_gqa=None sm_margin=0"
    " return_softmax_lse=False",
    "flash_attn_combine": "out_partial lse_partial out=None out_dtype=None",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_order_and_defaults_are_flash_attns(name):
    parameters = inspect.signature(getattr(fa3, name)).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert " ".join(str(p) for p in positional) == SIGNATURES[name]


def test_dense_and_ragged_calls():
    q, k, v = random(2, 5, 4, 32), random(2, 9, 2, 32, seed=1), random(2, 9, 2, 32, seed=2)
    sinks = random(4, seed=3)
    o, lse = fa3.flash_attn_func(q, k, v, causal=True, return_attn_probs=True, learnable_sink=sinks)
    for b in range(2):
        expected = definition(q[b], k[b], v[b], causal=True, sinks=sinks)
        assert_close(o[b], expected[0])
        assert_close(lse[b], expected[1])
    used = int32(6, 2)
    o = fa3.flash_attn_varlen_func(
        q.reshape(10, 4, 32), k.reshape(18, 2, 32), v.reshape(18, 2, 32), int32(0, 5, 10), int32(0, 9, 18), 5, 9, seqused_k=used
    )
    for b in range(2):
        assert_close(o[5 * b : 5 * b + 5], definition(q[b], k[b, : used[b]], v[b, : used[b]])[0])


def check_a_ragged_cache(dtype, tolerance):
    """Three sequences with 2, 0 and 1 new tokens, and 1, 0 and 3 queries, in pages."""
    q_starts, new_starts, used = int32(0, 1, 1, 4), int32(0, 2, 2, 3), int32(5, 3, 8)
    q, new_k, new_v = (random(n, h, 32, seed=s, dtype=dtype) for n, h, s in ((4, 4, 0), (3, 2, 1), (3, 2, 2)))
    pages_k, pages_v = random(9, 4, 2, 32, seed=3, dtype=dtype), random(9, 4, 2, 32, seed=4, dtype=dtype)
    table = int32([8, 2, 5], [0, 1, 7], [3, 6, 4])
    cos, sin = tables(20, 16, dtype)
    starts = int32(2, 0, 5)
    before_k, before_v = pages_k.copy(), pages_v.copy()
    o, lse = fa3.flash_attn_with_kvcache(
        q, pages_k, pages_v, new_k, new_v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=used, page_table=table, cu_seqlens_q=q_starts,
        cu_seqlens_k_new=new_starts, max_seqlen_q=3, rotary_seqlens=starts, causal=True, rotary_interleaved=False,
        return_softmax_lse=True,
    )
    for b in range(3):
        queries, new = slice(*q_starts[b : b + 2]), slice(*new_starts[b : b + 2])
        count, rows = new_starts[b + 1] - new_starts[b], q_starts[b + 1] - q_starts[b]
        keys, values = (np.concatenate(pages[table[b]]).astype(np.float64) for pages in (before_k, before_v))
        end = used[b] + count
        keys[used[b] : end] = rotated(new_k[new], cos, sin, starts[b] + np.arange(count), False)
        values[used[b] : end] = new_v[new]
        assert_close(np.concatenate(pages_k[table[b]]), keys, tolerance)
        turned = rotated(q[queries], cos, sin, starts[b] + np.arange(rows), False)
        expected = definition(turned, keys[:end], values[:end], causal=True)
        assert_close(o[queries], expected[0], 2 * tolerance)
        assert_close(lse[:, queries], expected[1], 2 * tolerance)


def test_a_ragged_cache():
    check_a_ragged_cache("float32", 2e-5)


def test_the_kernels_grow_a_ragged_cache(simulator):  # noqa: F811
    check_a_ragged_cache("float16", 4e-3)


def check_combine():
    partial, lse = random(3, 2, 5, 4, 40), random(3, 2, 5, 4, seed=1)
    lse[0, 0, 0, 0], lse[:, 1, 1] = -np.inf, -np.inf
    o, merged = fa3.flash_attn_combine(partial, lse)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.exp(lse.astype(np.float64))
        expected = np.nan_to_num((partial * weights[..., None]).sum(0) / weights.sum(0)[..., None])
        assert_close(merged, np.log(weights.sum(0)), 2e-6)
    assert_close(o, expected, 2e-6)
    assert fa3.flash_attn_combine(partial, lse, out_dtype="float16")[0].dtype == np.float16
    alone, same = fa3.flash_attn_combine(partial[:1], lse[:1])
    assert (same == lse[0]).all() and (alone[0, 1] == partial[0, 0, 1]).all()


def test_splits_combine():
    check_combine()


def test_the_kernel_combines_splits(simulator):  # noqa: F811
    check_combine()


@pytest.mark.parametrize("argument", [
    dict(qv=1), dict(q_descale=1), dict(pack_gqa=True), dict(pack_gqa=False), dict(sm_margin=8),
])
def test_what_is_not_supported_is_refused_by_name(argument):
    q = random(2, 5, 4, 32)
    (name,) = argument
    with pytest.raises(NotImplementedError, match=name):
        fa3.flash_attn_func(q, q, q, **argument)
    with pytest.raises(NotImplementedError, match=name):
        fa3.flash_attn_with_kvcache(q, q, q, **argument)
    assert fa3.get_scheduler_metadata(2, 5, 5, 4, 4, 32) is None


def test_the_rest_is_refused_by_name():
    q = random(2, 5, 4, 32)
    with pytest.raises(NotImplementedError, match="num_splits=3"):
        fa3.flash_attn_func(q, q, q, num_splits=3)
    with pytest.raises(NotImplementedError, match="scheduler_metadata=ndarray"):
        fa3.flash_attn_with_kvcache(q, q, q, scheduler_metadata=np.zeros(3))
    with pytest.raises(NotImplementedError, match="seqused_q"):
        fa3.flash_attn_varlen_func(q[0], q[0], q[0], int32(0, 5), int32(0, 5), 5, 5, seqused_q=int32(5))
    with pytest.raises(ValueError, match="rotary_seqlens is given without k and v"):
        fa3.flash_attn_with_kvcache(q, q, q, rotary_seqlens=int32(0, 0))
    with pytest.raises(NotImplementedError, match="out="):
        fa3.flash_attn_combine(q, q, out=q)
