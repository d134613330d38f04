"""Which noise protects against each reader: golden values, what an entry says, and how a ledger is read by each."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.accounting import Event
from fedlsg.privacy import Entry, Ledger
from fedlsg.privacy.ledger_entry import encode_entry
from fedlsg.privacy.totals import READERS, STRONGEST, multiplier_against, shares_hidden, shares_known

ENTRY = Entry(
    client=0, round=1, attempt=0, steps=1, sample_rate=0.2, noise_multiplier=2.0, clip_norm=1.0, num_examples=50,
    mechanism="dp",
)  # fmt: skip
SUM = replace(ENTRY, min_survivors=9, colluders=2, log_ratio=2.0**-80)


def test_golden_values():
    """Nine shares of 2 / sqrt(7): all of them 2.2678, without one 2.1381, without two 2."""
    found = {reader: multiplier_against(reader, 2.0, min_survivors=9, colluders=2) for reader in READERS}
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
        assert found >= multiplier_against(STRONGEST, sigma, min_survivors=m, colluders=t) * (1 - 1e-15)


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
    assert [event.steps for event in ledger.events()] == [2], "against the strongest reader they have one noise"
    assert sorted(event.noise_multiplier for event in ledger.events("outside")) == pytest.approx([2, 2.26779], abs=1e-5)


def test_an_old_secure_sum_of_a_deployed_client_counts_as_if_two_had_shared_its_noise(tmp_path):
    """Its line does not say how many did, and each of them knows its own."""
    old = replace(ENTRY, run="a", log_ratio=2.0**-80)
    ledger = Ledger(tmp_path / "ledger.jsonl", client=0)
    ledger.charge(old)
    assert ledger.events()[0].noise_multiplier == pytest.approx(2 / math.sqrt(2))
    for known in (replace(old, log_ratio=0.0), replace(old, run=""), replace(old, min_survivors=9, colluders=2)):
        own = Ledger(tmp_path / f"{known.run}-{known.log_ratio}-{known.min_survivors}.jsonl", client=0)
        own.charge(known)
        assert own.events()[0].noise_multiplier == 2.0


@pytest.mark.parametrize(
    "changes",
    [{"colluders": 0}, {"colluders": 9}, {"colluders": -1}, {"min_survivors": 0}, {"min_survivors": True},
     {"mechanism": "noise-only", "noise_multiplier": 0.0, "log_ratio": 0.0}],
)  # fmt: skip
def test_an_entry_of_a_sum_without_a_reader_or_without_an_honest_client_is_refused(changes):
    with pytest.raises(ValueError, match=r"colluders|min_survivors"):
        replace(SUM, **changes)
