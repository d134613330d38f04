"""The signal of a first step is that of the mean clipped gradient of public rows, and says of the
accuracy what was measured.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedlsg.simulations import workloads
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.run.first_step import (
    MOST_OF_IT,
    PART_OF_IT,
    FirstStep,
    first_step,
    first_step_words,
)
from fedlsg.simulations.settings.settings import from_mapping
from tests.simulations.support.own import TEST, TRAIN, rows, workload

NAME = "first-step-test"
GIVEN = {"workload": NAME, "clients": 2, "noise_multiplier": 2.0, "engine": "local", "rounds": 9}
PUBLIC = rows(200, 2)


def planned(given=(), **made) -> Plan:
    workloads.give(NAME, workload(**{"test": PUBLIC, **made}))
    return make_plan(from_mapping({**GIVEN, "method": "dpsgd", **dict(given)}))


def by_hand(plan: Plan) -> float:
    """The root of the inner product of the mean clipped gradients of two halves, by autograd."""
    model, C = plan.initial.model(), plan.method.mechanism.clip_norm
    own = list(model.parameters())
    clipped = []
    for x, y in zip(*PUBLIC, strict=True):
        outputs = model(torch.as_tensor(x[None], dtype=torch.float32))
        loss = functional.cross_entropy(outputs, torch.as_tensor([int(y)]))
        g = torch.cat([part.flatten() for part in torch.autograd.grad(loss, own)]).double()
        clipped.append(g * min(1.0, C / float(g.norm())))
    parts = torch.stack(clipped).split(32)
    first, second = (torch.cat(parts[start::2]).mean(0) for start in (0, 1))
    return math.sqrt(max(0.0, float(first @ second))) / C


def test_the_signal_is_that_of_gradients_one_by_one():
    plan = planned({"clip_norm": 0.5})
    found = first_step(plan)
    assert found is not None
    assert found.signal == pytest.approx(by_hand(plan), rel=1e-4)
    assert (found.rows, found.updates) == (200, 9)
    assert found.of_run == pytest.approx(3 * found.signal / found.rho)


def test_equal_rows_have_all_of_the_clip_norm_and_labels_by_chance_next_to_nothing():
    one = np.repeat(PUBLIC[0][:1], 200, 0), np.array([0, 1, 2] + [1] * 197)
    # three other labels, so that there are three classes
    equal = first_step(planned({"clip_norm": 0.01}, test=one))
    assert equal is not None
    assert equal.signal == pytest.approx(1.0, abs=0.05)
    chance = PUBLIC[0], np.random.default_rng(5).integers(0, 3, 200).astype(np.uint8)
    found, real = first_step(planned(test=chance)), first_step(planned())
    assert found is not None
    assert real is not None
    assert found.signal < 0.5 * real.signal


def test_no_training_row_is_read():
    other = -3 * TRAIN[0], (TRAIN[1] + 1) % 3
    assert first_step(planned()) == first_step(planned(train=other))
    # the control: public rows are
    assert first_step(planned()) != first_step(planned(test=TEST))


@pytest.mark.parametrize(
    "given",
    [
        {"method": "sgd", "noise_multiplier": None},
        {"mechanism": "noise-only"},
        {"holdout": 0.2},
        {"unit": "client", "trust": "server", "batch_size": 10},
    ],
)
def test_nothing_is_said_where_it_would_say_nothing_or_read_private_rows(given):
    if "holdout" in given:
        assert first_step(planned(given, test=None)) is None
    else:
        assert first_step(planned(given)) is None


@pytest.mark.parametrize(
    ("signal", "words"),
    [
        (2 * MOST_OF_IT, "expect most of the accuracy"),
        (2 * PART_OF_IT, "expect a part of the accuracy"),
        (PART_OF_IT / 2, "expect little more than guessing"),
    ],
)
def test_words_follow_the_signal_of_the_run(signal, words):
    first = FirstStep(signal=signal, rho=10.0, rows=256, updates=100)
    said = first_step_words(first)
    assert said.endswith(
        words + (" that there would be without noise" if "accuracy" in words else "")
    )
    assert f"{signal:.2g} times as far as their noise" in said
    assert "nothing can be said" in first_step_words(FirstStep(signal=0, rho=1, rows=2, updates=1))


def test_a_lower_noise_is_a_larger_signal():
    some, less = (first_step(planned({"noise_multiplier": z})) for z in (4.0, 1.0))
    assert some is not None
    assert less is not None
    assert less.of_run == pytest.approx(4 * some.of_run)


def test_a_model_of_ones_own_with_several_layers_is_looked_at_in_its_carriers():
    def wide() -> nn.Module:
        return nn.Sequential(
            nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
        )

    dense, small = (
        first_step(planned({"method": m, **o}, model=wide))
        for m, o in (("dpsgd", {}), ("lsg", {"rank": 2}))
    )
    assert dense is not None
    assert small is not None
    assert small.rho < dense.rho
    assert small.signal <= dense.signal * 1.05
