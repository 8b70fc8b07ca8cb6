#!/usr/bin/env python3
"""The Python package on a GPU: values, transformers' models, host and device times, memory, threads, forks, bad input.

Prints one line a check, `ok` or `FAILED` with its figures, and goes on after a failure. The package must be importable: `pip install
--target FOLDER ferroflash-*.whl` and PYTHONPATH=FOLDER is enough. No compiler is needed."""

import argparse
import json
import os
import pathlib
import sys
import time
import traceback
from unittest import SkipTest

# Before torch: uninitialised memory is filled with NaN where a check asks for deterministic algorithms, which asks cuBLAS for this.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, str(pathlib.Path(__file__).parent))

EPILOG = """examples:
  # all checks on GPU 0, device times against the command's, and the prebuilt examples of other languages
  PYTHONPATH=site python3 benches/bindings_on_gpu.py --ferroflash ./ferroflash --programs ./programs --json out.json
  # the checks of values on the CPU, which tests this script where there is no GPU
  PYTHONPATH=site python3 benches/bindings_on_gpu.py --device cpu --only values,gradients,models

exit code: 0 when every check passed, 1 when one failed or a figure missed its bar, 2 for misuse."""


class Run:
    """What the checks share: the device, the paths, and what was found."""

    def __init__(self, args):
        self.args, self.device, self.results, self.begun = args, args.device, [], time.monotonic()

    @property
    def is_gpu(self):
        return self.device == "cuda"

    def check(self, name, function):
        """Runs one check; its result is a text of figures, or a dict with one under "text"."""
        begun = time.monotonic()
        try:
            found = function()
            verdict = "ok"
        except SkipTest as reason:
            verdict, found = "skipped", str(reason)
        except Exception as error:
            verdict, found = "FAILED", f"{type(error).__name__}: {error}"[:600]
            if not isinstance(error, AssertionError):
                traceback.print_exc()
        seconds = time.monotonic() - begun
        figures = found if isinstance(found, dict) else {"text": found or ""}
        print(f"{verdict:7s} {name}: {figures['text']} ({seconds:.1f} s)", flush=True)
        self.results.append({"check": name, "verdict": verdict, "seconds": round(seconds, 2), **figures})


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ferroflash", metavar="FILE", help="the command, whose device times are compared")
    parser.add_argument("--ptx", metavar="FOLDER", help="compiled kernels for the command and the programs, where none are inside these")
    parser.add_argument("--programs", metavar="FOLDER", help="prebuilt programs of other languages, each run without arguments")
    parser.add_argument("--only", metavar="GROUPS", help="some of: values, gradients, models, times, process, programs")
    parser.add_argument("--calls", type=int, default=100_000, help="calls of the test for leaks [100000]")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()

    import bindings_gradients
    import bindings_models
    import bindings_process
    import bindings_programs
    import bindings_times
    import bindings_values

    groups = {
        "values": bindings_values, "gradients": bindings_gradients, "times": bindings_times, "process": bindings_process,
        "models": bindings_models, "programs": bindings_programs,
    }
    names = args.only.split(",") if args.only else list(groups)
    if unknown := set(names) - set(groups):
        parser.error(f"no group is called {', '.join(sorted(unknown))}: {', '.join(groups)}")
    run = Run(args)
    for name in names:
        for title, function in groups[name].checks(run):
            run.check(f"{name}/{title}", function)
    report = {"about": about(run), "seconds": round(time.monotonic() - run.begun, 1), "results": run.results}
    text = json.dumps(report, indent=1)
    if args.json:
        pathlib.Path(args.json).write_text(text + "\n")
    print(json.dumps(report))
    failed = [result["check"] for result in run.results if result["verdict"] == "FAILED"]
    skipped = [result["check"] for result in run.results if result["verdict"] == "skipped"]
    print(f"{len(run.results) - len(failed) - len(skipped)} ok, {len(failed)} FAILED {failed}, {len(skipped)} skipped {skipped}")
    sys.exit(1 if failed else 0)


def about(run):
    import ferroflash
    import torch

    found = {"ferroflash": ferroflash.__version__, "torch": torch.__version__, "python": sys.version.split()[0], "device": run.device}
    if run.is_gpu:
        found["device"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
    return found


if __name__ == "__main__":
    main()
