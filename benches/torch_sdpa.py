#!/usr/bin/env python3
"""Ferroflash against PyTorch's scaled_dot_product_attention, on one GPU in one job.

What is measured: device time of one forward pass, from events around CUDA-graph replays, for PyTorch's flash, cuDNN and
default back ends here, and for Ferroflash's best kernels through `ferroflash bench --json`. The two take turns, round by
round, and each round turns the order round; the replays of all rounds are pooled. Ferroflash writes LSE too, as PyTorch's
flash does. Both find their tensors in the L2 cache as far as they fit: every launch of a problem works on the same ones.

Ratios are speed: 1.10x of flash means that PyTorch's flash takes 1.10 times as long as Ferroflash."""

import argparse
import contextlib
import dataclasses
import datetime
import gc
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

EXAMPLES = """examples:
  # build both parts, then everything the README's table needs, into a file (3 to 4 minutes)
  cargo xtask build-ptx && cargo build --release -p ferroflash
  python3 benches/torch_sdpa.py --ferroflash target/release/ferroflash --ptx target/ptx --out headline.json

  # short problems only, more rounds
  python3 benches/torch_sdpa.py --set small --rounds 7

  # one problem of your own
  python3 benches/torch_sdpa.py --shape 2,32,8,2048,2048,128 --dtype bf16 --mask causal

  # what a set holds; needs neither a GPU nor PyTorch
  python3 benches/torch_sdpa.py --set headline --list

sets: %s
exit code: 0 when every problem was measured and right, 1 when not (file and table come all the same), 2 for misuse.
Copy the file to benches/results and run `cargo xtask readme` to bring the README's table and plot up to date."""

BACK_ENDS = ("flash", "cudnn", "default")
OURS = "ferroflash"
DTYPES = {"f16": "float16", "bf16": "bfloat16"}
MASKS = {"full": (False,), "causal": (True,), "both": (False, True)}
# Values of torch.nn.attention.SDPBackend.
BACK_END_OF_NUMBER = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}

# The least time of one replay in microseconds, of untimed replays before in seconds; launches that the first estimate takes.
REPLAY_US = 300.0
WARM_UP_S = 0.15
LAUNCHES_TO_CALIBRATE = 5
LAUNCHES_MAX = 4096
# One call of ferroflash times a dozen problems: minutes mean that it hangs.
CALL_LIMIT_S = 180


@dataclasses.dataclass(frozen=True)
class Problem:
    """One attention problem. `shape` is B, HQ, HKV, SQ, SKV, D; `target` the back end and the ratio to reach."""

    shape: tuple
    dtype: str
    causal: bool
    target: tuple = dataclasses.field(default=None, compare=False)

    def title(self):
        return "%s %s %s" % (",".join(map(str, self.shape)), self.dtype, "causal" if self.causal else "full")


def group(shapes, dtypes, target=None, masks=(False, True)):
    return [Problem(s, d, m, target) for s in shapes for d in dtypes for m in masks]


BOTH = ("f16", "bf16")
LARGE = group([(4, 32, 32, 4096, 4096, 64), (4, 16, 16, 4096, 4096, 128), (1, 16, 16, 16384, 16384, 128)], BOTH, ("flash", 1.0))
DEFAULT_BEATEN = group([(1, 8, 8, 512, 512, 64), (2, 8, 8, 512, 512, 64)], ("f16",), ("default", 1.2))
OTHER_SMALL = group([(1, 1, 1, 128, 128, 64), (4, 8, 8, 512, 512, 64), (4, 16, 16, 512, 512, 64), (8, 16, 16, 512, 512, 64)], ("f16",))
OTHER_HEAD_DIMS = group([(4, 32, 32, 4096, 4096, 32), (4, 16, 16, 4096, 4096, 96)], ("f16",))
HEAD_DIM_256 = group([(8, 8, 8, 512, 512, 256), (4, 8, 8, 4096, 4096, 256)], BOTH, ("flash", 0.9))
GQA = group([(2, 32, 8, 2048, 2048, 128)], ("f16",))
DECODE = group([(8, 32, 8, 1, 8192, 128), (1, 32, 8, 1, 32768, 128), (64, 32, 8, 1, 4096, 128)], ("f16",), masks=(False,))
HEADLINE = LARGE + DEFAULT_BEATEN + OTHER_SMALL + OTHER_HEAD_DIMS + HEAD_DIM_256 + GQA
SETS = {
    "headline": (HEADLINE, "what the README shows"),
    "issue": (LARGE + DEFAULT_BEATEN + HEAD_DIM_256, "the problems with a ratio to reach"),
    "small": (DEFAULT_BEATEN + OTHER_SMALL, "lengths 128 and 512"),
    "large": (LARGE, "lengths 4096 and 16384, head_dim 64 and 128"),
    "all": (HEADLINE + DECODE, "headline and one-query decoding"),
}


