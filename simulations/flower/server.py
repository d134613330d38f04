"""``fedlsg.flower.Strategy``: the server of a Flower app whose clients train a workload of its own, privately."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

import strategies
from simulations.api.finished import Run
from simulations.callbacks.callback import Callback, as_callbacks
from simulations.flower.announced import AnnouncingGrid, announcement
from simulations.flower.client import OWN_CODE, code_digest, give
from simulations.rundir.rundir import create
from simulations.rundir.tables import Row
from simulations.server.app import run_on
from simulations.settings.published import resolve
from simulations.settings.settings import AUTO, RUN, Settings, as_config, from_mapping, permit_code
from simulations.workloads import Workload

WORDS = ("asked", "answered", "rejected", "reasons", "dropped", "late")
"""Columns of rounds.csv that are no numbers."""


class Strategy:
    """Private, sparse, low-rank training in somebody's ServerApp.

        strategy = fedlsg.flower.Strategy(workload, method="lsg", epsilon=8.0)
        result = strategy.start(grid, num_rounds=10)
        result.arrays.to_torch_state_dict()      the trained model

    workload: as in ``fedlsg.flower.client_app``, the same on both sides. Its ``test`` is public: the server measures
        accuracy and loss on it. method: the name of a recipe, or a recipe, which ``client_app(methods=...)`` gets, too.
    out: the run directory; default ``runs/<time>-<workload>-<method>`` in the process's working directory.
    callbacks: as in ``fedlsg.simulate``.
    settings: any setting of ``fedlsg settings``. Clients get them with each message, so no key of the app's run config
        is read. Without ``clients`` each node is a client.
    Raises ValueError for a bad setting, with the fix.
    """

    def __init__(
        self,
        workload: Workload | Callable[[], Workload],
        *,
        method: str | Callable[..., Any] = "auto",
        out: str | Path | None = None,
        callbacks: str | Sequence[Callback | Callable[[dict[str, Any]], object]] = (),
        **settings: Any,
    ) -> None:
        if isinstance(callbacks, str):
            settings["callbacks"], callbacks = callbacks, ()
        self.callbacks, self.out = (
            as_callbacks(callbacks),
            None if out is None else str(Path(out).expanduser().resolve()),
        )
        name = method if isinstance(method, str) else method.__name__
        if not isinstance(method, str):
            strategies.give(name, method)
        if name != AUTO:
            strategies.check_name(name)
        permit_code({**settings, "method": name})
        self.settings: Settings = from_mapping(resolve({**settings, "workload": give(workload), "method": name}))
        self.run: Run | None = None

    def start(
        self,
        grid: Grid,
        num_rounds: int | None = None,
        timeout: float = 3600.0,
    ) -> Result:
        """Run all rounds on a Flower grid; the result has the trained weights and what was measured in each round.

        The initial weights are those of the workload's model: load a checkpoint in its function. Metrics of an
        ``evaluate_fn`` belong to the workload (``metrics=``). ``Strategy.run`` is the ``fedlsg.Run`` afterwards.
        Raises RuntimeError if clients are missing or the run diverged, ValueError for settings that no run accepts.
        """
        settings = replace(self.settings, engine="flower", round_timeout=timeout)
        settings = settings if num_rounds is None else replace(settings, rounds=num_rounds)
        if self.out is not None:
            settings = replace(settings, run_dir=str(create(self.out, settings).path))
        said = {**not_default(settings), OWN_CODE: code_digest(settings.workload, settings.method)}
        rows: list[Row] = []

        plan, directory = run_on(
            grid, settings, on_round=rows.append, callbacks=self.callbacks,
            announce=lambda inner: AnnouncingGrid(inner, announcement(said)),
        )  # fmt: skip
        self.run = Run(directory.path, plan=plan)
        return Result(
            arrays=ArrayRecord(self.run.model.state_dict()),
            evaluate_metrics_serverapp={row.round: MetricRecord(numbers(row)) for row in rows},
        )


def not_default(settings: Settings) -> dict[str, str | int | float | bool]:
    """The settings that differ from their defaults: what clients need to be told; and the method in any case.

    Callbacks are the server's alone: their files and parameters are told to nobody.
    """
    defaults = {name.replace("_", "-"): one.default for name, one in RUN.items() if name != "method"}
    return {
        name: value
        for name, value in as_config(settings).items()
        if value != defaults.get(name) and name != "callbacks"
    }


def numbers(row: Row) -> dict[str, int | float | list[int] | list[float]]:
    """The numbers of a round, without those that were not measured."""
    named = {name: value for name, value in row.columns.items() if name not in (*WORDS, "round")}
    return {name: float(value) for name, value in named.items() if value is not None}
