"""Refuse code of a model or a loss that seeds the generators from which a pass draws.

A step seeds the generators of torch, python and numpy in secret. A model that calls
``torch.manual_seed`` draws numbers that everybody knows, by place in the batch: one example that
leaves moves the draws of all after it. So a seed or a state that code sets inside
``own_seeds_refused``, in a generator of torch or in python's and numpy's global ones, is refused,
by whatever name it was imported (``fedlsg.rows.seeds``). A state of the pass's own seed is allowed:
``torch.utils.checkpoint`` repeats the draws of a forward pass, which stay secret.

Not seen here: other generators of python and numpy, generators that were seeded before the pass,
and other threads. The check of independence finds these (``independence``).
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedlsg.rows.seeds import seeds_replaced

FIX = (
    "remove the seed and the generator, and draw from torch's own generator (torch.rand, dropout), "
    "which each step seeds in secret"
)
SEED_BYTES = 8
"""A state of a generator of torch begins with its seed, of so many bytes."""


_UNSEEDED = [0]
"""The count of ``unseeded``."""


def unseeded() -> int:
    """How many generators without a given seed code made inside ``own_seeds_refused``."""
    return _UNSEEDED[0]


class OwnDrawsError(ValueError):
    """Random draws that the model or the loss seeds itself, so that outsiders know them."""


def refuse(what: str) -> NoReturn:
    """Raise OwnDrawsError for code that seeds, restores a state or brings a generator."""
    raise OwnDrawsError(
        f"the model or the loss sets its random draws itself ({what}), so that outsiders know "
        f"them, and one example moves the draws of others; {FIX}"
    )


@contextmanager
def own_seeds_refused() -> Iterator[None]:
    """Inside, code of this thread that seeds torch, python or numpy gets OwnDrawsError.

    So does code that sets a state. To be entered after the secret seeds are set, around forward,
    loss and backward of a pass.
    """
    generators = torch.default_generator, *torch.cuda.default_generators
    secret = {generator.initial_seed() for generator in generators}
    global_ones = random._inst, np.random.mtrand._rand._bit_generator

    def decide(generator: Any, seeds: tuple[Any, ...]) -> None:
        _UNSEEDED[0] += seeds in ((), (None,))
        if isinstance(generator, torch.Generator):
            states = [value for value in seeds if isinstance(value, Tensor)]
            if any(seed_of(state) in secret for state in states):
                return  # torch.utils.checkpoint
            if generator not in generators:
                refuse("a generator of its own")
            refuse("torch.set_rng_state" if states else "torch.manual_seed")
        elif generator in global_ones:
            refuse("random.seed, np.random.seed or a state")

    with seeds_replaced(decide):
        yield


def seed_of(state: Tensor) -> int:
    """The seed of a state of a generator of torch, on any device."""
    return int.from_bytes(state[:SEED_BYTES].cpu().numpy().tobytes(), "little")
