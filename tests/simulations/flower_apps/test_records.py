"""What the two doors keep for ``fedlsg attack``: read back as a run's record is, and attacked."""

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import fedlsg
import fedlsg.flower
from fedlsg.attacks.observation import ThreatModel
from fedlsg.privacy import Ledger
from fedlsg.simulations.attacks import attack_one
from fedlsg.simulations.attacks.observations import open_record
from fedlsg.simulations.attacks.target import Options, batch_sizes
from fedlsg.simulations.attacks.whole_updates import attack_whole_updates, has_whole_updates
from fedlsg.simulations.storage.updates import save_whole
from tests.simulations.flower_apps.test_private_updates import (
    CLIENTS,
    Nodes,
    app_of,
    mod,
    start,
    wrapped,
)

APP = """
import fedlsg
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 3))

def rows():
    x = torch.randn(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0, 0, 0] > 0).long()

def workload():
    x, y = rows()
    return fedlsg.Workload(
        model=build, train=(x[:40], y[:40]), test=(x[40:], y[40:]), loss=nn.CrossEntropyLoss(), num_classes=3,
        partition=[range(k, 40, 2) for k in range(2)],
    )
"""


def steps_of(folder: Path, *, sigma: float | None, rounds: int = 1, **given: Any) -> Path:
    """An app's client 1, whose ``PrivateStep`` is new in each of its rounds of three steps; the
    record.
    """
    (folder / "app.py").write_text(APP)
    names: dict[str, Any] = {}
    exec(APP, names)
    x, y = (part[1:40:2] for part in names["rows"]())
    for number in range(rounds):
        step = fedlsg.PrivateStep(
            names["build"](),
            nn.CrossEntropyLoss(),
            num_examples=20,
            sample_rate=0.1,
            steps=3,
            noise_multiplier=sigma,
            delta=1e-5,
            learning_rate=0.5,
            ledger=folder / "ledger.jsonl",
            seed=number,
            **given,
        )
        fedlsg.flower.record(
            step, folder / "record", workload=f"{folder / 'app.py'}:workload", client=1
        )
        batches = step.batches((x, y))
        for _ in range(3):
            step.step(batches)
    return folder / "record"


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "given", [{"method": "dpsgd"}, {"method": "lsg"}, {"method": "dp-ssgd", "prune": "dp-snip"}]
)
def test_a_record_of_private_steps_is_read_as_a_run_s(given, tmp_path):
    """Its epsilon is that of the app's own ledger, which counts the pruning before the steps,
    too.
    """
    record = open_record(str(steps_of(tmp_path, sigma=1.0, rounds=2, **given)), ThreatModel())
    sizes = batch_sizes(record)
    assert list(sizes) == [1, 2, 3, 4, 5, 6]
    seen = [record.observation(round, 1) for round in sizes]
    assert {one.noise_std for one in seen} == {seen[0].mechanism.noise_std}
    assert all(one.values.abs().sum() > 0 for one in seen)
    kept = Ledger(tmp_path / "record/ledger/client-000001.jsonl", client=1)
    assert kept.epsilon(1e-5) == Ledger(tmp_path / "ledger.jsonl", client=0).epsilon(1e-5)
    hidden = tmp_path / "record/updates-truth"
    assert {stat.S_IMODE(path.stat().st_mode) & 0o77 for path in (tmp_path / "record", hidden)} == {
        0
    }


@pytest.mark.slow
def test_steps_without_noise_give_their_images_away(tmp_path):
    """The negative control of the record: what is in it is what left, of the rows that it names.

    Of 30 secret batches one at least has a single example, but for one test in 10,000.
    """
    options = Options(
        batches=(1,), examples=2, attacks="first-layer", naive=False, seconds=0.5, seed=0
    )
    gains: dict[float | None, float] = {}
    for sigma in (None, 20.0):
        (place := tmp_path / str(sigma)).mkdir()
        path = steps_of(place, sigma=sigma, rounds=10, mechanism="dp" if sigma else "clip-only")
        found = attack_one(
            open_record(str(path), ThreatModel()), ThreatModel(), options, lambda share, text: None
        )
        gains[sigma] = found.best.gain
    assert gains[None] > 10 > 1 > gains[20.0]


