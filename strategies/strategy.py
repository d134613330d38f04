"""The one Flower strategy: announce a frame, check payloads, sum, divide by a constant, rebuild dW.

    FedLSG(state, settings, on_round).start(grid, initial_arrays=..., num_rounds=...)

Nothing here depends on the method: it is data inside ``ServerState``.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedlsg.state import RoundPlan, ServerState, select_clients
from strategies.federation.downlink import Downlink, FullDownlink, Records
from strategies.federation.expectations import Expectations
from strategies.federation.ledger_copies import LedgerCopies
from strategies.federation.ledger_wire import RECORD, held_record
from strategies.federation.nodes import Roster
from strategies.federation.report import AWAY, NO_REPLY, RoundReport, reason_of
from strategies.federation.serial import wire_size
from strategies.federation.stopped import BudgetSpentError, Patience, finite
from strategies.federation.terms import FederationSettings
from strategies.federation.watched_grid import NODE_GONE
from strategies.federation.wire import FRAME_DIFFERS, REPLICA_LOST, Announcement, announced_to, flat_record

__all__ = ["FedLSG", "FederationSettings"]


class FedLSG(Strategy):
    """Federated training in low-rank sparse coordinates, for every recipe of this package.

    Clients are sampled by partition with the public generator. A client that fails, or whose payload does not pass
    ``fedlsg.payload.unpack``, is named in the log and in the report, and the round goes on without it; the divisor
    does not change. ``on_round`` is called after every round, when the state already holds its result. Where pruning
    reads the data a pruning round of all clients comes first, and ``on_pruned`` is called after it, also where it
    failed: the state then still awaits pruning. A round without any reply is repeated if workers died in it.
    Raises BudgetSpentError when every selected client refuses to pass its budget, RuntimeError after three rounds or
    attempts in a row without a valid update, and, before ``on_round``, DivergedError for an update that is not finite.
    """

    def __init__(
        self,
        state: ServerState,
        settings: FederationSettings,
        on_round: Callable[[RoundReport], None],
        on_pruned: Callable[[RoundReport], None] = lambda report: None,
        downlink: Downlink | None = None,
    ) -> None:
        self.state, self.settings, self.on_round, self.on_pruned = state, settings, on_round, on_pruned
        self.downlink: Downlink = FullDownlink(state) if downlink is None else downlink
        declared = [terms.num_examples for terms in settings.terms]
        self.roster = Roster(settings.timeout, declared=declared)
        self.expectations = Expectations(state=state, settings=settings)
        self._sent: list[tuple[int, Message]] = []
        self._patience = Patience()

    def join(self, roster: Roster, copies: LedgerCopies) -> None:
        """Train with the nodes of a deployment, whose ledgers are seen through ``copies``."""
        self.roster, self.expectations = roster, replace(self.expectations, copies=copies)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One announcement a selected client; before the first round, the pruning round."""
        self._grid = grid
        if self.roster.complete:
            self.roster.refresh(grid)
        else:
            self.roster.gather(grid, len(self.settings.terms))
        if self.state.awaits_pruning:
            self._prune(grid)
        plan = self.state.plan(self.settings.local)
        selected = select_clients(
            len(self.settings.terms), self.settings.clients_per_round, round=plan.round, seed=self.state.seed
        )
        return self._begin(plan, selected)

    def _begin(self, plan: RoundPlan, selected: Sequence[int]) -> list[Message]:
        self._started = time.monotonic()
        self._plan = plan
        self._report = RoundReport(round=plan.round, asked=selected)
        return self._announce_to(selected)

    def _prune(self, grid: Grid) -> None:
        """Noisy saliencies of every client. Clients without a valid reply are left out, down to min_survivors."""
        messages = self._begin(self.state.plan(self.settings.local), range(len(self.settings.terms)))
        values = self._repaired(self._read(grid.send_and_receive(messages, timeout=self.settings.timeout)))
        if len(values) >= self.settings.min_survivors:
            ordered, examples = [values[p] for p in sorted(values)], sum(t.num_examples for t in self.settings.terms)
            self.downlink.prune(self._plan.frame, ordered, num_examples=examples)
        self._report.answered = sorted(values)
        self._report.seconds = time.monotonic() - self._started
        self.on_pruned(self._report)
        if self.state.awaits_pruning:
            why = (
                f"expected at least {self.settings.min_survivors} clients in the pruning round, {len(values)} replied: "
                f"client {self._report.reasons}"
            )
            raise BudgetSpentError(why) if self._report.budget_spent else RuntimeError(why)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check every reply, update the model, report."""
        values = self._repaired(self._read(replies))
        while not values and self._report.lost:
            values = self._ask_again()
        survivors = len(values) >= self.settings.min_survivors
        ordered = [values[partition] for partition in sorted(values)] if survivors else []
        noise = self.expectations.noise_of_sum(values, self._plan)
        with finite(self.state, self._report.round):
            self.downlink.finish_round(self._plan.frame, ordered, noise)
        self._report.answered = sorted(values)
        self._report.seconds = time.monotonic() - self._started
        self.on_round(self._report)
        self._patience.count(self._report, updated=bool(ordered))
        return flat_record(self.state.weights), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: accuracy is measured on the public test split, by the server."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """None, see ``configure_evaluate``."""
        return None

    def summary(self) -> None:
        """Log method and frame."""
        frame = self.state.frame(self.state.round + 1)  # that of training, even if pruning is still to come
        log(
            INFO,
            "method %s: %d of %d coordinates kept, %d carried layers, divisor %g",
            self.state.method.name,
            frame.kept,
            frame.dense_size,
            len(self.state.public.carried),
            self.state.divisor,
        )

    def _ask_again(self) -> dict[int, Tensor]:
        """The same round once more, because no answer arrived; clients resend stored payloads for free."""
        self._patience.count(self._report, updated=False)
        log(WARNING, "round %d: nobody answered, asking again", self._report.round)
        self.downlink.abandon_round()
        self.roster.wait(self._grid, self._report.asked)
        messages = self._begin(self._plan, self._report.asked)
        return self._repaired(self._read(self._grid.send_and_receive(messages, timeout=self.settings.timeout)))

    def _repaired(self, values: dict[int, Tensor]) -> dict[int, Tensor]:
        """Ask clients again that derive another frame, hold another model or started anew, once for each reason."""
        framed, lost, back = set[int](), set[int](), set[int]()
        while True:
            frames = self._report.refused(FRAME_DIFFERS) - framed
            models = self._report.refused(*REPLICA_LOST) - lost
            returned = self._returned(self._report.refused(*NODE_GONE) - back)
            self.downlink.confirm(values.keys() | frames)
            if not frames | models | returned:
                return values
            who = sorted(frames), sorted(models), sorted(returned)
            log(WARNING, "asking again: clients %s derive another frame, %s hold another model, %s started anew", *who)
            framed, lost, back = framed | frames, lost | models, back | returned
            again = self._announce_to(sorted(frames | models | returned), framed, models)
            values |= self._read(self._grid.send_and_receive(again, timeout=self.settings.timeout))

    def _returned(self, gone: set[int]) -> set[int]:
        """Those of the clients whose node was lost in this round that have a node again."""
        if gone:
            self.roster.refresh(self._grid)
        return {partition for partition in gone if self.roster.node(partition) is not None}

    def _announce_to(
        self, partitions: Sequence[int], framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> list[Message]:
        """Announcements to those of the clients that have a node; the report says who has none."""
        nodes = {partition: self.roster.node(partition) for partition in partitions}
        there = {partition: node for partition, node in nodes.items() if node is not None}
        records = self.downlink.records(list(there), self._plan.frame, framed=framed, lost=lost)
        if away := sorted(nodes.keys() - there.keys()):
            log(WARNING, "round %d: clients %s: %s", self._report.round, away, AWAY)
        self._report.rejected |= dict.fromkeys(away, AWAY)
        self._sent = [(who, self._announce(who, node, records[who])) for who, node in there.items()]
        return [message for _, message in self._sent]

    def _announce(self, partition: int, node: int, records: Records) -> Message:
        terms, copies = self.expectations.terms(partition, self._plan.phase), self.expectations.copies
        announced = Announcement(
            round=self._report.round,
            updates=self.state.updates,
            frame_digest=self._plan.frame.digest,
            sample_rate=terms.sample_rate,
            noise_multiplier=terms.noise_multiplier,
            expected_batch=self.settings.local.expected_batch,
            run_dir=self.settings.run_dir if copies is None else "",
        )
        content = announced_to(records, announced)
        if copies is not None:
            content[RECORD] = held_record(copies.held(partition))
        return Message(content, node, MessageType.TRAIN, group_id=str(self._report.round))

    def _read(self, replies: Iterable[Message]) -> dict[int, Tensor]:
        """Valid values by partition; everything else is entered in the report.

        A reply belongs to the message that it answers: what Flower says of a lost node comes from no node.
        """
        asked = {message.metadata.message_id: (partition, message) for partition, message in self._sent}
        values: dict[int, Tensor] = {}
        for partition, message in self._sent:
            self._report.count_down(partition, message)
            self._report.rejected[partition] = NO_REPLY
        for reply in replies:
            partition, message = asked.get(reply.metadata.reply_to_message_id, (-1, reply))
            from_there = reply.has_error() or reply.metadata.src_node_id == message.metadata.dst_node_id
            if partition < 0 or not from_there:
                log(
                    WARNING,
                    "unexpected reply from node %s ignored: it answers no message that is open there",
                    reply.metadata.src_node_id,
                )
                continue
            del asked[reply.metadata.reply_to_message_id]
            before = self._report.so_far("up")
            try:
                self._report.uplink_bytes_wire += wire_size(reply)
                values[partition] = self.expectations.read(reply, partition, self._plan, self._report)
                del self._report.rejected[partition]
            except Exception as error:  # whatever a client sends must not end the round
                self._report.rejected[partition] = reason_of(error)
            if reply.has_error() and reply.error.code in NODE_GONE:
                self.roster.forget(partition)
            self._report.list_reply(partition, before)
        for partition in sorted(self._report.rejected.keys() & {partition for partition, _ in self._sent}):
            log(WARNING, "round %d: client %d: %s", self._report.round, partition, self._report.rejected[partition])
        return values
