"""Attention over a sequence that is split among processes, against one process. On GPUs over NCCL, else on CPUs over gloo:

    torchrun --nproc-per-node 2 examples/torchrun.py
"""

import os
import time

import torch
import torch.distributed as dist

from ferroflash import flash_attn_func
from ferroflash.distributed import allgather_attention, ring_attention, shard, ulysses_attention, unshard

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()

# Every rank makes the same whole, so that results can be compared; in a model each has its own rows alone.
length = 16384 if on_gpu else 301
torch.manual_seed(0)
whole = [torch.randn(1, length, heads, 64, device=device, dtype=torch.bfloat16) for heads in (8, 4, 4)]
q, k, v = (shard(x) for x in whole)
expected = flash_attn_func(*whole, causal=True)

for attention in (allgather_attention, ring_attention, ulysses_attention):
    if attention is ulysses_attention and 4 % world and world % 4:
        continue
    attention(q, k, v, causal=True, length=length)
    dist.barrier()
    start = time.perf_counter()
    o = attention(q, k, v, causal=True, length=length)
    if on_gpu:
        torch.cuda.synchronize()
    milliseconds = (time.perf_counter() - start) * 1e3
    apart = (unshard(o, length).float() - expected.float()).abs().max().item()
    if rank == 0:
        print(f"{attention.__name__}: {q.shape[1]} of {length} rows on rank 0 of {world}, {milliseconds:.1f} ms, {apart:.1e} from one process")
    assert apart < 2e-2, apart

dist.destroy_process_group()
