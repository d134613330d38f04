"""Accuracy of runs of few rounds, at the learning rate of the rule for T updates.

    python -m benchmarks.accuracy.few_rounds --out FOLDER [--rounds 3 10] [--seeds 2]

The rate is 0.2 / sqrt(T). A run of R rounds takes it for T = R or for a larger T: which one is
better? (The rule takes T = 100 / R where R is below 10.) Tasks: digits with two networks, a made-up
table, a linear head on public features of digits; four clients, epsilon 3. Prints the mean accuracy
in % for each T.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from torch import nn

import fedlsg
from fedlsg.training.auto import SCALE, size_factor

FEWEST = (20, 40, 80)


def network(inputs: int, hidden: int, classes: int) -> Callable[[], nn.Module]:
    """A network of two layers."""
    return lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def digits() -> dict[str, Any]:
    """Images as rows of 64 numbers."""
    loaded = fedlsg.load_workload("digits")
    splits = {"train": loaded.train, "test": loaded.test}
    return {
        name: (np.asarray(split.inputs).reshape(-1, 64).astype("float32") / 8 - 1, split.labels)
        for name, split in splits.items()
    }


def table() -> dict[str, Any]:
    """12 columns, two classes, a sixth of them against the rule."""
    draw = np.random.default_rng(0)
    x, weights = draw.standard_normal((6000, 12)).astype("float32"), draw.standard_normal(12)
    y = (x @ weights + 0.5 * x[:, 0] * x[:, 1] + draw.standard_normal(6000) > 0).astype("int64")
    return {"train": (x[:5000], y[:5000]), "test": (x[5000:], y[5000:])}


def of_network(build: Callable[[], nn.Module], data: dict[str, Any]) -> dict[str, Any]:
    """A run with the rule's settings but its rate."""
    return {
        **data,
        "model": build,
        "loss": nn.CrossEntropyLoss(),
        "layer_rates": "fan-in",
        "scale": SCALE * size_factor(list(build().parameters())),
    }


TASKS: dict[str, dict[str, Any]] = {
    "digits, 32 units": of_network(network(64, 32, 10), digits()),
    "digits, 512 units": of_network(network(64, 512, 10), digits()),
    "table, 64 units": of_network(network(12, 64, 2), table()),
    "digits, head on patches": {"workload": "digits", "features": "patches", "scale": SCALE},
}


def accuracy(task: dict[str, Any], rounds: int, updates: int, seed: int, out: Path) -> float:
    """Of one run."""
    settings = {name: value for name, value in task.items() if name != "scale"}
    run = fedlsg.simulate(
        **settings,
        method="dpsgd",
        epsilon=3.0,
        clients=4,
        rounds=rounds,
        seed=seed,
        sample_rate=min(1.0, 20 / rounds),
        optimizer="adam",
        optimizer_options="betas=0.5 0.99",
        ema=max(0.0, 1 - 5 / rounds),
        learning_rate=task["scale"] / math.sqrt(updates),
        engine="local",
        quiet=True,
        out=out,
    )
    return float(run.summary["accuracy"])


def main() -> None:
    """Every task, number of rounds and T."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--rounds", type=int, nargs="+", default=[3, 10])
    options.add_argument("--seeds", type=int, default=2)
    given = options.parse_args()
    for name, task in TASKS.items():
        for rounds in given.rounds:
            words = []
            for updates in dict.fromkeys((rounds, *FEWEST)):
                place = given.out / f"{name.replace(', ', '-')}-{rounds}-{updates}".replace(
                    " ", "-"
                )
                mean = fmean(
                    accuracy(task, rounds, updates, seed, place / str(seed))
                    for seed in range(given.seeds)
                )
                words.append(f"T={updates}: {100 * mean:.1f}")
            print(f"{name}, {rounds} rounds: {', '.join(words)}", flush=True)


if __name__ == "__main__":
    main()
