"""Memory, threads, forks and bad input of the Python package, for bindings_on_gpu.py."""

import gc
import os
import pathlib
import subprocess
import sys
import threading
from unittest import SkipTest

# Growth of the process that passes, after the first tenth of the calls: ten bytes a call.
GROWTH_BYTES_A_CALL = 10
CHILD_LIMIT_S = 60


def checks(run):
    import torch

    process = Process(run, torch)
    return [
        ("no leak", process.leak),
        ("two threads on two streams", process.threads),
        ("bad input", process.bad_input),
        ("fork after import", process.fork_after_import),
        ("fork after use", process.fork_after_use),
    ]


def resident_bytes():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Process:
    """The checks, on one device."""

    def __init__(self, run, torch):
        self.run, self.torch = run, torch

    def tensors(self, seqlen=64, seed=0):
        generator = self.torch.Generator(self.run.device).manual_seed(seed)
        shape = (1, seqlen, 4, 64)
        return [self.torch.randn(shape, generator=generator, device=self.run.device).to(self.torch.bfloat16) for _ in range(3)]

    def synchronize(self):
        if self.run.is_gpu:
            self.torch.cuda.synchronize()

    def leak(self):
        """Calls of all functions by turns, of a few lengths, so that plans, workspaces and modules are used again."""
        from ferroflash import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache, merge_states

        torch, calls = self.torch, self.run.args.calls
        q, k, v = self.tensors(64)
        cache_k, cache_v = (torch.zeros(1, 4096, 4, 64, device=q.device, dtype=q.dtype) for _ in range(2))
        used = torch.full((1,), 3, dtype=torch.int32, device=q.device)
        ends = torch.tensor([0, 20, 64], dtype=torch.int32, device=q.device)
        held = 4096 if self.run.is_gpu else 8

        def call(index):
            length = 1 + index % 7
            if index % 4 == 0:
                o, lse, _ = flash_attn_func(q[:, :length], k, v, causal=True, return_attn_probs=True)
                if index % 8 == 0:
                    merge_states(o, lse, o, lse)
            elif index % 4 == 1:
                flash_attn_varlen_func(q[0], k[0], v[0], ends, ends, 44, 44, causal=True)
            elif index % 4 == 2:
                flash_attn_with_kvcache(q[:, :1], cache_k[:, :held], cache_v[:, :held], k[:, :1], v[:, :1], cache_seqlens=used)
            else:
                flash_attn_func(q[:, :1], k[:, : 8 * length], v[:, : 8 * length])

        def some(first, count):
            for index in range(first, first + count):
                call(index)
                if index % 500 == 499:
                    self.synchronize()
            self.synchronize()
            gc.collect()

        with torch.no_grad():
            some(0, calls // 10)
            resident, allocated = resident_bytes(), self.allocated()
            some(calls // 10, calls - calls // 10)
        grown, grown_device = resident_bytes() - resident, self.allocated() - allocated
        text = f"{calls} calls: {grown / 1024:.0f} KB more in the process, {grown_device} bytes more of torch's memory"
        assert grown <= GROWTH_BYTES_A_CALL * calls and grown_device <= 0, text
        return text

    def allocated(self):
        return self.torch.cuda.memory_allocated() if self.run.is_gpu else 0

    def threads(self):
        from ferroflash import flash_attn_func, flash_attn_with_kvcache

        torch, wrong, errors = self.torch, [], []
        length = 4096 if self.run.is_gpu else 64
        inputs = [self.tensors(length, seed) for seed in range(2)]
        used = torch.full((1,), length - 5, dtype=torch.int32, device=self.run.device)
        with torch.no_grad():
            # Of few queries the keys are split, in a workspace of each stream.
            expected = [
                (flash_attn_func(q, k, v, causal=True), flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=used)) for q, k, v in inputs
            ]
        self.synchronize()

        def work(number):
            (q, k, v), (dense, decoded) = inputs[number], expected[number]
            try:
                with torch.no_grad():
                    for _ in range(300 if self.run.is_gpu else 5):
                        found = flash_attn_func(q, k, v, causal=True), flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=used)
                        wrong.append(not (torch.equal(found[0], dense) and torch.equal(found[1], decoded)))
            except Exception as error:
                errors.append(error)

        def on_a_stream(number):
            if not self.run.is_gpu:
                return work(number)
            with torch.cuda.stream(torch.cuda.Stream()):
                work(number)

        threads = [threading.Thread(target=on_a_stream, args=(number,)) for number in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.synchronize()
        assert not errors, errors[0]
        assert not any(wrong), f"{sum(wrong)} of {len(wrong)} results differ"
        return f"{len(wrong)} pairs of calls, every result bit for bit"

    def bad_input(self):
        """Each is refused with its values, and the calls after it are right."""
        from ferroflash import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

        torch = self.torch
        q, k, v = self.tensors()
        fine = flash_attn_func(q, k, v)
        int32 = lambda *numbers: torch.tensor(numbers, dtype=torch.int32, device=q.device)  # noqa: E731
        refused, wants_gradients = (ValueError, NotImplementedError, TypeError), torch.zeros(4, device=q.device, requires_grad=True)
        cases = {
            "k is float16": lambda: flash_attn_func(q, k.half(), v),
            "int16": lambda: flash_attn_func(q.short(), k.short(), v.short()),
            "alibi_slopes have no gradient": lambda: flash_attn_func(q, k, v, alibi_slopes=wants_gradients),
            "q has shape": lambda: flash_attn_func(q[0], k, v),
            "k has head_dim 32": lambda: flash_attn_func(q, k[..., :32].contiguous(), v[..., :32].contiguous()),
            "q has 3 heads, k 4": lambda: flash_attn_func(q[:, :, :3].contiguous(), k, v),
            "v has shape": lambda: flash_attn_func(q, k, v[:, :3]),
            "k has batch 2": lambda: flash_attn_func(q, k.repeat(2, 1, 1, 1), v.repeat(2, 1, 1, 1)),
            "dropout_p=1.0": lambda: flash_attn_func(q, k, v, dropout_p=1.0),
            "softcap": lambda: flash_attn_func(q, k, v, softcap=-1.0),
            "scale": lambda: flash_attn_func(q, k, v, softmax_scale=float("nan")),
            "alibi_slopes has shape": lambda: flash_attn_func(q, k, v, alibi_slopes=torch.zeros(3, device=q.device)),
            "sinks is float64": lambda: flash_attn_func(q, k, v, sinks=torch.zeros(4, device=q.device, dtype=torch.float64)),
            "cu_seqlens_q is int64": lambda: flash_attn_varlen_func(q[0], k[0], v[0], int32(0, 64).long(), int32(0, 64), 64, 64),
            "cu_seqlens_k has shape": lambda: flash_attn_varlen_func(q[0], k[0], v[0], int32(0, 64), int32(0, 9, 64), 64, 64),
            "cache_seqlens must be given": lambda: flash_attn_with_kvcache(q[:, :1], k, v, k[:, :1], v[:, :1]),
            "both or neither": lambda: flash_attn_with_kvcache(q[:, :1], k, v, k[:, :1]),
            "num_splits is -3": lambda: flash_attn_with_kvcache(q[:, :1], k, v, num_splits=-3),
            "is no tensor": lambda: flash_attn_func([1], k, v),
        }
        if self.run.is_gpu:
            cases |= {
                "k is on cpu": lambda: flash_attn_func(q, k.cpu(), v),
                "v is on cpu": lambda: flash_attn_func(q, k, v.cpu()),
                "cu_seqlens_q is on cpu": lambda: flash_attn_varlen_func(q[0], k[0], v[0], int32(0, 64).cpu(), int32(0, 64), 64, 64),
                "float32": lambda: flash_attn_func(q.float(), k.float(), v.float()),
                "multiple of": lambda: flash_attn_func(*(odd(torch, x) for x in (q, k, v))),
                "k is numpy's": lambda: flash_attn_func(q, k.float().cpu().numpy(), v),
            }
        wrong = []
        for message, call in cases.items():
            try:
                call()
                wrong.append(f"{message}: not refused")
            except refused as error:
                if message.split("'")[0] not in str(error) and message != "k is numpy's":
                    wrong.append(f"{message}: {type(error).__name__}: {error}")
            except Exception as error:
                wrong.append(f"{message}: {type(error).__name__}: {error}")
        # Tensors without memory are no bad input: shapes follow, and no driver is asked.
        shapes = flash_attn_func(q.to("meta"), k.to("meta"), v.to("meta"))
        assert shapes.is_meta and shapes.shape == fine.shape, f"of tensors without memory: {shapes}"
        assert self.torch.equal(flash_attn_func(q, k, v), fine), "a call after those that were refused is wrong"
        assert not wrong, "; ".join(wrong)
        return f"{len(cases)} wrong calls refused with their values"

    def fork_after_import(self):
        """A child of a process that has only imported the package computes, or says what a fork cannot do."""
        return self.child(
            "import os, sys, torch, ferroflash\n"
            "pid = os.fork()\n"
            "if pid:\n"
            "    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
            f"q = torch.ones(1, 8, 2, 64, dtype=torch.bfloat16, device={self.run.device!r})\n"
            "o = ferroflash.flash_attn_func(q, q, q)\n"
            "print('the child computed', o.float().mean().item(), flush=True)\n"
            "os._exit(0)\n",
            "the child computed 1.0",
        )

    def fork_after_use(self):
        """A child of a process that used the GPU is told so, and does not hang or crash."""
        if not self.run.is_gpu:
            raise SkipTest("there is no GPU")
        return self.child(
            "import os, sys, torch, ferroflash\n"
            "from ferroflash import _call, _devices, _tensors\n"
            "q = torch.ones(1, 8, 2, 64, dtype=torch.bfloat16, device='cuda')\n"
            "o = ferroflash.flash_attn_func(q, q, q)\n"
            "torch.cuda.synchronize()\n"
            "framework = _tensors.Torch(torch)\n"
            "args, place, *_ = _call.numbers(framework, _call.Call(q, q, q))\n"
            "args.o = args.q\n"
            "pid = os.fork()\n"
            "if pid:\n"
            "    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
            "for call in (lambda: ferroflash.flash_attn_func(q, q, q), lambda: _devices.device_at(place).forward(args, 0, True)):\n"
            "    try:\n"
            "        call()\n"
            "        print('computed in a fork', flush=True)\n"
            "        os._exit(3)\n"
            "    except Exception as error:\n"
            "        print(type(error).__name__, str(error).splitlines()[0], flush=True)\n"
            "os._exit(0)\n",
            "fork",
        )

    def child(self, program, expected):
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=CHILD_LIMIT_S)
        said = " / ".join(found.stdout.split("\n")).strip(" /")
        assert found.returncode == 0 and expected in found.stdout, f"exit code {found.returncode}: {said} {found.stderr[-300:]}"
        return said


def odd(torch, x):
    """The tensor from an address on that is no multiple of 16 bytes."""
    room = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
    return room[1:].view(x.shape).copy_(x)
