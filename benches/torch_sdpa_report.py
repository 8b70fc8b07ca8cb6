"""What torch_sdpa.py reports: statistics of a problem's rounds, versions and clocks, the file and the table for people."""

import json
import math
import subprocess

from torch_sdpa_problems import (
    BACK_ENDS, CLASSES, COPY, DTYPES, LENGTHS, MEANS, P90, Problem, bytes_moved, class_of, of_length, target_text, visible_flops,
)  # fmt: skip

OURS = "ferroflash"


# Statistics.


def percentile(times, share):
    """The value at this share of the sorted times, as `ferroflash bench` takes it."""
    return sorted(times)[int(share * (len(times) - 1) + 0.5)]


def timing(rounds, keep_replays=False):
    """Pools the replays of all rounds, by their numbers; None where there are none."""
    pooled = [time_us for times in rounds.values() for time_us in times]
    if not pooled:
        return None
    summary = {
        "median_us": round(percentile(pooled, 0.5), 3),
        "p10_us": round(percentile(pooled, 0.1), 3),
        "p90_us": round(percentile(pooled, 0.9), 3),
        "replays": len(pooled),
        "round_medians_us": [round(percentile(times, 0.5), 3) for times in rounds.values() if times],
    }
    if keep_replays:
        summary["times_us"] = [round(time_us, 3) for time_us in pooled]
    return summary


def ratios(rounds):
    """How many times as long as Ferroflash each of the others takes, by medians and by 90th percentiles: of the rounds in which both were
    timed, as who takes turns with nobody has lower clocks."""
    found = {}
    for name in rounds:
        both = rounds[name].keys() & rounds[OURS].keys()
        ours, theirs = (timing({number: rounds[of][number] for number in both}) for of in (OURS, name))
        if name != OURS and ours:
            found[name] = {
                "median": round(theirs["median_us"] / ours["median_us"], 4),
                "p90": round(theirs["p90_us"] / ours["p90_us"], 4),
            }
    return found


def reached(name, relative, shares):
    """What Ferroflash reached of a target's name; None where that was not measured."""
    if name == COPY:
        return shares.get(OURS)
    back_end = name.removesuffix(P90)
    return relative.get(back_end, {}).get("p90" if name.endswith(P90) else "median")


class Collected:
    """What was measured of one problem, over all rounds."""

    def __init__(self):
        self.round = 0
        self.rounds = {name: {} for name in (OURS,) + BACK_ENDS}
        self.errors = {}
        self.kernel = None
        self.clocks_mhz = []
        self.default_picks = None

    def add(self, name, times_us):
        """Adds the replays of the current round."""
        self.rounds.setdefault(name, {})[self.round] = list(times_us)

    def as_json(self, problem, copy_gbytes_per_s=None, keep_replays=False):
        timings = {name: timing(rounds, keep_replays) for name, rounds in self.rounds.items()}
        relative = ratios(self.rounds)
        medians_us = {name: t["median_us"] for name, t in timings.items() if t}
        flops, moved = visible_flops(problem), bytes_moved(problem)
        shares = {}
        # Of other problems the cache and the products say more than the memory.
        if problem.is_decode() and copy_gbytes_per_s:
            shares = {name: round(moved / us / 1e3 / copy_gbytes_per_s, 4) for name, us in medians_us.items()}
        targets = []
        for name, least in problem.targets:
            value = reached(name, relative, shares)
            met = value is not None and value >= least
            targets.append({"relative_to": name, "least": least, "reached": value, "met": met})
        return {
            "shape": list(problem.shape),
            "dtype": problem.dtype,
            "causal": problem.causal,
            "flops": flops,
            "bytes": moved,
            "kernel": self.kernel,
            "sm_clock_mhz": int(percentile(self.clocks_mhz, 0.5)) if self.clocks_mhz else None,
            "default_picks": self.default_picks,
            "times": timings,
            "tflops": {name: round(flops / us / 1e6, 2) for name, us in medians_us.items()},
            "gbytes_per_s": {name: round(moved / us / 1e3, 1) for name, us in medians_us.items()},
            "share_of_copy": shares,
            "speed_relative_to": relative,
            "targets": targets,
            "errors": self.errors,
        }


