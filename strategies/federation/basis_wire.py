"""The carriers of a probe on their way to clients that cannot derive them: those that were not there at the refresh.

basis   one flat float32 array: L, R and both energies of every carried weight (``fedlsg.carriers.probe.flatten``)
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from fedlsg.carriers.probe import Basis, flatten
from fedlsg.state import ServerState
from strategies.federation.replica_wire import Records
from strategies.federation.wire import flat_record, read_array

Keep = Callable[[Basis], None]
"""Called with the basis of a refresh before any client is asked for it."""


def basis_record(basis: Basis) -> ArrayRecord:
    """All numbers of a basis."""
    return flat_record(flatten(basis))


def read_basis(content: RecordDict) -> Tensor | None:
    """The flat basis of a message, or None. KeyError or ValueError for a record that is none."""
    record = content.array_records.get("basis")
    return None if record is None else torch.from_numpy(read_array(record["flat"]))


def keep_nowhere(basis: Basis) -> None:
    """Nothing: every client has to derive the basis, or to be sent it."""


class Holders:
    """Which clients hold the basis of the current refresh: those whose reply in a round since then was valid.

    At the refresh itself clients derive the basis; after it, one that does not hold it is sent it.
    """

    def __init__(self, state: ServerState, keep: Keep = keep_nowhere) -> None:
        self.state, self._keep, self._kept = state, keep, 0
        self.round, self.held = 0, set[int]()

    def records(self, selected: Collection[int], framed: Collection[int] = ()) -> Mapping[int, Records]:
        """The ``basis`` record for those of the clients that need it; ``framed`` derive another one."""
        basis = self.state.basis
        if basis is None:
            return {}
        if basis.round != self._kept:
            self._keep(basis)
            self._kept = basis.round
        if basis.round != self.round:
            self.round, self.held = basis.round, set()
        differ = set(framed) & set(selected)
        self.held -= differ
        needed = differ if self.refreshes else set(selected) - self.held
        record = basis_record(basis) if needed else None
        return {client: {"basis": record} for client in needed if record is not None}

    @property
    def refreshes(self) -> bool:
        """Whether the round that is announced is a refresh."""
        return self.state.basis is not None and self.state.basis.round == self.state.next_round

    @property
    def missed_numbers(self) -> int:
        """Numbers in the basis if a client without it has to be sent it now, else 0."""
        basis = self.state.basis
        return 0 if basis is None or self.refreshes else len(flatten(basis))

    def confirm(self, partitions: Collection[int]) -> None:
        """The replies of these clients show that they hold the basis."""
        if self.state.basis is not None:
            self.held |= set(partitions)

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint; none where nothing is probed."""
        return {} if self.state.public.source is None else {"basis": {"round": self.round, "held": sorted(self.held)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``."""
        found = state.get("basis", {"round": 0, "held": []})
        self.round, self.held = found["round"], set(found["held"])
