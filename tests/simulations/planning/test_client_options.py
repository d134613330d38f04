"""Settings of local steps, weights and own data of clients: what they make of a plan, and what is
refused.
"""

import pytest
import torch

from fedlsg.simulations import workloads
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.training_rows import OwnData
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.workloads import LoadedWorkload, Split
from tests.simulations.support.runs import SMALL, run_local


def plan_of(**settings: object) -> Plan:
    return make_plan(from_mapping(SMALL | settings))


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (
            {"proximal": 0.1},
            "proximal=0.1 needs local_steps > 1, got local_steps=1: it changes local steps from "
            "the second",
        ),
        ({"proximal": 9.0, "local_steps": 2}, "expected 0 <= proximal"),
        ({"proximal": -1.0}, "expected proximal=-1.0 >= 0|expected 0 <= proximal"),
        (
            {"weighting": "clients", "trust": "secure", "clients": 4, "partition": "dirichlet"},
            "the server sees their sum",
        ),
        (
            {"weighting": "clients", "trust": "aggregate", "partition": "dirichlet"},
            "the server sees their sum",
        ),
    ],
)
def test_what_has_no_effect_or_diverges_or_cannot_be_is_refused(settings, part):
    with pytest.raises(ValueError, match=part):
        plan_of(**settings)


def shares(plan: Plan) -> list[float]:
    """What each client's examples count for on average, over the divisor: q_k N_k weight / B."""
    return [
        t.weight * t.sample_rate * t.num_examples / plan.local.expected_batch for t in plan.terms
    ]


UNEQUAL = {"partition": "dirichlet", "alpha": 0.1, "clients": 4}


@pytest.mark.parametrize("rates", [{"sample_rate": 0.1}, {"sample_rate": None, "batch_size": 20}])
def test_a_client_counts_equally_or_by_its_examples_whatever_its_rate(rates):
    settings = {
        name: value for name, value in (SMALL | UNEQUAL | rates).items() if value is not None
    }
    equal, by_size = (
        make_plan(from_mapping(settings | {"weighting": how})) for how in ("clients", "examples")
    )
    assert shares(equal) == pytest.approx([1.0] * 4)
    assert shares(by_size) == pytest.approx(
        [n / (sum(by_size.clients.sizes) / 4) for n in by_size.clients.sizes]
    )
    assert len(set(by_size.clients.sizes)) > 1


def test_the_update_of_a_run_is_the_weighted_sum(tmp_path):
    settings = UNEQUAL | {
        "method": "dpsgd",
        "rounds": 1,
        "momentum": 0.0,
        "learning_rate": 0.5,
        "record_updates": True,
    }
    runs = [run_local(tmp_path / str(how), weighting=how, **settings) for how in (None, "clients")]
    plan, start = runs[1].plan, runs[1].plan.initial.server().weights
    frame = plan.initial.public().frame(1, updates=0)
    sent = list(runs[1].payloads.values())
    assert list(runs[0].payloads.values()) == sent
    total = sum(
        t.weight
        * torch.frombuffer(bytearray(sent[client][-16 - 4 * frame.kept : -16]), dtype=torch.float32)
        for client, t in enumerate(plan.terms)
    )
    moved = torch.cat([g.flatten() for g in frame.gradients(total / plan.divisor).values()])
    torch.testing.assert_close(runs[1].weights, start - 0.5 * moved, rtol=1e-5, atol=1e-7)
    assert not runs[0].weights.allclose(runs[1].weights)


SETTINGS = {"clients": 3, "rounds": 4, "sample_rate": 0.1, "noise_multiplier": 2.0}


def own_rows(count: int):
    def read(workload: LoadedWorkload) -> Split:
        assert len(workload.train) == 0  # of the workload, what is public alone
        return workloads.load("digits").train.pick(torch.arange(count))

    return read


def test_all_rows_are_the_clients_own():
    base = prepare(from_mapping(SETTINGS), own=OwnData(client=2, read=own_rows(70)))
    assert base.parts[2].tolist() == list(range(70))
    assert len(base.workload.train) == 70
    assert base.local.expected_batch == pytest.approx(7.0)


def test_the_announced_expected_batch_makes_the_divisor():
    """Of a federation of other sizes: the client's own says nothing about it."""
    base = prepare(
        from_mapping(SETTINGS), own=OwnData(client=0, read=own_rows(70), expected_batch=40.0)
    )
    assert (base.local.expected_batch, base.divisor) == (40.0, 120.0)


@pytest.mark.parametrize(
    "question", [lambda b: b.clients, lambda b: b.rows.sizes, lambda b: b.parts[0]]
)
def test_what_others_hold_is_refused_not_guessed(question):
    base = prepare(from_mapping(SETTINGS), own=OwnData(client=2, read=own_rows(70)))
    with pytest.raises(LookupError, match=r"own data only|data of the others"):
        question(base)
