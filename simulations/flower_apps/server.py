"""``fedlsg.flower.Strategy``: the server of a Flower app that trains its own workload privately.

Arguments of ``FedAvg`` are translated, or refused with the setting to use instead.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from fedlsg import strategies
from fedlsg.config.foreign import EVALUATES, our_names
from fedlsg.simulations.flower_apps.client import (
    OWN_CODE,
    AnnouncingGrid,
    announcement,
    code_digest,
    give,
    note_other_torch,
)
from fedlsg.simulations.run.finished import Run
from fedlsg.simulations.server.callbacks import Callback, as_callbacks
from fedlsg.simulations.server.server_app import last_line, run_on
from fedlsg.simulations.settings.settings import (
    AUTO,
    RUN,
    Settings,
    all_settings,
    as_config,
    check_arguments,
    permit_code,
)
from fedlsg.simulations.settings.with_preset import resolve
from fedlsg.simulations.storage.lock import create
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.workloads import Workload
from fedlsg.strategies.strategy import FedLSG
from fedlsg.user_code import is_reference
from fedlsg.user_code.short_traceback import short_traceback


def translated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with FedAvg's arguments translated.

    ``min_available_nodes`` becomes ``clients``, and ``fraction_train`` of ``clients`` becomes
    ``clients_per_round``, unless these are given. Arguments without a counterpart are left for
    ``check_arguments``, which refuses them.
    """
    ours = dict(settings)
    if ours.get("fraction_evaluate") == 0.0:
        del ours["fraction_evaluate"]
    clients = ours.pop("min_available_nodes", ours.pop("min_available_clients", None))
    if clients is not None:
        ours.setdefault("clients", clients)
    share = ours.pop("fraction_train", ours.pop("fraction_fit", None))
    if share is not None and share != 1.0:
        if not 0 < share < 1:
            raise ValueError(f"expected 0 < fraction_train={share!r} <= 1")
        if ours.get("clients") is None:
            raise ValueError(
                f"fraction_train={share} of how many clients? Give clients= as well, or "
                "clients_per_round= in its place"
            )
        ours.setdefault("clients_per_round", max(1, int(share * ours["clients"])))
    return ours


def check_configs(
    initial_arrays: ArrayRecord | None,
    train_config: ConfigRecord | None,
    evaluate_config: ConfigRecord | None,
) -> None:
    """Raise ValueError for arguments of ``start`` that fedlsg has in another place."""
    if initial_arrays is not None:
        raise ValueError(
            "initial_arrays: the initial weights are those of the workload's model, which server "
            "and clients build alike; load a checkpoint in the function that builds it, and leave "
            "initial_arrays out"
        )
    if train_config:
        known = all_settings()
        examples = []
        for key in train_config:
            names = our_names(key, known)
            if names:
                examples.append(f"{key} as {' or '.join(names)}")
        example = ", ".join(examples) or "the learning rate as learning_rate"
        raise ValueError(
            f"train_config has {', '.join(train_config)}: settings of training are arguments of "
            f"Strategy, {example}; no key is read by clients"
        )
    if evaluate_config:
        raise ValueError(
            f"evaluate_config has {', '.join(evaluate_config)}: {EVALUATES}, and no client does"
        )


SCORES = ("accuracy", "loss")
"""Numbers of a row that are scores, next to the workload's own metrics."""


