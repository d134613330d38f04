"""Warnings about test rows that are also training rows, or of persons who have training rows.

Accuracy on them says nothing of new rows or persons.

Rows may be equal by chance, such as those of a table with few categories. The training rows tell
how many: the share of them that equal another training row is also that of new rows from the same
source. There is a warning only for clearly more equal rows than this. The check reads private rows,
in a simulation alone, where one person holds all data.

No epsilon covers the warning. So the number of rows is for that person alone, in no file. The page
only says that there are such rows, which tells that their share is above what chance explains. At
client level no file says even that, because there everything that others see has noise.
"""

import math
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import Dataset

from fedlsg.rows.origin import parts_of
from fedlsg.rows.row_memory import earlier_rows, joined
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.workloads import LoadedWorkload, Split
from fedlsg.simulations.workloads.base.split import NoRows
from fedlsg.simulations.workloads.base.stored_arrays import MASK, arrays_of, is_known
from fedlsg.simulations.workloads.public_data import digests
from fedlsg.simulations.workloads.rows.loaders import is_splits
from fedlsg.training.persons import is_missing

AT_ONCE = 4096
"""Rows that are read together."""
TABLE = np.uint64(2**22)
"""Entries of a table of hashes."""
WORD = 4
"""Bytes of a word."""
TOLERATED = 0.05
"""A share of equal test rows above the one by chance that is not worth a warning."""
RULE_OF_THREE = 3
"""If none of n rows is equal, the chance of one is below 3 / n at 95 % confidence."""
DEVIATIONS = 3.0
"""Standard deviations of the number of equal test rows by chance that are allowed."""
WHY = (
    "accuracy on them says nothing of new {rows}, and it is computed from private {rows} without "
    "noise, so that no epsilon covers it: give other test rows"
)
HOLDOUT = ", or leave test out and give holdout=0.2"
FOR_OWNER = "(for you alone: this number is of private rows, without noise, and no file has it)"
Numbers = np.ndarray[Any, np.dtype[np.uint64]]
"""Whole numbers of 64 bits."""


class Shared(NamedTuple):
    """Warnings about test rows that are training rows.

    notes: for the run's files, which others may see.
    for_owner: for the owner of the data alone.
    """

    notes: tuple[str, ...] = ()
    for_owner: tuple[str, ...] = ()


def shared_notes(base: Base) -> Shared:
    """A warning about a user's test rows that equal training rows, more of them than by chance.

    If a person is the unit, the warning is also about test rows of persons who have training rows.
    There is none for test rows that ``holdout`` took from the training rows, and for public rows to
    train on, which have a check of their own.
    """
    s, own = base.settings, workloads.own(base.settings.workload)
    train, test = base.workload.train, base.workload.test
    if own is None or s.public_rows is not None or isinstance(train, NoRows):
        return Shared()
    if s.holdout:
        note = f"accuracy is of the share holdout={s.holdout:g} of train: test= is not used"
        return Shared() if own.test is None else Shared(notes=(note,))
    persons = base.workload.unit or base.unit.name
    if of_persons := rows_of_persons(base.workload, persons):
        words = f"test rows have a value of {persons} that training rows have"
        return _shared(base, of_persons, words, WHY.format(rows=f"values of {persons}"))
    if train.drawn or test.drawn:  # one row has other values each time that it is read
        shared, share = _same_origins(own.train, own.test), 0.0
    else:
        shared, share = equal_rows(train, test)
    is_many = is_one(own.train, own.test) or shared > most_by_chance(share, train, test)
    if not shared or not is_many:
        return Shared()
    why = WHY.format(rows="rows") + ("" if base.unit.persons else HOLDOUT)
    return _shared(base, shared, "test rows are also training rows", why)


def _shared(base: Base, number: int, words: str, why: str) -> Shared:
    """The warning that so many test rows are in the training data in some way.

    words: "test rows are ...".
    """
    counted = f"{number:,} of {len(base.workload.test):,} {words} {FOR_OWNER}"
    if base.unit.whole:
        return Shared(for_owner=(f"{counted}: {why}",))
    return Shared(notes=(f"some {words}: {why}",), for_owner=(counted,))


def rows_of_persons(workload: LoadedWorkload, column: str) -> int:
    """The number of test rows of persons who have training rows; 0 if test has no such column.

    Persons are compared as they are written; 30.0 is 30, as pandas writes a column with gaps. So
    persons that test numbers anew, from 1, need other names there.
    """
    if column not in workload.columns or column not in workload.test_columns:
        return 0
    train, test = (
        [None if is_missing(value) else str(value).removesuffix(".0") for value in values.tolist()]
        for values in (workload.columns[column], workload.test_columns[column])
    )
    known = {*train} - {None}
    return sum(value in known for value in test)


def most_by_chance(share: float, train: Split, test: Split) -> float:
    """The largest number of test rows that equal training rows and need no warning.

    With p = min(share + 3 / n, 1) the probability of an equal row, for n training and m test rows,
    it is m (p + TOLERATED + DEVIATIONS sqrt(p (1 - p) / m)).

    share: of the training rows that equal another one.
    """
    p = min(share + RULE_OF_THREE / len(train), 1.0)
    deviation = math.sqrt(p * (1 - p) / len(test))
    return (p + TOLERATED + DEVIATIONS * deviation) * len(test)


