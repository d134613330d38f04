"""What the server refuses to believe of a client's charge, by its copy of the client's ledger."""

from dataclasses import replace

import pytest

from fedlsg.privacy import Entry, Ledger, LedgerError, ledger_path
from strategies.federation.proofs import LedgerCopies

ENTRY = Entry(
    client=0, round=2, attempt=0, steps=3, sample_rate=0.1, noise_multiplier=2.0, clip_norm=1.0, num_examples=100,
    mechanism="dp", reproducible=False, run="a",
)  # fmt: skip
TERMS = {
    "steps": 3, "sample_rate": 0.1, "noise_multiplier": 2.0, "clip_norm": 1.0, "num_examples": 100, "mechanism": "dp",
}  # fmt: skip


def copies(folder, entry: Entry) -> LedgerCopies:
    Ledger(ledger_path(folder, 0), client=0).charge(entry)
    return LedgerCopies(folder=folder, run="a")


def test_the_announced_charge_is_accepted(tmp_path):
    copies(tmp_path, ENTRY).insist(0, 2, TERMS)


@pytest.mark.parametrize(
    "other",
    [{"steps": 2}, {"sample_rate": 0.05}, {"noise_multiplier": 4.0}, {"clip_norm": 0.5}, {"num_examples": 200}],
    ids=str,
)
def test_a_charge_of_other_terms_is_refused_by_their_name(other, tmp_path):
    (name,) = other
    with pytest.raises(LedgerError, match=rf"client 0 charged round 2 with {name}=.*announced {TERMS[name]}"):
        copies(tmp_path, replace(ENTRY, **other)).insist(0, 2, TERMS)


def test_a_charge_of_another_lambda_is_refused(tmp_path):
    """0 unless it is announced."""
    copies(tmp_path / "same", replace(ENTRY, log_ratio=0.1)).insist(0, 2, TERMS | {"log_ratio": 0.1})
    for number, (charged, announced) in enumerate([(0.0, {"log_ratio": 0.1}), (0.1, {}), (0.1, {"log_ratio": 0.2})]):
        own = copies(tmp_path / f"{number}", replace(ENTRY, log_ratio=charged))
        with pytest.raises(LedgerError, match=rf"log_ratio={charged} \(announced"):
            own.insist(0, 2, TERMS | announced)


@pytest.mark.parametrize("other", [{"round": 1}, {"run": "b"}], ids=str)
def test_a_charge_of_another_round_or_run_is_none(other, tmp_path):
    with pytest.raises(LedgerError, match="its ledger has no entry for that round"):
        copies(tmp_path, replace(ENTRY, **other)).insist(0, 2, TERMS)
