"""Calls like those before are started by the native module alone: with the new tensors, and only where nothing but addresses differs."""

import pytest

torch = pytest.importorskip("torch")

import ferroflash
from ferroflash import _again, _devices, flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache, functional, scaled_dot_product_attention

pytestmark = pytest.mark.skipif(_again._calls is None, reason="PyTorch has no DLPack C exchange API")


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def dense(seed, **options):
    q, k, v = random(2, 5, 4, 32, seed=seed), random(2, 9, 2, 32, seed=seed + 1), random(2, 9, 2, 32, seed=seed + 2)
    return flash_attn_func(q, k, v, causal=True, **options)


def with_tensors(seed):
    return dense(seed, alibi_slopes=random(4, seed=seed + 3) ** 2, sinks=random(4, seed=seed + 4), return_attn_probs=True)


def with_a_tree(seed):
    return dense(seed, tree_mask=random(2, 5, 7, seed=seed + 3) > 0)


def ragged(seed):
    q, k = random(12, 4, 32, seed=seed), random(20, 2, 32, seed=seed + 1)
    ends_q = int32(0, 3 + seed % 2, 12)
    return flash_attn_varlen_func(q, k, k, ends_q, int32(0, 8 - seed % 2, 20), 9, 13, causal=True)


def paged(seed):
    q, k = random(2, 1, 4, 32, seed=seed), random(6, 4, 2, 32, seed=seed + 1)
    table = torch.randperm(6, generator=torch.Generator().manual_seed(seed)).int().reshape(2, 3)
    return flash_attn_with_kvcache(q, k, k, cache_seqlens=int32(3 + seed % 5, 12), block_table=table, return_softmax_lse=True)


def indexed(seed):
    q, k = random(2, 1, 4, 32, seed=seed), random(5, 8, 2, 32, seed=seed + 1)
    return flash_attn_with_kvcache(q, k, k, cache_batch_idx=int32(seed % 5, 4), cache_seqlens=8)


def heads_first(seed, queries=7, **options):
    q, k, v = random(2, 4, queries, 32, seed=seed), random(2, 4, 7, 32, seed=seed + 1), random(2, 4, 7, 16, seed=seed + 2)
    return scaled_dot_product_attention(q, k, v, **options)


CALLS = [dense, with_tensors, with_a_tree, ragged, paged, indexed]


def tensors(found):
    return [x for x in (found if isinstance(found, tuple) else (found,)) if x is not None]


@pytest.mark.parametrize("call", CALLS)
def test_the_next_call_is_started_at_once_on_its_own_tensors(call, monkeypatch):
    _again.forget()
    with torch.no_grad():
        first = call(0)
        expected = []
        for seed in (10, 21):
            _again.forget()
            expected.append(call(seed))
        # The general path is not taken again.
        monkeypatch.setattr(_devices, "run", None)
        found = [call(seed) for seed in (10, 21)]
    for ours, theirs in zip(found, expected):
        for a, b in zip(tensors(ours), tensors(theirs)):
            assert torch.equal(a, b)
    assert not torch.equal(tensors(found[0])[0], tensors(first)[0])


@pytest.mark.parametrize("call", [dense, with_tensors, ragged, paged])
def test_a_call_on_what_its_caller_gave_is_not_described(call, monkeypatch):
    _again.forget()
    with torch.no_grad():
        call(0)
        expected = call(10)
        monkeypatch.setattr(functional, "Call", None)
        for a, b in zip(tensors(call(10)), tensors(expected)):
            assert torch.equal(a, b)


@pytest.mark.parametrize("options", [dict(), dict(is_causal=True), dict(scale=0.3), dict(queries=3)])
def test_a_call_by_pytorchs_name_is_started_at_once_and_lies_as_the_first(options, monkeypatch):
    _again.forget()
    with torch.no_grad():
        expected = heads_first(10, **options)
        heads_first(20, **options)
        monkeypatch.setattr(functional, "Call", None)
        found = heads_first(10, **options)
    assert torch.equal(found, expected) and found.stride() == expected.stride()


def test_a_kept_call_of_another_mask_or_of_grouped_heads_is_not_pytorchs():
    q, k = random(2, 3, 4, 32), random(2, 7, 4, 32, seed=1)
    _again.forget()
    with torch.no_grad():
        for causal in (True, False):
            flash_attn_func(q, k, k, causal=causal)
            bhsd = [x.transpose(1, 2) for x in (q, k, k)]
            expected = torch.nn.functional.scaled_dot_product_attention(*bhsd, is_causal=causal)
            torch.testing.assert_close(scaled_dot_product_attention(*bhsd, is_causal=causal), expected)
        k = k[:, :, :2]
        flash_attn_func(q, k, k)
        bhsd = [x.transpose(1, 2) for x in (q, k, k)]
        scaled_dot_product_attention(*bhsd, enable_gqa=True)
        with pytest.raises(RuntimeError, match="expanded size"):
            scaled_dot_product_attention(*bhsd)


