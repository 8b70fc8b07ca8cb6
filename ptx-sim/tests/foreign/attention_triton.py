"""A fused attention forward in Triton, compiled for sm_80 without a GPU: prints its PTX."""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def attention(q, k, v, o, lse, seqlen, scale_log2, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
              BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    block = tl.program_id(0)
    base = tl.program_id(1).to(tl.int64) * seqlen * HEAD_DIM
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    columns = tl.arange(0, BLOCK_N)
    inside = rows[:, None] < seqlen
    q_tile = tl.load(q + base + rows[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc_o = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    end = tl.minimum((block + 1) * BLOCK_M, seqlen) if CAUSAL else seqlen
    for start in range(0, end, BLOCK_N):
        keys = start + columns
        k_tile = tl.load(k + base + keys[None, :] * HEAD_DIM + dims[:, None], mask=keys[None, :] < seqlen, other=0.0)
        acc_s = tl.dot(q_tile, k_tile) * scale_log2
        seen = keys[None, :] < seqlen
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        acc_s = tl.where(seen, acc_s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(acc_s, 1))
        alpha = tl.math.exp2(row_max - new_max)
        p = tl.math.exp2(acc_s - new_max[:, None])
        row_sum = row_sum * alpha + tl.sum(p, 1)
        v_tile = tl.load(v + base + keys[:, None] * HEAD_DIM + dims[None, :], mask=keys[:, None] < seqlen, other=0.0)
        acc_o = tl.dot(p.to(tl.float16), v_tile, acc_o * alpha[:, None])
        row_max = new_max
    acc_o = acc_o / row_sum[:, None]
    tl.store(o + base + rows[:, None] * HEAD_DIM + dims[None, :], acc_o.to(tl.float16), mask=inside)
    tl.store(lse + tl.program_id(1) * seqlen + rows, row_max + tl.math.log2(row_sum), mask=rows < seqlen)


source = ASTSource(
    fn=attention,
    signature={"q": "*fp16", "k": "*fp16", "v": "*fp16", "o": "*fp16", "lse": "*fp32", "seqlen": "i32",
               "scale_log2": "fp32", "HEAD_DIM": "constexpr", "BLOCK_M": "constexpr", "BLOCK_N": "constexpr",
               "CAUSAL": "constexpr"},
    constexprs={"HEAD_DIM": 64, "BLOCK_M": 64, "BLOCK_N": 64, "CAUSAL": True},
    attrs={(i,): [["tt.divisibility", 16]] for i in range(5)},
)
compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 4, "num_stages": 3})
print(compiled.asm["ptx"])
print("// shared", compiled.metadata.shared)
