"""A deployed client whose code quotes a private row in its errors: a server learns that the data failed, no more."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedlsg
from simulations.flower.client import OWN_CODE, code_digest
from simulations.grids.virtual import OwnDataError
from tests.simulations.flower.test_flower_app import build, reply, rows
from tests.simulations.support.deployed import new_process, terms

PLANTED = 31337.25


def quote(values: Tensor) -> None:
    """Raise an error of a type whose text would leave the client elsewhere, with the row in it."""
    if bool((values == PLANTED).any()):
        raise ValueError(f"cannot take {values.tolist()}")


class Quoting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = build()

    def forward(self, x: Tensor) -> Tensor:
        quote(x)
        return self.body(x)


def quoting_transform(x: Tensor) -> Tensor:
    quote(x)
    return x


def quoting_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    if bool((outputs.abs() > 1000).any()):
        quote(torch.tensor(PLANTED))
    return F.cross_entropy(outputs, targets, reduction="none")


class Far(nn.Module):
    """Outputs that grow with the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return 100 * self.head(x)


FAULTS: dict[str, dict[str, Any]] = {
    "transform": {"transform": quoting_transform}, "model": {"model": Quoting},
    "loss": {"model": Far, "loss": quoting_loss}, "label": {},
}  # fmt: skip


def node(folder: Path, fault: str) -> dict[str, Any]:
    """A node with a row of planted values, or with such a label."""
    x, y = rows(40, 5)
    x[7, 2], labels = np.float32(PLANTED), y.astype(object)
    if fault == "label":
        labels[7] = PLANTED
    lines = [",".join([*map(str, row), str(label)]) for row, label in zip(x.tolist(), labels.tolist(), strict=True)]
    (folder / "own.csv").write_text("\n".join(["a,b,c,d,e,f,label", *lines]) + "\n")
    return terms(folder / "ledger", data=f"planted:{folder / 'own.csv'}")


@pytest.mark.parametrize("fault", FAULTS)
def test_no_value_of_a_row_leaves_with_an_error(fault, tmp_path, caplog):
    def planted() -> fedlsg.Workload:
        given = {"model": build, "loss": nn.CrossEntropyLoss(), **FAULTS[fault]}
        return fedlsg.Workload(train=None, test=rows(60, 1), name="planted", **given)

    app = fedlsg.flower.client_app(planted)
    new_process()
    settings = {
        "workload": "planted", "method": "lsg", "rank": 1, "clients": 2, "rounds": 3, "sample-rate": 0.05,
        "noise-multiplier": 2.0, "delta": 1e-5, OWN_CODE: code_digest("planted", "lsg"),
    }  # fmt: skip
    answered = reply(app, settings, **node(tmp_path, fault))
    assert "31337" not in str(answered)
    assert answered.has_error() or fault == "model", "what runs on no row yet cannot fail"
    if answered.has_error():
        assert answered.error.reason == str(OwnDataError())
        assert fault == "label" or "31337" in caplog.text, "its own log has the row: the error was there"
