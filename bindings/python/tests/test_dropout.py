"""Dropout: which weights are left out follows from PyTorch's generator, and gradients leave out the same ones."""

import numpy
import pytest

torch = pytest.importorskip("torch")

import ferroflash
from ferroflash import flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func
from ferroflash.sdpa import scaled_dot_product_attention
from test_gradients import gradients, plain, tensors
from test_functions import simulator  # noqa: F401

P = 0.25


def seeded(function, seed=3):
    torch.manual_seed(seed)
    return function()


def kept(q, k, seed=3, **options):
    """What the weights are multiplied with, [batch, heads, queries, keys]: O where values are a unit matrix, over what it is without dropout."""
    v = torch.eye(k.shape[1], dtype=k.dtype).expand(k.shape[0], k.shape[2], -1, -1).transpose(1, 2)
    dropped = seeded(lambda: flash_attn_func(q, k, v, P, **options), seed)
    weights = flash_attn_func(q, k, v, **options)
    return torch.where(weights == 0, 0, dropped / weights).transpose(1, 2).detach()


def of_plain(q, k, v, z, **options):
    """O of PyTorch's operators with the weights multiplied."""
    eye = torch.eye(k.shape[1], dtype=k.dtype).expand(k.shape[0], k.shape[2], -1, -1).transpose(1, 2)
    weights, lse = plain(q, k, eye, **options)
    group = q.shape[2] // k.shape[2]
    return torch.einsum("bihj,bjhd->bihd", weights * z.transpose(1, 2), v.repeat_interleave(group, 2)), lse


def test_a_share_of_weights_is_left_out_and_the_others_make_up_for_them():
    q, k, _ = tensors((3, 70, 90, 4, 2, 8, 8), grad=False)
    z = kept(q, k)
    is_kept = z > 0.5
    torch.testing.assert_close(z[is_kept], torch.full_like(z[is_kept], 1 / (1 - P)))
    assert abs(is_kept.double().mean().item() - (1 - P)) < 0.01
    assert not torch.equal(is_kept[0], is_kept[1]) and not torch.equal(is_kept[:, 0], is_kept[:, 1])
    assert torch.equal(kept(q, k), z) and not torch.equal(kept(q, k, seed=4), z)


@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(window_size=(9, 3)), dict(softcap=2.0)], ids=str)
def test_gradients_leave_out_what_the_forward_pass_did(options):
    qkv = tensors((2, 21, 37, 4, 2, 8, 8))
    z = kept(*qkv[:2], **options)
    o, lse, _ = seeded(lambda: flash_attn_func(*qkv, P, return_attn_probs=True, **options))
    expected_o, expected_lse = of_plain(*qkv, z, **options)
    torch.testing.assert_close(o, expected_o)
    torch.testing.assert_close(lse, expected_lse)
    for ours, theirs in zip(gradients(o, lse, qkv), gradients(expected_o, expected_lse, qkv)):
        torch.testing.assert_close(ours, theirs)
    assert torch.autograd.gradcheck(lambda *qkv: seeded(lambda: flash_attn_func(*qkv, P, **options)), tensors((1, 3, 5, 2, 1, 4, 4)))


def test_sequences_behind_one_another_have_the_weights_of_a_batch():
    q, k, v = tensors((2, 9, 9, 2, 2, 8, 8), grad=False)
    ends = torch.tensor([0, 9, 18], dtype=torch.int32)
    rows = [x.flatten(0, 1) for x in (q, k, v)]
    packed = seeded(lambda: flash_attn_varlen_func(*rows, ends, ends, 9, 9, P, causal=True))
    assert torch.equal(packed.view(2, 9, 2, 8), seeded(lambda: flash_attn_func(q, k, v, P, causal=True)))
    whole = seeded(lambda: flash_attn_qkvpacked_func(torch.stack([q, k, v], 2), P, causal=True))
    assert torch.equal(whole, packed.view(2, 9, 2, 8))


