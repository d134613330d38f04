"""Every plant in every trust mode and unit: planted it is found, without it nothing is accused."""

from dataclasses import replace

import pytest

from fedlsg.attacks.audit.checks.all_checks import check_recording
from fedlsg.attacks.audit.played.plants import PLANTS, planted, refuse_plant
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.attacks.audit.played.unit_mode import record
from tests.fedlsg.support.audit_setting import MODES, OF_GAMES, audit, in_mode, secure, setting


def small(mode: str) -> AuditSetting:
    """Two rounds: what plants change is found by checks, and few canaries are enough for them."""
    return in_mode(mode, setting(rounds=2))


def fits(plant: str, made: AuditSetting) -> bool:
    try:
        refuse_plant(plant, made)
    except ValueError:
        return False
    return True


def turned(some: list[tuple[str, str]], by: int) -> list[tuple[str, str]]:
    return [some[(at + by) % len(some)] for at in range(len(some))]


def failed(made: AuditSetting, plant: str | None = None, seed: int = 0) -> set[str]:
    """The checks that fail; the bounds take longer, and are weaker."""
    with planted(plant, clients=made.stated.members):
        seen = record(made, 10, seed=seed, plans=())
    return {check.name for check in check_recording(seen, made) if not check.passed}


FITTING = [
    (mode, plant)
    for mode in MODES
    for plant in PLANTS
    if plant not in OF_GAMES and fits(plant, small(mode))
]
"""Every plant in one mode, and all modes; the other pairs run with the slow tests."""
CASES = [
    case if turn < 1 else pytest.param(*case, marks=pytest.mark.slow)
    for plant in PLANTS
    for turn, case in enumerate(
        turned([pair for pair in FITTING if pair[1] == plant], list(PLANTS).index(plant))
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    ["client", *(pytest.param(mode, marks=pytest.mark.slow) for mode in MODES[1:-1]), MODES[-1]],
)
def test_correct_code_is_not_accused(mode):
    assert not [names for seed in range(2) if (names := failed(small(mode), seed=seed))]
    assert audit(small(mode), canaries=40).words == "not falsified"


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("mode", "plant"), CASES)
def test_every_plant_is_found(mode, plant):
    assert failed(small(mode), plant)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("mode", "plant", "reason"),
    [
        ("secure", "shares-for-all", "noise deviation, all"),
        ("server", "tenth-of-noise", "noise deviation, all"),
        ("secure", "rotation-doubles", "sensitivity of many"),
        ("secure, clients", "noise-reused", "fresh noise, on the grid"),
        ("aggregate", "noise-in-16-bits", "digits of the noise"),
        ("aggregate", "noise-permuted", "no value used again"),
    ],
)
def test_a_plant_is_found_for_the_right_reason(mode, plant, reason):
    assert reason in failed(small(mode), plant)


@pytest.mark.slow
def test_reused_noise_of_a_sum_looks_fresh_after_the_rotation():
    """Why the integers themselves are looked at: without them the decoded outputs alone would have
    to tell.
    """
    assert "noise without repeats" not in failed(small("secure"), "noise-reused")


@pytest.mark.slow
def test_two_clients_add_all_of_the_noise_each():
    """One reads along, so nobody is left to share with; shares for both of them are found."""
    made = secure(setting(rounds=2), clients=2, survivors=2)
    assert made.stated.honest == 1
    assert not failed(made)
    assert failed(made, "readers-not-counted")


@pytest.mark.slow
def test_a_plan_without_a_reader_is_held_to_one():
    """t = 0 in what runs, which is the audited plan; the threat model counts one participant all
    the same.
    """
    made = secure(setting(rounds=2))
    assert made.sums is not None
    # one client more than counts
    sums = replace(made.sums, min_survivors=made.sums.min_survivors + 1)
    late = replace(
        made, sums=sums, mechanism=replace(made.mechanism, noise_share=sums.contributors**-0.5)
    )
    assert "noise deviation, all" in failed(late)


@pytest.mark.parametrize(
    ("mode", "plant", "why"),
    [
        ("client", "rotation-doubles", "take trust=secure, got trust=client"),
        ("secure", "divisor-from-data", "discrete noise"),
        ("server", "noise-left-out", "take tenth-of-noise"),
        ("aggregate", "noise-clamped", "a sum of several does not end at three deviations"),
        ("secure, clients", "full-batches", "changes nothing at sample rate 1"),
        ("client", "nothing-known", "expected --plant in halved-noise"),
    ],
)
def test_a_plant_that_would_plant_nothing_is_refused(mode, plant, why):
    with pytest.raises(ValueError, match=why):
        refuse_plant(plant, small(mode))


def test_a_plant_that_changes_no_count_is_refused():
    full = secure(setting(rounds=2), clients=3, survivors=3)
    refuse_plant("shares-for-all", full)  # three in place of two
    whole = replace(full, stated=replace(full.stated, trust="client", clients=1))
    with pytest.raises(ValueError, match="changes nothing where the noise of all 1 clients counts"):
        refuse_plant("shares-for-all", whole)
