"""product_triton.ptx: python product_triton.py, with Triton 3.6. On sm_90 Triton feeds wgmma from cp.async without a proxy fence."""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def product(a, b, c, rows, columns, depth, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, depth, BK):
        a_tile = tl.load(a + m[:, None] * depth + (start + k)[None, :], mask=m[:, None] < rows, other=0.0)
        b_tile = tl.load(b + (start + k)[:, None] * columns + n[None, :], mask=n[None, :] < columns, other=0.0)
        acc = tl.dot(a_tile, b_tile, acc)
    tl.store(c + m[:, None] * columns + n[None, :], acc, mask=(m[:, None] < rows) & (n[None, :] < columns))


if __name__ == "__main__":
    signature = {"a": "*fp32", "b": "*fp32", "c": "*fp32", "rows": "i32", "columns": "i32", "depth": "i32"}
    tiles = {"BM": 64, "BN": 32, "BK": 32}
    source = ASTSource(
        product,
        signature | dict.fromkeys(tiles, "constexpr"),
        constexprs=tiles,
        attrs={(at,): [["tt.divisibility", 16]] for at in (0, 1, 2, 4, 5)},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_stages": 2})
    print(compiled.metadata.shared, "bytes of shared memory")
    with open("product_triton.ptx", "w") as file:
        file.write(compiled.asm["ptx"])
