"""Whether an optimizer of one's own in ``PrivateStep``, as Opacus users bring it, gains over none,
which is the rule of ``fedlsg.training.auto``.

    python -m benchmarks.accuracy.own_optimizer

A small CNN on the digits of scikit-learn, 1,437 rows, a batch of 64 expected rows, three epochs
(66 steps), epsilon 4 at delta 1e-5, three seeds of split and weights. Its last column is the
average of weights that the rule keeps.
"""

from functools import partial
from statistics import fmean, stdev
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedlsg

ROWS, BATCH, STEPS, SEEDS = 1437, 64, 66, 3
ADAM = partial(torch.optim.Adam, lr=5e-3)
LSG = {"method": "lsg", "rank": 4, "sparsity": 0.3}
CASES: dict[str, dict[str, Any]] = {
    "lsg, Adam(lr=5e-3)": {**LSG, "optimizer": ADAM},
    "lsg, none": LSG,
    "dpsgd, Adam(lr=5e-3)": {"optimizer": ADAM},
    "dpsgd, none": {},
    "dpsgd, none, steps of the rule": {"sample_rate": None, "steps": None},
}


def build() -> nn.Module:
    """The network, of 13,226 numbers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def digits(seed: int) -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 8, 8) in [0, 1] and classes, in an order of the seed."""
    images, classes = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    inputs = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    return inputs[order], torch.tensor(classes)[order]


def accuracies(seed: int, **settings: Any) -> tuple[float, float]:
    """On 360 rows: of the last weights, and of the rule's average."""
    inputs, targets = digits(seed)
    torch.manual_seed(seed)
    model = build()
    usual: dict[str, Any] = {"sample_rate": BATCH / ROWS, "steps": STEPS, "clip_norm": 1.0}
    step = fedlsg.PrivateStep(
        model,
        nn.CrossEntropyLoss(),
        num_examples=ROWS,
        epsilon=4.0,
        delta=1e-5,
        **{name: one for name, one in {**usual, **settings}.items() if one is not None},
    )
    batches = step.batches((inputs[:ROWS], targets[:ROWS]))
    for _ in range(step.steps):
        step.step(batches)
    last = _share_right(model, inputs[ROWS:], targets[ROWS:])
    with step.evaluated() as average:
        return last, _share_right(average, inputs[ROWS:], targets[ROWS:])


@torch.no_grad()
def _share_right(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    return float((model(inputs).argmax(1) == targets).float().mean())


def main() -> None:
    """Print a line for each case."""
    print("| | last weights, % | average, % |\n|---|---|---|")
    for name, settings in CASES.items():
        found = [accuracies(seed, **settings) for seed in range(SEEDS)]
        columns = [[100 * one for one in column] for column in zip(*found, strict=True)]
        cells = [f"{fmean(one):.1f} ± {stdev(one):.1f}" for one in columns]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
