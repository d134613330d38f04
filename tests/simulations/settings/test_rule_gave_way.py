"""A given setting that turns the rule off, or keeps a rate of another optimizer, is named before
the run, with what went and the words that keep it; a setting that replaces its own value is not.
"""

import pytest

from fedlsg.simulations import workloads
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.server.ready import ready_plan
from fedlsg.simulations.settings.rule_gave_way import rule_notes
from fedlsg.simulations.settings.settings import from_mapping, names_given, values_of
from fedlsg.simulations.settings.with_preset import resolve
from tests.simulations.support.own import workload

NAME = "gave-way-test"


def notes(given, name=NAME):
    """What is said of settings that a user gave."""
    workloads.give(NAME, workload())
    raw = {"workload": name, "engine": "local", "clients": 2, "method": "dpsgd", **given}
    settings = resolve(raw)
    base = prepare(settings)
    return " | ".join(rule_notes(names_given(raw), settings, base.settings, base.workload))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"learning_rate": 0.1},
            "learning_rate=0.1 turns the rule off: sgd at 0.1, 10 rounds at q = 0.1, no average of "
            "the weights; the rule has adam at 0.06325, 40 rounds at q = 0.5, an average of the "
            "weights (ema=0.875). learning_rate=auto keeps the rule, learning_rate=x0.5 keeps it",
        ),
        ({"optimizer": "SGD"}, "optimizer=sgd turns the rule off: sgd at 0.1, 10 rounds"),
        ({"momentum": 0.9}, "Without momentum the rule stays"),
        ({"learning_rate": 0.1, "momentum": 0.9}, "auto, without momentum, keeps the rule"),
        ({"learning_rate": 0.1, "optimizer": "adam"}, "adam at 0.1, 10 rounds"),
        ({"learning_rate": 0.1, "epochs": 20}, "sgd at 0.1, 40 rounds at q = 0.5, no average"),
    ],
)
def test_what_gave_way_is_said_with_the_way_back(given, words):
    assert words in notes(given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"rounds": 80},
        {"epochs": 5},
        {"optimizer": "AdamW"},
        {"learning_rate": "x0.5"},
        {"learning_rate": "auto"},
        {  # all that a reader must know of was given
            "learning_rate": 0.1,
            "optimizer": "adam",
            "rounds": 40,
            "sample_rate": 0.5,
            "ema": 0.9,
        },
    ],
)
def test_a_value_that_replaces_its_own_is_not_named(given):
    assert notes(given) == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": "AdamW"}, "optimizer=AdamW has learning_rate=0.4, which the preset of dig"),
        ({"optimizer": "AdamW", "learning_rate": "auto"}, ""),
        ({"optimizer": "AdamW", "learning_rate": 0.01}, ""),
        ({"optimizer": "SGD"}, ""),  # the preset is for it
        ({"learning_rate": 0.1}, ""),  # a preset's number, and no rule
        ({"learning_rate": 0.1, "features": "scattering"}, "turns the rule off"),
    ],
)
def test_a_rate_for_another_optimizer_is_named(given, words):
    found = notes(given, "digits")
    assert found.startswith(words) if words[:3] == "opt" else words in found
    assert bool(found) == bool(words)


def test_a_plan_carries_it_to_the_terminal_and_the_page():
    workloads.give(NAME, workload())
    raw = {"workload": NAME, "engine": "local", "clients": 2, "learning_rate": 0.1, "epsilon": 8}
    plan = ready_plan(resolve(raw), given=names_given(raw))
    assert any("turns the rule off" in note for note in plan.notes)
    again = ready_plan(resolve(raw))  # as a resumed run, whose user gave nothing now
    assert not any("turns the rule off" in note for note in again.notes)


def rates(given, name=NAME):
    workloads.give(NAME, workload())
    raw = {"workload": name, "engine": "local", "clients": 2, "method": "dpsgd", **given}
    return values_of(prepare(resolve(raw)).settings)


def test_a_multiple_keeps_all_but_the_rates():
    usual, half = rates({}), rates({"learning_rate": "x0.5"})
    changed = {name for name in usual if usual[name] != half.get(name)}
    assert changed == {"learning_rate", "local_learning_rate"}  # the second is the first
    assert half["learning_rate"] == pytest.approx(usual["learning_rate"] / 2, rel=1e-3)
    assert rates({"learning_rate": "x2"}, "digits")["learning_rate"] == 0.8
    assert half["auto"] == usual["auto"]
    with pytest.raises(ValueError, match=r"multiple above 0 for learning_rate, such as x0\.5"):
        from_mapping({"learning_rate": "x0"})


def test_a_multiple_of_a_papers_rate():
    paper, half = (
        values_of(resolve({"preset": "dpsgd-sst2-bert-eps8", **more}))
        for more in ({}, {"learning_rate": "x0.5"})
    )
    assert half["learning_rate"] == pytest.approx(paper["learning_rate"] / 2)
    assert half["classifier_learning_rate"] == pytest.approx(paper["classifier_learning_rate"] / 2)
    assert "auto" not in half
