"""Exchanges whose result is one sum: a secure sum, or the noisy sum of a trusted server.

A secure sum has five stages, after which the server knows the clients' sum alone.
    begin      asks for "keys" and "shares"; returns the announcements, which are stage "masked"
    collect    adds the masked values, and asks for "agree" and "unmask"
A client that is silent, or whose message is refused, has dropped out. In a simulated federation so
has one that leaves after "shares", or whose masked values are late. With too few clients the round
is given up: nothing is revealed, and clients that sent masked values stay charged.

A trusted server draws the clients, is charged, clips, sums, adds noise. The privacy claim rests on
this order: the ledger is charged and on disk, the clients are drawn, their updates arrive, and only
the noisy sum is used. The server alone knows who took part, and how many: neither the report of
``end`` nor an error contains it.
"""

import hashlib
import re
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from logging import WARNING
from typing import Any

import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.common.logger import log

from fedlsg.privacy import SERVER, Entry, poisson_batch
from fedlsg.secure_sum import GivenUp, Server, Total
from fedlsg.secure_sum.discrete import SumTerms
from fedlsg.secure_sum.messages import packed_bytes
from fedlsg.state import RoundPlan
from fedlsg.strategies.protocol.exchange import Exchange
from fedlsg.strategies.protocol.round_report import NO_REPLY, Received, RoundReport
from fedlsg.strategies.protocol.stages import (
    KEYS,
    MASKED,
    Stage,
    close_sum,
    open_sum,
    write_stage,
)
from fedlsg.strategies.protocol.wire import TOO_SLOW
from fedlsg.training.client_level import ServerNoise, release_round, sum_mechanism

ALTERED_SHARES = re.compile(r"shares of client (\d+) for client \d+: altered")
"""The message of a client that cannot open the shares of a neighbour, whose number it names."""


