"""Secure sums, client-level privacy and shuffled batches on Ray: bit for bit the engine local."""

import pytest
import torch

from fedlsg.privacy import SERVER
from fedlsg.simulations.engines import ray
from tests.simulations.client.test_shuffled import truth_of
from tests.simulations.support.ray_clients import ALWAYS, AT_THE_END, ONCE
from tests.simulations.support.runs import Run, ignore, plan_at, run_local
from tests.simulations.support.secure_clients import FIVE, recorded_sum

pytestmark = pytest.mark.ray


@pytest.mark.slow
def test_a_worker_that_dies_with_masked_values_costs_their_charge_and_not_the_round(
    tmp_path, on_ray
):
    """The values of the first try never left: the client masks others, with new noise, and is
    charged twice.
    """
    plan, directory = plan_at(tmp_path / "run", **(FIVE | {"engine": "ray", "reproducible": False}))
    client = "tests.simulations.support.ray_clients:deadly_secure"
    run = Run(directory.path, plan, ray.run(plan, directory, on_round=ignore, client=client))
    assert {path.name for path in run.path.glob("killed-by-*")} == {
        f"killed-by-{ONCE}-masked",
        f"killed-by-{ALWAYS}-masked",
        f"killed-by-{AT_THE_END}-unmask",
    }
    assert (run.rows[0].answered, run.rows[0].rejected) == ("0 1 3 4", "2")
    assert recorded_sum(run) is not None
    charged = [[entry.attempt for entry in run.entries(client)] for client in range(5)]
    assert charged[ONCE] == charged[ALWAYS] == [0, 1]
    assert all(attempts in ([0], [0, 1]) for attempts in charged)
    assert run.summary["private"]


def test_secrets_of_clients_are_in_no_file_of_the_driver(tmp_path, on_ray, monkeypatch):
    from fedlsg.simulations.engines.accounts import SECRETS, Accounts

    kept, settle = [], Accounts.settle

    def watched(self, pile, answers):
        kept.extend(
            state.config_records[SECRETS]["state"]
            for _, state in answers
            if SECRETS in state.config_records
        )
        return settle(self, pile, answers)

    monkeypatch.setattr(Accounts, "settle", watched)
    plan, directory = plan_at(tmp_path / "run", **(FIVE | {"engine": "ray", "reproducible": False}))
    ray.run(plan, directory, on_round=ignore)
    roots = {state[49:81] for state in kept if state[41] == 32}
    assert len(kept) == 25
    assert len(roots) == 5, "the first part of a state is the root, of 32 bytes"
    files = [path.read_bytes() for path in directory.path.rglob("*") if path.is_file()]
    assert not any(
        root in content or root.hex().encode() in content for root in roots for content in files
    )


FEDERATION = {
    "unit": "client",
    "trust": "server",
    "sample_rate": None,
    "batch_size": 10,
    "clients": 40,
    "clients_per_round": 12,
    "local_steps": 2,
    "method": "probe",
    "rounds": 3,
    "clip_quantile": 0.5,
    "dropout": 0.2,
    "downlink": "sparse",
}


@pytest.mark.slow
def test_both_engines_give_the_same_run(tmp_path, on_ray):
    here = run_local(tmp_path / "local", **FEDERATION)
    plan, directory = plan_at(tmp_path / "ray", **FEDERATION, engine="ray")
    there = Run(directory.path, plan, ray.run(plan, directory, on_round=ignore))
    assert torch.equal(here.weights, there.weights)
    assert here.entries(SERVER) == there.entries(SERVER)
    assert here.rows == there.rows
    assert here.checkpoint["server"]["clip_norm"] == there.checkpoint["server"]["clip_norm"]
    assert not list(there.path.rglob("client-*")), "no file tells who took part"
    assert there.payloads == {}
    assert not list(there.path.glob("checkpoint/outbox/*"))


SHUFFLE = {
    "sampling": "shuffle",
    "sample_rate": None,
    "batch_size": 150,
    "rounds": 6,
    "method": "rs",
    "local_steps": 2,
}


@pytest.mark.slow
def test_both_engines_give_the_same_shuffled_run(tmp_path, on_ray):
    here = run_local(tmp_path / "local", **SHUFFLE)
    plan, directory = plan_at(tmp_path / "ray", **SHUFFLE, engine="ray")
    there = Run(directory.path, plan, ray.run(plan, directory, on_round=ignore))
    assert torch.equal(here.weights, there.weights)
    assert [here.entries(c) for c in range(2)] == [there.entries(c) for c in range(2)]


def test_a_secret_order_lasts_over_rounds(tmp_path, on_ray):
    given = SHUFFLE | {"engine": "ray", "record_updates": True, "reproducible": False, "rounds": 5}
    plan, directory = plan_at(tmp_path / "ray", **given)
    ray.run(plan, directory, on_round=ignore)
    for client, part in enumerate(plan.parts):
        rows = torch.cat([truth_of(directory.path, round, client) for round in range(1, 6)])
        for epoch in rows.split(len(part)):
            assert torch.equal(epoch.sort().values, part.sort().values)
