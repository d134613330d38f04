"""Batch functions and transforms of users: those that mix examples, and honest ones next to
them.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.fedlsg.support.mixing_zoo import CLASSES, Function, standardised


def draw_by_python(rows: int) -> Tensor:
    return torch.tensor([random.random() for _ in range(rows)])


def draw_by_numpy(rows: int) -> Tensor:
    return torch.from_numpy(np.random.rand(rows)).float()


ROWS = 90
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(3))
X[:, 0] = 1.7e9 + 1e5 * X[:, 0]
Y = torch.arange(ROWS) % CLASSES
WORDS = [torch.arange(1, 2 + place % 7) for place in range(ROWS)]
MATRIX = torch.randn(6, 40, generator=torch.Generator().manual_seed(4))


def moved(x: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A batch function: ``x`` of the stored rows, and the classes."""
    return lambda rows: (x(X[rows]), Y[rows])


def seeded(seed: Callable[[int], Any], draw: Callable[[int], Tensor]) -> Function:
    """Noise by place in the batch, after a seed that everybody knows."""

    def change(x: Tensor) -> Tensor:
        seed(0)
        return x[:, 1:] + draw(len(x)).unsqueeze(1)

    return change


def noisy(draw: Callable[[int], Tensor]) -> Function:
    return lambda x: x[:, 1:] + draw(len(x)).unsqueeze(1)


def remembering() -> Function:
    seen = [torch.zeros(6)]

    def change(x: Tensor) -> Tensor:
        seen[0] = seen[0] + x.sum(0)
        return x - 1e-3 * seen[0]

    return change


def own_generator() -> Function:
    generator = np.random.default_rng(0)
    return noisy(lambda count: torch.from_numpy(generator.random(count)).float())


def mixup(x: Tensor) -> Tensor:
    return 0.8 * x + 0.2 * x[torch.randperm(len(x))]


def shuffled(rows: Tensor) -> tuple[Tensor, Tensor]:
    rows = rows[torch.randperm(len(rows))]
    return X[rows], Y[rows]


def in_order_of_size(rows: Tensor) -> tuple[Tensor, Tensor]:
    rows = rows[X[rows, 1].argsort()]
    return X[rows], Y[rows]


def once_each_value(rows: Tensor) -> tuple[Tensor, Tensor]:
    rows = rows[X[rows, 1] >= X[rows, 1].mean()]
    return X[rows], Y[rows]


def padded(
    rows: Tensor, *, left: bool = False, mixed: bool = False
) -> tuple[dict[str, Tensor], Tensor]:
    """Texts to the longest of the batch."""
    texts = [WORDS[row] for row in rows.tolist()]
    long = max(map(len, texts))
    sides = [(long - len(t), 0) if left else (0, long - len(t)) for t in texts]
    ids = torch.stack([F.pad(t, side) for t, side in zip(texts, sides, strict=True)])
    mask = torch.stack(
        [F.pad(torch.ones_like(t), side) for t, side in zip(texts, sides, strict=True)]
    )
    return {"input_ids": ids + mask * (long if mixed else 0), "attention_mask": mask}, Y[rows]


def two_draws(x: Tensor) -> Tensor:
    """All signs, then all shifts."""
    signs, shifts = draw_by_numpy(len(x)).round(), draw_by_numpy(len(x))
    return x[:, 1:] * (2 * signs - 1).unsqueeze(1) + shifts.unsqueeze(1)


def by_example(x: Tensor) -> Tensor:
    return torch.stack([row[1:] * random.choice([-1, 1]) + np.random.normal() for row in x])


def own_seeds(rows: Tensor) -> tuple[Tensor, Tensor]:
    """An example's own noise, the same in every batch."""
    noise = [torch.randn(6, generator=torch.Generator().manual_seed(row)) for row in rows.tolist()]
    return X[rows] + torch.stack(noise), Y[rows]


def ascending(rows: Tensor) -> tuple[Tensor, Tensor]:
    """As a file of HDF5 reads rows."""
    if not bool((rows[1:] > rows[:-1]).all()):
        raise TypeError("indexing elements must be in increasing order")
    return X[rows], Y[rows]