def best_peer(line):
    """How many times as long the fastest of the others takes; None where none was measured."""
    relative = [found["median"] for found in line["speed_relative_to"].values()]
    return min(relative) if relative else None


def by_class(problems):
    """Of random problems: how they compare with the fastest of the others, by class and in all."""
    found = []
    for kind in CLASSES + ("all",):
        kinds = [class_of(Problem(tuple(line["shape"]), line["dtype"], line["causal"])) for line in problems]
        of_kind = [(best_peer(line), line) for line, of in zip(problems, kinds) if kind in (of, "all") and best_peer(line)]
        if not of_kind:
            continue
        values = sorted(value for value, _ in of_kind)
        below = {"%.2f" % limit: round(sum(value < limit for value in values) / len(values), 4) for limit in (0.9, 0.97, 1.0)}
        worst = min(of_kind, key=lambda pair: pair[0])[1]
        found.append({
            "class": kind,
            "problems": len(values),
            "geometric_mean": round(math.exp(sum(map(math.log, values)) / len(values)), 4),
            "least": values[0],
            "share_below": below,
            "worst": {key: worst[key] for key in ("shape", "dtype", "causal")},
        })
    return found


def class_lines(report):
    """by_class for people, and the problems that are furthest behind."""
    for found in report["by_class"]:
        below = ", ".join("%.1f %% below %s" % (100 * share, limit) for limit, share in found["share_below"].items())
        yield "%-8s %4d problems: geometric mean %.3f x the best of the others, least %.3f; %s" % (
            found["class"], found["problems"], found["geometric_mean"], found["least"], below,
        )  # fmt: skip
    behind = sorted((line for line in report["problems"] if (best_peer(line) or 1) < 1), key=best_peer)
    for line in behind[:25]:
        shape = ",".join(map(str, line["shape"]))
        times = ", ".join("%s %.1f" % (name, t["median_us"]) for name, t in line["times"].items() if t)
        kernel = line["kernel"] or {}
        yield "  %.3f %s %s %s: %s us; %s, splits %s" % (
            best_peer(line), shape, line["dtype"], "causal" if line["causal"] else "full", times, kernel.get("entry"), kernel.get("splits"),
        )  # fmt: skip


def means(problems):
    """The geometric means of MEANS, of those dtypes and masks whose every length was to be measured; None where one was not."""
    found = []
    for head_dim, least in MEANS.items():
        shapes = [list(of_length(seqlen, head_dim)) for seqlen in LENGTHS]
        for dtype in DTYPES:
            for causal in (False, True):
                ratios = [
                    problem["speed_relative_to"].get("default", {}).get("median")
                    for problem in problems
                    if problem["shape"] in shapes and problem["dtype"] == dtype and problem["causal"] == causal
                ]
                if len(ratios) < len(shapes):
                    continue
                value = round(math.prod(ratios) ** (1 / len(ratios)), 4) if all(ratios) else None
                found.append({
                    "head_dim": head_dim, "dtype": dtype, "causal": causal, "relative_to": "default", "least": least,
                    "reached": value, "met": value is not None and value >= least,
                })  # fmt: skip
    return found


def copy_bandwidth(rounds, errors, method):
    """The best rate of all rounds, and of which kind of copy it is. `rounds` are GB/s by kind."""
    rates = [(rate, kind) for kinds in rounds for kind, rate in kinds.items()]
    best, kind = max(rates, default=(None, None))
    rounded = [{kind: round(rate, 1) for kind, rate in kinds.items()} for kinds in rounds]
    best = best if best is None else round(best, 1)
    return {"gbytes_per_s": best, "kind": kind, "method": method, "rounds": rounded, "errors": errors}


# What it depends on.


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
        names = ("sm_mhz", "sm_max_mhz", "memory_mhz", "power_w", "power_limit_w", "celsius")
        return dict(zip(names, map(number_in, answer[0].split(","))))
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def number_in(text):
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return None


# What comes out.


