"""``fedlsg.simulate``: what it takes, what it refuses before anything is written, callbacks,
resuming.
"""

import math
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedlsg
from tests.simulations.support.own import CLASSES, TEST, TRAIN, build, quick, refused


def weights(found: fedlsg.Run) -> torch.Tensor:
    return torch.cat([w.flatten() for w in found.model.state_dict().values()])


def nothing_in(folder: Path) -> bool:
    return not any(folder.iterdir())


LOSSES = {
    "a module": nn.CrossEntropyLoss(),
    "a function": functional.cross_entropy,
    "one's own": lambda o, t: functional.cross_entropy(o, t, reduction="none"),
    "class weights": nn.CrossEntropyLoss(weight=torch.ones(CLASSES)),
    "class weights of a function": partial(functional.cross_entropy, weight=torch.ones(CLASSES)),
    "by hand": lambda o, t: -o.log_softmax(1).gather(1, t[:, None]).squeeze(1),
}


def test_a_loss_may_have_any_of_its_usual_forms(tmp_path):
    found = [quick(tmp_path / name, loss=loss) for name, loss in LOSSES.items()]
    for other in found[1:]:
        assert other.summary["loss"] == pytest.approx(found[0].summary["loss"], rel=1e-5)
        assert torch.allclose(weights(other), weights(found[0]), atol=1e-5)


class SlowStart(fedlsg.Callback):
    """A plan that takes half a second more."""

    def on_plan(self, directions):
        time.sleep(0.5)


def test_the_seconds_of_the_start_are_those_a_watch_shows(tmp_path):
    """From the call on: reading data, checking rows and calibrating noise are among them."""
    began = time.monotonic()
    summary = quick(tmp_path / "run", callbacks=[SlowStart()]).summary
    watch = time.monotonic() - began
    assert 0.5 < summary["seconds"]["start"] < summary["wall_seconds"] < watch
    assert sum(summary["seconds"].values()) == pytest.approx(summary["wall_seconds"], abs=0.01)


X, NUMBERS, LABELS = TRAIN[0], TRAIN[0][:, :2], (TRAIN[0] > 0)[:, :4]
TOKENS = np.abs(TRAIN[0] * 3).astype(np.int64) % 7


class Speaker(nn.Module):
    """Outputs (B, T, V) of tokens (B, T)."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 5), nn.Linear(5, 9)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


KINDS = {
    "regression": (lambda: nn.Linear(8, 2), (X, NUMBERS), nn.MSELoss()),
    "one number": (
        lambda: nn.Sequential(nn.Linear(8, 1), nn.Flatten(0)),
        (X, X[:, 0]),
        functional.mse_loss,
    ),
    "multi-label": (
        lambda: nn.Linear(8, 4),
        (X, LABELS.astype(np.float32)),
        nn.BCEWithLogitsLoss(),
    ),
    "language modelling": (Speaker, (TOKENS, TOKENS), nn.CrossEntropyLoss()),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("kind", KINDS)
def test_targets_of_any_kind_train_and_have_a_loss_and_metrics_instead_of_an_accuracy(
    kind, tmp_path
):
    model, data, loss = KINDS[kind]
    metrics = {"error": lambda o, t: (o.float().mean() - t.float().mean()).abs()}
    train, test = (tuple(part[rows] for part in data) for rows in (slice(40), slice(40, None)))
    found = quick(
        tmp_path / "run", model=model, train=train, test=test, loss=loss, metrics=metrics, rounds=2
    )
    assert found.summary["accuracy"] is None
    assert math.isfinite(found.summary["loss"])
    assert [row["accuracy"] for row in found.rounds] == [None, None]
    assert all(math.isfinite(row["error"]) for row in found.rounds)
    assert "accuracy" not in repr(found)


class Named(nn.Module):
    """Takes inputs by name, and returns an object with logits, as the models of transformers do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, CLASSES)

    def forward(self, *, x, scale):
        return SimpleNamespace(logits=self.linear(x * scale))


@pytest.mark.slow
def test_inputs_by_name_and_outputs_with_logits(tmp_path):
    train, test = (({"x": x, "scale": np.ones((len(x), 1))}, y) for x, y in (TRAIN, TEST))
    plain = quick(tmp_path / "plain", model=lambda: nn.Sequential(nn.Linear(8, CLASSES)))
    named = quick(tmp_path / "named", model=Named, train=train, test=test)
    assert torch.equal(weights(named), weights(plain))


