"""Advice from public numbers alone, and the share of torch.func: said where it can be known, and
nowhere else.
"""

from collections import OrderedDict

import pytest
from torch import nn

from fedlsg.simulations import workloads
from fedlsg.simulations.planning.advice.remarks import advice, rho_words, torch_func_line
from fedlsg.simulations.planning.base.initial_state import InitialState
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping
from tests.simulations.support.own import TEST, TRAIN, workload

NAME = "advice-test"
GIVEN = {"workload": NAME, "clients": 2, "noise_multiplier": 2.0, "engine": "local"}


def said(given=(), **made):
    """All advice on a plan of the small workload."""
    workloads.give(NAME, workload(**made))
    return " | ".join(advice(make_plan(from_mapping({**GIVEN, **dict(given)}))))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rounds": 5}, "5 updates of the weights are few: give rounds=20"),
        ({"sample_rate": 0.01, "rounds": 20}, "empty batch in 74% of its steps"),
        ({"noise_multiplier": 500.0, "rounds": 20, "sample_rate": 1.0}, "19 points more than"),
        (
            {"epsilon": 3, "rounds": 20, "sample_rate": 1.0, "noise_multiplier": 3.0},
            "epsilon=3 of a client lasts",
        ),
    ],
)
def test_what_can_be_known_is_said(given, words):
    assert words in said(given)


@pytest.mark.slow
def test_inputs_of_another_size_are_named_from_test_rows_alone():
    far = [(x * 1e-3, y) for x, y in (TRAIN, TEST)]
    assert "root mean square of 0.00" in said(train=far[0], test=far[1])
    assert said(train=far[0]) == ""  # private rows are not looked at
    assert said({"normalise": "public"}, train=far[0], test=far[1]) == ""
    assert said({"learning_rate": 0.1, "rounds": 20}, train=far[0], test=far[1]) == ""


def net(body: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(
        OrderedDict(body=body, tanh=nn.Tanh(), flat=nn.Flatten(), classifier=nn.Linear(width, 10))
    )


def without_formula() -> nn.Module:
    return net(nn.PReLU(), 64)


def with_formulas() -> nn.Module:
    return net(
        nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.ConvTranspose2d(2, 2, 1), nn.Flatten(1, 2), nn.Conv1d(12, 2, 3)
        ),
        8,
    )


@pytest.mark.parametrize("method", ["dpsgd", "sgd"])
@pytest.mark.parametrize("build", [without_formula, with_formulas])
def test_the_line_of_a_run(monkeypatch, build, method):
    monkeypatch.setattr(InitialState, "model", lambda self: build())
    settings = {
        "workload": "digits",
        "method": method,
        "clients": 2,
        "rounds": 2,
        "engine": "local",
    }
    private = {"noise_multiplier": 1.0, "epsilon": None} if method == "dpsgd" else {}
    plan = make_plan(from_mapping({**settings, **private}))
    line = torch_func_line(plan)
    if build is without_formula and method == "dpsgd":
        assert line is not None
        start, _, rest = line.partition(": ")
        assert start == "torch.func computes the gradients of body"
        assert 0 < int(rest.split("%")[0]) < 100
    else:
        assert line is None


@pytest.mark.parametrize(
    ("rho", "fewer", "secure", "words", "not_said"),
    [
        (0.1, True, False, "a method that sends more values", "larger batches"),
        (0.1, False, False, "the model or public features", "sends more values"),
        (2.0, True, False, "larger batches or trust=secure", "hides little"),
        (2.0, True, True, "larger batches", "trust=secure"),
    ],
)
def test_rho_is_explained_by_its_own_size(rho, fewer, secure, words, not_said):
    explained = rho_words(rho, fewer=fewer, secure=secure)
    assert words in explained
    assert not_said not in explained
