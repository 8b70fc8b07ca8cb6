"""Triton programs with products of many types, random numbers, histograms, scans of pairs, copies by tensor descriptors and functions: python numbers_triton.py makes numbers_triton.ptx.

As flow_triton.py.
"""

import triton
import triton.language as tl

import triton_modules
from triton_modules import stop_unless


@triton.jit
def ok_histogram(a, out, flag):
    i = tl.arange(0, 256)
    x = tl.load(a + tl.program_id(0) * 256 + i)
    h = tl.histogram(x % 32, 32)
    bins = tl.arange(0, 32)
    stop_unless(tl.sum(h, axis=0) == 256, out, bins)
    want = tl.sum((x[:, None] % 32 == bins[None, :]).to(tl.int32), axis=0)
    stop_unless(h == want, out, bins)
    tl.store(out + tl.program_id(0) * 32 + bins, h)


@triton.jit
def ok_random(a, out, flag):
    i = tl.arange(0, 256) + tl.program_id(0) * 256
    u = tl.rand(42, i)
    r = tl.randint(7, i)
    n = tl.randn(3, i)
    stop_unless((u >= 0) & (u < 1), out, i)
    stop_unless((n > -8) & (n < 8), out, i)
    again = tl.rand(42, i)
    stop_unless(u == again, out, i)
    tl.store(out + i, r)


@triton.jit
def sums(m_left, s_left, m_right, s_right):
    m = tl.maximum(m_left, m_right)
    return m, s_left * tl.exp2(m_left - m) + s_right * tl.exp2(m_right - m)


@triton.jit
def ok_scan_of_pairs(a, out, flag):
    i = tl.arange(0, 128)
    x = (tl.load(a + i) % 16).to(tl.float32)
    m, s = tl.associative_scan((x, tl.full((128,), 1.0, tl.float32)), 0, sums)
    stop_unless(m <= 15, out, i)
    stop_unless(s >= 1, out, i)
    most, total = tl.reduce((x, tl.full((128,), 1.0, tl.float32)), 0, sums)
    last_m = tl.sum(tl.where(i == 127, m, 0.0), axis=0)
    last_s = tl.sum(tl.where(i == 127, s, 0.0), axis=0)
    stop_unless((most == last_m) & (tl.abs(total - last_s) < 1e-3), out, i)
    tl.store(out + tl.program_id(0) * 128 + i, m.to(tl.int32))


