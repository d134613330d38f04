"""What may not change in the middle of a run, and what must be true of every ledger before an
epsilon is reported.
"""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message

import fedlsg.simulations.planning.base.prepare
import fedlsg.simulations.planning.plan
from fedlsg.accounting.certified import epsilon
from fedlsg.privacy import RunLedger
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.engines import local
from fedlsg.simulations.planning.earlier_runs.continuity import check_unchanged
from fedlsg.simulations.planning.earlier_runs.data_digest import data_digest
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.lock import exclusive
from fedlsg.simulations.workloads.base import LoadedWorkload
from fedlsg.simulations.workloads.base.split import Split
from tests.simulations.support.runs import ignore, plan_at, reconfigure, resume_local, run_local


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    "changes",
    [
        {"noise-multiplier": 4.0},
        {"sample-rate": 0.1},
        {"clip-norm": 9.0},
        {"trust": "aggregate"},
        {"reproducible": False},
        {"clients": 3, "clients-per-round": 3},
        {"partition": "shards"},
        {"seed": 1},
    ],
    ids=str,
)
def test_resume_refuses_settings_that_the_ledgers_depend_on(changes, stopped):
    """Of an entry, and of who holds which example: one that moved to another client would be
    charged to two ledgers.
    """
    reconfigure(stopped, **changes)
    with pytest.raises(
        ValueError, match=f"cannot change its settings midway: restore .*{next(iter(changes))}"
    ):
        resume_local(stopped.path)
    assert [len(stopped.entries(client)) for client in (0, 1)] == [1, 1]


def test_resume_refuses_other_public_data_of_a_probe(tmp_path):
    """The carriers of the next refresh would be made of other images."""
    images = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.save(images, tmp_path / "public.pt")
    settings = {
        "method": "probe",
        "source": f"data:{tmp_path / 'public.pt'}",
        "probes": 20,
        "refresh_rounds": 1,
    }
    stopped = run_local(tmp_path / "run", **settings, rounds=2)
    saved = stopped.directory.load_checkpoint()["plan"]
    again = make_plan(stopped.directory.read_config())
    check_unchanged(saved, again, stopped.directory)
    torch.save(images + 0.01, tmp_path / "public.pt")
    with pytest.raises(ValueError, match=r"the public data of source=data:public.pt differ"):
        check_unchanged(saved, make_plan(stopped.directory.read_config()), stopped.directory)


def other_pixel(split: Split) -> Split:
    """The same labels and sizes; one pixel of one image is another."""
    stored = np.array(split.inputs)
    stored[0, 0, 3, 3] ^= 1
    return replace(split, inputs=stored)


@pytest.mark.parametrize(
    ("which", "message"), [("train", "the data or its partition"), ("test", "the test data")]
)
def test_resume_refuses_rows_that_hold_something_else(which, message, stopped, monkeypatch):
    """Who holds which row is the same: another data set under the same name, or a file that was
    changed.
    """
    load = fedlsg.simulations.planning.base.prepare.workloads.load

    def changed(*arguments: Any, **options: Any) -> LoadedWorkload:
        workload = load(*arguments, **options)
        return replace(workload, **{which: other_pixel(getattr(workload, which))})

    with monkeypatch.context() as patched:
        patched.setattr(fedlsg.simulations.planning.base.prepare.workloads, "load", changed)
        with pytest.raises(
            ValueError, match=f"{message} differ from those that this run began with"
        ):
            resume_local(stopped.path)
    assert [len(stopped.entries(client)) for client in (0, 1)] == [1, 1]
    resume_local(stopped.path)


def test_the_digest_of_private_rows_is_its_owners_alone_and_in_no_checkpoint(stopped):
    path = stopped.directory.data_digest
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    digest = data_digest(stopped.plan.workload.train)
    assert digest in path.read_text()
    assert digest not in str(stopped.checkpoint)
    path.unlink()
    with pytest.raises(
        ValueError, match=r"changed since the run: .*training-data.json \(missing\)"
    ):
        resume_local(stopped.path)