def own_positions(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Draws a batch of its own."""
    rows = torch.randint(ROWS, (len(rows),))
    return X[rows], Y[rows]


MIXING_BATCHES: dict[str, Callable[[], Callable[[Tensor], Any]]] = {
    "mean": lambda: moved(lambda x: x - x.mean(0)),
    "standardised": lambda: moved(standardised),
    "standardised next to a unix time": lambda: moved(
        lambda x: torch.cat([x[:, :1], standardised(x[:, 1:])], 1)
    ),
    "largest": lambda: moved(lambda x: x / x.abs().amax(0)),
    "earlier ones": lambda: moved(lambda x: x.cumsum(0)),
    "less the first": lambda: moved(lambda x: x - x[0]),
    "sorted columns": lambda: moved(lambda x: x.sort(0).values),
    "softmax": lambda: moved(lambda x: x.softmax(0)),
    "size of the batch": lambda: moved(lambda x: x / len(x)),
    "order by size": lambda: in_order_of_size,
    "shuffled": lambda: shuffled,
    "some rows dropped": lambda: once_each_value,
    "rows twice": lambda: lambda rows: (X[rows.repeat_interleave(2)[: len(rows)]], Y[rows]),
    "targets of the batch": lambda: lambda rows: (X[rows], Y[rows] - Y[rows].min()),
    "mixup": lambda: moved(mixup),
    "noise of the batch's size": lambda: moved(
        lambda x: x[:, 1:] + x[:, 1:].norm(dim=0) * torch.rand(len(x), 1)
    ),
    "mean after noise by numpy": lambda: moved(
        lambda x: noisy(draw_by_numpy)(x) - x[:, 1:].mean(0)
    ),
    "mean after noise by python": lambda: moved(
        lambda x: noisy(draw_by_python)(x) - x[:, 1:].mean(0)
    ),
    "seed of numpy": lambda: moved(seeded(np.random.seed, draw_by_numpy)),
    "seed of python": lambda: moved(seeded(random.seed, draw_by_python)),
    "seed of torch": lambda: moved(seeded(torch.manual_seed, torch.rand)),
    "own generator": lambda: moved(own_generator()),
    "new generator": lambda: lambda rows: moved(own_generator())(rows),
    "memory": lambda: moved(remembering()),
    "mean by a coin of torch": lambda: moved(
        lambda x: x - x.mean(0) if torch.rand(()) < 0.5 else x
    ),
    "mean by a coin of python": lambda: moved(
        lambda x: x - x.mean(0) if random.random() < 0.5 else x
    ),
    "own positions": lambda: own_positions,
    "longest text": lambda: lambda rows: padded(rows, mixed=True),
}

HONEST_BATCHES: dict[str, Callable[[Tensor], Any]] = {
    "moved": moved(lambda x: x),
    "constants": moved(lambda x: (x - 1.7e9) / 1e5),
    "own mean": moved(lambda x: x[:, 1:] - x[:, 1:].mean(1, keepdim=True)),
    "products": moved(lambda x: torch.tanh(x[:, 1:] @ MATRIX[1:])),
    "noise by torch": moved(noisy(torch.rand)),
    "noise by numpy": moved(noisy(draw_by_numpy)),
    "noise by python": moved(noisy(draw_by_python)),
    "two draws": moved(two_draws),
    "draws one by one": moved(by_example),
    "a coin of each": moved(lambda x: x * (torch.rand(len(x), 1) < 0.5)),
    "one draw for all": moved(lambda x: x * (1 if random.random() < 0.5 else -1)),
    "own seeds": own_seeds,
    "ascending": ascending,
    "padded": padded,
    "padded at the start": lambda rows: padded(rows, left=True),
}

MIXING_TRANSFORMS: dict[str, Function] = {
    "mean": lambda x: x - x.float().mean(0),
    "standardised next to a unix time": lambda x: torch.cat(
        [x[:, :1], standardised(x[:, 1:].float())], 1
    ),
    "weak, next to a unix time": lambda x: torch.cat(
        [x[:, :1], x[:, 1:] + 1e-3 * x[:, 1:].float().mean(0)], 1
    ),
    "range of the batch": lambda x: (x - x.amin(0)) / (x.amax(0) - x.amin(0)).clamp(min=1e-6),
    "largest": lambda x: x.float() / x.max(),
    "order": lambda x: x.flip(0),
    "earlier ones": lambda x: x.float().cumsum(0),
    "chance": lambda x: x + torch.rand(len(x), 1),
    "chance after a seed": lambda x: (
        x + torch.rand(len(x), 1, generator=torch.Generator().manual_seed(0))
    ),
    "one number for all by chance": lambda x: x + random.random(),
    "-999 by the mean": lambda x: torch.where(
        x == -999, (x * (x != -999)).float().mean(0), x.float()
    ),
    "mean of more than 64": lambda x: x.float() - x.float().mean(0) if len(x) > 64 else x.float(),
    "missing by the mean": lambda x: (
        torch.where(x.isnan(), x.nanmean(0), x) if x.is_floating_point() else x.flip(0)
    ),
}

HONEST_TRANSFORMS: dict[str, Function] = {
    "as it is": lambda x: x,
    "constants": lambda x: (x - 1.7e9) / 1e5,
    "own mean": lambda x: x - x.float().mean(1, keepdim=True),
    "products": lambda x: torch.tanh(x[:, 1:].float() @ MATRIX[1:]),
    "logarithms": lambda x: x.abs().float().log1p(),
    "own ranks": lambda x: x.argsort(1).float(),
    "-999 by a constant": lambda x: torch.where(x == -999, 0.5, x.float()),
    "a shift that all have": lambda x: (
        x + torch.rand(6, generator=torch.Generator().manual_seed(0))
    ),
}
