"""``fedlsg attack --membership``: halves, scores, bounds, one round, what is written, and what it
refuses.
"""

import io
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy.special import ndtri

from fedlsg.attacks.audit.bounds import subsampled
from fedlsg.attacks.membership.scores import membership_attacks
from fedlsg.attacks.roc import roc
from fedlsg.simulations.attacks.membership import as_shadow, curves, membership_command, page
from fedlsg.simulations.attacks.membership.measure import (
    Limit,
    answers,
    attack,
    by_epsilon,
    confidence_of_each,
    over_the_claim,
)
from fedlsg.simulations.attacks.membership.membership_findings import (
    Report,
    at_guessing,
    badge_of,
    bounded,
    grade_of,
    tables,
    verdict,
)
from fedlsg.simulations.attacks.membership.own_model import own_attacks, scores_on_payloads
from fedlsg.simulations.attacks.membership.shadows import (
    PublicRows,
    Trained,
    halves,
    pair_of,
    train_all,
)
from fedlsg.simulations.attacks.observations import load_record
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.report.pages.page import download
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.workloads.base.split import Chance
from tests.simulations.support.own_scripts import without_scripts
from tests.simulations.support.runs import SMALL, run_local

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


def made(
    *, shift: float, shadows: int = 16, examples: int = 1000, seed: int = 0, public: int = 100
) -> Trained:
    """Confidences of examples that differ in how hard they are; being in the model adds ``shift``
    deviations. One feature, which is public, says half of how hard an example is.
    """
    generator = np.random.default_rng(seed)
    inside = halves(shadows, examples, seed).numpy()
    features = generator.standard_normal((examples + public, 1))
    hardness = 3 * features[:, 0] + 3 * generator.standard_normal(examples + public)
    noise = generator.standard_normal((len(inside), examples + public))
    confidence = hardness + noise
    confidence[:, :examples] += shift * inside
    return Trained(
        rows=np.arange(examples),
        confidence=confidence[:, :examples],
        inside=inside,
        accuracy=tuple([0.9] * len(inside)),
        public=PublicRows(
            confidence=confidence[:, examples:],
            first=hardness[examples:] - 3,
            first_of_candidates=hardness[:examples] - 3,
            features=features[examples:],
            features_of_candidates=features[:examples],
        ),
    )


def report_of(models: Trained, **changes) -> Report:
    """A report without a claim."""
    return Report(
        settings=from_mapping(SETTINGS | changes),
        models=models,
        found=attack(models, seed=0),
        claim=None,
        limits=(),
        own={},
        seed=0,
        seconds=0.0,
    )


@cache
def leaky() -> Report:
    """All attacks on models that know their examples."""
    return report_of(made(shift=2.0, shadows=6, examples=200))


@pytest.mark.parametrize("name", [one.name for one in membership_attacks()])
@pytest.mark.parametrize("target", [0, 3])
def test_no_attack_reads_the_coins_of_its_target(name, target):
    run = next(one.score for one in membership_attacks() if one.name == name)
    models = made(shift=2.0, shadows=8, examples=50)
    lied = models.inside.copy()
    for model in (target, pair_of(target)):
        if model is not None:
            lied[model] = ~lied[model]
    assert np.array_equal(
        run(answers(models, target)), run(answers(replace(models, inside=lied), target))
    )


def test_intervals_of_several_attacks_are_wider():
    assert confidence_of_each(7) == pytest.approx(1 - 0.05 / 14)
    one = leaky().found[0]
    alone = one.in_turn.auc.value - ndtri(0.975) * one.drawn[:, 0].std(ddof=1)
    assert one.in_turn.auc.low < alone


