"""Before a client is charged: rows, the initial model and a whole round are tried; what fails is
free and is named.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedlsg
import fedlsg.simulations.server.ready
from fedlsg.privacy import RunLedger
from tests.simulations.support.own import CLASSES, TEST, TRAIN, quick, refused

X, Y = (torch.as_tensor(part) for part in TRAIN)
X, Y = X.float(), Y.long()
U, V = torch.as_tensor(TEST[0]).float(), torch.as_tensor(TEST[1]).long()


def with_one(values: torch.Tensor, place: tuple[int, ...], value: float) -> torch.Tensor:
    changed = values.clone()
    changed[place] = value
    return changed


class Words(nn.Module):
    """Tokens (B, 3) of a table of nine."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, CLASSES)
        self.table.requires_grad_(False)

    def forward(self, tokens):
        return self.head(self.table(tokens).mean(1))


TOKENS, TEST_TOKENS = torch.arange(180).reshape(60, 3) % 9, torch.arange(72).reshape(24, 3) % 9
NAN, INF = float("nan"), float("inf")
FAULTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a test label": (
        {"test": (U, with_one(V, (20,), 7))},
        ("the model gives 3 outputs", "targets of test are 0 to 7 (row 20: 7)"),
    ),
    "a negative label": ({"train": (X, with_one(Y, (50,), -3))}, ("train targets are -3 to 2",)),
    "NaN in test": (
        {"test": (with_one(U, (20, 3), NAN), V)},
        ("test inputs", "nan in row 20, column 3"),
    ),
    "Inf in test": (
        {"test": (with_one(U, (20, 3), INF), V)},
        ("test inputs", "inf in row 20, column 3"),
    ),
    "NaN in train": (
        {"train": (with_one(X, (50, 1), NAN), Y)},
        ("train inputs", "nan in row 50, column 1"),
    ),
    "Inf in a data set": (
        {"train": TensorDataset(with_one(X, (50, 1), -INF), Y)},
        ("-inf in row 50, column 1",),
    ),
    "Inf of numpy": (
        {"train": (with_one(X, (50, 1), INF).numpy(), Y.numpy())},
        ("inf in row 50, column 1",),
    ),
    "a dict": (
        {"train": ({"input": with_one(X, (9, 0), INF)}, Y), "test": ({"input": U}, V)},
        ("input have", "row 9"),
    ),
    "made by a transform": (
        {"transform": lambda x: x.abs().sub(5).clamp(min=0).log()},
        ("-inf in row 0",),
    ),
    "complex": (
        {"train": (X.to(torch.complex64), Y), "test": (U.to(torch.complex64), V)},
        ("are complex",),
    ),
    "texts": ({"train": (np.array([["a"] * 8] * 60), Y)}, ("transform= makes numbers of",)),
    "float targets": (
        {"train": (X, Y.float()), "test": (U, V.float())},
        ("takes the number of each class",),
    ),
    "no test rows": ({"test": (U[:0], V[:0])}, ("one at least",)),
    "float64 tensors": (
        {"train": (X.double(), Y), "test": (U.double(), V)},
        ("float64", "float32"),
    ),
    "fewer outputs than num_classes": (
        {"num_classes": 5},
        ("the model gives 3 numbers for each example, and there are 5 classes (num_classes)",),
    ),
    "more outputs than num_classes": (
        {"num_classes": 3, "model": lambda: nn.Linear(8, 4)},
        ("gives 4 numbers", "there are 3 classes"),
    ),
    "one number for three classes": (
        {"model": lambda: nn.Linear(8, 1), "loss": lambda o, t: (o[:, 0] - t).square()},
        (
            "the model gives 1 number for each example, and there are 3 classes",
            "targets that are no classes as floats",
        ),
    ),
    "scores of another shape": (
        {
            "model": lambda: nn.Sequential(nn.Linear(8, 6), nn.Unflatten(1, (3, 2))),
            "loss": lambda o, t: o.mean((1, 2)),
        },
        ("outputs of shape (3, 2) for each example", "accuracy needs one score for each class"),
    ),
    "a metric": (
        {"metrics": {"mine": lambda o, t: o[:, 9].mean()}},
        ("metric 'mine' failed", "IndexError"),
    ),
    "a token of train": (
        {"model": Words, "train": (with_one(TOKENS, (44, 1), 9), Y), "test": (TEST_TOKENS, V)},
        ("the model fails on train row 44", "index out of range"),
    ),
    "a token of test": (
        {"model": Words, "train": (TOKENS, Y), "test": (with_one(TEST_TOKENS, (5, 1), 9), V)},
        ("the model fails on test row 5", "index out of range"),
    ),
}


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_rows_is_named_before_anything_is_written(name, tmp_path):
    changes, words = FAULTS[name]
    rounds: list[Any] = []
    with refused(*words):
        quick(tmp_path / "run", callbacks=[rounds.append], **changes)
    assert not rounds
    assert not any(tmp_path.iterdir())


