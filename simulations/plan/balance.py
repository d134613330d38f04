"""The balance of a partition: sizes, class mix and rates of its clients, and whether delta is small enough.

For simulations only: the counts come from every client's examples. In a federation each client knows only its own
counts, and they are as private as the examples are.
"""

from dataclasses import dataclass

import numpy as np
import torch

from simulations.plan.plan import Base


@dataclass(frozen=True, kw_only=True, eq=False)
class Balance:
    """Examples of every client by class, and its Poisson rate.

    counts: (clients, classes) int64; every client has an example.
    rates: (clients,) float64, q of each client.
    expected_batch: q times the mean size; the server divides by it.
    delta: None if the method claims no epsilon.
    """

    title: str
    counts: np.ndarray
    rates: np.ndarray
    expected_batch: float
    delta: float | None

    @property
    def sizes(self) -> np.ndarray:
        """N_k of every client."""
        return np.asarray(self.counts.sum(1))

    @property
    def batches(self) -> np.ndarray:
        """Expected examples of every client in a step, q N_k."""
        return np.asarray(self.rates * self.sizes)

    @property
    def shares(self) -> np.ndarray:
        """(clients, classes): the class mix of every client; rows add up to 1."""
        return np.asarray(self.counts / self.sizes[:, None])

    @property
    def distances(self) -> np.ndarray:
        """Total variation distance of each class mix from that of all examples: 0 equal, near 1 disjoint."""
        overall = self.counts.sum(0) / self.counts.sum()
        return np.asarray(0.5 * np.abs(self.shares - overall).sum(1))

    @property
    def delta_holds(self) -> np.ndarray:
        """Whether delta < 1/N_k for each client; true if no delta is needed."""
        return np.ones(len(self.sizes), bool) if self.delta is None else self.delta < 1 / self.sizes


def measure(base: Base) -> Balance:
    """The balance of a prepared run."""
    s, labels = base.settings, base.workload.train.labels
    classes = base.workload.num_classes
    if classes is None:  # one column: the sizes alone
        labels, classes = torch.zeros(len(labels), dtype=torch.int64), 1
    counts = torch.stack([torch.bincount(labels[part], minlength=classes) for part in base.parts])
    sizes = np.array(base.sizes)
    of = {"dirichlet": f" (alpha {s.alpha:g})", "shards": f" ({s.shards_per_client} a client)"}
    return Balance(
        title=f"{s.workload}: {sizes.sum():,} examples over {len(sizes)} clients, {s.partition}"
        f"{of.get(s.partition, '')}, seed {s.seed}",
        counts=counts.numpy(),
        rates=np.array(base.rates),
        expected_batch=base.local.expected_batch,
        delta=s.delta if base.method.mechanism.private else None,
    )
