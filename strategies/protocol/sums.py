"""Exchanges of which one sum goes on: a secure sum of the clients', or that of a trusted server,
which adds the noise.

A secure sum has five stages, after which the server knows the clients' sum alone.
    begin      "keys" and "shares" are asked for; the announcements that it returns are stage
               "masked"
    collect    the masked values are added, and "agree" and "unmask" are asked for
A client that is silent, or whose message is refused, has dropped out; in a simulated federation so
has one that leaves after "shares", or whose masked values are late. With too few of them the round
is given up: nothing is revealed, and who sent masked values stays charged.

A trusted server draws the clients, is charged, clips, sums, adds noise. Order, which the privacy
claim rests on: the ledger is charged and on disk, the clients are drawn, their updates arrive, and
only the noisy sum goes on. Who took part, and how many, is known to the server alone: the report
that leaves here (``end``) does not contain it, and neither does an error.
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

ALTERED = re.compile(r"shares of client (\d+) for client \d+: altered")
"""What a client says that cannot open the shares of a neighbour."""


class SecureExchange(Exchange):
    """What is sent and received in the current round; an attempt at a secure sum each time that it
    is sent.
    """

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
        """Clients whose shares made an attempt fail: from then on they count as dropped out. A
        checkpoint has them.
        """
        return self.clock.health.left_out

    def begin(self, plan: RoundPlan, selected: Sequence[int]) -> list[Message]:
        """Keys and shares of the selected clients; then the announcements for those that are still
        there.
        """
        self._open(plan, selected)
        self._start_attempt(plan, selected)
        self.report.rejected |= {
            client: why for client, why in self._left_out.items() if client in selected
        }
        asked = [client for client in selected if client not in self._left_out]
        sent = open_sum(self._server, self._ask, asked)
        self._explain(sent, selected)
        self._deliveries = {} if isinstance(sent, GivenUp) else sent
        return self._announce_to(sorted(self._deliveries))

    def collect(self, replies: Iterable[Message]) -> Received:
        """The clients' sum, or nothing where the round is given up."""
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
        """Who dealt shares that more clients than may collude cannot open made them drop out, and
        does so no more.
        """
        by = defaultdict[int, set[int]](set)
        for client, why in self.report.rejected.items():
            if match := ALTERED.search(why):
                by[int(match[1])].add(client)
        for dealer, clients in by.items():
            if dealer in self._stage.clients and len(clients - {dealer}) > self._sums.colluders:
                self._leave_out(dealer, f"clients {sorted(clients)} cannot open its shares")

    def _leave_out(self, client: int, why: str) -> None:
        self._left_out[client] = f"left out since round {self.plan.round}: {why}"
        log(WARNING, "client %d is %s", client, self._left_out[client])

    @property
    def follows_health(self) -> bool:
        """Never: a client takes part in no sum but that of the clients which the public schedule
        selects.
        """
        return False

    @property
    def replaces(self) -> bool:
        """Never: the clients of a sum agree on keys first, and one that is lost is a dropout of the
        sum.
        """
        return False

    @property
    def worth_repeating(self) -> bool:
        """Whether replies were lost before anybody was asked for values: later, a client whose
        reply is lost may have been charged, and another attempt would charge it once more.
        """
        return super().worth_repeating and not self._deliveries

    def _received(self, total: Total) -> Received:
        """The sum in the units of the values. A client whose masked values came is in it, also if
        it was silent afterwards.
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
        """As in ``Exchange``, as stage "masked". A client that has dropped out in an earlier stage
        gets nothing more in this attempt.
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
        """Enter into the report whom the protocol refused, and why these clients worked for
        nothing.
        """
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
    """An exchange whose one update is the noisy sum of what arrived."""

    _clip_norm: float | None = None

    def select(self, plan: RoundPlan) -> list[int]:
        """A Poisson sample of the clients, drawn after the charge, without those who are away; it
        may be empty.

        Raises BudgetError if the round would pass the budget, LedgerError if it cannot be charged:
        nothing is drawn.
        """
        assert plan.unit.whole
        self._charge(plan)
        clients, rate = len(self.expectations.settings.terms), plan.unit.sample_rate
        drawn = poisson_batch(clients, rate, self._noise.stream("clients", plan.round)).tolist()
        there = set(self.clock.select(plan.round))
        return [client for client in drawn if client in there]

    @property
    def follows_health(self) -> bool:
        """Never: epsilon counts on a draw that nothing but chance decides, and no file may say who
        was drawn.
        """
        return False

    @property
    def worth_repeating(self) -> bool:
        """Never: a round without a reply is a sum of noise, as any other. Repeated, it would tell
        who was drawn.
        """
        return False

    def collect(self, replies: Iterable[Message]) -> Received:
        """The noisy sum; also of a round in which no client was drawn, or none answered.

        Raises RuntimeError where a reply did not come in time: one slow client may have kept others
        waiting, and would decide whether they count. Nothing of the round is released then; it
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
        self.report.payloads.clear()  # without noise: they are kept nowhere
        std = sum_mechanism(plan.mechanism, noise.adaptive).noise_std
        return replace(received, updates=[total], noise_std=std)

    def end(self, clients: Collection[int]) -> RoundReport:
        """The plan and what was released of the round. Clients, messages, bytes, reasons and times
        stay here.
        """
        whole = super().end(clients)
        return RoundReport(round=whole.round, asked=(), plan=whole.plan, total=whole.total)

    def finish(self) -> None:
        """The clip norm of the next round, in the public state, once the sum is applied."""
        self.expectations.state.clip_norm = self._clip_norm

    @property
    def _noise(self) -> ServerNoise:
        noise = self.expectations.settings.server_noise
        assert noise is not None
        return noise

    def _charge(self, plan: RoundPlan) -> None:
        noise = self._noise
        assert plan.unit.whole
        # the multiplier is the same at any C, to the bit
        first = self.expectations.state.method.mechanism
        entry = Entry(
            client=SERVER,
            round=plan.round,
            attempt=noise.ledger.next_attempt(plan.round),
            steps=1,
            sample_rate=plan.unit.sample_rate,
            noise_multiplier=first.effective_noise_multiplier(len(plan.frame.blocks)),
            clip_norm=plan.mechanism.clip_norm,
            num_examples=len(self.expectations.settings.terms),
            mechanism=plan.mechanism.kind,
            reproducible=noise.reproducible,
            unit=plan.unit.name,
        )
        known = noise.ledger.of_round(plan.round)
        if noise.reproducible and any(
            replace(one, attempt=entry.attempt) == entry for one in known
        ):
            return  # the same bits again, the same release
        noise.ledger.charge(entry, within=None if noise.reproducible else noise.budget)
