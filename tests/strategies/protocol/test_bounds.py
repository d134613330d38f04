"""Sizes and texts of a reply are compared before anything of it is copied; what is quoted is one
short line.
"""

import tracemalloc

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedlsg.simulations.engines.local import task_identity
from fedlsg.strategies.protocol.expectations import (
    CONTENT_BYTES,
    REASON_LENGTH,
    BoundError,
    check_reply,
    reason_of,
    shortened,
)
from fedlsg.strategies.protocol.proofs import News, news_record
from fedlsg.strategies.protocol.wire import identity, update


@pytest.fixture(autouse=True)
def _identified():
    with task_identity():
        yield


def reply(content: RecordDict | Error) -> Message:
    return Message(content, reply_to=Message(RecordDict(), 5, "train"))


def test_honest_replies_are_within_the_bounds():
    for content in (identity(3, 700), update(bytes(10**7), 3)):
        content["ledger"] = news_record(News(lines=bytes(10**6), head="0" * 64))
        check_reply(reply(content))
    check_reply(reply(Error(code=1001, reason="x" * 10**6)))


ODD = {
    "many records": {str(n): ConfigRecord({}) for n in range(33)},
    "many items": {"a": MetricRecord({str(n): 1.0 for n in range(65)})},
    "many arrays": {"a": ArrayRecord({str(n): Array("u1", (), "raw", b"") for n in range(65)})},
    "a long list": {"a": ConfigRecord({"k": [1.5] * (CONTENT_BYTES // 8 + 1)})},
    "long bytes": {"a": ConfigRecord({"k": bytes(CONTENT_BYTES)})},
    "a long name": {"a" * (CONTENT_BYTES + 1): ConfigRecord({})},
    "a long type": {"a": ArrayRecord({"k": Array("f" * CONTENT_BYTES, (), "raw", b"")})},
    "many dimensions": {
        "a": ArrayRecord({"k": Array("u1", (1,) * (CONTENT_BYTES // 8 + 1), "raw", b"")})
    },
}


@pytest.mark.parametrize("odd", ODD)
def test_what_no_honest_node_sends_is_refused(odd):
    with pytest.raises(BoundError, match="at most in a reply") as error:
        check_reply(reply(RecordDict(ODD[odd])))
    assert len(str(error.value)) < 200


def test_a_long_text_is_cut_before_it_is_copied():
    """200 MB of words were 3 GB of lists of them."""
    text = "\u202e<b> " * 5 * 10**6
    tracemalloc.start()
    found = [shortened(text), reason_of(ValueError(text))]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6
    for line in found:
        assert len(line) <= REASON_LENGTH + 5
        assert line.isprintable()
