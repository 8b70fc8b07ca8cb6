"""Host time of a call from Python, and device time against the command's, for bindings_on_gpu.py."""

import argparse
import statistics
import time
from unittest import SkipTest

# Host time of a call in eager mode, microseconds at most.
HOST_BAR_US = 8.0
# Device time of a graph's call over the command's, at most this far from 1.
DEVICE_BAR = 0.01
# B, heads of Q, of K and V, queries, keys, head_dim; dtype; causal.
DEVICE_PROBLEMS = [
    ((4, 16, 16, 4096, 4096, 128), "bf16", False),
    ((2, 16, 16, 8192, 8192, 128), "bf16", True),
    ((8, 16, 16, 512, 512, 64), "f16", True),
    ((8, 32, 8, 1, 8192, 128), "bf16", False),
]
CALLS, BATCHES = 100, 60
# Of a call and its peer in turns, of which the best counts, and seconds between them.
ROUNDS, PAUSE_S = 12, 0.1


def checks(run):
    import torch

    times = Times(run, torch)
    named = [
        ("host time of flash_attn_func, eager", times.eager),
        ("host time of scaled_dot_product_attention, eager", times.of_pytorchs_name),
        ("host time of flash_attn_with_kvcache, eager", times.decoding),
        ("host time of flash_attn_varlen_func, eager", times.varlen),
        ("torch.compile", times.compiled),
        ("CUDA graph", times.graph),
    ]
    device = [(f"device time of {shape} {dtype}{' causal' if causal else ''}", times.device(shape, dtype, causal))
              for shape, dtype, causal in DEVICE_PROBLEMS]
    return named + device


