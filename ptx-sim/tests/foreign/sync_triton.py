"""Locks, semaphores and flags between programs, as Triton's users write them: python sync_triton.py makes sync_triton.ptx.

The numbers are those of sync.cu: `a[i] = i * 7 % 1000`, 4096 of them, 4096 unwritten numbers, 64 zeros. A kernel `ok_…` is
right under every order; a kernel `bad_…` ends with the finding that a comment `# BUG kind` names, at that line.
`triton_modules.py` compiles each kernel into a module of its own. All keep their source lines,
which findings name.
"""

import triton
import triton.language as tl

import triton_modules


@triton.jit
def ok_lock_sum(a, out, flag):
    # Layer normalisation's backward pass: programs add rows to one buffer under a lock; the first of them finds it unwritten.
    i = tl.arange(0, 128)
    x = tl.load(a + tl.program_id(0) * 128 + i)
    while tl.atomic_cas(flag, 0, 1) == 1:
        pass
    count = tl.load(flag + 1)
    # Every warp loads the scalar, and one thread of one writes it: Triton puts no barrier between.
    tl.debug_barrier()
    if count == 0:
        tl.atomic_xchg(flag + 1, 1)
    else:
        x += tl.load(out + i)
    tl.store(out + i, x)
    tl.debug_barrier()
    tl.atomic_xchg(flag, 0)


@triton.jit
def bad_lock_sum(a, out, flag):
    i = tl.arange(0, 128)
    x = tl.load(a + tl.program_id(0) * 128 + i)
    while tl.atomic_cas(flag, 0, 1) == 1:
        pass
    count = tl.load(flag + 1)
    # Every warp loads the scalar, and one thread of one writes it: Triton puts no barrier between.
    tl.debug_barrier()
    if count == 0:
        tl.atomic_xchg(flag + 1, 1)
    else:
        x += tl.load(out + i)
    tl.atomic_xchg(flag, 0)
    tl.store(out + i, x)  # BUG global-race


@triton.jit
def ok_last_program(a, out, flag):
    i = tl.arange(0, 128)
    pid = tl.program_id(0)
    tl.store(out + pid * 128 + i, tl.load(a + pid * 128 + i) + 1)
    tl.debug_barrier()
    if tl.atomic_add(flag, 1) == tl.num_programs(0) - 1:
        s = tl.zeros((128,), tl.int32)
        for p in range(4):
            s += tl.load(out + p * 128 + i)
        tl.store(out + 1024 + i, s)


@triton.jit
def bad_last_program(a, out, flag):
    i = tl.arange(0, 128)
    pid = tl.program_id(0)
    tl.store(out + pid * 128 + i, tl.load(a + pid * 128 + i) + 1)
    if tl.atomic_add(flag, 1, sem="relaxed") == tl.num_programs(0) - 1:
        s = tl.zeros((128,), tl.int32)
        for p in range(4):
            s += tl.load(out + p * 128 + i)  # BUG global-race
        tl.store(out + 1024 + i, s)


@triton.jit
def ok_turns(a, out, flag):
    # Stream-K: who comes after waits for the one before it, by a semaphore.
    i = tl.arange(0, 128)
    pid = tl.program_id(0)
    x = tl.load(a + pid * 128 + i)
    while tl.atomic_add(flag, 0, sem="acquire") != pid:
        pass
    if pid > 0:
        x += tl.load(out + i)
    tl.store(out + i, x)
    tl.debug_barrier()
    tl.atomic_add(flag, 1, sem="release")


@triton.jit
def bad_turns(a, out, flag):
    i = tl.arange(0, 128)
    pid = tl.program_id(0)
    x = tl.load(a + pid * 128 + i)
    while tl.atomic_add(flag, 0, sem="relaxed") != pid:
        pass
    if pid > 0:
        x += tl.load(out + i)  # BUG global-race
    tl.store(out + i, x)
    tl.debug_barrier()
    tl.atomic_add(flag, 1, sem="release")


@triton.jit
def ok_look_back(a, out, flag):
    i = tl.arange(0, 128)
    pid = tl.program_id(0)
    s = tl.sum(tl.load(a + pid * 128 + i), 0)
    before = 0
    if pid > 0:
        while tl.atomic_cas(flag + pid - 1, 1, 1) != 1:
            pass
        before = tl.load(out + pid - 1)
    tl.store(out + pid, before + s)
    tl.atomic_xchg(flag + pid, 1)


@triton.jit
def ok_tickets(a, out, flag):
    # A persistent grid that takes its tiles from a counter.
    i = tl.arange(0, 128)
    tile = tl.atomic_add(flag, 1)
    while tile < 16:
        tl.store(out + tile * 128 + i, tl.load(a + tile * 128 + i) * 2)
        tile = tl.atomic_add(flag, 1)


@triton.jit
def ok_two_levels(a, out, flag):
    # Groups of two: each group's last adds to the grid's, whose last sums up.
    i = tl.arange(0, 128)
    pid = tl.program_id(0)
    tl.store(out + pid * 128 + i, tl.load(a + pid * 128 + i))
    tl.debug_barrier()
    if tl.atomic_add(flag + 1 + pid // 2, 1) == 1:
        g = pid // 2 * 256
        tl.store(out + 1024 + pid // 2 * 128 + i, tl.load(out + g + i) + tl.load(out + g + 128 + i))
        tl.debug_barrier()
        if tl.atomic_add(flag, 1) == 1:
            tl.store(out + 2048 + i, tl.load(out + 1024 + i) + tl.load(out + 1152 + i))


@triton.jit
def ok_copies_by_tensor(a, out, flag):
    # Triton puts no fence between the initialisation of an mbarrier and the copy that counts at it.
    x = tl.make_tensor_descriptor(a, [64, 64], [64, 1], [16, 32])
    y = tl.make_tensor_descriptor(out, [64, 64], [64, 1], [16, 32])
    row = tl.program_id(0) * 16
    for c in range(2):
        y.store([row, c * 32], x.load([row, c * 32]) + 1)


@triton.jit
def ok_histogram(a, out, flag):
    # All warps zero the same places of shared memory.
    i = tl.arange(0, 512)
    counts = tl.histogram(tl.load(a + tl.program_id(0) * 512 + i) % 32, 32)
    tl.store(out + tl.program_id(0) * 32 + tl.arange(0, 32), counts)


@triton.jit
def bad_tensor_read_back(a, out, flag):
    i = tl.arange(0, 128)
    x = tl.make_tensor_descriptor(out, [64, 64], [64, 1], [16, 64])
    row = tl.program_id(0) * 16
    x.store([row, 0], tl.full((16, 64), 3, tl.int32))
    y = tl.load(out + (row * 64 + 1024) % 4096 + i)  # BUG global-race uninitialized async-pending
    tl.store(flag + i % 64, y, mask=i < 64)


if __name__ == "__main__":
    triton_modules.write("sync_triton.ptx", globals())
