"""A ledger that was read before is read again faster, and says what every byte of it says, as on the first day."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.privacy import ledger_file
from fedlsg.privacy.ledger import Entry, Ledger, LedgerError
from fedlsg.privacy.ledger_file import Memo, load

ENTRY = {
    "client": 3, "attempt": 0, "steps": 2, "sample_rate": 0.2, "noise_multiplier": 1.5, "clip_norm": 0.5,
    "num_examples": 300, "mechanism": "dp",
}  # fmt: skip


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
def test_whatever_happens_to_a_file_it_says_what_it_says_to_a_fresh_reader(changes, tmp_path_factory):
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
    """Were the file's length all that is compared, an edit of what was read before would go unseen."""
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
