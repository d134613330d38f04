"""``fedlsg.flower.PrivateUpdates``: any Flower strategy over clients whose whole updates are
private payloads.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
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
from fedlsg.simulations.flower_apps.client import note_other_torch
from fedlsg.simulations.flower_apps.secure_update import SecureRound, new_run, payload_of
from fedlsg.simulations.flower_apps.whole_update import (
    KEY,
    OURS,
    Round,
    RoundTerms,
    Trust,
    as_arrays,
    check_door,
    dense_bytes,
    folder_of,
    settings_text,
)

Unit = Literal["client", "example"]
SWAMPED = 20.0
"""How far updates of norm C may move a weight, next to noise: at 17 an app of 94 % was measured at
34 and 57 %.
"""
COMPARING = (Bulyan, FedMedian, FedTrimmedAvg, Krum, MultiKrum)
"""Strategies that compare what clients sent with each other."""
SPARE = 10
"""One in so many clients may drop out of a secure sum, or read together with others, unless the
user says.
"""


class PrivateUpdates(FlowerStrategy):
    """A wrapper: the strategy inside chooses nodes, weighs, averages and evaluates as it always
    does.

        strategy = fedlsg.flower.PrivateUpdates(FedAvg(fraction_train=0.5), Net, epsilon=8.0,
        method="lsg", rank=4) result = strategy.start(grid, initial_arrays, num_rounds=30)

    strategy: any strategy of Flower, or a subclass, that takes an ArrayRecord and a MetricRecord
        from each reply. It sees W_t plus what each payload is rebuilt to (Eq. 3), so whatever it
        does is post-processing.
    model: builds the app's model, as ``private_update`` has it. method: a recipe whose frame
        follows from the weights: dpsgd, rs, lsg, rgp-random, ...; ``settings`` are its own (rank,
        sparsity, ...).
    unit: "client" for clients with ``private_update``, "example" for clients that train with
        ``PrivateStep`` and answer with ``fedlsg.flower.reply``; their own noise is all there is,
        and epsilon is theirs.
    trust: "client", each payload is private alone, or "secure", where clients accept it: each adds
        a share of noise, the server learns the sum of at least ``min_survivors`` (nine in ten), and
        ``colluders`` clients may read together (one in ten). The strategy inside then gets one
        reply, the mean.
    epsilon: calibrates the noise of ``num_rounds`` rounds, each of which may ask all clients;
        noise_multiplier sets it. A client takes part only within a budget of its own. clip_norm: of
        a whole update, in units of the weights.
    record: in a simulation with trust="secure", the folder of ``private_update(record=...)``, for
    ``fedlsg attack``.
    ``Result.train_metrics_clientapp`` has uplink_bytes, downlink_bytes and clients of each round,
        and epsilon, the largest that a client has said so far.
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
        if unit not in ("client", "example"):
            raise ValueError(f"expected {unit=} to be 'client' or 'example'")
        if unit == "client" and (epsilon is None) == (noise_multiplier is None):
            raise ValueError("give epsilon=, or noise_multiplier=, and not both")
        if unit == "example" and (epsilon, noise_multiplier) != (None, None):
            raise ValueError(
                "unit='example': the noise is in the clients' PrivateStep; leave out epsilon and "
                "noise_multiplier"
            )
        check_door(
            model,
            epsilon,
            delta,
            trust,
            seed=(seed, 0),
            min_survivors=(min_survivors, 2),
            colluders=(colluders, 1),
        )
        note_other_torch()
        self.strategy, self.model = strategy, model
        self.epsilon, self.noise_multiplier, self.delta = epsilon, noise_multiplier, delta
        self._method, self._unit, self._codec, self._seed = method, unit, codec, seed
        self._settings = settings | (
            {"clip_norm": clip_norm} if unit == "client" else {"mechanism": "none"}
        )
        if trust == "secure" and (unit == "example" or codec != DEFAULT_CODEC):
            raise ValueError(
                "trust='secure' adds whole updates on a grid: it needs unit='client', and has no "
                "codec; leave codec out"
            )
        if trust == "secure" and isinstance(strategy, COMPARING):
            raise ValueError(
                f"{type(strategy).__name__} compares the clients' updates, and trust='secure' "
                "shows it their mean alone: give trust='client', or another strategy"
            )
        if trust == "client" and (min_survivors, colluders) != (None, None):
            raise ValueError("min_survivors and colluders are of secure sums: give trust='secure'")
        self._trust, self._survivors, self._colluders = trust, min_survivors, colluders
        self._record = folder_of(record, "record")
        self._rounds: int | None = None
        self._spent = 0.0
        self._run = b""
        self._round: Round | None = None
        self._sum: SecureRound | None = None
        tried = replace(self._terms(1, 1, noise_multiplier or 1.0, 1), trust="client")
        mechanism = tried.recipe().mechanism
        if unit == "client" and not mechanism.private:
            raise ValueError(
                f"mechanism={mechanism.kind!r} has no epsilon, and every client would refuse it: "
                "leave it out"
            )

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
        """As Flower's own. The noise multiplier for ``epsilon`` is found here, for
        ``num_rounds``.
        """
        self._rounds, self._run, self._spent = num_rounds, new_run(), 0.0
        if self._unit == "client" and self.epsilon is not None:
            secure = self._trust == "secure"
            sums = SumTerms(
                clients=3,
                min_survivors=3,
                colluders=1,
                expected_examples=3,
                releases=num_rounds,
                delta=self.delta,
            )
            self.noise_multiplier = calibrate_noise_multiplier(
                epsilon=self.epsilon,
                delta=self.delta,
                sample_rate=1.0,
                steps=num_rounds,
                log_ratio=most_log_ratio(sums) if secure else 0.0,
            )
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy inside, with the terms. Raises ValueError for weights of
        another model.
        """
        if self._unit == "client" and self.noise_multiplier is None:
            raise RuntimeError(
                "epsilon= needs the number of rounds: call start(), or give noise_multiplier="
            )
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        if not messages:
            return messages
        rounds = max(self._rounds or 1, server_round)
        terms = self._terms(server_round, rounds, self.noise_multiplier, len(messages))
        here = Round.of(self.model, arrays, terms)
        # a codec that cannot pack is found before any client is charged
        if self._trust == "client":
            here.unpack(here.pack(torch.zeros(here.frame.kept), 0), 0)
        if server_round == 1 and (said := self._swamped(len(messages), rounds)):
            log(WARNING, "fedlsg: %s", said)
        self._round = here = replace(here, terms=replace(terms, digest=here.frame.digest.hex()))
        for message in messages:
            message.content = RecordDict({**message.content, KEY: here.terms.record()})
        if self._trust == "client":
            return messages
        self._sum = SecureRound(grid, here, self._run or new_run(), messages)
        return self._sum.begin()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Rebuild what each client sent, or the mean of a secure sum, and let the strategy inside
        aggregate it.

        A reply that is no payload of this round is left out by name.
        """
        here, replies = self._round, list(replies)
        if here is None or not replies:
            return self.strategy.aggregate_train(server_round, replies)
        found = {
            m.metadata.src_node_id: (m, p) for m in replies if (p := payload_of(m)) is not None
        }
        values: dict[int, Tensor] = {}
        if self._sum is not None:
            mean = self._sum.mean({node: payload for node, (_, payload) in found.items()})
            values = {} if mean is None else {next(iter(found)): mean.float()}
            if mean is not None and self._record is not None:
                self._sum.keep(self._record, mean)
        else:
            for node, (_, payload) in found.items():
                try:
                    values[node] = here.unpack(payload, node)
                except PayloadError as error:
                    log(WARNING, "node %s is left out: %s", node, str(error)[:300])
        rebuilt = [message for message in replies if message.has_error()]
        for node, update in values.items():
            message = found[node][0]
            records = {name: record for name, record in message.content.items() if name not in OURS}
            message.content = RecordDict({**records, "arrays": as_arrays(here.rebuilt(update))})
            rebuilt.append(message)
        arrays, metrics = self.strategy.aggregate_train(server_round, rebuilt)
        if not values:
            return arrays, metrics
        metrics = MetricRecord() if metrics is None else metrics
        self._spent = max(self._spent, *(spent_of(message) for message, _ in found.values()))
        metrics["epsilon"] = self._spent
        metrics["clients"] = len(found)
        metrics["uplink_bytes"] = sum(len(payload) for _, payload in found.values())
        metrics["downlink_bytes"] = dense_bytes(here.before) * len(found)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy inside does. What clients reply to it is not covered by their ledgers."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the strategy inside does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the privacy of the updates, then the strategy inside."""
        noise = (
            "by PrivateStep"
            if self._unit == "example"
            else f"noise multiplier {self.noise_multiplier:.4g}"
        )
        log(INFO, "\t├──> Private updates: %s, one %s, %s", self._method, self._unit, noise)
        self.strategy.summary()

    def _swamped(self, clients: int, rounds: int) -> str | None:
        """A sentence where noise is likely to hide the updates: see ``SWAMPED``."""
        if self._unit == "example" or not self.noise_multiplier:
            return None
        secure = self._trust == "secure"
        pull = (
            math.sqrt(rounds) * (clients if secure else math.sqrt(clients)) / self.noise_multiplier
        )
        if pull >= SWAMPED:
            return None
        fix = "more clients" if secure else "trust='secure', or more clients"
        return (
            f"noise is likely to hide the updates of {clients} clients: in {rounds} rounds all of "
            f"them move a weight {pull:.2g} times as far as noise does, at most. Give {fix}, a "
            "larger epsilon, or unit='example'"
        )

    def _terms(self, round: int, rounds: int, noise: float | None, clients: int) -> RoundTerms:
        settings = (
            self._settings if noise is None else {**self._settings, "noise_multiplier": noise}
        )
        spare = clients // SPARE
        how: dict[str, Any] = {}
        if self._trust == "secure":
            how = {
                "min_survivors": clients - spare if self._survivors is None else self._survivors,
                "colluders": max(1, spare) if self._colluders is None else self._colluders,
            }
        return RoundTerms(
            method=self._method,
            settings=settings_text(settings),
            unit=self._unit,
            round=round,
            rounds=rounds,
            seed=self._seed,
            codec=self._codec,
            delta=self.delta,
            trust=self._trust,
            **how,
        )


def spent_of(reply: Message) -> float:
    """The epsilon that a client says it has spent; infinite if it says none."""
    numbers = next(iter(reply.content.metric_records.values()), None)
    value = None if numbers is None else numbers.get("epsilon")
    return float(value) if isinstance(value, int | float) else float("inf")
