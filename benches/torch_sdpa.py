#!/usr/bin/env python3
"""Ferroflash against PyTorch's scaled_dot_product_attention, on one GPU in one job.

What is measured: device time of one forward pass, from events around CUDA-graph replays, for PyTorch's flash, cuDNN and
default back ends here, and for Ferroflash's best kernels through `ferroflash bench --turns`. All take turns replay by
replay, as long problems run at the device's power limit: whoever rests between its replays gets a higher clock. Each round
turns the order round; the replays of all rounds are pooled. Ferroflash writes LSE too, as PyTorch's flash does. Both find their tensors in the L2 cache as far as they fit: every launch of a problem works on the same ones.
Where PyTorch's default is cuDNN, cuDNN is not timed a second time. Of decoding, the bytes of Q, K, V and O over that time are
compared with the device's copy bandwidth, measured in every round of the same job.

Ratios are speed: 1.10x of flash means that PyTorch's flash takes 1.10 times as long as Ferroflash."""

import argparse
import contextlib
import datetime
import gc
import os
import pathlib
import sys
import time
import unittest

sys.dont_write_bytecode = True
from torch_sdpa_ferroflash import Ferroflash  # noqa: E402
from torch_sdpa_problems import (  # noqa: E402
    BACK_ENDS, BOTH, COPY, DTYPES, MASKS, RANDOM, SETS, Problem, interleaved, random_problems, target_text,
)  # fmt: skip
from torch_sdpa_report import (  # noqa: E402
    OURS, Collected, by_class, class_lines, copy_bandwidth, dotted_cudnn, means, smi, table, to_text,
)  # fmt: skip

EXAMPLES = """examples:
  # build both parts, then everything the README's table needs, into a file (about 4 minutes)
  cargo xtask build-ptx && cargo build --release -p ferroflash-cli
  python3 benches/torch_sdpa.py --ferroflash target/release/ferroflash --ptx target/ptx --out headline.json

  # decoding only, as a share of the copy bandwidth
  python3 benches/torch_sdpa.py --set decode

  # short problems only, more rounds
  python3 benches/torch_sdpa.py --set small --rounds 7

  # one problem of your own
  python3 benches/torch_sdpa.py --shape 2,32,8,2048,2048,128 --dtype bf16 --mask causal

  # 1000 random problems or ten minutes of them, and how many are slower than PyTorch's best back end, by class
  python3 benches/torch_sdpa.py --set random --seed 7 --problems 1000 --minutes 10 --out random.json

  # what a set holds; needs neither a GPU nor PyTorch
  python3 benches/torch_sdpa.py --set headline --list

sets: %s
exit code: 0 when every problem was measured and right, and the copy bandwidth where a target needs it, 1 when not (file and
table come all the same), 2 for misuse. A missed target is no failure.
Copy the file to benches/results and run `cargo xtask readme` to bring the README's table and plot up to date."""

# Values of torch.nn.attention.SDPBackend.
BACK_END_OF_NUMBER = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}

# FlashAttention-3, which PyTorch does not have.
FA3 = "fa3"
# The least time of one replay in microseconds, of untimed replays before in seconds; launches that the first estimate takes.
REPLAY_US = 300.0
WARM_UP_S = 0.15
# Of random problems, whose number makes up for the noise of each: replays, warm-up, and problems after which the time is looked at.
RANDOM_REPS = 11
RANDOM_WARM_UP_S = 0.03
RANDOM_CHUNK = 96
LAUNCHES_TO_CALIBRATE = 5
LAUNCHES_MAX = 4096
# Bytes of one copy, far more than any cache holds; copies between two events, of which the best time of several is taken.
COPY_BYTES = 1 << 30
COPIES_TIMED = 4
COPY_REPS = 10
COPY_METHOD = (
    "best of %d times %d copies of %d bytes on the device in each round, by cudaMemcpy (copy_) and by an elementwise kernel "
    "(mul by 1, float32); bytes read and written count; the best round" % (COPY_REPS, COPIES_TIMED, COPY_BYTES)
)