class Strategy(FlowerStrategy):
    """Private, sparse, low-rank training as a strategy of Flower, for a user's ServerApp.

        strategy = fedlsg.flower.Strategy(workload, method="lsg", epsilon=8.0)
        result = strategy.start(grid, num_rounds=10)
        result.arrays.to_torch_state_dict()      the trained model

    workload: as in ``fedlsg.flower.client_app``, the same on both sides. Its ``test`` is public:
        the server measures accuracy and loss on it. method: the name of a recipe, or a recipe,
        which ``client_app(methods=...)`` gets, too.
    out: the run directory; default ``runs/<time>-<workload>-<method>`` in the process's working
    directory.
    callbacks: as in ``fedlsg.simulate``.
    settings: any setting of ``fedlsg settings``. Clients get them with each message, so no key of
        the app's run config is read. Without ``clients`` each node is a client. Arguments of
        ``FedAvg`` work where they mean the same here (``fraction_train``, ``min_available_nodes``);
        for the others the error says which setting takes their place.
    A subclass may extend ``configure_train``, ``aggregate_train`` and the like: they are called in
    every round of ``start``. A wrapper that calls them without ``start`` gets a RuntimeError.
    Raises ValueError for a bad setting, with the fix.
    """

    @short_traceback
    @last_line()
    def __init__(
        self,
        workload: Workload | Callable[[], Workload],
        *,
        method: str | Callable[..., Any] = "auto",
        out: str | Path | None = None,
        callbacks: str | Sequence[Callback | Callable[[dict[str, Any]], object]] = (),
        **settings: Any,
    ) -> None:
        note_other_torch()
        if isinstance(callbacks, str):
            settings["callbacks"], callbacks = callbacks, ()
        self.callbacks = as_callbacks(callbacks)
        if not isinstance(out, str | Path | None):
            raise ValueError(f"out={out!r}: expected the path of a new folder")
        if not (isinstance(method, str) or callable(method)):
            raise ValueError(
                f"method={method!r}: expected the name of a recipe, or a function that makes one"
            )
        self.out = None if out is None else str(Path(out).expanduser().resolve())
        name = method if isinstance(method, str) else method.__name__
        if not isinstance(method, str):
            strategies.give(name, method)
        if name != AUTO:
            strategies.check_name(name)
        ours = translated(settings)
        if not is_reference(name):
            check_arguments(ours, ("workload", "method", "out", "callbacks"))
        workload_name = give(workload)
        permit_code({**settings, "method": name})
        self.settings: Settings = resolve({**ours, "workload": workload_name, "method": name})
        self.run: Run | None = None
        # the strategy of the current run; None outside of ``start``
        self._inner: FedLSG | None = None

    @short_traceback
    @last_line()
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds on a Flower grid; returns the trained weights and the scores of rounds.

        ``Result.evaluate_metrics_serverapp`` has accuracy, loss and the workload's metrics by
        round, those before the first under 0, and what ``evaluate_fn(round, arrays)`` returns,
        which gets the model that is evaluated here; ``train_metrics_clientapp`` also has epsilon,
        bytes and numbers of clients. ``Strategy.run`` is the ``fedlsg.Run`` afterwards. A second
        ``start`` makes a second run: without ``out``, in a new directory. The initial weights are
        those of the workload's model: load a checkpoint in its function.
        Raises RuntimeError if clients are missing or the run diverged, ValueError for settings that
        no run accepts, for ``initial_arrays``, and for a ``train_config`` or ``evaluate_config``
        with keys.
        """
        check_configs(initial_arrays, train_config, evaluate_config)
        if num_rounds is not None and (type(num_rounds) is not int or num_rounds < 1):
            raise ValueError(
                f"expected num_rounds={num_rounds!r} to be a whole number of 1 or more"
            )
        settings = replace(self.settings, engine="flower", round_timeout=timeout)
        settings = settings if num_rounds is None else replace(settings, rounds=num_rounds)
        if self.out is not None:
            settings = replace(settings, run_dir=str(create(self.out, settings).path))
        digest = code_digest(settings.workload, settings.method)
        record = announcement({**not_default(settings), OWN_CODE: digest})
        rows: list[Row] = []
        results: list[Result] = []

        def rounds(
            inner: FedLSG, grid: Grid, arrays: ArrayRecord, *, num_rounds: int, timeout: float
        ) -> None:
            self._inner = inner

            def evaluate(round: int, _: ArrayRecord) -> MetricRecord | None:
                scores = scores_of(rows[-1]) if rows else dict(inner.measured() or {})
                if evaluate_fn is not None:
                    with inner.state.evaluated() as model:
                        scores |= as_metrics(evaluate_fn(round, ArrayRecord(model.state_dict())))
                return MetricRecord(scores) if scores else None

            results.append(
                FlowerStrategy.start(
                    self, grid, arrays, num_rounds=num_rounds, timeout=timeout, evaluate_fn=evaluate
                )
            )

        try:
            plan, directory = run_on(
                grid,
                settings,
                on_round=rows.append,
                callbacks=self.callbacks,
                announce=lambda inner: AnnouncingGrid(inner, record),
                start=rounds,
            )
        finally:
            self._inner = None
        self.run = Run(directory.path, plan=plan)
        return self._result(results, rows)

    def _result(self, results: list[Result], rows: list[Row]) -> Result:
        """Flower's result with the run's numbers of rounds: in a resumed run Flower begins at 1."""
        assert self.run is not None
        result = results[0] if results else Result()
        rounds_before = rows[0].round - 1 if rows else 0
        evaluated = {
            round + rounds_before: record
            for round, record in result.evaluate_metrics_serverapp.items()
        }
        for row in rows:
            evaluated.setdefault(row.round, MetricRecord(scores_of(row)))
        result.evaluate_metrics_serverapp = evaluated
        result.train_metrics_clientapp = {
            row.round: MetricRecord(dict(row.numbers)) for row in rows
        }
        result.arrays = ArrayRecord(self.run.model.state_dict())
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The announcements of a round."""
        return self._rounds.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the payloads and update the model; returns flat weights and the round's numbers."""
        return self._rounds.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: the server evaluates, on the workload's public test rows."""
        return self._rounds.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """No metrics, see ``configure_evaluate``."""
        return self._rounds.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log method and frame."""
        self._rounds.summary()

    @property
    def _rounds(self) -> FedLSG:
        """The strategy of the current run."""
        if self._inner is None:
            raise RuntimeError(
                "fedlsg.flower.Strategy plans and records a run in its own start(grid, "
                "num_rounds=...), which was not called: subclass it, or give callbacks=, in place "
                "of a strategy that wraps it"
            )
        return self._inner


def as_metrics(returned: object) -> dict[str, Any]:
    """The metrics that ``evaluate_fn`` returned. Raises ValueError for another type."""
    if returned is None or isinstance(returned, MetricRecord | dict):
        return dict(returned or {})
    raise ValueError(
        f"evaluate_fn: expected a MetricRecord, a dict or None, got a {type(returned).__name__}"
    )


def scores_of(row: Row) -> dict[str, Any]:
    """Accuracy, loss and the workload's metrics of a round."""
    return {name: value for name, value in row.numbers.items() if name in (*SCORES, *row.metrics)}


def not_default(settings: Settings) -> dict[str, str | int | float | bool]:
    """The settings for clients: those that differ from their defaults, and the method.

    Callbacks are left out: only the server needs their files and parameters.
    """
    defaults = {
        name.replace("_", "-"): setting.default for name, setting in RUN.items() if name != "method"
    }
    return {
        name: value
        for name, value in as_config(settings).items()
        if value != defaults.get(name) and name != "callbacks"
    }
