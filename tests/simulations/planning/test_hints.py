"""What a run at the accuracy of guessing is told: twelve situations, each with the hint that its
public numbers support, and with the words that it must not have.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from fedlsg.simulations import workloads
from fedlsg.simulations.planning.advice import hints
from fedlsg.simulations.planning.advice.hints import Ended, Trial, guessing_line, hint
from fedlsg.simulations.planning.advice.remarks import pull
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.run.public_trial import learn_public_rows
from fedlsg.simulations.settings.settings import from_mapping
from tests.simulations.support.own import TEST, TRAIN, workload

LEARNS = Trial(learns=True, before=1.1, after=0.3, updates=40)
FAILS = Trial(learns=False, before=1.1, after=1.09, updates=40)
NOISY: Mapping[str, Any] = {"noise_multiplier": 2.0, "rho": 0.5, "pull": 40.0, "trial": LEARNS}
SILENT: Mapping[str, Any] = {"noise_multiplier": 0.0, "rho": 0.0, "pull": None, "trial": LEARNS}
USUAL: Mapping[str, Any] = {"rounds": 40, "ruled": True, "clients": 5, "losses": [1.1] * 40}
FALLING = [1.1 - 0.01 * t for t in range(40)]
RISING = [1.1 + 0.05 * t for t in range(40)]

SITUATIONS: dict[str, tuple[Mapping[str, Any], str, str]] = {
    # what is so; what is said; what is not said
    "noise far above the data": (
        NOISY | {"pull": 0.2},
        "noise hides these rows: over the run it moves a weight 5 times as far as all rows together "
        "can: give a larger epsilon, more rows, fewer clients or trust=secure",
        "learning_rate",
    ),
    "noise above what runs learn from": (
        NOISY | {"pull": 3.0},
        "even if all of their gradients agreed, they would move a weight only 3 times as far as "
        "noise does, and runs learn from about 10 times on",
        "learning_rate",
    ),
    "noise of a dense method": (
        NOISY | {"pull": 3.0, "rho": 6.0},
        "or a method that sends fewer values",
        "learning_rate",
    ),
    "noise where the sum is secure": (
        NOISY | {"pull": 3.0, "trust": "secure"},
        "give a larger epsilon or more rows",
        "fewer clients|trust=",
    ),
    "a loss that rises where the noise of a step is loud": (
        NOISY | {"pull": 40.0, "rho": 14.0, "losses": RISING},
        "rose by 125%, and the noise of a step is 14 times the clip norm: give a larger epsilon, "
        "more rows",
        "too long",
    ),
    "noise of one client": (
        NOISY | {"pull": 3.0, "clients": 1},
        "give a larger epsilon or more rows",
        "fewer clients|trust=",
    ),
    "noise of whole clients, whose pull is not known": (
        NOISY | {"pull": None, "rho": 30.0, "whole": True, "trust": "server"},
        "noise hides the updates: that of one step is 30 times the clip norm: give a larger epsilon, "
        "more clients or a method that sends fewer values",
        "more rows",
    ),
    "little noise, a loss that falls": (
        NOISY | {"losses": FALLING},
        "the loss was still falling (by 30% over the run): give more than rounds=40; the noise for "
        "the same epsilon follows",
        "a larger epsilon",
    ),
    "no noise, a loss that falls": (
        SILENT | {"losses": FALLING},
        "the loss was still falling (by 30% over the run): give more than rounds=40",
        "noise|epsilon",
    ),
    "no noise, a loss that fell at first": (
        SILENT | {"losses": [2.0] * 10 + [1.1] * 30},
        "the loss did not move at the end of 40 rounds",
        "still falling|lower the noise|epsilon",
    ),
    "no noise, a loss that rises": (
        SILENT | {"losses": RISING, "ruled": False},
        "so steps are too long: give learning_rate=auto",
        "noise|epsilon",
    ),
    "no noise, few rounds": (
        SILENT | {"rounds": 3, "losses": [1.1, 1.1, 1.1], "trial": replace(LEARNS, updates=3)},
        "3 updates of the weights are few: give rounds=20 or more",
        "noise|epsilon",
    ),
    "few rounds, in which public rows are not learned either": (
        SILENT | {"rounds": 10, "losses": [1.1] * 10, "trial": replace(LEARNS, updates=200)},
        "10 updates are few: the model learned public rows in 200: give rounds=200 or more",
        "look at the model|noise|labels",
    ),
    "few rounds with some noise": (
        NOISY | {"rounds": 10, "losses": [1.1] * 10, "trial": replace(LEARNS, updates=40)},
        "public rows in 40, without clip and noise: give rounds=40 or more",
        "look at the model|labels",
    ),
    "no noise, a model that learns nothing": (
        SILENT | {"trial": FAILS},
        "the model does not learn public rows either (loss 1.1 to 1.09 in 40 updates)",
        "noise|epsilon",
    ),
    "noise, and a model that learns nothing without it": (
        NOISY | {"pull": 0.2, "trial": FAILS, "ruled": False},
        "without clip and noise the model does not learn public rows either (loss 1.1 to 1.09 in 40 "
        "updates): give learning_rate=auto; if that does not help, look at the model",
        "epsilon|fewer clients",
    ),
    "no noise, and nothing moves": (
        SILENT,
        "this run has no noise: look at the model, the loss",
        "epsilon|less noise|lower the noise",
    ),
    "some noise, a given rate, and nothing moves": (
        NOISY | {"ruled": False},
        "the loss did not move at the end of 40 rounds: give learning_rate=auto",
        "epsilon",
    ),
    "some noise, the rule's rate, and nothing moves": (
        NOISY,
        "fewer clients or trust=secure, which lower the noise",
        "learning_rate",
    ),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_hint_follows_from_what_is_so(situation):
    given, said, unsaid = SITUATIONS[situation]
    words = hint(Ended(**{**USUAL, **given}))
    assert said in words
    assert not re.search(unsaid, words), words


@pytest.mark.parametrize("trial", [LEARNS, FAILS, None])
@pytest.mark.parametrize("losses", [(), [1.1] * 9, FALLING, RISING, [1.0, float("nan")]])
@pytest.mark.parametrize("ruled", [True, False])
def test_a_run_without_noise_is_never_told_to_lower_it(trial, losses, ruled):
    run = Ended(**{**USUAL, **SILENT, "trial": trial, "losses": losses, "ruled": ruled})
    assert not re.search("epsilon|lower|less noise|noise hides|hide these", hint(run))
    # the control: the same run with noise may be
    assert "epsilon" in hint(replace(run, noise_multiplier=2.0, pull=0.2, trial=None))


def test_a_run_above_guessing_is_told_nothing():
    chance = {"num_classes": 3, "majority_share": 0.4, "test_examples": 100.0}
    summary = {"chance": chance, "accuracy": 0.9, "noise_multiplier": 2.0, "rounds": 9}
    assert guessing_line(summary, "learning_rate") is None
    assert guessing_line({**summary, "chance": None}, "") is None
    said = guessing_line({**summary, "accuracy": 0.35, "clients": 2, "rho": 0.1}, "learning_rate")
    assert said is not None
    assert said.startswith(
        "the accuracy is that of guessing (40%): 9 updates of the weights are few"
    )


@pytest.mark.parametrize(
    ("model", "learns"),
    [
        (lambda: nn.Linear(8, 3), True),
        # the planted mistake: its outputs do not depend on what is trained
        (lambda: nn.Sequential(nn.Linear(8, 3), nn.Hardtanh(-1e-9, 1e-9)), False),
    ],
)
def test_the_trial_on_public_rows_finds_a_model_that_learns_nothing(model, learns):
    workloads.give("hints-test", workload(model=model, train=TRAIN, test=TEST))
    given = {"workload": "hints-test", "clients": 2, "noise_multiplier": 500.0, "engine": "local"}
    plan = make_plan(from_mapping(given))
    trial = learn_public_rows(plan)
    assert trial is not None
    assert trial.learns is learns
    assert (trial.after < trial.before) is learns
    assert (pull(plan) or 0.0) < hints.SWAMPED


def test_no_trial_reads_rows_that_are_private():
    workloads.give("hints-test", workload(model=lambda: nn.Linear(8, 3), train=TRAIN, test=TEST))
    given = {"workload": "hints-test", "clients": 2, "noise_multiplier": 9.0, "engine": "local"}
    assert learn_public_rows(make_plan(from_mapping(given))) is not None
    assert learn_public_rows(make_plan(from_mapping({**given, "holdout": 0.3}))) is None
