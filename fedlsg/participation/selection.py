"""Which clients are selected in a round: a public draw, whose cost is that of the selected clients, not of all."""

from collections.abc import Container, Iterator
from itertools import islice

import torch

from fedlsg.randomness import public_generator

AT_ONCE = 1024
"""64-bit numbers that are drawn together."""


def select_clients(
    clients: int, per_round: int, *, round: int, seed: int, available: Container[int] | None = None
) -> list[int]:
    """Partition ids selected in ``round``, ascending: a public draw without replacement.

    ``available``: only these clients can be selected; all of them are if they are fewer than ``per_round``. Without it
    every client can, and the draw is known before the run.
    Guarantee: of one round, a larger ``per_round`` selects the same clients and more.
    """
    if per_round >= clients and available is None:
        return list(range(clients))
    order = draw_order(clients, round=round, seed=seed)
    there = order if available is None else (client for client in order if client in available)
    return sorted(islice(there, per_round))


def draw_order(clients: int, *, round: int, seed: int) -> Iterator[int]:
    """All clients in the order of a round's public draw: the first ones are selected.

    The shuffle of Fisher and Yates, of which only positions that were swapped are kept. It is ``torch.randperm`` of the
    same generator: its i-th 32-bit number, modulo the clients that are left, says whom the i-th place gets.
    """
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
