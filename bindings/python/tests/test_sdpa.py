"""PyTorch's function and ours of that name: the same arguments, random shapes and masks, and gradients."""

import inspect
import random

import pytest

torch = pytest.importorskip("torch")

import ferroflash
from ferroflash import scaled_dot_product_attention
from test_functions import simulator  # noqa: F401

COUNT = 200


def drawn(seed, dtype, widths):
    """Q, K, V and options of a call."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    outer = draw.choice([(), (1,), (2,), (3,), (2, 2), None])
    heads, group = draw.choice([1, 2, 3]), draw.choice([1, 1, 2])
    queries, keys = draw.choice([1, 2, 7, 33]), draw.choice([1, 2, 7, 40])
    width, width_v = draw.choice(widths), draw.choice(widths)
    lead_q, lead_k = ((), ()) if outer is None else ((*outer, heads * group), (*outer, heads))
    if group == 1 and outer and draw.random() < 0.2:
        lead_k = draw.choice([(1,) * len(outer) + (heads,), (*outer, 1)])
    q, k, v = (torch.randn(*lead, *of).to(dtype) for lead, of in ((lead_q, (queries, width)), (lead_k, (keys, width)), (lead_k, (keys, width_v))))
    options = dict(scale=draw.choice([None, 0.3]), enable_gqa=group > 1 and outer is not None)
    if draw.random() < 0.4:
        options["is_causal"] = True
    elif draw.random() < 0.7:
        whole = (*lead_q, queries, keys)
        shape = [draw.choice([1, size]) for size in whole][draw.randint(0, len(whole) - 2) if whole[0] == 1 else 0 :]
        mask = torch.randn(shape)
        options["attn_mask"] = (mask > -0.5) if draw.random() < 0.5 else mask.to(dtype)
        if options["attn_mask"].dtype == torch.bool:
            # Of a query that sees nothing, PyTorch's versions say different things.
            options["attn_mask"][..., 0] = True
    return q, k, v, options


def expected_of(q, k, v, options):
    mask = options.get("attn_mask")
    options = options | (dict(attn_mask=mask.double()) if mask is not None and mask.is_floating_point() else {})
    return torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), **options)


def test_the_signature_is_pytorchs():
    said = torch.nn.functional.scaled_dot_product_attention.__doc__
    for name, parameter in inspect.signature(scaled_dot_product_attention).parameters.items():
        assert name in said and (parameter.default is parameter.empty or f"{name}={parameter.default}" in said.replace(" ", ""))


def test_random_calls_are_pytorchs():
    for seed in range(COUNT):
        q, k, v, options = drawn(seed, torch.float64, [1, 3, 8, 16])
        leaves = [x.requires_grad_() for x in (q, k, v)]
        found, expected = scaled_dot_product_attention(*leaves, **options), expected_of(*leaves, options)
        torch.testing.assert_close(found, expected, msg=lambda text: f"seed {seed}: {text}")
        of_o = torch.randn_like(expected)
        for ours, theirs in zip(torch.autograd.grad(found, leaves, of_o), torch.autograd.grad(expected, leaves, of_o)):
            torch.testing.assert_close(ours, theirs, msg=lambda text: f"seed {seed}: {text}")


@torch.no_grad()
@pytest.mark.parametrize("model", ["l4", "h100"])
def test_the_kernels_compute_random_calls(simulator, model):  # noqa: F811
    ferroflash.use_cpu_device("simulator", model)
    for seed in range(COUNT // 4):
        q, k, v, options = drawn(seed, torch.float16, [16, 20, 64, 128])
        found, expected = scaled_dot_product_attention(q, k, v, **options), expected_of(q, k, v, options)
        torch.testing.assert_close(found.double(), expected, atol=8e-3, rtol=8e-3, msg=lambda text: f"seed {seed}: {text}")


@pytest.mark.parametrize("change, kind, message", [
    (dict(dropout_p=1.5), ValueError, "dropout_p"),
    (dict(dropout_p=-0.5), ValueError, "dropout_p"),
    (dict(dropout_p=1, attn_mask=torch.ones(4, 5)), ValueError, "cannot be broadcast"),
    (dict(is_causal=True, attn_mask=torch.ones(3, 5)), ValueError, "exclude each other"),
    (dict(attn_mask=torch.ones(4, 5)), ValueError, r"shape \(1, 1, 4, 5\), which cannot be broadcast"),
    (dict(attn_mask=torch.ones(1, 1, 2, 3, 5)), ValueError, "cannot be broadcast"),
    (dict(query=torch.ones(3)), ValueError, "1, 4 and 4 dimensions"),
])
def test_what_it_cannot_do_is_refused(change, kind, message):
    given = dict(query=torch.ones(1, 2, 3, 8), key=torch.ones(1, 2, 5, 8), value=torch.ones(1, 2, 5, 8))
    with pytest.raises(kind, match=message):
        scaled_dot_product_attention(**given | change)


@pytest.mark.parametrize("options", [dict(), dict(is_causal=True), dict(attn_mask=torch.ones(3, 5, dtype=torch.bool))])
@pytest.mark.parametrize("whole", [1, 1.0])
def test_all_weights_dropped_give_zeros(options, whole):
    leaves = [torch.randn(1, 2, rows, 8, requires_grad=True) for rows in (3, 5, 5)]
    for function in (scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention):
        o = function(*leaves, dropout_p=whole, **options)
        assert o.shape == (1, 2, 3, 8) and not o.any()
        assert all(gradient is not None and not gradient.any() for gradient in torch.autograd.grad(o, leaves, torch.ones_like(o)))
    with torch.no_grad():
        assert not scaled_dot_product_attention(*leaves, dropout_p=whole, **options).any()


def test_what_is_no_mask_is_refused():
    q = torch.randn(1, 2, 5, 16)
    with pytest.raises(TypeError, match="attn_mask is int64, must be bool"):
        scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(5, 5, dtype=torch.long))
    with pytest.raises(TypeError, match="key is ndarray"):
        scaled_dot_product_attention(q, q.numpy(), q)


def test_a_model_that_calls_pytorchs_function(monkeypatch):
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(2, 9, 32)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(9)
    expected, _ = layer(x, x, x, attn_mask=mask, need_weights=False)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", scaled_dot_product_attention)
    found, _ = layer(x, x, x.requires_grad_(), attn_mask=mask, need_weights=False)
    torch.testing.assert_close(found, expected)
