"""Values of the Python package's functions against attention by definition in float64, for bindings_on_gpu.py.

O is right where its largest error is at most twice that of the definition computed in the same 16-bit type; outputs are filled with NaN
before (`torch.utils.deterministic.fill_uninitialized_memory`)."""

import contextlib
import math


def checks(run):
    import torch

    values = Values(run, torch)
    named = [
        ("flash_attn_func", values.dense),
        ("flash_attn_func of other head_dims and strides", values.layouts),
        ("flash_attn_varlen_func", values.varlen),
        ("flash_attn_varlen_func of pages", values.varlen_pages),
        ("flash_attn_with_kvcache", values.cache),
        ("flash_attn_with_kvcache of an index, a padding, an int", values.cache_options),
        ("merge_states and flash_attn_combine", values.merge),
        ("flash_attn_interface", values.interface),
        ("other frameworks", values.frameworks),
    ]
    return [(name, values.filled_with_nan(function)) for name, function in named]


def definition(torch, q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None, sinks=None, scale=None, chunk=0):
    """O [seqlen, heads, head_dim] and LSE [heads, seqlen] of one sequence, by a mask of pairs, in the type that Q has."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * (scale or 1 / math.sqrt(q.shape[2]))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    own = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)
    keys = torch.arange(len(k), device=q.device)[None]
    distance = keys - own
    if slopes is not None:
        scores = scores - (slopes[:, None, None] * distance.abs()).to(scores.dtype)
    left, right = window
    right = 0 if causal else right
    hidden = (distance < -left) & (left >= 0) | (distance > right) & (right >= 0)
    if chunk:
        hidden |= keys.div(chunk, rounding_mode="floor") != own.div(chunk, rounding_mode="floor")
    scores = scores.masked_fill(hidden, -math.inf)
    columns = scores if sinks is None else torch.cat([scores, sinks.to(scores.dtype)[:, None, None].expand(-1, len(q), 1)], 2)
    weights = torch.softmax(columns, 2).nan_to_num()[:, :, : len(k)]
    return torch.einsum("hij,jhd->ihd", weights, v), torch.logsumexp(columns.double(), 2)


class Worst:
    """The largest errors so far, as shares of what is allowed."""

    def __init__(self, torch):
        self.torch, self.o, self.lse, self.cases = torch, 0.0, 0.0, 0

    def take(self, what, o, lse, q, k, v, **options):
        """Compares one sequence's O and LSE [heads, seqlen] (or None)."""
        torch = self.torch
        expected, expected_lse = definition(torch, q.double(), k.double(), v.double(), **options)
        plain, _ = definition(torch, q, k, v, **options)
        allowed = 2 * (plain.double() - expected).abs().max().item() + 1e-5
        found = (o.double() - expected).abs().max().item() if o.numel() else 0.0
        assert found <= allowed, f"{what}: O is off by {found:.3g}, allowed {allowed:.3g}"
        self.o, self.cases = max(self.o, found / allowed), self.cases + 1
        if lse is not None:
            finite = expected_lse > -math.inf
            assert bool((lse[~finite] == -math.inf).all()), f"{what}: LSE of a row without keys is not -inf"
            off = (lse.double() - expected_lse)[finite].abs().max().item() if bool(finite.any()) else 0.0
            assert off <= 2e-3, f"{what}: LSE is off by {off:.3g}"
            self.lse = max(self.lse, off)

    def __str__(self):
        return f"{self.cases} sequences, O at most {self.o:.2f} of what is allowed, LSE off by {self.lse:.1e} at most"


