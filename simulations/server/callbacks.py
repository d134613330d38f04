"""What runs around a run: code that the server calls when a run begins, after each round, and when
it ends.

A callback sees public values alone: settings, rows of rounds.csv, the model, the summary. What it
does costs no epsilon. (Under trust=server rows and summary have what
``fedlsg.simulations.storage.declared`` lists: no bytes, counts and times.) But a round that was
chosen by its test accuracy was chosen on the test split: that is too high for new data.

``named`` has the callbacks of fedlsg, and the setting ``callbacks``.
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
    """Raised by a callback: the run ends here, with ``reason`` in its summary, and everything of it
    is written.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A run as callbacks see it.

    ``path``: its directory.
    ``settings``: as in config.toml.
    ``rows``: of the rounds that an earlier process finished.
    ``directions``: as in ``Callback.on_plan``. ``save_model(folder)``: write the model as it is
        now, as the run itself does at its end.
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
        """Before a new run is written or charged, with the columns that it will measure: raise
        ValueError for what does not fit.
        """

    def on_begin(self, run: Watched) -> None:
        """Before the first round of this process; ``run.rows`` are not given to ``on_round``
        again.
        """

    def on_round(self, row: dict[str, Any]) -> None:
        """After each round, when its row and checkpoint are on disk."""

    def on_end(self, summary: Columns) -> None:
        """After the last round, or when the run was stopped; summary.json and report.html are
        written.
        """

    def on_failure(self, error: BaseException) -> None:
        """When this process leaves the run before its end: an error, or Ctrl-C. Afterwards the
        error goes on.
        """


class Function(Callback):
    """A function of a row as a callback."""

    def __init__(self, function: Callable[[dict[str, Any]], object]) -> None:
        self._function = function

    def on_round(self, row: dict[str, Any]) -> None:
        self._function(row)


class CallbackList(Callback):
    """Several, called in their order; each gets a row of its own. Who has not begun is not told of
    an end.

    A method of ``Callback`` that this class does not define calls each of them (``call_each``).
    StopRun ends a run between two rounds: raised within a round, it waits for the next
    ``on_round``, when row and checkpoint are on disk.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        self._begun: list[Callback] = []
        self._stop: StopRun | None = None

    def call_each(self, moment: str, *given: Any) -> None:
        """Call a method of every callback, each with copies of its own; StopRun waits until all
        were called.
        """
        for callback in self._callbacks:
            try:
                getattr(callback, moment)(*map(copy, given))
            except StopRun as asked:
                self._stop = self._stop or asked

    @contextmanager
    def told_of_failure(self) -> Iterator[None]:
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
        """Every callback gets the row, also the one after a callback that stops the run: a logger,
        the best model.
        """
        self.call_each("on_round", row)
        if self._stop is not None:
            raise self._stop

    def on_end(self, summary: Columns) -> None:
        """A summary of its own for each: what is printed afterwards is the run's. Nothing is left
        to be stopped.
        """
        while self._begun:
            with suppress(StopRun):
                self._begun.pop(0).on_end(deepcopy(dict(summary)))

    def on_failure(self, error: BaseException) -> None:
        while self._begun:
            with suppress(Exception):  # the error that ended the run is the one to show
                self._begun.pop(0).on_failure(error)


for _moment in vars(Callback).keys() - vars(CallbackList).keys():
    if _moment.startswith("on_"):  # it would inherit one that does nothing
        setattr(CallbackList, _moment, partialmethod(CallbackList.call_each, _moment))


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
