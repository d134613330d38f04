"""A copy of a model with public rows, and one pass over some rows: plain, or as in a step.

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
"""Factor of the rows of the last family."""
SCALED = 2
"""Rows of the first family that are tried ``LARGE_SCALE`` times as large."""
MOVED = 0.1
"""Standard deviation of the change of a weight, relative to the root mean square of the weights."""
MOVED_ZEROS = 0.02
"""The same for weights that are all zero, in absolute terms."""
COLUMNS = 8
"""Columns that are compared of a large dense matrix."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """One pass over some rows.

    members: numbers of the rows, over all families.
    losses: (B,).
    outputs: (B, n), those whose first dimension is the batch, flattened and joined.
    weights: (B,), of the losses in the gradient.
    gradient: (kept,), of the weighted sum of losses.
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
    """A copy of a model with the rows of all families.

    model: the copy that runs.
    original: the user's model.
    loss_fn: the loss, with one number for each example.
    inputs, targets: the rows of all families, one after another.
    families: the row numbers of each family. The last one has large numbers.
    frame: the coordinates in which gradients are compared.
    loss_dtype: the type of what the loss reads; None for the model's own.
    draws: the coupled random draws of the passes.
    """

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

        private: sum the gradients of examples as a step computes them, in place of a plain pass.
        times: number of plain passes; the last one counts.
        """
        kept: list[tuple[Any, Tensor]] = []  # outputs and losses of each call

        def loss(outputs: Any, targets: Any) -> Tensor:
            self.draws.in_loss = True
            kept.append((outputs, self._losses(outputs, targets)))
            return kept[-1][1]

        batch, size = self.rows(members), len(members)
        p = next(self.model.parameters())
        self.draws.batch = size
        with force_eager(), couple(self.draws, p.device), torch.enable_grad():
            if private:
                rows = torch.cat(per_example_gradients(self.model, loss, *batch, self.frame), 1)
                gradient = weights.to(rows) @ rows
            else:
                for _ in range(times):
                    losses = losses_of(self.model, loss, *batch, FLOAT32, batch=size, like=p)
                gradient = self._gradient(losses, weights)
        outputs, losses = kept[-1]
        values = [t.detach().cpu() for t in tensors_in(outputs) if t.is_floating_point()]
        of_batch = [t.flatten(1) for t in values if t.shape[:1] == losses.shape and t.ndim > 1]
        return Outcome(
            members=members,
            losses=losses.detach().double().cpu(),
            outputs=torch.cat([torch.zeros(size, 0), *of_batch], 1),
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
        """The losses; an error inside a user's function is raised again with its line."""
        if self.loss_dtype is not None:
            outputs, targets = in_type(outputs, self.loss_dtype), in_type(targets, self.loss_dtype)
        try:
            return self.loss_fn(outputs, targets)
        except Exception as error:
            if is_own(error):
                raise
            form = f"outputs {forms(outputs)}, targets {forms(targets)}"
            what = f"the loss function: fails with {describe(error)}, on {form}"
            raise UnsupportedLayerError(f"{self._order_hint(outputs, targets)}{what}") from error

    def _order_hint(self, outputs: Any, targets: Any) -> str:
        """The first words of the message for a loss that runs with swapped arguments, else none."""
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
    """The subject of a check, with a copy of the model.

    dtype: type of the model and the rows; None to leave them in their own.
    loss_dtype: type of what the loss reads; None for ``dtype``.
    Weights are moved a little. Numbers of the inputs become up to 0.1 % smaller, against ties.
    Whole numbers stay: they may be masks, categories or lengths.
    """
    copied = copy_of(model)
    if dtype is not None:
        copied = copied.to(dtype)
    if isinstance(loss_fn, PerExampleLoss):
        p = next(iter(trainable(copied).values()))
        loss_fn = loss_fn.copy_like(p.detach().to(loss_dtype or p.dtype))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in trainable(copied).values():
            deviation = float(p.square().mean().sqrt()) * MOVED or MOVED_ZEROS
            p.add_(torch.randn(p.shape, generator=generator).to(p) * deviation)
    large = each(
        families[0][0], lambda t: torch.where(is_whole(t), t, t * LARGE_SCALE).to(t.dtype)[:SCALED]
    )
    families = [*families, (large, each(families[0][1], lambda t: t[:SCALED]))]
    counts = [batch_size(*family) for family in families]
    inputs, targets = (joined([family[side] for family in families]) for side in (0, 1))
    if dtype is not None:
        inputs, targets = in_type(inputs, dtype), in_type(targets, dtype)
    device = next(copied.parameters()).device
    ends = accumulate(counts)
    return Subject(
        model=copied,
        original=model,
        loss_fn=loss_fn,
        inputs=each(inputs, lambda t: smaller(t, generator).to(device)),
        targets=each(targets, lambda t: t.to(device)),
        families=[range(end - count, end) for end, count in zip(ends, counts, strict=True)],
        frame=make_frame(copied, generator),
        loss_dtype=loss_dtype,
    )


