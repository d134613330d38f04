"""CPU seconds of a private step whose model is the user's own code, isolated, next to the pass over
the batch.

    python -m benchmarks.speed.isolation --json FILE [--steps 100]

Two arms of ``PrivateStep`` train the same model on the same tensors, a step each in turn: one at
``isolation="isolated"``, one at ``"checked"``, which is the pass over the batch of before. A ratio
is the median over the steps of the first arm over the second.
"""

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.pairs import estimate
from fedlsg import PrivateStep
from fedlsg.simulations.models import vision

DRAW = torch.Generator().manual_seed(0)


class Own(nn.Module):
    """A user's class around a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class Recurrent(nn.Module):
    """The last state of an LSTM, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.lstm(x)[1][0][0])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 64, 10),
    )


def wide_resnet() -> nn.Module:
    return vision(3, 32, 10)["wrn-28-4"]()


CASES: dict[str, tuple[Callable[[], nn.Module], int, tuple[int, ...]]] = {
    "MLP 784-128-10": (mlp, 256, (784,)),
    "CNN of two convolutions": (cnn, 64, (3, 32, 32)),
    "LSTM of 64 over 20 steps": (Recurrent, 64, (20, 32)),
    "WRN-28-4": (wide_resnet, 8, (3, 32, 32)),
}


def stepper(
    make: Callable[[], nn.Module], batch: int, shape: tuple[int, ...], level: str, method: str
) -> Any:
    """A function that takes a step."""
    torch.manual_seed(1)
    count = 20 * batch
    data = torch.randn(count, *shape, generator=DRAW), torch.randint(10, (count,), generator=DRAW)
    step = PrivateStep(
        Own(make()),
        nn.CrossEntropyLoss(),
        num_examples=count,
        method=method,
        sample_rate=batch / count,
        steps=10_000,
        noise_multiplier=1.0,
        delta=1e-6,
        learning_rate=0.01,
        isolation=level,  # type: ignore[arg-type]
    )
    rows = step.batches(data)
    return lambda: step.step(rows)


def measure(name: str, method: str, steps: int) -> dict[str, Any]:
    """Milliseconds of both arms, and their ratio."""
    make, batch, shape = CASES[name]
    arms = {level: stepper(make, batch, shape, level, method) for level in ("isolated", "checked")}
    spent: dict[str, list[float]] = {level: [] for level in arms}
    for number in range(steps + 2):
        for level, step in arms.items():
            start = time.process_time()
            step()
            if number >= 2:
                spent[level].append(time.process_time() - start)
    pairs = zip(spent["isolated"], spent["checked"], strict=True)
    return {
        "milliseconds": {level: 1e3 * estimate(seconds).median for level, seconds in spent.items()},
        "ratio": str(estimate([one / other for one, other in pairs])),
    }


def main() -> None:
    """Measure all cases, print and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("fedlsg").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    found = {}
    for method in ("dpsgd", "lsg"):
        for name in CASES:
            if method == "lsg" and CASES[name][0] is Recurrent:
                continue  # it has no layer that is carried
            few = 10 if name == "WRN-28-4" else given.steps
            found[f"{method}, {name}"] = measure(name, method, few)
            print(method, name, found[f"{method}, {name}"], flush=True)
    given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
