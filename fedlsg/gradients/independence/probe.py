"""A copy of a model with public probe examples, and one pass over a batch of them as a client would make it.

Gradients are those of ``per_example_gradients`` in random carriers of rank 1: a difference shows in any projection, and
the gradient of a whole weight is not formed for every example.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from fedlsg.frame import Block, Coordinates, Frame, Keep, make_blocks
from fedlsg.gradients.called import in_type
from fedlsg.gradients.calls.registry import ways_of
from fedlsg.gradients.formulas.layers import can_be_carried
from fedlsg.gradients.independence.coupled_draws import Draws, couple
from fedlsg.gradients.independence.trace import Trace, tensors, trace_modules
from fedlsg.gradients.known import known
from fedlsg.gradients.loss_contents import other_leaves, untrained
from fedlsg.gradients.losses import PerExampleLoss
from fedlsg.gradients.per_example import Batch, LossFunction, batch_size, per_example_gradients, survey_of
from fedlsg.gradients.supported import UnsupportedLayerError, trainable, unsupported
from fedlsg.user_code.failure import describe, is_own

LARGE = 30.0
MOVED = 0.1
COLUMNS = 8
"""Columns that are compared of a dense matrix."""
FIX = (
    "compute every example from itself alone, without a sum, mean, sort, softmax or recurrence over dimension 0, the "
    "batch, and without a memory of earlier batches"
)

NO_GRADIENT = (
    "its losses have no gradient of any trained parameter, so that a step would be noise alone; compute them from the "
    "outputs without detach(), item(), argmax() or torch.no_grad()"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """One pass: the trace, and losses and gradients by row. ``members`` are the probes in the batch.

    ``learns``: whether the losses depend on trained parameters.
    """

    members: tuple[int, ...]
    trace: Trace
    losses: Float64[Tensor, " b"]
    gradients: Mapping[str, Float64[Tensor, "b kept"]]
    learns: bool = True

    @cached_property
    def length(self) -> float:
        """Norm of the first row's whole gradient."""
        return math.hypot(*(float(rows[0].norm()) for rows in self.gradients.values()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A copy of the model with probes: the given ones, then the same ones ``LARGE`` times as large."""

    model: nn.Module
    loss_fn: LossFunction
    inputs: Batch
    targets: Batch
    count: int
    frame: Frame
    loss_dtype: torch.dtype | None = None
    draws: Draws = field(default_factory=Draws)

    def run_in_company(self, size: int, like: Trace) -> Outcome:
        """Probes 0 and 1 in a batch of a size; without the large neighbour if the model fails on it."""
        members = company(size, self.count)
        try:
            return self.run(members, like)
        except UnsupportedLayerError as error:
            if error.__cause__ is None or max(members) < self.count:
                raise
            return self.run([member % self.count for member in members], like)

    def run(self, members: Sequence[int], like: Trace | None = None) -> Outcome:
        """Forward and backward of a batch. An error inside the model names the layer that raised it."""
        self.draws.batch = len(members)
        trace, kept = Trace(batch=len(members), like=like), []

        def loss(outputs: Any, targets: Any) -> Tensor:
            self.draws.in_loss = True
            if self.loss_dtype is not None:
                outputs, targets = in_type(outputs, self.loss_dtype), in_type(targets, self.loss_dtype)
            losses = self._losses(outputs, targets)
            if like is None and (others := other_leaves(losses, self.model)):
                raise UnsupportedLayerError(untrained(others))
            kept.append((losses.detach().double().cpu(), losses.requires_grad))
            if losses.grad_fn is not None:
                trace.places[losses.grad_fn] = ("", "loss", 1, 0)
            return losses

        rows = torch.tensor(members)
        chosen = pick(self.inputs, rows), pick(self.targets, rows)
        device = next(self.model.parameters()).device
        try:
            with trace_modules(self.model, trace), couple(self.draws, device):
                blocks = per_example_gradients(self.model, loss, *chosen, self.frame)
        except UnsupportedLayerError:
            raise
        except Exception as error:
            if is_own(error) and not trace.running:
                raise
            given = ", ".join(f"{name} {forms(part)}" for name, part in zip(("inputs", "targets"), chosen, strict=True))
            what = f"fails with {describe(error)}, on a batch of {len(members)} ({given})"
            what += f"; {FIX}" if len(members) > 1 else ""
            if not trace.running:
                raise UnsupportedLayerError(f"the backward pass {what}") from error
            path = trace.running[-1]
            raise unsupported(path, self.model.get_submodule(path), what) from error
        gradients: dict[str, list[Tensor]] = {}
        for block, value in zip(self.frame.blocks, blocks, strict=True):
            gradients.setdefault(block.parameter, []).append(value.double().cpu())
        joined = {name: torch.cat(parts, 1) for name, parts in gradients.items()}
        losses, learns = kept[0]
        return Outcome(members=tuple(members), trace=trace, losses=losses, gradients=joined, learns=learns)

    def _losses(self, outputs: Any, targets: Any) -> Tensor:
        """The losses. An error inside of a user's function names its line."""
        try:
            return self.loss_fn(outputs, targets)
        except Exception as error:
            if is_own(error):
                raise
            given = f"outputs {forms(outputs)}, targets {forms(targets)}"
            raise UnsupportedLayerError(f"the loss function: fails with {describe(error)}, on {given}") from error


def prepare(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    dtype: torch.dtype | None,
    loss_dtype: torch.dtype | None,
    *,
    by_number: bool = False,
) -> Subject:
    """The subject in ``dtype``, or in the model's own type if that is None; the loss reads ``loss_dtype``, or that."""
    copied = copy_of(model)
    if dtype is not None:
        copied = copied.to(dtype)
    if isinstance(loss_fn, PerExampleLoss):
        p = next(iter(trainable(copied).values()))
        loss_fn = loss_fn.copy_like(p.detach().to(loss_dtype or p.dtype))
    generator = torch.Generator().manual_seed(0)
    coordinates = []
    ways = ways_of(copied)
    for name, p in trainable(copied).items():
        with torch.no_grad():
            size = float(p.square().mean().sqrt()) * MOVED or 0.02
            p.add_(torch.randn(p.shape, generator=generator).to(p) * size)
        owner, _, attribute = name.rpartition(".")
        fits = attribute == "weight" and can_be_carried(copied.get_submodule(owner))
        carried = fits and name not in ways.others
        pair = (unit(p.shape[0], 1, p, generator), unit(1, p[:1].numel(), p, generator)) if carried else (None, None)
        coordinates.append(Coordinates(name=name, shape=tuple(p.shape), L=pair[0], R=pair[1]))
    count = batch_size(inputs, targets)
    inputs, targets = (each(t, lambda x: x if dtype is None else floats(x, dtype)) for t in (inputs, targets))
    inputs = each(inputs, lambda x: widen(x, generator, by_number=by_number))
    targets = each(targets, lambda x: torch.cat([x, x]))
    frame = Frame(coordinates=tuple(coordinates), blocks=tuple(map(narrow, make_blocks(coordinates))))
    with suppress(Exception):  # what fails here fails in the first pass, too, where the layer is named
        survey_of(copied, inputs, trainable(copied), known(copied).answers)
    return Subject(
        model=copied, loss_fn=loss_fn, inputs=inputs, targets=targets, count=count, frame=frame, loss_dtype=loss_dtype
    )  # fmt: skip


def copy_of(model: nn.Module) -> nn.Module:
    """A copy of the model. Raises UnsupportedLayerError for what torch does not copy: a tensor that has a graph, a
    function in place of ``forward``, which would call the module that it was made for."""
    for path, module in model.named_modules():
        if isinstance(vars(module).get("forward"), FunctionType):
            reason = "its forward was replaced by a function, which copies of the model share"
            raise unsupported(path, module, f"{reason}; make it a method: types.MethodType(function, module)")
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                reason = f"its attribute {name} was computed from parameters, so that the model cannot be copied"
                raise unsupported(path, module, f"{reason}; store {name}.detach(), or compute it in forward")
    return copy.deepcopy(model)


def narrow(block: Block) -> Block:
    """A few columns of a large dense matrix, such as an embedding: a whole one for each example needs much memory."""
    if block.part != "dense" or len(block.shape) != 2 or block.size < 2**16:
        return block
    columns = torch.linspace(0, block.shape[1] - 1, min(COLUMNS, block.shape[1])).long().unique()
    return replace(block, keep=Keep(axis=1, index=columns))


def company(size: int, count: int) -> list[int]:
    """The probes of a batch: 0 and 1, which are compared, first and last, and neighbours between them.

    One neighbour is large, one is probe 0 again. A batch of two has the probes the other way round.
    """
    if size == 2:
        return [1, 0]
    others = [2 + k % (count - 2) if count > 2 else k % 2 for k in range(size)]
    between = [count + others[0], others[1], 0, *others[2:]]
    return [0, *between[: size - 2], 1]


def unit(rows: int, columns: int, like: Tensor, generator: torch.Generator) -> Float[Tensor, "rows columns"]:
    """A random matrix of Frobenius norm 1: a projection on it shows every difference."""
    drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    matrix: Tensor = drawn / drawn.norm()
    return matrix.to(like)


def each(value: Batch, change: Any) -> Any:
    """Apply a change to the tensor, or to every tensor of a batch."""
    return change(value) if isinstance(value, Tensor) else {name: change(t) for name, t in value.items()}


def forms(value: Any) -> str:
    """Types and shapes of the tensors in a value, for messages. The type of floats is that of the check, float64."""
    found = tensors(value, integers=True)
    named = (f"{'floats' if t.is_floating_point() else str(t.dtype)[6:]} {tuple(t.shape)}" for t in found)
    return " and ".join(named) or type(value).__name__


def pick(value: Batch, rows: Tensor) -> Any:
    """Rows of a batch."""
    return each(value, lambda x: x[rows.to(x.device)])


def floats(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in ``dtype`` if it is floating point; otherwise unchanged."""
    return x.to(dtype) if x.is_floating_point() else x


def widen(x: Tensor, generator: torch.Generator, *, by_number: bool = False) -> Tensor:
    """The rows, each number made up to 0.1 % smaller against ties, then the same rows ``LARGE`` times as large.

    Integers, and positions with a whole number in every row, are not changed: they may be masks, categories or lengths.
    """
    if not x.is_floating_point():
        return torch.cat([x, x])
    codes = x == x.round() if by_number else (x == x.round()).all(0)
    less = 1 - 1e-3 * torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x)
    return torch.cat([torch.where(codes, x, x * less), torch.where(codes, x, x * LARGE)])
