"""A unit, a rule of selection and a mechanism of one's own, each one object: a run trains with
them, and is charged.
"""

from math import comb, exp

import numpy as np
import pytest
from scipy.stats import norm

from fedlsg.accounting import epsilon
from fedlsg.attacks.observation import ThreatModel
from fedlsg.config.mechanisms import KINDS, Kind, gaussian
from fedlsg.config.selection import SELECTIONS, Selection
from fedlsg.config.units import EXAMPLE, UNITS, Unit
from fedlsg.simulations.attacks.observations import open_record
from tests.fedlsg.support.audit_setting import audit, setting
from tests.simulations.support.runs import run_local

PAIR = Unit(
    name="pair", protects="any two examples of one client", meaning="Of two examples.", examples=2
)
HOUSE = Unit(name="house", protects="a household", meaning="Of all data of a client.", whole=True)
LAST = Selection(name="last", order=lambda clients, **_: iter(reversed(range(clients))))
CLAMPED = Kind(
    name="clamped", clips=True, private=True, add=lambda *given: gaussian(*given).clamp_(-1e3, 1e3)
)
HALVED = Kind(
    name="halved",
    clips=True,
    private=True,
    add=lambda total, std, noise: gaussian(total, std / 2, noise),
)


@pytest.fixture(autouse=True)
def own(monkeypatch):
    for table, one in (
        (UNITS, PAIR),
        (UNITS, HOUSE),
        (SELECTIONS, LAST),
        (KINDS, CLAMPED),
        (KINDS, HALVED),
    ):
        monkeypatch.setitem(table, one.name, one)


def test_a_run_is_charged_as_its_objects_say(tmp_path):
    given = {
        "unit": "pair",
        "selection": "last",
        "mechanism": "clamped",
        "clients": 5,
        "clients_per_round": 2,
    }
    run = run_local(
        tmp_path / "run", **given, sample_rate=0.1, noise_multiplier=3.0, reproducible=False
    )
    assert run.directory.charges.clients() == [3, 4]
    entries = [entry for client in (3, 4) for entry in run.entries(client)]
    assert {(e.unit, e.mechanism, e.noise_multiplier, e.steps) for e in entries} == {
        ("pair", "clamped", 1.5, 1)
    }
    assert all(0.19 <= entry.sample_rate < 0.19 + 1e-9 for entry in entries)
    claimed = epsilon(sample_rate=entries[0].sample_rate, noise_multiplier=1.5, steps=2, delta=1e-5)
    assert run.summary is not None
    assert run.summary["epsilon_max"] == claimed.upper


def test_an_attack_on_a_record_knows_the_noise_of_a_payload_and_not_its_share_of_a_unit(tmp_path):
    given = {
        "unit": "pair",
        "sample_rate": 0.1,
        "noise_multiplier": 3.0,
        "clip_norm": 0.5,
        "rounds": 1,
    }
    run_local(tmp_path / "run", **given, record_updates=True)
    seen = open_record(str(tmp_path / "run"), ThreatModel()).observation(1, 0)
    assert (seen.noise_std, seen.local.sample_rate) == (1.5, 0.1)


@pytest.mark.parametrize(
    "changes", [{"trust": "secure", "clients": 3}, {"sampling": "shuffle", "batch_size": 9}]
)
def test_what_is_proved_for_examples_alone_is_refused(tmp_path, changes):
    with pytest.raises(ValueError, match=r"unit=pair (needs|does not go)"):
        run_local(
            tmp_path / "run", unit="pair", **{"sample_rate": None, "batch_size": 9, **changes}
        )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sample_rate": 0.1, "batch_size": None},
        {"trust": "client"},
        {"trust": "client", "method": "dp-powersgd", "rank": 2},
    ],
)
def test_whatever_a_whole_client_needs_holds_for_every_unit_that_is_one(changes, tmp_path):
    given = {
        "unit": "house",
        "trust": "server",
        "sample_rate": None,
        "batch_size": 9,
        "delta": 1e-3,
        **changes,
    }
    if changes:
        with pytest.raises(ValueError, match=r"unit=house (needs|does not go)"):
            run_local(tmp_path / "run", **given)
    else:
        assert {entry.unit for entry in run_local(tmp_path / "run", **given).entries(-1)} == {
            "house"
        }


def test_a_mechanism_of_ones_own_adds_no_share_of_a_sum_s_noise(tmp_path):
    """What it does to each client's values may take off the shares, as a clamp at 0.01 does."""
    with pytest.raises(ValueError, match="shares of noise add up only as mechanism='dp' adds them"):
        run_local(tmp_path / "run", mechanism="clamped", trust="aggregate", clients=3)
    assert not (tmp_path / "run").exists()


def true_delta(epsilon: float, q: float, sigma: float, examples: int) -> float:
    """By brute force: each of the examples is in the batch with chance q on its own, and moves the
    sum by 1.
    """
    x = np.linspace(-12 * sigma, 12 * sigma + examples, 200_001)
    parts = [comb(examples, j) * q**j * (1 - q) ** (examples - j) for j in range(examples + 1)]
    inside = sum(part * norm.pdf(x, j, sigma) for j, part in enumerate(parts))
    outside = norm.pdf(x, 0, sigma)
    both = (
        np.clip(p - exp(epsilon) * r, 0, None).sum()
        for p, r in ((inside, outside), (outside, inside))
    )
    return max(both) * (x[1] - x[0])


@pytest.mark.parametrize(("q", "sigma"), [(0.05, 1.0), (0.3, 2.0), (1.0, 3.0)])
def test_the_claim_of_a_pair_holds_and_that_of_one_example_is_caught(q, sigma):
    def claim(unit: Unit) -> float:
        sample_rate, own = unit.rate(q), sigma / unit.examples
        return epsilon(sample_rate=sample_rate, noise_multiplier=own, steps=1, delta=1e-5).upper

    assert true_delta(claim(PAIR), q, sigma, 2) <= 1e-5 * (1 + 1e-6)
    assert true_delta(claim(EXAMPLE), q, sigma, 2) > 1e-5, "negative control"


def test_a_mechanism_that_adds_less_noise_than_it_is_charged_for_is_caught():
    assert not audit(setting(mechanism="clamped"), canaries=60).falsified
    assert audit(setting(mechanism="halved"), canaries=60).falsified
