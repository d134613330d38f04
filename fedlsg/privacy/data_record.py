"""The epsilon of all runs of this process on the same rows.

A run with a ledger of its own does not count other runs; their epsilons add up. Rows are recognised
by their origin: the memory of tensors and arrays, with all slices and views; the object of a
Dataset or a table; each row of a list; or the path of a file. Wrappers (``Subset``,
``ConcatDataset``, functions of positions) are looked through. Copies have another origin. Memory
that a tensor or an array has borrowed (``torch.from_numpy``) counts as the same until the process
ends, because its next use cannot be noticed.
"""

import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from numbers import Number
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import Dataset

from fedlsg.accounting import Event
from fedlsg.accounting.population import spread
from fedlsg.privacy.ledger_entry import Entry
from fedlsg.privacy.totals import Totals
from fedlsg.user_code.objects import walk
from fedlsg.user_code.short_traceback import user_level

LEAST = 10
"""A tensor inside of data with n rows is data itself if it has n / LEAST rows or more."""


class SpentTogetherWarning(UserWarning):
    """A second private run on the same rows, whose epsilon does not count the first one."""


@dataclass(frozen=True)
class Place:
    """The place of rows: bytes of a device, one object, or one file.

    space: the device, "object", or the path of the file.
    start, end: addresses of the bytes; the id of the object and one more; 0 and 1 of a file.
    life: returns None once the rows no longer exist, as their memory may be used again.
    """

    space: str
    start: int
    end: int
    life: Callable[[], object] = field(compare=False)

    def overlaps(self, other: "Place") -> bool:
        """Whether two places have a byte, an object or a file in common."""
        return self.space == other.space and self.start < other.end and other.start < self.end


@dataclass(kw_only=True, eq=False)
class DataRun:
    """A run on rows.

    ledger: path of its ledger.
    charged: returns the entries now, a sequence for each client.
    delta: that of the run; None if it has none.
    warns: whether the run has secret noise, and its user did not choose the ledger for the data.
    """

    ledger: str
    charged: Callable[[], Iterable[Sequence[Entry]]]
    delta: float | None
    warns: bool

    def read(self, places: Sequence[Place]) -> None:
        """Record that the run reads rows at ``places``; a second run with ``warns`` warns."""
        known = runs_on(places)
        with _LOCK:
            _READ.extend((place, self) for place in places if (place, self) not in _READ)
        others = [run for run in known if run.warns]
        if self.warns and len(others) == 1 and self.ledger not in {run.ledger for run in known}:
            warnings.warn(
                "another private run of this process was on the same rows, or on others of the "
                "same data: each epsilon is of one run alone. fedlsg.epsilon_of_data(data) is that "
                "of all of them; ledger=PATH, one file for each data set, counts them together",
                SpentTogetherWarning,
                stacklevel=user_level(),
            )


_READ: list[tuple[Place, DataRun]] = []
"""The places of rows, with the runs that have read them."""
_LOCK = Lock()


def runs_on(places: Sequence[Place]) -> list[DataRun]:
    """The runs that have read any of the places, the last one of each ledger."""
    with _LOCK:
        _READ[:] = [(place, run) for place, run in _READ if place.life() is not None]
        runs = [run for place, run in _READ if any(map(place.overlaps, places))]
    return list({run.ledger: run for run in runs}.values())


def epsilon_of_data(data: Any, delta: float | None = None) -> float:
    """Epsilon of all runs of this process on rows of ``data``: an upper bound for each row.

    data: what steps and runs were given, or a part of it: tensors, arrays, a Dataset, a table, a
    path, a pair of them.
    delta: by default the smallest one of the runs.

    Guarantee: not below the epsilon of any row at ``delta``. Each run counts whole, whichever of
    the rows it has read: an example in two overlapping parts is counted in both, and rows of
    separate parts are counted too often. Ledgers that steps were given count with all of their
    entries. 0 for data that nobody read; ``math.inf`` where noise was missing or is known, or where
    runs protect different units.
    Not counted: what other processes spend, and copies of the data. Raises ValueError for a delta
    outside (0, 1), and LedgerError, which is one, for a ledger file that is gone.
    """
    return epsilon_of_runs(runs_on(places_of(data)), delta)