def by_first(outputs, targets):
    """A planted mistake: weighted by the first example of the batch."""
    return functional.cross_entropy(outputs, targets, reduction="none") * targets[0]


class Seeded(nn.Linear):
    """A planted mistake: draws that everybody knows."""

    def __init__(self):
        super().__init__(8, 3)

    def forward(self, x):
        torch.manual_seed(0)
        return functional.dropout(super().forward(x), 0.5, training=True)


def drawn(outputs, targets):
    """A planted mistake: weights of examples by a generator that begins anew in each call."""
    weights = torch.rand(len(targets), generator=torch.Generator().manual_seed(0))
    return functional.cross_entropy(outputs, targets, reduction="none") * weights


def unlike():
    """A planted mistake: weights by numpy's generator, which nothing seeds."""
    model = build()
    with torch.no_grad():
        model[0].weight.copy_(torch.as_tensor(np.random.randn(*model[0].weight.shape)))
    return model


REFUSED = {
    "another framework's name": (
        {"num_rounds": 3},
        "unknown setting 'num_rounds'; it is 'rounds' here",
    ),
    "a name of Opacus": (
        {"max_grad_norm": 1.0},
        "unknown setting 'max_grad_norm'; it is 'clip_norm' here",
    ),
    "an unknown method": ({"method": "fedavg"}, "fedavg is called 'sgd' here"),
    "a loss that averages": (
        {"loss": lambda o, t: functional.cross_entropy(o, t)},
        "the loss averages over the batch",
    ),
    "and without a clip": (
        {
            "loss": lambda o, t: functional.cross_entropy(o, t),
            "method": "sgd",
            "noise_multiplier": None,
        },
        "the loss averages over the batch",
    ),
    "a loss that sums": (
        {"loss": lambda o, t: (o[:, 0] - t).square().sum()},
        "without a mean or sum over dimension 0",
    ),
    "a loss that mixes": ({"loss": by_first}, "the loss function: mixes examples"),
    "a loss of the batch's mean": (
        {"loss": lambda o, t: functional.cross_entropy(o - o.mean(0), t, reduction="none")},
        "mixes examples",
    ),
    "a model that seeds its draws": (
        {"model": lambda: Seeded()},
        "sets its random draws itself (torch.manual_seed)",
    ),
    "a loss with a generator of its own": (
        {"loss": drawn},
        "a generator of its own",
        "remove the seed and the generator",
    ),
    "a loss that is none": (
        {"loss": "mse"},
        "expected loss(outputs, targets), a function or a module of torch",
    ),
    "a transform that mixes": (
        {"transform": lambda x: x - x.mean(0)},
        "mixes examples: make each row from itself",
    ),
    "a module": ({"model": build()}, "write model=lambda: MyModel(...)"),
    "too few outputs": (
        {"model": lambda: nn.Linear(8, 2)},
        "the model gives 2 outputs, for classes 0 to 1, and the targets of test are 0 to 2 (row 4: 2)",
        "give the model 3 outputs",
    ),
    "another width": (
        {"model": lambda: nn.Linear(7, 3)},
        "(Linear): takes 7 numbers a row, and the inputs have 8",
        "nn.Linear(8, 3)",
    ),
    "weights in float16": (
        {"model": lambda: build().half()},
        "weights are torch.float16",
        "model.float()",
    ),
    "weights in float16 without a clip": (
        {"model": lambda: build().half(), "method": "sgd", "noise_multiplier": None},
        "weights are torch.float16",
        "model.float()",
    ),
    "weights in bfloat16": (
        {"model": lambda: build().bfloat16()},
        "weights are torch.bfloat16",
        "model.float()",
    ),
    "weights and inputs in float16": (
        {
            "model": lambda: build().half(),
            "train": (TRAIN[0].astype(np.float16), TRAIN[1]),
            "test": (TEST[0].astype(np.float16), TEST[1]),
        },
        "weights are torch.float16",
        "float32 inputs",
    ),
    "two types without a clip": (
        {"model": lambda: build().double(), "method": "sgd", "noise_multiplier": None},
        "give both one type, inputs.to(torch.float64) or model.float()",
    ),
    "another width of train": (
        {"train": (TRAIN[0][:, :7], TRAIN[1])},
        "the model or the loss fails with RuntimeError: mat1",
        "on rows of train (inputs torch.float32 (1, 7)",
    ),
    "a model with BatchNorm": (
        {"model": lambda: nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3))},
        "BatchNorm1d): mixes the examples",
    ),
    "a model that is another one in each process": (
        {"model": unlike},
        "draw from torch's default generator only",
    ),
    "outputs of another shape": (
        {"loss": nn.MSELoss()},
        "expected outputs and targets of one shape for MSELoss",
    ),
    "a metric with a taken name": (
        {"metrics": {"epsilon_max": len}},
        "metrics['epsilon_max'] is a column of rounds",
    ),
    "a metric that is none": ({"metrics": {"f1": 3}}, "metrics['f1'] is no function"),
    "metrics without names": ({"metrics": [len]}, "metrics=list: expected a dict"),
    "one callback": ({"callbacks": print}, "expected a list of callbacks or of functions"),
    "a model that is none": (
        {"model": lambda: None},
        "model 'own'",
        "built as NoneType: return an nn.Module",
    ),
    "a model with its changes": (
        {"model": lambda: fedlsg.make_supported(build())},
        "built as Supported: return an nn.Module, such as its field model",
    ),
    "no model": ({"model": None}, "simulate needs model; or a workload, as workload='digits'"),
    "both": (
        {"epsilon": 1.0, "mechanism": "none", "noise_multiplier": None},
        "needs a mechanism that adds noise",
    ),
    "Flower's engine": ({"engine": "flower"}, "engine"),
    "a method that is none": ({"method": 3}, "method=int: expected the name of a recipe"),
    "an unknown scheme": (
        {"partition": "writer"},
        "unknown partition of own 'writer', expected one of iid",
    ),
    "a preset of a paper": ({"preset": "nothing"}, "nothing"),
}