def test_another_model_or_partition_is_refused_before_a_step(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    given = {"sample_rate": 0.5, "steps": 2, "noise_multiplier": 1.0, "delta": 1e-3}
    other = fedlsg.PrivateStep(nn.Linear(64, 3), nn.CrossEntropyLoss(), num_examples=20, **given)
    with pytest.raises(ValueError, match="the workload builds another model than the app trains"):
        fedlsg.flower.record(
            other, tmp_path / "record", workload=f"{tmp_path / 'app.py'}:workload", client=1
        )
    with pytest.raises(ValueError, match=r"expected 0 <= client=2 < 2"):
        fedlsg.flower.record(
            other, tmp_path / "record", workload=f"{tmp_path / 'app.py'}:workload", client=2
        )


def test_steps_of_another_clip_do_not_go_on_in_a_record(tmp_path):
    steps_of(tmp_path, sigma=1.0, method="dpsgd")
    with pytest.raises(
        ValueError, match=r"a record of steps with clip-norm=1.0, these have clip-norm=10.0"
    ):
        steps_of(tmp_path, sigma=1.0, method="dpsgd", clip_norm=10.0)


def found_in(folder: Path) -> dict[str, Any]:
    attack_whole_updates(str(folder), Console(quiet=True), out=None)
    return json.loads((folder / "attack.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["client", "secure"])
def test_whole_updates_are_recognised_as_often_as_their_noise_allows(trust, tmp_path):
    there = {"record": tmp_path / "record"}
    grid = Nodes(app_of(mod(tmp_path / "ledgers", trust=trust, **there)))
    server = there if trust == "secure" else {}
    start(
        wrapped(
            trust=trust, epsilon=None, noise_multiplier=0.5, method="rs", sparsity=0.3, **server
        ),
        grid,
        10,
    )
    assert has_whole_updates(str(tmp_path / "record"))
    found = found_in(tmp_path / "record")
    assert len(found["updates"]) == 10 * CLIENTS
    # N(0, 1), and alike within a sum
    left = np.array([one["score"] - one["reach"] for one in found["updates"]])
    assert abs(left.mean()) < 1.5
    assert 0.25 < left.std() < 2.1
    assert (tmp_path / "record/attack.html").stat().st_size < 1_000_000


def test_an_update_without_its_noise_is_caught(tmp_path):
    for client in range(20):
        update = torch.randn(50, generator=torch.Generator().manual_seed(client))
        save_whole(
            tmp_path, 1, f"client-{client:06d}", update=update, payload=update, noise_std=1.0
        )
    assert found_in(tmp_path)["recognised"]["value"] == 1.0
    assert "clients are recognised" in (tmp_path / "attack.html").read_text()


@pytest.mark.parametrize("option", [("--view", "client"), ("--attacks", "dlg"), ("--naive",)])
def test_options_that_whole_updates_do_not_have_are_refused(option, fedlsg, tmp_path):
    """What is seen follows from the record: --view client of a sum would be its sum."""
    values = {"total": torch.ones(3), "noise_std": 1.0, "clients": 1.0}
    save_whole(tmp_path, 1, "client-000000", update=torch.ones(3), noise_std=1.0)
    save_whole(tmp_path, 1, "sum", **values)
    status, _, errors = fedlsg("attack", str(tmp_path), *option)
    assert status != 0
    assert f"leave out {option[0]}" in errors
    assert fedlsg("attack", str(tmp_path))[0] == 0


def test_a_sum_of_clients_that_are_not_recorded_is_refused(tmp_path):
    save_whole(tmp_path, 1, "client-000000", update=torch.ones(3), noise_std=1.0)
    save_whole(tmp_path, 1, "sum", total=torch.ones(3), noise_std=1.0, clients=2.0)
    with pytest.raises(ValueError, match="the sum is of 2 clients, and 1 recorded their update"):
        found_in(tmp_path)
