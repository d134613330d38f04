"""The ledger keeps every charge, refuses what is no charge, and knows the budget."""

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.accounting.calibrate import max_steps
from fedlsg.accounting.certified import epsilon
from fedlsg.privacy.ledger import Entry, Ledger, LedgerError
from fedlsg.privacy.ledger_entry import BudgetError
from fedlsg.privacy.ledger_file import ledger_path, merge, read_entries
from fedlsg.privacy.run_ledger import verify_extends
from tests.fedlsg.support.ledgers import TERMS, entry, filled, sha256, snapshots


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return ledger_path(tmp_path, 3)


entries_of_client_3 = st.lists(
    st.builds(
        entry,
        round=st.integers(0, 5),
        attempt=st.integers(0, 3),
        steps=st.integers(1, 9),
        sample_rate=st.floats(0.001, 1.0),
        noise_multiplier=st.floats(0.1, 50.0),
        clip_norm=st.floats(1e-6, 1e6),
        num_examples=st.integers(1, 10**6),
        reproducible=st.booleans(),
    ),
    unique_by=lambda e: e.key,
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(entries=entries_of_client_3)
def test_a_reopened_ledger_holds_exactly_what_was_charged(entries, tmp_path_factory):
    path = ledger_path(tmp_path_factory.mktemp("ledger"), 3)
    ledger = Ledger(path, client=3)
    for one in entries:
        ledger.charge(one)
    again = Ledger(path, client=3)
    assert ledger.entries == again.entries == tuple(entries) == read_entries(path)
    assert ledger.snapshot() == again.snapshot()
    for number in range(6):
        taken = {e.attempt for e in entries if e.round == number}
        assert again.next_attempt(number) == (max(taken) + 1 if taken else 0)
    assert sum(e.steps for e in again.events()) == sum(e.steps for e in entries)


def test_golden_file(path):
    """The format by hand: a header, then entries, each with the hash of the line before, and the
    digest of its own.
    """
    filled(path, rounds=1)
    header, first, empty = path.read_bytes().split(b"\n")
    assert empty == b""
    plain = json.dumps(
        {"schema": 2, "client": 3, "adjacency": "add/remove", "prev": "0" * 64}
    ).encode()
    assert json.loads(header) == json.loads(plain) | {"sha256": sha256(plain)}
    without = first[: first.index(b', "sha256"')] + b"}"
    digests = {"prev": sha256(header), "sha256": sha256(without)}
    assert json.loads(first) == {"client": 3, "round": 0, "attempt": 0, **TERMS, **digests}


def test_every_charge_is_synced_before_it_returns_and_a_new_file_with_its_directory(
    path, monkeypatch
):
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))[1]
    )
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to name a descriptor")
    ledger = Ledger(path, client=3)
    ledger.charge(entry(0))
    # the header before the first charge: a file whose header is torn has charged nobody
    assert synced == [str(path), str(path.parent)] * 2
    ledger.charge(entry(1))
    assert synced[4:] == [str(path)]


def test_a_charge_refuses_a_known_key_and_another_client(path):
    ledger = filled(path)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"\(3, '', 2, 0\) is charged already"):
        ledger.charge(entry(2, steps=5))
    with pytest.raises(LedgerError, match="client 3, got one of client 4"):
        ledger.charge(entry(9, client=4))
    assert path.read_bytes() == before
    ledger.charge(entry(2, attempt=ledger.next_attempt(2)))
    assert ledger.next_attempt(2) == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"steps": 0}, "steps"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": math.inf}, "clip_norm"),
        ({"clip_norm": math.nan}, "clip_norm"),
        ({"num_examples": 0}, "num_examples"),
        ({"round": -1}, "round"),
        ({"attempt": 1.0}, "attempt"),
        ({"mechanism": "magic"}, "mechanism"),
        ({"mechanism": "noise-only"}, "noise_multiplier"),
        ({"reproducible": "no"}, "reproducible"),
    ],
)
def test_an_entry_out_of_range_is_refused_by_name(changes, named):
    with pytest.raises(ValueError, match=named):
        entry(**changes)


def test_epsilon_is_that_of_the_steps_on_file(path):
    ledger = Ledger(path, client=3)
    assert ledger.epsilon(1e-5).upper == 0.0
    ledger = filled(path, rounds=5)
    expected = epsilon(sample_rate=0.2, noise_multiplier=1.5, steps=10, delta=1e-5)
    assert ledger.epsilon(1e-5) == expected
    ledger.charge(entry(5, reproducible=True))
    assert ledger.reproducible
    assert ledger.epsilon(1e-5) == math.inf


@pytest.mark.parametrize("mechanism", ["clip-only", "noise-only", "none"])
def test_one_entry_without_privacy_makes_epsilon_infinite(path, mechanism):
    ledger = filled(path)
    clip_norm = 0.5 if mechanism == "clip-only" else math.inf
    ledger.charge(entry(7, mechanism=mechanism, noise_multiplier=0.0, clip_norm=clip_norm))
    assert Ledger(path, client=3).epsilon(1e-5) == math.inf
    assert Ledger(path, client=3).entries[-1].clip_norm == clip_norm
    assert ledger.would_exceed(entry(8), 100.0, 1e-5)


