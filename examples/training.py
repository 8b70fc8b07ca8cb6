"""Trains a small transformer on a text, byte by byte, twice: with Ferroflash's attention and with PyTorch's. Prints both losses.

    pip install torch ferroflash-*.whl
    python examples/training.py                        # on the CPU, 20 steps: half a minute
    python examples/training.py --device cuda --steps 500 --json losses.json
"""

import argparse
import json
import pathlib
import time

import torch
from torch import nn
from torch.nn import functional

from ferroflash import flash_attn_qkvpacked_func


def ferroflash_attention(qkv):
    return flash_attn_qkvpacked_func(qkv, causal=True)


def pytorch_attention(qkv):
    q, k, v = qkv.transpose(1, 3).unbind(2)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Layer(nn.Module):
    def __init__(self, width, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        qkv = self.qkv(self.norm_a(x)).unflatten(-1, (3, self.heads, -1))
        x = x + self.out(self.attention(qkv).flatten(2))
        return x + self.mlp(self.norm_b(x))


class Transformer(nn.Module):
    """Predicts each byte of a text from those before it."""

    def __init__(self, length, width, heads, layers, attention):
        super().__init__()
        self.bytes, self.positions = nn.Embedding(256, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads, attention) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x):
        x = self.bytes(x) + self.positions.weight[: x.shape[1]]
        return self.head(self.norm(self.layers(x)))


def losses(attention, text, options):
    """The loss of each step: the same weights and the same batches, whatever the attention."""
    torch.manual_seed(0)
    model = Transformer(options.length, options.width, options.heads, options.layers, attention).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), options.rate)
    draw, found = torch.Generator().manual_seed(1), []
    for _ in range(options.steps):
        starts = torch.randint(len(text) - options.length - 1, (options.batch, 1), generator=draw)
        rows = text[starts + torch.arange(options.length + 1)].to(options.device)
        with torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.device == "cuda"):
            logits = model(rows[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found).tolist()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    repository = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--text", default=repository / "README.md", type=pathlib.Path, help="what it learns [the repository's README]")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    numbers = dict(steps=20, batch=4, length=128, width=128, heads=4, layers=2)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"[{default}]")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate [0.001]")
    parser.add_argument("--json", type=pathlib.Path, help="where both lists of losses go")
    options = parser.parse_args(arguments)
    text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8).long()
    found = {}
    for name, attention in (("ferroflash", ferroflash_attention), ("pytorch", pytorch_attention)):
        begun = time.monotonic()
        found[name] = losses(attention, text, options)
        print(f"{name}: {time.monotonic() - begun:.1f} s")
    print("step  ferroflash  pytorch")
    for step in sorted({*range(0, options.steps, max(options.steps // 10, 1)), options.steps - 1}):
        print(f"{step:4}  {found['ferroflash'][step]:10.4f}  {found['pytorch'][step]:7.4f}")
    apart = max(abs(a - b) for a, b in zip(*found.values()))
    print(f"at most {apart:.1e} apart")
    if options.json:
        options.json.write_text(json.dumps(found))
    return found


if __name__ == "__main__":
    main()