class Crowded(nn.Module):
    """Fails on more rows than the check of independence tries."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, CLASSES)

    def forward(self, x):
        if torch.is_grad_enabled() and len(x) > 20:
            raise RuntimeError("no place for more than twenty rows")
        return self.layer(x)


def charged(folder: Path) -> bool:
    return any(RunLedger(path.parent).clients() for path in folder.rglob("ledger/run.jsonl"))


def crowded(folder: Path) -> fedlsg.Run:
    """A run of a model that fails on a full batch, passed at once: isolated, it sees one row at a
    time.
    """
    return quick(folder, model=Crowded, sample_rate=1.0, clients=1, isolation="checked")


def test_a_failure_of_a_full_batch_is_free_and_says_where(tmp_path):
    with refused(
        "RuntimeError: no place for more than twenty rows (test_ready.py, line ",
        "nothing was charged",
    ):
        crowded(tmp_path / "run")
    assert not charged(tmp_path)


KINDS: dict[str, dict[str, Any]] = {
    "lsg": {"method": "lsg", "rank": 2},
    "adam": {"optimizer": "adam", "ema": 0.9},
    "lora": {"method": "lora", "rank": 2},
    "bfloat16": {"precision": "bfloat16"},
    "snip": {"method": "dp-ssgd", "prune": "dp-snip"},
    "topk": {"method": "topk", "noise_multiplier": None},
    "factors": {"method": "dp-powersgd", "rank": 2},
    "local steps": {"local_steps": 3, "local_momentum": 0.5},
    "probe": {
        "method": "probe",
        "rank": 2,
        "out_rank": 2,
        "probe": lambda n, g: torch.randn(n, 8, generator=g),
    },
    "noise floor": {"codec": "noise-floor"},
    "sparse downlink": {"downlink": "sparse"},
    "personal": {"personal": "classifier", "classifier": "2"},
    "secure": {"trust": "secure", "clients": 3},
    "shuffled": {"sampling": "shuffle", "batch_size": 6, "sample_rate": None},
    "client level": {
        "unit": "client",
        "trust": "server",
        "clients": 8,
        "sample_rate": None,
        "batch_size": 4,
        "delta": 0.01,
    },
    "sgd": {"method": "sgd", "noise_multiplier": None},
}


def traces(folder: Path, changes: dict[str, Any]) -> tuple[Any, ...]:
    """What a run leaves: its weights, and the generators of the process."""
    torch.manual_seed(1)
    np.random.seed(1)
    changes = {"record_updates": False} | changes
    run = quick(folder, **changes)
    return (
        [w.tolist() for w in run.model.state_dict().values()],
        torch.rand(1).item(),
        np.random.rand(),
    )


def is_untouched(folder: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> bool:
    with_it = traces(folder / "with", changes)
    with monkeypatch.context() as patch:
        patch.setattr(fedlsg.simulations.server.ready, "rehearse", lambda plan, terms: None)
        return traces(folder / "without", changes) == with_it


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "kind",
    [
        kind if turn % 3 == 0 else pytest.param(kind, marks=pytest.mark.slow)
        for turn, kind in enumerate(KINDS)
    ],
)
def test_runs_are_those_without_a_rehearsal(kind, tmp_path, monkeypatch):
    assert is_untouched(tmp_path, KINDS[kind], monkeypatch)
