"""Repeated announcements: for clients with another frame or model, or after a restart."""

from collections.abc import Callable, Collection
from logging import WARNING
from typing import NamedTuple

from flwr.common.logger import log

from fedlsg.strategies.protocol.round_report import RoundReport
from fedlsg.strategies.protocol.watched_grid import NODE_GONE
from fedlsg.strategies.protocol.wire import FRAME_DIFFERS, REPLICA_LOST


class Again(NamedTuple):
    """Clients that get another message now, by reason.

    framed: they derive another frame.
    lost: they hold another model.
    restarted: their node has restarted.
    """

    framed: set[int]
    lost: set[int]
    restarted: set[int]

    @property
    def clients(self) -> list[int]:
        """All of them, ascending."""
        return sorted(self.framed | self.lost | self.restarted)


class Resending:
    """One more message at most for each client and reason, so that every round ends.

    gone: clients that others have replaced; they get no message after a restart.
    framed: clients that got one because they derive another frame.
    lost: clients that got one because they hold another model.
    """

    def __init__(self, gone: Collection[int]) -> None:
        self.framed, self.lost, self._restarted = set[int](), set[int](), set[int](gone)

    def next(self, report: RoundReport, back: Callable[[set[int]], set[int]]) -> Again:
        """The clients that get another message after these replies.

        back: from clients to those that have a node again.
        """
        again = Again(
            report.refused(FRAME_DIFFERS) - self.framed,
            report.refused(*REPLICA_LOST) - self.lost,
            back(report.refused(*NODE_GONE) - self._restarted),
        )
        self.framed |= again.framed
        self.lost |= again.lost
        self._restarted |= again.restarted
        if again.clients:
            log(
                WARNING,
                "sending again: clients %s derive another frame, %s hold another model, %s "
                "restarted",
                *map(sorted, again),
            )
        return again
