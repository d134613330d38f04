"""The messages of a round: announcements to the selected clients, their replies, and what is sent
again.
"""

import errno
import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from fedlsg.privacy import LedgerError
from fedlsg.state import Phase, RoundPlan, sizes_of
from fedlsg.strategies.protocol.downlink import Downlink, Records
from fedlsg.strategies.protocol.expectations import Expectations, check_reply, reason_of
from fedlsg.strategies.protocol.nodes import Roster, SimulatedGrid
from fedlsg.strategies.protocol.proofs import RECORD, LedgerCopies, held_record
from fedlsg.strategies.protocol.round_report import (
    AWAY,
    NO_REPLY,
    Received,
    RoundReport,
    SimulatedClock,
    wire_size,
)
from fedlsg.strategies.protocol.watched_grid import NODE_GONE
from fedlsg.strategies.protocol.wire import (
    DISK_FULL,
    FRAME_DIFFERS,
    REPLICA_LOST,
    Announcement,
    announced_to,
)

ByClient = dict[int, Any]


class Exchange:
    """What is sent and received in the current round; ``report`` says what happened in it.

    A client that fails, or whose reply is not what was expected, is named in the log and in the
    report.
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
        self._sent: list[tuple[int, Message]] = []
        self._announced: dict[Announcement, ConfigRecord] = {}
        """Records of the current round, by what they say."""
        self._leaving: Set[int] = frozenset()
        self._replacements = list[int]()

    def join(self, roster: Roster, copies: LedgerCopies) -> None:
        """Exchange messages with the nodes of a deployment, whose ledgers the server has as
        ``copies``.
        """
        self.roster, self.expectations = roster, replace(self.expectations, copies=copies)

    def connect(self, grid: Grid) -> None:
        """Find every client's node before the first round; later, the nodes that have left or
        returned.
        """
        self._grid = grid
        if self.roster.complete:
            self.roster.refresh(grid)
        else:
            self.roster.gather(grid, len(self.expectations.settings.terms))

    def select(self, plan: RoundPlan) -> list[int]:
        """The clients of a round, ascending: a public draw among those who are there; after
        failures, healthy ones.
        """
        health, drawn, self._replacements = self.clock.health, self.clock.select(plan.round), []
        for client in self.roster.take_returned():
            health.forgive(client)
        # a round that needs all of its clients (a sum) gets as many
        least = 1 if self.replaces else len(drawn)
        return self._healthy(plan.round, len(drawn), least=least) if health.since else drawn

    @property
    def follows_health(self) -> bool:
        """Whether those who failed are asked later: not where it is simulated who is there, in a
        known schedule.
        """
        return not self.clock.participation.timed

    @property
    def replaces(self) -> bool:
        """Whether another client may be asked within a round: only where each payload is private
        and used alone.
        """
        return self.follows_health and self.expectations.settings.min_survivors == 1

    def _healthy(
        self, round: int, number: int, *, least: int, but: Collection[int] = ()
    ) -> list[int]:
        """The healthiest clients in the order of the public draw: those that it selects, and those
        with a spare round.

        ``least``: so many of them, whatever their health.
        """
        conditions = self.clock.participation
        order = conditions.order(round)
        own = list(islice(order, conditions.selected))
        others = (client for client in order if self._has_spare_round(client, round))
        candidates = (client for client in chain(own, others) if client not in but)
        return self.clock.health.choose(candidates, number, round=round, least=least)

    def _has_spare_round(self, client: int, round: int) -> bool:
        """Whether the client's noise covers one more round than those that the draw still has for
        it.
        """
        turns, health = self._turns.get(client, []), self.clock.health
        asked = bisect_left(turns, health.since or round) + health.asked.get(client, 0)
        return asked + len(turns) - bisect_right(turns, round) < self._most_rounds

    @cached_property
    def _turns(self) -> dict[int, list[int]]:
        """The rounds for which each client is drawn, ascending."""
        turns: dict[int, list[int]] = {}
        for round, selected in enumerate(
            self.clock.participation.schedule(self.expectations.state.schedule.rounds), 1
        ):
            for client in selected:
                turns.setdefault(client, []).append(round)
        return turns

    @cached_property
    def _most_rounds(self) -> int:
        """How often the plan, and so the noise, expects a client to be asked at most."""
        return max(map(len, self._turns.values()))

    def begin(self, plan: RoundPlan, selected: Sequence[int]) -> list[Message]:
        """The announcements of a round, for the caller to send."""
        self._open(plan, selected)
        return self._announce_to(selected)

    def _open(self, plan: RoundPlan, selected: Sequence[int]) -> None:
        self._started = time.monotonic()
        self.plan, self._announced = plan, {}
        self.report = RoundReport(round=plan.round, asked=selected, plan=plan)
        self._leaving = self.clock.open(self.report)
        if isinstance(self._grid, SimulatedGrid):
            self._grid.expect(plan)

    def collect(self, replies: Iterable[Message]) -> Received:
        """The clients' valid values; of those that were lost, the values of others, asked in their
        place.
        """
        received: dict[int, Tensor] = self._collect(replies)
        values = self._in_time(received | self._of_replacements())
        clients, noise = sorted(values), self.expectations.noise_of_sum(values, self.plan)
        return Received(
            clients=clients, updates=[values[client] for client in clients], noise_std=noise
        )

    def _of_replacements(self) -> ByClient:
        """The values of other clients, as many as were lost; a replacement that is lost has none
        itself.
        """
        lost, asked = self.report.failed, self.report.asked
        if not (self.replaces and lost) or self.plan.phase is not Phase.TRAINING:
            return {}
        others = self._healthy(
            self.report.round, len(lost), least=0, but={*asked, *self._replacements}
        )
        others = [client for client in others if self.clock.health.failures.get(client, 0) == 0]
        if not others:
            return {}
        log(
            WARNING,
            "round %d: asking clients %s in place of %s",
            self.report.round,
            others,
            sorted(lost),
        )
        self.report.asked, self._replacements = (
            sorted([*asked, *others]),
            [*self._replacements, *others],
        )
        return self._collect(self._send(self._announce_to(others)), gone=lost)

    def _collect(self, replies: Iterable[Message], gone: Collection[int] = ()) -> ByClient:
        """What ``_accept`` returned of each valid reply, by partition.

        Clients that derive another frame, hold another model or have restarted get one more message
        for each reason; except those that are ``gone``: others have their place.
        """
        values = self._read(replies)
        framed, lost, back = set[int](), set[int](), set[int](gone)
        while True:
            frames = self.report.refused(FRAME_DIFFERS) - framed
            models = self.report.refused(*REPLICA_LOST) - lost
            returned = self._returned(self.report.refused(*NODE_GONE) - back)
            self.downlink.confirm(values.keys() | frames)
            if not frames | models | returned:
                return values
            who = sorted(frames), sorted(models), sorted(returned)
            log(
                WARNING,
                "sending again: clients %s derive another frame, %s hold another model, %s "
                "restarted",
                *who,
            )
            framed, lost, back = framed | frames, lost | models, back | returned
            values |= self._read(
                self._send(self._announce_to(sorted(frames | models | returned), framed, models))
            )

    def _in_time(self, values: ByClient) -> ByClient:
        """The values without those that came too late in simulated time: their clients stay
        charged.
        """
        self.report.late = self.clock.late(self.report, values)
        for client in self.report.late:
            self.report.payloads.pop(client, None)
        return {client: value for client, value in values.items() if client not in self.report.late}

    def run(self, plan: RoundPlan, selected: Sequence[int]) -> Received:
        """A whole exchange: announce, wait, collect."""
        return self.collect(self._send(self.begin(plan, selected)))

    @property
    def worth_repeating(self) -> bool:
        """Whether replies were lost, and none came: the round may be sent again. Who was too slow
        would be so again.
        """
        return bool(self.report.lost)

    def run_again(self) -> Received:
        """The same round once more because no reply arrived; clients resend stored payloads for
        free.
        """
        log(WARNING, "round %d: no client replied, sending the round again", self.report.round)
        self.downlink.abandon_round()
        self.roster.wait(self._grid, self.report.asked)
        return self.run(
            self.plan, [client for client in self.report.asked if client not in self._replacements]
        )

    def end(self, clients: Collection[int]) -> RoundReport:
        """The report, once the round is over; these clients took part."""
        self.report.answered = sorted(clients)
        self.report.seconds = time.monotonic() - self._started
        if self.follows_health and self.plan.phase is Phase.TRAINING:
            self.clock.health.count(self.report.round, self.report.asked, self.report.failed)
        self.clock.close(self.report)
        return self.report

    def _send(self, messages: Sequence[Message]) -> Iterable[Message]:
        before = time.monotonic()
        replies = self._grid.send_and_receive(messages, timeout=self.expectations.settings.timeout)
        self.report.waiting += time.monotonic() - before
        return replies

    def _returned(self, gone: set[int]) -> set[int]:
        """Those of the clients whose node was lost in this round that have a node again."""
        if gone:
            self.roster.refresh(self._grid)
        return {partition for partition in gone if self.roster.node(partition) is not None}

    def _announce_to(
        self, partitions: Sequence[int], framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> list[Message]:
        """Announcements to those of the clients that have a node; the others are rejected in the
        report.

        A client that leaves before it trains is in the report: its announcement is counted, and not
        delivered.
        """
        there = self._there(partitions)
        self.report.dropped = sorted({*self.report.dropped, *(self._leaving & there.keys())})
        records = self.downlink.records(list(there), self.plan.frame, framed=framed, lost=lost)
        self._sent = [(who, self._announce(who, node, records[who])) for who, node in there.items()]
        return [message for who, message in self._sent if who not in self._leaving]

    def _there(self, partitions: Iterable[int]) -> dict[int, int]:
        """The nodes of those of the clients that have one; the others are rejected in the
        report.
        """
        nodes = {partition: self.roster.node(partition) for partition in partitions}
        there = {partition: node for partition, node in nodes.items() if node is not None}
        if away := sorted(nodes.keys() - there.keys()):
            log(WARNING, "round %d: clients %s: %s", self.report.round, away, AWAY)
        self.report.rejected |= dict.fromkeys(away, AWAY)
        return there

    def _announce(self, partition: int, node: int, records: Records) -> Message:
        expected, plan = self.expectations, self.plan
        terms, copies = expected.terms(partition, plan.phase), expected.copies
        announced = Announcement(
            round=plan.round,
            updates=expected.state.updates,
            frame_digest=plan.frame.digest,
            sample_rate=terms.sample_rate,
            noise_multiplier=terms.noise_multiplier,
            expected_batch=expected.settings.local.expected_batch,
            run_dir=expected.settings.run_dir if copies is None else "",
            isolation=plan.local.isolation,
        )
        content = announced_to(records, announced, self._announced)
        if copies is not None:
            content[RECORD] = held_record(copies.held(partition))
        return Message(content, node, MessageType.TRAIN, group_id=str(plan.round))

    def _read(self, replies: Iterable[Message], *, stage: bool = False) -> ByClient:
        """What ``_accept`` returns of each valid reply, by partition; everything else is entered in
        the report.

        ``stage``: no values were asked for, only what comes before or after them. A reply belongs
        to the message that
        it answers: Flower's own error for a lost node comes from no node.
        """
        waiting = {
            message.metadata.message_id: (partition, message) for partition, message in self._sent
        }
        values: ByClient = {}
        for partition, message in self._sent:
            self.report.count_down(partition, message, stage=stage)
            if stage or partition not in self.report.dropped:
                self.report.rejected[partition] = NO_REPLY
        for reply in replies:
            name, sender = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            partition, message = waiting.get(name, (-1, reply))
            from_there = reply.has_error() or sender == message.metadata.dst_node_id
            if partition < 0 or not from_there:
                log(
                    WARNING,
                    "unexpected reply from node %s ignored: no message to that node waits for it",
                    sender,
                )
                continue
            del waiting[name]
            received = self._read_one(partition, reply, stage=stage)
            if received is not None:
                values[partition] = received
        for partition in sorted(
            self.report.rejected.keys() & {partition for partition, _ in self._sent}
        ):
            log(
                WARNING,
                "round %d: client %d: %s",
                self.report.round,
                partition,
                self.report.rejected[partition],
            )
        return values

    def _accept(self, reply: Message, partition: int, *, stage: bool) -> Any:
        """The values of a reply. Raises as ``Expectations.read`` does."""
        return self.expectations.read(reply, partition, self.plan, self.report)

    def _read_one(self, partition: int, reply: Message, *, stage: bool) -> Any:
        """What ``_accept`` returns of a reply, None where it is rejected; the report counts its
        bytes in either case.

        Raises OSError if a simulated client found the run's disk full: all the others would, too.
        """
        before, values = self.report.so_far("up"), None
        try:
            check_reply(reply)
            self.report.uplink_bytes_wire += wire_size(reply)
            values = self._accept(reply, partition, stage=stage)
            del self.report.rejected[partition]
        except Exception as error:  # whatever a client sends must not end the round
            self.report.rejected[partition] = reason_of(error)
            # asked for its identity next, before it is charged for nothing again
            if isinstance(error, LedgerError):
                self.roster.forget(partition)
        if reply.has_error() and reply.error.code in NODE_GONE:
            self.roster.forget(partition)
        if reply.has_error() and reply.error.code == DISK_FULL and self.expectations.copies is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), reply.error.reason)
        self.report.list_reply(partition, before, stage=stage)
        return values
