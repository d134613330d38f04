"""Callbacks: code that the server calls when a run begins, after each round, and when it ends.

A callback sees only public values: settings, rows of rounds.csv, the model, the summary. So it
costs no epsilon. Under trust=server rows and summary have no bytes, counts and times
(``fedlsg.simulations.storage.declared``). But a round that is chosen by its test accuracy is chosen
on the test split: that accuracy is too high for new data.

``named_callbacks`` has the callbacks of fedlsg, and the setting ``callbacks``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any

Columns = Mapping[str, Any]
"""A row of rounds.csv by column; None in rounds that were not evaluated."""
Directions = Mapping[str, bool | None]
"""What is measured on the test splits, by column: whether more is better, None if nobody knows."""


class StopRun(Exception):  # noqa: N818 - a signal, as StopIteration is
    """Raised by a callback to end the run: all its files are written, with ``reason`` in them."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A run as callbacks see it.

    ``path``: its directory.
    ``settings``: as in config.toml.
    ``rows``: of the rounds that an earlier process finished.
    ``directions``: as in ``Callback.on_plan``.
    ``save_model(folder)``: write the model as it is now, as the run itself does at its end.
    """

    path: Path
    settings: Columns
    rows: Sequence[Columns]
    directions: Directions
    save_model: Callable[[Path], None]


class Callback:
    """Override what you need. An exception other than StopRun ends the run, which ``fedlsg resume``
    continues.
    """

    def on_plan(self, directions: Directions) -> None:
        """Before a new run is written or charged: raise ValueError if its columns do not fit."""

    def on_begin(self, run: Watched) -> None:
        """Before the first round of this process; ``on_round`` does not get ``run.rows`` again."""

    def on_round(self, row: dict[str, Any]) -> None:
        """After each round, when its row and checkpoint are on disk."""

    def on_end(self, summary: Columns) -> None:
        """After the last round, or when the run was stopped; its files are written."""

    def on_failure(self, error: BaseException) -> None:
        """When an error, or Ctrl-C, ends the process before the run; it is raised again after."""


class Function(Callback):
    """A function of a row as a callback."""

    def __init__(self, function: Callable[[dict[str, Any]], object]) -> None:
        self._function = function

    def on_round(self, row: dict[str, Any]) -> None:
        self._function(row)


class CallbackList(Callback):
    """Several callbacks as one, called in their order; each gets its own copy of a row.

    A method of ``Callback`` that this class does not define calls each of them (``call_each``). A
    callback whose ``on_begin`` was not called gets no ``on_end`` and no ``on_failure``. StopRun
    ends a run between two rounds: raised within a round, it waits for the next ``on_round``, when
    row and checkpoint are on disk.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        self._begun: list[Callback] = []
        self._stop: StopRun | None = None

    def call_each(self, method: str, *arguments: Any) -> None:
        """Call a method of every callback with its own copies; StopRun waits until all returned."""
        for callback in self._callbacks:
            try:
                getattr(callback, method)(*map(copy, arguments))
            except StopRun as stop:
                self._stop = self._stop or stop

    @contextmanager
    def report_failure(self) -> Iterator[None]:
        """Call ``on_failure`` for an exception that leaves the block, and raise it again."""
        try:
            yield
        except BaseException as error:
            self.on_failure(error)
            raise

    def on_begin(self, run: Watched) -> None:
        for callback in self._callbacks:
            self._begun.append(callback)
            callback.on_begin(run)

    def on_round(self, row: dict[str, Any]) -> None:
        """Give every callback the row, also those after a callback that stops the run."""
        self.call_each("on_round", row)
        if self._stop is not None:
            raise self._stop

    def on_end(self, summary: Columns) -> None:
        """Give each callback its own copy of the summary. StopRun means nothing any more."""
        while self._begun:
            with suppress(StopRun):
                self._begun.pop(0).on_end(deepcopy(dict(summary)))

    def on_failure(self, error: BaseException) -> None:
        while self._begun:
            with suppress(Exception):  # the error that ended the run is the one to show
                self._begun.pop(0).on_failure(error)


for _method in vars(Callback).keys() - vars(CallbackList).keys():
    if _method.startswith("on_"):  # the inherited method would do nothing
        setattr(CallbackList, _method, partialmethod(CallbackList.call_each, _method))


def as_callbacks(given: object) -> tuple[Callback, ...]:
    """Callbacks, and functions of a row, as callbacks. Raises ValueError for anything else."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(
            f"callbacks={type(given).__name__}: expected a list of callbacks or of functions of a "
            "dict"
        )
    return tuple(_as_callback(callback) for callback in given)


def _as_callback(given: Any) -> Callback:
    if isinstance(given, Callback):
        return given
    if isinstance(given, type) and issubclass(given, Callback):
        raise ValueError(f"callbacks: expected an instance, {given.__name__}(), and got the class")
    if not callable(given):
        raise ValueError(
            f"callbacks holds {type(given).__name__}: expected a Callback or a function of a dict"
        )
    return Function(given)
