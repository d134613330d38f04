"""``fedlsg.flower.PrivateUpdates``: any Flower strategy, over private payloads of whole updates."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Literal

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Bulyan, FedMedian, FedTrimmedAvg, Krum, MultiKrum, Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from torch import Tensor, nn

from fedlsg.accounting import calibrate_noise_multiplier
from fedlsg.payload import DEFAULT_CODEC, PayloadError
from fedlsg.secure_sum.discrete import SumTerms, most_log_ratio
from fedlsg.simulations.client.node.other_replies import WITHOUT_NOISE
from fedlsg.simulations.flower_apps.client import note_other_torch
from fedlsg.simulations.flower_apps.hiding_noise import SWAMPED, pull_of, why_hidden
from fedlsg.simulations.flower_apps.secure_update import (
    SecureRound,
    new_run,
    payload_of,
    refuse_without_mod,
)
from fedlsg.simulations.flower_apps.whole_update import (
    DOWNLINK_EACH,
    KEY,
    OURS,
    UPLINK_EACH,
    Round,
    RoundTerms,
    Trust,
    as_arrays,
    check_door,
    check_whole,
    dense_bytes,
    folder_of,
    settings_text,
)
from fedlsg.simulations.server.server_app import last_line
from fedlsg.user_code.short_traceback import short_traceback

Unit = Literal["client", "example"]
COMPARING = (Bulyan, FedMedian, FedTrimmedAvg, Krum, MultiKrum)
"""Strategies that compare the updates of clients with each other."""
NOTHING = (
    "no round changed the weights, and Result.arrays is empty: the log of the first round says why "
    "clients refused"
)
"""The warning for a run without any update."""
SPARE = 10
"""By default, one in so many clients may drop out of a secure sum, or read together with others."""


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """The settings that all rounds share, as arguments of ``PrivateUpdates``.

    ``own``: the settings of the method. Raises ValueError for settings that do not fit.
    """

    method: str
    own: Mapping[str, Any]
    unit: Unit
    epsilon: float | None
    noise_multiplier: float | None
    delta: float
    clip_norm: float
    trust: Trust
    min_survivors: int | None
    colluders: int | None
    codec: str
    seed: int

    def __post_init__(self) -> None:
        unit, epsilon, noise_multiplier = self.unit, self.epsilon, self.noise_multiplier
        if unit not in ("client", "example"):
            raise ValueError(f"expected {unit=} to be 'client' or 'example'")
        if unit == "client" and (epsilon is None) == (noise_multiplier is None):
            raise ValueError("give epsilon=, or noise_multiplier=, and not both")
        if unit == "example" and (epsilon, noise_multiplier) != (None, None):
            raise ValueError(
                "unit='example': the noise is in the clients' PrivateStep; leave out epsilon and "
                "noise_multiplier"
            )
        check_whole(
            seed=(self.seed, 0),
            min_survivors=(self.min_survivors, 2),
            colluders=(self.colluders, 1),
        )
        if self.secure and (unit == "example" or self.codec != DEFAULT_CODEC):
            raise ValueError(
                "trust='secure' adds whole updates on a grid: it needs unit='client', and has no "
                "codec; leave codec out"
            )
        if not self.secure and (self.min_survivors, self.colluders) != (None, None):
            raise ValueError("min_survivors and colluders are of secure sums: give trust='secure'")
        alone = replace(self.terms(1, 1, noise_multiplier or 1.0, 1), trust="client")
        mechanism = alone.recipe().mechanism
        if unit == "client" and not mechanism.private:
            raise ValueError(
                f"mechanism={mechanism.kind!r} has no epsilon, and every client would refuse it: "
                "leave it out"
            )

    @property
    def secure(self) -> bool:
        """Whether the server learns only the sum of the updates."""
        return self.trust == "secure"

    def check_strategy(self, strategy: FlowerStrategy) -> None:
        """Raise ValueError for a strategy that needs single updates, if it gets only their mean."""
        if self.secure and isinstance(strategy, COMPARING):
            raise ValueError(
                f"{type(strategy).__name__} compares the clients' updates, and trust='secure' "
                "shows it their mean alone: give trust='client', or another strategy"
            )

    def calibrated(self, rounds: int) -> float | None:
        """The noise multiplier that spends epsilon in so many rounds; that of the user without it.

        In a secure sum noise on a grid costs ``log_ratio`` more. Its bound depends on delta alone,
        so any numbers of clients serve.
        """
        if self.epsilon is None:
            return self.noise_multiplier
        sums = SumTerms(
            clients=3,
            min_survivors=3,
            colluders=1,
            expected_examples=3,
            releases=rounds,
            delta=self.delta,
        )
        return calibrate_noise_multiplier(
            epsilon=self.epsilon,
            delta=self.delta,
            sample_rate=1.0,
            steps=rounds,
            log_ratio=most_log_ratio(sums) if self.secure else 0.0,
        )

    def terms(self, round: int, rounds: int, noise: float | None, clients: int) -> RoundTerms:
        """The terms of a round of so many clients with this noise multiplier."""
        settings = dict(self.own)
        if self.unit == "client":
            settings |= {"clip_norm": self.clip_norm}
        else:
            settings |= {"mechanism": "none"}
        if noise is not None:
            settings["noise_multiplier"] = noise
        terms = RoundTerms(
            method=self.method,
            settings=settings_text(settings),
            unit=self.unit,
            round=round,
            rounds=rounds,
            seed=self.seed,
            codec=self.codec,
            delta=self.delta,
            trust=self.trust,
        )
        if not self.secure:
            return terms
        spare = clients // SPARE
        return replace(
            terms,
            min_survivors=clients - spare if self.min_survivors is None else self.min_survivors,
            colluders=max(1, spare) if self.colluders is None else self.colluders,
        )

    def swamped(self, clients: int, rounds: int, noise: float | None, *, values: int) -> str | None:
        """A warning if noise is likely to hide updates of so many values; else None."""
        if self.unit == "example" or not noise:
            return None
        pull = pull_of(noise, clients=clients, rounds=rounds, secure=self.secure)
        reason = why_hidden(pull, values)
        if reason is None:
            return None
        fixes = ["more clients" if self.secure else "trust='secure', or more clients"]
        if pull >= SWAMPED:
            fixes.append("a method that sends fewer values (method='lsg')")
        return (
            f"noise is likely to hide the updates of {clients} clients: {reason}. Give "
            f"{', '.join(fixes)}, a larger epsilon, or unit='example'"
        )


class PrivateUpdates(FlowerStrategy):
    """A wrapper of a strategy, which chooses nodes, weighs, averages and evaluates as before.

        strategy = fedlsg.flower.PrivateUpdates(
            FedAvg(fraction_train=0.5), Net, epsilon=8.0, method="lsg", rank=4
        )
        result = strategy.start(grid, initial_arrays, num_rounds=30)

    strategy: any strategy of Flower, or a subclass, that takes an ArrayRecord and a MetricRecord
        from each reply. It sees W_t plus what each payload is rebuilt to (Eq. 3), so whatever it
        does is post-processing.
    model: builds the app's model, as ``private_update`` has it.
    method: a recipe whose frame follows from the weights: dpsgd, rs, lsg, rgp-random, ...;
        ``settings`` are its own (rank, sparsity, ...).
    unit: "client" for clients with ``private_update``, "example" for clients that train with
        ``PrivateStep`` and answer with ``fedlsg.flower.reply``; their own noise is all there is,
        and epsilon is theirs.
    trust: "client", each payload is private alone, or "secure", where clients accept it: each adds
        a share of noise, the server learns the sum of at least ``min_survivors`` (nine in ten), and
        ``colluders`` clients may read together (one in ten). The strategy inside then gets one
        reply, the mean.
    epsilon: calibrates the noise of ``num_rounds`` rounds, each of which may ask all clients;
        noise_multiplier sets it. A client takes part only within a budget of its own.
    clip_norm: of a whole update, in units of the weights.
    record: in a simulation with trust="secure", the folder of ``private_update(record=...)``, for
        ``fedlsg attack``.

    ``Result.train_metrics_clientapp`` has uplink_bytes, downlink_bytes (all clients together, and
    ``..._per_client``) and clients of each round, epsilon, the largest that a client has said so
    far, and replies_without_noise: the most replies that one client had sent before, which no
    epsilon covers.
    Raises ValueError for settings that do not fit.
    """

    def __init__(
        self,
        strategy: FlowerStrategy,
        model: Callable[[], nn.Module],
        *,
        method: str = "dpsgd",
        unit: Unit = "client",
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float = 1e-5,
        clip_norm: float = 1.0,
        trust: Trust = "client",
        min_survivors: int | None = None,
        colluders: int | None = None,
        codec: str = DEFAULT_CODEC,
        seed: int = 0,
        record: str | Path | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(strategy, FlowerStrategy):
            raise ValueError(
                "expected a flwr.serverapp.strategy.Strategy to wrap, got "
                f"{type(strategy).__name__}"
            )
        check_door(model, epsilon, delta, trust)
        note_other_torch()
        self.strategy, self.model = strategy, model
        self.epsilon, self.noise_multiplier, self.delta = epsilon, noise_multiplier, delta
        self.settings = UpdateSettings(
            method=method,
            own=settings,
            unit=unit,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            delta=delta,
            clip_norm=clip_norm,
            trust=trust,
            min_survivors=min_survivors,
            colluders=colluders,
            codec=codec,
            seed=seed,
        )
        self.settings.check_strategy(strategy)
        self._record = folder_of(record, "record")
        # the number of rounds; None before ``start``
        self._rounds: int | None = None
        # the largest epsilon that a client has reported
        self._spent = 0.0
        # the name of the run in secure sums; empty before ``start``
        self._run = b""
        # the current round; None before the first
        self._round: Round | None = None
        # the secure sum of the current round; None without one
        self._sum: SecureRound | None = None

    @short_traceback
    @last_line()
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """As Flower's own ``start``. It computes the noise multiplier for ``num_rounds`` rounds.

        Raises RuntimeError if no client has fedlsg's mod.
        """
        self._rounds, self._run, self._spent = num_rounds, new_run(), 0.0
        self.noise_multiplier = self.settings.calibrated(num_rounds)
        result = super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )
        if not result.arrays:
            log(WARNING, "fedlsg: %s", NOTHING)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy inside, with the terms of the round.

        Raises ValueError for weights of another model.
        """
        settings, noise = self.settings, self.noise_multiplier
        if settings.unit == "client" and noise is None:
            raise RuntimeError(
                "epsilon= needs the number of rounds: call start(), or give noise_multiplier="
            )
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        if not messages:
            return messages
        rounds = max(self._rounds or 1, server_round)
        here = Round.of(
            self.model, arrays, settings.terms(server_round, rounds, noise, len(messages))
        )
        # a codec that cannot pack is found before any client is charged
        if not settings.secure:
            here.unpack(here.pack(torch.zeros(here.frame.kept), 0), 0)
        if server_round == 1:
            warning = settings.swamped(len(messages), rounds, noise, values=here.frame.kept)
            if warning is not None:
                log(WARNING, "fedlsg: %s", warning)
        here = replace(here, terms=replace(here.terms, digest=here.frame.digest.hex()))
        self._round = here
        for message in messages:
            message.content = RecordDict({**message.content, KEY: here.terms.record()})
        if not settings.secure:
            return messages
        self._sum = SecureRound(grid, here, self._run or new_run(), messages)
        return self._sum.begin()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Rebuild each client's weights, or the mean of a secure sum, for the strategy inside.

        A reply without a payload of this round is left out by name. Raises RuntimeError if no
        client has fedlsg's mod.
        """
        here = self._round
        replies = list(replies)
        refuse_without_mod(replies)
        if here is None or not replies:
            return self.strategy.aggregate_train(server_round, replies)
        sent: dict[int, Message] = {}
        payloads: dict[int, bytes] = {}
        for message in replies:
            payload = payload_of(message)
            if payload is not None:
                node = message.metadata.src_node_id
                sent[node], payloads[node] = message, payload
        rebuilt = [message for message in replies if message.has_error()]
        updates = self._updates(here, payloads)
        for node, update in updates.items():
            message = sent[node]
            records = {name: record for name, record in message.content.items() if name not in OURS}
            message.content = RecordDict({**records, "arrays": as_arrays(here.rebuilt(update))})
            rebuilt.append(message)
        arrays, metrics = self.strategy.aggregate_train(server_round, rebuilt)
        if not updates:
            return arrays, metrics
        metrics = MetricRecord() if metrics is None else metrics
        self._spent = max(self._spent, *map(spent_of, sent.values()))
        metrics["epsilon"] = self._spent
        metrics[WITHOUT_NOISE] = max(map(others_of, sent.values()))
        metrics["clients"] = len(payloads)
        uplink_bytes = sum(map(len, payloads.values()))
        metrics["uplink_bytes"] = uplink_bytes
        metrics["downlink_bytes"] = dense_bytes(here.before) * len(payloads)
        metrics[UPLINK_EACH] = uplink_bytes / len(payloads)
        metrics[DOWNLINK_EACH] = dense_bytes(here.before)
        return arrays, metrics

    def _updates(self, here: Round, payloads: dict[int, bytes]) -> dict[int, Tensor]:
        """The updates by node; of a secure sum their mean, under the first of its nodes."""
        if self._sum is not None:
            mean = self._sum.mean(payloads)
            if mean is None:
                return {}
            if self._record is not None:
                self._sum.keep(self._record, mean)
            return {next(iter(payloads)): mean.float()}
        updates = {}
        for node, payload in payloads.items():
            try:
                updates[node] = here.unpack(payload, node)
            except PayloadError as error:
                log(WARNING, "node %s is left out: %s", node, str(error)[:300])
        return updates

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy inside. Clients refuse unless owners allow replies without noise."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the strategy inside, with epsilon and the number of replies that it does not cover."""
        replies = list(replies)
        metrics = self.strategy.aggregate_evaluate(server_round, replies)
        without_noise = sum(not reply.has_error() for reply in replies)
        if metrics is not None and without_noise:
            metrics["epsilon"], metrics[WITHOUT_NOISE] = self._spent, without_noise
        return metrics

    def summary(self) -> None:
        """Log the privacy of the updates, then the strategy inside."""
        method, unit = self.settings.method, self.settings.unit
        if unit == "example":
            noise = "by PrivateStep"
        else:
            noise = f"noise multiplier {self.noise_multiplier:.4g}"
        log(INFO, "\t├──> Private updates: %s, %s, for one %s", method, noise, unit)
        if growth := self.settings.terms(1, 1, self.noise_multiplier, 2).recipe().mask.growth:
            log(INFO, "\t├──> Mask: %s", growth)
        self.strategy.summary()


def spent_of(reply: Message) -> float:
    """The epsilon that a client reports as spent; infinite if it reports none."""
    value = _reported(reply, "epsilon")
    return float(value) if isinstance(value, int | float) else math.inf


def others_of(reply: Message) -> int:
    """The number of replies without noise that a client reports; 0 if it reports none."""
    value = _reported(reply, WITHOUT_NOISE)
    return value if isinstance(value, int) else 0


def _reported(reply: Message, name: str) -> object:
    """A number in a reply; None without it."""
    numbers = next(iter(reply.content.metric_records.values()), None)
    return None if numbers is None else numbers.get(name)
