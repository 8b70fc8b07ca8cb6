"""Trains a small transformer on a text, byte by byte, twice: with Ferroflash's attention and with PyTorch's. Prints both losses.

    pip install torch ferroflash-*.whl
    python examples/training.py                        # on the CPU, 20 steps: half a minute
    python examples/training.py --device cuda --steps 500 --json losses.json --plot losses.svg
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


def plot(found):
    """Both curves as SVG: PyTorch's wide and pale, ours thin upon it."""
    width, height, left, bottom = 640, 320, 48, 40
    steps, most = len(found["pytorch"]), max(map(max, found.values()))
    x = lambda step: left + (width - left - 16) * step / max(steps - 1, 1)
    y = lambda loss: 16 + (height - bottom - 16) * (1 - loss / most)
    text = lambda at, up, words, anchor="middle": f'<text x="{at:.1f}" y="{up:.1f}" text-anchor="{anchor}">{words}</text>'
    parts = [f'<line x1="{left}" y1="{y(loss):.1f}" x2="{width - 16}" y2="{y(loss):.1f}" stroke="#8884"/>' + text(left - 6, y(loss) + 4, loss, "end") for loss in range(int(most) + 1)]
    parts += [text(x(step), height - bottom + 18, step) for step in range(0, steps + 1, max(steps // 5, 1)) if step < steps]
    parts += [text(width / 2, height - 4, "step"), text(left, 12, "loss, nats a byte", "start")]
    for at, (name, color, stroke) in enumerate((("pytorch", "#e8a33d", 6), ("ferroflash", "#2b6cb0", 1.5))):
        points = " ".join(f"{x(step):.1f},{y(loss):.2f}" for step, loss in enumerate(found[name]))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{stroke}" stroke-linejoin="round"/>')
        label = {"pytorch": "PyTorch's attention", "ferroflash": "Ferroflash's attention"}[name]
        parts.append(f'<line x1="{width - 216}" y1="{30 + 18 * at}" x2="{width - 190}" y2="{30 + 18 * at}" stroke="{color}" stroke-width="{stroke}"/>')
        parts.append(text(width - 182, 34 + 18 * at, label, "start"))
    style = '<style>text { font: 12px sans-serif; fill: #666 }</style>'
    title = "<title>Loss of a small transformer by step, with two attentions</title>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">{title}{style}{"".join(parts)}</svg>\n'


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
    parser.add_argument("--plot", type=pathlib.Path, help="where a plot of both goes, as SVG")
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
    if options.plot:
        options.plot.write_text(plot(found))
    return found


if __name__ == "__main__":
    main()
