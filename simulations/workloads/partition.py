"""Natural partitions: clients that the data bring, or one for each value of a column; and persons.

A person is never split over clients. If the unit is a person, the number of its rows is secret. So
persons are counted and dealt by the values of their column: one more row of a person moves no other
person, and nothing public here follows from it. Clients that users give: ``given_partition``.
"""

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from fedlsg.config.choices import choose, did_you_mean
from fedlsg.config.partitions import SCHEMES
from fedlsg.config.units import EXAMPLE, UNITS, Unit
from fedlsg.simulations.workloads.base import GIVEN, LoadedWorkload
from fedlsg.simulations.workloads.base.parts import Parts, distinct_names, partition
from fedlsg.training.persons import is_missing, is_unclear, numbers_of

Person = Int64[Tensor, " rows"]
"""The number of each row's person."""


def natural_parts(workload: LoadedWorkload, name: str) -> Parts:
    """The natural partition of a workload.

    The ``name`` is "given", for the clients that the data bring, or a column. A column makes one
    client for each of its values, in the order of the sorted values. Guarantees as ``partition``.
    Raises ValueError for an unknown name, and for parts that are empty or leave a row out.
    """
    size = len(workload.train)
    if name == GIVEN and workload.parts is not None:
        parts = workload.parts
    else:
        given = [] if workload.parts is None else [GIVEN]
        try:
            known = dict.fromkeys((*SCHEMES, *given, *workload.columns))
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


def client_parts(
    workload: LoadedWorkload,
    name: str,
    clients: int,
    *,
    unit: Unit = EXAMPLE,
    person: Person | None = None,
) -> Parts:
    """The natural partition with so many clients: one for each value, or several values for each.

    Values are dealt by their size, the largest first, equal ones in their order. Each goes to the
    client with the smallest sum so far, then the fewest values, then the lowest number. The size of
    a value is the number of its rows, or of its persons if the unit is a person. If the unit is a
    client, it is 1: the number of its rows decides nothing. Clients of several values have no
    names.
    Raises ValueError as ``natural_parts``, for another number of clients, and, if values are dealt,
    for a person with rows of two of them.
    """
    values = natural_parts(workload, name)
    if clients == len(values):
        return values
    if values.names is None:
        raise ValueError(
            f"partition={name} has {len(values)} clients, and clients={clients}: leave clients out"
        )
    if not 1 <= clients <= len(values):
        raise ValueError(
            f"partition={name} has {len(values)} values, and clients={clients}: leave clients out, "
            f"or give 1 to {len(values)}, to which whole values are dealt"
        )
    sizes = values.sizes
    if person is not None:
        check_together(person, values, unit.name)
        sizes = np.bincount(values.owner[first_rows(person)], minlength=len(values)).tolist()
    elif unit.whole:
        sizes = [1] * len(values)
    return Parts(_deal(sizes, clients)[values.owner], clients)


def parts_by_value(
    workload: LoadedWorkload, column: str, parts: Sequence[Tensor], among: Shaped[np.ndarray, " n"]
) -> Parts:
    """Rows of a test split, for the clients that ``client_parts`` made of a column.

    Rows of a value that no client has are given to nobody.

    parts: training rows of the clients.
    among: (n,) values of the column in the test split.
    """
    values = natural_parts(workload, column)
    client_of = dict(zip(values.names or (), _client_of(values, parts).tolist(), strict=True))
    owner = np.array([client_of.get(str(value), -1) for value in among.tolist()])
    return Parts(owner, len(parts))


def dealing(workload: LoadedWorkload, name: str, parts: Parts, unit: Unit) -> str:
    """How values were dealt to clients, in words; empty if each client is one value."""
    values = natural_parts(workload, name)
    if len(values) == len(parts):
        return ""
    values_of_clients = np.bincount(_client_of(values, parts))
    counted = unit.counted if unit.persons else "rows"
    how = (
        "in turn"
        if unit.whole
        else f"the largest value first, to the client with the fewest {counted} so far"
    )
    return (
        f"partition={name}: {len(values):,} values, each whole with one of {len(parts)} clients "
        f"({how}): {_span(values_of_clients)} values and {_span(parts.sizes)} rows a client"
    )


def _client_of(values: Parts, parts: Sequence[Tensor]) -> Int64[np.ndarray, " values"]:
    """The client of each value; all rows of a value are at one client."""
    value_of_row = values.owner
    client_of_value = np.empty(len(values), dtype=np.int64)
    for client, rows in enumerate(parts):
        client_of_value[value_of_row[rows.numpy()]] = client
    return client_of_value


def _deal(sizes: Sequence[int], clients: int) -> Int64[np.ndarray, " values"]:
    """The client of each value, from the sizes of the values: see ``client_parts``."""
    client_of_value = np.empty(len(sizes), dtype=np.int64)
    heap = [(0, 0, client) for client in range(clients)]  # (sum of sizes, values, client)
    for value in np.argsort(-np.array(sizes), kind="stable").tolist():
        total, count, client = heap[0]
        client_of_value[value] = client
        heapq.heapreplace(heap, (total + sizes[value], count + 1, client))
    return client_of_value


