"""PyTorch's tensors: gradients, autocast, torch.compile, the operator's schema, threads, other frameworks' tensors."""

import sys
import threading
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ferroflash
from ferroflash import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

sdpa = torch.nn.functional.scaled_dot_product_attention


def qkv(dtype=torch.float32, heads=(4, 2)):
    torch.manual_seed(0)
    return [torch.randn(2, s, h, 64, dtype=dtype) for s, h in ((7, heads[0]), (7, heads[1]), (7, heads[1]))]


def expected(q, k, v, **options):
    return sdpa(*(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True, **options).transpose(1, 2)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)])
def test_results_are_pytorchs(dtype, tolerance):
    q, k, v = qkv(dtype)
    o = flash_attn_func(q, k, v, causal=True)
    assert o.dtype == dtype
    torch.testing.assert_close(o, expected(q, k, v, is_causal=True), atol=tolerance, rtol=tolerance)


def test_autocast_casts_as_sdpa_does():
    q, k, v = qkv()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert flash_attn_func(q, k, v).dtype == sdpa(q, q, q).dtype == torch.bfloat16


@pytest.mark.parametrize("mask", ["bool", "bool by heads", "bias"])
def test_masks_under_autocast_are_cast_as_sdpa_does(mask):
    q, k, v = (torch.randn(2, 4, 7, 64) for _ in range(3))
    bias = torch.randn(2, 4, 7, 7)
    attn_mask = {"bool": bias[:, :1] > -1, "bool by heads": bias > -1, "bias": bias}[mask]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = (function(q, k, v, attn_mask=attn_mask) for function in (ferroflash.scaled_dot_product_attention, sdpa))
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, atol=3e-2, rtol=3e-2)


def test_autocast_leaves_float64():
    q = torch.randn(2, 4, 7, 64, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = (function(q, q, q) for function in (ferroflash.scaled_dot_product_attention, sdpa))
    torch.testing.assert_close(found, wanted)


def test_compiled_is_eager_without_a_graph_break():
    q, k, v = qkv()

    def layer(q, k, v):
        o, lse, _ = flash_attn_func(q * 2, k, v, causal=True, return_attn_probs=True)
        return o.sum(-1) + 1, lse

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for found, eager in zip(compiled(q, k, v), layer(q, k, v)):
        torch.testing.assert_close(found, eager)

    ends = torch.tensor([0, 3, 7], dtype=torch.int32)

    def ragged(q, k, v):
        return flash_attn_varlen_func(q, k, v, ends, ends, 4, 4, causal=True)

    rows = [x[0].contiguous() for x in (q, k, v)]
    torch.testing.assert_close(torch.compile(ragged, fullgraph=True, backend="aot_eager")(*rows), ragged(*rows))


def test_a_compiled_cache_grows():
    q, k, v = (x[:, :1] for x in qkv())
    caches = [torch.zeros(2, 8, 2, 64) for _ in range(4)]
    used = torch.tensor([0, 5], dtype=torch.int32)

    def step(q, k, v, cache_k, cache_v):
        return flash_attn_with_kvcache(q, cache_k, cache_v, k, v, cache_seqlens=used)

    found = torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, v, *caches[:2])
    torch.testing.assert_close(found, step(q, k, v, *caches[2:]))
    torch.testing.assert_close(caches[0], caches[2])
    assert caches[0][1, 5].abs().sum() > 0


def test_the_operator_is_what_its_schema_says():
    q, k, v = qkv()
    operator = torch.ops.ferroflash.forward.default
    plain = (q, k, v, *[None] * 11, 0.2, True, -1, -1, 0, 0, 0, 0, 0.0, 0)
    for lse in (True, False):
        torch.library.opcheck(operator, (*plain, lse, False), test_utils=("test_schema", "test_faketensor"))


def test_tensors_of_several_places_are_refused():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="k is on meta"):
        flash_attn_func(q, k.to("meta"), v)


