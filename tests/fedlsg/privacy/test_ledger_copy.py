"""Copies of a ledger and files that were read before: what every byte says."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.privacy import Entry, Ledger, LedgerError, ledger_file, read_entries
from fedlsg.privacy.ledger_copy import LARGEST_BYTES, extend, head_of, lines_since, verify
from fedlsg.privacy.ledger_entry import GENESIS
from fedlsg.privacy.ledger_file import Memo, load
from tests.fedlsg.support.ledgers import entry


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "node" / "ledger.jsonl", client=3)
    for round in (1, 2):
        made.charge(entry(round))
    return made


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "server" / "client-000003.jsonl"


def send(ledger: Ledger, copy) -> None:
    lines = lines_since(ledger.path, 3, head_of(copy, 3))
    extend(copy, 3, lines, head_of(ledger.path, 3))


def test_a_copy_is_the_ledger_byte_for_byte(ledger, copy):
    send(ledger, copy)
    assert copy.read_bytes() == ledger.path.read_bytes()
    ledger.charge(entry(1, run="b"))
    ledger.charge(entry(1, run="b", attempt=1))
    assert lines_since(ledger.path, 3, head_of(copy, 3)).count(b"\n") == 2
    send(ledger, copy)
    assert copy.read_bytes() == ledger.path.read_bytes()
    assert read_entries(copy) == ledger.entries
    assert lines_since(ledger.path, 3, head_of(copy, 3)) == b""
    send(ledger, copy)


def test_a_torn_line_stays_on_its_own_side(ledger, copy):
    send(ledger, copy)
    for path in (ledger.path, copy):
        with path.open("ab") as file:
            file.write(b'{"client": 3, "rou')
    ledger.charge(entry(3))
    send(ledger, copy)
    assert read_entries(copy) == ledger.entries
    assert head_of(copy, 3) == head_of(ledger.path, 3)


def changed(lines: bytes) -> bytes:
    assert b'"noise_multiplier": 1.5' in lines
    return lines.replace(b'"noise_multiplier": 1.5', b'"noise_multiplier": 9.0', 1)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (changed, "does not continue|does not end"),
        (lambda lines: lines.split(b"\n", 1)[1], "does not continue"),
        (lambda lines: lines.rpartition(b"\n{")[0] + b"\n", "does not end"),
        (lambda lines: b"", "does not end"),
        (lambda lines: b"\xff}\n" + lines, "does not continue"),
        (lambda lines: lines + lines, "does not continue"),
    ],
)
def test_what_does_not_continue_the_copy_is_refused_whole(ledger, copy, spoil, why):
    send(ledger, copy)
    before = copy.read_bytes()
    head = head_of(copy, 3)
    ledger.charge(entry(3))
    ledger.charge(entry(4))
    lines = spoil(lines_since(ledger.path, 3, head))
    with pytest.raises(LedgerError, match=why):
        extend(copy, 3, lines, head_of(ledger.path, 3))
    assert copy.read_bytes() == before


def test_a_ledger_that_lost_entries_is_refused_on_both_sides(ledger, copy, tmp_path):
    """A node that restored an old backup, or began a new ledger, cannot go on as if nothing had
    been spent.
    """
    send(ledger, copy)
    fresh = Ledger(tmp_path / "fresh.jsonl", client=3)
    fresh.charge(entry(1))
    with pytest.raises(LedgerError, match="this ledger lacks"):
        lines_since(fresh.path, 3, head_of(copy, 3))
    with pytest.raises(LedgerError, match="client 3"):
        extend(copy, 3, lines_since(fresh.path, 3), head_of(fresh.path, 3))


def test_another_clients_ledger_is_refused(tmp_path, copy):
    other = Ledger(tmp_path / "other.jsonl", client=4)
    other.charge(entry(1, client=4))
    with pytest.raises(LedgerError, match="client 3"):
        extend(copy, 3, lines_since(other.path, 4), head_of(other.path, 4))
    assert not copy.exists()


ODD = {
    "almost without noise": ({"noise_multiplier": 1e-300}, "noise multipliers"),
    "full batches almost without noise": (
        {"sample_rate": 1.0, "noise_multiplier": 1e-300},
        "so little noise",
    ),
    "full batches that are too many": (
        {"sample_rate": 1.0, "noise_multiplier": 0.1, "steps": 10**12 - 9},
        "so little noise",
    ),
    "steps without end": ({"steps": 2**53}, "more than 1,000,000,000,000 steps"),
    "another law": ({"log_ratio": 1e300}, "log_ratio=1e"),
    "epochs without end": (
        {"sample_rate": 1.0, "batches": 1, "steps": 10**11},
        "epochs of shuffled batches",
    ),
    "no privacy": ({"mechanism": "none", "noise_multiplier": 0.0}, "release without privacy"),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_entry_that_no_accountant_takes_is_refused_by_name_and_not_copied(odd, ledger, copy):
    """From an earlier run, as a client may say; the server only reads the chain."""
    send(ledger, copy)
    before = copy.read_bytes()
    changes, why = ODD[odd]
    ledger.charge(replace(entry(1, run="earlier"), **changes))
    with pytest.raises(LedgerError, match=f"the ledger of client 3.*{why}"):
        send(ledger, copy)
    with pytest.raises(LedgerError, match=f"the ledger of client 3.*{why}"):
        verify(3, ledger.path.read_bytes(), head_of(ledger.path, 3))
    assert copy.read_bytes() == before


@pytest.mark.parametrize(
    "lines",
    [
        b"x" * (LARGEST_BYTES + 1),
        b'{"a":' + b"[" * 10**5 + b"}\n",
        b'{"client":' + b"9" * 5000 + b"}\n",
    ],
)
def test_lines_that_cost_too_much_are_refused(lines, copy):
    for take in (lambda: extend(copy, 3, lines, GENESIS), lambda: verify(3, lines, GENESIS)):
        with pytest.raises(LedgerError, match="client 3"):
            take()


@pytest.mark.parametrize("name", ["round", "attempt", "num_examples", "steps"])
def test_counts_that_no_float_holds_are_no_entry(name):
    with pytest.raises(ValueError, match=f"{name}.*2\\^53"):
        replace(entry(1), **{name: 2**53 + 1})


ENTRY = {
    "client": 3,
    "attempt": 0,
    "steps": 2,
    "sample_rate": 0.2,
    "noise_multiplier": 1.5,
    "clip_norm": 0.5,
    "num_examples": 300,
    "mechanism": "dp",
}


def charged(path: Path, *rounds: int) -> None:
    for round in rounds:
        Ledger(path, client=3).charge(Entry(round=round, **ENTRY))


def said(path: Path, client: int | None) -> object:
    try:
        return load(path, client)
    except LedgerError as error:
        return str(error)


def said_afresh(path: Path, client: int | None) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_file, "_MEMO", Memo())
        return said(path, client)


changes = st.lists(
    st.one_of(
        st.tuples(st.just("charge"), st.integers(0, 9), st.integers(0, 255)),
        st.tuples(st.just("set"), st.integers(0, 2000), st.integers(0, 255)),
        st.tuples(st.just("cut"), st.integers(0, 2000), st.just(0)),
        st.tuples(st.just("append"), st.integers(0, 2000), st.integers(0, 255)),
        st.tuples(st.just("restore"), st.just(0), st.just(0)),
    ),
    max_size=8,
)


def change(path: Path, kind: str, place: int, byte: int, whole: bytes) -> None:
    content = bytearray(path.read_bytes()) if path.exists() else bytearray()
    if kind == "charge":
        with contextlib.suppress(LedgerError):
            charged(path, place)
        return
    if kind == "set" and content:
        content[place % len(content)] = byte
    elif kind == "cut":
        del content[place % (len(content) + 1) :]
    elif kind == "append":
        content += bytes([byte]) * (place % 5) + b"\n" * (byte % 2)
    elif kind == "restore":
        content = bytearray(whole)
    path.write_bytes(bytes(content))


@settings(max_examples=60, deadline=None)
@given(changes=changes)
def test_whatever_happens_to_a_file_it_says_what_it_says_to_a_fresh_reader(
    changes, tmp_path_factory
):
    path = tmp_path_factory.mktemp("ledger") / "client-000003.jsonl"
    charged(path, 20, 21, 22)
    whole = path.read_bytes()
    for each in changes:
        for client in (None, 3, 4):
            said(path, client)  # whatever may be remembered of it
        change(path, *each, whole)
        warm = {client: said(path, client) for client in (None, 3, 4)}
        assert warm == {client: said_afresh(path, client) for client in (None, 3, 4)}


def test_negative_control_lengths_in_place_of_bytes_would_miss_an_edit(tmp_path, monkeypatch):
    """Were the file's length all that is compared, an edit of what was read before would go
    unseen.
    """
    path = tmp_path / "client-000003.jsonl"
    charged(path, 0, 1)
    edited = path.read_bytes().replace(b'"noise_multiplier": 1.5', b'"noise_multiplier": 9.5', 1)
    load(path, 3)
    path.write_bytes(edited)
    with pytest.raises(LedgerError, match="line 2: the line does not match its digest"):
        load(path, 3)

    class Longer(bytes):
        def startswith(self, *_: object) -> bool:
            return True

    monkeypatch.setattr(Path, "read_bytes", lambda self: Longer(edited))
    assert len(load(path, 3)[1].entries) == 2
