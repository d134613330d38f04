"""Public: the public values from which carriers and masks are made.

A function of a ``Public`` costs no privacy. No field holds a gradient, a batch, or anything else
that was computed from a client's data; weights depend on data through released updates alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from traceback import extract_tb
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedlsg.frame import Coordinates
from fedlsg.frame.forms import Sizes
from fedlsg.randomness import public_generator

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class RoundTime:
    """The time of a mask; all public.

    round, rounds: the round, from 1, and the number of rounds.
    epoch, epochs: the epoch, from 0, and the number of epochs.
    per_round: epochs in a round.
    """

    round: int = 1
    rounds: int = 1
    epoch: int = 0
    epochs: int = 1
    per_round: float = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Public:
    """The only argument of functions that make carriers or masks; equal on server and clients.

    weights: W_t of every trainable parameter by name, in model order. Do not change it: take a
        copy.
    initial: W_0 of the same parameters; for the built-in kinds only of those that the method needs.
        Do not change it.
    carried: the sizes of each weight that is carried.
    coordinates: the parameters with their L and R of this round, for masks; empty while carriers
        are made.
    pairs: the (L, R) that a probe made at its last refresh.
    energies: the energies that a probe predicts for the rows and the columns of each carried weight
        (``probe.Pair``).
    time: the round.
    updates: server updates so far.
    seed: the public seed.
    pruned: whether weights that pruning set to 0 are frozen as well; shares then count the others.
    make_model: builds the model of ``model()``; None without one.
    """

    weights: Mapping[str, Tensor]
    initial: Mapping[str, Tensor] = field(default_factory=dict)
    carried: Mapping[str, Sizes] = field(default_factory=dict)
    coordinates: Sequence[Coordinates] = ()
    pairs: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    energies: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    time: RoundTime = RoundTime()
    updates: int = 0
    seed: int = 0
    pruned: bool = False
    make_model: Callable[[], nn.Module] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("weights", "initial", "carried", "pairs", "energies"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def generator(self, *labels: str | int) -> torch.Generator:
        """The public CPU generator of one draw: equal labels give equal numbers, on every machine
        and in every round.
        """
        return public_generator(self.seed, *labels)

    def model(self) -> nn.Module:
        """A copy of the model at W_t in evaluation mode, to probe with synthetic inputs; it may be
        changed.

        It is built anew, so that no buffer or attribute holds values of a batch.
        Raises ValueError if these values were made without a model.
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
    """The result of a user's function, called with ``arguments`` and ``public``.

    Raises ValueError, naming the function and its line, if it fails, or if it changed a weight in
    place: the model would continue with that.
    """
    before = _versions(public)
    try:
        with torch.enable_grad():
            made = function(*arguments, public)
    except Exception as error:
        code = getattr(_inside(function), "__code__", None)
        file = getattr(code, "co_filename", None)
        lines = [step.lineno for step in extract_tb(error.__traceback__) if step.filename == file]
        line = f" in line {lines[-1]}" if lines else ""
        raise ValueError(
            f"{name_of(function)} failed{line}: {type(error).__name__}: {error}"
        ) from error
    after = _versions(public)
    changed = [name for name in before if before[name] != after[name]]
    if changed:
        raise ValueError(
            f"{name_of(function)} changed {', '.join(changed)} in place: let it work on a copy "
            "(W.clone())"
        )
    return made


def _versions(public: Public) -> dict[str, tuple[int, ...]]:
    """How often each weight, of W_t and W_0, was changed in place."""
    pairs = {
        name: (public.weights.get(name), public.initial.get(name))
        for name in {**public.initial, **public.weights}
    }
    return {name: tuple(W._version for W in pair if W is not None) for name, pair in pairs.items()}


def _inside(function: Callable[..., object]) -> Callable[..., object]:
    """The function inside of any ``functools.partial``."""
    while isinstance(function, partial):
        function = function.func
    return function


def name_of(function: Callable[..., object]) -> str:
    """A function's name for an error message, without any ``functools.partial``."""
    inside = _inside(function)
    return f"{inside.__module__}.{getattr(inside, '__qualname__', type(inside).__qualname__)}"
