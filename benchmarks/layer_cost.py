"""What per-example gradients of a layer cost: by its formula, and by ``torch.func``, over a plain
backward pass.

    python -m benchmarks.layer_cost [--repeats 9] [--write docs/results/layer_cost.md]

CPU time on one thread, float32, 16 examples, the three ways interleaved, medians. A subclass of a
layer goes through ``torch.func``, so the second way is the first one's layer with another type.
Layers without a formula have one way.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.layer_grid import Around, loss, plainly
from fedlsg.frame import Coordinates, Frame, make_blocks
from fedlsg.gradients import trainable
from fedlsg.gradients.isolation import per_example_gradients

BATCH = 16
LAYERS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear, 256 to 256": (lambda: nn.Linear(256, 256), (8, 256)),
    "Conv2d, 32 to 32 channels, 3x3": (lambda: nn.Conv2d(32, 32, 3, padding=1), (32, 16, 16)),
    "Conv2d, 64 channels in 4 groups, 3x3": (
        lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4),
        (64, 16, 16),
    ),
    "Conv2d, depthwise, 64 channels, 3x3": (
        lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64),
        (64, 16, 16),
    ),
    "Conv1d, 32 to 32 channels, 5": (lambda: nn.Conv1d(32, 32, 5, padding=2), (32, 128)),
    "Conv3d, 8 to 8 channels, 3x3x3": (lambda: nn.Conv3d(8, 8, 3, padding=1), (8, 8, 8, 8)),
    "ConvTranspose2d, 16 to 16 channels, 3x3": (
        lambda: nn.ConvTranspose2d(16, 16, 3),
        (16, 16, 16),
    ),
    "LayerNorm, 256": (lambda: nn.LayerNorm(256), (64, 256)),
    "GroupNorm, 32 channels in 8 groups": (lambda: nn.GroupNorm(8, 32), (32, 16, 16)),
    "RMSNorm, 256": (lambda: nn.RMSNorm(256), (64, 256)),
    "LSTM, 64 units, 32 steps": (lambda: nn.LSTM(64, 64, batch_first=True), (32, 64)),
    "GRU, 64 units, 32 steps": (lambda: nn.GRU(64, 64, batch_first=True), (32, 64)),
    "TransformerEncoderLayer, 128, 64 tokens": (
        lambda: nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True),
        (64, 128),
    ),
    "PReLU, 64": (lambda: nn.PReLU(64), (64, 16, 16)),
}
BY_FUNC = ("LSTM", "GRU", "TransformerEncoderLayer", "PReLU")
"""Layers, or what they are made of, without a formula."""


def first(layer: nn.Module, x: Tensor) -> Tensor:
    """A recurrence returns its outputs and its state."""
    return layer(x)[0]  # type: ignore[no-any-return]


def ways_of(name: str) -> dict[str, Callable[[], object]]:
    """What is timed, by name: plain, formula (or func), func."""
    build, shape = LAYERS[name]
    recurrent = name.startswith(("LSTM", "GRU"))
    torch.manual_seed(0)
    x, y = torch.randn(BATCH, *shape), torch.zeros(BATCH)
    model = Around(build(), first if recurrent else plainly)

    def plain() -> None:
        model.zero_grad()
        loss(model(x), y).sum().backward()

    def private(one: nn.Module) -> Callable[[], object]:
        where = tuple(
            Coordinates(name=key, shape=tuple(p.shape)) for key, p in trainable(one).items()
        )
        frame = Frame(coordinates=where, blocks=tuple(make_blocks(where)))
        return lambda: per_example_gradients(one, loss, x, y, frame)

    if name.startswith(BY_FUNC):
        return {"plain": plain, "func": private(model)}
    own = build()
    own.__class__ = type("Own", (type(own),), {})
    return {"plain": plain, "formula": private(model), "func": private(Around(own, plainly))}


def measured(name: str, repeats: int) -> dict[str, float]:
    """Medians in CPU seconds; the first pass of each way is not counted."""
    ways = ways_of(name)
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for at in range(repeats + 1):
        for way, run in ways.items():
            began = time.process_time()
            for _ in range(3):
                run()
            if at:
                spent[way].append((time.process_time() - began) / 3)
    return {way: statistics.median(some) for way, some in spent.items()}


def table(repeats: int) -> str:
    """In Markdown."""
    lines = [
        "| layer | plain, ms | by its formula | by torch.func | formula over torch.func |",
        "|---|---|---|---|---|",
    ]
    for name in LAYERS:
        found = measured(name, repeats)
        formula, func = (
            found.get(way, float("nan")) / found["plain"] for way in ("formula", "func")
        )
        shown = [f"{value:.1f}x" if value == value else "none" for value in (formula, func)]
        ratio = f"{formula / func:.2f}" if formula == formula else ""
        lines.append(
            f"| {name} | {1000 * found['plain']:.2f} | {shown[0]} | {shown[1]} | {ratio} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--write", type=Path, help="Markdown file of the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = table(given.repeats)
    text = (
        "# What layers cost\n\nPer-example gradients of one layer over a plain forward and "
        f"backward pass, CPU time on one thread, float32, {BATCH} examples,\ninterleaved, medians "
        f"of {given.repeats}. Layers without a formula go through `torch.func`, for that module "
        "alone. Made by\n`python -m benchmarks.layer_cost --write docs/results/layer_cost.md`.\n\n"
        f"{found}\n"
    )
    if given.write:
        given.write.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
