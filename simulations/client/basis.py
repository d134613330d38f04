"""Where a client without a replica finds the carriers of a probe: what it was sent, what it holds, or its own probe."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from fedlsg.carriers.probe import Basis, flatten, refresh_of, unflatten
from fedlsg.state import PublicState
from simulations.rundir.files import load_bytes, save_bytes
from strategies.federation.downlink import read_basis
from strategies.federation.wire import Announcement


class Kept(Protocol):
    """Where bases are: the server's, for simulated clients, and the file of a client on a machine of its own."""

    def basis(self, round: int, /) -> bytes: ...

    def own_basis(self, client: int, /) -> Path: ...


class Held:
    """The basis that a client, or all simulated clients of a process, hold of a refresh."""

    def __init__(self, state: PublicState) -> None:
        self.state, self.basis = state, None

    basis: Basis | None

    def candidates(
        self, announced: Announcement, content: RecordDict, run: Kept, client: int, *, shared: bool
    ) -> Iterator[Basis]:
        """Bases for a round, the likely one first; the digest of their frame says which of them is right.

        ``shared``: clients of one machine read the server's file, in place of a probe of their own.
        """
        round = refresh_of(announced.round, self.state.method.carrier)
        sent = read_basis(content)
        if sent is not None:
            yield read(self.state, sent, round)
        if self.basis is not None and self.basis.round == round:
            yield self.basis
        kept = load(self.state, (lambda: run.basis(round)) if shared else own(run, client, round), round)
        if kept is not None:
            yield kept
        source = self.state.source
        if announced.round == round and source is not None and source.draw is not None:
            yield self.state.probe(round, updates=announced.updates)

    def keep(self, basis: Basis, run: Kept, client: int, *, shared: bool) -> None:
        """This one is right. A client on a machine of its own keeps it in a file, not synced: it can be sent again."""
        if self.basis is not basis and not shared:
            save_bytes(run.own_basis(client), basis.round.to_bytes(8, "little") + to_bytes(basis))
        self.basis = basis


def read(state: PublicState, flat: Tensor, round: int) -> Basis:
    """The basis of a refresh from its numbers. Raises ValueError for numbers that are none."""
    return unflatten(flat, state.method.carrier, state.parameters, state.carried, round=round)


def load(state: PublicState, content: Callable[[], bytes], round: int) -> Basis | None:
    """The basis of a refresh from a file's content; None where that is missing or damaged."""
    try:
        return read(state, torch.from_numpy(np.frombuffer(content(), "<f4").astype(np.float32)), round)
    except (OSError, ValueError):
        return None


def own(run: Kept, client: int, round: int) -> Callable[[], bytes]:
    """The content of a client's own file; it raises ValueError if that is of another refresh."""

    def content() -> bytes:
        found = load_bytes(run.own_basis(client))
        if int.from_bytes(found[:8], "little") != round:
            raise ValueError(f"the basis is not that of round {round}")
        return found[8:]

    return content


def to_bytes(basis: Basis) -> bytes:
    """The numbers of a basis as a file has them."""
    return flatten(basis).cpu().numpy().astype("<f4").tobytes()
