"""A deployed client looks at its rows before its first charge: its log names the row, the server reads a constant."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import simulations.client.deployed
from simulations.client.deployed import check_own_rows, node_process
from simulations.client.node.terms import read_terms
from simulations.grids.virtual import OwnDataError, SettingsError
from simulations.plan.base import Own
from simulations.plan.prepare import prepare
from simulations.settings.settings import from_mapping
from simulations.workloads import give
from tests.simulations.support.deployed import RUN, terms
from tests.simulations.support.own import CLASSES, TRAIN, fresh, load, workload

WRONG: dict[str, Any] = {
    "a number": ((5, 3), "nan in row 5, column 3"), "a label": ((17, None), "the target of train row 17, 5"),
}  # fmt: skip


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
    own = Own(client=0, read=lambda loaded: load(workload(train=(x, y), num_classes=6)).train)
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
    own = read_terms(terms(folder, num_partitions=1))
    node_process.cache_clear()
    try:
        node_process(from_mapping(chosen), own, None)
    except SettingsError as error:
        return "no place for more than twenty rows" in str(error)
    return False


def test_a_round_on_public_rows_comes_before_the_first_charge(tmp_path, monkeypatch):
    with fresh():
        assert refused_before_any_ledger(tmp_path)
        monkeypatch.setattr(simulations.client.deployed, "rehearse", lambda base, terms: None)
        assert not refused_before_any_ledger(tmp_path)  # a negative control
