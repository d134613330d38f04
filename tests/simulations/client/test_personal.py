"""Personal heads in a run: what they become, that they survive a resume and a retry, and what is
refused.
"""

from typing import Any

import pytest
import torch

from fedlsg.carriers.personal import personal_gradient
from fedlsg.gradients import trainable
from fedlsg.simulations.client import train
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.feedback_box import FeedbackBox
from tests.simulations.support.runs import SMALL, Run, resume_local, run_local, stopped_after

PERSONAL: dict[str, Any] = {
    "personal": "classifier",
    "partition": "dirichlet",
    "alpha": 0.1,
    "clients": 3,
    "rounds": 4,
    "method": "lsg",
    "momentum": 0.9,
    "weight_decay": 0.01,
    "evaluate_every": 9,
}
SIZE = 64 * 10 + 10


def heads(run: Run) -> list[torch.Tensor]:
    return [FeedbackBox(run.directory.own(client), client).newest(99, SIZE) for client in range(3)]


def same(one: Run, other: Run) -> bool:
    """Shared weights and every head, bit for bit."""
    return one.weights.equal(other.weights) and all(map(torch.equal, heads(one), heads(other)))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Run:
    return run_local(tmp_path_factory.mktemp("personal") / "run", **PERSONAL)


def test_a_head_is_the_clients_own_noisy_values(tmp_path, monkeypatch):
    """Nothing but what the mechanism released moves it: -rate / (q N_k) times the head's part."""
    released: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    frames, calls, real = [], [], train.client_step

    def spy(*arguments: Any, **named: Any) -> torch.Tensor:
        values = real(*arguments, **named)
        released[len(calls) % 3].append(values)
        frames.append(named["frame"])
        calls.append(values)
        return values

    monkeypatch.setattr(train, "client_step", spy)
    run = run_local(tmp_path / "run", personal_learning_rate=0.3, **PERSONAL)
    for client, head in enumerate(heads(run)):
        terms = run.plan.terms[client]
        steps = [personal_gradient(v, frames[3 * r]) for r, v in enumerate(released[client])]
        torch.testing.assert_close(
            head, -0.3 / (terms.sample_rate * terms.num_examples) * sum(steps)
        )
    values = sum(block.kept for block in frames[0].wire.blocks)
    assert all(row.uplink_bytes == 3 * (4 * values + 80) for row in run.rows)
    assert values == frames[0].kept - SIZE
    start = run.plan.initial.model()
    state = run.plan.initial.server()
    state.load_state_dict(run.directory.load_checkpoint()["server"])
    # the server never moves it
    assert trainable(state.model)["classifier.weight"].equal(start.classifier.weight)
    assert not trainable(state.model)["hidden.weight"].equal(start.hidden.weight)


@pytest.mark.slow
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(tmp_path, unbroken):
    stopped_after(2, tmp_path / "run", **PERSONAL)
    resumed = resume_local(tmp_path / "run")
    assert same(resumed, unbroken)
    assert resumed.summary["accuracy_by_client"] == unbroken.summary["accuracy_by_client"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"trust": "secure"}, "needs trust=client, got trust=secure"),
        (
            {"trust": "server", "unit": "client", "batch_size": 10, "sample_rate": None},
            "does not go with personal=classifier",
        ),
        ({"downlink": "sparse"}, "needs downlink=full, got downlink=sparse"),
        ({"record_updates": True}, "record_updates"),
        ({"personal": "hidden"}, "trains in carriers"),
        ({"personal": "tail"}, "no trained parameters"),
        ({"method": "dp-powersgd"}, "carriers of kind 'factors'"),
        ({"method": "dp-ssgd"}, "pruning"),
        ({"method": "linear-probe"}, "all trained parameters"),
        ({"holdout": 0.2}, "holdout"),
        ({"personal": None, "personal_learning_rate": 0.1}, "give personal=classifier"),
    ],
)
def test_what_is_not_true_with_a_head_is_refused(settings, why):
    given = {k: v for k, v in (SMALL | PERSONAL | settings).items() if v is not None}
    if settings.get("method"):
        del given["momentum"]
    with pytest.raises(ValueError, match=why):
        make_plan(from_mapping(given))