def test_what_is_not_private_exceeds_every_budget(path):
    """It has no event, so that the others alone would be compared with the budget."""
    clipped = entry(9, mechanism="clip-only", noise_multiplier=0.0)
    assert Ledger(path, client=3).would_exceed(clipped, 1e6, 1e-5)
    assert filled(path, rounds=2).would_exceed(clipped, 1e6, 1e-5)
    assert not Ledger(path, client=3).would_exceed(entry(9), 1e6, 1e-5)


def test_would_exceed_says_no_exactly_at_the_last_step_within_the_budget(path):
    # with many settings in it, a grid is tried first: test_population has both ways
    max_steps.cache_clear()
    allowed = max_steps(epsilon=4.0, delta=1e-5, sample_rate=0.2, noise_multiplier=1.5)
    ledger = Ledger(path, client=3)
    ledger.charge(entry(0, steps=allowed - 2))
    assert not ledger.would_exceed(entry(1, steps=2), 4.0, 1e-5)
    assert ledger.would_exceed(entry(1, steps=3), 4.0, 1e-5)
    # A different sigma takes the general path.
    assert not ledger.would_exceed(entry(1, steps=1, noise_multiplier=2.0), 4.0, 1e-5)
    assert ledger.would_exceed(entry(1, steps=1, noise_multiplier=0.3), 4.0, 1e-5)
    with pytest.raises(ValueError, match="delta"):
        ledger.would_exceed(entry(1, noise_multiplier=2.0), 4.0, 2.0)


def test_a_charge_within_a_budget_is_checked_under_the_lock(tmp_path):
    """Two writers: the second one sees the entries of the first, and charges nothing beyond the
    budget.
    """
    first, second = Ledger(tmp_path / "l.jsonl", client=0), Ledger(tmp_path / "l.jsonl", client=0)
    common = {
        **TERMS,
        "client": 0,
        "attempt": 0,
        "steps": 1,
        "sample_rate": 1.0,
        "noise_multiplier": 2.0,
    }
    budget = (
        1.75 * epsilon(sample_rate=1.0, noise_multiplier=2.0, steps=1, delta=1e-3).upper,
        1e-3,
    )
    first.charge(Entry(round=1, **common), within=budget)
    second.charge(Entry(round=2, **common), within=budget)
    with pytest.raises(BudgetError, match="would pass the privacy budget"):
        first.charge(Entry(round=3, **common), within=budget)
    assert len(second.entries) == 2


def test_one_ledger_protects_one_unit(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", client=3)
    ledger.charge(entry(round=1))
    with pytest.raises(LedgerError, match="unit=client is another"):
        ledger.charge(entry(round=2, unit="client", sample_rate=1.0))
    assert len(ledger.entries) == 1


def test_a_file_of_two_units_is_refused_whatever_its_first_entry_is(tmp_path, monkeypatch):
    """Another program may have joined two files: one unit's epsilon says nothing of the other's."""
    ledger = Ledger(tmp_path / "ledger.jsonl", client=3)
    ledger.charge(entry(round=1))
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_other_unit", lambda self, entry: False)
        ledger.charge(entry(round=2, unit="client", sample_rate=1.0))
    for unit in ({}, {"unit": "client", "sample_rate": 1.0}):
        with pytest.raises(LedgerError, match="is another"):
            ledger.charge(entry(round=3, **unit))


def several(directory: Path) -> list[Path]:
    paths = [ledger_path(directory, client) for client in (11, 2, 3)]
    for path, client in zip(paths, (11, 2, 3), strict=True):
        ledger = Ledger(path, client=client)
        for number, attempt in ((1, 0), (0, 0), (1, 1)):
            ledger.charge(entry(number, attempt, client=client))
    return paths


def test_the_merged_copy_is_sorted_whole_and_replaced_in_one_go(tmp_path, monkeypatch):
    paths = several(tmp_path / "ledger")
    out = tmp_path / "ledger.jsonl"
    merge([entry for path in paths for entry in read_entries(path)], out)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    keys = [(r["round"], r["client"], r["attempt"]) for r in records]
    assert keys == sorted((r, c, a) for c in (2, 3, 11) for r, a in ((0, 0), (1, 0), (1, 1)))
    assert records[0]["adjacency"] == "add/remove"
    before = out.read_bytes()

    def crash(source, target):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(LedgerError, match="merged copy"):
        merge(read_entries(paths[0]), out)
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ledger", "ledger.jsonl"]


def test_a_resumed_ledger_may_be_ahead_and_never_behind_or_different_or_missing(tmp_path):
    paths = several(tmp_path)
    checkpoint = json.loads(json.dumps(snapshots(paths)))
    verify_extends(checkpoint, tmp_path)
    ahead = Ledger(paths[1], client=2)
    ahead.charge(entry(9, client=2))
    verify_extends(checkpoint, tmp_path)
    content, later = paths[1].read_bytes(), snapshots(paths)
    paths[1].write_bytes(content[: content.rstrip().rindex(b"\n") + 1])
    with pytest.raises(LedgerError, match="3 entries, fewer than the checkpoint's 4"):
        verify_extends(later, tmp_path)
    paths[1].unlink()
    with pytest.raises(LedgerError, match=r"client-000002\.jsonl: .*, the ledger is missing"):
        verify_extends(checkpoint, tmp_path)
    verify_extends({}, tmp_path)
