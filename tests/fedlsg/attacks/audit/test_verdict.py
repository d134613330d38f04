"""The audit as a whole, of payloads and of secure sums: it accuses no correct code, and finds every
plant.
"""

from dataclasses import replace
from pkgutil import resolve_name

import numpy as np
import pytest
import torch

from fedlsg.attacks.audit.played.plants import HOMES, PLANTS, planted
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.attacks.audit.played.unit_mode import record, rounds_of, values_of
from fedlsg.attacks.audit.verdict import judge, stated_claim
from tests.fedlsg.support.audit_setting import (
    aggregated,
    at_client_level,
    audit,
    secure,
    setting,
    verdict,
)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("seed", range(6))
def test_correct_code_is_not_accused(seed):
    found = audit(setting(), seed=seed)
    assert found.words == "not falsified", found.reasons


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        setting(clip="per-block", noise_multiplier=2.5),
        setting(classifier_clip_weight=3.0),
        setting(steps=3, rounds=4),
        setting(sample_rate=1.0, rounds=2),
        aggregated(setting(rounds=4), 4),
    ],
    ids=[
        "per-block, accounted truthfully",
        "weighted groups",
        "local steps",
        "full batches",
        "aggregate",
    ],
)
def test_correct_code_of_other_mechanisms_is_not_accused(made):
    found = audit(made)
    assert found.words == "not falsified", found.reasons


@pytest.mark.slow
def test_a_bound_alone_finds_a_wrong_clip():
    """Without the checks: what no canary's gradient is cut to is far outside of the claim."""
    made = setting(rounds=1, sample_rate=1.0, noise_multiplier=4.0)
    with planted("no-clip"):
        seen = record(made, 2000, seed=0)
    found = judge(seen.scores, seen.included, stated_claim(made.stated))
    assert "f-DP one-run bound" in found.reasons
    assert found.f_dp.epsilon >= found.claim.epsilon
    assert found.one_run.refutes


def test_the_auditor_sees_no_coin():
    """Scores shuffled against the inclusion bits are noise: they come from the outputs alone."""
    made = setting(rounds=4)
    seen = record(made, 400, seed=0)
    shuffled = np.random.default_rng(0).permutation(seen.included)
    assert judge(seen.scores, shuffled, stated_claim(made.stated)).one_run.epsilon < 0.2
    assert verdict(made, seen).one_run.epsilon > 0.4


def shipped():
    """Every function that a plant may take the place of, as the shipped path finds it now."""
    places = [f"{home}.{name}" for name, homes in HOMES.items() for home in homes]
    return {place: resolve_name(place) for place in places}


def test_plants_leave_the_shipped_path_as_it_was():
    before = shipped()
    for name in PLANTS:
        with planted(name):
            assert shipped() != before
    assert shipped() == before
    with pytest.raises(ValueError, match="halved-noise"), planted("nothing-known"):
        pass


def silent(made: AuditSetting, rounds: int = 30) -> torch.Tensor:
    return values_of(
        rounds_of(made, torch.zeros(1, made.frame.kept), "silent", 0, rounds, lambda: None)
    )


@pytest.mark.parametrize(
    "made", [secure(setting()), at_client_level(setting(), "secure")], ids=["example", "client"]
)
def test_the_noise_of_an_output_is_that_of_the_honest_clients(made):
    assert float(silent(made).std()) == pytest.approx(made.noise_std, rel=0.03)


@pytest.mark.slow
def test_an_output_that_keeps_the_readers_noise_would_have_too_much():
    """Negative control: with one share more the same clients reach sqrt(4 / 3) of what the readers
    are left with.
    """
    made = secure(setting())
    own = replace(made.stated, min_survivors=5)  # one more, whose noise is not taken off
    assert float(silent(replace(made, stated=own)).std()) == pytest.approx(
        made.noise_std * (4 / 3) ** 0.5, rel=0.03
    )


def test_a_client_moves_a_sum_by_its_clipped_update():
    made = at_client_level(setting(), "secure")
    made = replace(made, mechanism=replace(made.mechanism, noise_multiplier=0.001))
    row = torch.zeros(1, made.frame.kept)
    row[0, :2] = 30.0  # far above the clip
    output = values_of(rounds_of(made, row.expand(4, -1), "alike", 0, 1, lambda: None))[0]
    wanted = 4 * made.sensitivity * row[0] / row[0].norm()
    assert float((output - wanted).norm()) < 0.05 * float(wanted.norm())


def test_noise_that_is_planned_for_another_number_is_refused_by_the_release():
    made = secure(setting())
    short = replace(made, mechanism=replace(made.mechanism, noise_share=4**-0.5))
    with pytest.raises(ValueError, match="expected noise_share"):
        silent(short, 1)
