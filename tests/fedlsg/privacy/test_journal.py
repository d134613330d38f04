"""The journal of charges: on disk before work is given out, and in the ledgers after whatever happened."""

import os
from pathlib import Path

import pytest

from fedlsg.privacy import ChargeJournal, Entry, Ledger, LedgerError, verify_extends


def entry(client: int, round: int = 1, attempt: int = 0) -> Entry:
    return Entry(
        client=client, round=round, attempt=attempt, steps=2, sample_rate=0.1, noise_multiplier=1.5, clip_norm=1.0,
        num_examples=40, mechanism="dp",
    )  # fmt: skip


@pytest.fixture
def journal(tmp_path: Path) -> ChargeJournal:
    return ChargeJournal(tmp_path / "ledger" / "journal.jsonl")


def ledgers(folder: Path):
    return lambda client: Ledger(folder / f"client-{client:06d}.jsonl", client=client)


def test_charges_are_pending_until_they_are_void(journal):
    journal.begin([entry(0), entry(1)])
    journal.void([entry(0)])
    journal.begin([entry(2)])
    assert ChargeJournal(journal.path).pending() == [entry(1), entry(2)]


def test_a_void_charge_may_be_made_again(journal):
    journal.begin([entry(0)])
    journal.void([entry(0)])
    journal.begin([entry(0)])
    assert journal.pending() == [entry(0)]


def test_settling_charges_what_a_ledger_lacks_and_nothing_twice(journal, tmp_path):
    """The bytes are those of a ledger that was synced entry by entry."""
    of, wanted = ledgers(tmp_path / "ledger"), ledgers(tmp_path / "wanted")
    journal.begin([entry(0), entry(1)])
    of(0).charge(entry(0), sync=False)
    journal.begin([entry(0, round=2)])
    assert journal.settle(of) == 2
    assert not journal.path.exists()
    for one in (entry(0), entry(1), entry(0, round=2)):
        wanted(one.client).charge(one)
    for client in (0, 1):
        assert of(client).path.read_bytes() == wanted(client).path.read_bytes()
    assert journal.settle(of) == 0


def test_a_journal_finds_the_entries_that_a_crash_of_the_machine_took_from_a_ledger(journal, tmp_path):
    """Control: without it the ledger is shorter than the checkpoint says, and is refused."""
    of = ledgers(tmp_path / "ledger")
    journal.begin([entry(0), entry(0, round=2)])
    for one in journal.pending():
        of(0).charge(one, sync=False)
    saved = {"0": of(0).snapshot()}
    lines = of(0).path.read_bytes().splitlines(keepends=True)
    of(0).path.write_bytes(b"".join(lines[:2]) + lines[2][:30])
    with pytest.raises(LedgerError):
        verify_extends(saved, tmp_path / "ledger")
    assert journal.settle(of) == 1
    verify_extends(saved, tmp_path / "ledger")


def test_a_torn_last_line_was_never_given_out(journal):
    journal.begin([entry(0)])
    whole = journal.path.read_bytes()
    journal.begin([entry(1)])
    journal.path.write_bytes(journal.path.read_bytes()[:-10])
    assert ChargeJournal(journal.path).pending() == [entry(0)]
    assert journal.path.read_bytes().startswith(whole)


@pytest.mark.parametrize("damage", ["flip", "drop", "swap"])
def test_a_damaged_line_is_refused_by_its_number(damage, journal):
    for client in range(3):
        journal.begin([entry(client)])
    first, second, third = journal.path.read_bytes().splitlines(keepends=True)
    flipped = second.replace(b'"steps": 2', b'"steps": 1')
    lines = {"flip": [first, flipped, third], "drop": [first, third], "swap": [second, first, third]}[damage]
    journal.path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError, match=f"line {1 if damage == 'swap' else 2}"):
        ChargeJournal(journal.path).pending()


def test_a_charge_that_cannot_be_synced_is_refused_and_leaves_the_journal_whole(journal, monkeypatch):
    journal.begin([entry(0)])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(LedgerError, match="nobody may train"):
            journal.begin([entry(1)])
    journal.begin([entry(2)])
    assert ChargeJournal(journal.path).pending() == [entry(0), entry(2)]
