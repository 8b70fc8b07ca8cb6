"""The problems of torch_sdpa.py, and what the project promises for each."""

import dataclasses
import math
import random

BACK_ENDS = ("flash", "cudnn", "default")
DTYPES = {"f16": "float16", "bf16": "bfloat16"}
MASKS = {"full": (False,), "causal": (True,), "both": (False, True)}
ELEMENT_BYTES = 2
# Up to here a problem counts as decoding: each K and V is read for so few queries that memory is the limit.
DECODE_SEQLEN_Q_MAX = 16

# What a target compares with: a back end by medians or by 90th percentiles, or the device's measured copy bandwidth.
COPY = "copy"
P90 = " p90"
COMPARED_WITH = BACK_ENDS + tuple(name + P90 for name in BACK_ENDS) + (COPY,)


@dataclasses.dataclass(frozen=True)
class Problem:
    """One attention problem. `shape` is B, HQ, HKV, SQ, SKV, D; `targets` are pairs of COMPARED_WITH and the ratio to reach."""

    shape: tuple
    dtype: str
    causal: bool
    targets: tuple = dataclasses.field(default=(), compare=False)

    def title(self):
        return "%s %s %s" % (",".join(map(str, self.shape)), self.dtype, "causal" if self.causal else "full")

    def is_decode(self):
        return self.shape[3] <= DECODE_SEQLEN_Q_MAX


def target_text(name, least):
    """1.5 x default, 1 x default p90, 0.88 of copy."""
    return "%g %s %s" % (least, "of" if name == COPY else "x", name)


def visible_flops(problem):
    """4*B*H*SQ*SKV*D, of a causal mask the visible share."""
    batch, heads, _, seqlen_q, seqlen_k, head_dim = problem.shape
    pairs = seqlen_q * (seqlen_k - seqlen_q) + seqlen_q * (seqlen_q + 1) / 2 if problem.causal else seqlen_q * seqlen_k
    return 4.0 * batch * heads * head_dim * pairs


def bytes_moved(problem):
    """Q, K, V and O once: the least that a launch reads and writes. LSE is not counted."""
    batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim = problem.shape
    return 2 * batch * head_dim * (heads_q * seqlen_q + heads_kv * seqlen_k) * ELEMENT_BYTES


def interleaved(problems):
    """Problems in groups of one dtype and mask, as one call of ferroflash takes them."""
    groups = {}
    for problem in problems:
        groups.setdefault((problem.dtype, problem.causal), []).append(problem)
    return list(groups.values())


def group(shapes, dtypes=("f16",), targets=(), causal_targets=None, mask="both"):
    """Each shape with each dtype and mask; with `causal_targets` where those of the causal mask are others."""
    of_mask = {False: targets, True: targets if causal_targets is None else causal_targets}
    return [Problem(s, d, m, of_mask[m]) for s in shapes for d in dtypes for m in MASKS[mask]]


BOTH = ("f16", "bf16")
STEADY = ("default" + P90, 1.0)
SMALL = (
    group([(1, 1, 1, 128, 128, 64)], targets=(("default", 1.5), STEADY))
    + group([(1, 8, 8, 512, 512, 64), (2, 8, 8, 512, 512, 64)], BOTH, targets=(("default", 1.6), STEADY))
    + group([(4, 8, 8, 512, 512, 64)], targets=(("default", 1.15), STEADY))
    + group(
        [(4, 16, 16, 512, 512, 64), (8, 16, 16, 512, 512, 64)], BOTH, targets=(("flash", 1.1), ("default", 1.1), STEADY)
    )
)
LARGE = group(
    [(4, 32, 32, 4096, 4096, 64), (4, 16, 16, 4096, 4096, 128), (1, 16, 16, 16384, 16384, 128)],
    BOTH,
    targets=(("flash", 1.05),),
    causal_targets=(("flash", 1.1),),
)
LONG = group([(1, 2, 2, 16384, 16384, 128)], targets=(("flash", 1.3),)) + group(
    [(1, 8, 1, 128, 32768, 128)], targets=(("flash", 1.5),), mask="full"
)
DECODE = group(
    [(8, 32, 8, 1, 8192, 128), (64, 32, 8, 1, 4096, 128)], targets=((COPY, 0.88), ("default", 1.0)), mask="full"
) + group([(1, 32, 8, 1, 32768, 128)], targets=((COPY, 0.8), ("default", 1.0)), mask="full")
OTHER_HEAD_DIMS = group([(4, 32, 32, 4096, 4096, 32), (4, 16, 16, 4096, 4096, 96)])
HEAD_DIM_256 = group([(8, 8, 8, 512, 512, 256), (4, 8, 8, 4096, 4096, 256)], BOTH, targets=(("flash", 0.9),))
GQA = group([(2, 32, 8, 2048, 2048, 128)])
# The same tokens and the same products a token at every length, as FlashAttention-3's paper has them.
TOKENS, HIDDEN = 16384, 2048
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
# The least geometric mean over the lengths of the speed relative to PyTorch's default, of each head_dim.
MEANS = {64: 1.05, 128: 1.03, 256: 0.95}


