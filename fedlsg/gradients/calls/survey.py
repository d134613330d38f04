"""Survey of a model: the axis of the examples in the inputs of layers and in reads of tables.

Inputs (T, n) of positions and (B, n) of the batch look alike where T = B, and so do (T, B, n) and
(B, T, n). If positions were taken for examples, parts of an example would be clipped one by one. So
the model runs on one example and on three. An axis that has length 1 in the first run and 3 in the
second one has the examples; a value that keeps its shape belongs to no example. Examples that share
their axis with positions must come one after another: each third is compared with the run over that
example alone.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedlsg.gradients.calls.registry import kind_of
from fedlsg.gradients.formulas.layers import has_formulas
from fedlsg.user_code.failure import describe

Scales = tuple[float, ...]
"""A factor for each copy of one example (``vary``)."""
SCALES: Scales = (1.0, 0.5, 0.25)
"""Factors with which three copies differ."""
Axis = int | None
"""The axis of the examples; None if all examples share the value; or FLAT or UNKNOWN."""
FLAT = -1
"""The first axis, which examples share with positions: all positions of one example, then those of
the next."""
UNKNOWN = -2
"""No axis has the examples in a form that is known."""
Axes = tuple[Axis, ...]
"""An axis for each call of a layer, or each read of a table, in order."""
UNEVEN = {
    "nonzero",
    "argwhere",
    "masked_select",
    "unique",
    "unique_consecutive",
    "tolist",
    "item",
    "numpy",
    "__index__",
    "__int__",
}
"""Operations whose results have shapes that depend on values, or that give values to Python.
Examples may then have different shapes.
"""


@dataclass(frozen=True)
class Survey:
    """Where the examples are in a model.

    tables: the axis in each read of a table, by the name of its parameter (empty for tables that
        parameters give).
    layers: the axis in the input of each call of a layer, by its path.
    tiles: whether everything that the model repeats along its first dimension is repeated for each
        example.
    failure: why the model could not be surveyed; empty if it could.
    """

    tables: Mapping[str, Axes] = field(default_factory=dict)
    layers: Mapping[str, Axes] = field(default_factory=dict)
    tiles: bool = False
    failure: str = ""

    def axis(self, path: str, call: int) -> Axis:
        """The axis of the examples in the input of a layer's call, by its number from 1."""
        axes = self.layers.get(path, ())
        if call <= len(axes):
            return axes[call - 1]
        return UNKNOWN if set(axes) - {0} else 0


def survey(
    model: nn.Module,
    run: Callable[[Scales], Any],
    kind: Hashable,
    answers: dict[Hashable, Any],
) -> Survey:
    """The survey of a model.

    run: ``run(scales)`` calls the model on a copy of one example for each scale.
    kind: of the inputs; inputs of another kind are surveyed anew.
    answers: keeps the surveys.
    A model that refuses varied numbers, such as a code that must be whole, runs on equal copies.
    """
    surveys: dict[Hashable, Survey] = answers.setdefault("surveys", {})
    if kind in surveys:
        return surveys[kind]
    failure = ""
    for scales in (SCALES, (1.0,) * len(SCALES)):
        try:
            return surveys.setdefault(kind, _survey(model, run, scales))
        except Exception as error:  # mostly, the pass itself then says what fails
            failure = describe(error)
    return Survey(failure=failure)


def _survey(model: nn.Module, run: Callable[[Scales], Any], scales: Scales) -> Survey:
    """The survey from runs over each copy alone, and over all.

    The first runs find the axes of tables. In the second ones the rows of tables vary, too, so that
    the inputs of layers differ between copies.
    """
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with _eval_mode(model), torch.random.fork_rng(devices=list(devices)), torch.enable_grad():
        runs = _runs(model, run, scales, {})
        reads_of_all, _ = runs[-1]
        axes = {
            key: _axes([reads.ids.get(key, []) for reads, _ in runs], may_be_flat=False)
            for key in reads_of_all.ids
        }
        if axes:
            runs = _runs(model, run, scales, axes)
    even = not any(reads.uneven for reads, _ in runs)
    # key 0 has the reads of tables that parameters give
    names = [("", 0), *((name, id(p)) for name, p in model.named_parameters())]
    tables = {name: axes[key] for name, key in names if axes.get(key)}
    _, inputs_of_all = runs[-1]
    layers = {
        path: _axes([inputs.get(path, []) for _, inputs in runs], may_be_flat=even)
        for path in inputs_of_all
    }
    repeats = [reads.repeats for reads, _ in runs]
    tiles = bool(repeats[0]) and [len(scales) * n for n in repeats[0]] == repeats[-1]
    return Survey(tables, layers, tiles)


def _runs(
    model: nn.Module,
    run: Callable[[Scales], Any],
    scales: Scales,
    axes: Mapping[int, Axes],
) -> list[tuple["_Reads", dict[str, list[Tensor]]]]:
    """Reads of tables and inputs of layers in a run over each copy alone; last, in one over all.

    axes: along which the rows of tables vary.
    """
    runs = []
    for factors in (*((scale,) for scale in scales), scales):
        with _Reads(factors, axes) as reads, _inputs(model) as inputs:
            run(factors)
        runs.append((reads, inputs))
    return runs


def _axes(values: list[list[Tensor]], *, may_be_flat: bool) -> Axes:
    """The axis in each read or call; ``values``: a list for each run, the last one over all."""
    return tuple(
        _axis(alone, together, may_be_flat=may_be_flat)
        for *alone, together in zip(*values, strict=False)
    )


