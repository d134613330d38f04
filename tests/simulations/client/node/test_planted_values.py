"""A deployed client's rows: looked at before its first charge."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedlsg
import fedlsg.simulations.client.deployed
from fedlsg.simulations.client.deployed import check_own_rows, node_process
from fedlsg.simulations.client.node.node_config import read_terms
from fedlsg.simulations.client.node.refusals import OwnDataError, SettingsError
from fedlsg.simulations.flower_apps.client import OWN_CODE, code_digest
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.training_rows import OwnData
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.workloads import give
from tests.simulations.flower_apps.test_flower_app import build, reply, rows
from tests.simulations.support.deployed import RUN, new_process, terms
from tests.simulations.support.own import CLASSES, TRAIN, fresh, load, workload

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
    "transform": {"transform": quoting_transform},
    "model": {"model": Quoting},
    "loss": {"model": Far, "loss": quoting_loss},
    "label": {},
}


def node(folder: Path, fault: str) -> dict[str, Any]:
    """A node with a row of planted values, or with such a label."""
    x, y = rows(40, 5)
    x[7, 2], labels = np.float32(PLANTED), y.astype(object)
    if fault == "label":
        labels[7] = PLANTED
    lines = [
        ",".join([*map(str, row), str(label)])
        for row, label in zip(x.tolist(), labels.tolist(), strict=True)
    ]
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
        "workload": "planted",
        "method": "lsg",
        "rank": 1,
        "clients": 2,
        "rounds": 3,
        "sample-rate": 0.05,
        "noise-multiplier": 2.0,
        "delta": 1e-5,
        OWN_CODE: code_digest("planted", "lsg"),
    }
    answered = reply(app, settings, **node(tmp_path, fault))
    assert "31337" not in str(answered)
    assert answered.has_error() or fault == "model", "what runs on no row yet cannot fail"
    if answered.has_error():
        assert answered.error.reason == str(OwnDataError())
        assert fault == "label" or "31337" in caplog.text, (
            "its own log has the row: the error was there"
        )


@pytest.mark.parametrize("value", ["P1", "NA"])
def test_no_error_says_whose_a_row_is(value, tmp_path, caplog):
    """Not even the number of a row whose person is unclear."""

    def planted() -> fedlsg.Workload:
        given = {"model": build, "loss": nn.CrossEntropyLoss(), "unit": "patient"}
        return fedlsg.Workload(train=None, test=rows(60, 1), name="planted", **given)

    x, y = rows(40, 5)
    patients = [f"P{row // 2}" for row in range(17)] + [value] * 23
    each = zip(x.tolist(), y.tolist(), patients, strict=True)
    lines = [",".join([*map(str, row), str(label), patient]) for row, label, patient in each]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,c,d,e,f,label,patient", *lines]) + "\n")
    app = fedlsg.flower.client_app(planted)
    new_process()
    settings = {
        "workload": "planted",
        "method": "dpsgd",
        "clients": 2,
        "rounds": 3,
        "sample-rate": 0.05,
        "noise-multiplier": 2.0,
        "delta": 1e-5,
        "unit": "patient",
        OWN_CODE: code_digest("planted", "dpsgd"),
    }
    own = terms(tmp_path / "ledger", data=f"planted:{tmp_path / 'own.csv'}", unit="patient")
    answered = reply(app, settings, **own)
    assert answered.has_error() == (value == "NA")
    if answered.has_error():
        assert answered.error.reason == str(OwnDataError())
        assert "row 17" in caplog.text


WRONG: dict[str, Any] = {
    "a number": ((5, 3), "nan in row 5, column 3"),
    "a label": ((17, None), "the targets of train are 0 to 5 (row 17: 5)"),
}


def base_with(changes: tuple[int, int | None] | None) -> Any:
    """The base of a client with a wrong number or label among its rows."""
    x, y = TRAIN[0].copy(), TRAIN[1].copy()
    if changes is not None:
        row, column = changes
        if column is None:
            y[row] = 5
        else:
            x[row, column] = np.nan
    give("rows", workload(name="rows", num_classes=6))
    own = OwnData(client=0, read=lambda loaded: load(workload(train=(x, y), num_classes=6)).train)
    chosen = {name: value for name, value in RUN.items() if name != "engine"}
    return prepare(from_mapping({**chosen, "workload": "rows", "method": "dpsgd"}), own=own)


@pytest.mark.parametrize("name", WRONG)
def test_a_row_that_would_fail_is_refused_with_a_constant_text(name, caplog):
    place, words = WRONG[name]
    with fresh(), pytest.raises(OwnDataError) as found:
        check_own_rows(base_with(place))
    assert str(found.value) == "refused: data; only this client's own log says why"
    assert words in caplog.text


def test_rows_as_they_should_be_pass():
    with fresh():
        check_own_rows(base_with(None))


class Crowded(nn.Module):
    """Fails on more rows than the check of independence tries."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, CLASSES)

    def forward(self, x):
        if torch.is_grad_enabled() and len(x) > 20:
            raise RuntimeError("no place for more than twenty rows")
        return self.layer(x)


def refused_before_any_ledger(folder: Path) -> bool:
    """Whether a client of a model that fails on a full batch refuses when its process begins."""
    give("crowded", workload(model=Crowded, name="crowded"))
    chosen = {**RUN, "workload": "crowded", "method": "dpsgd", "clients": 1, "sample_rate": 1.0}
    chosen["isolation"] = "checked"  # else its code sees one row at a time
    own = read_terms(terms(folder, num_partitions=1))
    node_process.cache_clear()
    try:
        node_process(from_mapping(chosen), own, None, None)
    except SettingsError as error:
        return "no place for more than twenty rows" in str(error)
    return False


def test_a_round_on_public_rows_comes_before_the_first_charge(tmp_path, monkeypatch):
    with fresh():
        assert refused_before_any_ledger(tmp_path)
        monkeypatch.setattr(
            fedlsg.simulations.client.deployed, "rehearse", lambda base, terms: None
        )
        assert not refused_before_any_ledger(tmp_path)  # a negative control
