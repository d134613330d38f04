"""``Parts``, the one form of a partition: the client of each row; and how a scheme deals rows.

Schemes are those of ``fedlsg.config.partitions``.

Every form in which people have clients becomes ``Parts`` (``partition``, ``client_forms``,
``given_partition``).

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
from collections.abc import Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from fedlsg.config.choices import choose
from fedlsg.config.partitions import IID, SCHEMES, Scheme, check_clients


class Parts(Sequence[Tensor]):
    """The numbers of the rows of each client, ascending.

    Two arrays hold them: all rows, client by client, and the end of each client's slice. A tensor
    of a slice is made when it is asked for.

    Guarantee: the parts are disjoint, because each row has one ``owner``.

    owner: the client of each row; -1 for a row without a client.
    clients: the number of clients.
    names: names of the clients in the data, all different; None without.
    Raises ValueError for an owner outside -1 to ``clients`` - 1.
    """

    def __init__(
        self,
        owner: Int64[np.ndarray, " n"],
        clients: int,
        names: tuple[str, ...] | None = None,
    ) -> None:
        self.names = names
        counts = np.bincount(owner + 1, minlength=clients + 1)
        if len(counts) > clients + 1:
            raise ValueError(f"expected owners -1..{clients - 1} of rows, got {len(counts) - 2}")
        self._count = len(owner)
        rows = np.argsort(owner, kind="stable")[counts[0] :]
        self._rows = rows.astype(np.int32) if len(owner) < 2**31 else rows
        self._ends = np.cumsum(counts[1:])

    @property
    def owner(self) -> Int64[np.ndarray, " n"]:
        """The client of each row; -1 for a row without a client."""
        owner = np.full(self._count, -1)
        owner[self._rows] = np.repeat(np.arange(len(self)), self.sizes)
        return owner

    def label(self, client: int) -> str:
        """What messages call a client: its name in quotes, else its number."""
        return label_of(client, self.names)

    def pick(self, rows: Int64[np.ndarray, " m"]) -> "Parts":
        """The same clients with these rows alone, whose numbers are their places here."""
        return Parts(self.owner[rows], len(self), self.names)

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
            return [self[number] for number in range(*client.indices(len(self)))]
        number = range(len(self))[client]
        end = self._ends[number]
        return torch.from_numpy(self._rows[end - self.sizes[number] : end].astype(np.int64))

    def __len__(self) -> int:
        return len(self._ends)


def partition(
    labels: Shaped[Tensor, "n *target"],
    *,
    num_clients: int,
    scheme: str = IID.name,
    seed: int,
    **settings: Any,
) -> Parts:
    """Numbers of each client's examples, ascending. ``settings``: at least those of the scheme.

    Guarantees: every example belongs to exactly one client, and every client has one. If N does not
    divide evenly, ``iid`` gives the first clients, and ``shards`` the first shards, one example
    more. The result depends on the arguments only, and no global random state is read or moved.

    Raises ValueError for labels that are not classes (int64 of shape (n,)) if the scheme reads
    classes, for num_clients outside 1..N, for an unknown scheme, for a setting out of range, and
    for settings that leave a client without examples.
    """
    check_clients(num_clients, len(labels))
    parts = matching_parts(
        labels, labels, num_clients=num_clients, scheme=scheme, seed=seed, **settings
    )
    if sum(parts.sizes) != len(labels):
        raise RuntimeError(f"{scheme} dealt {sum(parts.sizes)} of {len(labels)} examples")
    if not min(parts.sizes):
        raise ValueError(f"{scheme} leaves a client without examples: lower clients={num_clients}")
    return parts


def matching_parts(
    labels: Shaped[Tensor, "n *target"],
    train: Shaped[Tensor, "m *target"],
    *,
    num_clients: int,
    scheme: str,
    seed: int,
    **settings: Any,
) -> Parts:
    """Rows of a test split, dealt by the rule that ``partition`` draws for the rows ``train``.

    A client may have no row. Raises ValueError as ``partition``.
    """
    if seed < 0:
        raise ValueError(f"expected {seed=} >= 0")
    chosen = choose("partition scheme", scheme, SCHEMES)
    deal = chosen.draw(
        _classes(train, chosen)[_shuffled(len(train), seed)],
        num_clients,
        np.random.Generator(np.random.PCG64(seed)),
        **{name: settings[name] for name in chosen.settings},
    )
    order = _shuffled(len(labels), seed)
    owner = np.empty(len(order), dtype=np.int64)
    owner[order] = deal(_classes(labels, chosen)[order])
    return Parts(owner, num_clients)


def _classes(labels: Tensor, scheme: Scheme) -> Int64[np.ndarray, " n"]:
    """The classes that a scheme reads; zeros for one that reads none."""
    if not scheme.reads_classes:
        return np.zeros(len(labels), dtype=np.int64)
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise ValueError(
            f"{scheme.name} reads classes, int64 of shape (n,), got {labels.dtype} "
            f"{tuple(labels.shape)}"
        )
    return labels.cpu().numpy()


def _shuffled(count: int, seed: int) -> np.ndarray:
    """A public order of examples: the stored order must not decide who gets which example."""
    return np.random.Generator(np.random.PCG64([seed, 1])).permutation(count)


def digest(parts: Sequence[Tensor], before: bytes = b"") -> str:
    """SHA-256, hexadecimal, over ``before``, and the number of rows of each client and its rows."""
    sha = hashlib.sha256(before)
    if isinstance(parts, Parts):
        # each client's size in front of its rows, as below, without a tensor for each client
        starts = parts._ends - parts.sizes
        sha.update(np.insert(parts._rows, starts, parts.sizes).astype("<i8").tobytes())
    else:
        for part in parts:
            sha.update(len(part).to_bytes(8, "little") + part.numpy().tobytes())
    return sha.hexdigest()


def distinct_names(names: Sequence[object], name: str) -> tuple[str, ...]:
    """Names of clients, from values and keys, as texts. Raises ValueError for two equal ones."""
    texts = []
    seen = set[str]()
    for value in names:
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        if text in seen:
            raise ValueError(f"{name}: two clients are named {text!r}: give each its own name")
        seen.add(text)
        texts.append(text)
    return tuple(texts)


def label_of(client: int, names: Sequence[str] | None) -> str:
    """What messages call a client: its name in quotes, else its number."""
    return str(client) if names is None else repr(names[client])


def check_disjoint(
    parts: Sequence[Int64[Tensor, " n_k"]],
    num_examples: int,
    names: Sequence[str] | None = None,
) -> None:
    """Refuse a partition that holds an example more than once.

    Raises ValueError, naming the clients and the example, if two clients hold it or one holds it
    twice (either makes the claimed epsilon false), and if an index is outside [0, num_examples) or
    is not int64.
    """
    # the fast way: one count of all rows; only a partition that fails it is read client by client
    if parts and all(part.dtype == torch.int64 and part.ndim == 1 for part in parts):
        rows = torch.cat([part.cpu() for part in parts])
        inside = not len(rows) or 0 <= int(rows.min()) <= int(rows.max()) < num_examples
        if inside and not bool((rows.bincount() > 1).any()):
            return
    owner = torch.full((num_examples,), -1, dtype=torch.int64)
    for client, part in enumerate(parts):
        label = label_of(client, names)
        if part.dtype != torch.int64 or part.ndim != 1:
            raise ValueError(
                f"expected int64 indices (n_k,) of client {label}, got {part.dtype} "
                f"{tuple(part.shape)}"
            )
        if not len(part):
            continue
        low, high = int(part.min()), int(part.max())
        if not 0 <= low <= high < num_examples:
            raise ValueError(
                f"partition: client {label} has row numbers {low} to {high}, and train has "
                f"{num_examples} rows, 0 to {num_examples - 1}"
            )
        values, counts = part.cpu().unique(return_counts=True)
        if len(values) < len(part):
            raise ValueError(
                f"client {label} holds example {int(values[counts > 1][0])} more than once"
            )
        shared = values[owner[values] >= 0]
        if len(shared):
            other = label_of(int(owner[shared[0]]), names)
            raise ValueError(
                f"partition: clients {other} and {label} both have row {int(shared[0])} "
                f"({len(shared)} rows of client {label} are of earlier clients): give each row to "
                "one client"
            )
        owner[values] = client
