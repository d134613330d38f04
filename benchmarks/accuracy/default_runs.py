"""Runs for the benchmark of defaults: each is made once, and its score is kept in a file of JSON
lines.
"""

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fedlsg
from benchmarks.accuracy.default_tasks import TASKS

OLD = {
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "momentum": 0.0,
    "rounds": 10,
    "sample_rate": 0.1,
    "clip_norm": 1.0,
}
"""What fedlsg took before it had the rule."""

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A task, a number of clients, the epsilon of each."""

    task: str
    clients: int
    epsilon: float


def as_cell(task: str, text: str) -> Cell:
    """Of a task and "clients:epsilon"."""
    clients, epsilon = text.split(":")
    return Cell(task=task, clients=int(clients), epsilon=float(epsilon))


def run(cell: Cell, seed: int, settings: Values) -> float:
    """Accuracy in %, or 100 R^2, of one run, 0 at least; 0 for a run that diverged. Noise is drawn
    from the seed.
    """
    task = TASKS[cell.task]()
    given: dict[str, Any] = {
        "method": "dpsgd",
        "evaluate_every": 10_000,
        "reproducible": True,
        **settings,
    }
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = fedlsg.simulate(
                model=task.model,
                train=task.train,
                test=task.test,
                loss=task.loss(),
                epsilon=cell.epsilon,
                clients=cell.clients,
                engine="local",
                quiet=True,
                out=Path(folder) / "run",
                seed=seed,
                **given,
            )
        except RuntimeError as error:
            if "diverged" not in str(error):
                raise
            return 0.0
        if not task.regression:
            return 100 * float(found.summary["accuracy"])
        spread = float(task.test[1].var(correction=0))
        return max(0.0, 100 * (1 - float(found.summary["loss"]) / spread))


class Scores:
    """Scores of runs by cell, seed and settings; what the file has is not run again.

    ``again``: but for runs whose learning rate the rule chose, which may be another rule now.
    """

    def __init__(self, path: Path, *, again: bool = False) -> None:
        self.path = path
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        rows = [row for row in rows if not again or "learning_rate" in row["settings"]]
        self.known = {
            _key(row["cell"], row["seed"], row["settings"]): float(row["score"]) for row in rows
        }

    def __call__(self, cell: Cell, seed: int, settings: Values) -> float:
        """The score of a run, made now if it is not known."""
        key = _key(asdict(cell), seed, settings)
        if key not in self.known:
            start = time.process_time()
            score = round(run(cell, seed, settings), 2)
            row = {"cell": asdict(cell), "seed": seed, "settings": settings, "score": score}
            with self.path.open("a") as file:
                file.write(json.dumps(row | {"cpu": round(time.process_time() - start, 2)}) + "\n")
            self.known[key] = score
        return self.known[key]

    def mean(self, cell: Cell, seeds: range, settings: Values) -> float:
        return sum(self(cell, seed, settings) for seed in seeds) / len(seeds)


def _key(*parts: object) -> str:
    return json.dumps(parts, sort_keys=True)