# Statistics.


def percentile(times, share):
    """The value at this share of the sorted times, as `ferroflash bench` takes it."""
    return sorted(times)[int(share * (len(times) - 1) + 0.5)]


def timing(rounds, keep_replays=False):
    """Pools the replays of all rounds; None where there are none."""
    pooled = [time_us for times in rounds for time_us in times]
    if not pooled:
        return None
    summary = {
        "median_us": round(percentile(pooled, 0.5), 3),
        "p10_us": round(percentile(pooled, 0.1), 3),
        "p90_us": round(percentile(pooled, 0.9), 3),
        "replays": len(pooled),
        "round_medians_us": [round(percentile(times, 0.5), 3) for times in rounds if times],
    }
    if keep_replays:
        summary["times_us"] = [round(time_us, 3) for time_us in pooled]
    return summary


def ratios(timings):
    """How many times as long as Ferroflash each back end takes, by medians and by 90th percentiles."""
    ours = timings.get(OURS)
    found = {}
    for name in BACK_ENDS:
        theirs = timings.get(name)
        if ours and theirs:
            found[name] = {
                "median": round(theirs["median_us"] / ours["median_us"], 4),
                "p90": round(theirs["p90_us"] / ours["p90_us"], 4),
            }
    return found


def visible_flops(problem):
    """4*B*H*SQ*SKV*D, of a causal mask the visible share."""
    batch, heads, _, seqlen_q, seqlen_k, head_dim = problem.shape
    pairs = seqlen_q * (seqlen_k - seqlen_q) + seqlen_q * (seqlen_q + 1) / 2 if problem.causal else seqlen_q * seqlen_k
    return 4.0 * batch * heads * head_dim * pairs


def interleaved(problems):
    """Problems in groups of one dtype and mask, as one call of ferroflash takes them."""
    groups = {}
    for problem in problems:
        groups.setdefault((problem.dtype, problem.causal), []).append(problem)
    return list(groups.values())


class Collected:
    """What was measured of one problem, over all rounds."""

    def __init__(self):
        self.rounds = {name: [] for name in (OURS,) + BACK_ENDS}
        self.errors = {}
        self.row = None
        self.clocks_mhz = []
        self.default_picks = None

    def add(self, name, times_us):
        self.rounds[name].append(list(times_us))

    def as_json(self, problem, keep_replays=False):
        timings = {name: timing(rounds, keep_replays) for name, rounds in self.rounds.items()}
        found = ratios(timings)
        flops = visible_flops(problem)
        line = {
            "shape": list(problem.shape),
            "dtype": problem.dtype,
            "causal": problem.causal,
            "flops": flops,
            "kernel": self.row,
            "sm_clock_mhz": int(percentile(self.clocks_mhz, 0.5)) if self.clocks_mhz else None,
            "default_picks": self.default_picks,
            "times": timings,
            "tflops": {name: round(flops / t["median_us"] / 1e6, 2) for name, t in timings.items() if t},
            "speed_relative_to": found,
            "target": None,
            "errors": self.errors,
        }
        if problem.target:
            name, least = problem.target
            reached = found.get(name, {}).get("median")
            line["target"] = {"relative_to": name, "least": least, "met": reached is not None and reached >= least}
        return line


# PyTorch.


def sdpa_times(torch, problem, reps, turned, found):
    """Times the back ends of one problem in turns; adds one round to `found`."""
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
    for name in reversed(BACK_ENDS) if turned else BACK_ENDS:
        try:
            with back_end(torch, name):
                candidates.append((name,) + captured(torch, attention))
        except Exception as error:  # PyTorch raises many kinds where a back end lacks something.
            found.errors[name] = first_line(error)
    if candidates:
        for name, times_us in replay_in_turns(torch, candidates, reps):
            found.add(name, times_us)


