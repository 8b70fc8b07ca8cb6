"""Ferroflash's side of torch_sdpa.py: `ferroflash bench --turns`, and what its report says."""

import contextlib
import json
import pathlib
import queue
import re
import subprocess
import tempfile
import threading

from torch_sdpa_report import OURS

# Seconds for a turn of ferroflash, and for its end: so many mean that it hangs.
CALL_LIMIT_S = 180
# What is kept of a row of the bench's report, where it has it.
KERNEL_FIELDS = (
    "entry", "source", "schedule", "splits", "is_fused", "ctas", "ctas_per_sm", "resident_ctas_per_sm", "waves", "workspace_bytes",
)  # fmt: skip


def bench_command(args, problems, report):
    """The call that times these problems, all of one dtype and mask."""
    command = [args.ferroflash, "bench", "--lse", "--replays", "--turns", "--reps", str(args.reps), "--json", str(report)]
    command += ["--warm-up", str(round(1000 * args.warm_up))]
    command += ["--dtype", problems[0].dtype, "--mask", "causal" if problems[0].causal else "full"]
    if args.ptx:
        command += ["--ptx", args.ptx]
    return command + ["--shape"] + [",".join(map(str, problem.shape)) for problem in problems]


class Turns:
    """A `ferroflash bench --turns`, which replays when it is told to.

    It says before each replay, and when a problem is done, `turn DONE of REPS: PROBLEM`, and goes on at a line. A problem that it cannot
    measure has no turns: the next line is of another."""

    def __init__(self, command):
        """`command` is the call for the report's path."""
        self.folder = tempfile.TemporaryDirectory()
        self.report = pathlib.Path(self.folder.name, "bench.json")
        self.errors = open(pathlib.Path(self.folder.name, "errors"), "w+", encoding="utf-8")
        self.at, self.process, self.said = None, None, None
        try:
            self.process = subprocess.Popen(
                command(self.report), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, encoding="utf-8",
            )  # fmt: skip
        except OSError as error:
            self.said = str(error)
            return
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        self.next_turn()

    def read(self):
        for line in self.process.stdout:
            found = re.fullmatch(r"turn (\d+) of (\d+): (.*)", line.rstrip("\n"))
            if found:
                self.lines.put((int(found[1]), int(found[2]), found[3]))
        self.lines.put(None)

    def next_turn(self):
        """Waits for the next turn; `at` is None from the end on."""
        try:
            self.at = self.lines.get(timeout=CALL_LIMIT_S)
        except queue.Empty:
            self.said, self.at = "no turn came within %d s" % CALL_LIMIT_S, None
            self.process.kill()

    def go_on(self):
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        self.next_turn()

    def turn(self, problem):
        """A replay, where the problem has one left."""
        if self.at and self.at[2] == problem.title() and self.at[0] < self.at[1]:
            self.go_on()

    def end(self, problem):
        """What is left of the problem's replays."""
        while self.at and self.at[2] == problem.title():
            self.go_on()

    def finish(self):
        """Waits for the end. Returns the report, or nothing; `said` is then why."""
        if self.process:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
            try:
                self.process.wait(CALL_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                self.said = "it did not end within %d s" % CALL_LIMIT_S
            self.errors.seek(0)
            self.said = self.said or self.errors.read().strip()
        text = self.report.read_text() if self.report.exists() else None
        self.errors.close()
        self.folder.cleanup()
        return text


class Ferroflash(Turns):
    """The forward pass of some problems, all of one dtype and mask. Whatever becomes of it, PyTorch is timed."""

    def __init__(self, args, problems):
        super().__init__(lambda report: bench_command(args, problems, report))

    def close(self, problems, collected):
        """Waits for the end; adds one round to each problem. Returns what the report says of the device."""
        text = self.finish()
        if not text:
            for problem in problems:
                collected[problem].errors[OURS] = (self.said.splitlines() or ["no report"])[-1]
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
        kept = {key: row[key] for key in KERNEL_FIELDS if row.get(key) is not None}
        into.kernel = {key: round(value, 3) if isinstance(value, float) else value for key, value in kept.items()}
        into.kernel.setdefault("schedule", schedule_of(row["entry"]))
        if row.get("sm_clock_mhz"):
            into.clocks_mhz.append(row["sm_clock_mhz"])
    # The one copy bandwidth in the file is that of copy_rates, which is the best of several kinds.
    device = {key: value for key, value in report["device"].items() if key != "copy_gbytes_per_s"}
    return {
        "version": report.get("version"),
        "commit": report.get("commit"),
        "device": device,
        "device_compiler": report.get("kernels", {}).get("device_compiler"),
    }


def schedule_of(entry):
    """The schedule that a kernel's name ends with; where it names none, a CTA computes one tile."""
    return next((name for name in ("persistent", "split") if entry.endswith("_" + name)), "grid")
