"""What flow_triton.py, numbers_triton.py and sync_triton.py share: how a kernel stops, and how all of a program become PTX."""

import re

import triton
import triton.language as tl
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SIGNATURE = {"a": "*i32", "out": "*i32", "flag": "*i32"}


@triton.jit
def stop_unless(right, out, i):
    # Nobody may write there.
    tl.store(out + (1 << 40) + i, 0, mask=right == 0)


def write(file, program, has_lines=lambda name: True):
    """Writes the kernels `ok_…` and `bad_…` of a program's globals, each a module, without comments and paths; source lines where wanted."""
    texts = []
    for name, kernel in list(program.items()):
        if name.startswith(("ok_", "bad_")):
            source = ASTSource(kernel, SIGNATURE, attrs={(at,): [["tt.divisibility", 16]] for at in (0, 1)})
            text = compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"].split("\t.section")[0]
            text = re.sub(r'(\.file\s+\d+ ")[^"]*/', r"\1", text)
            lines = [line.split(" //")[0].strip() for line in text.splitlines()]
            if not has_lines(name):
                lines = [line for line in lines if not line.startswith(".loc\t")]
            texts.append("\n".join(line for line in lines if line and not line.startswith("//")))
    with open(file, "w") as out:
        out.write("\n// next module\n".join(texts) + "\n")