@pytest.mark.parametrize("given", [
    dict(window_size=[3, 1]), dict(window_size=(True, 1)), dict(softmax_scale=torch.tensor(0.25)), dict(softcap=1), dict(softmax_scale=1),
])
def test_arguments_of_other_types_mean_what_they_mean_the_first_time(given):
    q, k, v = random(2, 5, 4, 32), random(2, 9, 2, 32, seed=1), random(2, 9, 2, 32, seed=2)

    def outcome():
        try:
            return flash_attn_func(q, k, v, **given)
        except (TypeError, ValueError) as error:
            return repr(error)

    _again.forget()
    with torch.no_grad():
        first, *others = [outcome() for _ in range(3)]
    assert all(torch.equal(first, other) if torch.is_tensor(first) else first == other for other in others)


@pytest.mark.parametrize("change", [
    dict(softmax_scale=0.5), dict(softcap=3.0), dict(window_size=(2, 0)), dict(sinks=torch.zeros(4)), dict(alibi_slopes=torch.ones(4)),
])
def test_another_option_is_another_call(change):
    _again.forget()
    with torch.no_grad():
        plain, changed = dense(0), dense(0, **change)
        _again.forget()
        assert torch.equal(dense(0, **change), changed) and not torch.equal(plain, changed)


def test_other_shapes_strides_and_types_are_other_calls():
    with torch.no_grad():
        for variant in (
            lambda x: x, lambda x: x[:, :-1], lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), lambda x: x.half(),
            lambda x: x.bfloat16(), lambda x: x[:1], lambda x: x[..., :16],
        ):
            q, k, v = (variant(random(2, 6, 4, 32, seed=seed)) for seed in range(3))
            found = flash_attn_func(q, k, v), flash_attn_func(q, k, v)
            _again.forget()
            assert torch.equal(found[0], flash_attn_func(q, k, v)) and torch.equal(*found)


def test_what_is_refused_stays_refused():
    q, k, v = (random(1, 6, 4, 32, seed=seed) for seed in range(3))
    for _ in range(2):
        flash_attn_func(q, k, v)
        with pytest.raises(NotImplementedError, match="alibi_slopes have no gradient"):
            flash_attn_func(q, k, v, alibi_slopes=torch.rand(4, requires_grad=True))
        assert flash_attn_func(q.clone().requires_grad_(), k, v).requires_grad
        with pytest.raises(ValueError, match="k is float16"):
            flash_attn_func(q, k.half(), v)
        with pytest.raises(TypeError, match="ndarray beside"):
            flash_attn_func(q, k.numpy(), v)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert flash_attn_func(q, k, v).dtype == torch.bfloat16
        with pytest.raises(ValueError, match="the number of keys of sequence 0 is 7"):
            flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=int32(7))
        flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=int32(6))


def test_negated_tensors_are_not_those_that_lie_there():
    plain = [random(1, 6, 4, 32, seed=seed) for seed in range(3)]
    flash_attn_func(*plain)
    for at in range(3):
        given = list(plain)
        given[at] = torch._neg_view(given[at])
        assert given[at].is_neg()
        found = flash_attn_func(*given)
        _again.forget()
        assert torch.equal(found, flash_attn_func(*(x.resolve_neg() for x in given)))


def test_lse_is_written_where_it_is_wanted_and_begins_as_minus_infinity_where_rows_belong_to_nobody():
    with torch.no_grad():
        dense(0)
        found = dense(0, return_attn_probs=True)
        _again.forget()
        for ours, theirs in zip(tensors(found), tensors(dense(0, return_attn_probs=True))):
            assert torch.equal(ours, theirs)
        q, k = random(12, 4, 32), random(20, 2, 32, seed=1)
        for _ in range(2):
            _, lse, _ = flash_attn_varlen_func(q, k, k, int32(0, 3, 9), int32(0, 8, 20), 9, 13, return_attn_probs=True)
            assert lse[..., 9:].eq(-float("inf")).all() and lse[..., :9].isfinite().all()


def test_a_mode_sees_calls_that_were_made_before():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with torch.no_grad():
        dense(0)
        with Log():
            dense(0)
    assert any("ferroflash" in name for name in seen), seen


def test_the_kept_calls_do_not_grow_without_end():
    q = random(1, 1, 1, 8)
    k = random(1, 5000, 1, 8, seed=1)
    with torch.no_grad():
        for length in range(1, 4200):
            flash_attn_func(q, k[:, :length], k[:, :length])
        assert torch.equal(flash_attn_func(q, k[:, :3], k[:, :3]), flash_attn_func(q, k[:, :3].clone(), k[:, :3].clone()))


def test_another_cpu_device_computes_the_same_calls_again():
    q = random(1, 4, 2, 64, dtype=torch.float32)
    flash_attn_func(q, q, q)
    try:
        ferroflash.use_cpu_device("simulator")
    except RuntimeError as error:
        pytest.skip(f"no compiled kernels: {error}")
    try:
        with pytest.raises(NotImplementedError, match="float32"):
            flash_attn_func(q, q, q)
    finally:
        ferroflash.use_cpu_device("reference")
