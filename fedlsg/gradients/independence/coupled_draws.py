"""Random draws of a forward pass, coupled: each example of a batch gets those that it gets alone.

Dropout masks and the like are drawn by position in the batch. Two passes over the same example in
different batches would then differ although the model treats examples independently. ``Draws``
records what a pass over one example draws and gives every example of later passes the same numbers.
The masks stay in force, so they hide no layer after them: the masks are equal for all examples, and
the examples are not.

Draws no noise and reads public probe inputs only.
"""

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from fedlsg.gradients.isolation.secret_seeds import own_seeds_refused, refuse
from fedlsg.randomness import own_draws, seed_draws

FIRST_SEED = 0x6665646C7368
"""Seed of the first passes. No user's code would choose it, so that a seed of its own shows."""
RANDOM = torch.Tag.nondeterministic_seeded
SUMS = (
    "mm",
    "conv",
    "norm",
    "sum",
    "mean",
    "var",
    "std",
    "softmax",
    "dot",
    "gru",
    "lstm",
    "rnn",
    "attention",
)
"""Parts of the names of operations whose rounding may depend on how many examples there are."""


class UncoupledDrawError(ValueError):
    """A draw that depends on data, so that it cannot be repeated by example."""


class Draws(TorchDispatchMode):
    """The random draws of one-example passes, repeated for each example of a batch.

    Guarantee inside the context: the k-th draw of a pass has the numbers of the k-th draw of the
    first pass, repeated along the one dimension that is longer. A draw of the same shape in every
    batch is repeated unchanged.
    Differs from the distribution in training: all examples share one mask.
    number: of the seed, which is the same for all generators. batch: examples of the pass.
    common: whether a batch had a draw that no example has for itself, such as a coin.
    coarsest: the largest unit in the last place of any type in which the forward pass took sums;
        coarsest_later: the same from the loss on, which in_loss says.
    largest, work: root mean square of the largest of these sums, and how many numbers they have.
    Raises UncoupledDrawError for a draw whose distribution depends on a tensor. Raises
    OwnDrawsError for a draw from a generator that the model or the loss brings, or that they
    seeded: its state does not follow from the seed of the pass.
    """

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.seed, self.batch, self.common = FIRST_SEED + number, 1, False
        self.first: list[Tensor] = []
        self.coarsest = self.coarsest_later = float(torch.finfo(torch.float64).eps)
        self.generators: list[Any] = []
        self.start()

    def start(self) -> None:
        """Begin a pass."""
        self.place, self.work, self.largest, self.in_loss = 0, 0, 0.0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        draws, sums = kind(func)
        if not draws or draws_nothing(func, args, kwargs):
            out = func(*args, **kwargs)
            if sums:
                self._watch(out)
            return out
        self._check_generators(func, args, kwargs)
        if func is torch.ops.aten.native_dropout.default:
            x, p = args[0], args[1]
            kept = self._again(torch.empty_like(x).bernoulli_(1 - p))
            return x * kept / max(1 - p, torch.finfo(x.dtype).tiny), kept.bool()
        drawn = func(*args, **kwargs)
        if depends_on_data(func):
            raise UncoupledDrawError(
                f"a draw whose distribution depends on a tensor ({func}), which cannot be repeated "
                "by example; draw first and use the tensor then (mu + std * torch.randn_like(mu) "
                "for torch.normal, torch.rand_like(p) < p for torch.bernoulli), or freeze what "
                "draws by eval()"
            )
        again = self._again(drawn)
        return args[0].copy_(again) if func._schema.is_mutable else again

    def _check_generators(self, func: Any, args: Any, kwargs: Any) -> None:
        own = dict(arguments_of(func, args, kwargs)).get("generator")
        if own is not None and own is not torch._C.default_generator:
            refuse(f"generator= of {func._schema.name.removeprefix('aten::')}")
        if any(generator.initial_seed() != self.seed for generator in self.generators):
            refuse("a seed or a state of torch's generator")

    def _again(self, drawn: Tensor) -> Tensor:
        """The draws of the first pass in the shape of these."""
        place, self.place = self.place, self.place + 1
        if place >= len(self.first):
            self.first.append(drawn.clone())
            return drawn
        first = self.first[place]
        if first.shape == drawn.shape:
            self.common |= self.batch > 1
            return first
        longer = longer_dimension(first.shape, drawn.shape)
        if longer is None:
            return drawn
        dim, times = longer
        return first.repeat([times if d == dim else 1 for d in range(first.ndim)])

    def _watch(self, out: Any) -> None:
        made = out[0] if isinstance(out, tuple) and out else out
        if not isinstance(made, Tensor) or not made.is_floating_point() or not made.numel():
            return
        eps = float(torch.finfo(made.dtype).eps)
        if self.in_loss:
            self.coarsest_later = max(self.coarsest_later, eps)
            return
        self.coarsest = max(self.coarsest, eps)
        size = float(made.norm()) / made.numel() ** 0.5
        self.largest = max(self.largest, size if isfinite(size) else 0.0)
        self.work += made.numel()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: otherwise torch would import its compiler, which takes seconds."""
        return False


@cache  # by its arguments alone: never stale
def kind(func: Any) -> tuple[bool, bool]:
    """Whether an operation may draw, and whether it sums."""
    return RANDOM in func.tags, any(part in func._schema.name for part in SUMS)


def arguments_of(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    """The arguments of a call of an operation by their names, defaults among them."""
    for number, argument in enumerate(func._schema.arguments):
        given = kwargs.get(argument.name, argument.default_value)
        yield argument.name, args[number] if number < len(args) else given


def draws_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether dropout is switched off in an operation that may draw."""
    for name, given in arguments_of(func, args, kwargs):
        if name in ("dropout_p", "dropout"):
            return bool(given == 0)
        if name == "train" and func is torch.ops.aten.native_dropout.default:
            return given is False
    return False


def depends_on_data(func: Any) -> bool:
    """Whether the distribution of a draw depends on the values of a tensor, not on its shape."""
    types = [str(argument.type) for argument in func._schema.arguments]
    tensors = sum(name.startswith(("Tensor", "Optional[Tensor")) for name in types)
    shape_only = func._schema.is_mutable or func._schema.name.endswith("_like")
    return tensors > (1 if shape_only else 0)


def longer_dimension(alone: torch.Size, together: torch.Size) -> tuple[int, int] | None:
    """The one dimension in which ``together`` is a multiple of ``alone``, and the factor."""
    if len(alone) != len(together):
        return None
    other = [d for d in range(len(alone)) if alone[d] != together[d]]
    if len(other) != 1 or not alone[other[0]] or together[other[0]] % alone[other[0]]:
        return None
    return other[0], together[other[0]] // alone[other[0]]


@contextmanager
def couple(draws: Draws, device: torch.device) -> Iterator[None]:
    """Couple the draws of a pass; on exit the states of all generators are restored.

    Fused attention draws inside its kernel, so torch computes attention from its parts here.
    Raises OwnDrawsError if somebody seeds a generator inside.
    """
    with own_draws(device.type):
        seed_draws(draws.seed, device.type)
        draws.start()
        everywhere = (torch._C.default_generator, *torch.cuda.default_generators)
        draws.generators = [each for each in everywhere if each.initial_seed() == draws.seed]
        before = _uncoupled()
        with sdpa_kernel(SDPBackend.MATH), own_seeds_refused(), draws:
            yield
        draws.common |= before != _uncoupled()


def _uncoupled() -> bytes:
    """The states of the generators whose draws are not coupled by example."""
    return pickle.dumps((random.getstate(), np.random.get_state()))
