"""Which clients are selected in a round: a public draw."""

from collections.abc import Container

import torch

from fedlsg.randomness import public_generator


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
    there = order if available is None else [client for client in order if client in available]
    return sorted(there[:per_round])


def draw_order(clients: int, *, round: int, seed: int) -> list[int]:
    """All clients in the order of a round's public draw: the first ones are selected."""
    order: list[int] = torch.randperm(clients, generator=public_generator(seed, "clients", round)).tolist()
    return order
