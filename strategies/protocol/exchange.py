"""The exchange of one round: announcements to clients, and the values of their valid replies.

``choice`` selects the clients, ``announcing`` makes their messages, ``replies`` reads the replies,
``resending`` repeats announcements; ``round_report`` has the simulated time.
"""

import time
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import replace
from logging import WARNING
from typing import Any

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedlsg.state import Phase, RoundPlan, sizes_of
from fedlsg.strategies.protocol.announcing import Announcer
from fedlsg.strategies.protocol.choice import Choice
from fedlsg.strategies.protocol.downlink import Downlink
from fedlsg.strategies.protocol.expectations import Expectations
from fedlsg.strategies.protocol.nodes import Roster, SimulatedGrid
from fedlsg.strategies.protocol.proofs import LedgerCopies
from fedlsg.strategies.protocol.replies import Accept, ByClient, Replies
from fedlsg.strategies.protocol.resending import Resending
from fedlsg.strategies.protocol.round_report import (
    AWAY,
    Received,
    RoundReport,
    SimulatedClock,
)

MOST_NAMED = 10
"""Left-out clients that the log names, at most."""


class Exchange:
    """Sends and receives the messages of the current round.

    A client that fails, or whose reply is not as expected, is named in the log and in the report.

    report: of the round.
    plan: of the round.
    """

    report: RoundReport
    plan: RoundPlan

    def __init__(
        self, expectations: Expectations, downlink: Downlink, clock: SimulatedClock
    ) -> None:
        self.expectations, self.downlink, self.clock = expectations, downlink, clock
        self.roster = Roster(
            expectations.settings.timeout, declared=sizes_of(expectations.settings.terms)
        )
        self._choice = Choice(clock, expectations.state)
        self._sent: list[tuple[int, Message]] = []
        self._leaving: Set[int] = frozenset()

    def join(self, roster: Roster, copies: LedgerCopies) -> None:
        """Exchange messages with the nodes of a deployment, whose ledgers the server has as
        ``copies``.
        """
        self.roster, self.expectations = roster, replace(self.expectations, copies=copies)

    def connect(self, grid: Grid) -> None:
        """Find every client's node before the first round; later, note departures and returns."""
        self._grid = grid
        if self.roster.complete:
            self.roster.refresh(grid)
        else:
            self.roster.gather(grid, len(self.expectations.settings.terms))

    @property
    def follows_health(self) -> bool:
        """Whether clients that failed wait before they are asked again.

        False if the simulation decides who is there, by a known schedule.
        """
        return not self.clock.participation.timed

    @property
    def replaces(self) -> bool:
        """Whether other clients may replace lost ones within a round.

        Only if each payload is private and used alone.
        """
        return self.follows_health and self.expectations.settings.min_survivors == 1

    def select(self, plan: RoundPlan) -> list[int]:
        """The clients of a round, ascending: a public draw; after failures, healthy clients."""
        returned = self.roster.take_returned()
        selected = self._choice.select(plan.round, returned, whole=not self.replaces)
        waiting = self.clock.health.waiting(plan.round, selected)
        for client in list(waiting)[:MOST_NAMED]:
            log(WARNING, "round %d: client %d is %s", plan.round, client, waiting[client])
        if len(waiting) > MOST_NAMED:
            log(WARNING, "round %d: %d clients are left out", plan.round, len(waiting))
        return selected

    def run(self, plan: RoundPlan, selected: Sequence[int]) -> Received:
        """A whole exchange: announce, wait, collect."""
        return self.collect(self._send(self.begin(plan, selected)))

    def begin(self, plan: RoundPlan, selected: Sequence[int]) -> list[Message]:
        """The announcements of a round, for the caller to send."""
        self._open(plan, selected)
        return self._announce_to(selected)

    def collect(self, replies: Iterable[Message]) -> Received:
        """The clients' valid values, with those of replacements of lost clients."""
        valid = self._collect(replies)
        values = self._in_time(valid | self._of_replacements())
        clients, noise = sorted(values), self.expectations.noise_of_sum(values, self.plan)
        factor = self.expectations.to_mean(clients, self.plan)
        updates = [values[client] if factor == 1 else values[client] * factor for client in clients]
        return Received(clients=clients, updates=updates, noise_std=noise)

    @property
    def worth_repeating(self) -> bool:
        """Whether replies were lost, so that a round without replies may be sent again.

        A client that was too slow would be too slow again: it does not count.
        """
        return bool(self.report.lost)

    def run_again(self) -> Received:
        """Send the round again because no reply arrived; resending stored payloads is free."""
        log(WARNING, "round %d: no client replied, sending the round again", self.report.round)
        self.downlink.abandon_round()
        self.roster.wait(self._grid, self.report.asked)
        others = self._choice.replacements
        return self.run(self.plan, [client for client in self.report.asked if client not in others])

    def finish(self) -> None:
        """Change the public state after the update is applied; here there is nothing to change."""

    def end(self, clients: Collection[int]) -> RoundReport:
        """End the round; returns its report. clients: that took part."""
        self.report.answered = sorted(clients)
        self.report.seconds = time.monotonic() - self._started
        if self.follows_health and self.plan.phase is Phase.TRAINING:
            self.clock.health.count(self.report.round, self.report.asked, self.report.failed)
        self.clock.close(self.report)
        return self.report

    def _open(self, plan: RoundPlan, selected: Sequence[int]) -> None:
        self._started = time.monotonic()
        self.plan, self._announcer = plan, Announcer(self.expectations, self.downlink, plan)
        self.report = RoundReport(round=plan.round, asked=selected, plan=plan)
        self._leaving = self.clock.open(self.report)
        if isinstance(self._grid, SimulatedGrid):
            self._grid.expect(plan)

    def _collect(self, replies: Iterable[Message], gone: Collection[int] = ()) -> ByClient:
        """The values of each valid reply, by client, after repeated announcements.

        gone: clients that others have replaced; they get no message after a restart.
        """
        values, resending = self._read(replies), Resending(gone)
        while True:
            again = resending.next(self.report, self._returned)
            self.downlink.confirm(values.keys() | again.other_frame)
            if not again.clients:
                return values
            messages = self._announce_to(again.clients, resending.other_frame, again.other_model)
            values |= self._read(self._send(messages))

    def _returned(self, gone: set[int]) -> set[int]:
        """The clients in ``gone``, whose node was lost in this round, that have a node again."""
        if gone:
            self.roster.refresh(self._grid)
        return {client for client in gone if self.roster.node(client) is not None}

    def _of_replacements(self) -> ByClient:
        """The values of other clients, as many as were lost; lost replacements are not replaced."""
        lost = self.report.failed
        if not (self.replaces and lost) or self.plan.phase is not Phase.TRAINING:
            return {}
        others = self._choice.replace(self.report)
        if not others:
            return {}
        log(
            WARNING,
            "round %d: asking clients %s in place of %s",
            self.report.round,
            others,
            sorted(lost),
        )
        return self._collect(self._send(self._announce_to(others)), gone=lost)

    def _in_time(self, values: ByClient) -> ByClient:
        """The values without those that came too late in simulated time; these stay charged."""
        self.report.late = self.clock.late(self.report, values)
        for client in self.report.late:
            self.report.payloads.pop(client, None)
        return {client: value for client, value in values.items() if client not in self.report.late}

    def _announce_to(
        self, clients: Sequence[int], framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> list[Message]:
        """Announcements to the clients with a node; the others are rejected in the report.

        The announcement to a client that leaves before it trains is counted, and not delivered.
        """
        there = self._there(clients)
        self.report.dropped = sorted({*self.report.dropped, *(self._leaving & there.keys())})
        self._sent = self._announcer.announce(there, framed, lost)
        return [message for client, message in self._sent if client not in self._leaving]

    def _there(self, clients: Iterable[int]) -> dict[int, int]:
        """The nodes of the clients that have one; the others are rejected in the report."""
        nodes = {client: self.roster.node(client) for client in clients}
        there = {client: node for client, node in nodes.items() if node is not None}
        if away := sorted(nodes.keys() - there.keys()):
            log(WARNING, "round %d: clients %s: %s", self.report.round, away, AWAY)
        self.report.rejected |= dict.fromkeys(away, AWAY)
        return there

    def _send(self, messages: Sequence[Message]) -> Iterable[Message]:
        before = time.monotonic()
        replies = self._grid.send_and_receive(messages, timeout=self.expectations.settings.timeout)
        self.report.waiting += time.monotonic() - before
        return replies

    def _read(
        self, replies: Iterable[Message], accept: Accept | None = None, *, stage: bool = False
    ) -> ByClient:
        """The value of ``accept``, else ``_accept``, for each valid reply to the last messages."""
        reader = Replies(
            report=self.report,
            roster=self.roster,
            accept=accept or self._accept,
            stage=stage,
            shares_disk=self.expectations.copies is None,
        )
        return reader.read(self._sent, replies)

    def _accept(self, reply: Message, client: int) -> Any:
        """The values of a reply. Raises as ``Expectations.read`` does."""
        return self.expectations.read(reply, client, self.plan, self.report)
