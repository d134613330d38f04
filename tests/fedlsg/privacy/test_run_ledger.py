"""The run's ledger: on disk before anybody draws, whole after whatever happened, and never an entry
too few.
"""

import json
import os
from pathlib import Path

import pytest

from fedlsg.privacy import (
    RUN,
    BudgetError,
    Entry,
    Ledger,
    LedgerError,
    RunLedger,
    ledger_path,
    verify_extends,
)


def entry(client: int, round: int = 1, attempt: int = 0, **more: object) -> Entry:
    values: dict[str, object] = {
        "steps": 2,
        "sample_rate": 0.1,
        "noise_multiplier": 1.5,
        "num_examples": 40,
    }
    values |= {"clip_norm": 1.0, "mechanism": "dp"} | more
    return Entry(client=client, round=round, attempt=attempt, **values)


@pytest.fixture
def ledger(tmp_path: Path) -> RunLedger:
    return RunLedger(tmp_path / "ledger")


def charged(folder: Path) -> dict[int, list[Entry]]:
    """What a new reader finds."""
    found = RunLedger(folder)
    return {client: list(found.of(client).entries) for client in found.clients()}


def test_a_record_has_the_clients_of_a_round_in_columns(ledger):
    own = [entry(0), entry(3, num_examples=50), entry(7, attempt=2, batches=4, sample_rate=1.0)]
    ledger.charge(own)
    _, line = ledger.path.read_bytes().splitlines()
    columns = json.loads(line)["charged"]
    assert (columns["client"], columns["round"], columns["num_examples"]) == (
        [0, 3, 7],
        1,
        [40, 50, 40],
    )
    assert columns["batches"] == [0, 0, 4]
    assert charged(ledger.folder) == {one.client: [one] for one in own}


def test_one_sync_for_all_clients_of_a_round(ledger, monkeypatch):
    syncs, fsync = [], os.fsync
    ledger.charge([entry(0)])
    monkeypatch.setattr(os, "fsync", lambda descriptor: syncs.append(fsync(descriptor)))
    ledger.charge([entry(client, round=2) for client in range(50)])
    assert len(syncs) == 1
    ledger.void([entry(4, round=2)])
    assert len(syncs) == 2, "a checkpoint knows this record, and a run does not continue without it"


def test_a_reader_takes_what_was_appended_since(ledger):
    reader = RunLedger(ledger.folder)
    for round in range(1, 4):
        ledger.charge([entry(0, round), entry(1, round)])
        assert [one.round for one in reader.of(1).entries] == list(range(1, round + 1))
        assert reader.of(1).next_attempt(round) == 1
    assert reader.snapshot() == ledger.snapshot() == RunLedger(ledger.folder).snapshot()


def test_a_void_charge_does_not_count_and_may_be_made_again(ledger):
    ledger.charge([entry(0), entry(1)])
    assert len(ledger.of(0).events()) == 1
    ledger.void([entry(0), entry(9)])
    for found in (ledger, RunLedger(ledger.folder)):
        assert (list(found.of(0).entries), found.of(0).events()) == ([], ())
        assert (found.of(0).next_attempt(1), found.of(1).next_attempt(1)) == (0, 1)
    ledger.charge([entry(0)])
    assert charged(ledger.folder) == {0: [entry(0)], 1: [entry(1)]}


def test_an_attempt_is_charged_once(ledger):
    """A second draw under the first attempt would be an entry too few."""
    ledger.charge([entry(0)])
    with pytest.raises(LedgerError, match="charged already"):
        ledger.charge([entry(0), entry(1)])
    with pytest.raises(LedgerError, match="twice"):
        ledger.charge([entry(2), entry(2)])
    assert charged(ledger.folder) == {0: [entry(0)]}


def test_another_unit_is_refused(ledger):
    ledger.charge([entry(0)])
    with pytest.raises(LedgerError, match="another"):
        ledger.charge([entry(0, round=2, unit="client", sample_rate=1.0)])


def test_a_charge_beyond_the_budget_is_refused(ledger):
    with pytest.raises(BudgetError):
        ledger.of(0).charge(entry(0, noise_multiplier=0.5), within=(0.1, 1e-5))
    assert charged(ledger.folder) == {}