def test_calls_follow_each_other_and_checkpoints_repeat_them():
    qkv = tensors((1, 20, 20, 2, 2, 8, 8))
    once = seeded(lambda: flash_attn_func(*qkv, P))
    assert not torch.equal(flash_attn_func(*qkv, P), once), "the generator went on"

    def twice(*qkv):
        return flash_attn_func(*qkv, P) + flash_attn_func(*qkv, P)

    expected = torch.autograd.grad(seeded(lambda: twice(*qkv)).sum(), qkv)
    found = torch.autograd.grad(seeded(lambda: torch.utils.checkpoint.checkpoint(twice, *qkv, use_reentrant=False)).sum(), qkv)
    for ours, theirs in zip(found, expected):
        assert torch.equal(ours, theirs)


def test_compiled_programs_draw_anew_at_every_call():
    qkv = tensors((1, 20, 20, 2, 2, 8, 8))
    compiled = torch.compile(lambda *qkv: flash_attn_func(*qkv, P, causal=True), fullgraph=True, backend="aot_eager")
    expected = seeded(lambda: flash_attn_func(*qkv, P, causal=True))
    found = seeded(lambda: compiled(*qkv))
    assert torch.equal(found, expected) and not torch.equal(compiled(*qkv), expected)
    for ours, theirs in zip(torch.autograd.grad(found.sum(), qkv), torch.autograd.grad(expected.sum(), qkv)):
        torch.testing.assert_close(ours, theirs)


def test_the_kernels_leave_out_what_the_cpu_does(simulator):  # noqa: F811
    given = tensors((2, 33, 65, 4, 2, 64, 64), dtype=torch.float16, grad=False)

    def both():
        qkv = [x.clone().requires_grad_() for x in given]
        o = seeded(lambda: flash_attn_func(*qkv, P, causal=True))
        return o.detach(), *torch.autograd.grad((o.float() ** 2).sum(), qkv)

    ferroflash.use_cpu_device("reference")
    on_cpu = both()
    ferroflash.use_cpu_device("simulator", "h100")
    for ours, theirs in zip(both(), on_cpu):
        torch.testing.assert_close(ours.float(), theirs.float(), atol=2e-2, rtol=1e-2)
    with pytest.raises(NotImplementedError, match="dropout_p with softcap"):
        flash_attn_func(*given, P, softcap=2.0)


def test_pytorchs_function_and_transformers_have_it():
    q, k, v = (x.transpose(1, 2) for x in tensors((1, 7, 7, 2, 2, 8, 8), grad=False))
    expected = seeded(lambda: flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), P, causal=True))
    assert torch.equal(seeded(lambda: scaled_dot_product_attention(q, k, v, None, P, True)).transpose(1, 2), expected)
    pytest.importorskip("transformers")
    from ferroflash.transformers import attention_forward

    found, _ = seeded(lambda: attention_forward(torch.nn.Module(), q, k, v, None, dropout=P))
    assert torch.equal(found, expected)


def test_what_it_cannot_be_is_refused_by_name():
    qkv = tensors((1, 3, 3, 1, 1, 8, 8), grad=False)
    for p in (1.0, -0.1):
        with pytest.raises(ValueError, match="dropout_p"):
            flash_attn_func(*qkv, p)
    with pytest.raises(NotImplementedError, match="random numbers are PyTorch's"):
        flash_attn_func(*(x.numpy().astype(numpy.float32) for x in qkv), 0.5)


def test_vmap_draws_as_it_is_told():
    q = torch.randn(1, 2, 8, 4, 16).expand(3, -1, -1, -1, -1)
    dropped = lambda q: flash_attn_func(q, q, q, P)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(dropped)(q)
    alike, apart = (torch.vmap(dropped, randomness=which)(q) for which in ("same", "different"))
    assert torch.equal(alike[0], alike[1]) and torch.equal(alike[1], alike[2])
    assert not torch.equal(apart[0], apart[1])
    # Others are drawn after it.
    assert not torch.equal(alike[0], dropped(q[0]))
