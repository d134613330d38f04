"""Reads the replies of a round: finds the message of each, and checks its values."""

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from flwr.app import Message
from flwr.common.logger import log

from fedlsg.privacy import LedgerError
from fedlsg.strategies.protocol.expectations import check_reply, reason_of
from fedlsg.strategies.protocol.nodes import Roster
from fedlsg.strategies.protocol.round_report import (
    NO_REPLY,
    RoundReport,
    in_words,
    wire_size,
)
from fedlsg.strategies.protocol.watched_grid import NODE_GONE
from fedlsg.strategies.protocol.wire import DISK_FULL

ByClient = dict[int, Any]
"""Values of replies by client."""
Accept = Callable[[Message, int], Any]
"""The values of a client's reply. Raises for one that is not as expected."""


@dataclass(frozen=True, kw_only=True)
class Replies:
    """Reads replies to messages of one round. A bad reply is entered in the report, and ends
    nothing.

    report: of the round.
    roster: the nodes of clients.
    accept: returns the values of a reply.
    stage: whether the messages belong to a stage that asks for no values.
    shares_disk: whether clients write to the disk of the run, as in a simulation.
    """

    report: RoundReport
    roster: Roster
    accept: Accept
    stage: bool
    shares_disk: bool

    def read(self, sent: Sequence[tuple[int, Message]], replies: Iterable[Message]) -> ByClient:
        """The value of ``accept`` for each valid reply, by client.

        The client of a reply is that of the message that it answers: Flower's own error for a lost
        node has no node.
        """
        waiting = self._enter_messages(sent)
        values: ByClient = {}
        for reply in replies:
            sent_id, sender = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            client, node = waiting.get(sent_id, (None, None))
            if client is None or not (reply.has_error() or sender == node):
                log(
                    WARNING,
                    "unexpected reply from node %s ignored: no message to that node waits for it",
                    sender,
                )
                continue
            del waiting[sent_id]
            received = self._read_one(client, reply)
            if received is not None:
                values[client] = received
        rejected = self.report.rejected
        for client in sorted(rejected.keys() & {client for client, _ in sent}):
            why = in_words(rejected[client])
            log(WARNING, "round %d: client %d: %s", self.report.round, client, why)
        return values

    def _enter_messages(self, sent: Sequence[tuple[int, Message]]) -> dict[str, tuple[int, int]]:
        """Count the messages, and enter their clients as ones without a reply.

        Returns client and node by message id. Dropouts are left out, but not at a stage: they
        leave after the stages before training, and their later messages are not delivered.
        """
        waiting = {}
        for client, message in sent:
            self.report.count_down(client, message, stage=self.stage)
            if self.stage or client not in self.report.dropped:
                self.report.rejected[client] = NO_REPLY
                to = message.metadata
                waiting[to.message_id] = client, to.dst_node_id
        return waiting

    def _read_one(self, client: int, reply: Message) -> Any:
        """The value of ``accept`` for a reply; None if it is rejected. Its bytes are counted.

        Raises OSError if a simulated client found the run's disk full, which all clients share.
        """
        before = self.report.so_far("up")
        values = None
        try:
            check_reply(reply)
            self.report.uplink_bytes_wire += wire_size(reply)
            values = self.accept(reply, client)
            del self.report.rejected[client]
        except Exception as error:  # whatever a client sends must not end the round
            self.report.rejected[client] = reason_of(error)
            # A forgotten node is queried again, ledger included: with the old copy the next round
            # would charge it and be rejected, too.
            if isinstance(error, LedgerError):
                self.roster.forget(client)
        if reply.has_error() and reply.error.code in NODE_GONE:
            self.roster.forget(client)
        if reply.has_error() and reply.error.code == DISK_FULL and self.shares_disk:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), reply.error.reason)
        self.report.list_reply(client, before, stage=self.stage)
        return values