# PyTorch.


def sdpa_times(torch, problem, args, turned, found, ferroflash):
    """Times the back ends of one problem, and FlashAttention-3 where that is asked for, in turns with `ferroflash`; adds one round of theirs
    to `found`."""
    batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim = problem.shape
    dtype = getattr(torch, DTYPES[problem.dtype])
    torch.manual_seed(0)
    q = torch.randn(batch, heads_q, seqlen_q, head_dim, device="cuda", dtype=dtype)
    k = torch.randn(batch, heads_kv, seqlen_k, head_dim, device="cuda", dtype=dtype)
    v = torch.randn(batch, heads_kv, seqlen_k, head_dim, device="cuda", dtype=dtype)
    options = {"is_causal": problem.causal}
    if heads_q != heads_kv:
        options["enable_gqa"] = True

    def attention():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    found.default_picks = found.default_picks or default_back_end(torch, q, k, v, options)
    candidates = []
    names = BACK_ENDS + ((FA3,) if args.fa3 else ())
    for name in reversed(names) if turned else names:
        # The default's times are then cuDNN's.
        if name == "cudnn" and found.default_picks == "cudnn":
            continue
        try:
            call = flash_attention_3(q, k, v, problem.causal) if name == FA3 else attention
            with back_end(torch, name):
                candidates.append((name,) + captured(torch, call))
        except Exception as error:  # PyTorch raises many kinds where a back end lacks something; and a package may not be there.
            found.errors[name] = first_line(error)
    if candidates:
        turn = lambda: ferroflash.turn(problem)  # noqa: E731
        for name, times_us in replay_in_turns(torch, candidates, args.reps, turned, turn, args.warm_up):
            found.add(name, times_us)


def flash_attention_3(q, k, v, causal):
    """A call of FlashAttention-3's own package, on tensors in its order of dimensions."""
    from flash_attn_interface import flash_attn_func

    q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in (q, k, v))
    return lambda: flash_attn_func(q, k, v, causal=causal)