def to_text(report):
    """JSON with one problem a line."""
    head = {key: value for key, value in report.items() if key != "problems"}
    lines = [json.dumps(problem) for problem in report["problems"]]
    text = json.dumps(head, indent=2)[: -len("\n}")]
    return text + ',\n  "problems": [\n    ' + ",\n    ".join(lines) + "\n  ]\n}\n"


def title(problem):
    return "%s %s %s" % (",".join(map(str, problem["shape"])), problem["dtype"], "causal" if problem["causal"] else "full")


def table(report):
    """The table for people, as lines."""
    device, torch, copy = report["device"], report["torch"], report["copy_bandwidth"]
    bandwidth = "%.0f GB/s by %s" % (copy["gbytes_per_s"], copy["kind"]) if copy["gbytes_per_s"] else "not measured"
    lines = [
        "%s, driver %s, PyTorch %s, cuDNN %s, %s, commit %s, %d rounds of %d replays"
        % (device["name"], device.get("driver"), torch["version"], torch["cudnn"], report["date"], report["commit"],
           report["method"]["rounds"], report["method"]["replays_per_round"]),
        "copy bandwidth: " + bandwidth,
        "",
        "%-40s %10s %21s %7s %7s %7s %10s %17s %8s %9s %8s  %s"
        % ("B,HQ,HKV,SQ,SKV,D", "ours us", "p10 to p90", "TFLOP/s", "GB/s", "of copy", "flash us", "default us",
           "x flash", "x default", "by p90", "kernel; targets"),
    ]  # fmt: skip
    for problem in report["problems"]:
        lines.append(table_line(problem))
        lines += ["    %s: %s" % item for item in problem["errors"].items()]
    for mean in report.get("means", []):
        lines.append("mean over the lengths, head_dim %(head_dim)d %(dtype)s causal %(causal)s: %(reached)s x default" % mean)
    targets = [(title(problem), target) for problem in report["problems"] for target in problem["targets"]]
    targets += [("mean of head_dim %(head_dim)d %(dtype)s causal %(causal)s" % mean, mean) for mean in report.get("means", [])]
    missed = [(name, target) for name, target in targets if not target["met"]]
    lines += ["", "%d of %d targets met" % (len(targets) - len(missed), len(targets))]
    for name, target in missed:
        value = "not measured" if target["reached"] is None else "%.3f" % target["reached"]
        lines.append("  missed: %s: %s, %s" % (name, target_text(target["relative_to"], target["least"]), value))
    return lines


def table_line(problem):
    times, relative = problem["times"], problem["speed_relative_to"]

    def us(name):
        return "%.2f" % times[name]["median_us"] if times[name] else "-"

    def ratio(name, which):
        return "%.3f" % relative[name][which] if name in relative else "-"

    def of_ours(key, form):
        return form % problem[key][OURS] if OURS in problem[key] else "-"

    ours = times[OURS]
    spread = "%.2f to %.2f" % (ours["p10_us"], ours["p90_us"]) if ours else "-"
    default = " ".join(filter(None, (us("default"), problem["default_picks"])))
    targets = [(target_text(t["relative_to"], t["least"]), "met" if t["met"] else "MISSED") for t in problem["targets"]]
    verdicts = ["%s %s" % target for target in targets]
    return "%-40s %10s %21s %7s %7s %7s %10s %17s %8s %9s %8s  %s" % (
        title(problem), us(OURS), spread, of_ours("tflops", "%.1f"), of_ours("gbytes_per_s", "%.0f"),
        of_ours("share_of_copy", "%.3f"), us("flash"), default, ratio("flash", "median"), ratio("default", "median"),
        ratio("default", "p90"), "; ".join([kernel_text(problem["kernel"])] + verdicts),
    )  # fmt: skip


def kernel_text(kernel):
    """The kernel's name, its CTAs, and how they share the work where that is not one tile each."""
    if not kernel:
        return "-"
    words = [kernel["entry"]]
    if "ctas" in kernel:
        words.append("%d CTAs (%.2f/SM)" % (kernel["ctas"], kernel.get("ctas_per_sm", float("nan"))))
    schedule = kernel.get("schedule", "grid")
    if schedule == "split":
        words.append("split %d" % kernel.get("splits", 1))
    elif schedule != "grid":
        words.append(schedule)
    return " ".join(words)
