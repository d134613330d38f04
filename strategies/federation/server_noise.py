"""The messages of a round whose noise a trusted server adds: it draws the clients, is charged, clips, sums, adds noise.

Order, which the privacy claim rests on: the ledger is charged and on disk, the clients are drawn, their updates arrive,
and only the noisy sum goes on. Who took part, and how many, is known to the server alone: the report that leaves here
(``end``) says nothing of it, and neither does an error.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from flwr.app import Message

from fedlsg.client_level import ServerNoise, release_round, sum_mechanism
from fedlsg.privacy import SERVER, Entry, poisson_batch
from fedlsg.state import RoundPlan
from strategies.federation.exchange import Exchange, Received
from strategies.federation.report import NO_REPLY, RoundReport
from strategies.federation.wire import TOO_SLOW


class ServerNoiseExchange(Exchange):
    """An exchange whose one update is the noisy sum of what arrived."""

    _clip_norm: float | None = None

    def select(self, plan: RoundPlan) -> list[int]:
        """A Poisson sample of the clients, drawn after the charge, without those who are away; it may be empty.

        Raises BudgetError if the round would pass the budget, LedgerError if it cannot be charged: nothing is drawn.
        """
        assert plan.unit.whole
        self._charge(plan)
        clients, rate = len(self.expectations.settings.terms), plan.unit.sample_rate
        drawn = poisson_batch(clients, rate, self._noise.stream("clients", plan.round)).tolist()
        there = set(self.clock.select(plan.round))
        return [client for client in drawn if client in there]

    @property
    def follows_health(self) -> bool:
        """Never: epsilon counts on a draw that nothing but chance decides, and no file may say who was drawn."""
        return False

    @property
    def worth_repeating(self) -> bool:
        """Never: a round without a reply is a sum of noise, as any other. Repeated, it would tell who was drawn."""
        return False

    def collect(self, replies: Iterable[Message]) -> Received:
        """The noisy sum; also of a round in which no client was drawn, or none answered.

        Raises RuntimeError where a reply did not come in time: one slow client may have kept others waiting, and would
        decide whether they count. Nothing of the round is released then; it stays charged.
        """
        received, plan, noise = super().collect(replies), self.plan, self._noise
        if NO_REPLY in self.report.rejected.values() or self.report.refused(TOO_SLOW):
            raise RuntimeError(
                f"round {plan.round}: a reply did not come within round_timeout, and a sum without those that had to "
                "wait is not covered by epsilon: give a longer round_timeout, and continue with fedlsg resume"
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
        """The plan and what was released of the round. Clients, messages, bytes, reasons and times stay here."""
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
        first = self.expectations.state.method.mechanism  # the multiplier is the same at any C, to the bit
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
        if noise.reproducible and any(replace(one, attempt=entry.attempt) == entry for one in known):
            return  # the same bits again, the same release
        noise.ledger.charge(entry, within=None if noise.reproducible else noise.budget)