def make_frame(model: nn.Module, generator: torch.Generator) -> Frame:
    """A frame of all trainable parameters: random carriers of rank 1 where a layer allows them, and
    some columns of large tables.
    """
    others = ways_of(model).others
    coordinates = []
    for name, p in trainable(model).items():
        L = R = None
        owner, _, attribute = name.rpartition(".")
        fits = attribute == "weight" and can_be_carried(model.get_submodule(owner))
        if fits and name not in others:
            L = torch.randn(len(p), 1, generator=generator).to(p)
            R = torch.randn(1, p[0].numel(), generator=generator).to(p)
            L, R = L / L.norm(), R / R.norm()
        coordinates.append(Coordinates(name=name, shape=tuple(p.shape), L=L, R=R))
    blocks = tuple(map(narrow, make_blocks(coordinates)))
    return Frame(coordinates=tuple(coordinates), blocks=blocks)


def narrow(block: Block) -> Block:
    """The block, with a few columns kept of a large table: a whole table for each example needs
    much memory.
    """
    if block.part != "dense" or len(block.shape) != 2 or block.size < 2**16:
        return block
    columns = torch.linspace(0, block.shape[1] - 1, min(COLUMNS, block.shape[1])).long().unique()
    return replace(block, keep=Keep(axis=1, index=columns))


SHARED = (ModuleType, MappingProxyType, GeneratorType, io.IOBase, type(Lock()), random.SystemRandom)
"""Types of attributes that cannot be copied: copies of the model share these objects."""


def copy_of(model: nn.Module) -> nn.Module:
    """A copy of the model, without torch.compile around its modules.

    Raises UnsupportedLayerError for what torch does not copy: a tensor that has a graph, and a
    function in place of ``forward``, which would call the module that it was made for.
    """
    for path, module in model.named_modules():
        if isinstance(vars(module).get("forward"), FunctionType) and not is_compiled(module):
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
            if is_compiled(child):
                setattr(module, name, child._orig_mod)
    return around[0]


def _refuse_uncopied(model: nn.Module, shared: dict[int, Any]) -> None:
    """Raise UnsupportedLayerError for the first attribute that cannot be copied."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            try:
                copy.deepcopy(value, {**shared, **{id(m): m for m in module.children()}})
            except Exception as error:
                reason = f"its attribute {name} has no copy ({describe(error)})"
                fix = "make it in each forward, or keep what it gives as a buffer"
                raise unsupported(path, module, f"{reason}; {fix}") from error


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is the wrapper of torch.compile around another one, its ``_orig_mod``."""
    return type(module).__name__ == "OptimizedModule"


def joined(parts: Sequence[Batch]) -> Any:
    """The rows of several batches, on the CPU."""
    fields = [fields_of(part) for part in parts]
    return of_fields({name: torch.cat([part[name].cpu() for part in fields]) for name in fields[0]})


def is_whole(x: Tensor) -> Tensor:
    """Which numbers are whole."""
    return x == x.round() if x.is_floating_point() else torch.ones_like(x, dtype=torch.bool)


def smaller(x: Tensor, generator: torch.Generator) -> Tensor:
    """The numbers, each up to 0.1 % smaller unless it is whole."""
    factors = 1 - 1e-3 * torch.rand(x.shape, generator=generator, dtype=torch.float64)
    return torch.where(is_whole(x), x, x * factors).to(x.dtype)


def forms(value: Any) -> str:
    """Types and shapes of the tensors in a value, for messages.

    Floats have no more exact type: theirs is that of the check, not of the user.
    """
    words = []
    for t in tensors_in(value):
        kind = "floats" if t.is_floating_point() else str(t.dtype).removeprefix("torch.")
        words.append(f"{kind} {tuple(t.shape)}")
    return " and ".join(words) or type(value).__name__
