"""A copy of a model with public rows, and one pass over some of them, plain or as in a step.

Gradients are taken in random carriers of rank 1 where a layer has them: a difference shows in any
projection, and the gradient of a whole weight is kept for no example.
Symbols: B examples of a batch.
"""

import copy
import io
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from threading import Lock
from types import FunctionType, GeneratorType, MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.frame import Block, Coordinates, Frame, Keep, make_blocks
from fedlsg.gradients.calls.registry import ways_of
from fedlsg.gradients.calls.torch_func import tensors_in
from fedlsg.gradients.formulas.layers import can_be_carried
from fedlsg.gradients.hooked_pass.call_layers import in_type
from fedlsg.gradients.hooked_pass.hooked_layers import force_eager
from fedlsg.gradients.hooked_pass.precision import FLOAT32
from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError, trainable, unsupported
from fedlsg.gradients.independence.coupled_draws import Draws, couple
from fedlsg.gradients.isolation.passes import per_example_gradients
from fedlsg.gradients.loss_contents import untrained_leaves
from fedlsg.gradients.losses import PerExampleLoss
from fedlsg.gradients.per_example import Batch, LossFunction, batch_size, losses_of
from fedlsg.tensors import each, fields_of, of_fields, rows_of
from fedlsg.user_code.failure import describe, is_own

LARGE_SCALE = 30.0
SCALED = 2
"""Rows of the first family that are tried ``LARGE_SCALE`` times as large."""
MOVED = 0.1
COLUMNS = 8
"""Columns that are compared of a dense matrix."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """One pass over the rows ``members``.

    losses (B,); outputs (B, n), flattened, of those whose first dimension is the batch; gradient
    (kept,), the sum with ``weights`` (B,).
    rounding: a unit in the last place of the largest sum.
    learns: whether losses depend on trained parameters.
    """

    members: Sequence[int]
    losses: Tensor
    outputs: Tensor
    weights: Tensor
    gradient: Tensor
    rounding: float
    learns: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A copy of a model and the rows of all families. Those of the last have large numbers."""

    model: nn.Module
    original: nn.Module
    loss_fn: LossFunction
    inputs: Batch
    targets: Batch
    families: Sequence[range]
    frame: Frame
    loss_dtype: torch.dtype | None
    draws: Draws = field(default_factory=Draws)

    def rows(self, members: Sequence[int]) -> tuple[Any, Any]:
        """Inputs and targets of some rows."""
        rows = torch.tensor(members)
        return rows_of(self.inputs, rows), rows_of(self.targets, rows)

    def run(
        self,
        members: Sequence[int],
        weights: Tensor,
        *,
        private: bool = False,
        times: int = 1,
    ) -> Outcome:
        """Losses of a batch, coupled by example, and the gradient of their weighted sum.

        By torch.autograd, or with ``private`` of the gradients of each example as a step takes
        them. ``times``: calls of the model and the loss, of which the last one counts.
        """
        kept: list[tuple[Any, Tensor]] = []

        def loss(outputs: Any, targets: Any) -> Tensor:
            self.draws.in_loss = True
            kept.append((outputs, self._losses(outputs, targets)))
            return kept[-1][1]

        batch, p, size = self.rows(members), next(self.model.parameters()), len(members)
        self.draws.batch = size
        with force_eager(), couple(self.draws, p.device), torch.enable_grad():
            if private:
                each_one = torch.cat(per_example_gradients(self.model, loss, *batch, self.frame), 1)
                gradient = weights.to(each_one) @ each_one
            else:
                for _ in range(times):
                    losses = losses_of(self.model, loss, *batch, FLOAT32, batch=size, like=p)
                gradient = self._gradient(losses, weights)
        outputs, losses = kept[-1]
        values = [t.detach().cpu() for t in tensors_in(outputs) if t.is_floating_point()]
        rows = [t.flatten(1) for t in values if t.shape[:1] == losses.shape and t.ndim > 1]
        return Outcome(
            members=members,
            losses=losses.detach().double().cpu(),
            outputs=torch.cat([torch.zeros(size, 0), *rows], 1),
            weights=weights,
            gradient=gradient.double().cpu(),
            rounding=self.draws.coarsest * self.draws.largest,
            learns=losses.requires_grad,
        )

    def _gradient(self, losses: Tensor, weights: Tensor) -> Tensor:
        """The gradient of a weighted sum in the coordinates of the frame."""
        if others := untrained_leaves(losses, self.model, self.original):
            raise UnsupportedLayerError(others)
        parameters = trainable(self.model)
        gradients: dict[str, Tensor | None] = dict.fromkeys(parameters)
        if losses.requires_grad:
            total = losses @ weights.to(losses)
            parts = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
            gradients = dict(zip(parameters, parts, strict=True))
        zeros = {
            name: torch.zeros_like(parameters[name]) for name, g in gradients.items() if g is None
        }
        dense = {name: g.to_dense() for name, g in gradients.items() if g is not None}
        return self.frame.project(zeros | dense)

    def _losses(self, outputs: Any, targets: Any) -> Tensor:
        """The losses. An error inside of a user's function names its line."""
        if self.loss_dtype is not None:
            outputs, targets = in_type(outputs, self.loss_dtype), in_type(targets, self.loss_dtype)
        try:
            return self.loss_fn(outputs, targets)
        except Exception as error:
            if is_own(error):
                raise
            given = f"outputs {forms(outputs)}, targets {forms(targets)}"
            what = f"the loss function: fails with {describe(error)}, on {given}"
            raise UnsupportedLayerError(f"{self._swapped(outputs, targets)}{what}") from error

    def _swapped(self, outputs: Any, targets: Any) -> str:
        """What to say first of a loss that takes its arguments the other way round."""
        with suppress(Exception):
            if self.loss_fn(targets, outputs).shape == (len(targets),):
                return "the loss gets outputs first and targets second, loss(outputs, targets): "
        return ""


