"""Partition a data set over clients: IID, label-Dirichlet, shards; two arrays, of which a client's
rows are a slice. ``client_forms`` makes the same of what users give.

A partition represents data that the clients have always held. It is drawn once from a public seed
and then fixed: adding or removing one example adds or removes it in one client's part, and nothing
is dealt again. It belongs to the privacy contract: epsilon composes in parallel over clients only
if no two of them hold the same example. ``Parts`` cannot hold one twice; of lists of rows
``check_disjoint`` is that guard.

On the shuffled data and for equal seeds, the schemes equal IidPartitioner,
DirichletPartitioner(self_balancing=False) and, where N divides evenly, ShardPartitioner of
flwr-datasets, which takes seconds to import.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from fedlsg.config.choices import choose
from fedlsg.config.partitions import SCHEMES
from fedlsg.simulations.workloads.base import GIVEN, LoadedWorkload
from fedlsg.simulations.workloads.base.parts import Parts, distinct_names

_MAX_DRAWS = 1000


def partition(
    labels: Shaped[Tensor, "n *target"],
    *,
    num_clients: int,
    scheme: str = "iid",
    seed: int,
    alpha: float = 0.5,
    shards_per_client: int = 2,
) -> Parts:
    """Indices of each client's examples, sorted.

    scheme:
        ``iid``: a random permutation cut into equal parts (McMahan et al. 2017, sec. 3).
        ``dirichlet``: each class is spread over the clients in proportions drawn from
            Dir(alpha, ..., alpha) (Yurochkin et al. 2019), redrawn until every client has an
            example. Differs from Hsu et al. 2019, who draw each client's class mix and give all
            clients equally many examples.
        ``shards``: sorted by label, cut into ``num_clients * shards_per_client`` equal shards,
            dealt at random (McMahan et al. 2017, sec. 3).

    Guarantees: every example belongs to exactly one client and every client has one. Where N does
    not divide evenly, ``iid`` gives the first clients, and ``shards`` the first shards, one example
    more. The result depends on the arguments only, and no global random state is read or moved.

    Raises ValueError: labels that are no classes (int64 of shape (n,); iid reads none), num_clients
    outside 1..N, an unknown scheme, a setting out of range, or settings that leave a client without
    examples.
    """
    if not 1 <= num_clients <= len(labels):
        raise ValueError(
            f"expected clients in 1..{len(labels)}, the number of examples, got "
            f"clients={num_clients}: give clients={len(labels)} or fewer"
        )
    if seed < 0:
        raise ValueError(f"expected {seed=} >= 0")
    deal = choose("partition scheme", scheme, _DEALS)
    if scheme == "iid":  # reads no label
        labels = torch.zeros(len(labels), dtype=torch.int64)
    elif labels.dtype != torch.int64 or labels.ndim != 1:
        raise ValueError(
            f"{scheme} reads classes, int64 of shape (n,), got {labels.dtype} {tuple(labels.shape)}"
        )
    order = _shuffled(len(labels), seed)
    shuffled, rng = labels.cpu().numpy()[order], np.random.Generator(np.random.PCG64(seed))
    dealt = deal(shuffled, num_clients, rng, alpha=alpha, shards_per_client=shards_per_client)
    if dealt.shape != order.shape:
        raise RuntimeError(f"the {scheme} scheme dealt {len(dealt)} of {len(order)} examples")
    parts = _owned(order, dealt, num_clients)
    if not min(parts.sizes):
        raise ValueError(f"{scheme} leaves a client without examples: lower clients={num_clients}")
    return parts


def _owned(order: Int64[np.ndarray, " n"], dealt: Int64[np.ndarray, " n"], clients: int) -> Parts:
    """The parts of rows whose owners are ``dealt`` in a given order."""
    owner = np.empty_like(dealt)
    owner[order] = dealt
    return Parts(owner, clients)


def matching_parts(
    labels: Int64[Tensor, " n"],
    train: Int64[Tensor, " m"],
    *,
    num_clients: int,
    scheme: str,
    seed: int,
    alpha: float,
    shards_per_client: int,
) -> Parts:
    """Rows of a test split with the class mix that ``partition`` gives each client of the classes
    ``train``.

    iid and shards: the same scheme and seed. dirichlet: the very shares of each class; a client
    with small shares may have no test row. Raises ValueError as ``partition``.
    """
    if scheme != "dirichlet":
        return partition(
            labels,
            num_clients=num_clients,
            scheme=scheme,
            seed=seed,
            shards_per_client=shards_per_client,
        )
    shuffled = train.cpu().numpy()[_shuffled(len(train), seed)]
    shares = _shares(shuffled, num_clients, np.random.Generator(np.random.PCG64(seed)), alpha=alpha)
    order = _shuffled(len(labels), seed)
    return _owned(order, _spread(labels.cpu().numpy()[order], shares), num_clients)


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


def deal_persons(person: Int64[Tensor, " n"], *, num_clients: int, seed: int) -> Parts:
    """Whole persons, dealt at random: as many to each client. ``person``: the number of each row's
    person. Raises ValueError for more clients than persons.
    """
    count = int(person.max()) + 1
    if num_clients > count:
        raise ValueError(
            f"expected clients in 1..{count}, the number of persons, got clients={num_clients}: "
            f"give clients={count} or fewer, for a person is at one client"
        )
    dealt = partition(torch.zeros(count), num_clients=num_clients, seed=seed)
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


def _shuffled(count: int, seed: int) -> np.ndarray:
    """An order from a stream of its own: that in which a data set is stored must not decide who
    gets which example.
    """
    return np.random.Generator(np.random.PCG64([seed, 1])).permutation(count)


def _even(count: int, parts: int) -> np.ndarray:
    """The part of each of ``count`` examples in a row, cut into equal parts; the first ones have
    one more if needed.
    """
    return np.repeat(np.arange(parts), count // parts + (np.arange(parts) < count % parts))


def _iid(labels: np.ndarray, num_clients: int, rng: np.random.Generator, **_: float) -> np.ndarray:
    return _even(len(labels), num_clients)


def _shards(
    labels: np.ndarray,
    num_clients: int,
    rng: np.random.Generator,
    *,
    shards_per_client: int,
    **_: float,
) -> np.ndarray:
    num_shards = num_clients * shards_per_client
    if not num_clients <= num_shards <= len(labels):
        raise ValueError(
            f"expected {shards_per_client=} >= 1 with num_clients * shards_per_client <= "
            f"{len(labels)}, the number of examples, got {num_shards}"
        )
    of_shard, owner = np.empty(num_shards, dtype=np.int64), np.empty(len(labels), dtype=np.int64)
    of_shard[rng.permutation(num_shards)] = np.repeat(np.arange(num_clients), shards_per_client)
    owner[np.argsort(labels, kind="stable")] = of_shard[_even(len(labels), num_shards)]
    return owner


def _dirichlet(
    labels: np.ndarray, num_clients: int, rng: np.random.Generator, *, alpha: float, **_: float
) -> np.ndarray:
    if not 0 < alpha < float("inf"):
        raise ValueError(f"expected a finite {alpha=} > 0")
    return _spread(labels, _shares(labels, num_clients, rng, alpha=alpha))


def _shares(
    labels: np.ndarray, num_clients: int, rng: np.random.Generator, *, alpha: float
) -> dict[int, np.ndarray]:
    """By class: the share of each client, redrawn until every client has one of these examples."""
    classes, sizes = np.unique(labels, return_counts=True)
    for _draw in range(_MAX_DRAWS):
        shares = rng.dirichlet(np.full(num_clients, alpha), size=len(sizes))
        if not np.isfinite(shares).all():
            raise ValueError(f"{alpha=} is too extreme to draw from: take one nearer to 1")
        counts = np.stack([_counts(share, size) for share, size in zip(shares, sizes, strict=True)])
        if counts.sum(axis=0).min() >= 1:
            return dict(zip(classes.tolist(), shares, strict=True))
    raise ValueError(
        f"no draw of {_MAX_DRAWS} left each of clients={num_clients} an example at {alpha=}: raise "
        "alpha or lower clients"
    )


def _counts(shares: np.ndarray, size: int) -> np.ndarray:
    """How many of ``size`` examples each client gets."""
    cuts = (np.cumsum(shares) * size).astype(np.int64)[:-1]
    return np.diff(cuts, prepend=0, append=size)


def _spread(labels: np.ndarray, shares: Mapping[int, np.ndarray]) -> np.ndarray:
    """The client of each example, class by class; nobody's where its class has no shares."""
    owner = np.full(len(labels), -1)
    for label, share in shares.items():
        rows = np.flatnonzero(labels == label)
        owner[rows] = np.repeat(np.arange(len(share)), _counts(share, len(rows)))
    return owner


_DEALS: Mapping[str, Callable[..., np.ndarray]] = MappingProxyType(
    {"iid": _iid, "dirichlet": _dirichlet, "shards": _shards}
)
"""How each of ``SCHEMES`` deals rows."""
