"""The links between GPUs, and PyTorch's context parallelism over them: what benches/over_nccl.sh compares with.

    torchrun --nproc-per-node 2 benches/context_parallel.py --shape 1,32,8,16384,128 --out peer.json

Of each shape (batch, heads, KV heads, tokens, head_dim; bf16) every back end that PyTorch splits is timed with every way of rotating keys,
calls back to back between events; a call takes as long as on the slowest rank. What PyTorch refuses is kept with its words.
"""

import argparse
import json
import os
import statistics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
LEAST_US = 20_000.0


def slowest(value):
    """The largest of all ranks' values."""
    tensor = torch.tensor([float(value)], device="cuda")
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.item()


def time_us(call, rounds=7):
    """Medians of rounds of calls back to back, on the slowest rank, after an untimed one."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def once(count):
        call()
        events[0].record()
        for _ in range(count):
            call()
        events[1].record()
        torch.cuda.synchronize()
        return events[0].elapsed_time(events[1]) * 1e3 / count

    for _ in range(2):
        call()
    count = int(min(max(LEAST_US / slowest(once(1)), 2), 64))
    rounds = max(3, rounds) if count > 2 else 3
    return statistics.median(slowest(once(count)) for _ in range(rounds))


def links(rank, world):
    """GB/s a direction: copies between neighbours' memory, all-gather, and sending and receiving at once."""
    found = []
    peer, before = (rank + 1) % world, (rank - 1) % world
    for megabytes in (1, 4, 16, 64, 256, 512):
        size = megabytes * 1_000_000
        own = torch.ones(size, dtype=torch.uint8, device="cuda")
        other = torch.empty_like(own)
        gathered = torch.empty(size * world, dtype=torch.uint8, device="cuda")

        def pass_on():
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, own, peer), dist.P2POp(dist.irecv, other, before)]):
                work.wait()

        row = {"megabytes": megabytes}
        row["all_gather_us"] = time_us(lambda: dist.all_gather_into_tensor(gathered, own))
        row["send_receive_us"] = time_us(pass_on)
        row["all_gather_gb_s"] = size * (world - 1) / row["all_gather_us"] / 1e3
        row["send_receive_gb_s"] = size / row["send_receive_us"] / 1e3
        if rank == 0:
            far = torch.empty(size, dtype=torch.uint8, device=f"cuda:{peer}")
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            far.copy_(own)
            events[0].record()
            for _ in range(10):
                far.copy_(own)
            events[1].record()
            torch.cuda.synchronize()
            row["peer_copy_gb_s"] = size * 10 / events[0].elapsed_time(events[1]) / 1e6
        dist.barrier()
        found.append(row)
    return found


def context_parallel(mesh, shape, causal, backend, rotation, expand):
    """Microseconds of scaled_dot_product_attention within PyTorch's context_parallel."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import _cp_options, set_rotate_method

    set_rotate_method(rotation)
    # PyTorch's zigzag is for the causal mask alone.
    _cp_options.enable_load_balance = causal
    batch, heads, heads_kv, tokens, head_dim = shape
    generator = torch.Generator("cuda").manual_seed(7)

    def tensor(heads):
        return torch.randn(batch, heads, tokens, head_dim, dtype=torch.bfloat16, device="cuda", generator=generator)

    q, k, v = tensor(heads), tensor(heads_kv), tensor(heads_kv)
    if expand:
        k, v = (x.repeat_interleave(heads // heads_kv, 1) for x in (k, v))
    gqa = k.shape[1] != heads
    with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]), sdpa_kernel(backend), torch.no_grad():
        return time_us(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa))


def one_gpu(shape, causal, backend):
    batch, heads, heads_kv, tokens, head_dim = shape
    q, k, v = (torch.randn(batch, h, tokens, head_dim, dtype=torch.bfloat16, device="cuda") for h in (heads, heads_kv, heads_kv))
    with sdpa_kernel(backend), torch.no_grad():
        return time_us(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != heads_kv))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=["1,32,8,16384,128"], help="batch, heads, KV heads, tokens, head_dim")
    parser.add_argument("--out", required=True, help="the file of results")
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cuda", (world,))

    def say(text):
        if rank == 0:
            print(text, flush=True)

    report = {
        "device": torch.cuda.get_device_name(),
        "world": world,
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "can_access_peer": torch.cuda.can_device_access_peer(0, 1) if world > 1 else None,
        "links": links(rank, world),
        "attention": [],
    }
    for row in report["links"]:
        say("  ".join(f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()))
    for text in args.shape:
        shape = tuple(map(int, text.split(",")))
        for causal in (True, False):
            for name, backend in BACKENDS.items():
                row = {"shape": text, "causal": causal, "backend": name}
                try:
                    row["one_gpu_us"] = one_gpu(shape, causal, backend)
                except Exception as error:
                    row["one_gpu_refused"] = str(error).splitlines()[0][:200]
                for rotation in ("allgather", "alltoall"):
                    for expand in (False, True) if shape[1] != shape[2] else (False,):
                        key = f"{rotation}{'_expanded' if expand else ''}"
                        try:
                            row[f"{key}_us"] = context_parallel(mesh, shape, causal, backend, rotation, expand)
                        except Exception as error:
                            row[f"{key}_refused"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                        torch.cuda.empty_cache()
                report["attention"].append(row)
                say("  ".join(f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()))
                if rank == 0:
                    with open(args.out, "w") as file:
                        json.dump(report, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
