"""The outbox: a payload comes back for its own question only, whole or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.rundir.last_payload import LastPayload
from tests.simulations.support.runs import run_local


@given(question=st.text(), other=st.text(), payload=st.binary(), before=st.none() | st.binary())
def test_the_payload_comes_back_for_its_question_only(tmp_path_factory, question, other, payload, before):
    outbox = LastPayload(tmp_path_factory.mktemp("outbox") / "a" / "client.bin")
    assert outbox.find(question) is None
    if before is not None:
        outbox.store("before", before)
    outbox.store(question, payload, alone=True)
    assert outbox.find(question) == payload
    assert (outbox.find(other) == payload) == (other == question)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"no json\npayload", b"[]\npayload", b"\xff\xfe\npayload", b'{"question": "q", "bytes": 7}'],
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


@pytest.mark.parametrize(("choices", "stored"), [({}, True), ({"method": "sgd", "noise_multiplier": None}, False)])
def test_what_carries_noise_is_stored_and_what_carries_none_is_not(choices, stored, tmp_path):
    run = run_local(tmp_path / "run", rounds=1, **choices)
    assert run.directory.last_payload(0).exists() is stored
    assert run.rows[0].answered == "0 1"
