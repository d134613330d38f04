"""Clients that data bring: one for each value of a column, or the data's own; and persons, who are
never split over clients. ``client_forms`` makes the same of what users give.
"""

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from fedlsg.config.choices import choose
from fedlsg.config.partitions import SCHEMES
from fedlsg.simulations.workloads.base import GIVEN, LoadedWorkload
from fedlsg.simulations.workloads.base.parts import Parts, distinct_names, partition


def natural_parts(workload: LoadedWorkload, name: str) -> Parts:
    """The natural partition of a workload: ``given`` are the clients that its data bring, else a
    column makes the clients.

    One client for each value of the column, in the order of the sorted values. Guarantees as
    ``partition``.
    Raises ValueError for an unknown name, or parts that overlap, are empty, or leave a row out.
    """
    size = len(workload.train)
    if name == GIVEN and workload.parts is not None:
        parts = workload.parts
    else:
        known = dict.fromkeys(
            (*SCHEMES, *([] if workload.parts is None else [GIVEN]), *workload.columns)
        )
        try:
            choose(f"partition of {workload.name}", name, known)
        except ValueError as error:
            raise ValueError(
                f"{error}; what is no scheme is a column of train, of texts or numbers"
            ) from None
        parts = parts_of_owners(workload.columns[name], name)
    if 0 in parts.sizes:
        raise ValueError(
            f"partition={name} leaves client {parts.label(parts.sizes.index(0))} without examples "
            "(no rows): leave that client out"
        )
    if sum(parts.sizes) != size:
        raise ValueError(
            f"partition={name} has {sum(parts.sizes)} of {size} training rows: give every row to a "
            "client, or leave the others out of the training data"
        )
    return parts


def parts_of_owners(values: np.ndarray, name: str) -> Parts:
    """One client for each value (N,), in the order of the sorted values, which name them.

    Raises ValueError, naming the row, for a missing value and for values of several kinds.
    """
    _check_complete(values, name)
    known, owner = np.unique(values, return_inverse=True)
    return Parts(owner, len(known), distinct_names(known.tolist(), name))


def client_parts(workload: LoadedWorkload, name: str, clients: int) -> Parts:
    """The natural partition with so many clients: one for each value, or whole values dealt to
    fewer.

    Values are dealt by their rows, the largest first, equal ones in their order: each to the client
    with the fewest rows so far, then the fewest values, then the lowest number. Clients that are
    several values have no names. Raises ValueError as ``natural_parts``, and for another number of
    clients.
    """
    values = natural_parts(workload, name)
    if clients == len(values):
        return values
    if values.names is None:
        raise ValueError(
            f"partition={name} has {len(values)} clients, and clients={clients}: leave clients out"
        )
    return Parts(_client_of(values, clients, name)[values.owner], clients)


def parts_by_value(
    workload: LoadedWorkload, column: str, clients: int, among: Shaped[np.ndarray, " n"]
) -> Parts:
    """Rows of a test split for the clients of ``client_parts``: ``among`` are their values of the
    column. Rows of a value that no client has are nobody's.
    """
    values = natural_parts(workload, column)
    client_of = dict(
        zip(values.names or (), _client_of(values, clients, column).tolist(), strict=True)
    )
    owner = np.array([client_of.get(str(value), -1) for value in among.tolist()])
    return Parts(owner, clients)


def dealing(workload: LoadedWorkload, name: str, parts: Parts) -> str:
    """How values were dealt to clients, in words; empty where each client is one value."""
    values = natural_parts(workload, name)
    if len(values) == len(parts):
        return ""
    each = np.bincount(_client_of(values, len(parts), name))
    return (
        f"partition={name}: {len(values):,} values, each whole with one of {len(parts)} clients "
        f"(the largest value first, to the client with the fewest rows so far): {_span(each)} "
        f"values and {_span(parts.sizes)} rows a client"
    )


def _client_of(values: Parts, clients: int, name: str) -> Int64[np.ndarray, " values"]:
    """The client of each value. Raises ValueError for more clients than values."""
    if not 1 <= clients <= len(values):
        raise ValueError(
            f"partition={name} has {len(values)} values, and clients={clients}: leave clients out, "
            f"or give 1 to {len(values)}, to which whole values are dealt"
        )
    if clients == len(values):
        return np.arange(clients)
    client = np.empty(len(values), dtype=np.int64)
    heap = [(0, 0, number) for number in range(clients)]  # rows, values, client
    for value in np.argsort(-np.array(values.sizes), kind="stable").tolist():
        rows, count, number = heap[0]
        client[value] = number
        heapq.heapreplace(heap, (rows + values.sizes[value], count + 1, number))
    return client


def _span(numbers: Sequence[int] | np.ndarray) -> str:
    """The smallest and the largest of some numbers."""
    low, high = int(min(numbers)), int(max(numbers))
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _check_complete(values: np.ndarray, name: str) -> None:
    """Raise ValueError, naming the row, unless each row names its client, all in one kind."""
    things = [] if values.dtype.kind in "biu" else values.tolist()
    for row, value in enumerate(things):
        if value is None or value != value or (isinstance(value, str) and not value.strip()):
            raise ValueError(
                f"partition={name}: row {row} has a missing value ({value!r}): give each row its "
                "client, or leave the row out"
            )
        if not isinstance(value, str | int | float):
            raise ValueError(
                f"partition={name}: row {row} has {type(value).__name__}: expected a text or a "
                "number"
            )
        if isinstance(value, str) != isinstance(things[0], str):
            raise ValueError(
                f"partition={name}: row 0 has {things[0]!r} and row {row} has {value!r}: give all "
                "rows texts, or all numbers"
            )


def deal_persons(
    person: Int64[Tensor, " n"], *, num_clients: int, scheme: str, seed: int, **settings: Any
) -> Parts:
    """Whole persons, dealt by a scheme that reads no classes. ``person``: the number of each row's
    person. Raises ValueError for more clients than persons.
    """
    count = int(person.max()) + 1
    if num_clients > count:
        raise ValueError(
            f"expected clients in 1..{count}, the number of persons, got clients={num_clients}: "
            f"give clients={count} or fewer, for a person is at one client"
        )
    dealt = partition(
        torch.zeros(count), num_clients=num_clients, scheme=scheme, seed=seed, **settings
    )
    client = np.repeat(np.arange(num_clients), dealt.sizes)
    of_person = np.empty(count, dtype=np.int64)
    of_person[torch.cat(dealt[:]).numpy()] = client
    return Parts(of_person[person.numpy()], num_clients)


def check_together(person: Int64[Tensor, " n"], parts: Sequence[Tensor], unit: str) -> None:
    """Raise ValueError, naming two rows, where a person has rows at two clients: each of them would
    hide the person alone, and what is said of one would be false of both together.
    """
    client = torch.full((len(person),), -1)
    first = torch.full((int(person.max()) + 1,), -1)
    for number, part in enumerate(parts):
        client[part] = number
        known = first[person[part]]
        apart = part[(known >= 0) & (client[known.clamp_min(0)] != number)]
        if len(apart):
            row, other = int(apart[0]), int(first[person[apart[0]]])
            raise ValueError(
                f"unit={unit}: rows {other} and {row} are of one {unit} and at two clients "
                f"({int(client[other])} and {number}), and epsilon is of a {unit} at one client: "
                f"take partition=iid, which deals whole persons, partition={unit}, or a column "
                "that is the same for all rows of a person"
            )
        first[person[part]] = part
