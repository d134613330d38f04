"""Test rows that are training rows, too: an accuracy on them says nothing of new rows, and no
epsilon covers it.

Rows of a user's own may be equal by chance, as those of a table with few categories are. How many
would be, the training rows say: the share of them that equal another training row is that of new
rows from the same source. Only clearly more than this is said. It looks at private rows, in a
simulation alone, where one person holds all data.

No epsilon covers what is said. So the number of rows is for that person alone, in no file. The
page says that there are such rows: this tells that their share is above what chance explains. At
client level no file says even that, for there everything that others see has noise.
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
from fedlsg.simulations.workloads import Split
from fedlsg.simulations.workloads.base.split import NoRows
from fedlsg.simulations.workloads.base.stored_arrays import MASK, arrays_of, is_known
from fedlsg.simulations.workloads.public_data import digests
from fedlsg.simulations.workloads.rows.loaders import is_splits

AT_ONCE = 4096
"""Rows that are looked at together."""
TABLE = np.uint64(2**22)
"""Entries of a table of hashes."""
WORD = 4
"""Bytes of a word."""
TOLERATED = 0.05
"""Share of equal test rows above the one that chance explains, of which nothing is said."""
RULE_OF_THREE = 3
"""So many equal rows are within what chance has when none was seen, in 95 of 100 cases."""
DEVIATIONS = 3.0
"""Standard deviations of the number of equal test rows that chance may add."""
WHY = (
    "accuracy on them says nothing of new rows, and it is computed from private rows without "
    "noise, so that no epsilon covers it: give other test rows, or leave test out and give "
    "holdout=0.2"
)
Numbers = np.ndarray[Any, np.dtype[np.uint64]]


class Shared(NamedTuple):
    """What is said of test rows that are training rows: in the run's files, which others may see,
    and to the owner alone.
    """

    notes: tuple[str, ...] = ()
    for_owner: tuple[str, ...] = ()


def shared_notes(base: Base) -> Shared:
    """A warning of test rows of a user's own that equal training rows, where chance does not
    explain their number; or none.

    Test rows that ``holdout`` took from the training rows are other rows than these, and public
    rows to train on have a check of their own: nothing is said of either.
    """
    s, own = base.settings, workloads.own(base.settings.workload)
    train, test = base.workload.train, base.workload.test
    if own is None or s.holdout or s.public_rows is not None or isinstance(train, NoRows):
        return Shared()
    if train.drawn or test.drawn:  # read twice, one row is two
        shared, natural = _same_origins(own.train, own.test), 0.0
    else:
        shared, natural = equal_rows(train, test)
    if not shared or not (is_one(own.train, own.test) or shared > explained(natural, train, test)):
        return Shared()
    number = (
        f"{shared:,} of {len(test):,} test rows are also training rows (for you alone: this number "
        "is of private rows, without noise, and no file has it)"
    )
    if base.unit.whole:
        return Shared(for_owner=(f"{number}: {WHY}",))
    return Shared(notes=(f"some test rows are also training rows: {WHY}",), for_owner=(number,))


def explained(natural: float, train: Split, test: Split) -> float:
    """The number of test rows that may equal training rows by chance, and a tolerance.

    natural: share of the training rows that equal another one.
    """
    share = min(natural + RULE_OF_THREE / len(train), 1.0)
    spread = DEVIATIONS * math.sqrt(share * (1 - share) / len(test))
    return (share + TOLERATED + spread) * len(test)


def equal_rows(train: Split, test: Split) -> tuple[int, float]:
    """Test rows that equal a training row in inputs and targets, and the share of training rows
    that equal another training row.

    Rows are compared by keyed hashes, and equal hashes by the rows: the number is exact, the share
    up to collisions. The key is of this call alone.
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
    """The place in ``known`` of each number, -1 where it is not there. Few of many are known, so a
    table of their last bits leaves most of them out before anything is sorted.
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
    """Test rows whose places in a Dataset are those of training rows."""
    if not (isinstance(train, Dataset) and isinstance(test, Dataset)):
        return 0
    sizes = [len(train), len(test)]  # type: ignore[arg-type]
    parts = [
        parts_of(data, np.arange(size)) for data, size in zip((train, test), sizes, strict=True)
    ]
    earlier = earlier_rows(joined(parts, sizes))[sizes[0] :]
    return int(((earlier >= 0) & (earlier < sizes[0])).sum())


Types = Mapping[str, np.dtype[Any]]


def _common_types(train: Split, test: Split) -> Types | None:
    """The type in which an array of both splits is compared, by its name; None where their rows
    have different arrays.
    """
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
    """Stored rows as arrays by name, (b, ...), texts as digests, for they are padded, and the
    targets. What is stored as something else is as the model gets it.
    """
    stored = split.inputs[rows.numpy()]
    stored = stored if is_known(stored) else split.prepare(stored)
    targets = {"targets": split.labels[rows].numpy()}
    if isinstance(stored, Mapping) and MASK in stored:
        texts = {name: torch.as_tensor(value) for name, value in stored.items()}
        each = np.frombuffer(b"".join(digests(texts)), dtype=np.uint8)
        return {"texts": each.reshape(len(rows), -1), **targets}
    return {**dict(arrays_of("inputs", stored)), **targets}
