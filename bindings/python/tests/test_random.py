"""Calls drawn at random, of every function and both frameworks, against softmax in float64: shapes that are odd or empty, views, all options."""

import math
import random

import numpy as np
import pytest

import ferroflash
from test_functions import simulator  # noqa: F401

torch = pytest.importorskip("torch")

COUNT = 300
# Of the type's own rounding; sums of float16 and bfloat16 are float32.
ROUNDING = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-22, "float64": 2**-40}
WINDOWS = [(-1, -1), (-1, -1), (3, 2), (0, 0), (-1, 4), (2, -1), (None, 3), (2, None), (2**40, 2**40), (100, 0)]


class Draw(random.Random):
    """A call's sizes, options and tensors."""

    def __init__(self, seed):
        super().__init__(seed)
        self.numbers = np.random.default_rng(seed)
        self.framework = self.choice(["torch", "torch", "numpy"])
        self.dtype = self.choice(["float16", "float32", "float64"] + ["bfloat16"] * (self.framework == "torch"))
        self.heads_kv = self.choice([1, 1, 2, 3])
        self.heads = self.heads_kv * self.choice([1, 1, 2, 5])
        self.width = self.choice([1, 2, 3, 8, 16, 17, 32, 40, 64, 100])
        self.width_v = self.choice([self.width, self.width, 1, 4, 33])
        self.batch, self.queries, self.keys = self.choice([1, 2, 3]), self.choice([0, 1, 1, 2, 5, 9, 33]), self.choice([0, 1, 2, 5, 16, 33, 70])
        self.causal, self.window, self.softcap = self.random() < 0.5, self.choice(WINDOWS), self.choice([0.0, 0.0, 1.5, 30.0])
        self.scale = self.choice([None, None, 0.3, 1.0, 2])
        self.slopes = self.small(*self.choice([(self.batch, self.heads), (self.heads,)])) if self.random() < 0.2 else None
        self.sinks = self.small(self.heads) if self.random() < 0.2 else None
        self.bias = None

    def options(self, **others):
        names = dict(softmax_scale=self.scale, causal=self.causal, window_size=self.window, softcap=self.softcap, alibi_slopes=self.slopes)
        return names | ({} if self.sinks is None else dict(sinks=self.sinks)) | others

    def given(self, array):
        return torch.from_numpy(array) if self.framework == "torch" else array

    def small(self, *shape):
        return self.given(self.numbers.uniform(0, 0.6, shape).astype(np.float32))

    def tensor(self, *shape):
        """Random numbers, as a view that need not be contiguous; what lies between its elements is NaN."""
        x = torch.from_numpy(self.numbers.standard_normal(shape)).to(getattr(torch, self.dtype))
        kind = self.choice(["plain", "heads first", "narrow", "apart", "repeated"])
        if kind == "heads first" and x.dim() == 4:
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        if kind in ("narrow", "apart"):
            wide = torch.full((*shape, 3), math.nan, dtype=x.dtype) if kind == "apart" else torch.full((*shape[:-1], 2 * shape[-1] + 3), math.nan, dtype=x.dtype)
            view = wide[..., 1] if kind == "apart" else wide[..., 1 : 1 + shape[-1]]
            x = view.copy_(x)
        if kind == "repeated" and shape[0]:
            x = x[:1].expand(shape)
        return x if self.framework == "torch" else x.numpy()


