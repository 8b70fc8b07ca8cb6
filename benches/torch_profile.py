#!/usr/bin/env python3
"""What PyTorch's profiler sees of a launch of one of Ferroflash's kernels: a timeline needs none of the permissions that counters do.

Runs the only kernel of the folder that FERROFLASH_PTX names through the Python package, and prints one JSON object with what the trace
says of each kernel. Ends with 1, and says why, where PyTorch, its GPU or the package is not there.
"""

import argparse
import json
import pathlib
import sys
import tempfile

LAUNCHES = 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", required=True, help="batch, query heads, KV heads, queries, keys, head_dim")
    parser.add_argument("--dtype", choices=["f16", "bf16"], required=True)
    parser.add_argument("--mask", choices=["full", "causal"], required=True)
    return parser.parse_args()


def kernels_of(trace):
    """By name: launches, mean µs, and what the launch was given."""
    found = {}
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            found.setdefault(event["name"], []).append(event)
    return [
        {"name": name, "launches": len(events), "us": sum(event["dur"] for event in events) / len(events), **events[0].get("args", {})}
        for name, events in found.items()
    ]


def main():
    args = arguments()
    try:
        import torch
        from torch.profiler import ProfilerActivity, profile

        from ferroflash import flash_attn_func
    except ImportError as error:
        sys.exit(f"{error}")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device")
    batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim = map(int, args.shape.split(","))
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[args.dtype]
    random = torch.Generator("cuda").manual_seed(1)
    sizes = [(seqlen_q, heads_q), (seqlen_k, heads_kv), (seqlen_k, heads_kv)]
    q, k, v = (torch.randn(batch, rows, heads, head_dim, device="cuda", generator=random).to(dtype) for rows, heads in sizes)

    def launch():
        return flash_attn_func(q, k, v, causal=args.mask == "causal")

    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        launch()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(LAUNCHES):
                launch()
            torch.cuda.synchronize()
        path = pathlib.Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    print(json.dumps({"device": torch.cuda.get_device_name(), "kernels": kernels_of(trace)}))


if __name__ == "__main__":
    main()