def _axis(alone: list[Tensor], together: Tensor, *, may_be_flat: bool) -> Axis:
    """The axis of the examples in one value.

    alone: from the run over each example.
    together: from the run over all.
    may_be_flat: whether the result may be FLAT.
    """
    one = alone[0]
    if {t.shape for t in alone} != {one.shape} or one.ndim != together.ndim:
        return UNKNOWN
    sizes = zip(one.shape, together.shape, strict=True)
    grown = [axis for axis, (before, after) in enumerate(sizes) if before != after]
    if not grown:
        same = all(
            torch.allclose(one, t, rtol=1e-5, atol=1e-7, equal_nan=True)
            for t in (*alone[1:], together)
        )
        return None if same else UNKNOWN
    if len(grown) > 1:
        return UNKNOWN
    (axis,) = grown
    if (one.shape[axis], together.shape[axis]) == (1, len(alone)):
        return axis
    if not may_be_flat or axis != 0:
        return UNKNOWN
    in_order = torch.cat(alone)
    if in_order.shape != together.shape or torch.allclose(one, alone[1], rtol=1e-2, atol=1e-4):
        return UNKNOWN  # equal copies would show no order
    return FLAT if torch.allclose(in_order, together, rtol=1e-3, atol=1e-6) else UNKNOWN


def examples_first(t: Tensor, axis: Axis, batch: int) -> Tensor:
    """A view of t with the examples on the first axis."""
    if axis == FLAT:
        first: Tensor = t.unflatten(0, (batch, -1))
        return first
    return t.movedim(axis or 0, 0)


def copies_of(t: Tensor, scales: Scales) -> Tensor:
    """Copies of the first row, varied where it has real numbers."""
    copies = t[:1].detach().expand(len(scales), *t.shape[1:]).clone()
    return vary(copies, scales) if t.is_floating_point() and t.ndim else copies


def vary(copies: Tensor, scales: Scales) -> Tensor:
    """scale * copy + (1 - scale) * ramp for each copy, with a ramp from 0 to 1 over its numbers.

    So copies of zeros differ, too.
    """
    scale = copies.new_tensor(scales).view(-1, *[1] * (copies.ndim - 1))
    ramp = torch.linspace(0, 1, copies[0].numel(), dtype=copies.dtype, device=copies.device)
    return copies * scale + (1 - scale) * ramp.view(copies.shape[1:])


class _Reads(TorchFunctionMode):
    """A mode of torch that records the row numbers of each read of a table.

    scales: of the copies in this run.
    axes: along which the rows that are read vary with the scales, by table.
    uneven: whether values may have decided on shapes, so that copies of one example show less than
        examples.
    ids: row numbers of each read, by the identity of the table's parameter, or 0.
    repeats: how often each ``repeat`` repeats the first dimension.
    """

    def __init__(self, scales: Scales, axes: Mapping[int, Axes]) -> None:
        super().__init__()
        self.scales, self.axes, self.uneven = scales, axes, False
        self.ids: dict[int, list[Tensor]] = {}
        self.repeats: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.uneven |= _shaped_by_values(func, args, kwargs)
        if func is Tensor.repeat and not kwargs and args[0].shape[0] > 1:
            self.repeats.append(repeats_of(args)[0])
        if func is F.embedding:
            named = dict(zip(("input", "weight"), args, strict=False)) | kwargs
            ids, weight = named["input"], named["weight"]
        elif func is Tensor.__getitem__ and is_row_numbers(args[1]) and args[0].ndim == 2:
            weight, ids = args
        else:
            return out
        if not isinstance(weight, nn.Parameter) and not weight.requires_grad:
            return out
        key = id(weight) if isinstance(weight, nn.Parameter) else 0
        reads = self.ids.setdefault(key, [])
        reads.append(ids.detach().float())
        axes = self.axes.get(key, ())
        axis = axes[len(reads) - 1] if len(reads) <= len(axes) else None
        if axis is None or not 0 <= axis < ids.ndim or ids.shape[axis] != len(self.scales):
            return out
        return vary(out.movedim(axis, 0), self.scales).movedim(0, axis)


def _shaped_by_values(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the shape of a result, or a number of Python, depends on the values of a tensor."""
    name = getattr(func, "__name__", "")
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in index)
    if name == "repeat_interleave":
        return any(isinstance(t, Tensor) for t in (*args[1:], *kwargs.values()))
    return name in UNEVEN or (name == "where" and len(args) + len(kwargs) == 1)


def repeats_of(args: tuple[Any, ...]) -> tuple[int, ...]:
    """The numbers in ``t.repeat(2, 1)`` or ``t.repeat((2, 1))``, from the arguments with t."""
    return tuple(args[1]) if len(args) == 2 and not isinstance(args[1], int) else args[1:]


def is_row_numbers(index: Any) -> bool:
    """Whether an index is one tensor of integers."""
    return isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32)


@contextmanager
def _inputs(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Inside, records the first input of each call of a layer, by path.

    Only of layers whose formulas take examples on any axis.
    """
    inputs: dict[str, list[Tensor]] = {}
    handles = []
    for path, module in model.named_modules():
        kind = kind_of(module)
        if has_formulas(module) or (kind is not None and kind.positions):

            def note(module: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
                inputs.setdefault(path, []).append((args[0] if args else kwargs["input"]).detach())

            handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """All modules are in eval mode inside the context: dropout is off."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
