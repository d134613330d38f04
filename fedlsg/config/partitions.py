"""Partitions of rows over clients, for any workload: one object for each scheme, found by its name.

A new scheme is one ``Scheme`` in ``SCHEMES``. The setting, its checks, ``fedlsg partition`` and the
code that deals rows ask it: none of them knows a name. A setting of the scheme's own is a field of
``fedlsg.simulations.settings.federation``, named in ``settings``.

Nothing here imports numpy before rows are dealt.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray
    Generator = np.random.Generator
else:
    Array = Generator = Any

Deal = Callable[[Array], Array]
"""From the classes of rows (n,) int64 to the client of each row (n,) int64; -1 is nobody."""

MAX_DRAWS = 1000
"""Draws of Dirichlet shares until each client has an example."""


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How rows are dealt to clients.

    name: in the settings.
    words: what it does, for a reader.
    draw: ``draw(labels, clients, rng, **settings)`` makes the ``Deal`` of a run from the classes
        (n,) int64 of its training rows in a random order. It deals these rows, and test rows like
        them.
    reads_classes: if false, all labels are 0, and whole persons can be dealt.
    settings: the names of the settings that ``draw`` takes.
    """

    name: str
    words: str
    draw: Callable[..., Deal]
    reads_classes: bool
    settings: tuple[str, ...] = ()

    def settings_of(self, run: object) -> dict[str, Any]:
        """The scheme's own settings of a run."""
        return {name: getattr(run, name) for name in self.settings}


def check_clients(clients: int, rows: int) -> None:
    """Raise ValueError unless each client can have a row."""
    if not 1 <= clients <= rows:
        raise ValueError(
            f"expected clients in 1..{rows}, the number of examples, got clients={clients}: "
            f"give clients={rows} or fewer"
        )


def _draw_even(labels: Array, clients: int, rng: Generator) -> Deal:
    """Equal parts of the rows, which are in a random order already."""

    def deal(labels: Array) -> Array:
        check_clients(clients, len(labels))
        return _even(len(labels), clients)

    return deal


def _draw_shards(labels: Array, clients: int, rng: Generator, *, shards_per_client: int) -> Deal:
    """Equal shards of the rows in the order of their classes, dealt at random."""
    import numpy as np

    shards = clients * shards_per_client
    client_of = np.empty(shards, dtype=np.int64)
    client_of[rng.permutation(shards)] = np.repeat(np.arange(clients), shards_per_client)

    def deal(labels: Array) -> Array:
        if not clients <= shards <= len(labels):
            raise ValueError(
                f"expected {shards_per_client=} >= 1 with num_clients * shards_per_client <= "
                f"{len(labels)}, the number of examples, got {shards}"
            )
        owner = np.empty(len(labels), dtype=np.int64)
        owner[np.argsort(labels, kind="stable")] = client_of[_even(len(labels), shards)]
        return owner

    return deal


def _draw_dirichlet(labels: Array, clients: int, rng: Generator, *, alpha: float) -> Deal:
    """Each class in the shares of ``_shares``; rows of other classes are nobody's."""
    import numpy as np

    shares = _shares(labels, clients, rng, alpha=alpha)

    def deal(labels: Array) -> Array:
        owner = np.full(len(labels), -1)
        for label, share in shares.items():
            rows = np.flatnonzero(labels == label)
            owner[rows] = np.repeat(np.arange(clients), _counts(share, len(rows)))
        return owner

    return deal


def _shares(labels: Array, clients: int, rng: Generator, *, alpha: float) -> Mapping[int, Array]:
    """The share of each client by class, drawn again until every client has one of these
    examples.
    """
    import numpy as np

    if not 0 < alpha < float("inf"):
        raise ValueError(f"expected a finite {alpha=} > 0")
    classes, sizes = np.unique(labels, return_counts=True)
    for _draw in range(MAX_DRAWS):
        shares = rng.dirichlet(np.full(clients, alpha), size=len(sizes))
        if not np.isfinite(shares).all():
            raise ValueError(f"{alpha=} is too extreme to draw from: take one nearer to 1")
        counts = np.stack([_counts(share, size) for share, size in zip(shares, sizes, strict=True)])
        if counts.sum(axis=0).min() >= 1:
            return dict(zip(classes.tolist(), shares, strict=True))
    raise ValueError(
        f"no draw of {MAX_DRAWS} left each of clients={clients} an example at {alpha=}: raise "
        "alpha or lower clients"
    )


def _counts(shares: Array, size: int) -> Array:
    """How many of ``size`` examples each client gets: cumulated shares, rounded down."""
    import numpy as np

    cuts = (np.cumsum(shares) * size).astype(np.int64)[:-1]
    return np.diff(cuts, prepend=0, append=size)


def _even(count: int, parts: int) -> Array:
    """The part of each of ``count`` examples: 0, 0, ..., 1, 1, ...; the first parts may have one
    more.
    """
    import numpy as np

    return np.repeat(np.arange(parts), count // parts + (np.arange(parts) < count % parts))


IID = Scheme(
    name="iid",
    words="a random permutation cut into equal parts (McMahan et al. 2017, sec. 3)",
    draw=_draw_even,
    reads_classes=False,
)
DIRICHLET = Scheme(
    name="dirichlet",
    words="each class is spread over the clients in proportions from Dir(alpha) (Yurochkin et al. "
    "2019)",
    draw=_draw_dirichlet,
    reads_classes=True,
    settings=("alpha",),
)
"""Redrawn until every client has an example.

Differs from Hsu et al. 2019, who draw each client's class mix and give all clients equally many
examples. A client with small shares may have no test row.
"""
SHARDS = Scheme(
    name="shards",
    words="sorted by class, cut into shards_per_client equal shards a client, dealt at random "
    "(McMahan et al. 2017, sec. 3)",
    draw=_draw_shards,
    reads_classes=True,
    settings=("shards_per_client",),
)
SCHEMES: Mapping[str, Scheme] = {scheme.name: scheme for scheme in (IID, DIRICHLET, SHARDS)}
"""All schemes, by name."""

SETTINGS = tuple(name for scheme in SCHEMES.values() for name in scheme.settings)
"""Settings of single schemes."""
ANY = "partition=" + "|".join(SCHEMES)
"""Condition of a rule: the partition is one of these schemes."""