def of_length(seqlen, head_dim):
    """The shape of TOKENS tokens in sequences of one length."""
    heads = HIDDEN // head_dim
    return (TOKENS // seqlen, heads, heads, seqlen, seqlen, head_dim)


BY_LENGTH = [
    # Of the longest one, cuDNN's speed within 3 %; the others may be a little further behind.
    Problem(of_length(seqlen, head_dim), dtype, causal,
            (("default", 0.97 if (seqlen, head_dim, dtype, causal) == (16384, 128, "bf16", False) else 0.92),))
    for head_dim in MEANS for dtype in BOTH for causal in MASKS["both"] for seqlen in LENGTHS
]  # fmt: skip
# Shapes that cuDNN publishes for this device.
PUBLISHED = group([(1, 64, 8, 4096, 4096, 128), (1, 64, 8, 8192, 8192, 128)], ("bf16",), targets=(("default", 1.0),))
HEADLINE = SMALL + LARGE + LONG + DECODE + OTHER_HEAD_DIMS + HEAD_DIM_256 + GQA
SETS = {
    "headline": (HEADLINE, "what the README shows"),
    "targets": ([problem for problem in HEADLINE if problem.targets], "the problems with a ratio to reach"),
    "small": (SMALL, "lengths 128 and 512"),
    "large": (LARGE, "lengths 4096 and 16384, head_dim 64 and 128"),
    "long": (LONG, "many keys for few heads"),
    "decode": (DECODE, "one query a sequence"),
    "lengths": (BY_LENGTH + PUBLISHED, "16384 tokens of 2048 elements at every length, head_dim 64, 128 and 256"),
}

# Random problems: what users have rather than what tables show.
RANDOM = "random"
CLASSES = ("prefill", "chunk", "decode")
FLOPS_MAX, BYTES_MAX = 1.2e12, 768 << 20


def class_of(problem):
    """prefill, chunk or decode."""
    if problem.is_decode() and problem.shape[3] < problem.shape[4]:
        return "decode"
    return "chunk" if problem.shape[3] < problem.shape[4] else "prefill"


def random_problem(draw, kind):
    """One problem of a class, every magnitude of a length as likely; one length in four is a multiple of 64."""

    def length(least, most):
        found = min(most, int(least * math.exp(draw.random() * math.log((most + 1) / least))))
        return min(most, -(-found // 64) * 64) if draw.random() < 0.25 else found

    while True:
        heads_kv = draw.choice((1, 2, 2, 3, 4, 4, 8, 8, 16, 32))
        heads_q = heads_kv * draw.choice((1, 1, 1, 1, 2, 3, 4, 4, 7, 8))
        batch = int(math.exp(draw.random() * math.log(129 if kind == "decode" else 65)))
        seqlen_k = {"prefill": lambda: length(16, 16384), "chunk": lambda: length(64, 32768)}.get(kind, lambda: length(32, 131072))()
        seqlen_q = seqlen_k
        if kind == "chunk":
            seqlen_q = min(length(17, 4096), seqlen_k - 1)
        if kind == "decode":
            seqlen_q = 1 if draw.random() < 0.75 else draw.randrange(2, 9)
        # PyTorch aligns its causal mask top-left, Ferroflash bottom-right: they agree where the lengths do.
        causal = kind == "prefill" and draw.random() < 0.5
        shape = (batch, heads_q, heads_kv, seqlen_q, seqlen_k, draw.choice((32, 64, 96, 128, 256)))
        problem = Problem(shape, draw.choice(BOTH), causal)
        if visible_flops(problem) <= FLOPS_MAX and bytes_moved(problem) <= BYTES_MAX:
            return problem


def random_problems(seed, count):
    """So many problems of a seed, the classes in turns; none twice."""
    draw = random.Random(seed)
    return list(dict.fromkeys(random_problem(draw, CLASSES[number % 3]) for number in range(count)))
