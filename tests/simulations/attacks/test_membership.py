"""``fedlsg attack --membership``: halves, scores, bounds, one round, what is written, and what it
refuses.
"""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedlsg.simulations.attacks.membership import as_shadow, membership_command
from fedlsg.simulations.attacks.membership.loss_and_lira import (
    Limit,
    attack,
    by_epsilon,
    over_the_claim,
    scored,
)
from fedlsg.simulations.attacks.membership.membership_findings import Report, bounded, verdict
from fedlsg.simulations.attacks.membership.shadows import Trained, halves, pair_of, train_all
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping
from tests.simulations.support.own_scripts import without_scripts
from tests.simulations.support.runs import SMALL

SETTINGS = {key: value for key, value in SMALL.items() if key != "reproducible"}
LEAKY = SETTINGS | {
    "method": "sgd",
    "noise_multiplier": None,
    "train_rows": 120,
    "clients": 1,
    "rounds": 15,
    "sample_rate": 1.0,
}


def plan_of(**changes):
    return make_plan(as_shadow(from_mapping(SETTINGS | changes)))


def made(*, shift: float, shadows: int = 16, examples: int = 1000, seed: int = 0) -> Trained:
    """Confidences of examples that differ in how hard they are; being in the model adds ``shift``
    deviations.
    """
    generator = np.random.default_rng(seed)
    inside = halves(shadows, examples, seed).numpy()
    hardness = 4 * generator.standard_normal(examples)
    confidence = hardness + shift * inside + generator.standard_normal(inside.shape)
    return Trained(
        rows=np.arange(examples),
        confidence=confidence,
        inside=inside,
        accuracy=tuple([0.9] * len(inside)),
    )


@pytest.mark.parametrize("name", ["loss threshold", "LiRA offline", "LiRA online"])
@pytest.mark.parametrize("target", [0, 3])
def test_no_attack_reads_the_coins_of_its_target(name, target):
    models = made(shift=2.0, shadows=8, examples=50)
    lied = models.inside.copy()
    for model in (target, pair_of(target)):
        if model is not None:
            lied[model] = ~lied[model]
    assert np.array_equal(
        scored(name, models, target), scored(name, replace(models, inside=lied), target)
    )


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({}, "all payloads of all rounds"),
        ({"trust": "aggregate"}, "no single payload"),
        ({"trust": "secure", "clients": 4, "colluders": 2}, "what 2 clients"),
        ({"trust": "server", "unit": "client"}, "no update"),
    ],
)
def test_every_mode_says_who_is_bounded(changes, seen):
    models = made(shift=2.0, examples=200)
    limit = Limit(name="bound", bound=lambda rate: 1.0)
    report = Report(
        settings=from_mapping(SETTINGS | changes),
        models=models,
        found=attack(models, seed=0),
        claim=None,
        limits=(limit,),
        own=None,
        seed=0,
        seconds=0.0,
    )
    assert seen in bounded(report)
    assert seen in verdict(report)


def test_a_secure_sum_of_clients_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match="attack a run with trust=server"):
        train_all(
            plan_of(
                trust="secure",
                clients=4,
                min_survivors=4,
                colluders=1,
                unit="client",
                batch_size=20,
                sample_rate=None,
            ),
            shadows=6,
            seed=0,
            tick=nobody,
        )


def test_a_claim_that_a_leaky_model_breaks_is_named():
    found = attack(made(shift=3.0, examples=2000), seed=0)
    tight = Limit(name="bound: epsilon 0.1", bound=lambda rate: by_epsilon(rate, 0.1, 1e-5))
    wide = Limit(name="bound: epsilon 8", bound=lambda rate: by_epsilon(rate, 8.0, 1e-5))
    assert set(over_the_claim(found, [tight])) == {"LiRA offline", "LiRA online"}
    assert not over_the_claim(found, [wide])


def nobody(share: float, text: str) -> None:
    """A bar that nobody watches."""


@pytest.mark.slow
def test_a_leaky_model_is_found():
    """60 examples, no noise, everything learnt by heart."""
    models = train_all(plan_of(**LEAKY), shadows=6, seed=0, tick=nobody)
    found = {one.attack: one for one in attack(models, seed=0)}
    assert found["LiRA online"].in_turn.auc.low > 0.55
    assert found["LiRA online"].in_turn.tpr[0.01].value > 0.01


def command(tmp_path: Path, run: str | None = None, **given) -> tuple[dict, str, str]:
    """membership.json, membership.html, and what was printed."""
    console = Console(record=True, width=120, file=io.StringIO())
    out = tmp_path / "out"
    membership_command(
        run, {} if run else SETTINGS | given, console, shadows=6, seed=0, out=str(out)
    )
    return (
        json.loads((out / "membership.json").read_text()),
        (out / "membership.html").read_text(),
        console.export_text(),
    )


@pytest.mark.slow
def test_a_run_is_attacked_with_its_settings(tmp_path, small):
    before = {path: path.read_bytes() for path in small.path.rglob("*") if path.is_file()}
    found, page, text = command(tmp_path, str(small.path))
    assert {path: path.read_bytes() for path in small.path.rglob("*") if path.is_file()} == before
    assert (found["method"], found["shadows"], found["candidates"]) == ("lsg", 6, 1437)
    assert found["claim"]["noise_multiplier"] == 2.0
    assert set(found["attacks"]) == {"loss threshold", "LiRA offline", "LiRA online"}
    assert found["own_model_loss_threshold"]["examples"] == 720
    assert len(found["bounds"]) == 2
    for part in (page, text):
        for word in (
            "guessing",
            "trade-off curve",
            "closed form",
            "candidates",
            "the client of each example",
        ):
            assert word in part
        assert "private" not in part.lower()
    assert "http" not in without_scripts(page).replace("http://www.w3.org", "")
    assert found["verdict"] in text.replace("\n", " ")
