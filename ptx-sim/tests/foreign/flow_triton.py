"""Triton programs with control flow, scans, sorts, packed types and atomics of many kinds: python flow_triton.py makes flow_triton.ptx.

Like sync_triton.py: `a[i] = i * 7 % 1000`, 4096 of them, 4096 unwritten numbers, 64 zeros. Right kernels stop at a wrong result.
`triton_modules.py` compiles each kernel into a module of its own. Right ones go without source lines,
which the findings of the others name.
"""

import triton
import triton.language as tl

import triton_modules
from triton_modules import stop_unless


@triton.jit
def ok_collatz(a, out, flag):
    i = tl.arange(0, 128) + tl.program_id(0) * 128
    n = i + 1
    steps = tl.zeros((128,), tl.int32)
    while tl.max(n, axis=0) > 1:
        n = tl.where(n <= 1, n, tl.where(n % 2 == 0, n // 2, 3 * n + 1))
        steps += 1
    stop_unless(n <= 1, out, i)
    tl.store(out + i, steps)


@triton.jit
def ok_scans(a, out, flag):
    i = tl.arange(0, 256)
    x = tl.load(a + i)
    s = tl.cumsum(x, axis=0)
    r = tl.cumsum(x, axis=0, reverse=True)
    stop_unless(s + r - x == tl.sum(x, axis=0), out, i)
    stop_unless(tl.max(tl.cumprod(tl.where(i < 200, 1, 2) + 0 * x, axis=0) * (i < 230), axis=0) == (1 << 30), out, i)
    tl.store(out + i, s)


@triton.jit
def ok_sort_and_find(a, out, flag):
    i = tl.arange(0, 256)
    x = tl.load(a + i + tl.program_id(0) * 256)
    s = tl.sort(x)
    stop_unless(tl.sum(s, axis=0) == tl.sum(x, axis=0), out, i)
    first, at = tl.max(x, axis=0, return_indices=True)
    stop_unless(first == tl.max(s, axis=0), out, i)
    stop_unless(tl.sum(tl.where(i == at, x, 0), axis=0) == first, out, i)
    tl.store(out + i + tl.program_id(0) * 256, s)
    tl.debug_barrier()
    after = tl.load(out + i + tl.program_id(0) * 256 + 1, mask=i < 255, other=1 << 30)
    stop_unless(s <= after, out, i)


@triton.jit
def ok_product_of_odd_sizes(a, out, flag):
    m, n, k = tl.arange(0, 16), tl.arange(0, 32), tl.arange(0, 64)
    row = tl.program_id(0) * 16 + m
    total = tl.zeros((16, 32), tl.float32)
    for at in tl.range(0, 100, 64, num_stages=1):
        kk = at + k
        x = tl.load(a + row[:, None] * 40 + kk[None, :], mask=(kk < 100)[None, :], other=0) % 5
        y = tl.load(a + kk[:, None] * 30 + n[None, :], mask=(kk < 100)[:, None] & (n < 30)[None, :], other=0) % 3
        total = tl.dot(x.to(tl.float16), y.to(tl.float16), total)
    want = tl.zeros((16, 32), tl.float32)
    for at in range(0, 100):
        x = (row * 40 + at) * 7 % 1000 % 5
        y = tl.where(n < 30, (at * 30 + n) * 7 % 1000 % 3, 0)
        want += (x[:, None] * y[None, :]).to(tl.float32)
    stop_unless(total == want, out, m[:, None] * 32 + n[None, :])
    tl.store(out + row[:, None] * 32 + n[None, :], total.to(tl.int32))


@triton.jit
def ok_small_types(a, out, flag):
    i = tl.arange(0, 256)
    x = tl.load(a + i)
    b = x.to(tl.int8)
    stop_unless(b.to(tl.int32) == ((x + 128) & 255) - 128, out, i)
    h = x.to(tl.float16)
    stop_unless(h.to(tl.int32) == x, out, i)
    e = (x % 17).to(tl.float32).to(tl.float8e5)
    stop_unless(e.to(tl.float32).to(tl.int32) - (x % 17) <= 1, out, i)
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    stop_unless((bits >> 23) == tl.where(x == 0, 0, 127 + tl.floor(tl.log2(x.to(tl.float32) + 0.001)).to(tl.int32)), out, i)
    tl.store(out + i, bits)


@triton.jit
def ok_atomics_of_types(a, out, flag):
    i = tl.arange(0, 128)
    x = tl.load(a + i + tl.program_id(0) * 128)
    tl.atomic_add(flag + i % 16, 1)
    most = tl.max(x, axis=0)
    tl.atomic_max(flag + 16, most)
    tl.atomic_min(flag + 17, -most)
    tl.atomic_or(flag + 18 + i * 0, 1 << (x % 31))
    tl.atomic_xor(flag + 19 + i * 0, x)
    tl.atomic_add(flag.to(tl.pointer_type(tl.float32)) + 20 + i % 4, tl.full((128,), 0.5, tl.float32))


@triton.jit
def ok_nested_conditions(a, out, flag):
    pid = tl.program_id(0)
    i = tl.arange(0, 128)
    if pid % 2 == 0:
        if tl.load(a + pid) > 5:
            r = i * 2
        else:
            r = i * 3
        for k in range(pid + 1):
            if tl.load(a + k) % 2 == 1:
                r += k
    else:
        r = tl.zeros((128,), tl.int32)
        k = 0
        while k < pid * 3:
            r += tl.load(a + k * 128 + i)
            k += pid
    want = tl.where(pid == 0, 3 * i, tl.where(pid == 2, 2 * i + 1, 0))
    stop_unless((r == want) | (pid % 2 == 1), out, i)
    tl.store(out + pid * 128 + i, r)


@triton.jit
def ok_gather_rows(a, out, flag):
    i = tl.arange(0, 64)
    at = tl.load(a + i + tl.program_id(0) * 64) % 64
    rows = tl.load(a + at[:, None] * 32 + tl.arange(0, 32)[None, :])
    x = tl.gather(rows, (i[:, None] + tl.arange(0, 32)[None, :]) % 32, axis=1)
    want = (at[:, None] * 32 + (i[:, None] + tl.arange(0, 32)[None, :]) % 32) * 7 % 1000
    stop_unless(x == want, out, i[:, None] * 32 + tl.arange(0, 32)[None, :])


@triton.jit
def ok_views(a, out, flag):
    i = tl.arange(0, 512)
    x = tl.load(a + i)
    even, odd = tl.split(tl.reshape(x, (256, 2)))
    back = tl.reshape(tl.join(even, odd), (512,))
    stop_unless(back == x, out, i)
    flipped = tl.flip(x, 0)
    stop_unless(flipped == (511 - i) * 7 % 1000, out, i)
    stop_unless(tl.sum(tl.sum(tl.permute(tl.reshape(x, (4, 8, 16)), (2, 0, 1)), axis=0), axis=0) > 0, out, tl.arange(0, 8))


@triton.jit
def ok_doubles(a, out, flag):
    i = tl.arange(0, 128)
    x = tl.load(a + i).to(tl.float64)
    y = tl.sqrt(x * x + 2.0 * x + 1.0)
    stop_unless(tl.abs(y - x - 1.0) < 1e-12, out, i)
    stop_unless(tl.abs(tl.exp(tl.log(x + 1.0)) - x - 1.0) < 1e-9, out, i)


@triton.jit
def bad_loop_carried(a, out, flag):
    i = tl.arange(0, 128)
    tl.store(out + i, tl.load(a + i), mask=tl.program_id(0) == 0)
    for k in range(3):
        x = tl.load(out + (i + 1) % 128, mask=tl.program_id(0) == 0, other=0)  # BUG global-race
        tl.store(out + i, x, mask=tl.program_id(0) == 0)


@triton.jit
def bad_ragged_end(a, out, flag):
    i = tl.program_id(0) * 1100 + tl.arange(0, 1024)
    x = tl.load(a + i)  # BUG out-of-bounds
    tl.store(out + i % 4096, x)


@triton.jit
def bad_unmasked_other(a, out, flag):
    i = tl.arange(0, 128)
    tl.store(out + i, i, mask=i < 100)
    tl.debug_barrier()
    if tl.program_id(0) == 0:
        x = tl.load(out + 128 + i)  # BUG uninitialized
        tl.store(flag + i % 64, x * 2, mask=x > 3)


@triton.jit
def bad_turns(a, out, flag):
    # Programs take turns, but each waits for the one after it.
    pid = tl.program_id(0)
    while tl.atomic_add(flag, 0) != 3 - pid + 1:  # BUG deadlock
        pass
    tl.atomic_add(flag, 1)


@triton.jit
def bad_sum_of_programs(a, out, flag):
    i = tl.arange(0, 128)
    tl.store(out + tl.program_id(0) * 128 + i, tl.load(a + i))
    tl.atomic_add(flag, 1, sem="relaxed")
    while tl.atomic_add(flag, 0, sem="relaxed") < 4:
        pass
    x = tl.load(out + (tl.program_id(0) * 128 + 128) % 512 + i)  # BUG global-race
    tl.store(out + 1024 + tl.program_id(0) * 128 + i, x)


if __name__ == "__main__":
    triton_modules.write("flow_triton.ptx", globals(), lambda name: name.startswith("bad_"))
