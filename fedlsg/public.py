"""What carriers and masks are made from: public values, and nothing else.

A function of a ``Public`` costs no privacy: no field holds a gradient, a batch, or anything else that was computed from
a client's data, except by way of released updates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from fedlsg.frame import Coordinates
from fedlsg.randomness import public_generator

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class RoundTime:
    """When a mask is made: ``round`` (from 1) of ``rounds``, in ``epoch`` (from 0) of ``epochs``. All public."""

    round: int = 1
    rounds: int = 1
    epoch: int = 0
    epochs: int = 1


class Sizes(NamedTuple):
    """Sizes of a carried weight (m, n), a kernel flattened, and of its carriers L (m, r) and R (s, n)."""

    m: int
    r: int
    s: int
    n: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Public:
    """What a function that makes carriers or masks sees, and all of it; the same on the server and on every client.

    ``weights``: W_t of every trainable parameter by name, in model order. ``initial``: W_0 of the same (of those that
    the method needs, for the built-in kinds). Change neither: take a copy. ``carried``: the sizes of each weight that
    is carried. ``coordinates``: the parameters with their L and R of this round, once they are made: a mask has them.
    ``time``: the round. ``updates``: server updates so far. ``seed``: the public seed.
    With ``pruned``, weights that pruning set to 0 are frozen as well, and shares count what is left.
    """

    weights: Mapping[str, Tensor]
    initial: Mapping[str, Tensor] = field(default_factory=dict)
    carried: Mapping[str, Sizes] = field(default_factory=dict)
    coordinates: Sequence[Coordinates] = ()
    time: RoundTime = RoundTime()
    updates: int = 0
    seed: int = 0
    pruned: bool = False
    make_model: Callable[[], nn.Module] | None = field(default=None, repr=False)

    def generator(self, *labels: str | int) -> torch.Generator:
        """The public CPU generator of one draw: equal labels, equal numbers, on every machine and in every round."""
        return public_generator(self.seed, *labels)

    def model(self) -> nn.Module:
        """A copy of the model at W_t in evaluation mode, to probe with synthetic inputs; it may be changed.

        It is a copy of the model as it was built, so that no buffer or attribute holds what a batch left there.
        Raises ValueError where the record was made without a model.
        """
        if self.make_model is None:
            raise ValueError("this record has no model: make it by PublicState.frame")
        model = self.make_model().eval()
        with torch.no_grad():
            for name, W in self.weights.items():
                model.get_parameter(name).copy_(W)
        return model


MakeCarriers = Callable[[Public], Mapping[str, tuple[Tensor, Tensor]]]
"""``make(public)``: (L, R) of every weight in ``public.carried``."""


def call(function: Callable[..., Made], *arguments: Any, public: Public) -> Made:
    """The result of a user's function of ``arguments`` and ``public``.

    Raises ValueError, naming the function, if it changed a weight in place: the model would go on with that.
    """
    before = {name: W._version for name, W in (*public.weights.items(), *public.initial.items())}
    with torch.enable_grad():
        made = function(*arguments, public)
    after = {name: W._version for name, W in (*public.weights.items(), *public.initial.items())}
    if changed := [name for name in before if before[name] != after[name]]:
        raise ValueError(
            f"{name_of(function)} changed {', '.join(changed)} in place: let it work on a copy (W.clone())"
        )
    return made


def name_of(function: Callable[..., object]) -> str:
    """A function's name for an error message; that of the function inside for a ``functools.partial``."""
    while isinstance(function, partial):
        function = function.func
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