def epsilon_of_runs(runs: Sequence[DataRun], delta: float | None = None) -> float:
    """Epsilon of some runs together. Runs whose clients differ add up by basic composition, the
    others exactly.
    """
    charged = [run.charged() for run in runs]
    entries = list(chain(*chain(*charged)))
    units = {entry.unit for entry in entries}
    if not all(entry.has_epsilon for entry in entries) or len(units) > 1:
        return math.inf
    alike: list[Event] = []
    parts: list[list[tuple[Event, ...]]] = []
    for clients in charged:
        histories = {Totals().extended(entries).events() for entries in clients if entries}
        if len(histories) > 1:
            parts.append(list(histories))
        else:
            alike += chain(*histories)
    if alike:
        parts.insert(0, [tuple(alike)])
    if delta is None:
        delta = min((run.delta for run in runs if run.delta is not None), default=math.inf)
    return math.fsum(spread(part, delta=delta / len(parts)).largest for part in parts)


def places_of(data: Any, rows: int = 0) -> list[Place]:
    """The places of the rows of data; ``rows``: their number, by which smaller things inside are
    left out.
    """
    if isinstance(data, str | os.PathLike):
        return [Place(str(Path(data).expanduser().resolve()), 0, 1, lambda: data)]
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        rows = len(data)
    whole = None if isinstance(data, tuple | dict) else data  # their members count
    things = [thing for thing in walk([data], set()) if thing is whole or _is_data(thing, rows)]
    return list(chain(*map(_places_of, things)))


def _is_data(thing: Any, rows: int) -> bool:
    """Whether a thing inside of data is data itself, and no constant of a transform or weight of a
    model.
    """
    if isinstance(thing, Tensor | np.ndarray):
        longest = max(thing.shape, default=0)  # a series may have its time last
        return longest * LEAST >= max(rows, 1) and not isinstance(thing, nn.Parameter)
    if isinstance(thing, list | tuple | dict):
        return 0 < rows <= len(thing) * LEAST
    return isinstance(thing, Dataset) or hasattr(type(thing), "iloc") or _is_arrow(thing)


def _is_arrow(thing: Any) -> bool:
    """Whether a thing is a table of pyarrow; data of the hub have them."""
    return type(thing).__module__.startswith("pyarrow") and hasattr(thing, "itercolumns")


def _places_of_row(row: Any) -> Iterator[Place]:
    """The places of a row: its tensors and arrays, or else the object.

    Such an object is kept alive, so that no other one gets its id.
    """
    memory = [part for part in walk([row], set()) if isinstance(part, Tensor | np.ndarray)]
    yield from chain(*map(_places_of, memory))
    if not memory and not isinstance(row, Number | None):
        yield Place("object", id(row), id(row) + 1, lambda: row)


def _places_of(thing: Any) -> Iterator[Place]:
    """The places of a thing: of memory, the whole allocation; of a table, also those of its
    columns; of a list, those of all its rows.
    """
    if isinstance(thing, np.memmap) and thing.filename is not None:
        yield from places_of(thing.filename)
    if isinstance(thing, list | tuple | dict):
        rows = thing.values() if isinstance(thing, dict) else thing
        yield from chain(*map(_places_of_row, rows))
        return
    while isinstance(thing, np.ndarray) and isinstance(thing.base, np.ndarray | Tensor):
        thing = thing.base
    if isinstance(thing, Tensor) and thing.layout is torch.strided:
        storage = thing.untyped_storage()
        known, start = StorageWeakRef(storage), storage.data_ptr()
        storage_ends = storage.resizable()  # else the memory is that of an array or a buffer

        def life() -> object:
            return None if storage_ends and known.expired() else known

        yield Place(str(thing.device), start, start + storage.nbytes(), life)
    elif isinstance(thing, np.ndarray):
        start = thing.ctypes.data
        alive = weakref.ref(thing) if thing.flags.owndata else (lambda: True)
        yield Place("cpu", start, start + thing.nbytes, alive)
    else:
        with suppress(TypeError):  # a pair, a dict or a number: their members count
            yield Place("object", id(thing), id(thing) + 1, weakref.ref(thing))
    if _is_arrow(thing):
        buffers = (
            part.buffers()
            for column in thing.itercolumns()
            for part in getattr(column, "chunks", [column])
        )
        for buffer in filter(None, chain(*buffers)):
            start = buffer.address
            yield Place("cpu", start, start + buffer.size, lambda: True)
    if hasattr(type(thing), "iterrows"):
        for _, column in thing.items():
            yield from _places_of(column.to_numpy())