def test_tensors_without_memory_have_shapes():
    q, k, v = (x.to("meta") for x in qkv())
    rows, ends = torch.empty(7, 4, 64, device="meta"), torch.empty(3, dtype=torch.int32, device="meta")
    o, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True)
    assert (o.shape, o.device.type, lse.shape) == (q.shape, "meta", (2, 4, 7))
    assert flash_attn_varlen_func(rows, rows, rows, ends, ends, 4, 4).shape == rows.shape
    assert flash_attn_with_kvcache(q[:, :1], k, v, k[:, :1], v[:, :1], cache_seqlens=3).shape == (2, 1, 4, 64)
    mask = torch.empty(7, 7, dtype=torch.bool, device="meta")
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    assert ferroflash.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).shape == q.shape
    for wrong, message in ((k.double(), "is float64, q float32"), (k[..., :8], "head_dim 8, q 64"), (torch.empty(k.shape), "is on cpu, q on meta")):
        with pytest.raises(ValueError, match=message):
            ferroflash.scaled_dot_product_attention(q, wrong, wrong, enable_gqa=True)


def test_threads_share_the_device():
    q, k, v = qkv()
    eager, wrong = flash_attn_func(q, k, v), []

    def work():
        wrong.extend(1 for _ in range(50) if not torch.equal(flash_attn_func(q, k, v), eager))

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