@pytest.mark.slow
def test_no_attack_of_several_is_better_than_guessing_by_chance():
    """Nulls: no attack finds anything. The control tries each attack as if it were the only one."""
    nulls = [report_of(made(shift=0.0, shadows=6, examples=300, seed=seed)) for seed in range(16)]
    assert sum("None of 7 attacks" in verdict(one) for one in nulls) >= 15

    def accused(attacks) -> bool:
        rates = np.array([[one.in_turn.auc.value, one.in_turn.tpr[0.01].value] for one in attacks])
        wide = np.array([one.drawn[:, :2].std(0, ddof=1) for one in attacks])
        return bool((rates - ndtri(0.975) * wide > [0.5, 0.01]).any())

    assert sum(accused(one.found) for one in nulls) >= 1


def test_the_table_has_each_attack_once_and_members_found_first():
    report = leaky()
    (table,) = tables(report)
    assert table.columns[1] == "TPR at 1 % FPR"
    names = [row.cells[0] for row in table.rows]
    assert names == ["guessing", *(one.name for one in membership_attacks()), "bound"]
    assert "all 7 attacks" in table.note
    assert "strongest of 7 attacks" in verdict(report)


@cache
def nothing_found() -> Report:
    """Seven attacks on shadow models that know nothing, in a table of ten."""
    report = report_of(made(shift=0.0, shadows=6, examples=100, seed=1))
    return replace(report, found=attack(report.models, seed=0, more=3))


def with_own(shift: float, limit: float | None = None) -> Report:
    """On the run itself members score higher by ``shift`` in one of three attacks."""
    drawn = np.random.default_rng(1).normal(size=(3, 2, 4000))
    drawn[0, 0] += shift
    scores = {f"attack {n}": (members, others) for n, (members, others) in enumerate(drawn)}
    limits = [] if limit is None else [Limit(name="bound", bound=lambda rate: min(1, rate * limit))]
    own = own_attacks(scores, attacks=10, seed=0)
    return replace(nothing_found(), own=own, limits=tuple(limits))


def test_badge_headline_and_table_are_of_all_attacks():
    """An AUC above .5 on the run itself alone had the badge "better than guessing" over the
    headline "None can be distinguished".
    """
    better, none, members = with_own(0.1), with_own(0.0), with_own(2.0)
    assert [grade_of(one) for one in (better, none, members)] == ["better", "none", "members"]
    assert verdict(better).startswith(
        "attack 0 on the run itself, the strongest of 10 attacks, distinguishes"
    )
    assert verdict(none).startswith("None of 10 attacks can be distinguished from guessing")
    assert "attack 0 on the run itself, the strongest of 10 attacks, finds" in verdict(members)
    claimed = verdict(with_own(0.0, limit=1.1))
    assert claimed.index("distinguished from guessing") < claimed.index("between")
    assert "finds between " in claimed
    assert "Nothing contradicts the claim, which allows any attacker that sees" in claimed
    assert "at most 1.1 % there." in claimed
    (table,) = tables(better)
    assert "all 10 attacks" in table.note
    assert len(table.rows) == 10 + 2, "guessing and the bound have no intervals"


def test_all_rows_have_one_family_of_intervals():
    alone, wider = report_of(nothing_found().models).found[0], nothing_found().found[0]
    assert wider.in_turn.auc.low < alone.in_turn.auc.low
    assert wider.sure.auc.low < alone.sure.auc.low
    members, others = np.random.default_rng(0).normal(size=(2, 800))
    (own,) = own_attacks({"a": (members, others)}, attacks=10, seed=0).values()
    assert own.roc == roc(members, others, confidence=confidence_of_each(10))


def test_an_attack_on_the_run_itself_can_contradict_the_claim():
    report = with_own(3.0, 2.0)
    assert set(report.above) == {"attack 0 on the run itself"}
    words = verdict(report)
    assert "attack 0 on the run itself is above what the claim allows" in words
    assert "differ in more than membership" in words
    assert not with_own(0.1, 2.0).above


def test_attacks_without_public_rows_are_left_out():
    found = attack(replace(made(shift=2.0, shadows=6, examples=50), public=None), seed=0)
    assert {one.attack for one in found} == {"loss threshold", "LiRA offline", "LiRA online"}


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
    limit = Limit(name="bound", bound=lambda rate: 1.0)
    report = replace(leaky(), settings=from_mapping(SETTINGS | changes), limits=(limit,))
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