def equal_rows(train: Split, test: Split) -> tuple[int, float]:
    """The number of test rows that equal a training row, and the share of equal training rows.

    Rows are equal if their inputs and targets are. A training row counts in the share if it equals
    another one. Rows are compared by keyed hashes, and equal hashes by the rows themselves. So the
    number is exact, and the share except for collisions. The key is of this call alone.
    """
    types = _common_types(train, test)
    if types is None:
        return 0, 0.0
    size = _bytes(test, torch.arange(1), types).shape[1] // WORD
    keys = np.asarray([secrets.randbits(64) for _ in range(size)], dtype=np.uint64)
    of_train, of_test = (_hashes(split, types, keys) for split in (train, test))
    places = _places_in(of_train, of_test)
    rows = np.flatnonzero(places >= 0)
    shared = 0
    for start in range(0, len(rows), AT_ONCE):
        chosen = rows[start : start + AT_ONCE]
        pair = ((train, places[chosen]), (test, chosen))
        one, other = (_bytes(split, torch.as_tensor(at), types) for split, at in pair)
        shared += int((one == other).all(1).sum())
    if not shared:
        return 0, 0.0
    _, counts = np.unique(of_train, return_counts=True)
    return shared, float(counts[counts > 1].sum() / len(train))


def _places_in(known: Numbers, wanted: Numbers) -> Int64[np.ndarray, " wanted"]:
    """The place in ``known`` of each wanted number; -1 for a number that is not in it.

    Most of ``known`` are not wanted. So a table of the last bits of the wanted numbers leaves most
    of them out before anything is sorted.
    """
    table = np.zeros(TABLE, dtype=bool)
    table[wanted % TABLE] = True
    chosen = np.flatnonzero(table[known % TABLE])
    if not len(chosen):
        return np.full(len(wanted), -1)
    values, first = np.unique(known[chosen], return_index=True)
    near = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return np.where(values[near] == wanted, chosen[first[near]], -1)


def is_one(train: Any, test: Any) -> bool:
    """Whether both are one file or one object, of which each takes all rows."""
    if isinstance(train, str | Path) and isinstance(test, str | Path):
        return Path(train).is_file() and Path(train).resolve() == Path(test).resolve()
    return train is test and not is_splits(train)


def _same_origins(train: Any, test: Any) -> int:
    """The number of test rows that are at the same place of one Dataset as a training row."""
    if not (isinstance(train, Dataset) and isinstance(test, Dataset)):
        return 0
    sizes = [len(train), len(test)]  # type: ignore[arg-type]
    parts = [
        parts_of(data, np.arange(size)) for data, size in zip((train, test), sizes, strict=True)
    ]
    earlier = earlier_rows(joined(parts, sizes))[sizes[0] :]
    return int(((earlier >= 0) & (earlier < sizes[0])).sum())


Types = Mapping[str, np.dtype[Any]]
"""Types of arrays, by their names."""


def _common_types(train: Split, test: Split) -> Types | None:
    """The types in which arrays of both splits are compared; None if their arrays differ."""
    one, other = (_arrays(split, torch.arange(1)) for split in (train, test))
    shapes = [{name: array.shape for name, array in arrays.items()} for arrays in (one, other)]
    if shapes[0] != shapes[1]:
        return None
    return {name: np.result_type(one[name], other[name]) for name in one}


def _hashes(split: Split, types: Types, keys: Numbers) -> Numbers:
    """One number a row: the sum of its words of 32 bits, each times a secret number of 64 bits.

    Two rows that differ have equal numbers with a probability of 2^-33 at most, over the keys.
    """
    parts = torch.arange(len(split)).split(AT_ONCE)
    words = (_bytes(split, rows, types).view(np.uint32) for rows in parts)
    return np.concatenate([part.astype(np.uint64) @ keys for part in words])


def _bytes(split: Split, rows: Int64[Tensor, " b"], types: Types) -> np.ndarray:
    """(b, bytes) of rows, filled up with zeros to whole words of 32 bits."""
    arrays = {name: array.astype(types[name]) for name, array in _arrays(split, rows).items()}
    parts = [
        np.ascontiguousarray(array.reshape(len(rows), -1)).view(np.uint8)
        for array in arrays.values()
    ]
    spare = -sum(part.shape[1] for part in parts) % WORD
    return np.concatenate([*parts, np.zeros((len(rows), spare), np.uint8)], axis=1)


def _arrays(split: Split, rows: Int64[Tensor, " b"]) -> dict[str, np.ndarray]:
    """Stored rows and their targets as arrays (b, ...) by name.

    Texts are digests, because they are padded. Rows that are stored as something else than arrays
    are taken as the model gets them.
    """
    stored = split.inputs[rows.numpy()]
    stored = stored if is_known(stored) else split.prepare(stored)
    targets = {"targets": split.labels[rows].numpy()}
    if isinstance(stored, Mapping) and MASK in stored:
        texts = {name: torch.as_tensor(value) for name, value in stored.items()}
        each = np.frombuffer(b"".join(digests(texts)), dtype=np.uint8)
        return {"texts": each.reshape(len(rows), -1), **targets}
    return {**dict(arrays_of("inputs", stored)), **targets}