@pytest.mark.thinned(12)
@pytest.mark.parametrize("case", REFUSED)
def test_wrong_use_is_refused_in_one_line_and_leaves_nothing(case, tmp_path, monkeypatch):
    changes, *words = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    with refused(*words):
        quick(None, **changes)
    assert nothing_in(tmp_path)


@pytest.mark.parametrize("part", ["model", "loss", "transform", "metric", "callback", "test rows"])
def test_a_users_code_that_leaves_the_process_is_an_error_that_names_its_line(part, tmp_path):
    def leave(*_):
        sys.exit(0)

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        __getitem__ = leave

    given = {
        "model": {"model": leave},
        "loss": {"loss": lambda outputs, targets: leave()},
        "transform": {"transform": leave},
        "metric": {"metrics": {"mine": lambda outputs, targets: leave()}},
        "callback": {"callbacks": [leave]},
        "test rows": {"test": Rows()},
    }[part]
    with pytest.raises(
        (RuntimeError, ValueError),
        match=r"SystemExit: 0 \(test_simulate.py, line \d+: sys.exit\(0\)\)",
    ):
        quick(tmp_path / "run", **given)


@pytest.mark.slow
def test_a_callback_that_fails_ends_the_run_which_can_be_resumed(tmp_path):
    whole = quick(tmp_path / "whole", rounds=3)

    def fails(row):
        if row["round"] == 2:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        quick(tmp_path / "run", rounds=3, callbacks=[fails])
    half = fedlsg.load_run(tmp_path / "run")
    assert [row["round"] for row in half.rounds] == [1, 2]
    resumed = quick(tmp_path / "run", rounds=3, resume=True)
    assert torch.equal(weights(resumed), weights(whole))
    assert [row["loss"] for row in resumed.rounds] == [row["loss"] for row in whole.rounds]


@pytest.mark.slow
def test_nothing_of_a_users_own_changes_the_ledger(tmp_path):
    """Loss, metrics, transform and callbacks write whatever they want into what they are given."""

    def metric(outputs, targets):
        outputs.zero_()
        targets.zero_()
        return 0.0

    def callback(row):
        row.clear()
        row["epsilon_max"] = 0.0

    plain = quick(tmp_path / "plain", rounds=2)
    other = quick(tmp_path / "other", rounds=2, metrics={"m": metric}, callbacks=[callback])
    ledgers = [sorted((run.directory / "ledger").rglob("*")) for run in (plain, other)]
    found = [[path.read_bytes() for path in paths if path.suffix == ".jsonl"] for paths in ledgers]
    assert found[0] == found[1] != []
    assert plain.epsilon == other.epsilon
    assert torch.equal(weights(plain), weights(other))
