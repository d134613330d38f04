"""A deployed client's shuffled batches: no server, and no change of data, puts a row into two
batches of an epoch.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import fedlsg.simulations.client.deployed
from fedlsg.privacy import Ledger, ShuffledBatches
from fedlsg.simulations.client.node.folder import NodeFolder
from tests.simulations.support.deployed import (
    Server,
    digits_file,
    entries,
    new_process,
    payload,
    refusal,
    terms,
)

# 200 rows: two batches of an epoch for every batch size from 100 to 199.
SHUFFLE = {"sampling": "shuffle", "sample_rate": None, "noise_multiplier": 4.0}


@pytest.fixture
def drawn(monkeypatch) -> list[Tensor]:
    """The positions of every batch that the client draws."""
    found: list[Tensor] = []
    shipped = ShuffledBatches.next_batch

    def next_batch(batches: ShuffledBatches) -> Tensor:
        found.append(shipped(batches))
        return found[-1]

    monkeypatch.setattr(ShuffledBatches, "next_batch", next_batch)
    return found


def asked(node: dict, copy: Path, batch_size: int, *, run: str = "run-1") -> Server:
    new_process()
    return Server.start(node, copy, run=run, batch_size=batch_size, **SHUFFLE)


def charged(folder: Path) -> int:
    """Epochs that the node's ledger counts."""
    return sum(event.steps for event in Ledger(folder / "ledger.jsonl", client=0).events())


@pytest.mark.slow
def test_another_batch_size_within_a_run_is_refused(tmp_path, drawn):
    """Batches of 199 and then of 100 cut the same epoch of two: 99 rows would be in both, for the
    charge of one.
    """
    node = terms(tmp_path / "node", data=str(digits_file(tmp_path / "rows.npz")))
    payload(asked(node, tmp_path / "copy", 199).train(1))
    assert "of another batch size than 100" in refusal(asked(node, tmp_path / "copy", 100).train(2))
    assert (len(drawn), len(entries(tmp_path / "node"))) == (1, 1)
    payload(asked(node, tmp_path / "copy", 199).train(2))
    assert torch.equal(torch.cat(drawn).sort().values, torch.arange(200))
    assert charged(tmp_path / "node") == 1
    # a run of its own begins an epoch of its own
    payload(asked(node, tmp_path / "copy", 100, run="run-2").train(1))
    assert charged(tmp_path / "node") == 2


def test_other_rows_within_a_run_are_refused(tmp_path, drawn):
    """The same rows in another order: a row that was in the first batch may have a place of the
    second one.
    """
    rows = digits_file(tmp_path / "rows.npz")
    node = terms(tmp_path / "node", data=str(rows), accept_changed_data=True)
    payload(asked(node, tmp_path / "copy", 100).train(1))
    with np.load(rows) as found:
        turned = {name: found[name][::-1] for name in found.files}
    np.savez(rows, **turned)
    assert "of other training rows" in refusal(asked(node, tmp_path / "copy", 100).train(2))
    assert (len(drawn), len(entries(tmp_path / "node"))) == (1, 1)
    payload(asked(node, tmp_path / "copy", 100, run="run-2").train(1))


@pytest.mark.parametrize("change", ["batch size", "rows"])
def test_a_key_that_is_not_bound_lets_rows_in_twice(change, tmp_path, drawn, monkeypatch):
    """Negative control: the key as it was, of an order alone. One release is charged, and rows take
    part twice.
    """
    monkeypatch.setattr(
        fedlsg.simulations.client.deployed, "batch_key", lambda folder, entry, **bound: b"k" * 32
    )
    monkeypatch.setattr(NodeFolder, "admitted", lambda folder: "")
    rows = digits_file(tmp_path / "rows.npz")
    node = terms(tmp_path / "node", data=str(rows), accept_changed_data=True)
    payload(asked(node, tmp_path / "copy", 150).train(1))
    places = torch.arange(200)
    if change == "rows":
        with np.load(rows) as found:
            turned = {name: found[name][::-1] for name in found.files}
        np.savez(rows, **turned)
        places = places.flip(0)
    payload(asked(node, tmp_path / "copy", 100 if change == "batch size" else 150).train(2))
    assert len(torch.cat([drawn[0], places[drawn[1]]]).unique()) < len(torch.cat(drawn))
    assert charged(tmp_path / "node") == 1