def test_an_interruption_before_the_first_round_can_be_continued(tmp_path, small):
    plan, directory = plan_at(tmp_path / "run")

    def interrupted(*_: object) -> Message:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local.run(plan, directory, on_round=ignore, client=interrupted)
    assert directory.last_round() == 0
    assert resume_local(directory.path).weights.equal(small.weights)


def test_a_payload_that_nobody_was_charged_for_ends_the_run(tmp_path, monkeypatch):
    """Planted: a driver that forgets. The server sees a payload and no entry, so no epsilon can be
    reported.
    """
    monkeypatch.setattr(RunLedger, "charge", lambda self, entries: None)
    with pytest.raises(
        RuntimeError, match=r"client 0 replied in round 1, and its ledger in .* has no entry"
    ):
        run_local(tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "run" / "rounds.csv").exists()


def test_a_server_cannot_send_a_client_to_a_fresh_ledger(tmp_path):
    def elsewhere(message: Message, context: Context) -> Message:
        if "round" in message.content:
            message.content["round"]["run_dir"] = str(tmp_path / "fresh")
        return app(message, context)

    with pytest.raises(
        RuntimeError,
        match=r"no valid update in 3 rounds in a row: client 0 1: a client failed",
    ):
        run_local(tmp_path / "run", client=elsewhere, rounds=4)
    assert not (tmp_path / "fresh").exists()
    assert "this client's ledger is in" in (tmp_path / "run" / "run.log").read_text()


def test_a_stored_payload_without_its_ledger_entry_stays(tmp_path):
    """The entry was lost after the payload was stored: it must not leave a second time,
    uncharged.
    """
    plan, directory = plan_at(tmp_path / "run")

    def interrupted(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 1 and "round" in message.content:
            raise KeyboardInterrupt
        return app(message, context)

    with pytest.raises(KeyboardInterrupt):
        local.run(plan, directory, on_round=ignore, client=interrupted)
    directory.charges.path.unlink()
    run = resume_local(directory.path)
    assert [row.rejected for row in run.rows] == ["0", ""]
    assert "lost the entry of round 1, whose payload is stored" in run.rows[0].reasons


def test_a_run_directory_has_one_process(stopped):
    with (
        exclusive(stopped.directory),
        pytest.raises(ValueError, match=f"is in use by process {os.getpid()}"),
    ):
        resume_local(stopped.path)
    resume_local(stopped.path)


def test_a_spent_budget_ends_the_run_with_a_summary(tmp_path):
    run = run_local(
        tmp_path / "run",
        reproducible=False,
        noise_multiplier=3.0,
        sample_rate=0.5,
        epsilon=2.0,
        rounds=40,
    )
    assert 0 < run.summary["rounds"] < 40
    assert "budget of every client was spent" in run.summary["stopped"]
    assert run.summary["epsilon_max"] <= 2.0
    assert run.summary["private"] is True
    assert run.rows[-1].rejected == "0 1"
    assert run.rows[-1].reasons.startswith("0 1: round ")


def test_shared_noise_is_that_of_the_neediest_client():
    """trust=aggregate: the sum carries the mean of the clients' variances, so all of them must
    carry the largest.
    """
    plan = fedlsg.simulations.planning.plan.make_plan(
        from_mapping(
            {
                "clients": 3,
                "rounds": 2,
                "partition": "dirichlet",
                "alpha": 0.3,
                "batch_size": 40,
                "trust": "aggregate",
            }
        )
    )
    assert len({t.sample_rate for t in plan.terms}) > 1
    assert len({t.noise_multiplier for t in plan.terms}) == 1
    for terms in plan.terms:
        bound = epsilon(
            sample_rate=terms.sample_rate,
            noise_multiplier=terms.noise_multiplier,
            steps=2,
            delta=plan.settings.delta,
        )
        assert bound.upper <= 8
