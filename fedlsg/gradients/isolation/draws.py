"""Nobody but fedlsg seeds the generators from which a model and a loss draw inside a pass.

A step seeds the generators of torch, python and numpy in secret. A model that calls
``torch.manual_seed`` draws numbers that everybody knows, by place in the batch: one example that
leaves moves the draws of all after it. So the functions that seed refuse inside
``own_seeds_refused``, and so do those that restore a state, unless that state follows from the seed
of the pass: ``torch.utils.checkpoint`` repeats the draws of a forward pass, which stay secret.

Not seen here: generators of a user's own, such as ``torch.Generator()`` and
``np.random.default_rng(0)``, and functions that were imported by name (``from random import
seed``). The check of independence finds these (``independence``).
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

FIX = (
    "remove the seed and the generator, and draw from torch's own generator (torch.rand, dropout), "
    "which each step seeds in secret"
)


class OwnDrawsError(ValueError):
    """Random draws that the model or the loss seeds itself, so that outsiders know them."""


def refuse(what: str, *given: Any, **named: Any) -> NoReturn:
    """Raise OwnDrawsError for a call that seeds, restores a state or brings a generator."""
    raise OwnDrawsError(
        f"the model or the loss sets its random draws itself ({what}), so that outsiders know "
        f"them, and one example moves the draws of others; {FIX}"
    )


class Guard:
    """Stands for a generator of torch in a pass: gives states, and takes those of its own seed."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator, self.secret = generator, generator.initial_seed()
        self.manual_seed = partial(refuse, "torch.manual_seed")
        self.seed = partial(refuse, "torch.seed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)

    def set_state(self, state: Tensor) -> None:
        """Restore a state of the same seed. Raises OwnDrawsError for another one."""
        before = self.generator.get_state()
        self.generator.set_state(state)
        if self.generator.initial_seed() != self.secret:
            self.generator.set_state(before)
            refuse("torch.set_rng_state")

    def check(self) -> None:
        """Raise OwnDrawsError if the generator was seeded past this guard."""
        if self.generator.initial_seed() != self.secret:
            refuse("a seed of torch's generator")


@contextmanager
def own_seeds_refused() -> Iterator[None]:
    """Inside, calls that seed torch, python or numpy, or set a foreign state, raise OwnDrawsError.

    To be entered after the secret seeds are set, around forward, loss and backward of a pass. Takes
    about ten microseconds. Inside of another one it does nothing. It holds for all threads of the
    process. Raises OwnDrawsError at the end if a generator of torch has another seed than before.
    """
    if isinstance(torch.random.default_generator, Guard):
        yield
        return
    guard = Guard(torch.random.default_generator)
    on_devices = tuple(map(Guard, torch.cuda.default_generators))
    replaced: list[tuple[Any, str, Any]] = [
        (torch, "default_generator", guard),
        (torch.random, "default_generator", guard),
        (torch.cuda, "default_generators", on_devices),
    ]
    for module, names in ((random, ("seed", "setstate")), (np.random, ("seed", "set_state"))):
        replaced += [(module, name, partial(refuse, f"{module.__name__}.{name}")) for name in names]
    before = [(place, name, getattr(place, name)) for place, name, _ in replaced]
    try:
        for place, name, stand_in in replaced:
            setattr(place, name, stand_in)
        yield
    finally:
        for place, name, own in before:
            setattr(place, name, own)
    for each in (guard, *on_devices):
        each.check()
