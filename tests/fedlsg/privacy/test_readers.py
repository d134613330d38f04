"""Which noise protects against each reader: golden values, rho by hand and against noise that is
drawn.
"""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.accounting import Event
from fedlsg.privacy import Entry, Ledger, Mechanism, add_noise, rho
from fedlsg.privacy.ledger_entry import encode_entry
from fedlsg.privacy.totals import (
    READERS,
    STRONGEST_READER,
    multiplier_against,
    shares_hidden,
    shares_known,
)
from fedlsg.randomness import SecretStream

ENTRY = Entry(
    client=0,
    round=1,
    attempt=0,
    steps=1,
    sample_rate=0.2,
    noise_multiplier=2.0,
    clip_norm=1.0,
    num_examples=50,
    mechanism="dp",
)
SUM = replace(ENTRY, min_survivors=9, colluders=2, log_ratio=2.0**-80)


def test_golden_values():
    """Nine shares of 2 / sqrt(7): all of them 2.2678, without one 2.1381, without two 2."""
    found = {
        reader: multiplier_against(reader, 2.0, min_survivors=9, colluders=2) for reader in READERS
    }
    assert found["outside"] == found["server"] == pytest.approx(2.26779, abs=1e-5)
    assert found["participant"] == pytest.approx(2.13809, abs=1e-5)
    assert found["participants"] == found["server_and_participants"] == 2.0
    assert shares_hidden(9, 2) == (7, 8, 9)
    assert shares_hidden(2, 1) == (1, 2)


@given(m=st.integers(2, 300), t=st.integers(1, 299), sigma=st.floats(1e-3, 1e3))
def test_the_noise_is_that_of_the_shares_a_reader_does_not_know(m, t, sigma):
    """From the shares alone; nobody is said to see more noise than there is."""
    t = min(t, m - 1)
    share = sigma / math.sqrt(m - t)
    for reader in READERS:
        found = multiplier_against(reader, sigma, min_survivors=m, colluders=t)
        hidden = share * math.sqrt(m - shares_known(reader, t))
        assert hidden * (1 - 1e-14) <= found <= hidden * (1 + 1e-15)
        assert found >= multiplier_against(
            STRONGEST_READER, sigma, min_survivors=m, colluders=t
        ) * (1 - 1e-15)


def test_a_line_says_what_each_reader_sees(tmp_path):
    """The two numbers are in the line, and older lines are written as they were."""
    assert {"min_survivors": 9, "colluders": 2}.items() <= encode_entry(SUM).items()
    assert not {"min_survivors", "colluders"} & encode_entry(ENTRY).keys()
    ledger = Ledger(tmp_path / "ledger.jsonl", client=0)
    ledger.charge(SUM)
    ledger.charge(replace(SUM, round=2))
    assert json.loads(ledger.path.read_text().splitlines()[1])["min_survivors"] == 9
    (event,) = ledger.events()
    assert event == Event(sample_rate=0.2, noise_multiplier=2.0, steps=2, log_ratio=event.log_ratio)
    (outside,) = ledger.events("outside")
    assert outside.noise_multiplier == pytest.approx(2 * math.sqrt(9 / 7))
    assert (outside.steps, outside.log_ratio) == (2, event.log_ratio)


