"""The training rows of a process: whose each one is, and how a step reads them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.config.units import Unit
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.workloads import Fetch, LoadedWorkload, Split, fetcher
from fedlsg.simulations.workloads.base.made_ahead import MadeAhead, workers_of
from fedlsg.simulations.workloads.base.parts import Parts
from fedlsg.simulations.workloads.base.split import Augment
from fedlsg.training import Persons


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnData:
    """The data of a deployed client, which does not know the other clients' data.

    client: its number in the federation.
    read: its training rows, in the form of the run's workload.
    expected_batch: that of the federation, once the server has announced it; None assumes clients
        of equal size.
    """

    client: int
    read: Callable[[LoadedWorkload], Split]
    expected_batch: float | None = None


class OwnPart(Sequence[Tensor]):
    """The partition of a federation as one client sees it: all rows here are its own, other clients
    are unknown.
    """

    def __init__(self, client: int, size: int) -> None:
        self.client, self.rows = client, torch.arange(size)

    def __getitem__(self, client: object) -> Any:
        if client != self.client:
            raise LookupError(
                f"client {self.client} knows its own data only, not those of client {client}"
            )
        return self.rows

    def __len__(self) -> int:
        raise LookupError("a deployed client does not know the data of the others")


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRows:
    """The training split in this process. No field changes, so what is cached here is never stale.

    parts: rows of each client.
    person: the number of each row's person where the unit is one, and N_k counts these.
    augment: random changes of inputs, or None.
    device: where batches go.
    """

    settings: Resolved
    train: Split
    parts: Sequence[Tensor]
    person: Int64[Tensor, " rows"] | None
    unit: Unit
    augment: Augment | None
    device: str

    @cached_property
    def fetch(self) -> Fetch:
        """Training examples by their rows, on this process's device."""
        return fetcher(self.train if self.ahead is None else self.ahead.of(self.train), self.device)

    @cached_property
    def ahead(self) -> MadeAhead | None:
        """Workers that make the rows which ``fetch`` will be asked for; None where this process
        makes them.
        """
        workers = workers_of(self.settings, self.train.inputs)
        return MadeAhead(self.train, workers) if workers else None

    @property
    def sizes(self) -> Sequence[int]:
        """N_k of every client. Raises LookupError at a deployed client."""
        if self.person is None and isinstance(self.parts, Parts):
            return self.parts.sizes
        return [self.size_of(client) for client in range(len(self.parts))]

    def size_of(self, client: int) -> int:
        """N_k of a client whose rows are here."""
        persons = self.persons_of(client)
        return len(self.parts[client]) if persons is None else persons.count

    def persons_of(self, client: int) -> Persons | None:
        """The persons of a client's rows, None if the unit is not a person; made once a client."""
        if not self.unit.persons:
            return None
        assert self.person is not None, "rows of a unit of persons have their numbers"
        if client not in self._persons:
            self._persons[client] = Persons(
                self.person[self.parts[client]].unique(return_inverse=True)[1],
                most_rows=self.settings.person_rows,
                gradient=self.settings.person_gradient,
            )
        return self._persons[client]

    @cached_property
    def _persons(self) -> dict[int, Persons]:
        return {}
