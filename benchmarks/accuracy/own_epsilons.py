"""What an epsilon for each client is worth: ten clients at 1, 1, 2, 2, 2, 4, 4, 4, 8, 8.

    python -m benchmarks.accuracy.own_epsilons --data digits cifar10 --seeds 0 1 2 --json FILE

Four arms on the same rows: everyone at the smallest epsilon, the strictest clients left out and
the others at 2, and each its own, counted by its rows or by its noise. Two divisions of the rows:
ten equal random parts; and two classes that the strictest two clients alone have, which an arm
without them cannot learn. Linear heads, 20 full batches a run (q = 1), noise secret. ``cifar10``
takes scattering features
(``--data-dir``, or FEDLSG_DATA); ``--rows`` leaves out training rows beyond so many.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

import fedlsg
from fedlsg.simulations import workloads
from fedlsg.simulations.workloads import Options, Split

EPSILONS = (1.0, 1.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 8.0, 8.0)
STRICT = 2
"""Clients of the smallest epsilon, which come first."""
ROUNDS = 20
ARMS = ("smallest", "left out", "own", "own, by noise")
DIVISIONS = ("equal", "classes of the strict")


def division(name: str, labels: Tensor, seed: int) -> list[list[int]]:
    """Ten equal parts; in the second form the last two classes are the strict clients' alone."""
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=draw)
    if name == "equal":
        return [part.tolist() for part in order.tensor_split(len(EPSILONS))]
    rare = labels[order] >= int(labels.max()) - 1
    strict = order[rare].tensor_split(STRICT)
    others = order[~rare].tensor_split(len(EPSILONS) - STRICT)
    return [part.tolist() for part in (*strict, *others)]


def of_arm(arm: str, parts: Sequence[list[int]]) -> tuple[list[list[int]], Any]:
    """The clients' rows and the epsilon of an arm."""
    if arm == "smallest":
        return [*parts], min(EPSILONS)
    if arm == "left out":
        return [*parts[STRICT:]], min(EPSILONS[STRICT:])
    return [*parts], dict(enumerate(EPSILONS))


def accuracy(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    parts: Sequence[list[int]],
    epsilon: Any,
    seed: int,
    weighting: str | None = None,
) -> float:
    """Of the linear head after a run, on the test rows."""
    used = torch.tensor(sorted(row for part in parts for row in part))
    place = torch.full((len(train[1]),), -1)
    place[used] = torch.arange(len(used))
    classes, columns = int(train[1].max()) + 1, train[0].shape[1]
    with tempfile.TemporaryDirectory() as folder:
        run = fedlsg.simulate(
            model=lambda: nn.Linear(columns, classes),
            train=(train[0][used], train[1][used]),
            test=test,
            loss=nn.CrossEntropyLoss(),
            partition=[place[torch.tensor(part)].tolist() for part in parts],
            method="dpsgd",
            epsilon=epsilon,
            rounds=ROUNDS,
            sample_rate=1.0,
            weighting=weighting,
            clip_norm=0.1,
            learning_rate=20.0,
            momentum=0.9,
            schedule="cosine",
            evaluate_every=ROUNDS,
            engine="local",
            quiet=True,
            seed=seed,
            out=Path(folder) / "run",
        )
        return float(run.summary["accuracy"])


def read(
    name: str, data_dir: Path | None, rows: int | None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Rows of unit norm and their classes."""
    features = "scattering" if name == "cifar10" else None
    options = Options(features=features, train_rows=rows)
    loaded = workloads.load(name, data_dir=data_dir, options=options, progress=print)
    return _unit(loaded.train), _unit(loaded.test)


def _unit(split: Split) -> tuple[Tensor, Tensor]:
    inputs, labels = split.batch(torch.arange(len(split)))
    rows = torch.as_tensor(inputs).flatten(1).float()
    return rows / rows.norm(dim=1, keepdim=True), torch.as_tensor(labels)


def main() -> None:
    """Print a table, and write all numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", nargs="+", default=["digits"])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = []
    print("| data | rows | arm | test accuracy, % |\n|---|---|---|---|")
    for name in given.data:
        train, test = read(name, given.data_dir, given.rows)
        for rows in DIVISIONS:
            for arm in ARMS:
                scores = []
                for seed in given.seeds:
                    parts, epsilon = of_arm(arm, division(rows, train[1], seed))
                    how = "noise" if arm == "own, by noise" else None
                    scores.append(100 * accuracy(train, test, parts, epsilon, seed, how))
                mean, spread = fmean(scores), stdev(scores) if len(scores) > 1 else 0.0
                print(f"| {name} | {rows} | {arm} | {mean:.1f} ± {spread:.1f} |", flush=True)
                found.append({"data": name, "rows": rows, "arm": arm, "scores": scores})
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