def back_end(torch, name):
    if name in ("default", FA3):
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel({"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[name])


def default_back_end(torch, q, k, v, options):
    """Which back end PyTorch takes by default, where it tells: the call is not a public one."""
    try:
        return BACK_END_OF_NUMBER.get(int(torch._fused_sdp_choice(q, k, v, None, 0.0, **options)))
    except Exception:
        return None


def captured(torch, attention, stream=None):
    """A graph of as many calls as fill a replay, and their number; captured on a stream where it has to be a certain one."""
    side = stream or torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            attention()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()

    def graph_of(launches):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(launches):
                attention()
        return graph

    few = graph_of(LAUNCHES_TO_CALIBRATE)
    # The first replay pays for what is lazy; the second is taken.
    for _ in range(2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        few.replay()
        end.record()
        torch.cuda.synchronize()
    launches = launches_to_fill(start.elapsed_time(end) * 1e3 / LAUNCHES_TO_CALIBRATE)
    return graph_of(launches), launches


def launches_to_fill(launch_us):
    return max(1, min(LAUNCHES_MAX, int(-(-REPLAY_US // max(launch_us, 1e-3)))))


def replay_in_turns(torch, candidates, reps, turned, turn, warm_up_s=WARM_UP_S):
    """Times of one launch in microseconds, by candidate, measured as `ferroflash bench` does; `turn` is Ferroflash's, last in each
    rep, or first where the order is turned round."""
    end_of_warm_up = time.monotonic() + warm_up_s
    while time.monotonic() < end_of_warm_up:
        for _, graph, _ in candidates:
            graph.replay()
        torch.cuda.synchronize()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in candidates]
    times_us = [[] for _ in candidates]
    for _ in range(reps):
        if turned:
            turn()
        # An untimed replay keeps the device busy until the timed ones are enqueued behind it.
        candidates[-1][1].replay()
        for (_, graph, _), (start, end) in zip(candidates, marks):
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        for (_, _, launches), (start, end), times in zip(candidates, marks, times_us):
            times.append(start.elapsed_time(end) * 1e3 / launches)
        if not turned:
            turn()
    return [(candidate[0], times) for candidate, times in zip(candidates, times_us)]


def copy_rates(torch):
    """GB/s, read and written, of the best of several copies on the device, by kind."""
    source = torch.ones(COPY_BYTES // 4, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    kinds = {"copy_": lambda: target.copy_(source), "mul": lambda: torch.mul(source, 1.0, out=target)}
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    rates = {}
    for kind, copy in kinds.items():
        end_of_warm_up = time.monotonic() + WARM_UP_S
        while time.monotonic() < end_of_warm_up:
            copy()
            torch.cuda.synchronize()
        times_ms = []
        for _ in range(COPY_REPS):
            # An untimed copy keeps the device busy until the timed ones are enqueued behind it.
            copy()
            start.record()
            for _ in range(COPIES_TIMED):
                copy()
            end.record()
            torch.cuda.synchronize()
            times_ms.append(start.elapsed_time(end) / COPIES_TIMED)
        rates[kind] = 2 * COPY_BYTES / min(times_ms) / 1e6
    return rates


# The run.


def measure(args, problems, torch):
    """All rounds; stops between two where the time limit would be passed, or at Ctrl-C. Returns the report."""
    collected = {problem: Collected() for problem in problems}
    report = {"about": {}, "before": smi(), "rounds": 0, "copies": [], "copy_errors": []}
    start = time.monotonic()
    longest_s = 0.0
    try:
        for number in range(args.rounds):
            begun = time.monotonic()
            if number > 0 and begun - start + longest_s > args.limit:
                say("stopped after %d of %d rounds: the limit of %d s is near" % (number, args.rounds, args.limit))
                break
            one_round(args, torch, number, problems, collected, report)
            report["rounds"] = number + 1
            longest_s = max(longest_s, time.monotonic() - begun)
            say("round %d of %d: %.0f s" % (number + 1, args.rounds, time.monotonic() - begun))
    except KeyboardInterrupt:
        say("interrupted: reporting what was measured")
    return as_json(args, torch, problems, collected, report)


def one_round(args, torch, number, problems, collected, report):
    """PyTorch's replays before Ferroflash's in even rounds, after them in odd ones, which go through everything backwards."""
    turned = number % 2 == 1
    if not turned:
        copy_round(torch, report)
    for batch in batches(args, problems, turned):
        if args.set == RANDOM and time.monotonic() > args.end:
            break
        say("  %s %s: %d problems" % (batch[0].dtype, "causal" if batch[0].causal else "full", len(batch)))
        ferroflash = Ferroflash(args, batch)
        for problem in batch:
            collected[problem].round = number
            try:
                sdpa_times(torch, problem, args, turned, collected[problem], ferroflash)
            except Exception as error:  # Out of memory, for instance: the other problems go on.
                collected[problem].errors["torch"] = first_line(error)
            ferroflash.end(problem)
            give_back(torch)
        report["about"].update(ferroflash.close(batch, collected))
        # What is measured stays measured, whatever ends the job.
        write_json(args, as_json(args, torch, problems, collected, report))
    if turned:
        copy_round(torch, report)


def batches(args, problems, turned):
    """Problems as calls of ferroflash take them: of one dtype and mask; random ones a few hundred at a time, so that all kinds come early."""
    size = RANDOM_CHUNK if args.set == RANDOM else len(problems)
    chunks = [problems[at : at + size] for at in range(0, len(problems), size)]
    found = [batch for chunk in chunks for batch in interleaved(chunk)]
    return [batch[::-1] for batch in reversed(found)] if turned else found


def copy_round(torch, report):
    """Adds this round's copy bandwidth. Where it cannot be measured, shares of it are not, and all else goes on."""
    try:
        report["copies"].append(copy_rates(torch))
    except Exception as error:
        say("  copy bandwidth: %s" % first_line(error))
        report["copy_errors"].append(first_line(error))
    give_back(torch)


def give_back(torch):
    """Memory that PyTorch keeps for later, so that ferroflash finds it free."""
    with contextlib.suppress(Exception):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def as_json(args, torch, problems, collected, report):
    about = report["about"]
    copy = copy_bandwidth(report["copies"], report["copy_errors"], COPY_METHOD)
    lines = [collected[problem].as_json(problem, copy["gbytes_per_s"], args.replays) for problem in problems]
    if args.set == RANDOM:
        # Those that the time was too short for are not reported.
        lines = [line for line in lines if line["times"][OURS]]
    return {
        "what": "device time of one forward pass: Ferroflash and PyTorch's SDPA in turns, one job",
        "set": "own" if args.shape else args.set,
        "seed": args.seed if args.set == RANDOM else None,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": args.commit or about.get("commit"),
        "version": about.get("version"),
        "device_compiler": about.get("device_compiler"),
        "device": about.get("device") or {"name": torch.cuda.get_device_name()},
        "torch": {
            "version": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": dotted_cudnn(torch.backends.cudnn.version()),
        },
        "method": {
            "rounds": report["rounds"],
            "replays_per_round": args.reps,
            "replay_us": REPLAY_US,
            "lse": True,
            "caches": "warm",
            "turns": "replays",
        },
        "clocks": {"before": report["before"], "after": smi()},
        "copy_bandwidth": copy,
        "means": means(lines) if args.set != RANDOM else [],
        "by_class": by_class(lines) if args.set == RANDOM else [],
        "problems": lines,
    }


def first_line(error):
    return ((str(error).strip() or type(error).__name__).splitlines()[0])[:160]


def say(line):
    print(line, file=sys.stderr, flush=True)


def write_json(args, report):
    """Writes beside, then renames, so that a run that is ended leaves a whole file."""
    if args.out:
        beside = args.out + ".tmp"
        pathlib.Path(beside).write_text(to_text(report))
        os.replace(beside, args.out)


# The command line.


def shape(text):
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        sizes = ()
    if len(sizes) != 6 or min(sizes) < 1:
        raise argparse.ArgumentTypeError("6 sizes from 1 up are needed, B,HQ,HKV,SQ,SKV,D, not %r" % text)
    return sizes


def at_least_1(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("a number from 1 up is needed, not %r" % text)
    return int(text)


def parser():
    described = "; ".join("%s (%d problems: %s)" % (name, len(problems), what) for name, (problems, what) in SETS.items())
    p = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES % described, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--ferroflash", metavar="PATH", default="target/release/ferroflash", help="the binary [%(default)s]")
    p.add_argument("--ptx", metavar="FOLDER", help="compiled kernels [where the binary finds them]")
    what = p.add_mutually_exclusive_group()
    what.add_argument("--set", choices=sorted(SETS) + [RANDOM], default="headline", help="problems to measure [%(default)s]")
    what.add_argument("--shape", type=shape, nargs="+", metavar="B,HQ,HKV,SQ,SKV,D", help="problems of your own instead")
    p.add_argument("--dtype", choices=sorted(DTYPES) + ["both"], default="f16", help="for --shape [%(default)s]")
    p.add_argument("--mask", choices=sorted(MASKS), default="both", help="for --shape [%(default)s]")
    p.add_argument("--seed", type=int, default=1, metavar="N", help="what --set random is drawn from [%(default)s]")
    p.add_argument("--problems", type=at_least_1, default=1000, metavar="N", help="how many --set random has [%(default)s]")
    p.add_argument("--minutes", type=float, default=10.0, metavar="M", help="when --set random stops at the latest [%(default)s]")
    p.add_argument("--rounds", type=at_least_1, default=3, help="how often the two take turns [%(default)s; of random ones once]")
    p.add_argument("--reps", type=at_least_1, default=31, metavar="N", help="timed replays a round [%(default)s; of random ones 11]")
    p.add_argument("--fa3", action="store_true", help="time FlashAttention-3 too, of the package flash_attn_interface")
    p.set_defaults(warm_up=WARM_UP_S)
    p.add_argument("--limit", type=at_least_1, default=240, metavar="S", help="begin no round that would end later [%(default)s s]")
    p.add_argument("--replays", action="store_true", help="put the time of every replay into that file")
    p.add_argument("--out", metavar="FILE", help="write the results, replacing the file")
    p.add_argument("--commit", default=os.environ.get("FERROFLASH_COMMIT"), help="what was built [FERROFLASH_COMMIT, else git]")
    p.add_argument("--list", action="store_true", help="print the problems and end")
    p.add_argument("--self-test", action="store_true", help="test the parts that need no GPU, and end")
    return p


def problems_of(args):
    """The problems asked for, none twice."""
    if args.set == RANDOM:
        return random_problems(args.seed, args.problems)
    if not args.shape:
        return SETS[args.set][0]
    dtypes = BOTH if args.dtype == "both" else (args.dtype,)
    wanted = [Problem(s, d, m) for s in args.shape for d in dtypes for m in MASKS[args.mask]]
    # PyTorch aligns its causal mask top-left, Ferroflash bottom-right: they agree where the lengths do.
    return list(dict.fromkeys(p for p in wanted if not p.causal or p.shape[3] == p.shape[4]))


def listed(problem):
    targets = "; ".join(target_text(name, least) for name, least in problem.targets)
    return "%-40s %s" % (problem.title(), targets) if targets else problem.title()


def complete(report):
    """Whether each problem was measured and right, and the copy bandwidth where a target needs it."""
    needs_copy = any(target["relative_to"] == COPY for problem in report["problems"] for target in problem["targets"])
    if needs_copy and report["copy_bandwidth"]["gbytes_per_s"] is None:
        return False
    return all(problem["times"][OURS] and not problem["errors"].get(OURS) for problem in report["problems"])


def self_test():
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    tests = unittest.defaultTestLoader.loadTestsFromName("torch_sdpa_test")
    return 0 if unittest.TextTestRunner(stream=sys.stderr).run(tests).wasSuccessful() else 1


def main():
    args = parser().parse_args()
    is_random = args.set == RANDOM
    if is_random:
        args.rounds, args.reps, args.warm_up = 1, RANDOM_REPS, RANDOM_WARM_UP_S
        args.end = time.monotonic() + 60 * args.minutes
    if args.self_test:
        return self_test()
    problems = problems_of(args)
    if not problems:
        parser().error("a causal mask needs equal lengths: PyTorch aligns it otherwise")
    if args.list:
        print("\n".join(listed(problem) for problem in problems))
        return 0
    if args.out and not pathlib.Path(args.out).resolve().parent.is_dir():
        parser().error("--out: the folder of %s does not exist" % args.out)
    try:
        import torch
    except ImportError as error:
        say("error: %s: the comparison needs PyTorch with CUDA (pip install torch)" % error)
        return 1
    if not torch.cuda.is_available():
        say("error: PyTorch %s finds no CUDA device" % torch.__version__)
        return 1
    if not os.access(args.ferroflash, os.X_OK):
        say("error: %s is no program: cargo build --release -p ferroflash-cli, or give --ferroflash" % args.ferroflash)
        return 1
    # The capture of a graph collects garbage: what PyTorch's import left is none.
    gc.freeze()
    report = measure(args, problems, torch)
    write_json(args, report)
    print("\n".join(class_lines(report) if is_random else table(report)), flush=True)
    return 0 if complete(report) else 1


if __name__ == "__main__":
    sys.exit(main())
