"""Couple the random draws of passes: an example gets the same numbers in a batch as alone.

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
"""torch's tag of operations that draw from a generator."""
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
"""Parts of the names of operations whose rounding may depend on the number of examples."""


class UncoupledDrawError(ValueError):
    """A draw that depends on data, so that it cannot be repeated by example."""


class Draws(TorchDispatchMode):
    """The random draws of one-example passes, repeated for each example of a batch.

    Guarantee inside the context: the k-th draw of a pass has the numbers of the k-th draw of the
    first pass, repeated along the one dimension that is longer. A draw of the same shape in every
    batch is repeated unchanged.
    Differs from the distribution in training: all examples share one mask.
    seed: of all generators, from the argument ``number``.
    batch: number of examples of the pass.
    common: whether a batch had a draw that does not grow with it, such as one Bernoulli draw.
    first: the draws of the first pass, in order.
    place: number of draws in this pass so far.
    in_loss: whether the loss has begun. The forward pass of the model is before it.
    coarsest: largest machine epsilon of the types in which the model took sums.
    coarsest_later: the same from the loss on.
    largest: root mean square of the largest result of a sum in the model, in this pass.
    work: how many numbers these results have together.
    generators: torch's own, whose seed must stay ``seed``.
    Raises UncoupledDrawError for a draw whose distribution depends on a tensor. Raises
    OwnDrawsError for a draw from a generator that the model or the loss brings, or that they
    seeded: its state does not follow from the seed of the pass.
    """

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.seed = FIRST_SEED + number
        self.batch = 1
        self.common = False
        self.first: list[Tensor] = []
        self.coarsest = self.coarsest_later = float(torch.finfo(torch.float64).eps)
        self.generators: list[Any] = []
        self.start()

    def start(self) -> None:
        """Begin a pass."""
        self.place = self.work = 0
        self.largest = 0.0
        self.in_loss = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        draws, sums = draws_and_sums(func)
        if not draws or is_dropout_off(func, args, kwargs):
            out = func(*args, **kwargs)
            if sums:
                self._watch(out)
            return out
        self._check_generators(func, args, kwargs)
        if func is torch.ops.aten.native_dropout.default:  # returns the output and the mask
            x, p = args[0], args[1]
            kept = self._repeat(torch.empty_like(x).bernoulli_(1 - p))
            return x * kept / max(1 - p, torch.finfo(x.dtype).tiny), kept.bool()
        numbers = func(*args, **kwargs)
        if depends_on_data(func):
            raise UncoupledDrawError(
                f"a draw whose distribution depends on a tensor ({func}), which cannot be repeated "
                "by example; draw first and use the tensor then (mu + std * torch.randn_like(mu) "
                "for torch.normal, torch.rand_like(p) < p for torch.bernoulli), or freeze what "
                "draws by eval()"
            )
        repeated = self._repeat(numbers)
        return args[0].copy_(repeated) if func._schema.is_mutable else repeated

    def _check_generators(self, func: Any, args: Any, kwargs: Any) -> None:
        generator = dict(arguments_of(func, args, kwargs)).get("generator")
        if generator is not None and generator is not torch._C.default_generator:
            refuse(f"generator= of {func._schema.name.removeprefix('aten::')}")
        if any(generator.initial_seed() != self.seed for generator in self.generators):
            refuse("a seed or a state of torch's generator")

    def _repeat(self, numbers: Tensor) -> Tensor:
        """The draw of the first pass at this place, repeated to the shape of ``numbers``.

        ``numbers`` themselves in the first pass, and if the shapes do not fit.
        """
        place = self.place
        self.place += 1
        if place >= len(self.first):
            self.first.append(numbers.clone())
            return numbers
        first = self.first[place]
        if first.shape == numbers.shape:
            self.common |= self.batch > 1
            return first
        longer = longer_dimension(first.shape, numbers.shape)
        if longer is None:
            return numbers
        dim, times = longer
        return first.repeat([times if d == dim else 1 for d in range(first.ndim)])

    def _watch(self, out: Any) -> None:
        """Note type, size and count of the result of a sum, the first one of several."""
        result = out[0] if isinstance(out, tuple) and out else out
        if not isinstance(result, Tensor) or not result.is_floating_point() or not result.numel():
            return
        eps = float(torch.finfo(result.dtype).eps)
        if self.in_loss:
            self.coarsest_later = max(self.coarsest_later, eps)
            return
        self.coarsest = max(self.coarsest, eps)
        rms = float(result.norm()) / result.numel() ** 0.5
        self.largest = max(self.largest, rms if isfinite(rms) else 0.0)
        self.work += result.numel()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: otherwise torch would import its compiler, which takes seconds."""
        return False


@cache  # by its arguments alone: never stale
def draws_and_sums(func: Any) -> tuple[bool, bool]:
    """Whether an operation may draw, and whether it sums."""
    return RANDOM in func.tags, any(part in func._schema.name for part in SUMS)


def arguments_of(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of an operation's arguments, with defaults."""
    for number, argument in enumerate(func._schema.arguments):
        keyword = kwargs.get(argument.name, argument.default_value)
        yield argument.name, args[number] if number < len(args) else keyword


def is_dropout_off(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation with dropout draws nothing, because its dropout is switched off."""
    for name, value in arguments_of(func, args, kwargs):
        if name in ("dropout_p", "dropout"):
            return bool(value == 0)
        if name == "train" and func is torch.ops.aten.native_dropout.default:
            return value is False
    return False


def depends_on_data(func: Any) -> bool:
    """Whether the distribution of a draw depends on the values of a tensor, not on its shape."""
    types = [str(argument.type) for argument in func._schema.arguments]
    tensors = sum(name.startswith(("Tensor", "Optional[Tensor")) for name in types)
    # of t.normal_() and rand_like(t), only the shape of t is read
    reads_shape = func._schema.is_mutable or func._schema.name.endswith("_like")
    return tensors > (1 if reads_shape else 0)


def longer_dimension(alone: torch.Size, together: torch.Size) -> tuple[int, int] | None:
    """The one dimension in which ``together`` is longer than ``alone``, and the factor.

    None if they differ in other ways.
    """
    if len(alone) != len(together):
        return None
    differing = [d for d in range(len(alone)) if alone[d] != together[d]]
    if len(differing) != 1:
        return None
    (dim,) = differing
    if not alone[dim] or together[dim] % alone[dim]:
        return None
    return dim, together[dim] // alone[dim]


@contextmanager
def couple(draws: Draws, device: torch.device) -> Iterator[None]:
    """Couple the draws of a pass; on exit the states of all generators are restored.

    Fused attention draws inside its kernel, so torch computes attention from its parts here.
    Raises OwnDrawsError if somebody seeds a generator inside.
    """
    with own_draws(device.type):
        seed_draws(draws.seed, device.type)
        draws.start()
        generators = (torch._C.default_generator, *torch.cuda.default_generators)
        draws.generators = [g for g in generators if g.initial_seed() == draws.seed]
        before = _uncoupled_states()
        with sdpa_kernel(SDPBackend.MATH), own_seeds_refused(), draws:
            yield
        draws.common |= before != _uncoupled_states()


def _uncoupled_states() -> bytes:
    """The states of the generators of Python and numpy, whose draws are not coupled by example."""
    return pickle.dumps((random.getstate(), np.random.get_state()))
