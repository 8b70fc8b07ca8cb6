#!/usr/bin/env python3
"""Kernels of the backward pass against each other and against PyTorch's flash and cuDNN back ends, on one GPU in one job.

First every kernel is verified on a problem of odd lengths of each dtype and head_dim. Then each problem is timed: device time of one
backward pass (all of its launches), from events around CUDA-graph replays, all candidates by turns, replay by replay. Each pair of
kernels is a process of its own, `ferroflash bench --backward --turns`, and PyTorch's back ends are in this one. The pairs are as few as
together have every kernel of the tile, the plan's own first.

TFLOP/s counts 10·B·HQ·SQ·SKV·D, half of it under a causal mask. The table comes last."""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from torch_sdpa import WARM_UP_S, back_end, captured, replay_in_turns  # noqa: E402
from torch_sdpa_ferroflash import Turns  # noqa: E402
from torch_sdpa_problems import DTYPES, Problem, visible_flops  # noqa: E402
from torch_sdpa_report import percentile  # noqa: E402

SHAPES = (
    "4,32,32,4096,4096,64", "4,16,16,4096,4096,96", "4,16,16,4096,4096,128", "2,16,16,8192,8192,128", "16,16,16,1024,1024,128",
    "1,64,8,4096,4096,128", "2,8,8,512,512,64",
)  # fmt: skip
BACK_ENDS = ("flash", "cudnn")
# What each kernel is verified on, but for head_dim: batch, query heads, KV heads, queries, keys.
ODD = (2, 6, 2, 331, 457)
VERIFY_LIMIT_S = 120


def covering(pairs):
    """As few of the pairs as have every kernel, the first one first."""
    chosen, seen = [], set()
    for enough in (2, 1):
        for pair in pairs:
            if len(set(pair) - seen) >= enough:
                chosen.append(pair)
                seen |= set(pair)
    return chosen


def verified(args, dtype, head_dim):
    """The pairs of kernels that compute this dtype and head_dim, and those that are wrong on odd lengths, by mask."""
    pairs, wrong = [], []
    for mask in ([], ["--causal"]):
        shape = ",".join(map(str, ODD + (head_dim,)))
        command = [args.ferroflash, "verify", "--backward", "--device", "cuda", "--shape", shape, "--dtype", dtype]
        command += ["--rows", "all", "--repeats", str(args.repeats), "--json", *mask, *ptx(args)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERIFY_LIMIT_S)
        if not done.stdout.strip():
            raise SystemExit("%s: %s" % (" ".join(command), done.stderr.strip()))
        results = json.loads(done.stdout)["results"]
        pairs = [tuple(result["kernels"]) for result in results]
        wrong += [(tuple(result["kernels"]), result) for result in results if not result["passed"]]
    return pairs, wrong


def ptx(args):
    return ["--ptx", args.ptx] if args.ptx else []


class Pair(Turns):
    """`ferroflash bench --backward --turns` of one problem by one pair of kernels."""

    def __init__(self, args, problem, kernels):
        self.kernels = kernels
        command = [args.ferroflash, "bench", "--backward", "--turns", "--reps", str(args.reps), "--rows", ",".join(kernels)]
        command += ["--warm-up", str(round(1000 * WARM_UP_S)), "--dtype", problem.dtype, *ptx(args)]
        command += ["--mask", "causal" if problem.causal else "full", "--shape", ",".join(map(str, problem.shape))]
        super().__init__(lambda report: [*command, "--json", str(report)])

    def result(self):
        """The median and the 10th and 90th percentile in microseconds, or why there are none."""
        text = self.finish()
        if not text:
            return (self.said.splitlines() or ["no report"])[-1]
        measured = json.loads(text)["results"][0]["measured"]
        timing = measured["timing"]
        if not timing:
            return "wrong gradients: %s" % json.dumps(measured["check"])
        return timing["median_us"], timing["p10_us"], timing["p90_us"]


