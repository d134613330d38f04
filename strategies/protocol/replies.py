"""The replies to the messages that were sent: which message one answers, and whether its values
count.
"""

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
Accept = Callable[[Message, int], Any]
"""The values of a client's reply. Raises for one that is not as expected."""


@dataclass(frozen=True, kw_only=True)
class Replies:
    """Replies to messages of one round. Everything that is wrong with one is entered in the report,
    and ends nothing.

    stage: no values were asked for, only what comes before or after them.
    shares_disk: whether clients write to the disk of the run, as in a simulation.
    """

    report: RoundReport
    roster: Roster
    accept: Accept
    stage: bool
    shares_disk: bool

    def read(self, sent: Sequence[tuple[int, Message]], replies: Iterable[Message]) -> ByClient:
        """What ``accept`` returns of each valid reply, by client.

        A reply belongs to the message that it answers: Flower's own error for a lost node comes
        from no node.
        """
        self._await(sent)
        waiting = {message.metadata.message_id: (client, message) for client, message in sent}
        values: ByClient = {}
        for reply in replies:
            name, sender = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            client, message = waiting.get(name, (-1, reply))
            from_there = reply.has_error() or sender == message.metadata.dst_node_id
            if client < 0 or not from_there:
                log(
                    WARNING,
                    "unexpected reply from node %s ignored: no message to that node waits for it",
                    sender,
                )
                continue
            del waiting[name]
            received = self._read_one(client, reply)
            if received is not None:
                values[client] = received
        rejected = self.report.rejected
        for client in sorted(rejected.keys() & {client for client, _ in sent}):
            why = in_words(rejected[client])
            log(WARNING, "round %d: client %d: %s", self.report.round, client, why)
        return values

    def _await(self, sent: Sequence[tuple[int, Message]]) -> None:
        """Until its reply is read, a client has not replied; one that drops out never will."""
        for client, message in sent:
            self.report.count_down(client, message, stage=self.stage)
            if self.stage or client not in self.report.dropped:
                self.report.rejected[client] = NO_REPLY

    def _read_one(self, client: int, reply: Message) -> Any:
        """What ``accept`` returns of a reply, None where it is rejected; the report counts its
        bytes in either case.

        Raises OSError if a simulated client found the run's disk full: all the others would, too.
        """
        before, values = self.report.so_far("up"), None
        try:
            check_reply(reply)
            self.report.uplink_bytes_wire += wire_size(reply)
            values = self.accept(reply, client)
            del self.report.rejected[client]
        except Exception as error:  # whatever a client sends must not end the round
            self.report.rejected[client] = reason_of(error)
            # asked for its identity next, before it is charged for nothing again
            if isinstance(error, LedgerError):
                self.roster.forget(client)
        if reply.has_error() and reply.error.code in NODE_GONE:
            self.roster.forget(client)
        if reply.has_error() and reply.error.code == DISK_FULL and self.shares_disk:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), reply.error.reason)
        self.report.list_reply(client, before, stage=self.stage)
        return values