def prepare(
    model: nn.Module,
    loss_fn: LossFunction,
    families: Sequence[tuple[Batch, Batch]],
    dtype: torch.dtype | None,
    loss_dtype: torch.dtype | None,
) -> Subject:
    """The subject in ``dtype``, or in its own types; the loss reads ``loss_dtype``, or that.

    Weights are moved a little. Numbers of the inputs are made up to 0.1 % smaller, against ties,
    but for whole ones: they may be masks, categories or lengths.
    """
    copied = copy_of(model)
    if dtype is not None:
        copied = copied.to(dtype)
    if isinstance(loss_fn, PerExampleLoss):
        p = next(iter(trainable(copied).values()))
        loss_fn = loss_fn.copy_like(p.detach().to(loss_dtype or p.dtype))
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in trainable(copied).values():
            size = float(p.square().mean().sqrt()) * MOVED or 0.02
            p.add_(torch.randn(p.shape, generator=draw).to(p) * size)
    large = each(
        families[0][0], lambda t: torch.where(codes(t), t, t * LARGE_SCALE).to(t.dtype)[:SCALED]
    )
    families = [*families, (large, each(families[0][1], lambda t: t[:SCALED]))]
    counts = [batch_size(*family) for family in families]
    inputs, targets = (joined([family[side] for family in families]) for side in (0, 1))
    if dtype is not None:
        inputs, targets = in_type(inputs, dtype), in_type(targets, dtype)
    place, ends = next(copied.parameters()).device, accumulate(counts)
    return Subject(
        model=copied,
        original=model,
        loss_fn=loss_fn,
        inputs=each(inputs, lambda t: smaller(t, draw).to(place)),
        targets=each(targets, lambda t: t.to(place)),
        families=[range(end - count, end) for end, count in zip(ends, counts, strict=True)],
        frame=make_frame(copied, draw),
        loss_dtype=loss_dtype,
    )


