"""The unit-mode audit as a whole: it accuses no correct code, and finds every plant."""

import numpy as np
import pytest

import fedlsg.training.client
from fedlsg.attacks.audit.plants import PLANTS, planted
from fedlsg.attacks.audit.unit_mode import record
from fedlsg.attacks.audit.verdict import judge, stated_claim
from tests.fedlsg.support.audit_setting import aggregated, audit, setting, verdict


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
    ids=["per-block, accounted truthfully", "weighted groups", "local steps", "full batches", "aggregate"],
)
def test_correct_code_of_other_mechanisms_is_not_accused(made):
    found = audit(made)
    assert found.words == "not falsified", found.reasons


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


def test_plants_leave_the_client_as_it_was():
    before = dict(vars(fedlsg.training.client))
    for name in PLANTS:
        with planted(name):
            assert dict(vars(fedlsg.training.client)) != before
    assert dict(vars(fedlsg.training.client)) == before
    with pytest.raises(ValueError, match="halved-noise"), planted("nothing-known"):
        pass
