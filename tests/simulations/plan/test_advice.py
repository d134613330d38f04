"""Advice from public numbers alone: few updates, empty batches, inputs of another size, an accuracy of guessing."""

import pytest

from simulations import workloads
from simulations.plan.advice import advice, guessing_line
from simulations.plan.plan import make_plan
from simulations.settings.settings import from_mapping
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
        ({"epsilon": 3, "rounds": 20, "sample_rate": 1.0, "noise_multiplier": 3.0}, "epsilon=3 of a client lasts"),
    ],
)
def test_what_can_be_known_is_said(given, words):
    assert words in said(given)


def test_inputs_of_another_size_are_named_from_test_rows_alone():
    far = [(x * 1e-3, y) for x, y in (TRAIN, TEST)]
    assert "root mean square of 0.00" in said(train=far[0], test=far[1])
    assert said(train=far[0]) == ""  # private rows are not looked at
    assert said({"normalise": "public"}, train=far[0], test=far[1]) == ""
    assert said({"learning_rate": 0.1, "rounds": 20}, train=far[0], test=far[1]) == ""


def test_an_accuracy_of_guessing_names_what_to_change():
    chance = {"num_classes": 4, "majority_share": 0.25, "test_examples": 1000.0}
    assert "learning_rate=auto" in guessing_line({"accuracy": 0.26, "chance": chance}, None)
    assert "larger epsilon" in guessing_line({"accuracy": 0.26, "chance": chance}, "rounds learning_rate")
    assert guessing_line({"accuracy": 0.9, "chance": chance}, None) is None
    assert guessing_line({"accuracy": None, "chance": None}, None) is None
