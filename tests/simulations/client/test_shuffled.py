"""Runs with shuffled batches: who takes part when, what the ledgers say, and what stops a run that
cannot know.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fedlsg.simulations.client.drawing
from fedlsg.privacy import Entry, ShuffledBatches
from fedlsg.randomness import reproducible_stream
from fedlsg.simulations.attacks.audit.audited import audited_settings
from fedlsg.simulations.cli.command_line import app
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage import atomic_files
from tests.simulations.support.runs import SMALL, Run, resume_local, run_local, stopped_after

# Clients of 719 and 718 examples: 5 batches an epoch, the last one of 119 or 118.
SHUFFLE: dict[str, Any] = {
    "sampling": "shuffle",
    "sample_rate": None,
    "batch_size": 150,
    "rounds": 6,
    "method": "rs",
}


def truth_of(path: Path, round: int, client: int) -> torch.Tensor:
    found = atomic_files.load_array(
        path / "updates-truth" / f"round-{round:06d}" / f"client-{client:06d}.npy"
    )
    return torch.from_numpy(found)


def took_part(run: Run, client: int, rounds: int) -> list[torch.Tensor]:
    """Rows of a client in each round, with record_updates."""
    return [truth_of(run.path, round, client) for round in range(1, rounds + 1)]


def once_an_epoch(rows: list[torch.Tensor], part: torch.Tensor, of_epoch: int) -> bool:
    epochs = [
        torch.cat(rows[i : i + of_epoch]) for i in range(0, len(rows) - of_epoch + 1, of_epoch)
    ]
    return all(torch.equal(epoch.sort().values, part.sort().values) for epoch in epochs)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return run_local(
        tmp_path_factory.mktemp("runs") / "run",
        **SHUFFLE,
        record_updates=True,
        reproducible=False,
        noise_multiplier=8,
    )


def test_every_row_takes_part_once_an_epoch(run):
    for client in range(2):
        rows = took_part(run, client, 6)
        assert [len(r) for r in rows[:4]] == [150] * 4
        assert len(rows[4]) in (118, 119)
        assert once_an_epoch(rows, run.plan.parts[client], 5)
        assert not torch.equal(rows[5].sort().values, rows[0].sort().values)


def test_a_row_that_takes_part_twice_is_found(tmp_path, monkeypatch):
    """Planted: every round deals the cards anew, as if the order were not kept."""

    def anew(base: Base, entry: Entry, key: bytes | None) -> ShuffledBatches:
        return ShuffledBatches(
            num_examples=entry.num_examples,
            batch_size=base.local.shuffled,
            first=entry.first_batch,
            order=lambda epoch: reproducible_stream(entry.round),
        )

    monkeypatch.setattr(fedlsg.simulations.client.drawing, "batches_of", anew)
    planted = run_local(tmp_path / "run", **SHUFFLE, record_updates=True)
    assert not once_an_epoch(took_part(planted, 0, 6), planted.plan.parts[0], 5)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("local_steps", [1, 3])
def test_a_resumed_run_goes_on_in_the_same_epoch(local_steps, tmp_path):
    """Without seeded noise: the order is read from the client's key."""
    given = SHUFFLE | {
        "record_updates": True,
        "reproducible": False,
        "local_steps": local_steps,
        "rounds": 10,
    }
    stopped_after(2, tmp_path / "run", **given)
    whole = resume_local(tmp_path / "run")
    rows = torch.cat(took_part(whole, 0, 10))
    n = len(whole.plan.parts[0])
    for epoch in range(10 * local_steps // 5):
        assert len(rows[epoch * n : (epoch + 1) * n].unique()) == n
    entries = whole.entries(0)
    assert all(b.first_batch == a.first_batch + local_steps for a, b in pairwise(entries))


def test_a_lost_key_stops_the_client(tmp_path):
    given = SHUFFLE | {"reproducible": False, "clients": 1}
    run = stopped_after(2, tmp_path / "run", **given)
    (key,) = Path(run.path).rglob("batches.key")
    assert key.stat().st_mode & 0o077 == 0
    key.unlink()
    with pytest.raises(Exception, match=r"batches\.key \(missing\)"):
        resume_local(tmp_path / "run")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"batch_size": None}, "give batch_size"),
        ({"trust": "secure", "clients": 4}, "take trust=client"),
        ({"unit": "client", "trust": "server"}, "sampling=poisson"),
    ],
)
def test_what_does_not_fit_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        make_plan(from_mapping(SMALL | SHUFFLE | wrong))


@pytest.mark.parametrize(
    "command", [["audit", "--mode", "training"], ["attack", "--membership", "--shadows", "6"]]
)
def test_what_takes_examples_out_is_refused(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["--method", "rs", "-c", "sampling=shuffle", "-c", "batch_size=150", "-c", "rounds=2"]
    done = CliRunner().invoke(app, [*command, *given], standalone_mode=False)
    assert done.exit_code
    assert "needs sampling=poisson" in str(done.exception)


@pytest.mark.slow
def test_the_unit_mode_of_the_audit_tests_an_epoch_as_one_release(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    audited = audited_settings(
        {"method": "dpsgd", "sampling": "shuffle", "batch_size": 300, "rounds": 20}
    )
    assert (audited.claim.sample_rate, audited.claim.steps, audited.setting.rounds) == (1.0, 20, 20)
    assert (audited.setting.local.shuffled, audited.setting.local.sample_rate) == (0, 1.0)
    given = [
        "--method",
        "dpsgd",
        "-c",
        "sampling=shuffle",
        "-c",
        "batch_size=300",
        "-c",
        "rounds=20",
        "--seed",
        "1",
    ]
    done = CliRunner().invoke(app, ["audit", *given, "--canaries", "100"], standalone_mode=False)
    assert "not falsified" in done.output
    planted = CliRunner().invoke(
        app, ["audit", *given, "--plant", "halved-noise"], standalone_mode=False
    )
    assert "falsified by" in planted.output