@pytest.mark.slow
def test_a_claim_that_a_leaky_model_breaks_is_named():
    found = attack(made(shift=3.0, shadows=8, examples=2000), seed=0)
    tight = Limit(name="bound: epsilon 0.1", bound=lambda rate: by_epsilon(rate, 0.1, 1e-5))
    wide = Limit(name="bound: epsilon 8", bound=lambda rate: by_epsilon(rate, 8.0, 1e-5))
    sure = {one.attack: one.sure for one in found}
    broken = set(over_the_claim(sure, [tight]))
    assert {"LiRA offline", "LiRA online"} <= broken
    assert "loss threshold" not in broken
    assert not over_the_claim(sure, [wide])


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
    names = {one.name: one.needs for one in membership_attacks()}
    assert set(found["attacks"]) == set(names)
    alone = {name for name, needs in names.items() if "shadows" not in needs}
    assert set(found["own_run"]) - {"sum of rounds"} == alone
    assert found["own_run"]["loss threshold"]["others"] == 180
    assert len(found["bounds"]) == 2
    for part in (page, text):
        for word in (
            "guessing",
            "trade-off curve",
            "candidates",
            "the client of each example",
        ):
            assert word in part
        assert "private" not in part.lower()
    assert "http" not in without_scripts(page).replace("http://www.w3.org", "")
    assert found["verdict"] in text.replace("\n", " ")


def summed_over_rounds(path: Path, **settings):
    """Scores of the sum of rounds on a short recorded run, of members and of others."""
    found = run_local(path, **(LEAKY | {"rounds": 6, "record_updates": True} | settings))
    return scores_on_payloads(load_record(found.directory), seed=0)


@pytest.mark.slow
def test_a_client_whose_rounds_are_summed_gives_its_rows_away(tmp_path):
    members, others = summed_over_rounds(tmp_path / "plain")
    assert roc(members, others).auc.low > 0.52
    # control: noise of sigma 20 leaves six rounds with an epsilon below 1
    noisy = summed_over_rounds(
        tmp_path / "noisy", method="dpsgd", noise_multiplier=20.0, reproducible=True
    )
    found = roc(*noisy)
    assert found.auc.low <= 0.5 <= found.auc.high + 0.05
    least, _ = subsampled(sample_rate=1.0, noise_multiplier=20.0, steps=6, delta=1e-5)
    assert found.tpr[0.01].low <= 1 - least(1 - 0.01)
    # non-members are as the normal of the closed form
    assert abs(float(np.std(noisy[1])) - 1) < 0.2


@pytest.mark.parametrize(("accuracy", "empty"), [(0.096, True), (0.9, False)])
def test_models_that_learned_nothing_get_a_warning_and_no_green_badge(accuracy, empty):
    models = nothing_found().models
    report = replace(
        nothing_found(),
        models=replace(models, accuracy=(accuracy,) * len(models.inside)),
        chance=Chance(num_classes=10, majority_share=0.103, test_examples=360),
    )
    assert (at_guessing(report) is not None) == empty
    assert (badge_of(report)[1] == "limited") == empty
    shown = page(report, "lead", download("membership.json", b"{}", "numbers"))
    assert ("learned nothing that an attack could find" in shown) == empty
    assert "Two questions about membership have two numbers" in shown


def test_the_best_attack_on_the_run_itself_is_in_the_figure():
    report = with_own(shift=3.0)
    (chart,) = curves(report)
    (points,) = [line for line in chart.series if line.name == "attack 0 on the run itself"]
    rates = report.own["attack 0"].roc.tpr
    assert points.y == [100 * rate.value for rate in rates.values()]
    assert points.high == [100 * rate.high for rate in rates.values()]
    assert np.isfinite(points.low).all()  # a point alone would look as sure as a curve
