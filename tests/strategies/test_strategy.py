"""The strategy over a grid of scripted clients: every reply is checked, and no reply ends a
round.
"""

import itertools
import re
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedlsg.payload.message import pack
from fedlsg.simulations.client.virtual import FIRST_NODE
from fedlsg.strategies.protocol.watched_grid import NODE_GONE
from fedlsg.strategies.protocol.wire import (
    FRAME_DIFFERS,
    IN_RUN_LOG,
    LOST,
    failure,
    over_the_wire,
    read_frame,
    update,
)
from tests.strategies.small_federation import EXAMPLES, Federation, server_state, values_for


def messages_of(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def test_a_round_is_the_server_step_of_the_clients_values():
    federation, expected = Federation(server_state()), server_state()
    reports = federation.run(2)
    for round in (1, 2):
        frame = expected.frame()
        expected.finish_round(frame, [values_for(frame, client, round) for client in range(3)])
    assert federation.state.weights.equal(expected.weights)
    assert [r.round for r in reports] == [1, 2]
    assert all(r.answered == r.asked == [0, 1, 2] and r.rejected == {} for r in reports)
    assert [sorted(r.payloads) for r in reports] == [[0, 1, 2]] * 2
    kept = expected.frame().kept
    assert [(r.uplink_bytes, r.downlink_bytes) for r in reports] == [
        (3 * (80 + 4 * kept), 3 * 4 * 163)
    ] * 2
    assert [(r.uplink_messages, r.downlink_messages) for r in reports] == [(3, 3)] * 2


class Cancelling(Federation):
    """Clients whose values cancel: rounded sums of them depend on the order even in float64."""

    def payload(self, partition: int, message: Message) -> bytes:
        frame = self.state.frame()
        values = torch.full((frame.kept,), [1e20, 1.0, -1e20, 2.0][partition])
        return pack(values, frame.indices, size=frame.size, round=1, digest=frame.digest)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_the_sum_is_in_client_order_however_the_replies_arrive(order):
    # the expected batches of the four, which a method without privacy divides by
    divisor = sum(0.5 * (EXAMPLES + k) for k in range(4))
    federation = Cancelling(
        server_state("sgd", learning_rate=divisor, momentum=0.0, divisor=divisor), clients=4
    )
    start, pull = federation.state.weights, federation.grid.pull_messages

    def shuffled(names: Iterable[str]) -> list[Message]:
        found = list(pull(names))
        return [found[i] for i in order if i < len(found)]

    federation.grid.pull_messages = shuffled
    federation.run()
    # ((1e20 + 1) - 1e20) + 2
    torch.testing.assert_close(start - federation.state.weights, torch.full((163,), 2.0))


def bad(kind: str, message: Message, honest: Message) -> Any:
    if kind == "error":
        return Message(Error(code=7, reason="planted"), reply_to=message)
    if kind == "nothing":
        return None
    if kind == "text":
        return "done"
    if kind == "empty":
        return Message(RecordDict(), reply_to=message)
    if kind == "metrics":
        return Message(RecordDict({"update": ConfigRecord({"payload": b"x"})}), reply_to=message)
    if kind == "garbage":
        return Message(update(b"garbage", 1), reply_to=message)
    assert kind == "raise"
    raise KeyError("planted")


REASONS = {
    "error": r"\[7\] planted",
    "nothing": "no reply before the round's timeout",
    "text": "no reply",
    "empty": "no payload",
    "metrics": "no payload",
    "garbage": "payload length: expected .* bytes, got 7",
    "raise": rf"\[1001\] {IN_RUN_LOG}",
}


@pytest.mark.parametrize("kind", REASONS)
def test_a_bad_reply_is_named_and_the_round_goes_on(kind, caplog):
    federation = Federation(
        server_state(), answer=lambda p, m, honest: bad(kind, m, honest) if p == 1 else honest
    )
    (report,) = federation.run()
    assert report.answered == [0, 2]
    assert list(report.rejected) == [1]
    with pytest.raises(AssertionError, match=REASONS[kind]):
        raise AssertionError(report.rejected[1])
    words = re.sub(r"^\[\d+\] ", "", report.rejected[1])  # a log has no codes
    assert f"round 1: client 1: {words}" in messages_of(caplog)
    expected = server_state()
    frame = expected.frame()
    expected.finish_round(frame, [values_for(frame, client, 1) for client in (0, 2)])
    assert federation.state.weights.equal(expected.weights)


def test_a_payload_of_another_client_cannot_be_sent_twice_or_unasked(caplog):
    """One of a stranger's node, one of a client that was not asked, and a second answer of one that
    was.
    """
    federation = Federation(server_state(), clients=4, clients_per_round=2)
    pull = federation.grid.pull_messages

    def pull_and_add(names: Iterable[str]) -> list[Message]:
        replies = list(pull(names))
        if replies and "update" in replies[0].content:
            frame = federation.state.frame()
            other = pack(
                torch.ones(frame.kept), frame.indices, size=frame.size, round=1, digest=frame.digest
            )
            for node in (5, *range(FIRST_NODE, FIRST_NODE + 4)):
                extra = over_the_wire(replies[0])
                extra.content = update(other, 0)
                extra.metadata.__dict__["_src_node_id"] = node
                replies.append(extra)
        return replies

    federation.grid.pull_messages = pull_and_add
    (report,) = federation.run()
    assert report.answered == report.asked
    assert len(report.asked) == 2
    assert messages_of(caplog).count("unexpected reply from node") == 5
    expected = server_state()
    frame = expected.frame()
    expected.finish_round(frame, [values_for(frame, client, 1) for client in report.asked])
    assert federation.state.weights.equal(expected.weights)


def test_a_payload_beyond_the_norm_bound_is_rejected():
    """One client alone must not be able to throw the model away: N sensitivities and the noise, no
    more.
    """

    def answer(partition: int, message: Message, honest: Message) -> Message:
        if partition == 0:
            payload = federation.payload(partition, message)
            frame = federation.state.frame()
            large = torch.frombuffer(bytearray(payload[64:-16]), dtype=torch.float32) * 1e4
            honest = Message(
                update(
                    pack(large, frame.indices, size=frame.size, round=1, digest=frame.digest), 0
                ),
                reply_to=message,
            )
        return honest

    federation = Federation(server_state(), answer=answer)
    (report,) = federation.run()
    assert "exceeds the bound" in report.rejected[0]
    without_clip = Federation(server_state(mechanism="none"), answer=answer)
    federation = without_clip
    assert without_clip.run()[0].rejected == {}, (
        "negative control: without a clip there is no bound"
    )


def alive_at(*rounds: bool, otherwise: Any) -> Any:
    """Answers of all clients, or ``otherwise(message)``, by whether they are alive each time that
    client 0 is asked.
    """
    alive = iter(rounds)
    now = [True]

    def answer(partition: int, message: Message, honest: Message) -> Message | None:
        if partition == 0:
            now[0] = next(alive)
        return honest if now[0] else otherwise(message)

    return answer


def died(code: int | None) -> Any:
    return lambda message: None if code is None else failure("the worker died", code, message)


@pytest.mark.parametrize("code", [None, *LOST])
def test_a_round_that_nobody_answered_because_workers_died_is_asked_again(code):
    """It is no round: the run ends as one in which nobody died, and reports as many rounds."""
    answer = alive_at(True, False, False, True, False, True, otherwise=died(code))
    federation, unbroken = Federation(server_state(), answer=answer), Federation(server_state())
    federation.run(3)
    unbroken.run(3)
    assert [report.round for report in federation.reports] == [1, 2, 3]
    assert [report.answered for report in federation.reports] == [[0, 1, 2]] * 3
    assert federation.state.weights.equal(unbroken.state.weights)
    again = 3 if code in NODE_GONE else 0  # a node that is back is asked in the round that lost it
    assert [r.downlink_messages for r in federation.reports] == [3, 3, 3 + again]


@pytest.mark.parametrize("code", [None, *LOST])
def test_three_attempts_in_vain_end_the_run_before_the_round(code):
    attempts = [False] * (6 if code in NODE_GONE else 3)
    federation = Federation(server_state(), answer=alive_at(True, *attempts, otherwise=died(code)))
    with pytest.raises(RuntimeError, match="no valid update in 3 rounds in a row: client 0 1 2: "):
        federation.run(9)
    assert [report.round for report in federation.reports] == [1]
    assert (federation.state.round, federation.state.updates) == (1, 1)


@pytest.mark.parametrize(("needed", "applied"), [(2, 1), (3, 0)])
def test_a_round_needs_its_survivors(needed, applied):
    federation = Federation(
        server_state(), answer=lambda p, m, honest: honest if p else None, min_survivors=needed
    )
    (report,) = federation.run()
    assert report.answered == [1, 2]
    assert federation.state.updates == applied
    assert federation.state.weights.equal(server_state().weights) == (not applied)


def test_a_client_with_another_frame_is_asked_once_more():
    frames: list[Any] = []

    def answer(partition: int, message: Message, honest: Message) -> Message:
        if partition != 1:
            return honest
        frame = read_frame(message.content, federation.state.frame())
        frames.append(frame)
        return failure("another digest", FRAME_DIFFERS, message) if frame is None else honest

    federation, usual = Federation(server_state(), answer=answer), Federation(server_state())
    (report,), (plain,) = federation.run(), usual.run()
    assert [frame is None for frame in frames] == [True, False]
    assert (report.answered, report.rejected) == ([0, 1, 2], {})
    assert federation.state.weights.equal(usual.state.weights)
    assert frames[1].digest == server_state().frame().digest
    sent = 4 * frames[1].kept + 4 * sum(t.numel() for t in frames[1].carriers)
    assert report.downlink_bytes == plain.downlink_bytes + 4 * 163 + sent
    assert report.downlink_messages == 4
