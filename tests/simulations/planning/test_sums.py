"""Epsilon of a sum against its own clients, and rho of a plan: what is counted, and the noise that
a run really sends.

Nothing here reads m, t or the noise multiplier from a plan. K clients are asked; by the documented
defaults one in ten may be missing, and one in ten, one at least, may read together. A client of the
sum knows its own share.
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedlsg.accounting import compose, epsilon
from fedlsg.secure_sum.discrete import plan_release
from fedlsg.simulations.planning.advice.remarks import rho_of, sum_line
from fedlsg.simulations.planning.client_noise import events_of
from fedlsg.simulations.planning.faults.model_faults import count_blocks
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.settings.settings import from_mapping
from tests.simulations.support.runs import SMALL, plan_at, run_local

FEW, MANY = [*range(2, 13)], [19, 20, 29, 30, 50]
TARGET, RATE, ROUNDS, DELTA = 3.0, 0.05, 2, 1e-5
AGGREGATE = {"trust": "aggregate"}
LEVEL = {"unit": "client", "sample_rate": None, "batch_size": 20, "rounds": 3}


def planned(clients: int, **settings: object) -> Plan:
    given = {
        "trust": "secure",
        "clients": clients,
        "noise_multiplier": None,
        "epsilon": TARGET,
        "delta": DELTA,
    }
    return make_plan(from_mapping({**SMALL, **given, **settings}))


def reported(plan: Plan) -> float:
    return compose(events_of(plan, plan.terms[0], count_blocks(plan)), delta=DELTA).upper


def share_of(plan: Plan) -> float:
    """Deviation of what one client adds to each value, over the clip norm; of a secure sum, as its
    grid has it.
    """
    mechanism = plan.terms[0].mechanism(plan.method.mechanism)
    if plan.sums is None:
        return mechanism.noise_std / mechanism.clip_norm
    release = plan_release(plan.sums, mechanism, values=4000, blocks=count_blocks(plan))
    return release.noise_std(1) / mechanism.clip_norm


def against(
    together: int, survivors: int, share: float, *, rate: float = RATE, steps: int = ROUNDS
) -> float:
    """Epsilon against ``together`` of the clients of the smallest sum: they subtract what they
    added.
    """
    noise = share * math.sqrt(survivors - together)
    return epsilon(sample_rate=rate, noise_multiplier=noise, steps=steps, delta=DELTA).upper


def covers(said: float, share: float, survivors: int, together: int, **more: float) -> bool:
    """Whether an epsilon holds against one client, and against ``together`` of them."""
    return all(
        against(readers, survivors, share, **more) <= said * (1 + 1e-9) for readers in {1, together}
    )


@pytest.mark.thinned(6)
@pytest.mark.parametrize("clients", FEW + MANY)
def test_the_reported_epsilon_of_a_secure_sum_holds_against_its_clients(clients):
    plan = planned(clients)
    survivors, together = clients - clients // 10, max(clients // 10, 1)
    said = reported(plan)
    assert covers(said, share_of(plan), survivors, together)
    assert TARGET * 0.998 < said <= TARGET, "calibration hits the target"
    assert against(together, survivors, share_of(plan)) > said * 0.94, (
        "and the grid takes little of the noise"
    )


@pytest.mark.thinned(6)
@pytest.mark.parametrize("clients", [1, *FEW, 50])
def test_the_reported_epsilon_of_an_assumed_sum_holds_against_a_client(clients):
    plan = planned(clients, **AGGREGATE)
    assert TARGET * 0.998 < reported(plan) <= TARGET
    if clients == 1:
        assert share_of(plan) == pytest.approx(plan.terms[0].noise_multiplier), (
            "nobody else is in the sum"
        )
    else:
        assert covers(reported(plan), share_of(plan), clients, 1)


@pytest.mark.parametrize("clients", [2, 3, 10, 20])
def test_the_reported_epsilon_of_a_client_holds_against_the_others(clients):
    """At client level a round is one release, at q = 1."""
    settings = LEVEL | {"delta": 1e-5}
    plan = planned(clients, **settings)
    survivors, together = clients - clients // 10, max(clients // 10, 1)
    assert covers(reported(plan), share_of(plan), survivors, together, rate=1.0, steps=3)
    assert TARGET * 0.998 < reported(plan) <= TARGET


@pytest.mark.slow
def test_given_survivors_and_colluders_are_what_counts():
    for survivors, together in ((8, 1), (9, 3), (10, 2)):
        plan = planned(10, min_survivors=survivors, colluders=together)
        assert covers(reported(plan), share_of(plan), survivors, together)
    assert covers(reported(plan := planned(8, min_survivors=3, **AGGREGATE)), share_of(plan), 3, 1)


@pytest.mark.parametrize("clients", [2, 3, 5, 9])
def test_shares_that_count_a_client_s_own_noise_are_caught(clients):
    """Planted: t = 0, as it was: each of m clients adds 1 / sqrt(m) of the noise."""
    plan = planned(clients)
    own = share_of(plan) * math.sqrt((clients - 1) / clients)
    assert not covers(reported(plan), own, clients, 1)


@pytest.mark.parametrize("clients", [10, 20, 50])
def test_shares_for_all_clients_in_place_of_the_survivors_are_caught(clients):
    plan = planned(clients)
    survivors, together = clients - clients // 10, clients // 10
    own = share_of(plan) * math.sqrt((survivors - together) / (clients - together))
    assert not covers(reported(plan), own, survivors, together)


def test_an_assumed_sum_without_a_reader_is_caught():
    plan = planned(5, **AGGREGATE)
    old = replace(plan.method.mechanism, noise_share=1 / math.sqrt(5), colluders=0)
    assert not covers(reported(plan), old.noise_std / old.clip_norm, 5, 1)


def test_ten_clients_need_no_more_noise_than_before():
    """One colluder was counted there always: m = 9, t = 1."""
    assert share_of(planned(10, noise_multiplier=2.0, epsilon=None)) == pytest.approx(
        2 / math.sqrt(8), rel=5e-3
    )


FAINT = {
    "method": "dpsgd",
    "rounds": 1,
    "learning_rate": 1.0,
    "momentum": 0.0,
    "local_learning_rate": 1e-12,
}
"""One update of the server by the sum over the divisor; weights do not move within a round."""


def sent(out: Path, **settings: object) -> tuple[torch.Tensor, object]:
    """The step of the weights in round 1, and its plan."""
    run = run_local(out, **FAINT, **settings)
    assert run.plan is not None
    before = torch.cat([p.detach().flatten() for p in run.plan.initial.model().parameters()])
    return run.weights - before, run


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"clients": 1},
        {"clients": 4, "clients_per_round": 3},
        {"clients": 2, "trust": "aggregate"},
        {"clients": 2, "trust": "aggregate", "min_survivors": 1},
        {"clients": 2, "local_steps": 4},
        {"clients": 2, "clip": "per-block", "clip_norm": 0.3},
    ],
    ids=str,
)
def test_a_runs_noise_over_its_clip_norm_is_rho(tmp_path, settings):
    """The same seeds with clip only have the same batches: the difference is the noise. Its
    relative deviation is 1 / sqrt(2 d) = 1 %."""
    noisy, run = sent(tmp_path / "noisy", **settings)
    clean, _ = sent(tmp_path / "clean", mechanism="clip-only", noise_multiplier=None, **settings)
    plan = run.plan
    frame = plan.initial.public().frame(1, updates=0)
    largest = plan.method.mechanism.sensitivity(len(frame.blocks))
    # the noise of a round's steps, which are independent
    steps = math.sqrt(settings.get("local_steps", 1))
    measured = float((noisy - clean).norm()) / largest / steps
    assert run.summary["rho"] == rho_of(plan, plan.initial.public())
    assert measured == pytest.approx(run.summary["rho"], rel=0.05)


@pytest.mark.parametrize(
    ("settings", "honest", "cost"),
    [
        ({"clients": 2, "trust": "secure"}, "1 honest client", 1.41),
        ({"clients": 5, "trust": "aggregate"}, "4 honest clients", 1.12),
        ({"clients": 10, "trust": "secure", "colluders": 3}, "6 honest clients", 1.22),
    ],
)
def test_the_line_says_what_protection_against_the_clients_of_a_sum_costs(
    settings, honest, cost, tmp_path
):
    """sqrt(m / (m - t)), which is also the ratio of the sums' noise with and without a reader among
    the clients.
    """
    plan, _ = plan_at(tmp_path / "run", **settings)
    found = sum_line(plan, plan.initial.public())
    assert found is not None
    assert f"noise planned for {honest}\n" in found
    assert found.endswith(f"of a sum {cost} times as large")
