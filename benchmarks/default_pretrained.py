"""Tasks whose model begins from public weights: trained on other rows, and a classifier that begins at random.

The public rows are of the same kind but not of the same question: other classes, other directions, other words.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.default_tasks import SEED, Rows, Task, digits, mlp, sequences, split, teacher

PASSES, BATCH = 30, 64


def train(model: nn.Module, rows: Rows) -> dict[str, Tensor]:
    """The weights after ordinary training, without privacy."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(PASSES):
        for places in torch.randperm(len(rows[0])).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows[0][places]), rows[1][places]).backward()
            optimizer.step()
    return model.state_dict()


def _start(public: Task, private: Task) -> Task:
    """The private task, whose model has the weights of the public one everywhere but in its last layer."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        model = public.model()
        weights = train(model, public.train)
    head = next(name for name, module in reversed(list(model.named_modules())) if isinstance(module, nn.Linear))
    kept = {name: value for name, value in weights.items() if name.rpartition(".")[0] != head}

    def build() -> nn.Module:
        started = private.model()
        started.load_state_dict(kept, strict=False)
        return started

    return replace(private, model=build)


def _classes(task: Task, first: int, build: Callable[[], nn.Module]) -> Task:
    """The rows of five classes."""
    parts = [
        (x[keep], y[keep] - first) for x, y in (task.train, task.test) for keep in [(y >= first) & (y < first + 5)]
    ]
    return Task(train=parts[0], test=parts[1], model=build)


def digits_upper() -> Task:
    """Digits 5 to 9, from a net that knows 0 to 4."""
    build = mlp(64, 64, 64, 5)
    return _start(_classes(digits(), 0, build), _classes(digits(), 5, build))


def _features(rows: int, classes: int, seed: int) -> Task:
    """The largest of linear functions, made from the seed, of 24 features that all seeds share and no layer sees."""
    shared, generator = np.random.default_rng(21), np.random.default_rng(seed)
    W, x = shared.standard_normal((60, 24)) / 60**0.5, generator.standard_normal((rows, 60))
    hidden = np.maximum(np.abs(1.5 * x @ W) - 0.3, 0)
    hidden = (hidden - hidden.mean(0)) / hidden.std(0)
    y = (hidden @ generator.standard_normal((24, classes))).argmax(1)
    return split(x, y, 2000, mlp(60, 128, 64, classes))


def features() -> Task:
    """2,000 private rows, hard to learn from nothing; 20,000 public rows of other classes teach the features."""
    return _start(_features(22_000, 16, 31), _features(4000, 5, 32))


def sequences_other() -> Task:
    """The public texts are of other words."""
    return _start(sequences(first=4, seed=14), sequences())


def teacher_near() -> Task:
    """The public answers are of linear functions that are nearly those of the private ones."""
    return _start(teacher(other=0.5), teacher())


PRETRAINED = {task.__name__: cache(task) for task in (digits_upper, features, sequences_other, teacher_near)}