class Times:
    """The measurements, on one device."""

    def __init__(self, run, torch):
        self.run, self.torch = run, torch

    def only_on_a_gpu(self):
        if not self.run.is_gpu:
            raise SkipTest("there is no GPU")

    def synchronize(self):
        if self.run.is_gpu:
            self.torch.cuda.synchronize()

    def small(self, seqlen=128):
        return [self.torch.randn(1, seqlen, 8, 64, device=self.run.device, dtype=self.torch.bfloat16) for _ in range(3)]

    def host_us(self, call):
        """Microseconds until a call returns: the median and the least of batches, each waited for after it."""
        for _ in range(30):
            call()
        self.synchronize()
        found = []
        for _ in range(BATCHES):
            begun = time.perf_counter()
            for _ in range(CALLS):
                call()
            found.append((time.perf_counter() - begun) / CALLS * 1e6)
            self.synchronize()
        return statistics.median(found), min(found)

    def compared(self, ours, peer, bar):
        with self.torch.no_grad():
            # In turns, so that both have the same clocks; whoever else is on the host only adds, by half for seconds.
            pairs = []
            for _ in range(ROUNDS):
                pairs.append((self.host_us(ours), self.host_us(peer)))
                time.sleep(PAUSE_S)
        (median, least), (peer_us, _) = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
        text = f"{median:.2f} µs a call (least {least:.2f}), SDPA {peer_us:.2f} µs"
        found = {"text": text, "host_us": median, "host_us_least": least, "sdpa_us": peer_us, "bar_us": bar}
        assert not self.run.is_gpu or bar is None or median <= bar, f"{text}: more than {bar} µs"
        return found

    def eager(self):
        from ferroflash import flash_attn_func

        q, k, v = self.small()
        bhsd = [x.transpose(1, 2) for x in (q, k, v)]
        sdpa = self.torch.nn.functional.scaled_dot_product_attention
        return self.compared(lambda: flash_attn_func(q, k, v, causal=True), lambda: sdpa(*bhsd, is_causal=True), HOST_BAR_US)

    def of_pytorchs_name(self):
        from ferroflash import scaled_dot_product_attention

        q, k, v = (x.transpose(1, 2) for x in self.small())
        sdpa = self.torch.nn.functional.scaled_dot_product_attention
        return self.compared(lambda: scaled_dot_product_attention(q, k, v, is_causal=True), lambda: sdpa(q, k, v, is_causal=True), None)

    def decoding(self):
        from ferroflash import flash_attn_with_kvcache

        torch = self.torch
        q, *_ = self.small(1)
        k, v = (torch.randn(1, 1024, 8, 64, device=q.device, dtype=q.dtype) for _ in range(2))
        used = torch.full((1,), 700, dtype=torch.int32, device=q.device)
        bhsd = [x.transpose(1, 2) for x in (q, k, v)]
        sdpa = torch.nn.functional.scaled_dot_product_attention
        return self.compared(lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=used), lambda: sdpa(*bhsd), None)

    def varlen(self):
        from ferroflash import flash_attn_varlen_func

        q, k, v = (x[0] for x in self.small())
        ends = self.torch.tensor([0, 50, 128], dtype=self.torch.int32, device=q.device)
        bhsd = [x[None].transpose(1, 2) for x in (q, k, v)]
        sdpa = self.torch.nn.functional.scaled_dot_product_attention
        ours = lambda: flash_attn_varlen_func(q, k, v, ends, ends, 78, 78, causal=True)  # noqa: E731
        return self.compared(ours, lambda: sdpa(*bhsd, is_causal=True), None)

    def compiled(self):
        self.only_on_a_gpu()
        from ferroflash import flash_attn_func

        torch, found = self.torch, []
        q, k, v = self.small(256)

        def layer(q, k, v):
            return flash_attn_func(q * 2, k, v, causal=True).sum(-1) + 1

        with torch.no_grad():
            expected = layer(q, k, v)
            for mode in ("default", "reduce-overhead"):
                step = torch.compile(layer, fullgraph=True, mode=mode)
                for _ in range(4):
                    o = step(q, k, v).clone()
                torch.testing.assert_close(o, expected, atol=2e-2, rtol=2e-2)
                found.append(f"{mode} {self.host_us(lambda: step(q, k, v))[0]:.1f} µs")
        return f"equal without a graph break; host time of layer and attention: {', '.join(found)}, eager {self.host_us(lambda: layer(q, k, v))[0]:.1f} µs"

    def graph(self):
        """Values of a captured call follow what is written into its inputs, with splits, whose workspace is torch's."""
        self.only_on_a_gpu()
        from ferroflash import flash_attn_func, flash_attn_with_kvcache

        torch = self.torch
        q = torch.randn(1, 1, 32, 128, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(1, 16384, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        new_k, new_v = (torch.randn(1, 1, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        used = torch.full((1,), 9000, dtype=torch.int32, device="cuda")

        def step():
            return flash_attn_with_kvcache(q, k, v, new_k, new_v, cache_seqlens=used, causal=True)

        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                o = step()
            for round in range(5):
                q.normal_()
                used.fill_(3000 + 2500 * round)
                graph.replay()
                expected = flash_attn_func(q, k[:, : used.item() + 1], v[:, : used.item() + 1])
                torch.testing.assert_close(o, expected, atol=4e-3, rtol=2e-2)
                assert torch.equal(k[0, used.item()], new_k[0, 0])
        return "5 replays of appending and decoding with other lengths are right"

    def device(self, shape, dtype, causal):
        def measured():
            self.only_on_a_gpu()
            if not self.run.args.ferroflash:
                raise SkipTest("no --ferroflash to compare with")
            with self.torch.no_grad():
                return self.against_the_command(shape, dtype, causal)

        return measured

    def against_the_command(self, shape, dtype, causal):
        """Replays of a graph of calls from Python and of `ferroflash bench --turns`, in turns, as torch_sdpa.py has them."""
        import torch_sdpa
        from ferroflash import flash_attn_func
        from torch_sdpa_ferroflash import Ferroflash
        from torch_sdpa_problems import Problem
        from torch_sdpa_report import OURS, Collected

        torch, problem = self.torch, Problem(shape=shape, dtype=dtype, causal=causal)
        batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim = shape
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
        # As the command has them: [batch, heads, seqlen, head_dim].
        q, k, v = (
            torch.randn(batch, heads, seqlen, head_dim, device="cuda", dtype=kind).transpose(1, 2)
            for heads, seqlen in ((heads_q, seqlen_q), (heads_kv, seqlen_k), (heads_kv, seqlen_k))
        )
        graph, launches = torch_sdpa.captured(torch, lambda: flash_attn_func(q, k, v, causal=causal, return_attn_probs=True))
        ratios, ours, commands = [], [], []
        for turned in (False, True):
            args = argparse.Namespace(ferroflash=self.run.args.ferroflash, ptx=self.run.args.ptx, reps=31, warm_up=0.2)
            command, collected = Ferroflash(args, [problem]), {problem: Collected()}
            turn = lambda: command.turn(problem)  # noqa: E731
            candidates = [("python", graph, launches)]
            (_, times), = torch_sdpa.replay_in_turns(torch, candidates, 31, turned, turn, 0.2)
            command.end(problem)
            command.close([problem], collected)
            found = collected[problem]
            assert OURS not in found.errors, found.errors.get(OURS)
            ours, commands = ours + times, commands + sum(found.rounds[OURS].values(), [])
        ours_us, command_us = statistics.median(ours), statistics.median(commands)
        ratio = ours_us / command_us
        text = f"{ours_us:.2f} µs, the command's {command_us:.2f} µs: {100 * (ratio - 1):+.2f} %"
        assert ratio - 1 <= DEVICE_BAR, text
        return {"text": text, "device_us": ours_us, "command_us": command_us, "ratio": ratio}