class SecureExchange(Exchange):
    """An exchange whose result is a secure sum; each time that the round is sent is an attempt."""

    _server: Server
    _stage: Stage
    _deliveries: Mapping[int, bytes]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        settings = self.expectations.settings
        seed = f"reproducible run {self.expectations.state.seed}".encode()
        self._run = (
            hashlib.sha256(seed).digest() if settings.reproducible else secrets.token_bytes(32)
        )
        self._attempts = 0

    @property
    def _left_out(self) -> dict[int, str]:
        """By client, why its shares made an attempt fail; it counts as dropped out from then on.

        A checkpoint has them.
        """
        return self.clock.health.left_out

    def begin(self, plan: RoundPlan, selected: Sequence[int]) -> list[Message]:
        """Collect keys and shares; returns announcements for clients that are still there."""
        self._open(plan, selected)
        self._start_attempt(plan, selected)
        self.report.rejected |= {
            client: why for client, why in self._left_out.items() if client in selected
        }
        present = [client for client in selected if client not in self._left_out]
        deliveries = open_sum(self._server, self._ask, present)
        self._explain(deliveries, selected)
        self._deliveries = {} if isinstance(deliveries, GivenUp) else deliveries
        return self._announce_to(sorted(self._deliveries))

    def collect(self, replies: Iterable[Message]) -> Received:
        """The clients' sum; nothing if the round is given up."""
        if not self._deliveries:
            return Received()
        masked: dict[int, bytes] = self._in_time(self._collect(replies))
        self._leave_out_accused()

        def drop_refused() -> None:
            for client in self._server.refused:  # no masked vector, so no payload
                self.report.payloads.pop(client, None)

        outcome = close_sum(self._server, self._ask, masked, drop_refused)
        self._explain(outcome, masked)
        return self._received(outcome) if isinstance(outcome, Total) else Received()

    def _leave_out_accused(self) -> None:
        """Leave out clients whose shares more clients than may collude cannot open."""
        accusers = defaultdict[int, set[int]](set)
        for client, why in self.report.rejected.items():
            if match := ALTERED_SHARES.search(why):
                accusers[int(match[1])].add(client)
        for dealer, clients in accusers.items():
            if dealer in self._stage.clients and len(clients - {dealer}) > self._sums.colluders:
                self._leave_out(dealer, f"clients {sorted(clients)} cannot open its shares")

    def _leave_out(self, client: int, why: str) -> None:
        self._left_out[client] = f"left out since round {self.plan.round}: {why}"
        log(WARNING, "client %d is %s", client, self._left_out[client])

    @property
    def follows_health(self) -> bool:
        """False: the public schedule alone selects the clients of a sum."""
        return False

    @property
    def replaces(self) -> bool:
        """False: clients of a sum agree on keys first; a lost one is a dropout of the sum."""
        return False

    @property
    def worth_repeating(self) -> bool:
        """Whether replies were lost before any client was asked for values.

        Later, a client whose reply is lost may have been charged, and another attempt would charge
        it once more.
        """
        return super().worth_repeating and not self._deliveries

    def _received(self, total: Total) -> Received:
        """The sum in the units of the values, of all clients whose masked values came.

        That includes clients that were silent afterwards.
        """
        clients = sorted(total.survivors)
        for client in clients:
            self.report.rejected.pop(client, None)
        self.report.noted = {
            client: why for client, why in self._server.refused.items() if client in total.wrong
        }
        release = self.plan.release
        assert release is not None
        words = torch.from_numpy(total.values.astype("int64"))
        values = release.decode(words, seed=self.expectations.state.seed, round=self.plan.round)
        self.report.total = values
        return Received(
            clients=clients, updates=[values], noise_std=release.noise_std(len(clients))
        )

    def _start_attempt(self, plan: RoundPlan, selected: Sequence[int]) -> None:
        release = plan.release
        assert release is not None
        self._stage = Stage(
            name=KEYS,
            run=self._run,
            round=plan.round,
            attempt=self._attempts,
            clients=tuple(sorted(selected)),
            length=release.values,
            bits=release.grid.bits,
            noise=release.noise_std(1),
        )
        self._attempts += 1
        self._server = Server(self._stage.terms(self._sums))
        size = packed_bytes(release.values, release.grid.bits)
        self.report.count_values = lambda payload: min(size, len(payload))

    @property
    def _sums(self) -> SumTerms:
        sums = self.expectations.settings.sums
        assert sums is not None
        return sums

    def _ask(self, name: str, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers to a stage that asks for no values, by client."""
        group = str(self.plan.round)
        stages = {
            client: replace(self._stage, name=name, message=message)
            for client, message in messages.items()
        }
        self._sent = [
            (
                client,
                Message(
                    write_stage(RecordDict(), stages[client]),
                    node,
                    MessageType.TRAIN,
                    group_id=group,
                ),
            )
            for client, node in self._there(messages).items()
        ]
        replies = self._send([message for _, message in self._sent])
        answers = self._read(replies, self._accept_stage, stage=True)
        return {client: answers[client] for client in sorted(answers)}

    def _announce_to(
        self, clients: Sequence[int], framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> list[Message]:
        """Announcements as in ``Exchange``, as stage "masked".

        A client that has dropped out in an earlier stage gets no further message in this attempt.
        """
        there = [client for client in clients if client in self._deliveries]
        messages = super()._announce_to(there, framed, lost)
        for client, message in self._sent:
            stage = replace(self._stage, name=MASKED, message=self._deliveries[client])
            write_stage(message.content, stage)
        return messages

    def _accept(self, reply: Message, client: int) -> bytes:
        """The masked values. The protocol's server reads and checks them."""
        payload = self.expectations.paid(reply, client, self.plan, self.report)
        self.report.payloads[client] = payload
        return payload

    def _accept_stage(self, reply: Message, client: int) -> bytes:
        """Keys, shares or an answer, which the protocol's server reads and checks."""
        return self.expectations.payload(reply, self.report)

    def _explain(self, outcome: object, clients: Iterable[int]) -> None:
        """Enter into the report whom the protocol refused, and why a round was given up."""
        for client, why in self._server.refused.items():
            if client not in self.report.rejected:
                self.report.rejected[client] = why
                log(WARNING, "round %d: client %d: %s", self.plan.round, client, why)
        if isinstance(outcome, GivenUp):
            log(WARNING, "round %d: %s", self.plan.round, outcome)
            if outcome.owner is not None:
                self._leave_out(outcome.owner, outcome.reason)
            for client in clients:
                self.report.rejected.setdefault(client, str(outcome))


class ServerNoiseExchange(Exchange):
    """An exchange whose one update is the noisy sum of the clients' updates."""

    _clip_norm: float | None = None

    def select(self, plan: RoundPlan) -> list[int]:
        """A Poisson sample of the clients, drawn after the charge, without those who are away.

        It may be empty. Raises BudgetError if the round would pass the budget, LedgerError if it
        cannot be charged: nothing is drawn.
        """
        assert plan.unit.whole
        self._charge(plan)
        clients, rate = len(self.expectations.settings.terms), plan.unit.sample_rate
        sample = poisson_batch(clients, rate, self._noise.stream("clients", plan.round)).tolist()
        present = set(self.clock.select(plan.round))
        return [client for client in sample if client in present]

    @property
    def follows_health(self) -> bool:
        """False: epsilon needs a draw by chance alone, and no file may say who was drawn."""
        return False

    @property
    def worth_repeating(self) -> bool:
        """False: a round without replies is a sum of noise; a repetition shows who was drawn."""
        return False

    def collect(self, replies: Iterable[Message]) -> Received:
        """The noisy sum; also of a round in which no client was drawn, or none answered.

        Raises RuntimeError if a reply did not come in time: one slow client may have kept others
        waiting, and would decide whether they count. Then nothing of the round is released, and it
        stays charged.
        """
        received, plan, noise = super().collect(replies), self.plan, self._noise
        if NO_REPLY in self.report.rejected.values() or self.report.refused(TOO_SLOW):
            raise RuntimeError(
                f"round {plan.round}: a reply did not come within round_timeout, and a sum without "
                "those that had to wait is not covered by epsilon: give a longer round_timeout, "
                "and continue with fedlsg resume"
            )
        total, clip_norm = release_round(
            received.updates,
            frame=plan.frame,
            mechanism=plan.mechanism,
            expected_batch=plan.local.expected_batch,
            noise=noise.stream("noise", plan.round),
            adaptive=noise.adaptive,
        )
        self._clip_norm = None if noise.adaptive is None else clip_norm
        self.report.total = total
        self.report.payloads.clear()  # they have no noise: nothing may keep them
        std = sum_mechanism(plan.mechanism, noise.adaptive).noise_std
        return replace(received, updates=[total], noise_std=std)

    def end(self, clients: Collection[int]) -> RoundReport:
        """A report of the plan and the released sum alone.

        Clients, messages, bytes, reasons and times would show who was drawn.
        """
        whole = super().end(clients)
        return RoundReport(round=whole.round, asked=(), plan=whole.plan, total=whole.total)

    def finish(self) -> None:
        """Put the clip norm of the next round into the public state, after the sum is applied."""
        self.expectations.state.clip_norm = self._clip_norm

    @property
    def _noise(self) -> ServerNoise:
        noise = self.expectations.settings.server_noise
        assert noise is not None
        return noise

    def _charge(self, plan: RoundPlan) -> None:
        noise = self._noise
        assert plan.unit.whole
        # by the method's own mechanism: its multiplier is the same at any clip norm, bit by bit
        mechanism = self.expectations.state.method.mechanism
        entry = Entry(
            client=SERVER,
            round=plan.round,
            attempt=noise.ledger.next_attempt(plan.round),
            steps=1,
            sample_rate=plan.unit.sample_rate,
            noise_multiplier=mechanism.effective_noise_multiplier(len(plan.frame.blocks)),
            clip_norm=plan.mechanism.clip_norm,
            num_examples=len(self.expectations.settings.terms),
            mechanism=plan.mechanism.kind,
            reproducible=noise.reproducible,
            unit=plan.unit.name,
        )
        earlier = noise.ledger.of_round(plan.round)
        if noise.reproducible and any(
            replace(each, attempt=entry.attempt) == entry for each in earlier
        ):
            return  # the release is the same, bit by bit, and was charged
        noise.ledger.charge(entry, within=None if noise.reproducible else noise.budget)