def back_end(torch, name):
    if name == "default":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel({"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[name])


def default_back_end(torch, q, k, v, options):
    """Which back end PyTorch takes by default, where it tells: the call is not a public one."""
    try:
        return BACK_END_OF_NUMBER.get(int(torch._fused_sdp_choice(q, k, v, None, 0.0, **options)))
    except Exception:
        return None


def captured(torch, attention):
    """A graph of as many calls as fill a replay, and their number."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            attention()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()

    def graph_of(launches):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
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


def replay_in_turns(torch, candidates, reps):
    """Times of one launch in microseconds, by candidate; measured as `ferroflash bench` does."""
    end_of_warm_up = time.monotonic() + WARM_UP_S
    while time.monotonic() < end_of_warm_up:
        for _, graph, _ in candidates:
            graph.replay()
        torch.cuda.synchronize()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in candidates]
    times_us = [[] for _ in candidates]
    for _ in range(reps):
        # An untimed replay keeps the device busy until the timed ones are enqueued behind it.
        candidates[-1][1].replay()
        for (_, graph, _), (start, end) in zip(candidates, marks):
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        for (_, _, launches), (start, end), times in zip(candidates, marks, times_us):
            times.append(start.elapsed_time(end) * 1e3 / launches)
    return [(candidate[0], times) for candidate, times in zip(candidates, times_us)]


# Ferroflash.


def bench_command(args, problems, report):
    """The call that times these problems, all of one dtype and mask."""
    command = [args.ferroflash, "bench", "--lse", "--replays", "--reps", str(args.reps), "--json", str(report)]
    command += ["--dtype", problems[0].dtype, "--mask", "causal" if problems[0].causal else "full"]
    if args.ptx:
        command += ["--ptx", args.ptx]
    return command + ["--shape"] + [",".join(map(str, problem.shape)) for problem in problems]


def ferroflash_times(args, problems, collected):
    """Times the best kernels of these problems; adds one round to each. Returns what the report says of the device."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "bench.json")
        try:
            ended = subprocess.run(
                bench_command(args, problems, report), capture_output=True, text=True, timeout=CALL_LIMIT_S, check=False
            )
            said = ended.stderr.strip()
            text = report.read_text() if report.exists() else None
        except (OSError, subprocess.TimeoutExpired) as error:
            said, text = str(error), None
    if text is None:
        for problem in problems:
            collected[problem].errors[OURS] = (said.splitlines() or ["no report"])[-1]
        return {}
    return take_report(json.loads(text), problems, collected)


def take_report(report, problems, collected):
    """Adds what `ferroflash bench --json` reports, and returns the part that is about no single problem."""
    found = {(tuple(r["shape"]), r["dtype"], r["causal"]): r for r in report["results"]}
    for problem in problems:
        into = collected[problem]
        result = found.get((problem.shape, problem.dtype, problem.causal), {"error": "not in the report", "rows": []})
        if not result["rows"]:
            into.errors[OURS] = result["error"] or "no kernel"
            continue
        row = result["rows"][0]
        if not row.get("times_us"):
            into.errors[OURS] = "wrong output: %s" % json.dumps(row["check"])
            continue
        into.add(OURS, row["times_us"])
        kept = ("entry", "source", "ctas", "ctas_per_sm", "resident_ctas_per_sm")
        into.row = {key: round(row[key], 3) if isinstance(row[key], float) else row[key] for key in kept}
        if row.get("sm_clock_mhz"):
            into.clocks_mhz.append(row["sm_clock_mhz"])
    return {key: report.get(key) for key in ("version", "commit", "device")} | {
        "device_compiler": report.get("kernels", {}).get("device_compiler")
    }


# The run.


def measure(args, problems, torch):
    """All rounds; stops between two where the time limit would be passed, or at Ctrl-C. Returns the report."""
    collected = {problem: Collected() for problem in problems}
    report = {"about": {}, "before": smi(), "rounds": 0}
    start = time.monotonic()
    longest_s = 0.0
    try:
        for number in range(args.rounds):
            begun = time.monotonic()
            if number > 0 and begun - start + longest_s > args.limit:
                say("stopped after %d of %d rounds: the limit of %d s is near" % (number, args.rounds, args.limit))
                break
            one_round(args, torch, number, problems, collected, report["about"])
            report["rounds"] = number + 1
            longest_s = max(longest_s, time.monotonic() - begun)
            say("round %d of %d: %.0f s" % (number + 1, args.rounds, time.monotonic() - begun))
            write_json(args, as_json(args, torch, problems, collected, report))
    except KeyboardInterrupt:
        say("interrupted: reporting what was measured")
    return as_json(args, torch, problems, collected, report)


def one_round(args, torch, number, problems, collected, about):
    """PyTorch before Ferroflash in even rounds, after it in odd ones, which go through everything backwards."""
    turned = number % 2 == 1
    for batch in reversed(interleaved(problems)) if turned else interleaved(problems):
        batch = batch[::-1] if turned else batch
        say("  %s %s: %d problems" % (batch[0].dtype, "causal" if batch[0].causal else "full", len(batch)))
        if turned:
            about.update(ferroflash_times(args, batch, collected))
        for problem in batch:
            try:
                sdpa_times(torch, problem, args.reps, turned, collected[problem])
            except Exception as error:  # Out of memory, for instance: the other problems go on.
                collected[problem].errors["torch"] = first_line(error)
            with contextlib.suppress(Exception):
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        if not turned:
            about.update(ferroflash_times(args, batch, collected))


def as_json(args, torch, problems, collected, report):
    about = report["about"]
    return {
        "what": "device time of one forward pass: Ferroflash and PyTorch's SDPA in turns, one job",
        "set": "own" if args.shape else args.set,
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
        },
        "clocks": {"before": report["before"], "after": smi()},
        "problems": [collected[problem].as_json(problem, args.replays) for problem in problems],
    }


def dotted_cudnn(number):
    """91900 is 9.19.0, 8902 is 8.9.2."""
    if not number:
        return None
    major = number // 10000 if number >= 90000 else number // 1000
    rest = number - major * (10000 if number >= 90000 else 1000)
    return "%d.%d.%d" % (major, rest // 100, rest % 100)


def smi():
    """Clocks, power and temperature now, where nvidia-smi tells."""
    fields = ("clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu")
    command = ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
        return dict(zip(("sm_mhz", "sm_max_mhz", "memory_mhz", "power_w", "power_limit_w", "celsius"), map(number_in, answer[0].split(","))))
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def number_in(text):
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return None


def first_line(error):
    return ((str(error).strip() or type(error).__name__).splitlines()[0])[:160]


def say(line):
    print(line, file=sys.stderr, flush=True)


# What comes out.


def to_text(report):
    """JSON with one problem a line."""
    head = {key: value for key, value in report.items() if key != "problems"}
    lines = [json.dumps(problem) for problem in report["problems"]]
    text = json.dumps(head, indent=2)[: -len("\n}")]
    return text + ',\n  "problems": [\n    ' + ",\n    ".join(lines) + "\n  ]\n}\n"


def write_json(args, report):
    """Writes beside, then renames, so that a run that is ended leaves a whole file."""
    if args.out:
        beside = args.out + ".tmp"
        pathlib.Path(beside).write_text(to_text(report))
        os.replace(beside, args.out)


def table(report):
    """The table for people, as lines."""
    device, torch = report["device"], report["torch"]
    lines = [
        "%s, driver %s, PyTorch %s, cuDNN %s, %s, commit %s, %d rounds of %d replays"
        % (device["name"], device.get("driver"), torch["version"], torch["cudnn"], report["date"], report["commit"],
           report["method"]["rounds"], report["method"]["replays_per_round"]),
        "",
        "%-28s %-4s %-6s %10s %21s %7s %10s %10s %10s %8s %8s %9s %8s  %s"
        % ("B,HQ,HKV,SQ,SKV,D", "type", "mask", "ours us", "p10 to p90", "TFLOP/s", "flash us", "cudnn us", "default us",
           "x flash", "by p90", "x default", "by p90", "target"),
    ]  # fmt: skip
    for problem in report["problems"]:
        lines.append(table_line(problem))
        lines += ["    %s: %s" % item for item in problem["errors"].items()]
    met = [problem["target"]["met"] for problem in report["problems"] if problem["target"]]
    lines += ["", "%d of %d targets met" % (sum(met), len(met))]
    return lines


def table_line(problem):
    times, relative = problem["times"], problem["speed_relative_to"]

    def us(name):
        return "%.2f" % times[name]["median_us"] if times[name] else "-"

    def ratio(name, which):
        return "%.3f" % relative[name][which] if name in relative else "-"

    ours = times[OURS]
    spread = "%.2f to %.2f" % (ours["p10_us"], ours["p90_us"]) if ours else "-"
    target = problem["target"]
    verdict = "%s %.1f %s" % (target["relative_to"], target["least"], "met" if target["met"] else "MISSED") if target else ""
    kernel = " %s, %d CTAs" % (problem["kernel"]["entry"], problem["kernel"]["ctas"]) if problem["kernel"] else ""
    return "%-28s %-4s %-6s %10s %21s %7s %10s %10s %10s %8s %8s %9s %8s  %-18s%s" % (
        ",".join(map(str, problem["shape"])), problem["dtype"], "causal" if problem["causal"] else "full",
        us(OURS), spread, "%.1f" % problem["tflops"][OURS] if OURS in problem["tflops"] else "-",
        us("flash"), us("cudnn"), us("default"), ratio("flash", "median"), ratio("flash", "p90"),
        ratio("default", "median"), ratio("default", "p90"), verdict, kernel,
    )  # fmt: skip


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
    what.add_argument("--set", choices=sorted(SETS), default="headline", help="problems to measure [%(default)s]")
    what.add_argument("--shape", type=shape, nargs="+", metavar="B,HQ,HKV,SQ,SKV,D", help="problems of your own instead")
    p.add_argument("--dtype", choices=sorted(DTYPES) + ["both"], default="f16", help="for --shape [%(default)s]")
    p.add_argument("--mask", choices=sorted(MASKS), default="both", help="for --shape [%(default)s]")
    p.add_argument("--rounds", type=at_least_1, default=3, help="how often the two take turns [%(default)s]")
    p.add_argument("--reps", type=at_least_1, default=31, metavar="N", help="timed replays a round [%(default)s]")
    p.add_argument("--limit", type=at_least_1, default=240, metavar="S", help="begin no round that would end later [%(default)s s]")
    p.add_argument("--replays", action="store_true", help="put the time of every replay into that file")
    p.add_argument("--out", metavar="FILE", help="write the results, replacing the file")
    p.add_argument("--commit", default=os.environ.get("FERROFLASH_COMMIT"), help="what was built [FERROFLASH_COMMIT, else git]")
    p.add_argument("--list", action="store_true", help="print the problems and end")
    p.add_argument("--self-test", action="store_true", help="test the parts that need no GPU, and end")
    return p


def problems_of(args):
    """The problems asked for, none twice."""
    if not args.shape:
        return SETS[args.set][0]
    dtypes = BOTH if args.dtype == "both" else (args.dtype,)
    wanted = [Problem(s, d, m) for s in args.shape for d in dtypes for m in MASKS[args.mask]]
    # PyTorch aligns its causal mask top-left, Ferroflash bottom-right: they agree where the lengths do.
    return list(dict.fromkeys(p for p in wanted if not p.causal or p.shape[3] == p.shape[4]))


def self_test():
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    sys.dont_write_bytecode = True
    tests = unittest.defaultTestLoader.loadTestsFromName("torch_sdpa_test")
    return 0 if unittest.TextTestRunner(stream=sys.stderr).run(tests).wasSuccessful() else 1


def main():
    args = parser().parse_args()
    if args.self_test:
        return self_test()
    problems = problems_of(args)
    if not problems:
        parser().error("a causal mask needs equal lengths: PyTorch aligns it otherwise")
    if args.list:
        print("\n".join(problem.title() for problem in problems))
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
        say("error: %s is no program: cargo build --release -p ferroflash, or give --ferroflash" % args.ferroflash)
        return 1
    # The capture of a graph collects garbage: what PyTorch's import left is none.
    gc.freeze()
    report = measure(args, problems, torch)
    write_json(args, report)
    print("\n".join(table(report)), flush=True)
    return 0 if all(problem["times"][OURS] and not problem["errors"].get(OURS) for problem in report["problems"]) else 1


if __name__ == "__main__":
    sys.exit(main())
