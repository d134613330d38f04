"""The owner of each training row: every client's part in a simulation, one client's own data in a deployment."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simulations.settings.run import Resolved
from simulations.workloads import Split, Workload
from simulations.workloads.partition import partition


@dataclass(frozen=True, kw_only=True, eq=False)
class Own:
    """The data of a deployed client, which does not know the other clients' data.

    client: its number in the federation. read: its training rows, in the form of the run's workload.
    expected_batch: that of the federation, once the server has announced it; None assumes clients of equal size.
    """

    client: int
    read: Callable[[Workload], Split]
    expected_batch: float | None = None


class OwnPart(Sequence[Tensor]):
    """The partition of a federation as one client sees it: all rows here are its own, other clients are unknown."""

    def __init__(self, client: int, size: int) -> None:
        self.client, self.rows = client, torch.arange(size)

    def __getitem__(self, client: object) -> Any:
        if client != self.client:
            raise LookupError(f"client {self.client} knows its own data only, not those of client {client}")
        return self.rows

    def __len__(self) -> int:
        raise LookupError("a deployed client does not know the data of the others")


def make_parts(settings: Resolved, workload: Workload, own: Own | None) -> Sequence[Tensor]:
    """Each client's rows of the training split; for a client with data of its own, its part alone."""
    if own is not None:
        return OwnPart(own.client, len(workload.train))
    return partition(
        workload.train.labels,
        num_clients=settings.clients,
        scheme=settings.partition,
        seed=settings.seed,
        alpha=settings.alpha,
        shards_per_client=settings.shards_per_client,
    )
