"""How examples are spread over the clients of a prepared run.

It is for simulations only: the counts come from every client's examples. In a federation each
client knows only its own counts, and they are as private as the examples are.
"""

from dataclasses import dataclass

import numpy as np
import torch

from fedlsg.config.partitions import SCHEMES
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.workloads.base.parts import Parts
from fedlsg.simulations.workloads.partition import dealing


@dataclass(frozen=True, kw_only=True, eq=False)
class Balance:
    """Examples of every client by class, and its Poisson rate.

    title: workload, sizes, scheme and seed in words.
    counts: (clients, classes) int64, rows; every client has one.
    sizes: (clients,) int64, N_k, in what ``counted`` names: rows, or persons if they are the unit.
    rates: (clients,) float64, q of each client.
    expected_batch: q times the mean size: examples that a client's step expects.
    delta: None if the method claims no epsilon.
    deltas: of each client, where they have their own.
    names: of clients, if the data have them.
    classes: names of classes, if the data have them.
    dealt: how values were dealt to them.
    """

    title: str
    counts: np.ndarray
    sizes: np.ndarray
    rates: np.ndarray
    expected_batch: float
    delta: float | None
    deltas: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    classes: tuple[str, ...] = ()
    dealt: str = ""
    counted: str = "examples"

    @property
    def batches(self) -> np.ndarray:
        """What a step of every client expects to draw, q N_k."""
        return np.asarray(self.rates * self.sizes)

    @property
    def shares(self) -> np.ndarray:
        """(clients, classes): the class mix of every client; rows add up to 1."""
        return np.asarray(self.counts / self.counts.sum(1, keepdims=True))

    @property
    def distances(self) -> np.ndarray:
        """Total variation distance of each class mix from that of all examples: 0 equal, near 1
        disjoint.
        """
        overall = self.counts.sum(0) / self.counts.sum()
        return np.asarray(0.5 * np.abs(self.shares - overall).sum(1))

    @property
    def delta_holds(self) -> np.ndarray:
        """Whether delta < 1/N_k for each client; true if no delta is needed."""
        deltas = self.delta if self.deltas is None else self.deltas
        return np.ones(len(self.sizes), bool) if deltas is None else deltas < 1 / self.sizes


def measure(base: Base) -> Balance:
    """The balance of a prepared run."""
    s, labels = base.settings, base.workload.train.labels
    classes = base.workload.num_classes
    if classes is None:  # one column: the sizes alone
        labels, classes = torch.zeros(len(labels), dtype=torch.int64), 1
    counts = torch.stack([torch.bincount(labels[part], minlength=classes) for part in base.parts])
    sizes = np.array(base.clients.sizes)
    partition_settings = SCHEMES[s.partition].settings_of(s) if s.partition in SCHEMES else {}
    own_deltas = [delta for _, delta in base.clients.budgets]
    details = "".join(f", {name}={value:g}" for name, value in partition_settings.items())
    return Balance(
        title=f"{s.workload}: {sizes.sum():,} {base.unit.counted} over {len(sizes)} clients, "
        f"{s.partition}{details}, seed {s.seed}",
        counts=counts.numpy(),
        sizes=sizes,
        counted=base.unit.counted,
        rates=np.array(base.clients.rates),
        expected_batch=base.local.expected_batch,
        delta=s.delta if base.method.mechanism.private else None,
        deltas=None if s.client_deltas is None else np.array(own_deltas),
        names=base.clients.names,
        classes=tuple(base.workload.data.get("classes", ())),
        dealt=dealt(base),
    )


def dealt(base: Base) -> str:
    """How values of a column were dealt to clients, in words; empty where they were not."""
    column = base.settings.partition
    if column in SCHEMES or not isinstance(base.parts, Parts):
        return ""
    return dealing(base.workload, column, base.parts, base.unit)
