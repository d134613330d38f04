"""Replies of a round are read for the clients that were sent a message, and for nobody else."""

from flwr.app import Message, RecordDict

from fedlsg.strategies.protocol.nodes import Roster
from fedlsg.strategies.protocol.replies import Replies
from fedlsg.strategies.protocol.round_report import RoundReport


def announcement(node: int) -> Message:
    message = Message(RecordDict(), node, "train")
    message.metadata.__dict__["_message_id"] = f"to {node}"
    return message


def test_a_reply_of_a_dropout_is_ignored():
    """Its message was not delivered. It must not be in two states, nor have values."""
    sent = [(client, announcement(10 + client)) for client in range(2)]
    report = RoundReport(round=1, asked=[0, 1], dropped=[1])
    replies = Replies(
        report=report,
        roster=Roster(1.0),
        accept=lambda reply, client: client,
        stage=False,
        shares_disk=True,
    )
    answers = [Message(RecordDict(), reply_to=message) for _, message in sent]
    assert replies.read(sent, answers) == {0: 0}
    assert (report.rejected, report.dropped) == ({}, [1])