def make_frame(model: nn.Module, draw: torch.Generator) -> Frame:
    """All trainable parameters: in carriers of rank 1 if they can be, some columns of tables."""
    others = ways_of(model).others
    coordinates = []
    for name, p in trainable(model).items():
        L = R = None
        owner, _, attribute = name.rpartition(".")
        fits = attribute == "weight" and can_be_carried(model.get_submodule(owner))
        if fits and name not in others:
            L = torch.randn(len(p), 1, generator=draw).to(p)
            R = torch.randn(1, p[0].numel(), generator=draw).to(p)
            L, R = L / L.norm(), R / R.norm()
        coordinates.append(Coordinates(name=name, shape=tuple(p.shape), L=L, R=R))
    blocks = tuple(map(narrow, make_blocks(coordinates)))
    return Frame(coordinates=tuple(coordinates), blocks=blocks)


def narrow(block: Block) -> Block:
    """A few columns of a large table: a whole one for each example needs much memory."""
    if block.part != "dense" or len(block.shape) != 2 or block.size < 2**16:
        return block
    columns = torch.linspace(0, block.shape[1] - 1, min(COLUMNS, block.shape[1])).long().unique()
    return replace(block, keep=Keep(axis=1, index=columns))


SHARED = (ModuleType, MappingProxyType, GeneratorType, io.IOBase, type(Lock()), random.SystemRandom)
"""What a model may hold and nobody can copy: copies hold the same."""


def copy_of(model: nn.Module) -> nn.Module:
    """A copy of the model, without torch.compile around its modules.

    Raises UnsupportedLayerError for what torch does not copy: a tensor that has a graph, a function
    in place of ``forward``, which would call the module that it was made for.
    """
    for path, module in model.named_modules():
        if isinstance(vars(module).get("forward"), FunctionType) and not compiled(module):
            reason = "its forward was replaced by a function, which copies of the model share"
            fix = "make it a method: types.MethodType(function, module)"
            raise unsupported(path, module, f"{reason}; {fix}")
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                reason = f"its attribute {name} was computed from parameters and has no copy"
                fix = (
                    f"return {name} from forward next to the outputs, if the loss reads it, or "
                    f"store {name}.detach()"
                )
                raise unsupported(path, module, f"{reason}; {fix}")
    shared = {
        id(value): value
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, SHARED)
    }
    try:
        around = nn.ModuleList([copy.deepcopy(model, dict(shared))])
    except Exception as error:  # whatever an object raises that has no copy
        _refuse_uncopied(model, shared)
        raise ValueError(f"the model cannot be copied: {describe(error)}") from error
    for module in list(around.modules()):
        for name, child in module.named_children():
            if compiled(child):
                setattr(module, name, child._orig_mod)
    return around[0]


def _refuse_uncopied(model: nn.Module, shared: dict[int, Any]) -> None:
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            try:
                copy.deepcopy(value, {**shared, **{id(m): m for m in module.children()}})
            except Exception as error:
                reason = f"its attribute {name} has no copy ({describe(error)})"
                fix = "make it in each forward, or keep what it gives as a buffer"
                raise unsupported(path, module, f"{reason}; {fix}") from error


def compiled(module: nn.Module) -> bool:
    """Whether a module is what torch.compile makes of another one, its ``_orig_mod``."""
    return type(module).__name__ == "OptimizedModule"


def joined(parts: Sequence[Batch]) -> Any:
    """The rows of several batches, on the CPU."""
    fields = [fields_of(part) for part in parts]
    return of_fields({name: torch.cat([part[name].cpu() for part in fields]) for name in fields[0]})


def codes(x: Tensor) -> Tensor:
    """Where numbers are whole."""
    return x == x.round() if x.is_floating_point() else x == x


def smaller(x: Tensor, draw: torch.Generator) -> Tensor:
    """Numbers up to 0.1 % smaller, but for whole ones."""
    less = 1 - 1e-3 * torch.rand(x.shape, generator=draw, dtype=torch.float64)
    return torch.where(codes(x), x, x * less).to(x.dtype)


def forms(value: Any) -> str:
    """Types and shapes of the tensors in a value. The type of floats is that of the check."""
    named = []
    for t in tensors_in(value):
        kind = "floats" if t.is_floating_point() else str(t.dtype)[6:]
        named.append(f"{kind} {tuple(t.shape)}")
    return " and ".join(named) or type(value).__name__
