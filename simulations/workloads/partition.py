"""Partition a data set over clients: IID, label-Dirichlet, shards; two arrays, of which a client's
rows are a slice.

A partition represents data that the clients have always held. It is drawn once from a public seed
and then fixed: adding or removing one example adds or removes it in one client's part, and nothing
is dealt again. It belongs to the privacy contract: epsilon composes in parallel over clients only
if no two of them hold the same example. ``Parts`` cannot hold one twice; of lists of rows
``check_disjoint`` is that guard.

On the shuffled data and for equal seeds, the schemes equal IidPartitioner,
DirichletPartitioner(self_balancing=False) and, where N divides evenly, ShardPartitioner of
flwr-datasets, which takes seconds to import.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import overload

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from fedlsg.config.choices import choose
from fedlsg.simulations.workloads.base import GIVEN, LoadedWorkload


class Parts(Sequence[Tensor]):
    """Rows of every client, ascending; a tensor of them is made when it is asked for.

    Guarantee: the parts are disjoint, because each row has one ``owner``: its client, -1 for
    nobody.
    Raises ValueError for an owner outside -1 to ``clients`` - 1.
    """

    def __init__(self, owner: Int64[np.ndarray, " n"], clients: int) -> None:
        counts = np.bincount(owner + 1, minlength=clients + 1)
        if len(counts) > clients + 1:
            raise ValueError(f"expected owners -1..{clients - 1} of rows, got {len(counts) - 2}")
        rows = np.argsort(owner, kind="stable")[counts[0] :]
        self._rows = rows.astype(np.int32) if len(owner) < 2**31 else rows
        self._ends = np.cumsum(counts[1:])

    @cached_property  # the rows never change
    def sizes(self) -> list[int]:
        """How many rows each client has."""
        return list(np.diff(self._ends, prepend=0).tolist())

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> list[Tensor]: ...
    def __getitem__(self, client: int | slice) -> Tensor | list[Tensor]:
        if isinstance(client, slice):
            return [self[one] for one in range(*client.indices(len(self)))]
        place = range(len(self))[client]
        return torch.from_numpy(
            self._rows[self._ends[place] - self.sizes[place] : self._ends[place]].astype(np.int64)
        )

    def __len__(self) -> int:
        return len(self._ends)


def digest(parts: Sequence[Tensor], before: bytes = b"") -> str:
    """SHA-256, hexadecimal, over ``before``, and the number of rows of each client and its rows."""
    sha = hashlib.sha256(before)
    if isinstance(parts, Parts):
        starts = parts._ends - parts.sizes
        sha.update(np.insert(parts._rows, starts, parts.sizes).astype("<i8").tobytes())
    else:
        for part in parts:
            sha.update(len(part).to_bytes(8, "little") + part.numpy().tobytes())
    return sha.hexdigest()


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
        ``dirichlet``: each class is spread over the clients in proportions drawn from Dir(alpha,
            ..., alpha)
            (Yurochkin et al. 2019), redrawn until every client has an example. Differs from Hsu et
                al.
            2019, who draw each client's class mix and give all clients equally many examples.
        ``shards``: sorted by label, cut into ``num_clients * shards_per_client`` equal shards,
            dealt at random
            (McMahan et al. 2017, sec. 3).

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
            f"clients={num_clients}"
        )
    if seed < 0:
        raise ValueError(f"expected {seed=} >= 0")
    deal = choose("partition scheme", scheme, _SCHEMES)
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
    """The natural partition of a workload: ``given`` are its own lists of rows, else a column makes
    the clients.

    One client for each value of the column, in the order of the sorted values. Guarantees as
    ``partition``.
    Raises ValueError for an unknown name, or parts that overlap, are empty, or leave a row out.
    """
    size = len(workload.train)
    if name == GIVEN and workload.parts is not None:
        listed = [torch.as_tensor(part) for part in workload.parts]
        check_disjoint(listed, size)
        sizes = [len(part) for part in listed]
        rows = torch.cat([torch.arange(0), *listed]).numpy()
        owner = np.repeat(np.arange(len(sizes)), sizes)
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
        _check_complete(workload.columns[name], name)
        _, owner = np.unique(workload.columns[name], return_inverse=True)
        rows, sizes = np.arange(size), np.bincount(owner).tolist()
    if 0 in sizes:
        raise ValueError(
            f"partition={name} leaves client {sizes.index(0)} without examples: leave that client "
            "out"
        )
    if len(rows) != size:
        raise ValueError(
            f"partition={name} has {len(rows)} of {size} training rows: give every row to a "
            "client, or leave the others out of the training data"
        )
    return _owned(rows, owner, len(sizes))


def _check_complete(values: np.ndarray, name: str) -> None:
    """Raise ValueError, naming the row, unless each row names its client."""
    for row, value in enumerate(() if values.dtype.kind in "biu" else values.tolist()):
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


def check_disjoint(parts: Sequence[Int64[Tensor, " n_k"]], num_examples: int) -> None:
    """Refuse a partition that holds an example more than once.

    Raises ValueError, naming the clients and the example, if two clients hold it or one holds it
    twice (either makes the claimed epsilon false), and if an index is outside [0, num_examples) or
    is not int64.
    """
    if parts and all(part.dtype == torch.int64 and part.ndim == 1 for part in parts):
        rows = torch.cat([part.cpu() for part in parts])
        inside = not len(rows) or 0 <= int(rows.min()) <= int(rows.max()) < num_examples
        if inside and not bool((rows.bincount() > 1).any()):
            return
    owner = torch.full((num_examples,), -1, dtype=torch.int64)
    for client, part in enumerate(parts):
        if part.dtype != torch.int64 or part.ndim != 1:
            raise ValueError(
                f"expected int64 indices (n_k,) of client {client}, got {part.dtype} "
                f"{tuple(part.shape)}"
            )
        if not len(part):
            continue
        low, high = int(part.min()), int(part.max())
        if not 0 <= low <= high < num_examples:
            raise ValueError(
                f"client {client} holds indices {low}..{high}, expected 0..{num_examples - 1}"
            )
        values, counts = part.cpu().unique(return_counts=True)
        if len(values) < len(part):
            raise ValueError(
                f"client {client} holds example {int(values[counts > 1][0])} more than once"
            )
        shared = values[owner[values] >= 0]
        if len(shared):
            raise ValueError(
                f"partitions overlap: clients {int(owner[shared[0]])} and {client} both hold "
                f"example {int(shared[0])} (client {client} shares {len(shared)} with earlier "
                "clients)"
            )
        owner[values] = client


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
        counts = np.stack([_counts(own, size) for own, size in zip(shares, sizes, strict=True)])
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
    for label, own in shares.items():
        rows = np.flatnonzero(labels == label)
        owner[rows] = np.repeat(np.arange(len(own)), _counts(own, len(rows)))
    return owner


_SCHEMES: Mapping[str, Callable[..., np.ndarray]] = MappingProxyType(
    {"iid": _iid, "dirichlet": _dirichlet, "shards": _shards}
)
SCHEMES = tuple(_SCHEMES)
"""Partitions that any workload has; dirichlet and shards read classes."""
