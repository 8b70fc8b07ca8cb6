"""Every argument of every function, spoilt in every way that is known: it is refused in words, or means what it says; nothing crashes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ferroflash
from ferroflash import flash_attn_func

REFUSALS = (ValueError, TypeError, NotImplementedError, OverflowError)
int32 = lambda *numbers: torch.tensor(numbers, dtype=torch.int32)


def options(sinks=True):
    given = dict(softmax_scale=0.3, causal=True, window_size=(3, 2), softcap=1.5, alibi_slopes=torch.rand(4))
    return given | dict(sinks=torch.randn(4)) if sinks else given


def calls():
    """Each function with arguments that are right."""
    q, k, v = torch.randn(2, 5, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
    packed = lambda *shape: torch.randn(*shape, 16)
    new = dict(k=packed(2, 2, 2), v=packed(2, 2, 2), rotary_cos=torch.randn(12, 8), rotary_sin=torch.randn(12, 8))
    ragged = dict(cu_seqlens_q=int32(0, 3, 7), cu_seqlens_k=int32(0, 4, 10), max_seqlen_q=4, max_seqlen_k=6)
    pages = dict(cache_seqlens=int32(4, 7), block_table=torch.tensor([[0, 2, 4], [1, 3, 5]], dtype=torch.int32))
    return {
        "flash_attn_func": dict(q=q, k=k, v=v, tree_mask=torch.rand(2, 5, 4) < 0.5, **options()),
        "flash_attn_varlen_func": dict(q=packed(7, 4), k=packed(10, 2), v=packed(10, 2), **ragged, **options()),
        "flash_attn_with_kvcache": dict(
            q=q, k_cache=k, v_cache=v, **new, cache_seqlens=int32(4, 7), cache_leftpad=int32(1, 0), rotary_interleaved=True, num_splits=0, **options()
        ),
        "flash_attn_with_kvcache pages": dict(q=q, k_cache=packed(8, 3, 2), v_cache=packed(8, 3, 2), **pages, **options()),
        "flash_attn_qkvpacked_func": dict(qkv=packed(2, 5, 3, 4), **options(sinks=False)),
        "flash_attn_kvpacked_func": dict(q=q, kv=packed(2, 9, 2, 2), **options(sinks=False)),
        "flash_attn_varlen_qkvpacked_func": dict(qkv=packed(7, 3, 4), cu_seqlens=int32(0, 3, 7), max_seqlen=4, **options(sinks=False)),
        "merge_states": dict(o_a=packed(2, 5, 4), lse_a=torch.randn(2, 4, 5), o_b=packed(2, 5, 4), lse_b=torch.randn(2, 4, 5)),
    }


ANYTHING = [
    None, "abc", float("nan"), float("inf"), -float("inf"), -1, 2**70, 1e300, 2**31, [1, 2], (1,), (1, 2, 3), (1.5, 2), ("a", 2),
    (float("nan"), 2), (2**70, 2), {}, object(), 1j, np.zeros((2, 2), np.float32), 0.5, -0.5, torch.tensor(2), np.float32(2), 1e-300, 0,
]
SPOILT = dict(
    int64=lambda x: x.long(), uint8=lambda x: x.to(torch.uint8), float16=lambda x: x.half(), complex=lambda x: x.to(torch.complex64),
    float8=lambda x: x.float().to(torch.float8_e4m3fn), meta=lambda x: x.to("meta"), sparse=lambda x: x.to_sparse(), turned=lambda x: x.mT,
    deeper=lambda x: x[None], shallower=lambda x: x[0], nothing=lambda x: x[:0], narrower=lambda x: x[..., :-1], empty=lambda x: x[..., :0],
    longer=lambda x: torch.cat([x, x]), numpy=lambda x: x.numpy(), list=lambda x: x.tolist(), huge=lambda x: x * 0 + 2**30,
    least=lambda x: x * 0 - 2**31, freed=lambda x: (x.untyped_storage().resize_(0), x)[1],
)


@torch.no_grad()
@pytest.mark.parametrize("name", calls())
def test_spoilt_arguments_are_refused_or_mean_something(name):
    function, computed, refused = getattr(ferroflash, name.split()[0]), [], 0
    for argument in calls()[name]:
        changes = [lambda _, value=value: value for value in ANYTHING]
        if isinstance(calls()[name][argument], torch.Tensor):
            changes += SPOILT.values()
        for change in changes:
            given = calls()[name]
            try:
                spoilt = change(given[argument])
            except (RuntimeError, IndexError):
                continue
            # PyTorch itself takes parts of these.
            if argument in ("qkv", "kv", "tree_mask") and change is SPOILT["freed"]:
                continue
            try:
                function(**given | {argument: spoilt})
            except REFUSALS as error:
                refused += 1
                assert str(error), (argument, spoilt)
            else:
                computed.append((argument, spoilt))
    assert refused > 100
    # What is a number, or says that there is none, is computed; what is none of a thing's kind is not.
    for argument, value in computed:
        assert isinstance(value, (torch.Tensor, int, float, np.float32, list, type(None))), (argument, value)
        assert argument not in ("causal", "rotary_interleaved") or value in (None, -1, 2**70, 2**31, 0), (argument, value)
        assert value != value or value not in (float("inf"), 1e300, 1e-300) if isinstance(value, float) else True, (argument, value)


def test_numbers_that_float32_has_not_are_refused():
    q = torch.randn(1, 3, 2, 16)
    for options, message in [
        (dict(softmax_scale=1e300), r"scale 1e300 .* in the type of LSE"), (dict(softmax_scale=1e-300), "scale 1e-300"),
        (dict(softcap=1e-300), "softcap 1e-300 .* it is 0"), (dict(causal="False"), "causal is 'False'"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            flash_attn_func(q, q, q, **options)
    flash_attn_func(*[q.double()] * 3, softmax_scale=1e-300)


def test_tensors_that_are_negated_when_they_are_read():
    complex_numbers = torch.randn(3, 1, 5, 2, 16, dtype=torch.complex64)
    views, plain = complex_numbers.conj().imag, complex_numbers.conj().resolve_conj().imag
    assert views.is_neg() and not plain.is_neg()
    slopes = torch.rand(2, dtype=torch.complex64).conj().imag
    for _ in range(2):
        # The second time the calls are known.
        for at in range(3):
            given = [plain[index].clone() for index in range(3)]
            expected = flash_attn_func(*given, causal=True)
            given[at] = views[at]
            torch.testing.assert_close(flash_attn_func(*given, causal=True), expected, atol=0, rtol=0)
        expected = flash_attn_func(*plain.unbind(), alibi_slopes=slopes.resolve_neg())
        torch.testing.assert_close(flash_attn_func(*plain.unbind(), alibi_slopes=slopes), expected, atol=0, rtol=0)
    o, lse, _ = flash_attn_func(*plain.unbind(), return_attn_probs=True)
    merged, expected = (ferroflash.merge_states(tensor, lse, o, lse)[0] for tensor in (views[0], plain[0]))
    torch.testing.assert_close(merged, expected)


def test_no_sequences():
    rows, ends = torch.randn(3, 2, 16, requires_grad=True), int32(0)
    o, lse, _ = ferroflash.flash_attn_varlen_func(rows, rows, rows, ends, ends, 0, 0, return_attn_probs=True, sinks=torch.zeros(2))
    assert not o.any() and bool((lse == -float("inf")).all())
    o.sum().backward()
    assert not rows.grad.any()