class Values:
    """The checks, on one device."""

    def __init__(self, run, torch):
        self.run, self.torch = run, torch
        # The CPU device's loops are slow: its sizes show that the script works.
        self.large = run.is_gpu

    def filled_with_nan(self, function):
        @contextlib.contextmanager
        def filled():
            torch = self.torch
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = True
            try:
                yield
            finally:
                torch.use_deterministic_algorithms(False)

        def checked():
            import warnings

            with filled(), self.torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return function()

        return checked

    def random(self, *shape, seed=0, dtype=None):
        generator = self.torch.Generator(self.run.device).manual_seed(seed)
        tensor = self.torch.randn(shape, generator=generator, device=self.run.device)
        return tensor.to(dtype or self.torch.bfloat16)

    def int32(self, *numbers):
        return self.torch.tensor(numbers, dtype=self.torch.int32, device=self.run.device)

    def dtypes(self):
        return self.torch.float16, self.torch.bfloat16

    def dense(self):
        from ferroflash import flash_attn_func

        torch, worst = self.torch, Worst(self.torch)
        options = [
            {}, dict(causal=True), dict(window=(37, 0)), dict(window=(20, 45)), dict(causal=True, softcap=15.0),
            dict(causal=True, sinks=True), dict(causal=True, slopes=True), dict(scale=0.3),
        ]
        lengths = [(1, 513), (113, 203), (203, 113), (256, 256), (777, 1025)] if self.large else [(1, 33), (9, 17)]
        for dtype in self.dtypes():
            for (sq, sk), d in [(length, d) for length in lengths for d in (64, 128)]:
                q, k, v = (self.random(2, s, h, d, seed=i, dtype=dtype) for i, (s, h) in enumerate(((sq, 6), (sk, 2), (sk, 2))))
                for option in options:
                    extra = dict(option)
                    if extra.pop("sinks", None):
                        extra["sinks"] = self.random(6, seed=4, dtype=torch.float32)
                    if extra.pop("slopes", None):
                        extra["slopes"] = self.random(6, seed=5, dtype=torch.float32) ** 2 / 10
                    o, lse, _ = flash_attn_func(
                        q, k, v, softmax_scale=extra.get("scale"), causal=extra.get("causal", False),
                        window_size=extra.get("window", (-1, -1)), softcap=extra.get("softcap", 0.0),
                        alibi_slopes=extra.get("slopes"), sinks=extra.get("sinks"), return_attn_probs=True,
                    )
                    for b in range(2):
                        worst.take(f"{dtype} {(sq, sk, d)} {option}", o[b], lse[b], q[b], k[b], v[b], **extra)
        return str(worst)

    def layouts(self):
        from ferroflash import flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func

        worst, s = Worst(self.torch), 150 if self.large else 20
        for d in (32, 40, 72, 96, 112, 192, 256):
            q, k, v = (self.random(1, s, h, d, seed=i) for i, h in enumerate((4, 4, 4)))
            o = flash_attn_func(q, k, v, causal=True)
            worst.take(f"head_dim {d}", o[0], None, q[0], k[0], v[0], causal=True)
        q, k, v = (self.random(2, 4, s, 64, seed=i).transpose(1, 2) for i in range(3))
        o = flash_attn_func(q, k, v)
        worst.take("a view of bhsd", o[1], None, q[1], k[1], v[1])
        qkv = self.random(2, s, 3, 4, 64)
        o, other = flash_attn_qkvpacked_func(qkv, causal=True), flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True)
        worst.take("qkvpacked", o[1], None, *qkv[1].unbind(1), causal=True)
        assert self.torch.equal(o, other), "kvpacked is not qkvpacked"
        wide = self.random(2, s, 4, 128)[..., ::2]
        worst.take("every second element", flash_attn_func(wide, wide, wide)[1], None, wide[1], wide[1], wide[1])
        return str(worst)

    def ragged(self):
        lengths = ([300, 0, 1, 77, 513], [301, 5, 640, 77, 1000]) if self.large else ([5, 0, 1], [6, 2, 11])
        ends = [self.int32(0, *self.torch.tensor(x).cumsum(0).tolist()) for x in lengths]
        return lengths, ends

    def varlen(self):
        from ferroflash import flash_attn_varlen_func

        worst = Worst(self.torch)
        (lengths_q, lengths_k), (ends_q, ends_k) = self.ragged()
        for dtype in self.dtypes():
            for d in (64, 128):
                q, k, v = (self.random(sum(x), h, d, seed=i, dtype=dtype) for i, (x, h) in enumerate(((lengths_q, 4), (lengths_k, 2), (lengths_k, 2))))
                for option in ({}, dict(causal=True), dict(causal=True, window=(50, 0)), dict(causal=True, softcap=20.0)):
                    o, lse, _ = flash_attn_varlen_func(
                        q, k, v, ends_q, ends_k, max(lengths_q), max(lengths_k), causal=option.get("causal", False),
                        window_size=option.get("window", (-1, -1)), softcap=option.get("softcap", 0.0), return_attn_probs=True,
                    )
                    self.sequences(worst, f"{dtype} {d} {option}", o, lse, q, k, v, ends_q, ends_k, option)
        return str(worst)

    def sequences(self, worst, what, o, lse, q, k, v, ends_q, ends_k, option):
        ends_q, ends_k = ends_q.tolist(), ends_k.tolist()
        for b in range(len(ends_q) - 1):
            rows, keys = slice(*ends_q[b : b + 2]), slice(*ends_k[b : b + 2])
            if rows.start < rows.stop:
                worst.take(f"{what} sequence {b}", o[rows], lse[:, rows], q[rows], k[keys], v[keys], **option)

    def varlen_pages(self):
        from ferroflash import flash_attn_varlen_func

        worst = Worst(self.torch)
        (lengths_q, lengths_k), (ends_q, ends_k) = self.ragged()
        for page in (16, 64, 256) if self.large else (4,):
            q, k, v = (self.random(sum(x), h, 128, seed=i) for i, (x, h) in enumerate(((lengths_q, 8), (lengths_k, 2), (lengths_k, 2))))
            (pages_k, pages_v), table = self.paged((k, v), ends_k.tolist(), page)
            for option in ({}, dict(causal=True)):
                o, lse, _ = flash_attn_varlen_func(
                    q, pages_k, pages_v, ends_q, ends_k, max(lengths_q), max(lengths_k), causal=option.get("causal", False),
                    return_attn_probs=True, block_table=table,
                )
                self.sequences(worst, f"pages of {page} {option}", o, lse, q, k, v, ends_q, ends_k, option)
        return str(worst)

    def paged(self, rows, ends, page):
        """Rows of sequences in scattered pages, whose unused rows are NaN, and the block table."""
        torch, batch = self.torch, len(ends) - 1
        width = max(-(-(ends[b + 1] - ends[b]) // page) for b in range(batch)) + 1
        order = torch.randperm(batch * width, generator=torch.Generator().manual_seed(7))
        table = order.int().reshape(batch, width).to(self.run.device)
        found = []
        for tensor in rows:
            pages = torch.full((batch * width, page, *tensor.shape[1:]), math.nan, dtype=tensor.dtype, device=tensor.device)
            for b in range(batch):
                length = ends[b + 1] - ends[b]
                at = torch.arange(length, device=tensor.device)
                pages[table[b].long()[at // page], at % page] = tensor[ends[b] : ends[b + 1]]
            found.append(pages)
        return found, table

    def cache(self):
        worst = Worst(self.torch)
        for paged in (False, True):
            for rotary_dim, interleaved in ((0, True), (64, False), (128, True), (128, False)):
                for tokens, causal in ((1, False), (1, True), (5, True)):
                    self.grow(worst, paged, rotary_dim, interleaved, tokens, causal)
        return str(worst)

    def grow(self, worst, paged, rotary_dim, interleaved, tokens, causal, dtype=None):
        """Appends to the caches of four sequences, one of them new, and attends to them."""
        from ferroflash import flash_attn_with_kvcache

        torch, d = self.torch, 128
        held, page = (512, 16) if self.large else (32, 4)
        used = [0, 3, held // 2 + 1, held - tokens]
        q, new_k, new_v = (self.random(4, tokens, h, d, seed=i) for i, h in enumerate((8, 2, 2)))
        k, v = (self.random(4, held, 2, d, seed=i + 3) for i in range(2))
        before = k.clone(), v.clone()
        extra = {}
        if rotary_dim:
            powers = 10000.0 ** -(torch.arange(0, rotary_dim, 2, device=self.run.device) / rotary_dim)
            angles = torch.arange(held, device=self.run.device)[:, None] * powers
            extra = dict(rotary_cos=angles.cos().to(q.dtype), rotary_sin=angles.sin().to(q.dtype), rotary_interleaved=interleaved)
        given_k, given_v, table = k, v, None
        if paged:
            order = torch.randperm(4 * held // page, generator=torch.Generator().manual_seed(3)).to(self.run.device)
            table = order.int().reshape(4, -1)
            given_k, given_v = (torch.empty(4 * held // page, page, 2, d, dtype=q.dtype, device=q.device) for _ in range(2))
            for pages, cache in ((given_k, k), (given_v, v)):
                pages[order] = cache.reshape(-1, page, 2, d)
            extra["block_table"] = table
        lengths = self.int32(*used)
        o, lse = flash_attn_with_kvcache(
            q, given_k, given_v, new_k, new_v, cache_seqlens=lengths, causal=causal, return_softmax_lse=True, **extra
        )
        assert lengths.tolist() == used, "cache_seqlens was changed"
        what = f"paged {paged} rotary {rotary_dim, interleaved} tokens {tokens} causal {causal}"
        if paged:
            k, v = (pages[order].reshape(4, held, 2, d) for pages in (given_k, given_v))
        for b in range(4):
            at = torch.arange(tokens, device=q.device) + used[b]
            new = rotated(torch, new_k[b], extra, at)
            queries = rotated(torch, q[b], extra, at if causal else at * 0 + used[b]).to(q.dtype)
            off = (k[b, at].double() - new).abs().max().item()
            assert off <= 0.04, f"{what}: the appended keys of sequence {b} are off by {off:.3g}"
            assert torch.equal(v[b, at], new_v[b]), f"{what}: the appended values of sequence {b}"
            kept = torch.ones(held, dtype=torch.bool, device=q.device).index_fill_(0, at, False)
            assert torch.equal(k[b, kept], before[0][b, kept]) and torch.equal(v[b, kept], before[1][b, kept]), f"{what}: other rows changed"
            end = used[b] + tokens
            worst.take(f"{what} sequence {b}", o[b], lse[b], queries, k[b, :end], v[b, :end], causal=causal)

    def cache_options(self):
        from ferroflash import flash_attn_with_kvcache

        torch, worst = self.torch, Worst(self.torch)
        held = 700 if self.large else 40
        q = self.random(3, 1, 8, 128)
        k, v = self.random(5, held, 2, 128, seed=1), self.random(5, held, 2, 128, seed=2)
        used, entries, leftpad = [held, 17, held // 2], [4, 0, 2], [3, 0, 16]
        given = dict(cache_seqlens=self.int32(*used), return_softmax_lse=True)
        o, lse = flash_attn_with_kvcache(q, k, v, cache_batch_idx=self.int32(*entries), **given)
        for b in range(3):
            worst.take("cache_batch_idx", o[b], lse[b], q[b], k[entries[b], : used[b]], v[entries[b], : used[b]])
        o, lse = flash_attn_with_kvcache(q, k[:3], v[:3], cache_leftpad=self.int32(*leftpad), **given)
        for b in range(3):
            keys = slice(leftpad[b], used[b])
            worst.take("cache_leftpad", o[b], lse[b], q[b], k[b, keys], v[b, keys])
        o = flash_attn_with_kvcache(q, k[:3], v[:3], cache_seqlens=11, window_size=(6, 0))
        for b in range(3):
            worst.take("an int and a window", o[b], None, q[b], k[b, :11], v[b, :11], window=(6, 0))
        return str(worst)

    def merge(self):
        from ferroflash import flash_attn_func, merge_states
        from ferroflash.flash_attn_interface import flash_attn_combine

        torch, worst, sk = self.torch, Worst(self.torch), 900 if self.large else 30
        for dtype in self.dtypes():
            q, k, v = (self.random(2, s, h, 128, seed=i, dtype=dtype) for i, (s, h) in enumerate(((70, 8), (sk, 2), (sk, 2))))
            cuts = [slice(0, sk // 3), slice(sk // 3, sk // 3 + 7), slice(sk // 3 + 7, sk)]
            states = [flash_attn_func(q, k[:, at], v[:, at], return_attn_probs=True)[:2] for at in cuts]
            o, lse = merge_states(*merge_states(*states[0], *states[1]), *states[2])
            stacked = torch.stack([o.float() for o, _ in states]), torch.stack([lse.transpose(1, 2) for _, lse in states])
            combined, combined_lse = flash_attn_combine(*(x.contiguous() for x in stacked), out_dtype=dtype)
            for b in range(2):
                # Each state was rounded once and the first two twice.
                plain = definition(torch, q[b], k[b], v[b])[0].double()
                expected = definition(torch, q[b].double(), k[b].double(), v[b].double())[0]
                allowed = 3 * (plain - expected).abs().max().item()
                off = (o[b].double() - expected).abs().max().item()
                assert off <= allowed, f"merged {dtype}: off by {off:.3g}, allowed {allowed:.3g}"
                worst.take(f"combined {dtype}", combined[b], combined_lse[b].transpose(0, 1), q[b], k[b], v[b])
            assert (lse - combined_lse.transpose(1, 2)).abs().max().item() < 1e-4, "LSE of merge_states and flash_attn_combine differ"
        nothing = torch.full_like(o, math.nan), torch.full_like(lse, -math.inf)
        kept, kept_lse = merge_states(o, lse, *nothing)
        assert torch.equal(kept, o) and torch.equal(kept_lse, lse), "a state without keys changes the other"
        return str(worst)

    def interface(self):
        from ferroflash import flash_attn_interface

        worst, s = Worst(self.torch), 333 if self.large else 21
        q, k, v = (self.random(2, s, h, 128, seed=i) for i, h in enumerate((8, 2, 2)))
        sinks = self.random(8, dtype=self.torch.float32)
        for option in (dict(causal=True), dict(causal=True, chunk=64), dict(sinks=sinks)):
            o, lse = flash_attn_interface.flash_attn_func(
                q, k, v, causal=option.get("causal", False), attention_chunk=option.get("chunk", 0),
                learnable_sink=option.get("sinks"), return_attn_probs=True,
            )
            for b in range(2):
                worst.take(f"flash-attn 3 {option}", o[b], lse[b], q[b], k[b], v[b], **option)
        return str(worst)

    def frameworks(self):
        from ferroflash import flash_attn_func

        torch, found = self.torch, []
        q, k, v = (self.random(1, 40, 4, 64, seed=i, dtype=torch.float16) for i in range(3))
        expected = flash_attn_func(q, k, v)
        if self.run.is_gpu:
            import cupy

            o = flash_attn_func(*(cupy.from_dlpack(x) for x in (q, k, v)))
            assert isinstance(o, cupy.ndarray) and torch.equal(torch.from_dlpack(o), expected), "CuPy's result differs"
            found.append("cupy")
            import jax

            arrays = [jax.dlpack.from_dlpack(x) for x in (q, k, v)]
            o = flash_attn_func(*arrays)
            assert isinstance(o, jax.Array) and torch.equal(torch.from_dlpack(o), expected), "JAX's result differs"
            o = flash_attn_func(*(x.astype("bfloat16") for x in arrays))
            assert str(o.dtype) == "bfloat16"
            found.append("jax")
        import numpy

        o = flash_attn_func(*(x.cpu().numpy() for x in (q, k, v)))
        assert isinstance(o, numpy.ndarray)
        assert numpy.abs(o.astype("float64") - expected.cpu().double().numpy()).max() < 4e-3, "NumPy's result differs"
        return "equal results: " + ", ".join([*found, "numpy on the CPU"])


def rotated(torch, x, extra, positions):
    """[tokens, heads, head_dim] rotated by the position of each token, in float64."""
    if "rotary_cos" not in extra:
        return x.double()
    cos, sin = (extra[name].double()[positions][:, None] for name in ("rotary_cos", "rotary_sin"))
    half, x = cos.shape[2], x.double().clone()
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if extra["rotary_interleaved"] else (slice(0, half), slice(half, 2 * half))
    first, second = (x[..., at].clone() for at in pairs)
    x[..., pairs[0]], x[..., pairs[1]] = first * cos - second * sin, first * sin + second * cos
    return x
