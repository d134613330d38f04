"""The one Flower strategy: announce a frame, check payloads, sum, divide by a constant, rebuild dW.

    FedLSG(state, settings, on_round=...).start(grid, initial_arrays=..., num_rounds=...)

Nothing here depends on the method, which is data inside ``ServerState``.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedlsg.gradients import trainable
from fedlsg.participation import Participation
from fedlsg.privacy import BudgetError
from fedlsg.state import ServerState, sizes_of
from fedlsg.strategies.protocol.downlink import Downlink
from fedlsg.strategies.protocol.exchange import Exchange
from fedlsg.strategies.protocol.expectations import Expectations, FederationSettings
from fedlsg.strategies.protocol.nodes import Roster
from fedlsg.strategies.protocol.proofs import LedgerCopies
from fedlsg.strategies.protocol.round_report import RoundReport, SimulatedClock
from fedlsg.strategies.protocol.sums import SecureExchange, ServerNoiseExchange
from fedlsg.strategies.protocol.wire import flat_record

__all__ = ["BudgetSpentError", "DivergedError", "FedLSG", "FederationSettings"]

MAX_EMPTY_ROUNDS = 3
"""After so many rounds or attempts in a row without an update, a run ends."""


class BudgetSpentError(RuntimeError):
    """No client can train within its privacy budget: a regular end of a run before its end."""


class DivergedError(RuntimeError):
    """Weights, optimizer state or loss are not finite; the text names the round and the numbers."""


class Patience:
    """Counts rounds and attempts in a row without an update.

    Of several clients, failures of one alone do not end a run.

    empty: rounds and attempts in a row without an update.
    clients: of the run.
    failed: clients that were asked in these rounds.
    """

    def __init__(self, clients: int = 1) -> None:
        self.empty, self.clients, self.failed = 0, clients, set[int]()

    def count(self, report: RoundReport, *, updated: bool) -> None:
        """Count a round, or an attempt at it.

        Raises BudgetSpentError if every client refuses to pass its budget, RuntimeError after
        ``MAX_EMPTY_ROUNDS`` in a row without an update.
        """
        self.empty = 0 if updated else self.empty + 1
        self.failed = set() if updated else self.failed | set(report.asked)
        if self.clients > 1 and len(self.failed) == 1:
            return
        if report.budget_spent:
            raise BudgetSpentError(
                f"the privacy budget of every client was spent before round {report.round}"
            )
        if self.empty < MAX_EMPTY_ROUNDS:
            return
        if report.only_refusals:
            raise BudgetSpentError(
                f"no client was left with privacy budget in round {report.round}: {report.counts}"
            )
        why = [f"client {report.reasons}"] if report.reasons else []
        if report.dropped or report.late or not why:
            why.append(report.counts)
        raise RuntimeError(
            f"no valid update in {MAX_EMPTY_ROUNDS} rounds in a row: {'; '.join(why)}"
        )


class FedLSG(Strategy):
    """Federated training in low-rank sparse coordinates, for every recipe of this package.

    Clients are sampled by partition with the public generator. A client that fails, or whose
    payload does not pass ``fedlsg.payload.unpack``, is named in the log and in the report, and the
    round continues without it; the divisor does not change. ``on_round`` is called after every
    round, when the state already holds its result. If pruning reads the data, a pruning round of
    all clients comes first, and ``on_pruned`` is called after it, also if it failed: the state then
    still awaits pruning. A round without any reply is repeated if workers died in it. ``measured``
    gives what Flower shows of a round after ``on_round``.
    ``clock``: of a simulated federation, in which clients are away, leave or are late; without it
    nobody is.
    Raises BudgetSpentError when every selected client refuses to pass its budget, RuntimeError
    after three rounds or attempts in a row without a valid update, and, before ``on_round``,
    DivergedError for an update that is not finite.
    """

    def __init__(
        self,
        state: ServerState,
        settings: FederationSettings,
        *,
        on_round: Callable[[RoundReport], None],
        on_pruned: Callable[[RoundReport], None] = lambda report: None,
        downlink: Downlink | None = None,
        clock: SimulatedClock | None = None,
        measured: Callable[[], MetricRecord | None] = lambda: None,
    ) -> None:
        self.measured = measured
        self.state, self.on_round, self.on_pruned = state, on_round, on_pruned
        self.downlink: Downlink = Downlink(state) if downlink is None else downlink
        if clock is None:
            clients = len(settings.terms)
            most = settings.clients_per_round if settings.server_noise is None else clients
            clock = SimulatedClock(Participation(clients=clients, per_round=most, seed=state.seed))
        self.exchange = _exchange_of(settings)(
            Expectations(state=state, settings=settings), self.downlink, clock
        )
        self._patience = Patience(len(settings.terms))
        self._sent = time.monotonic()

    @property
    def settings(self) -> FederationSettings:
        """Public constants of the federation."""
        return self.exchange.expectations.settings

    def join(self, roster: Roster, copies: LedgerCopies) -> None:
        """Train with the nodes of a deployment, whose ledgers the server has as ``copies``."""
        self.exchange.join(roster, copies)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One announcement for each selected client; before the first round, the pruning round."""
        self.exchange.connect(grid)
        if self.state.awaits_pruning:
            self._prune()
        plan = self.state.plan(self.settings.local, self.settings.sums, self.settings.unit)
        try:
            selected = self.exchange.select(plan)
        except BudgetError as error:
            raise BudgetSpentError(
                f"the privacy budget was spent before round {plan.round}"
            ) from error
        messages = self.exchange.begin(plan, selected)
        self._sent = time.monotonic()
        return messages

    def _prune(self) -> None:
        """Noisy saliencies of every client. Clients without a valid reply are left out, down to
        min_survivors.
        """
        terms, least = self.settings.terms, self.settings.min_survivors
        plan = self.state.plan(self.settings.local, self.settings.sums, self.settings.unit)
        received = self.exchange.run(plan, range(len(terms)))
        if len(received.clients) >= least:
            self.downlink.prune(plan.frame, received.updates, num_examples=sum(sizes_of(terms)))
        report = self.exchange.end(received.clients)
        self.on_pruned(report)
        if self.state.awaits_pruning:
            missing = (
                f"expected at least {least} clients in the pruning round, {len(received.clients)} "
                f"replied: client {report.reasons}"
            )
            raise BudgetSpentError(missing) if report.budget_spent else RuntimeError(missing)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check every reply, update the model, report."""
        exchange = self.exchange
        exchange.report.waiting += time.monotonic() - self._sent
        received = exchange.collect(replies)
        while not received.clients and exchange.worth_repeating:
            self._patience.count(exchange.report, updated=False)
            if self._patience.empty >= MAX_EMPTY_ROUNDS:
                break  # the round asked one client alone: the next round asks others
            received = exchange.run_again()
        updates = received.updates if len(received.clients) >= self.settings.least_clients else []
        plan = exchange.plan
        with refuse_divergence(self.state, plan.round):
            self.downlink.finish_round(plan.frame, updates, received.noise_std)
        exchange.finish()
        report = exchange.end(received.clients)
        self.on_round(report)
        self._patience.count(report, updated=bool(updates))
        return flat_record(self.state.weights), self.measured()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: the server measures the accuracy, on the public test split."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """None, see ``configure_evaluate``."""
        return None

    def summary(self) -> None:
        """Log method and frame."""
        frame = self.state.frame(self.state.round + 1)  # of training, also before a pruning round
        log(
            INFO,
            "method %s: %d of %d coordinates kept, %d carried layers, divisor %g",
            self.state.method.name,
            frame.kept,
            frame.dense_size,
            len(self.state.public.carried),
            self.state.divisor,
        )


def _exchange_of(settings: FederationSettings) -> type[Exchange]:
    """The exchange of a federation: of payloads, of a secure sum, or of a server with noise."""
    if settings.server_noise is not None:
        return ServerNoiseExchange
    return Exchange if settings.sums is None else SecureExchange


@contextmanager
def refuse_divergence(state: ServerState, round: int) -> Iterator[None]:
    """Raise DivergedError if the update inside overflows, or leaves numbers that are not finite."""
    try:
        yield
    # torch: "value cannot be converted to type float without overflow"
    except (RuntimeError, OverflowError) as error:
        if "overflow" not in str(error):
            raise
        raise DivergedError(f"round {round} left an update that overflows ({error})") from error
    _check_finite(state, round)


def _check_finite(state: ServerState, round: int) -> None:
    """Raise DivergedError for weights or optimizer state that are not finite."""
    for name, parameter in trainable(state.model).items():
        if not bool(parameter.isfinite().all()):
            raise DivergedError(f"round {round} left weights that are not finite ({name})")
        for value in state.optimizer.state.get(parameter, {}).values():
            if hasattr(value, "isfinite") and not bool(value.isfinite().all()):
                raise DivergedError(
                    f"round {round} left the optimizer with numbers that are not finite ({name})"
                )
