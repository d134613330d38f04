"""Accuracy by client: parts of the public test split with each client's class mix, and no private row in it."""

import json

import pytest
import torch

from simulations.plan.clients import parts_of_test
from simulations.plan.plan import make_plan
from simulations.report.words import outcome
from simulations.server.evaluate import evaluate
from simulations.settings.settings import from_mapping
from tests.simulations.support.runs import SMALL, run_local

UNEQUAL = {"partition": "dirichlet", "alpha": 0.1, "clients": 4}


def plan_of(**settings: object):
    return make_plan(from_mapping(SMALL | settings))


def mix(labels: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.bincount(labels[rows], minlength=10) / max(len(rows), 1)


@pytest.mark.parametrize("scheme", ["dirichlet", "shards"])
def test_parts_of_the_test_split_have_the_class_mix_of_their_clients(scheme):
    plan = plan_of(**UNEQUAL | {"partition": scheme})
    parts, train, test = parts_of_test(plan), plan.workload.train.labels, plan.workload.test.labels
    assert torch.cat(parts).sort().values.equal(torch.arange(len(test)))
    apart = [[float((mix(train, own) - mix(test, part)).abs().sum()) for part in parts] for own in plan.parts]
    assert all(row[client] < 0.25 for client, row in enumerate(apart))
    assert all(row[client] == min(row) for client, row in enumerate(apart))  # and not that of another client


def test_a_run_reports_the_spread_over_clients(tmp_path):
    run = run_local(tmp_path / "run", evaluate_clients=True, **UNEQUAL)
    found = run.summary["accuracy_by_client"]
    parts, test = parts_of_test(run.plan), run.plan.workload.test
    state = run.plan.server_state()
    state.load_state_dict(run.directory.load_checkpoint()["server"])
    wanted = [evaluate(state.model, test.pick(rows), device="cpu").accuracy for rows in parts]
    assert found["accuracies"] == wanted
    assert found["worst"] == min(wanted) < found["mean"] == pytest.approx(sum(wanted) / 4)
    assert sum(len(rows) * one for rows, one in zip(parts, wanted, strict=True)) == pytest.approx(
        run.summary["accuracy"] * len(test)
    )
    assert "worst" in outcome(run.summary)["clients"]
    assert json.dumps(found)


@pytest.mark.parametrize(
    ("settings", "part"),
    [({"partition": "writer"}, "partition"), ({"holdout": 0.2}, "holdout tests on training rows, which are private")],
)
def test_a_split_that_is_not_public_or_has_no_such_parts_is_refused(settings, part):
    with pytest.raises(ValueError, match=part):
        plan_of(evaluate_clients=True, **settings)