def peers(torch, problem, found):
    """Graphs of the backward pass of PyTorch's back ends, and the tensors that they read; back ends that have none are noted."""
    batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim = problem.shape
    dtype = getattr(torch, DTYPES[problem.dtype])
    torch.manual_seed(0)
    tensor = lambda heads, rows: torch.randn(batch, heads, rows, head_dim, device="cuda", dtype=dtype)  # noqa: E731
    leaves = [x.requires_grad_() for x in (tensor(heads_q, seqlen_q), tensor(heads_kv, seqlen_k), tensor(heads_kv, seqlen_k))]
    d_o = tensor(heads_q, seqlen_q)
    options = {"is_causal": problem.causal, "enable_gqa": heads_q != heads_kv}
    candidates, kept = [], [leaves, d_o]
    for name in BACK_ENDS:
        try:
            # Gradients are captured on the stream on which the forward pass ran.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream), back_end(torch, name):
                o = torch.nn.functional.scaled_dot_product_attention(*leaves, **options)
            torch.cuda.synchronize()

            def backward(o=o):
                torch.autograd.grad(o, leaves, d_o, retain_graph=True)

            candidates.append((name,) + captured(torch, backward, stream))
            kept.append(o)
        except Exception as error:  # PyTorch raises many kinds where a back end lacks something.
            found[name] = str(error).strip().splitlines()[0]
    return candidates, kept


def measured(args, torch, problem, pairs):
    """Times, or what is wrong, by candidate."""
    found = {}
    # A graph does not keep alive what it reads.
    candidates, _kept = peers(torch, problem, found)
    running = [Pair(args, problem, pair) for pair in pairs]

    def turn():
        for pair in running:
            pair.turn(problem)

    if candidates:
        for name, times_us in replay_in_turns(torch, candidates, args.reps, False, turn):
            found[name] = tuple(percentile(times_us, share) for share in (0.5, 0.1, 0.9))
    for pair in running:
        pair.end(problem)
        found[" + ".join(pair.kernels)] = pair.result()
    return found


def table(lines):
    """A line a candidate and problem: times, rate, and how many times as fast as the fastest of PyTorch's back ends it is."""
    text = []
    for problem, found in lines:
        text.append(problem.title())
        best = min((times[0] for name, times in found.items() if name in BACK_ENDS and not isinstance(times, str)), default=None)
        flops = 2.5 * visible_flops(problem)
        for name, times in sorted(found.items(), key=lambda item: (isinstance(item[1], str), item[1])):
            if isinstance(times, str):
                text.append("  %-90s %s" % (name, times))
                continue
            relative = "" if best is None else "%5.2f x" % (best / times[0])
            text.append(
                "  %-90s %9.1f µs (%.1f to %.1f) %6.0f TFLOP/s %s" % (name, *times, flops / times[0] * 1e-6, relative)
            )
    return "\n".join(text)


def parser():
    parsed = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsed.add_argument("--ferroflash", default="target/release/ferroflash", help="the command [%(default)s]")
    parsed.add_argument("--ptx", help="folder of kernels [the command's own]")
    parsed.add_argument("--shape", nargs="+", default=SHAPES, metavar="B,HQ,HKV,SQ,SKV,D", help="problems [%(default)s]")
    parsed.add_argument("--dtype", choices=sorted(DTYPES), default="bf16", help="element type [%(default)s]")
    parsed.add_argument("--reps", type=int, default=15, help="replays of each candidate [%(default)s]")
    parsed.add_argument("--repeats", type=int, default=20, help="runs of each kernel that must be equal in every bit [%(default)s]")
    parsed.add_argument("--out", type=pathlib.Path, help="the results as JSON")
    return parsed


def main():
    args = parser().parse_args()
    import torch

    shapes = [tuple(map(int, shape.split(","))) for shape in args.shape]
    pairs, failed = {}, []
    for head_dim in sorted({shape[-1] for shape in shapes}):
        pairs[head_dim], wrong = verified(args, args.dtype, head_dim)
        failed += wrong
        print("head_dim %d: %d pairs of kernels, %d wrong" % (head_dim, len(pairs[head_dim]), len(wrong)), flush=True)
    lines = []
    for shape in shapes:
        for causal in (False, True):
            problem = Problem(shape, args.dtype, causal)
            lines.append((problem, measured(args, torch, problem, covering(pairs[shape[-1]]))))
            print("%s: measured" % problem.title(), flush=True)
            torch.cuda.empty_cache()
    if args.out:
        results = [{"problem": problem.title(), "times_us": found} for problem, found in lines]
        args.out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "results": results}, indent=1) + "\n")
    for kernels, result in failed:
        print("WRONG %s: %s" % (" + ".join(kernels), json.dumps(result["verdict"])))
    print(table(lines))
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    return 1 if failed or any(isinstance(times, str) for _, found in lines for name, times in found.items() if name not in BACK_ENDS) else 0


if __name__ == "__main__":
    sys.exit(main())
