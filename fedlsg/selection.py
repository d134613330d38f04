"""Who takes part in a round: one object for each rule of selection, found by its name.

A new rule is one ``Selection`` in ``SELECTIONS``. The setting, the plan that counts each client's rounds, the server,
the clients of a secure sum, which check whom the server names, and the audit ask it: none of them knows a name.
Nothing here imports torch before a round is drawn.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fedlsg.rules import Rule, needs

AT_ONCE = 1024
"""64-bit numbers that are drawn together."""


def draw_order(clients: int, *, round: int, seed: int) -> Iterator[int]:
    """All clients in the order of a round's public draw: the first ones are selected.

    The shuffle of Fisher and Yates, of which only positions that were swapped are kept. It is ``torch.randperm`` of the
    same generator: its i-th 32-bit number, modulo the clients that are left, says whom the i-th place gets. (From
    2^32 / 20 clients on torch shuffles in another way.)
    """
    import torch

    from fedlsg.randomness import public_generator

    generator, moved, place = public_generator(seed, "clients", round), dict[int, int](), 0
    while place < clients:
        drawn = torch.empty(AT_ONCE, dtype=torch.int64).random_(-(2**63), None, generator=generator)
        for number in drawn.tolist():
            for half in ((number >> 32) & 0xFFFFFFFF, number & 0xFFFFFFFF):
                if place == clients:
                    return
                here, other = moved.pop(place, place), place + half % (clients - place)
                if other == place:
                    yield here
                else:
                    yield moved.get(other, other)
                    moved[other] = here
                place += 1


@dataclass(frozen=True, kw_only=True)
class Selection:
    """``name``: in the settings. ``order``: all clients, best first, from their number, ``round`` and ``seed``.

    A public rule is known before the run: what a client is charged for follows from the rounds that it has, and no
    amplification is claimed (``sample_rate``). The server may replace clients that fail by the next ones in the order.
    ``secret``: the server alone draws, each client on its own with the chance that is claimed, and only noisy sums
    leave it: then that chance is the rate of a Poisson sample of clients, for the accountant. All who are there can be
    drawn, and the order says nothing.
    ``rules``: what it needs, each with ``of="selection=NAME"``.
    """

    name: str
    order: Callable[..., Iterator[int]] = draw_order
    secret: bool = False
    rules: tuple[Rule, ...] = ()

    def select(
        self, clients: int, per_round: int, *, round: int, seed: int, available: Container[int] | None = None
    ) -> list[int]:
        """Partition ids that can take part in ``round``, ascending: those of a public rule do.

        ``available``: only these clients can be selected; all of them are if they are fewer than ``per_round``. Without
        it every client can, and the draw is known before the run.
        Guarantee: of one round, a larger ``per_round`` selects the same clients and more.
        """
        if per_round >= clients and available is None:
            return list(range(clients))
        order = self.order(clients, round=round, seed=seed)
        there = order if available is None else (client for client in order if client in available)
        return sorted(islice(there, per_round))

    def sample_rate(self, clients: int, per_round: int) -> float:
        """The chance of a client to be in a round that may be claimed: 1.0 where it is known who is."""
        return per_round / clients if self.secret else 1.0

    def draw(self, clients: int, per_round: int, stream: Any) -> list[int]:
        """The clients of a secret round, ascending and perhaps none: a Poisson sample at the rate that is claimed."""
        from fedlsg.privacy.sampling import poisson_batch

        drawn: list[int] = poisson_batch(clients, self.sample_rate(clients, per_round), stream).tolist()
        return drawn