def test_every_way_in_which_a_crash_tears_the_last_record(ledger):
    """The tear is anywhere: the record does not count unless it is whole, and what follows is
    readable.
    """
    ledger.charge([entry(0)])
    whole = ledger.path.read_bytes()
    ledger.charge([entry(1)])
    content = ledger.path.read_bytes()
    for length in range(len(whole) - 1, len(content) + 1):
        ledger.path.write_bytes(content[:length])
        counts = length >= len(content) - 1
        assert charged(ledger.folder) == {0: [entry(0)], **({1: [entry(1)]} if counts else {})}
        RunLedger(ledger.folder).charge([entry(2)])
        assert charged(ledger.folder) == {
            0: [entry(0)],
            **({1: [entry(1)]} if counts else {}),
            2: [entry(2)],
        }


@pytest.mark.parametrize(
    "damage", ["flip", "last byte", "drop", "swap", "header", "NUL", "all NUL", "text"]
)
def test_a_damaged_line_is_refused_by_its_number(damage, ledger):
    for client in range(3):
        ledger.charge([entry(client)])
    head, first, second, third = ledger.path.read_bytes().splitlines(keepends=True)
    lines = {
        "flip": [head, first, second, third.replace(b'"steps": 2', b'"steps": 1')],
        "last byte": [head, first, second, third[:-2] + b"x"],
        "drop": [head, first, third],
        "swap": [head, second, first, third],
        "header": [head.replace(b"3", b"4", 1), first, second, third],
        "NUL": [head, first, second, third[:-90] + b"\0" * 90],
        "all NUL": [b"\0" * 600],
        "text": [head, first, second, third, b"and more"],
    }[damage]
    ledger.path.write_bytes(b"".join(lines))
    number = {
        "flip": 4,
        "last byte": 4,
        "drop": 3,
        "swap": 2,
        "header": 1,
        "NUL": 4,
        "all NUL": 1,
    }.get(damage, 5)
    with pytest.raises(LedgerError, match=f"line {number}"):
        RunLedger(ledger.folder)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_records_that_were_seen_must_stay(left, ledger):
    ledger.charge([entry(0)])
    ledger.charge([entry(1)])
    saved = {RUN: ledger.snapshot()}
    verify_extends(saved, ledger.folder)
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join(lines[:left]))
    with pytest.raises(LedgerError, match="seen earlier are gone"):
        ledger.charge([entry(2)])
    with pytest.raises(LedgerError, match="fewer"):
        verify_extends(saved, ledger.folder)
    ledger.path.unlink()
    with pytest.raises(LedgerError, match="missing"):
        verify_extends(saved, ledger.folder)


def test_a_charge_that_cannot_be_synced_is_refused_and_leaves_the_file_whole(ledger, monkeypatch):
    ledger.charge([entry(0)])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(LedgerError, match="nobody may train"):
            ledger.charge([entry(1)])
    ledger.charge([entry(2)])
    assert charged(ledger.folder) == {0: [entry(0)], 2: [entry(2)]}


def test_ledgers_of_single_clients_count(ledger):
    own = Ledger(ledger_path(ledger.folder, 0), client=0)
    own.charge(entry(0))
    found = RunLedger(ledger.folder)
    assert found.of(0).next_attempt(2) == 0
    found.charge([entry(0, 2), entry(1, 2)])
    assert charged(ledger.folder) == {0: [entry(0), entry(0, 2)], 1: [entry(1, 2)]}
    assert sum(event.steps for event in found.of(0).events()) == 4


def test_a_ledger_of_a_single_client_that_begins_later_counts(ledger):
    ledger.charge([entry(0), entry(1)])
    assert len(ledger.of(1).events()) == 1  # looked for when there was none
    later = entry(1, round=2)
    Ledger(ledger_path(ledger.folder, 1), client=1).charge(later)
    assert list(ledger.of(1).entries) == [later, entry(1)]
    assert sum(event.steps for event in ledger.of(1).events()) == 2 * entry(1).steps
    with pytest.raises(LedgerError, match="charged already"):
        ledger.charge([later])


def test_the_journal_of_an_older_version_is_refused(ledger):
    """Its charges would not count."""
    ledger.charge([entry(0)])
    (ledger.folder / "journal.jsonl").touch()
    with pytest.raises(LedgerError, match="charges that count, in a form that commit 293cb648"):
        RunLedger(ledger.folder)
