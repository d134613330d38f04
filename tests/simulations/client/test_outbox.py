"""The outbox: a payload comes back for its own question only, whole or not at all."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.simulations.storage.last_payload import LastPayload
from tests.simulations.support.runs import run_local


@pytest.mark.slow
@given(question=st.text(), other=st.text(), payload=st.binary(), before=st.none() | st.binary())
def test_the_payload_comes_back_for_its_question_only(
    tmp_path_factory, question, other, payload, before
):
    outbox = LastPayload(tmp_path_factory.mktemp("outbox") / "a" / "client.bin")
    assert outbox.find(question) is None
    if before is not None:
        outbox.store("before", before)
    outbox.store(question, payload, alone=True)
    assert outbox.find(question) == payload
    assert (outbox.find(other) == payload) == (other == question)


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_what_is_written_over_changes_no_file_of_another_name(link, tmp_path):
    """A run directory may come from anybody, and a copy of it may be one of hard links."""
    (tmp_path / "other").write_text("as it was")
    outbox = LastPayload(tmp_path / "client.bin")
    getattr(outbox.path, link)(tmp_path / "other")
    outbox.store("q", b"payload", alone=True)
    assert outbox.find("q") == b"payload"
    assert (tmp_path / "other").read_text() == "as it was"


def test_a_payload_that_a_kill_left_half_written_over_another_answers_nothing(tmp_path):
    outbox = LastPayload(tmp_path / "client.bin")
    for before, after in ((b"b" * 90, b"a" * 30), (b"b" * 30, b"a" * 90)):
        outbox.store("before", before)
        old = outbox.path.read_bytes()
        outbox.store("after", after, alone=True)
        new = outbox.path.read_bytes()
        for place in range(1, len(new) + 1):
            outbox.path.write_bytes(torn := new[:place] + old[place:])
            assert (
                torn in (old, new)
                or outbox.find("before") is outbox.find("after") is outbox.last() is None
            )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"no json\npayload",
        b"[]\npayload",
        b"\xff\xfe\npayload",
        b'{"question": "q", "bytes": 7}',
    ],
)
def test_a_file_that_is_no_outbox_answers_nothing(content, tmp_path):
    (tmp_path / "client.bin").write_bytes(content)
    assert LastPayload(tmp_path / "client.bin").find("q") is None


def test_every_flipped_bit_answers_nothing_and_is_named(tmp_path):
    outbox = LastPayload(tmp_path / "client.bin")
    outbox.store("q", b"payload")
    assert not outbox.damaged
    whole = outbox.path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            outbox.path.write_bytes(bytes(changed))
            assert outbox.find("q") is outbox.last() is None
            assert outbox.damaged


def first_format(question: str, payload: bytes) -> bytes:
    """A file of format 1, whose digest is a SHA-256."""
    digest = hashlib.sha256(json.dumps(question).encode() + b"\n" + payload).hexdigest()
    head = {"question": question, "bytes": len(payload), "sha256": digest}
    return json.dumps(head).encode() + b"\n" + payload


def test_a_file_of_the_first_format_answers_unless_it_is_damaged(tmp_path):
    outbox = LastPayload(tmp_path / "client.bin")
    outbox.path.write_bytes(whole := first_format("q", b"payload"))
    assert outbox.find("q") == b"payload"
    outbox.path.write_bytes(whole[:-1] + b"D")
    assert outbox.find("q") is None


def test_a_read_computes_the_digest_of_its_format_alone(tmp_path, monkeypatch):
    """Each read computed the SHA-256 of format 1 as well."""
    outbox = LastPayload(tmp_path / "client.bin")
    outbox.store("q", b"payload")
    monkeypatch.delattr(hashlib, "sha256")
    assert outbox.find("q") == b"payload"


@pytest.mark.parametrize(
    ("choices", "stored"), [({}, True), ({"method": "sgd", "noise_multiplier": None}, False)]
)
def test_what_carries_noise_is_stored_and_what_carries_none_is_not(choices, stored, tmp_path):
    run = run_local(tmp_path / "run", rounds=1, **choices)
    assert run.directory.last_payload(0).exists() is stored
    assert run.rows[0].answered == "0 1"