@triton.jit
def ok_products_of_types(a, out, flag):
    m, n, k = tl.arange(0, 64), tl.arange(0, 32), tl.arange(0, 32)
    x = tl.load(a + m[:, None] * 32 + k[None, :]) % 5 - 2
    y = tl.load(a + k[:, None] * 32 + n[None, :]) % 3 - 1
    want = tl.dot(x.to(tl.float16), y.to(tl.float16))
    at = m[:, None] * 32 + n[None, :]
    stop_unless(tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16)) == want, out, at)
    stop_unless(tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="tf32") == want, out, at)
    stop_unless(tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee") == want, out, at)
    tl.store(out + at, want.to(tl.int32), mask=tl.program_id(0) == 0)


@triton.jit
def ok_products_of_bytes(a, out, flag):
    m, n, k = tl.arange(0, 64), tl.arange(0, 32), tl.arange(0, 32)
    x = tl.load(a + m[:, None] * 32 + k[None, :]) % 5 - 2
    y = tl.load(a + k[:, None] * 32 + n[None, :]) % 3 - 1
    at = m[:, None] * 32 + n[None, :]
    want = tl.dot(x.to(tl.float16), y.to(tl.float16))
    whole = tl.dot(x.to(tl.int8), y.to(tl.int8))
    stop_unless(whole.to(tl.float32) == want, out, at)
    e4 = tl.dot(x.to(tl.float32).to(tl.float8e4nv), y.to(tl.float32).to(tl.float8e4nv))
    stop_unless(e4 == want, out, at)
    e5 = tl.dot(x.to(tl.float32).to(tl.float8e5), y.to(tl.float32).to(tl.float8e5))
    stop_unless(e5 == want, out, at)
    tl.store(out + at, whole, mask=tl.program_id(0) == 0)


@triton.jit
def small(x):
    # The numbers' halves may be anything.
    return tl.where(tl.abs(x) < 4, x, 1.0).to(tl.float16)


@triton.jit
def ok_pipelined_product(a, out, flag):
    m, n, k = tl.arange(0, 64), tl.arange(0, 16), tl.arange(0, 32)
    half = a.to(tl.pointer_type(tl.float16))
    total = tl.zeros((64, 16), tl.float32)
    for at in tl.range(0, 96, 32, num_stages=3):
        x = tl.load(half + m[:, None] * 96 + (at + k)[None, :])
        y = tl.load(half + (at + k)[:, None] * 16 + n[None, :])
        total = tl.dot(small(x), small(y), total)
    want = tl.zeros((64, 16), tl.float32)
    for at in range(0, 96):
        x = small(tl.load(half + m * 96 + at)).to(tl.float32)
        y = small(tl.load(half + at * 16 + n)).to(tl.float32)
        want += x[:, None] * y[None, :]
    stop_unless(tl.abs(total - want) <= 0.01, out, m[:, None] * 16 + n[None, :])
    tl.store(out + m[:, None] * 16 + n[None, :], total.to(tl.int32), mask=tl.program_id(0) == 0)


@triton.jit
def ok_softmax_and_norm(a, out, flag):
    i = tl.arange(0, 256)
    x = (tl.load(a + tl.program_id(0) * 256 + i) % 100).to(tl.float32) * 0.1
    p = tl.softmax(x)
    stop_unless(tl.abs(tl.sum(p, axis=0) - 1) < 1e-4, out, i)
    mean = tl.sum(x, axis=0) / 256
    var = tl.sum((x - mean) * (x - mean), axis=0) / 256
    y = (x - mean) * tl.rsqrt(var + 1e-6)
    stop_unless(tl.abs(tl.sum(y * y, axis=0) / 256 - 1) < 1e-3, out, i)
    s = tl.sigmoid(x)
    stop_unless((s >= 0.5) & (s <= 1), out, i)
    tl.store(out + tl.program_id(0) * 256 + i, (p * 1e6).to(tl.int32))


@triton.jit
def ok_functions(a, out, flag):
    i = tl.arange(0, 256)
    x = (tl.load(a + i) + 1).to(tl.float32) * 0.01
    stop_unless(tl.abs(tl.exp(tl.log(x)) / x - 1) < 1e-5, out, i)
    stop_unless(tl.abs(tl.exp2(tl.log2(x)) / x - 1) < 1e-5, out, i)
    stop_unless(tl.abs(tl.sin(x) * tl.sin(x) + tl.cos(x) * tl.cos(x) - 1) < 1e-4, out, i)
    stop_unless(tl.abs(tl.sqrt(x) * tl.sqrt_rn(x) / x - 1) < 1e-5, out, i)
    stop_unless(tl.abs(tl.erf(x)) <= 1, out, i)
    stop_unless((tl.floor(x) <= x) & (tl.ceil(x) >= x), out, i)
    stop_unless(tl.div_rn(x, x) == 1, out, i)
    stop_unless(tl.fma(x, x, -x * x) < 1e-3, out, i)
    wide = tl.umulhi(i.to(tl.uint32) * 0x10001 + 77, 0x80000001)
    want = ((i.to(tl.uint32) * 0x10001 + 77).to(tl.uint64) * 0x80000001) >> 32
    stop_unless(wide.to(tl.uint64) == want, out, i)
    tl.store(out + tl.program_id(0) * 256 + i, (x * 100).to(tl.int32))


@triton.jit
def ok_inline_assembly(a, out, flag):
    i = tl.arange(0, 256)
    x = tl.load(a + i)
    bits = tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    back = tl.inline_asm_elementwise("brev.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    again = tl.inline_asm_elementwise("brev.b32 $0, $1;", "=r,r", [back], dtype=tl.int32, is_pure=True, pack=1)
    stop_unless((bits <= 10) & (again == x), out, i)
    small = (x % 100).to(tl.int8)
    turned = tl.inline_asm_elementwise("prmt.b32 $0, $1, $1, 0x0123;", "=r,r", [small], dtype=tl.int8, is_pure=True, pack=4)
    turned = tl.inline_asm_elementwise("prmt.b32 $0, $1, $1, 0x0123;", "=r,r", [turned], dtype=tl.int8, is_pure=True, pack=4)
    stop_unless(turned == small, out, i)
    tl.store(out + tl.program_id(0) * 256 + i, bits)


@triton.jit
def ok_topk(a, out, flag):
    i = tl.arange(0, 256)
    x = tl.load(a + tl.program_id(0) * 256 + i)
    best = tl.topk(x, 8)
    at = tl.arange(0, 8)
    stop_unless(tl.sum(best >= tl.max(best, axis=0), axis=0) >= 1, out, at)
    stop_unless(tl.max(best, axis=0) == tl.max(x, axis=0), out, at)
    stop_unless(tl.sum((x > tl.min(best, axis=0)).to(tl.int32), axis=0) <= 8, out, at)
    down = tl.sort(x, descending=True)
    tl.store(out + tl.program_id(0) * 256 + i, down)


@triton.jit
def ok_descriptors(a, out, flag):
    from_, to = tl.make_tensor_descriptor(a, shape=[64, 64], strides=[64, 1], block_shape=[32, 32]), tl.make_tensor_descriptor(
        out, shape=[64, 64], strides=[64, 1], block_shape=[32, 32]
    )
    row, column = tl.program_id(0) // 2 * 32, tl.program_id(0) % 2 * 32
    x = from_.load([row, column])
    at = (row + tl.arange(0, 32))[:, None] * 64 + column + tl.arange(0, 32)[None, :]
    stop_unless(x == at * 7 % 1000, out, at)
    to.store([row, column], x + 1)


@triton.jit
def ok_atomics_of_floats(a, out, flag):
    i = tl.arange(0, 128)
    cell = flag.to(tl.pointer_type(tl.float32))
    tl.atomic_max(cell + i % 8, (i + 1).to(tl.float32))
    tl.atomic_add(cell + 8 + i % 8, 0.5)
    tl.atomic_add(flag.to(tl.pointer_type(tl.float16)) + 40 + i % 4, (i % 3).to(tl.float16))
    tl.store(out + tl.program_id(0) * 128 + i, i)


@triton.jit
def bad_histogram_in_memory(a, out, flag):
    i = tl.arange(0, 128)
    x = tl.load(a + i)
    tl.store(flag + x % 32, tl.load(flag + x % 32) + 1)  # BUG global-race
    tl.store(out + tl.program_id(0) * 128 + i, x)


if __name__ == "__main__":
    triton_modules.write("numbers_triton.ptx", globals(), lambda name: name.startswith("bad_"))
