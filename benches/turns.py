#!/usr/bin/env python3
"""Several `ferroflash bench` commands in turns, replay by replay, so that all commands of a line have the same clocks.

Reads lines `label: OPTIONS | OPTIONS | …`: each OPTIONS are those of `ferroflash bench` for one problem. Prints the fastest kernel of
each, and how many times as fast it is as the first of its line. Lines that begin with # are left out."""

import argparse
import json
import pathlib
import shlex
import sys

from torch_sdpa_ferroflash import Turns

EPILOG = """examples:
  python3 benches/turns.py --ferroflash ./ferroflash --ptx ptx benches/turns/ragged.txt
  echo 'window: --shape 2,16,16,8192,8192,128 --mask causal | --shape 2,16,16,8192,8192,128 --mask causal --window 1023,0' \\
    | python3 benches/turns.py --ferroflash ./ferroflash -

exit code: 0 when every command was timed, 1 when one failed, 2 for misuse."""


def bench(args, options):
    """A call of the bench with these options, which waits for its turns."""
    command = [args.ferroflash, "bench", "--turns", "--reps", str(args.reps), *shlex.split(options)]
    if args.ptx and "--ptx" not in options:
        command += ["--ptx", args.ptx]
    return Turns(lambda report: [*command, "--json", str(report)])


def fastest(report):
    """Median in microseconds, kernels and workspace of the fastest row of a report, and the row's place for errors."""
    rows = [row.get("measured", row) for result in json.loads(report)["results"] for row in result.get("rows", [result])]
    timed = [row for row in rows if row["timing"]]
    if not timed:
        return None, "wrong output: %s" % json.dumps([row["check"] for row in rows])
    row = min(timed, key=lambda row: row["timing"]["median_us"])
    kernels = row["entries"] if "entries" in row else [row["entry"]]
    return row["timing"], ", ".join(kernels) + (" in %d splits" % row["splits"] if row.get("splits", 1) > 1 else "")


def timed(line, args):
    """What became of each command of a line."""
    label, _, rest = line.partition(":")
    commands = [(options.strip(), bench(args, options)) for options in rest.split("|")]
    while any(turns.at for _, turns in commands):
        for _, turns in commands:
            if turns.at:
                turns.go_on()
    found = []
    for options, turns in commands:
        report = turns.finish()
        timing, what = fastest(report) if report else (None, ((turns.said or "").splitlines() or ["no report"])[-1])
        found.append({"options": options, "timing": timing, "kernels" if timing else "error": what})
    return {"label": label.strip(), "commands": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", help="the file of lines, - for standard input")
    parser.add_argument("--ferroflash", default="target/release/ferroflash", help="the command [default: %(default)s]")
    parser.add_argument("--ptx", help="folder of compiled kernels, for all commands that name none")
    parser.add_argument("--reps", type=int, default=11, help="replays of each [default: %(default)s]")
    parser.add_argument("--json", type=pathlib.Path, help="write everything to this file too")
    args = parser.parse_args()
    text = sys.stdin.read() if args.lines == "-" else pathlib.Path(args.lines).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if any(":" not in line for line in lines):
        parser.error("each line needs a label and a colon")
    everything = []
    for line in lines:
        found = timed(line, args)
        everything.append(found)
        print("== " + found["label"], flush=True)
        first = found["commands"][0]["timing"]
        for command in found["commands"]:
            if command["timing"] is None:
                print("  FAILED  %s: %s" % (command["options"], command["error"]), flush=True)
                continue
            us = command["timing"]["median_us"]
            share = "%.3f" % (first["median_us"] / us) if first else "–"
            print("  %10.2f µs %6s  %s  (%s)" % (us, share, command["options"], command["kernels"]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(everything, indent=1), encoding="utf-8")
    sys.exit(any(command["timing"] is None for found in everything for command in found["commands"]))


if __name__ == "__main__":
    main()
