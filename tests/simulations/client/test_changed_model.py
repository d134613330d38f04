"""A model or a loss that is changed while a run is under way trains nobody, and nobody is
charged.
"""

import gc
import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedlsg
from fedlsg.simulations.client.process_state import Process
from tests.simulations.support.own import CLASSES, TRAIN, quick

COLUMNS = TRAIN[0].shape[1]


class Activation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.function = torch.tanh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Writing(Activation):
    """Its forward writes attributes and makes a layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        self.seen = x.detach()
        if not hasattr(self, "late"):
            self.late = nn.Tanh()
        return self.late(x)


class Loss:
    def __init__(self) -> None:
        self.scale, self.calls = 1.0, 0

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = outputs.detach()
        return self.scale * functional.cross_entropy(outputs, targets, reduction="none")


def build(kind: type[nn.Module] = Activation) -> nn.Module:
    return nn.Sequential(nn.Linear(COLUMNS, 8), kind(), nn.Linear(8, CLASSES))


def centre(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x - x.mean(0))


def activations() -> list[Activation]:
    return [thing for thing in gc.get_objects() if type(thing) is Activation]


def by_hook(loss: Loss, patch: Any) -> None:
    for module in activations():
        module.register_forward_hook(lambda module, inputs, output: output - output.mean(0))


def by_attribute(loss: Loss, patch: Any) -> None:
    for module in activations():
        module.function = centre


def by_class(loss: Loss, patch: Any) -> None:
    patch.setattr(Activation, "forward", lambda self, x: centre(x))


def by_loss(loss: Loss, patch: Any) -> None:
    loss.scale = 2.0


def run_with(change: Any, folder: Any, monkeypatch: Any, **given: Any) -> fedlsg.Run:
    """Three rounds; after the first one a callback changes something."""
    loss = Loss()

    def change_once(row: dict[str, Any]) -> None:
        if row["round"] == 1:
            change(loss, monkeypatch)

    own = {"model": build, "loss": loss, "rounds": 3, "engine": "local", "callbacks": [change_once]}
    return quick(folder, **own | given)


def trained(run: fedlsg.Run) -> list[bool]:
    return [bool(row["answered"]) for row in run.rounds]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("change", [by_hook, by_attribute, by_class, by_loss])
def test_a_change_between_rounds_is_refused_and_not_charged(change, tmp_path, monkeypatch):
    run = run_with(change, tmp_path / "run", monkeypatch)
    assert trained(run) == [True, False, False]
    assert "changed after the run had checked it" in run.rounds[1]["reasons"]
    lines = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    assert {json.loads(line)["round"] for line in lines} == {1}


@pytest.mark.slow
def test_what_a_pass_or_an_evaluation_writes_is_no_change(tmp_path, monkeypatch):
    run = run_with(
        lambda loss, patch: None, tmp_path / "run", monkeypatch, model=lambda: build(Writing)
    )
    assert trained(run) == [True, True, True]


def test_negative_control_a_client_that_does_not_compare_trains_and_is_charged(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(Process, "check_unchanged", lambda self: None)
    assert trained(run_with(by_hook, tmp_path / "run", monkeypatch)) == [True, True, True]


class View(nn.Module):
    """``view``, which needs rows that lie one after the other in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 2, 3, padding=1), nn.Linear(2 * 16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)).view(-1, 2 * 16))


def images(count: int, *, scattered: bool) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(count)
    x = torch.randn(count, 4, 4, 3, generator=draw).permute(0, 3, 1, 2)
    return x if scattered else x.contiguous(), torch.arange(count) % CLASSES


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("arrays", [False, True])
def test_training_rows_that_are_scattered_in_memory_are_refused_before_anything_is_written(
    tmp_path, clients, arrays
):
    train, test = images(80, scattered=True), images(40, scattered=False)
    if arrays:
        train, test = (tuple(part.numpy() for part in split) for split in (train, test))
    with pytest.raises(ValueError, match=r"not contiguous.*reshape"):
        quick(tmp_path / "run", model=View, train=train, test=test, clients=clients)
    assert not (tmp_path / "run").exists()


def test_training_rows_of_the_same_layout_train(tmp_path):
    train, test = images(80, scattered=False), images(40, scattered=False)
    run = quick(tmp_path / "run", model=View, train=train, test=test)
    assert all(trained(run))
