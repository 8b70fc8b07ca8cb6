"""Attention over ranks that are processes on gloo, against one process: odd lengths, GQA, masks, types."""

import os
import tempfile

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
import torch.multiprocessing as mp

from ferroflash import flash_attn_func, flash_attn_with_kvcache
from ferroflash.distributed import (
    allgather_attention,
    chunks,
    ring_attention,
    shard,
    split_cache_decode,
    ulysses_attention,
    unshard,
)

METHODS = {"allgather": allgather_attention, "ring": ring_attention, "ulysses": ulysses_attention}


def qkv(length, heads, dtype):
    torch.manual_seed(length)
    return [torch.randn(2, length, count, 32, dtype=dtype) for count in (heads[0], heads[1], heads[1])]


def one_rank(rank, world, file, results):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    found = {}
    for length, heads, dtype in [(37, (4, 2), torch.float32), (64, (4, 4), torch.bfloat16), (3, (4, 1), torch.float32)]:
        whole = qkv(length, heads, dtype)
        own = [shard(x) for x in whole]
        for name, method in METHODS.items():
            if name == "ulysses" and world == 3:
                continue
            for options in [dict(), dict(causal=True), dict(causal=True, window_size=(5, 0))]:
                if name == "ring" and "window_size" in options:
                    continue
                o, lse, _ = method(*own, return_attn_probs=True, length=length, **options)
                o, lse = unshard(o, length), unshard(lse, length, dim=2)
                expected, expected_lse, _ = flash_attn_func(*whole, return_attn_probs=True, **options)
                bound = 1e-5 if dtype == torch.float32 else 3e-2
                torch.testing.assert_close(o, expected, atol=bound, rtol=bound)
                torch.testing.assert_close(lse, expected_lse, atol=1e-4, rtol=1e-4)
                found[name, length, str(options)] = True
    q, k, v = qkv(41, (4, 2), torch.float32)
    q = q[:, :1].contiguous()
    share = -(-41 // world)
    k_own, v_own = (torch.nn.functional.pad(x[:, rank * share : (rank + 1) * share], (0, 0, 0, 0, 0, share))[:, :share] for x in (k, v))
    keys = torch.full((2,), min(max(41 - rank * share, 0), share), dtype=torch.int32)
    o, lse = split_cache_decode(q, k_own.contiguous(), v_own.contiguous(), cache_seqlens=keys, return_softmax_lse=True)
    expected, expected_lse = flash_attn_with_kvcache(q, k, v, return_softmax_lse=True)
    torch.testing.assert_close(o, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, expected_lse, atol=1e-5, rtol=1e-5)
    found["decode"] = True
    with pytest.raises(NotImplementedError, match="allgather_attention takes windows"):
        ring_attention(q, k, v, window_size=(3, 0))
    sloped = dict(return_attn_probs=True, alibi_slopes=torch.tensor([0.5, 0.1, 0.3, 0.0]))
    whole = qkv(37, (4, 2), torch.float32)
    own = [shard(x) for x in whole]
    o, *_ = allgather_attention(*own, length=37, causal=True, **sloped)
    torch.testing.assert_close(unshard(o, 37), flash_attn_func(*whole, causal=True, **sloped)[0], atol=1e-5, rtol=1e-5)
    if world > 1:
        # Before anything is sent, so that no rank waits.
        with pytest.raises(NotImplementedError, match="alibi_slopes"):
            allgather_attention(*own, length=37, **sloped)
    with pytest.raises(ValueError, match="give length"):
        allgather_attention(q[:, :0], k, v, length=41)
    results.put((rank, len(found)))
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_compute_what_one_process_does(world):
    context = mp.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(one_rank, (world, os.path.join(folder, "store"), results), nprocs=world)
    counts = dict(results.get(timeout=10) for _ in range(world))
    # Three lengths: three masks gathered, two in the ring, three by heads where they divide; and decoding.
    assert counts == {rank: (16 if world == 3 else 25) for rank in range(world)}


def test_chunks_cover_any_length():
    for length in (1, 5, 37, 4096, 100_003):
        for world in (1, 2, 3, 8):
            cut = chunks(length, world)
            assert cut[0][0] == 0 and cut[-1][1] == length and len(cut) == 2 * world
            assert all(before[1] == after[0] for before, after in zip(cut, cut[1:]))