class Other:
    """A tensor of a framework that is known by DLPack alone."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_other_frameworks_come_by_dlpack_and_get_their_own_back(monkeypatch):
    import sys

    monkeypatch.setattr(sys.modules[__name__], "from_dlpack", lambda tensor: Other(np.from_dlpack(tensor)), raising=False)
    monkeypatch.setattr(Other, "__module__", __name__)
    q, k, v = (x.numpy() for x in qkv())
    o = flash_attn_func(Other(q), Other(k), Other(v))
    assert isinstance(o, Other)
    np.testing.assert_array_equal(o.array, flash_attn_func(q, k, v))
    grown, options = (k.copy(), v.copy()), dict(cache_seqlens=3, causal=True)
    o = flash_attn_with_kvcache(Other(q), Other(grown[0]), Other(grown[1]), Other(k[:, :1]), Other(v[:, :1]), **options)
    assert isinstance(o, Other) and (grown[0][:, 3] == k[:, 0]).all()
    np.testing.assert_array_equal(o.array, flash_attn_with_kvcache(q, *grown, k[:, :1], v[:, :1], **options))


def test_a_compiled_cache_grows_by_rotated_keys():
    q, k, v = (x[:, :2] for x in qkv())
    angles = torch.arange(8)[:, None] * 0.1 * torch.arange(1, 17)
    used = torch.tensor([0, 5], dtype=torch.int32)

    def step(q, k, v, cache_k, cache_v):
        given = dict(rotary_cos=angles.cos(), rotary_sin=angles.sin(), rotary_interleaved=False)
        return flash_attn_with_kvcache(q, cache_k, cache_v, k, v, cache_seqlens=used, causal=True, **given)

    caches = [torch.zeros(2, 8, 2, 64) for _ in range(4)]
    found = torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, v, *caches[:2])
    torch.testing.assert_close(found, step(q, k, v, *caches[2:]))
    torch.testing.assert_close(caches[0], caches[2])
    assert not torch.equal(caches[0][1, 5:7], k[1])
    operator = torch.ops.ferroflash.append.default
    arguments = (q, *caches[:2], k, v, used, None, None, angles.cos(), angles.sin(), None, None, None, True, False)
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


def test_new_keys_that_want_gradients_are_refused():
    q, k, v = (x[:, :1] for x in qkv())
    caches = [torch.zeros(2, 8, 2, 64) for _ in range(2)]
    with pytest.raises(NotImplementedError, match="requires_grad"):
        flash_attn_with_kvcache(q, *caches, k.clone().requires_grad_(), v, cache_seqlens=3)


def test_compiling_does_not_walk_through_all_modules():
    """Modules that import others when they are looked at change sys.modules, which Dynamo does not survive where a function reads that."""

    class Lazy(types.ModuleType):
        @property
        def __class__(self):
            sys.modules.setdefault(f"{self.__name__}_{len(sys.modules)}", types.ModuleType("late"))
            return types.ModuleType

    before = set(sys.modules)
    sys.modules["a_lazy_module"] = Lazy("a_lazy_module")
    try:
        q, k, v = (torch.randn(1, 16, 2, 64, dtype=torch.float16) for _ in range(3))
        torch._dynamo.reset()
        found = torch.compile(flash_attn_func, fullgraph=True, backend="aot_eager")(q, k, v)
        torch.testing.assert_close(found, flash_attn_func(q, k, v))
    finally:
        for name in set(sys.modules) - before:
            if name.startswith("a_lazy_module"):
                del sys.modules[name]


def test_masks_and_merges_compile_without_a_graph_break():
    q, k, v = (torch.randn(2, 4, 7, 16) for _ in range(3))
    mask = torch.rand(7, 7) > 0.3
    mask[:, 0] = True
    masked = lambda q, k, v, mask: ferroflash.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    compiled = torch.compile(masked, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v, mask), sdpa(q, k, v, attn_mask=mask))
    o, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True)
    merged = torch.compile(ferroflash.merge_states, backend="aot_eager", fullgraph=True)(o, lse, o, lse)
    torch.testing.assert_close(merged[0], o)


def test_a_tangent_is_refused_and_not_lost():
    from torch.autograd import forward_ad

    q, k, v = qkv()
    for _ in range(2):
        # The second time by what is kept of the first.
        flash_attn_func(q, k, v)
    with forward_ad.dual_level():
        for at in range(3):
            tensors = [forward_ad.make_dual(x, x) if number == at else x for number, x in enumerate((q, k, v))]
            with pytest.raises(NotImplementedError, match="a tangent is not supported"):
                flash_attn_func(*tensors)
        torch.testing.assert_close(flash_attn_func(q, k, v), expected(q, k, v), atol=1e-5, rtol=1e-5)


def test_a_gradient_that_needs_what_a_cache_held_says_that_it_is_gone():
    new, cache, weight = torch.randn(1, 1, 2, 16), torch.randn(1, 5, 2, 16), torch.randn(1, 5, 2, 16, requires_grad=True)
    product = (weight * cache).sum()
    with torch.no_grad():
        flash_attn_with_kvcache(new, cache, cache.clone(), new, new, cache_seqlens=2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with torch.inference_mode():
        cache = torch.randn(1, 5, 2, 16)
    flash_attn_with_kvcache(new, cache, cache.clone(), new, new, cache_seqlens=2)


def trained_flops(function):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as mode:
        o = function()
        if o.requires_grad:
            o.sum().backward()
    return mode.get_total_flops()


def test_pytorch_counts_flops():
    q, k, v = (torch.randn(2, 64, heads, 16, requires_grad=True) for heads in (8, 4, 4))
    ours = lambda: flash_attn_func(q, k, v)
    assert trained_flops(ours) == trained_flops(lambda: sdpa(*(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True)) > 0
    rows, ends = torch.randn(100, 8, 16), torch.tensor([0, 30, 30, 90], dtype=torch.int32)
    ragged = lambda q: ferroflash.flash_attn_varlen_func(q, q, q, ends.to(q.device), ends.to(q.device), 60, 60)
    assert trained_flops(lambda: ragged(rows)) == 4 * 16 * 8 * (30**2 + 60**2)
    # Lengths that nobody knows are the longest.
    assert trained_flops(lambda: ragged(rows.to("meta"))) == 4 * 16 * 8 * 3 * 60**2
    cache = torch.randn(6, 4, 2, 16)
    table, used = torch.arange(6, dtype=torch.int32).reshape(2, 3), torch.tensor([3, 11], dtype=torch.int32)
    paged = lambda: flash_attn_with_kvcache(torch.randn(2, 1, 8, 16), cache, cache, cache_seqlens=used, block_table=table)
    assert trained_flops(paged) == 4 * 16 * 8 * 14


@pytest.mark.parametrize("trace", ["jit", "fx", "vmap", "jvp"])
def test_merges_are_seen_by_what_watches(trace):
    from torch.fx.experimental.proxy_tensor import make_fx

    def merged(q, k):
        halves = [flash_attn_func(q, part, part, return_attn_probs=True)[:2] for part in (k[:, :5], k[:, 5:])]
        return ferroflash.merge_states(*halves[0], *halves[1])[0]

    q, k, others = (torch.randn(2, 8, 4, 16) for _ in range(3))
    if trace == "vmap":
        found = torch.vmap(merged)(torch.stack([q, k]), torch.stack([k, others]))
        torch.testing.assert_close(found, torch.stack([flash_attn_func(q, k, k), flash_attn_func(k, others, others)]))
    elif trace == "jvp":
        o, lse, _ = flash_attn_func(q, k, k, return_attn_probs=True)
        _, tangent = torch.func.jvp(lambda o: ferroflash.merge_states(o, lse, o, lse)[0], (o,), (others,))
        torch.testing.assert_close(tangent, others)
    else:
        # With other tensors than were traced, so that a result which became a constant shows.
        traced = torch.jit.trace(merged, (others, k)) if trace == "jit" else make_fx(merged)(others, k)
        torch.testing.assert_close(traced(q, others), flash_attn_func(q, others, others))


def test_a_merge_does_not_lose_tangents():
    from torch.autograd import forward_ad

    o, lse, _ = flash_attn_func(*qkv(), return_attn_probs=True)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="a tangent is not supported"):
        ferroflash.merge_states(forward_ad.make_dual(o, o), lse, o, lse)
    with pytest.raises(NotImplementedError, match="a tangent is not supported"):
        torch.func.jvp(lambda q: flash_attn_func(q, q, q), (o,), (o,))


@pytest.mark.parametrize("what", ["lengths", "masks"])
def test_a_compiled_program_is_one_for_all_lengths(what):
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    def call(q, length):
        if what == "masks":
            return flash_attn_func(q[None], q[None], q[None], tree_mask=q.new_ones(1, *[length] * 2, dtype=torch.bool))
        ends = torch.tensor([0, 3, length], dtype=torch.int32)
        return ferroflash.flash_attn_varlen_func(q, q, q, ends, ends, length, length)

    torch._dynamo.reset()
    function = torch.compile(call, backend=backend, fullgraph=True, dynamic=True)
    for length in (40, 41, 50, 70):
        q = torch.randn(length, 2, 16)
        torch.testing.assert_close(function(q, length), call(q, length))
    assert len(compiled) == 1


def test_an_exported_program_takes_other_lengths():
    class Ragged(torch.nn.Module):
        def forward(self, q, ends):
            return ferroflash.flash_attn_varlen_func(q, q, q, ends, ends, q.shape[0], q.shape[0], causal=True)

    lengths = lambda *numbers: torch.tensor(numbers, dtype=torch.int32)
    rows, batch = torch.export.Dim("rows", min=2, max=64), torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Ragged(), (torch.randn(10, 2, 16), lengths(0, 4, 10)), dynamic_shapes=({0: rows}, {0: batch}))
    q, ends = torch.randn(12, 2, 16), lengths(0, 4, 4, 12)
    torch.testing.assert_close(program.module()(q, ends), Ragged()(q, ends))


def test_masks_map():
    q, mask = torch.randn(3, 2, 4, 5, 16), torch.rand(3, 2, 1, 5, 5) > 0.3
    mask[..., 0] = True
    mapped = torch.vmap(lambda q, mask: ferroflash.scaled_dot_product_attention(q, q, q, mask))(q, mask)
    torch.testing.assert_close(mapped, sdpa(q, q, q, mask))


def test_a_traced_mask_has_any_number_of_keys():
    given = lambda length: (torch.randn(2, 4, length, 16), torch.rand(2, 1, length, length) > 0.4)
    masked = lambda q, mask: ferroflash.scaled_dot_product_attention(q, q, q, mask)
    traced = torch.jit.trace(masked, given(5))
    for arguments in (given(9), given(70)):
        torch.testing.assert_close(traced(*arguments), masked(*arguments))


def test_an_exported_mask_has_any_number_of_keys():
    class Masked(torch.nn.Module):
        def forward(self, q, mask):
            return ferroflash.scaled_dot_product_attention(q, q, q, mask)

    length = torch.export.Dim("length", min=2, max=100)
    given = lambda length: (torch.randn(2, 4, length, 16), torch.rand(2, 1, length, length) > 0.4)
    program = torch.export.export(Masked(), given(10), dynamic_shapes=({2: length}, {2: length, 3: length}))
    for number in (7, 32, 33, 64, 100):
        q, mask = given(number)
        torch.testing.assert_close(program.module()(q, mask), Masked()(q, mask))
