"""The parameters that flash-attn's own tests go through, drawn at random from their product: each case is right, or refused by name.

Where there is a GPU the cases run there, with flash-attn's lengths; on the CPU with those of them that its loops compute quickly. O is right where
its largest error is at most twice (of caches three times, as rotations round as well) that of plain attention in the same type.
"""

import math
import random as choice
import re

import pytest

torch = pytest.importorskip("torch")

from ferroflash import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
COUNT = 400 if GPU else 24
LENGTHS = [(113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256), (1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048)]
CACHE_LENGTHS = [
    (1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (16, 20000), (1, 128 * 1024), (16, 128 * 1024), (128, 128)
]
PRODUCTS_MAX = math.inf if GPU else 64 * 512
HEADS = {"mha": (6, 6), "gqa": (6, 2), "mqa": (6, 1)}
DENSE = dict(
    dtype=["float16", "bfloat16"], kind=list(HEADS), deterministic=[False, True], alibi=[False, True], local=[False, True],
    causal=[False, True], d=[32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256], lengths=LENGTHS,
    softcap=[0.0, 50.0],
)
CACHE = dict(
    dtype=["float16", "bfloat16"], kind=list(HEADS), num_splits=[0, 0, 0, 1], new_kv=[False, True], alibi=[False, True], local=[False, True],
    causal=[False, True], equal=[True, False], interleaved=[False, True], rotary=[0.0, 0.5, 1.0], page=[None, 256, 512],
    leftpad=[False, True], batch_idx=[False, True], d=[59, 64, 80, 96, 128, 160, 192, 224, 256], lengths=CACHE_LENGTHS,
)


def drawn(grid, seed):
    draw, cases = choice.Random(seed), []
    while len(cases) < COUNT:
        case = {name: draw.choice(values) for name, values in grid.items()}
        if math.prod(case["lengths"]) <= PRODUCTS_MAX and not (case.get("page") and (case["leftpad"] or case["batch_idx"])):
            cases.append(case | {"seed": len(cases)})
    return cases


def shown(case):
    return " ".join(f"{name}={value}" for name, value in case.items() if value not in (False, None, 0.0))


def refusals(case):
    """What a case may be refused for, by the words that say it; the first of them is enough."""
    names = []
    if GPU and case["d"] % 8:
        names.append(f"head_dim {case['d']}")
    if GPU and case["alibi"] and case.get("softcap"):
        names.append("alibi_slopes with softcap")
    return names


def made(case, call):
    """The call's result; None where it was refused for one of the case's reasons."""
    reasons = refusals(case)
    try:
        found = call()
    except (NotImplementedError, ValueError) as error:
        assert reasons and any(re.search(re.escape(reason), str(error)) for reason in reasons), f"{shown(case)}: {error}"
        return None
    assert not reasons, f"{shown(case)}: was to be refused for {reasons}"
    return found


def plain(q, k, v, case, window, slopes):
    """O and LSE of [seqlen, heads, head_dim], in the type of Q."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[2])
    if case.get("softcap"):
        scores = case["softcap"] * torch.tanh(scores / case["softcap"])
    own = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)
    distance = torch.arange(len(k), device=q.device)[None] - own
    if slopes is not None:
        scores = scores - (slopes[:, None, None] * distance.abs()).to(scores.dtype)
    left, right = window
    right = 0 if case["causal"] else right
    scores = scores.masked_fill((distance < -left) & (left >= 0) | (distance > right) & (right >= 0), -math.inf)
    return torch.einsum("hij,jhd->ihd", scores.softmax(2).nan_to_num(), v), scores.double().logsumexp(2)


def check(case, factor, o, lse, q, k, v, window, slopes):
    expected, expected_lse = plain(q.double(), k.double(), v.double(), case, window, slopes)
    allowed = factor * (plain(q, k, v, case, window, slopes)[0].double() - expected).abs().max().item() + 1e-5
    off = (o.double() - expected).abs().max().item()
    assert off <= allowed, f"{shown(case)}: O is off by {off:.3g}, allowed {allowed:.3g}"
    if lse is not None:
        seen = expected_lse > -math.inf
        assert bool((lse[~seen] == -math.inf).all()), f"{shown(case)}: LSE of rows without keys"
        off = (lse.double() - expected_lse)[seen].abs().max().item() if bool(seen.any()) else 0.0
        assert off < 2e-3, f"{shown(case)}: LSE is off by {off:.3g}"


class Inputs:
    """Numbers of a case, the same whenever it is drawn."""

    def __init__(self, case):
        self.generator = torch.Generator(DEVICE).manual_seed(case["seed"])
        self.dtype, self.draw = getattr(torch, case["dtype"]), choice.Random(case["seed"])

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator, device=DEVICE).to(self.dtype)

    def slopes(self, case, batch, heads):
        return torch.rand((batch, heads), generator=self.generator, device=DEVICE) * 0.3 if case["alibi"] else None

    def window(self, case, keys):
        return (self.draw.randrange(keys), self.draw.randrange(keys)) if case["local"] else (-1, -1)


@torch.no_grad()
def test_flash_attn_func():
    computed = 0
    for case in drawn(DENSE, 1):
        inputs, (sq, sk), (heads, heads_kv) = Inputs(case), case["lengths"], HEADS[case["kind"]]
        q, k, v = (inputs.normal(2, s, h, case["d"]) for s, h in ((sq, heads), (sk, heads_kv), (sk, heads_kv)))
        slopes, window = inputs.slopes(case, 2, heads), inputs.window(case, sk)
        found = made(case, lambda: flash_attn_func(
            q, k, v, causal=case["causal"], window_size=window, softcap=case["softcap"], alibi_slopes=slopes,
            deterministic=case["deterministic"], return_attn_probs=True,
        ))
        if found is not None:
            computed += 1
            for b in range(2):
                check(case, 2, found[0][b], found[1][b], q[b], k[b], v[b], window, None if slopes is None else slopes[b])
    assert computed > COUNT / 3


@torch.no_grad()
def test_flash_attn_varlen_func():
    computed = 0
    for case in drawn(DENSE, 2):
        inputs, (sq, sk), (heads, heads_kv) = Inputs(case), case["lengths"], HEADS[case["kind"]]
        lengths = [[inputs.draw.randint(max(1, most - 20), most) for _ in range(3)] for most in (sq, sk)]
        ends = [torch.tensor([0, *torch.tensor(each).cumsum(0)], dtype=torch.int32, device=DEVICE) for each in lengths]
        rows = [sum(each) for each in lengths]
        q, k, v = (inputs.normal(n, h, case["d"]) for n, h in ((rows[0], heads), (rows[1], heads_kv), (rows[1], heads_kv)))
        slopes, window = inputs.slopes(case, 3, heads), inputs.window(case, sk)
        found = made(case, lambda: flash_attn_varlen_func(
            q, k, v, *ends, sq, sk, causal=case["causal"], window_size=window, softcap=case["softcap"],
            alibi_slopes=slopes, deterministic=case["deterministic"], return_attn_probs=True,
        ))
        if found is None:
            continue
        computed += 1
        for b in range(3):
            (from_q, to_q), (from_k, to_k) = (end[b : b + 2].tolist() for end in ends)
            at, keys = slice(from_q, to_q), slice(from_k, to_k)
            check(case, 2, found[0][at], found[1][:, at], q[at], k[keys], v[keys], window, None if slopes is None else slopes[b])
    assert computed > COUNT / 3


def rotated(x, cos, sin, positions, interleaved):
    half, x = cos.shape[1], x.double().clone()
    c, s = (table.double()[positions][:, None] for table in (cos, sin))
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    first, second = (x[..., at].clone() for at in pairs)
    x[..., pairs[0]], x[..., pairs[1]] = first * c - second * s, first * s + second * c
    return x


@torch.no_grad()
def test_flash_attn_with_kvcache():
    computed = sum(1 for case in drawn(CACHE, 3) if cache_case(case))
    assert computed > COUNT / 3


def cache_case(case):
    """Whether the case was computed; it is right then."""
    inputs, (sq, sk), (heads, heads_kv), d = Inputs(case), case["lengths"], HEADS[case["kind"]], case["d"]
    entries = 4 if case["batch_idx"] else 2
    q, k, v = (inputs.normal(n, s, h, d) for n, s, h in ((2, sq, heads), (entries, sk, heads_kv), (entries, sk, heads_kv)))
    tokens = (sq if case["equal"] else inputs.draw.randint(1, sq)) if case["new_kv"] else 0
    new = [inputs.normal(2, tokens, heads_kv, d) for _ in range(2)] if tokens else [None, None]
    used = [inputs.draw.randint(0 if tokens else 1, sk - tokens) for _ in range(2)]
    leftpad = [inputs.draw.randint(0, max(0, length - 1)) for length in used] if case["leftpad"] else None
    which = inputs.draw.sample(range(entries), 2) if case["batch_idx"] else [0, 1]
    int32 = lambda numbers: None if numbers is None else torch.tensor(numbers, dtype=torch.int32, device=DEVICE)
    slopes, window = inputs.slopes(case, 2, heads), inputs.window(case, sk)
    rotary_dim = int(case["rotary"] * d) // 16 * 16 if tokens else 0
    extra = {}
    if rotary_dim:
        held = -(-sk // case["page"]) * case["page"] if case["page"] else sk
        angles = torch.rand((held, rotary_dim // 2), generator=inputs.generator, device=DEVICE) * 2 * math.pi
        extra = dict(rotary_cos=angles.cos().to(q.dtype), rotary_sin=angles.sin().to(q.dtype), rotary_interleaved=case["interleaved"])
    given, table = [k.clone(), v.clone()], None
    if case["page"]:
        page, width = case["page"], -(-sk // case["page"])
        order = torch.randperm(3 * width, generator=torch.Generator().manual_seed(1))[: 2 * width].reshape(2, width).to(DEVICE)
        table = order.int()
        for number, cache in enumerate((k, v)):
            pages = torch.full((3 * width, page, heads_kv, d), math.nan, dtype=q.dtype, device=DEVICE)
            padded = torch.nn.functional.pad(cache, (0, 0, 0, 0, 0, width * page - sk))
            pages[order] = padded.reshape(2, width, page, heads_kv, d)
            given[number] = pages
    found = made(case, lambda: flash_attn_with_kvcache(
        q, *given, *new, cache_seqlens=int32(used), cache_batch_idx=int32(which) if case["batch_idx"] else None,
        cache_leftpad=int32(leftpad), block_table=table, causal=case["causal"], window_size=window, alibi_slopes=slopes,
        num_splits=case["num_splits"], return_softmax_lse=True, **extra,
    ))
    if found is None:
        return False
    if case["page"]:
        given = [pages[order].reshape(2, -1, heads_kv, d)[:, :sk] for pages in given]
    for b in range(2):
        keys, values = (cache[which[b]].clone() for cache in given)
        end, queries = used[b] + tokens, q[b]
        if tokens:
            at = torch.arange(tokens, device=DEVICE) + used[b]
            turned = new[0][b].double()
            if rotary_dim:
                tables = extra["rotary_cos"], extra["rotary_sin"]
                turned = rotated(turned, *tables, at, case["interleaved"])
                each = case["causal"] or case["local"]
                # Behind the tables' end the last row counts; flash-attn's tests stay before it.
                places = (torch.arange(sq, device=DEVICE) * each + used[b]).clamp(max=len(tables[0]) - 1)
                queries = rotated(q[b], *tables, places, case["interleaved"]).to(q.dtype)
            off = (keys[at].double() - turned).abs().max().item()
            assert off <= 4e-3 * turned.abs().max().item() + 1e-5 if q.dtype == torch.float16 else off <= 0.02 * turned.abs().max().item()
            assert torch.equal(values[at], new[1][b]), f"{shown(case)}: the new values"
            untouched = torch.ones(sk, dtype=torch.bool, device=DEVICE).index_fill_(0, at, False)
            assert torch.equal(keys[untouched], k[which[b]][untouched]), f"{shown(case)}: other keys changed"
        visible = slice(leftpad[b] if leftpad else 0, end)
        check(case, 3, found[0][b], found[1][b], queries, keys[visible], values[visible], window, None if slopes is None else slopes[b])
    return True
