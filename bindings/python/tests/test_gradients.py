"""Gradients through autograd: gradcheck, PyTorch's own attention in float64, torch.compile, checkpoints, training, and what is refused."""

import pytest

torch = pytest.importorskip("torch")

import ferroflash
from ferroflash import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
    merge_states,
)


def random(*shape, seed=0, dtype=torch.float64, grad=True):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    return x.requires_grad_() if grad else x


def tensors(sizes, **options):
    """Q, K and V of (batch, seqlen_q, seqlen_k, heads, heads_kv, head_dim, head_dim_v)."""
    b, sq, sk, h, hk, d, dv = sizes
    shapes = (b, sq, h, d), (b, sk, hk, d), (b, sk, hk, dv)
    return [random(*shape, seed=seed, **options) for seed, shape in enumerate(shapes)]


def plain(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, sinks=None, softmax_scale=None, tree_mask=None, attn_bias=None):
    """Attention by PyTorch's operators, as its autograd differentiates it: O and LSE."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (softmax_scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    keys, queries = k.shape[1], q.shape[1]
    distance = torch.arange(keys)[None] - torch.arange(queries)[:, None] - (keys - queries)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.double()[..., None, None] * distance.abs()
    if attn_bias is not None:
        scores = scores + attn_bias
    left, right = window_size
    right = 0 if causal else right
    hidden = ((distance < -left) & (left >= 0) | (distance > right) & (right >= 0)).expand(q.shape[0], queries, keys)
    if tree_mask is not None:
        hidden = hidden.clone()
        hidden[..., keys - tree_mask.shape[-1] :] |= ~tree_mask
    scores = scores.masked_fill(hidden[:, None], -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    lse = scores.logsumexp(-1)
    seen = lse != -torch.inf
    p = torch.exp(scores - torch.where(seen, lse, 0.0)[..., None])[..., :keys]
    return torch.einsum("bhij,bjhd->bihd", p, v), lse


def gradients(o, lse, inputs, with_lse=True):
    """Of a number that depends on every element of O and of LSE; rows that see nothing have no LSE to speak of."""
    loss = (o * torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view(o.shape)).sum()
    if with_lse:
        finite = torch.where(lse == -torch.inf, 0, lse)
        loss = loss + (finite * torch.linspace(0, 2, lse.numel(), dtype=lse.dtype).view(lse.shape)).sum()
    return torch.autograd.grad(loss, inputs)


SIZES = [(1, 1, 1, 1, 1, 1, 1), (2, 5, 7, 4, 2, 8, 8), (1, 9, 4, 3, 1, 16, 16), (3, 33, 65, 2, 2, 5, 5), (2, 6, 6, 4, 2, 24, 16)]
MASKS = [dict(), dict(causal=True), dict(window_size=(2, 1)), dict(causal=True, window_size=(3, -1)), dict(window_size=(-1, 2))]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gradients_are_those_of_pytorch_in_float64(sizes, mask):
    qkv = tensors(sizes)
    for options in ({}, dict(softmax_scale=0.3), dict(softcap=2.0), dict(alibi_slopes=torch.rand(sizes[3]))):
        o, lse, _ = flash_attn_func(*qkv, return_attn_probs=True, **mask, **options)
        expected_o, expected_lse = plain(*qkv, **mask, **options)
        torch.testing.assert_close(o, expected_o)
        torch.testing.assert_close(lse, expected_lse)
        for with_lse in (True, False):
            found = gradients(o, lse, qkv, with_lse) if with_lse else gradients(flash_attn_func(*qkv, **mask, **options), None, qkv, False)
            for x, y in zip(found, gradients(*plain(*qkv, **mask, **options), qkv, with_lse)):
                torch.testing.assert_close(x, y)


def test_sinks_and_trees_have_gradients():
    qkv, sinks = tensors((2, 5, 7, 4, 2, 8, 8)), random(4, seed=9, dtype=torch.float32)
    tree = torch.rand(2, 5, 4, generator=torch.Generator().manual_seed(3)) > 0.4
    options = dict(sinks=sinks, tree_mask=tree)
    o, lse, _ = flash_attn_func(*qkv, return_attn_probs=True, **options)
    for x, y in zip(gradients(o, lse, [*qkv, sinks]), gradients(*plain(*qkv, **options), [*qkv, sinks])):
        torch.testing.assert_close(x, y, check_dtype=False, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("options", [dict(), dict(causal=True, window_size=(2, -1), softcap=1.5)], ids=str)
def test_gradcheck(options):
    qkv = tensors((2, 3, 5, 4, 2, 3, 3))
    torch.autograd.gradcheck(lambda q, k, v: flash_attn_func(q, k, v, return_attn_probs=True, **options)[:2], qkv)
    packed = random(2, 4, 3, 2, 3)
    torch.autograd.gradcheck(lambda qkv: flash_attn_qkvpacked_func(qkv, **options), packed)


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 3, 1, 7), (1, 1, 5, 7), (2, 1, 1, 7), (1, 1, 1, 7)])
def test_gradients_under_a_bias_are_those_of_pytorch(shape):
    q, k, v = (random(2, length, 3, 8, seed=seed) for seed, length in enumerate((5, 7, 7)))
    bias, of_o = random(*shape, seed=4, grad=False), random(2, 5, 3, 8, seed=5, grad=False)
    bias[..., 2] = -torch.inf
    inputs = q, k, v, bias.requires_grad_()
    expected = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=bias).transpose(1, 2)
    theirs = torch.autograd.grad(expected, inputs, of_o)
    whole = bias.expand(2, 3, 5, 7)
    # As it is, repeated, and with the strides of a permuted tensor.
    for given in (bias, whole, whole.transpose(0, 3).contiguous().transpose(0, 3)):
        o = flash_attn_func(q, k, v, attn_bias=given)
        torch.testing.assert_close(o, expected)
        for found, their in zip(torch.autograd.grad(o, inputs, of_o), theirs):
            torch.testing.assert_close(found, their)
    # Alone: nothing else wants a gradient.
    o = flash_attn_func(*(x.detach() for x in (q, k, v)), attn_bias=bias)
    torch.testing.assert_close(torch.autograd.grad(o, bias, of_o)[0], theirs[3])


def test_a_bias_of_nothing_and_one_with_lse_and_dropout_have_gradients():
    for queries, keys in ((0, 7), (5, 0)):
        q, k = random(2, queries, 3, 8), random(2, keys, 3, 8)
        bias = random(1, 3, queries, keys)
        flash_attn_func(q, k, k, attn_bias=bias).sum().backward()
        assert bias.grad.shape == bias.shape and (bias.grad == 0).all()
    qkv, bias = tensors((2, 5, 7, 4, 2, 8, 8)), random(1, 4, 5, 7, seed=6)
    for options in (dict(causal=True), dict(sinks=random(4, seed=9, dtype=torch.float32)), dict(window_size=(2, 1), softcap=1.5)):
        o, lse, _ = flash_attn_func(*qkv, return_attn_probs=True, attn_bias=bias, **options)
        theirs = gradients(*plain(*qkv, attn_bias=bias, **options), [*qkv, bias])
        for x, y in zip(gradients(o, lse, [*qkv, bias]), theirs):
            torch.testing.assert_close(x, y)

    def dropped(bias):
        torch.manual_seed(3)
        return flash_attn_func(*qkv, attn_bias=bias, dropout_p=0.4)

    torch.autograd.gradcheck(dropped, bias)


def test_packed_forms_and_lengths():
    ends_q, ends_k = (torch.tensor(ends, dtype=torch.int32) for ends in ([0, 3, 3, 8], [0, 4, 9, 11]))
    q, k, v = random(8, 4, 6), random(11, 2, 6, seed=1), random(11, 2, 6, seed=2)

    def by_sequence(q, k, v, causal, ends_q, ends_k):
        pairs = zip(ends_q[:-1], ends_q[1:], ends_k[:-1], ends_k[1:])
        return torch.cat([plain(q[None, a:b], k[None, c:d], v[None, c:d], causal)[0][0] for a, b, c, d in pairs])

    for causal in (False, True):
        o = flash_attn_varlen_func(q, k, v, ends_q, ends_k, 5, 5, causal=causal)
        expected = by_sequence(q, k, v, causal, ends_q, ends_k)
        torch.testing.assert_close(o, expected)
        for x, y in zip(gradients(o, None, (q, k, v), False), gradients(expected, None, (q, k, v), False)):
            torch.testing.assert_close(x, y)
        torch.autograd.gradcheck(lambda *x: flash_attn_varlen_func(*x, ends_q, ends_k, 5, 5, causal=causal), (q, k, v))

    qkv, kv = random(8, 3, 2, 6, seed=3), random(11, 2, 2, 6, seed=4)
    ours = flash_attn_varlen_qkvpacked_func(qkv, ends_q, 5, causal=True)
    expected = by_sequence(*qkv.unbind(1), True, ends_q, ends_q)
    torch.testing.assert_close(gradients(ours, None, qkv, False), gradients(expected, None, qkv, False))
    ours = flash_attn_varlen_kvpacked_func(q, kv, ends_q, ends_k, 5, 5)
    expected = by_sequence(q, *kv.unbind(1), False, ends_q, ends_k)
    torch.testing.assert_close(gradients(ours, None, (q, kv), False), gradients(expected, None, (q, kv), False))
    q, kv = random(2, 3, 4, 6), random(2, 5, 2, 2, 6, seed=5)
    ours, expected = flash_attn_kvpacked_func(q, kv), plain(q, *kv.unbind(2))[0]
    torch.testing.assert_close(gradients(ours, None, (q, kv), False), gradients(expected, None, (q, kv), False))


def test_rows_of_no_sequence_have_gradient_0():
    ends = torch.tensor([1, 4, 6], dtype=torch.int32)
    q, k, v = (random(9, 2, 4, seed=seed) for seed in range(3))
    o = flash_attn_varlen_func(q, k, v, ends, ends, 3, 3)
    for gradient in torch.autograd.grad(o[1:6].sum(), (q, k, v)):
        outside = torch.cat([gradient[:1], gradient[6:]])
        assert torch.equal(outside, torch.zeros_like(outside)) and gradient.isfinite().all()


def test_a_nan_reaches_the_gradients_that_it_concerns():
    q, k, v = tensors((1, 4, 4, 1, 1, 8, 8))
    bad = q.detach().clone()
    bad[0, 1] = torch.nan
    bad.requires_grad_()
    found = gradients(flash_attn_func(bad, k, v, causal=True), None, (bad, k, v), False)
    assert [x[0].isnan().flatten(1).any(1).tolist() for x in found] == [[i == 1 for i in range(4)], *[[True, True, False, False]] * 2]


@pytest.mark.parametrize("shape", [(2, 0, 5, 2, 1, 8, 8), (0, 4, 4, 2, 1, 8, 8), (2, 3, 0, 2, 1, 8, 8)], ids=str)
def test_nothing_has_gradients_of_0(shape):
    qkv = tensors(shape)
    o, lse, _ = flash_attn_func(*qkv, return_attn_probs=True)
    assert torch.equal(o, torch.zeros_like(o)) and torch.equal(lse, torch.full_like(lse, -torch.inf))
    for x, gradient in zip(qkv, torch.autograd.grad(o.sum() + torch.where(lse == -torch.inf, 0, lse).sum(), qkv)):
        assert torch.equal(gradient, torch.zeros_like(x))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)])
def test_narrow_types_and_strided_gradients(dtype, tolerance):
    wide = tensors((2, 9, 13, 4, 2, 16, 16), grad=False)
    wide = [x.to(dtype).double().requires_grad_() for x in wide]
    narrow = [x.detach().to(dtype).requires_grad_() for x in wide]
    expected, found = plain(*wide, causal=True)[0], flash_attn_func(*narrow, causal=True)
    # The gradient of a sum is one number everywhere, with strides of 0; of a transposed one it is not contiguous.
    for loss in (torch.sum, lambda o: (o.transpose(1, 3) * torch.linspace(0, 1, 4, dtype=o.dtype)[None, None, :, None]).sum()):
        pairs = zip(torch.autograd.grad(loss(found), narrow, retain_graph=True), torch.autograd.grad(loss(expected), wide, retain_graph=True))
        for x, y in pairs:
            assert x.dtype == dtype
            scale = y.abs().max().item()
            torch.testing.assert_close(x.double(), y, atol=4 * tolerance * scale, rtol=0)


def test_strided_inputs_have_gradients():
    base = random(2, 3, 4, 5, 8)
    views = [base[:, 0].transpose(1, 2), base[:, 1].transpose(1, 2), base[:, 2].transpose(1, 2)]
    strided = [x[..., ::2] for x in views]
    for qkv in (views, strided):
        found = torch.autograd.grad(flash_attn_func(*qkv).square().sum(), base, retain_graph=True)
        torch.testing.assert_close(found, torch.autograd.grad(plain(*qkv)[0].square().sum(), base, retain_graph=True))


def test_only_what_is_wanted_has_a_gradient():
    q, k, v = tensors((1, 3, 5, 2, 1, 4, 4), grad=False)
    v.requires_grad_()
    flash_attn_func(q, k, v).sum().backward()
    assert v.grad is not None and q.grad is None and k.grad is None
    with torch.no_grad():
        assert not flash_attn_func(q, k, v).requires_grad
    with torch.inference_mode():
        flash_attn_func(q, k, v)
    assert flash_attn_func(q, k, v, deterministic=True).requires_grad


def test_the_limit_of_ds_is_a_number_of_bytes_and_changes_no_gradient():
    qkv = tensors((1, 3, 5, 2, 1, 4, 4))
    gradients = lambda: torch.autograd.grad(flash_attn_func(*qkv).square().sum(), qkv)  # noqa: E731
    usual = gradients()
    try:
        for limit in (0, 1 << 29, None):
            ferroflash.use_ds_bytes_max(limit)
            assert all(map(torch.equal, gradients(), usual))
        for wrong, error in ((-1, ValueError), (1 << 64, ValueError), (1.5, TypeError)):
            with pytest.raises(error):
                ferroflash.use_ds_bytes_max(wrong)
    finally:
        ferroflash.use_ds_bytes_max(None)


def test_compiled_gradients_are_eager_ones():
    ends = torch.tensor([0, 2, 5], dtype=torch.int32)

    def loss(q, k, v):
        o, lse, _ = flash_attn_func(q * 2, k, v, causal=True, return_attn_probs=True)
        ragged = flash_attn_varlen_func(q[0], k[0], v[0], ends, ends, 3, 3)
        return o.square().sum() + lse.sum() + ragged.sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (1, 2, 3):
        qkv = tensors((batch, 5, 5, 4, 2, 8, 8), dtype=torch.float32)
        eager, found = loss(*qkv), compiled(*qkv)
        torch.testing.assert_close(found, eager)
        torch.testing.assert_close(torch.autograd.grad(found, qkv), torch.autograd.grad(eager, qkv))


def test_checkpoints_compute_it_again():
    from torch.utils.checkpoint import checkpoint

    qkv = tensors((2, 4, 4, 2, 1, 8, 8))
    expected = torch.autograd.grad(flash_attn_func(*qkv).square().sum(), qkv)
    for reentrant in (True, False):
        o = checkpoint(lambda *x: flash_attn_func(*x), *qkv, use_reentrant=reentrant)
        for x in qkv:
            x.grad = None
        o.square().sum().backward()
        torch.testing.assert_close([x.grad for x in qkv], list(expected))


def test_transforms_see_the_operator():
    q, k, v = tensors((2, 3, 5, 2, 1, 4, 4), grad=False)
    stacked = torch.stack([q, q * 2, -q])
    expected = torch.stack([flash_attn_func(x, k, v) for x in stacked])
    torch.testing.assert_close(torch.vmap(lambda q: flash_attn_func(q, k, v))(stacked), expected)

    def loss(q, k, v):
        return flash_attn_func(q, k, v, causal=True).square().sum()

    def plain_loss(q, k, v):
        return plain(q, k, v, causal=True)[0].square().sum()

    torch.testing.assert_close(torch.func.grad(loss)(q, k, v), torch.func.grad(plain_loss)(q, k, v))
    mapped = torch.vmap(torch.func.grad(loss), in_dims=(0, None, None))(stacked, k, v)
    torch.testing.assert_close(mapped, torch.stack([torch.func.grad(plain_loss)(x, k, v) for x in stacked]))


def test_the_operators_are_what_their_schemas_say():
    for options in (dict(), dict(dtype=torch.float32)):
        q, k, v = tensors((2, 3, 5, 4, 2, 4, 4), **options)
        sinks = random(4, dtype=torch.float32)
        numbers = (0.2, True, -1, -1, 0, 0, 0, 0, 0.0, 0)
        for with_sinks in (None, sinks):
            arguments = (q, k, v, None, with_sinks, *[None] * 9, *numbers, True, True)
            torch.library.opcheck(torch.ops.ferroflash.forward.default, arguments)


def test_what_has_no_gradient_is_refused_by_name():
    q, k, v = tensors((2, 3, 6, 2, 2, 8, 8), dtype=torch.float32)
    with pytest.raises(NotImplementedError, match="alibi_slopes have no gradient"):
        flash_attn_func(q, k, v, alibi_slopes=torch.rand(2, requires_grad=True))
    with pytest.raises(NotImplementedError, match="flash_attn_with_kvcache has no gradient"):
        flash_attn_with_kvcache(q, k, v)
    with pytest.raises(NotImplementedError, match="pages"):
        table = torch.zeros(2, 1, dtype=torch.int32)
        ends = torch.tensor([0, 3, 6], dtype=torch.int32)
        flash_attn_varlen_func(q.flatten(0, 1), k, v, ends, ends, 3, 3, block_table=table)
    lse = torch.zeros(2, 2, 3)
    with pytest.raises(NotImplementedError, match="merge_states has no gradient"):
        merge_states(q, lse, q, lse)
    (first,) = torch.autograd.grad(flash_attn_func(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="gradients of gradients"):
        first.sum().backward()
    # And nothing of it without gradients.
    with torch.no_grad():
        flash_attn_with_kvcache(q, k, v)
        merge_states(q, lse, q, lse)


def test_a_call_like_those_without_gradients_is_checked():
    q, k, v = tensors((1, 3, 6, 2, 2, 8, 8), dtype=torch.float32)
    for _ in range(2):
        with torch.no_grad():
            before = flash_attn_func(q, k, v)
        torch.testing.assert_close(flash_attn_func(q, k, v), before)
        flash_attn_func(q, k, v).sum().backward()


class Layer(torch.nn.Module):
    """One layer of a transformer."""

    def __init__(self, width, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))

    def forward(self, x):
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        x = x + self.out(self.attention(*qkv.unbind(2)).flatten(2))
        return x + self.down(torch.relu(self.up(self.norms[1](x))))


def losses(attention):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Embedding(32, 32), Layer(32, 4, attention), Layer(32, 4, attention), torch.nn.Linear(32, 32)
    )
    optimizer, found = torch.optim.Adam(layers.parameters(), 3e-3), []
    for step in range(20):
        tokens = (torch.arange(24)[None] * (3 + torch.arange(6)[:, None]) + step) % 32
        loss = torch.nn.functional.cross_entropy(layers(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_a_transformer_learns_as_with_pytorchs_attention():
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def theirs(q, k, v):
        return sdpa(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)

    ours, expected = losses(lambda q, k, v: flash_attn_func(q, k, v, causal=True)), losses(theirs)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    assert ours[-1] < 0.8 * ours[0]


@pytest.fixture
def simulator():
    try:
        ferroflash.use_cpu_device("simulator")
        yield
    finally:
        ferroflash.use_cpu_device("reference")


def needs_kernels():
    try:
        q = torch.zeros(1, 1, 1, 64, dtype=torch.float16)
        flash_attn_func(q, q, q)
    except RuntimeError as error:
        pytest.skip(f"no kernels: {error}")


def test_the_kernels_gradients_on_the_simulator(simulator):
    needs_kernels()
    slopes = torch.tensor([0.5, 0.1])
    for sizes, options in [
        ((2, 33, 65, 2, 1, 64, 64), dict(causal=True)),
        ((1, 17, 70, 2, 2, 40, 40), dict(window_size=(9, 3))),
        ((1, 20, 45, 2, 1, 72, 72), dict(causal=True, softcap=1.5)),
        ((1, 20, 45, 2, 1, 64, 64), dict(alibi_slopes=slopes)),
        ((1, 9, 21, 2, 1, 200, 200), dict(softcap=2.0)),
    ]:
        wide = [x.detach().half().double().requires_grad_() for x in tensors(sizes)]
        narrow = [x.detach().half().requires_grad_() for x in wide]
        o, lse, _ = flash_attn_func(*narrow, return_attn_probs=True, **options)
        found, expected = gradients(o, lse, narrow), gradients(*plain(*wide, **options), wide)
        for x, y in zip(found, expected):
            torch.testing.assert_close(x.double(), y, atol=4e-3 * y.abs().max().item(), rtol=0)
    wide = [x.detach().half().double().requires_grad_() for x in tensors((2, 15, 20, 2, 2, 64, 64))]
    narrow, sinks = [x.detach().half().requires_grad_() for x in wide], random(2, seed=9, dtype=torch.float32)
    o, lse, _ = flash_attn_func(*narrow, return_attn_probs=True, sinks=sinks)
    found, expected = gradients(o, lse, [*narrow, sinks]), gradients(*plain(*wide, sinks=sinks), [*wide, sinks])
    for x, y in zip(found, expected):
        torch.testing.assert_close(x.double(), y.double(), atol=4e-3 * y.abs().max().item(), rtol=0)
    tree = torch.rand(2, 15, 9, generator=torch.Generator().manual_seed(3)) > 0.4
    o, lse, _ = flash_attn_func(*narrow, return_attn_probs=True, tree_mask=tree)
    for x, y in zip(gradients(o, lse, narrow), gradients(*plain(*wide, tree_mask=tree), wide)):
        torch.testing.assert_close(x.double(), y, atol=4e-3 * y.abs().max().item(), rtol=0)
    for shape in ((2, 2, 15, 20), (1, 2, 15, 20), (2, 1, 1, 20)):
        of_wide = random(*shape, seed=7).detach().half().double().requires_grad_()
        of_narrow = of_wide.detach().half().requires_grad_()
        o, lse, _ = flash_attn_func(*narrow, return_attn_probs=True, causal=True, attn_bias=of_narrow)
        found = gradients(o, lse, [*narrow, of_narrow])
        for x, y in zip(found, gradients(*plain(*wide, causal=True, attn_bias=of_wide), [*wide, of_wide])):
            torch.testing.assert_close(x.double(), y, atol=4e-3 * y.abs().max().item(), rtol=0)
    wide = random(1, 5, 2, 256, dtype=torch.float16)
    with pytest.raises(NotImplementedError, match="128 of ALiBi"):
        flash_attn_func(wide, wide, wide, alibi_slopes=slopes)


def test_the_training_example_runs():
    import pathlib
    import runpy

    program = pathlib.Path(__file__).parents[3] / "examples" / "training.py"
    ours, theirs = runpy.run_path(str(program))["main"](["--steps", "3", "--length", "24", "--width", "32"]).values()
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