def softmax(draw, q, k, v, slopes, tree=None, batch=0):
    """O [queries, heads, width_v] and LSE [heads, queries] of one sequence, in float64."""
    scale = 1 / math.sqrt(draw.width) if draw.scale is None else draw.scale
    k, v = (np.repeat(x, draw.heads // draw.heads_kv, axis=1) for x in (k, v))
    scores = scale * np.einsum("ihd,jhd->hij", q, k)
    if draw.softcap:
        scores = draw.softcap * np.tanh(scores / draw.softcap)
    distance = np.arange(len(k))[None] - (np.arange(len(q))[:, None] + len(k) - len(q))
    if slopes is not None:
        scores = scores - slopes[:, None, None] * np.abs(distance)
    left, right = (-1 if keys is None else keys for keys in draw.window)
    right = 0 if draw.causal else right
    if draw.bias is not None:
        scores = scores + np.broadcast_to(wide(draw.bias), (draw.batch, *scores.shape))[batch]
    hidden = (left >= 0) & (distance < -left) | (right >= 0) & (distance > right)
    if tree is not None:
        hidden[:, len(k) - tree.shape[1] :] |= ~tree
    scores = np.where(hidden, -np.inf, scores)
    sinks = np.full((draw.heads, len(q), 1), -np.inf) if draw.sinks is None else np.broadcast_to(wide(draw.sinks)[:, None, None], (draw.heads, len(q), 1))
    scores = np.concatenate([scores, sinks], 2)
    largest = scores.max(2, keepdims=True)
    weights = np.exp(scores - np.where(largest == -np.inf, 0, largest))
    total = weights.sum(2)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + largest[..., 0]
    o = np.einsum("hij,jhd->ihd", weights[..., :-1] / np.where(total == 0, 1, total)[..., None], v)
    return o, np.where(total == 0, -np.inf, lse)


def wide(x):
    return x.double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, np.float64)


def check(draw, where, found, q, k, v, batch, tree=None):
    slopes = None if draw.slopes is None else wide(draw.slopes[batch] if draw.slopes.ndim == 2 else draw.slopes)
    q, k, v, (o, lse) = wide(q), wide(k), wide(v), map(wide, found)
    expected, expected_lse = softmax(draw, q, k, v, slopes, tree, batch)
    assert o.shape == expected.shape and lse.shape == expected_lse.shape, where
    allowed = 12 * ROUNDING[draw.dtype] * (1 + np.abs(v).max(initial=0)) * (1 + math.sqrt(draw.width))
    assert np.abs(o - expected).max(initial=0) <= allowed, where
    seen = np.isfinite(expected_lse)
    assert (lse[~seen] == -np.inf).all() and np.abs(lse[seen] - expected_lse[seen]).max(initial=0) <= 1e-4, where


def dense(draw, where):
    sizes = [(draw.queries, draw.heads, draw.width), (draw.keys, draw.heads_kv, draw.width), (draw.keys, draw.heads_kv, draw.width_v)]
    kind, tree, masked = draw.choice(["apart", "apart", "qkv", "kv"]), None, {}
    if kind != "apart":
        draw.sinks, draw.width_v = None, draw.width
    if kind == "qkv":
        draw.heads_kv, draw.keys = draw.heads, draw.queries
        packed = draw.tensor(draw.batch, draw.queries, 3, draw.heads, draw.width)
        q, k, v = (packed[:, :, part] for part in range(3))
        found = ferroflash.flash_attn_qkvpacked_func(packed, return_attn_probs=True, **draw.options())
    elif kind == "kv":
        q, packed = draw.tensor(draw.batch, *sizes[0]), draw.tensor(draw.batch, draw.keys, 2, draw.heads_kv, draw.width)
        k, v = packed[:, :, 0], packed[:, :, 1]
        found = ferroflash.flash_attn_kvpacked_func(q, packed, return_attn_probs=True, **draw.options())
    else:
        q, k, v = (draw.tensor(draw.batch, *size) for size in sizes)
        if draw.keys and draw.queries and draw.random() < 0.3:
            tree = draw.numbers.random((draw.batch, draw.queries, draw.randint(1, draw.keys))) < 0.6
            masked = dict(tree_mask=draw.given(tree))
        if tree is None and draw.slopes is None and draw.softcap == 0 and draw.random() < 0.3:
            whole = draw.batch, draw.heads, draw.queries, draw.keys
            draw.bias = draw.tensor(*(draw.choice([1, size]) for size in whole[:3]), draw.keys)
            masked = dict(attn_bias=draw.bias)
            if draw.random() < 0.5 and draw.framework == "torch":
                masked = dict(attn_bias=draw.bias.expand(whole))
        found = ferroflash.flash_attn_func(q, k, v, return_attn_probs=True, **draw.options(**masked))
    for b in range(draw.batch):
        check(draw, where, (found[0][b], found[1][b]), q[b], k[b], v[b], b, None if tree is None else tree[b])


def ragged(draw, where):
    lengths = [[draw.choice(each) for _ in range(draw.batch)] for each in ([0, 1, 3, 7, 20], [0, 1, 4, 9, 21])]
    ends = [np.cumsum([0, *each]).astype(np.int32) for each in lengths]
    behind = draw.choice([0, 0, 3])
    widths = (0, draw.heads, draw.width), (1, draw.heads_kv, draw.width), (1, draw.heads_kv, draw.width_v)
    q, k, v = (draw.tensor(int(ends[of][-1]) + behind, heads, width) for of, heads, width in widths)
    longest = [max(each) for each in lengths]
    o, lse, _ = ferroflash.flash_attn_varlen_func(q, k, v, *map(draw.given, ends), *longest, return_attn_probs=True, **draw.options())
    for b in range(draw.batch):
        rows, keys = (slice(end[b], end[b + 1]) for end in ends)
        check(draw, where, (o[rows], lse[:, rows]), q[rows], k[keys], v[keys], b)


def cached(draw, where):
    draw.keys = max(1, draw.keys)
    entries = draw.batch + draw.choice([0, 2])
    of = draw.sample(range(entries), draw.batch)
    q = draw.tensor(draw.batch, draw.queries, draw.heads, draw.width)
    k, v = (draw.tensor(entries, draw.keys, draw.heads_kv, width) for width in (draw.width, draw.width_v))
    used = [draw.randint(0, draw.keys) for _ in range(draw.batch)]
    first = [draw.randint(0, each) for each in used] if draw.random() < 0.3 else [0] * draw.batch
    int32 = lambda numbers: draw.given(np.array(numbers, np.int32))
    places = dict(cache_seqlens=int32(used), cache_batch_idx=int32(of), cache_leftpad=int32(first) if any(first) else None)
    o, lse = ferroflash.flash_attn_with_kvcache(q, k, v, return_softmax_lse=True, **places, **draw.options())
    for b in range(draw.batch):
        keys = slice(first[b], used[b])
        check(draw, where, (o[b], lse[b]), q[b], k[of[b]][keys], v[of[b]][keys], b)


def paged(draw, where):
    """Pages in any order; what no sequence has is NaN, and entries past a sequence's pages point anywhere."""
    page, used = draw.choice([1, 2, 3, 8, 16, 24, 64, 100, 128]), [draw.randint(0, draw.keys) for _ in range(draw.batch)]
    pages = [-(-keys // page) for keys in used]
    free = draw.sample(range(sum(pages) + 3), sum(pages))
    table = np.full((draw.batch, max(1, *pages) + draw.choice([0, 2])), draw.choice([-1, 0, sum(pages) + 2]), np.int32)
    pools = [torch.full((sum(pages) + 3, page, draw.heads_kv, width), math.nan, dtype=getattr(torch, draw.dtype)) for width in (draw.width, draw.width_v)]
    if draw.random() < 0.3:
        pools = [pool.transpose(1, 2).contiguous().transpose(1, 2) for pool in pools]
    q, sequences = draw.tensor(draw.batch, draw.queries, draw.heads, draw.width), []
    for b, keys in enumerate(used):
        sequences.append([torch.from_numpy(draw.numbers.standard_normal((keys, *pool.shape[2:]))).to(pool.dtype) for pool in pools])
        for at in range(pages[b]):
            table[b, at] = free.pop()
            for pool, rows in zip(pools, sequences[b]):
                part = rows[at * page : (at + 1) * page]
                pool[table[b, at], : len(part)] = part
    k, v = (pool if draw.framework == "torch" else pool.numpy() for pool in pools)
    places = dict(cache_seqlens=draw.given(np.array(used, np.int32)), block_table=draw.given(table))
    o, lse = ferroflash.flash_attn_with_kvcache(q, k, v, return_softmax_lse=True, **places, **draw.options())
    for b in range(draw.batch):
        check(draw, where, (o[b], lse[b]), q[b], *sequences[b], b)


FUNCTIONS = [dense, ragged, cached, paged]


@torch.no_grad()
@pytest.mark.parametrize("function", FUNCTIONS)
def test_random_calls_are_softmax(function):
    for seed in range(COUNT):
        function(Draw(seed), f"seed {seed}")


class OfKernels(Draw):
    """What the kernels take, and enough of it for several tiles and blocks of keys."""

    def __init__(self, seed):
        super().__init__(seed)
        self.framework, self.dtype = "torch", self.choice(["float16", "bfloat16"])
        self.heads_kv = self.choice([1, 1, 2, 3, 5])
        self.heads = self.heads_kv * self.choice([1, 1, 2, 3, 4, 7, 8, 16])
        self.width = self.choice([8, 16, 20, 24, 32, 33, 40, 56, 64, 64, 72, 80, 96, 100, 112, 128, 128, 128, 160, 192, 200, 255, 256])
        self.width_v = self.choice([self.width] * 4 + [1, 8, 30, 32, 64, 128, 136, 256])
        self.batch = self.choice([1, 2, 3, 7])
        self.queries = min(self.choice([0, 1, 1, 1, 2, 5, 17, 33, 64, 65, 130, 200]), 2500 // (self.batch * self.heads) + 1)
        self.keys = min(self.choice([0, 1, 2, 16, 33, 64, 70, 127, 129, 200, 300, 520]), 3000 // (self.batch * self.heads_kv) + 1)
        self.slopes = self.small(*self.choice([(self.batch, self.heads), (self.heads,)])) if self.random() < 0.2 else None
        self.sinks = self.small(self.heads) if self.random() < 0.2 else None
        self.softcap = 0.0 if self.slopes is not None else self.softcap
        self.window = self.choice([*WINDOWS, (64, 0), (31, 33), (128, -1), (-1, 70), (5, 5)])


@torch.no_grad()
@pytest.mark.parametrize("model", ["l4", "h100"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_random_calls_of_the_kernels_are_softmax(simulator, function, model):  # noqa: F811
    ferroflash.use_cpu_device("simulator", model)
    computed = 0
    for seed in range(COUNT // 10):
        try:
            function(OfKernels(seed), f"seed {seed}")
        except (NotImplementedError, ValueError) as refusal:
            # Caches of rows that are not aligned, and trees beside other scores.
            of_cache = function in (cached, paged) and ("is misaligned" in str(refusal) or "head_dim" in str(refusal))
            assert of_cache or "tree_mask with" in str(refusal), f"seed {seed}: {refusal}"
        else:
            computed += 1
    assert computed >= COUNT // 20


def differentiable(draw, q, k, v):
    """O and LSE of one sequence by PyTorch's operators."""
    scale = 1 / math.sqrt(draw.width) if draw.scale is None else draw.scale
    k, v = (x.repeat_interleave(draw.heads // draw.heads_kv, 1) for x in (k, v))
    scores = scale * torch.einsum("ihd,jhd->hij", q, k)
    scores = draw.softcap * torch.tanh(scores / draw.softcap) if draw.softcap else scores
    distance = torch.arange(len(k))[None] - (torch.arange(len(q))[:, None] + len(k) - len(q))
    left, right = (-1 if keys is None else keys for keys in draw.window)
    right = 0 if draw.causal else right
    hidden = (left >= 0) & (distance < -left) | (right >= 0) & (distance > right)
    scores = scores.masked_fill(hidden, -math.inf)
    if draw.sinks is not None:
        scores = torch.cat([scores, draw.sinks.to(scores.dtype)[:, None, None].expand(-1, len(q), 1)], 2)
    seen = (scores > -math.inf).any(2)
    # A row that sees nothing has no gradient, and no NaN.
    weights = scores.where(seen[..., None], 0.0).softmax(2).where(seen[..., None], 0.0)
    lse = scores.where(seen[..., None], 0.0).logsumexp(2).where(seen, 0.0)
    return torch.einsum("hij,jhd->ihd", weights[..., : len(k)], v), lse


def gradients(draw, where, rounding):
    """Those of a call, dense or ragged, which may round by so much of the largest, against PyTorch's operators in float64."""
    draw.framework, draw.slopes = "torch", None
    draw.queries, draw.keys = max(1, draw.queries), max(1, draw.keys)
    is_ragged = draw.choice([True, False])
    lengths = [[draw.choice([0, 1, most]) if is_ragged else most for _ in range(draw.batch)] for most in (draw.queries, draw.keys)]
    ends = [torch.tensor(np.cumsum([0, *each]), dtype=torch.int32) for each in lengths]
    widths = (0, draw.heads, draw.width), (1, draw.heads_kv, draw.width), (1, draw.heads_kv, draw.width_v)
    leaves = [draw.tensor(int(ends[of][-1]) + 2 * is_ragged, heads, width).requires_grad_() for of, heads, width in widths]
    if draw.sinks is not None:
        leaves.append(torch.as_tensor(draw.sinks).requires_grad_())
        draw.sinks = leaves[3]
    if is_ragged:
        o, lse, _ = ferroflash.flash_attn_varlen_func(*leaves[:3], *ends, *map(max, lengths), return_attn_probs=True, **draw.options())
    else:
        q, k, v = (x.unflatten(0, (draw.batch, -1)) for x in leaves[:3])
        o, lse, _ = ferroflash.flash_attn_func(q, k, v, return_attn_probs=True, **draw.options())
        o, lse = o.flatten(0, 1), lse.transpose(0, 1).flatten(1)
    # As wide as O, so that both sums have the same terms.
    of_o, of_lse = torch.randn(o.shape).to(o.dtype).double(), torch.randn(lse.shape, dtype=torch.float64)
    wide_leaves = [x.detach().double().requires_grad_() for x in leaves]
    draw.sinks = None if draw.sinks is None else wide_leaves[3]
    q, k, v, *_ = wide_leaves
    found = (o.double() * of_o).sum() + (lse.where(lse > -math.inf, 0.0).double() * of_lse).sum()
    expected = torch.zeros((), dtype=torch.float64)
    for b in range(draw.batch):
        rows, keys = (slice(*end[b : b + 2].tolist()) for end in ends)
        plain_o, plain_lse = differentiable(draw, q[rows], k[keys], v[keys])
        expected = expected + (plain_o * of_o[rows]).sum() + (plain_lse * of_lse[:, rows]).sum()
    theirs = torch.autograd.grad(expected, wide_leaves, allow_unused=True, materialize_grads=True)
    ours = torch.autograd.grad(found, leaves, allow_unused=True, materialize_grads=True)
    for x, y in zip(ours, theirs):
        # The sinks and their gradient are float32.
        tolerance = max(rounding, 1e-5 if x.dtype == torch.float32 else 0) * (1 + y.abs().amax().item() if y.numel() else 1)
        torch.testing.assert_close(x.double(), y, atol=tolerance, rtol=0, msg=lambda text: f"{where}: {text}")


def test_random_gradients_are_those_of_pytorchs_operators():
    for seed in range(COUNT // 4):
        draw = Draw(seed)
        draw.dtype, draw.softcap = "float64", float(np.float32(draw.softcap))
        gradients(draw, f"seed {seed}", 1e-9)


@pytest.mark.parametrize("model", ["l4", "h100"])
def test_random_gradients_of_the_kernels_are_those_of_pytorchs_operators(simulator, model):  # noqa: F811
    ferroflash.use_cpu_device("simulator", model)
    computed = 0
    for seed in range(COUNT // 5):
        draw = OfKernels(seed)
        draw.queries, draw.keys = min(130, draw.queries), min(200, draw.keys)
        try:
            gradients(draw, f"seed {seed}", 14 * ROUNDING[draw.dtype])
        except (NotImplementedError, ValueError) as refusal:
            assert "no kernel computes its gradients" in str(refusal), f"seed {seed}: {refusal}"
        else:
            computed += 1
    assert computed >= COUNT // 20
