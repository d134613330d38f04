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

    other_frame: they derive another frame.
    other_model: they hold another model.
    restarted: their node has restarted.
    """

    other_frame: set[int]
    other_model: set[int]
    restarted: set[int]

    @property
    def clients(self) -> list[int]:
        """All of them, ascending."""
        return sorted(self.other_frame | self.other_model | self.restarted)


class Resending:
    """One more message at most for each client and reason, so that every round ends.

    gone: clients that others have replaced; they get no message after a restart.
    other_frame: clients that got one because they derive another frame.
    """

    def __init__(self, gone: Collection[int]) -> None:
        self.other_frame, self._other_model = set[int](), set[int]()
        self._no_restart = set(gone)  # replaced, or sent to again after a restart

    def next(self, report: RoundReport, with_node_again: Callable[[set[int]], set[int]]) -> Again:
        """The clients that get another message after these replies.

        with_node_again: from clients to those that have a node again.
        """
        again = Again(
            report.refused(FRAME_DIFFERS) - self.other_frame,
            report.refused(*REPLICA_LOST) - self._other_model,
            with_node_again(report.refused(*NODE_GONE) - self._no_restart),
        )
        self.other_frame |= again.other_frame
        self._other_model |= again.other_model
        self._no_restart |= again.restarted
        if again.clients:
            log(
                WARNING,
                "sending again: clients %s derive another frame, %s hold another model, %s "
                "restarted",
                *map(sorted, again),
            )
        return again