def test_sums_and_single_payloads_in_one_ledger_are_read_each_on_its_own(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", client=0)
    ledger.charge(SUM)
    ledger.charge(replace(ENTRY, round=2))
    assert [event.steps for event in ledger.events()] == [2], (
        "against the strongest reader they have one noise"
    )
    assert sorted(event.noise_multiplier for event in ledger.events("outside")) == pytest.approx(
        [2, 2.26779], abs=1e-5
    )


def test_an_old_secure_sum_of_a_deployed_client_counts_as_if_two_had_shared_its_noise(tmp_path):
    """Its line does not say how many did, and each of them knows its own."""
    old = replace(ENTRY, run="a", log_ratio=2.0**-80)
    ledger = Ledger(tmp_path / "ledger.jsonl", client=0)
    ledger.charge(old)
    assert ledger.events()[0].noise_multiplier == pytest.approx(2 / math.sqrt(2))
    for known in (
        replace(old, log_ratio=0.0),
        replace(old, run=""),
        replace(old, min_survivors=9, colluders=2),
    ):
        own = Ledger(
            tmp_path / f"{known.run}-{known.log_ratio}-{known.min_survivors}.jsonl", client=0
        )
        own.charge(known)
        assert own.events()[0].noise_multiplier == 2.0


@pytest.mark.parametrize(
    "changes",
    [
        {"colluders": 0},
        {"colluders": 9},
        {"colluders": -1},
        {"min_survivors": 0},
        {"min_survivors": True},
        {"mechanism": "noise-only", "noise_multiplier": 0.0, "log_ratio": 0.0},
    ],
)
def test_an_entry_of_a_sum_without_a_reader_or_without_an_honest_client_is_refused(changes):
    with pytest.raises(ValueError, match=r"colluders|min_survivors"):
        replace(SUM, **changes)


SIGMA, N, Q, D = 2.0, 1000, 0.1, 400
"""One client: B = q N = 100, and rho = 2 * 20 / 100 = 0.4."""


def of(
    mechanism: Mechanism,
    clients: int = 1,
    *,
    sigmas: tuple[float, ...] | None = None,
    blocks: int = 3,
) -> float:
    found = rho(
        mechanism,
        sigmas or (SIGMA,) * clients,
        clients_per_round=clients,
        values=D,
        blocks=blocks,
        expected_batch=clients * Q * N,
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("mechanism", "clients", "expected"),
    [
        ({}, 1, 0.4),
        ({"clip_norm": 7.0}, 1, 0.4),
        ({}, 4, 0.2),  # noise sigma sqrt(4), B = 4 q N
        ({"noise_share": 0.5}, 4, 0.1),  # the noise of one client, B = 4 q N
        # two survivors are enough, and all four replied
        ({"noise_share": 1 / math.sqrt(2)}, 4, 0.1 * math.sqrt(2)),
        # the clipped gradient's norm is C sqrt(3) at most
        ({"clip": "per-block"}, 1, 0.4 / math.sqrt(3)),
        ({"kind": "clip-only"}, 1, 0.0),
        ({"kind": "none"}, 1, 0.0),
    ],
)
def test_by_hand(mechanism, clients, expected):
    assert of(Mechanism(noise_multiplier=SIGMA, **mechanism), clients) == pytest.approx(expected)


def test_noise_without_a_clip_has_none():
    mechanism = Mechanism(kind="noise-only", noise_multiplier=SIGMA)
    assert (
        rho(mechanism, [SIGMA], clients_per_round=1, values=D, blocks=3, expected_batch=100) is None
    )


def test_unequal_noise_adds_up_in_squares():
    assert of(Mechanism(), 2, sigmas=(1.0, 3.0)) == pytest.approx(math.sqrt(1 + 9) * 20 / 200)


def test_with_a_clip_of_each_block_it_has_the_noise_multiplier_of_the_ledger():
    mechanism = Mechanism(noise_multiplier=SIGMA, clip="per-block")
    assert of(mechanism) == pytest.approx(
        mechanism.effective_noise_multiplier(3) * math.sqrt(D) / (Q * N)
    )


@pytest.mark.parametrize(
    "mechanism", [{}, {"clip": "per-block", "clip_norm": 3.0}, {"noise_share": 0.5}]
)
def test_noise_that_is_drawn(mechanism):
    """Four clients' noise, over the divisor and the largest norm of the mean gradient; relative
    deviation 1.8 %.
    """
    made = Mechanism(noise_multiplier=SIGMA, **mechanism)
    noise = SecretStream(b"0" * 32)
    total = sum(
        (add_noise(torch.zeros(D, dtype=torch.float64), made, noise) for _ in range(4)),
        torch.zeros(D),
    )
    measured = float(total.norm()) / (4 * Q * N) / made.sensitivity(3)
    assert measured == pytest.approx(of(made, 4), rel=0.12)