def _span(numbers: Sequence[int] | np.ndarray) -> str:
    """The smallest and the largest of some numbers, in words."""
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
        if is_unclear(value):
            raise ValueError(
                f"partition={name}: row {row} has {value!r}, which means a missing value in many "
                "files: give each row its client, leave the row out, or give the client another "
                "name"
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


def persons_of(workload: LoadedWorkload, unit: str) -> Person:
    """The number of each training row's person, from 0 on in the order of their first rows.

    Raises ValueError if no column of the data has the unit's name, or its values do not say whose a
    row is.
    """
    if unit not in workload.columns:
        columns = list(workload.columns)
        near = did_you_mean(unit, [*UNITS, *columns])
        raise ValueError(
            f"unit={unit}: expected {', '.join(UNITS)}, or the column of the training data "
            f"that says whose each row is, which must be no input of the model (name it in "
            f"fedlsg.Workload(unit=...)); {workload.name} has "
            f"{', '.join(columns) or 'no such columns'}{near}"
        )
    return numbers_of(workload.columns[unit], f"unit={unit}")


def in_order(person: Person, values: Shaped[np.ndarray, " rows"]) -> Int64[Tensor, " persons"]:
    """The numbers of persons, sorted by their values; persons without a value come last.

    So the order does not depend on which rows a person has.
    """
    value_of = values[first_rows(person)].tolist()
    named = [number for number, value in enumerate(value_of) if not is_missing(value)]
    missing = [number for number, value in enumerate(value_of) if is_missing(value)]
    return torch.tensor([*sorted(named, key=value_of.__getitem__), *missing])


def first_rows(person: Person) -> Int64[Tensor, " persons"]:
    """The first row of each person."""
    rows = torch.arange(len(person))
    count = int(person.max()) + 1
    return torch.full((count,), len(rows)).scatter_reduce(0, person, rows, "amin")


def labels_of_units(
    labels: Shaped[Tensor, "n *target"], person: Person | None, scheme: str
) -> Shaped[Tensor, "m *target"]:
    """The classes that a scheme deals: the labels of rows, or the class of each person.

    A scheme that reads no classes gets zeros for persons.
    Raises ValueError, naming two rows, for a person of two classes if the scheme reads classes.
    """
    if person is None:
        return labels
    first = first_rows(person)
    if not SCHEMES[scheme].reads_classes:
        return torch.zeros(len(first), dtype=torch.int64)
    other = (labels != labels[first[person]]).nonzero()
    if len(other):
        row = int(other[0, 0])
        raise ValueError(
            f"partition={scheme} deals whole persons by their class, and rows "
            f"{int(first[person[row]])} and {row} are of one person and of two classes: take "
            "partition=iid, or a column that says which client a person is at"
        )
    return labels[first]


def deal_persons(
    labels: Shaped[Tensor, "n *target"],
    person: Person,
    values: Shaped[np.ndarray, " n"],
    *,
    num_clients: int,
    scheme: str,
    seed: int,
    **settings: Any,
) -> Parts:
    """A partition in which a scheme deals whole persons, each as one example.

    labels: (n, ...) of the rows.
    person: the number of each row's person.
    values: (n,) the column that says whose each row is.
    settings: at least those of the scheme.
    Raises ValueError for more clients than persons, and as ``labels_of_units``.
    """
    classes = labels_of_units(labels, person, scheme)
    if num_clients > len(classes):
        raise ValueError(
            f"expected clients in 1..{len(classes)}, the number of persons, got "
            f"clients={num_clients}: give clients={len(classes)} or fewer, for a person is at one "
            "client"
        )
    order = in_order(person, values)
    parts = partition(classes[order], num_clients=num_clients, scheme=scheme, seed=seed, **settings)
    client_of_person = np.empty(len(classes), dtype=np.int64)
    client_of_person[order] = parts.owner
    return Parts(client_of_person[person.numpy()], num_clients)


def check_together(person: Int64[Tensor, " n"], parts: Sequence[Tensor], unit: str) -> None:
    """Raise ValueError, naming two rows, if a person has rows at two clients.

    The epsilon of each client covers only the person's rows there, and not both together.
    """
    client_of_row = torch.full((len(person),), -1)
    first_row = torch.full((int(person.max()) + 1,), -1)  # of each person that was seen
    for client, part in enumerate(parts):
        client_of_row[part] = client
        earlier = first_row[person[part]]
        # clamped: -1, of a person that was not seen, is no row
        is_elsewhere = (earlier >= 0) & (client_of_row[earlier.clamp_min(0)] != client)
        if is_elsewhere.any():
            row, other = int(part[is_elsewhere][0]), int(earlier[is_elsewhere][0])
            raise ValueError(
                f"unit={unit}: rows {other} and {row} are of one {unit} and at two clients "
                f"({int(client_of_row[other])} and {client}), and epsilon is of a {unit} at one "
                "client: "
                f"take partition=iid, which deals whole persons, partition={unit}, or a column "
                "that is the same for all rows of a person"
            )
        first_row[person[part]] = part
