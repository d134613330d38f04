"""Where the examples are in what layers and tables read: runs over one example and over three say
it.

Inputs (T, n) of positions and (B, n) of the batch look alike where T = B, and so do (T, B, n) and
(B, T, n). An axis that has length 1 for one example and 3 for three has the examples; a value that
keeps its shape belongs to no example. Examples that share their axis with positions must come one
after another: each third is compared with one of the runs over one example. Taking positions for
examples would clip parts of an example one by one.
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

SCALES = (1.0, 0.5, 0.25)
"""Factors of the copies of one example, so that they differ (``vary``)."""
FLAT, UNKNOWN = -1, -2
Axis = int | None
"""The axis of the examples; None for no axis, FLAT for the first one that they share with
positions, in their order.
"""
Axes = tuple[Axis, ...]
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
"""Operations whose results have shapes by values, or give values to Python. Examples may then have
different shapes.
"""


@dataclass(frozen=True)
class Survey:
    """The axis of the examples by the name of a table and the path of a layer, for each time that
    it is read.

    ``tiles``: whether everything that the model repeats along its first dimension is repeated for
    each example.
    ``failure``: why the model could not be surveyed.
    """

    tables: Mapping[str, Axes] = field(default_factory=dict)
    layers: Mapping[str, Axes] = field(default_factory=dict)
    tiles: bool = False
    failure: str = ""

    def axis(self, path: str, call: int) -> Axis:
        """The axis of the examples in the input of a layer's call, by its number from 1."""
        seen = self.layers.get(path, ())
        return seen[call - 1] if call <= len(seen) else UNKNOWN if set(seen) - {0} else 0


def survey(
    model: nn.Module,
    run: Callable[[Scales], Any],
    kind: Hashable,
    answers: dict[Hashable, Any],
) -> Survey:
    """The survey of a model, kept in ``answers``. ``run(scales)`` calls it on copies of one example
    times these.

    A model that refuses varied numbers, such as a code that must be whole, is run on equal copies.
    ``kind``: of the inputs; those of another kind are surveyed anew.
    """
    surveys: dict[Hashable, Survey] = answers.setdefault("surveys", {})
    if kind in surveys:
        return surveys[kind]
    failure = ""
    for scales in (SCALES, (1.0,) * len(SCALES)):
        try:
            return surveys.setdefault(kind, _look(model, run, scales))
        except Exception as error:  # mostly, the pass itself then says what fails
            failure = describe(error)
    return Survey(failure=failure)


def _look(model: nn.Module, run: Callable[[Scales], Any], scales: Scales) -> Survey:
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with _evaluating(model), torch.random.fork_rng(devices=list(devices)), torch.enable_grad():
        seen = _runs(model, run, scales, {})
        axes = {
            key: _axes([reads.ids.get(key, []) for reads, _ in seen], flat=False)
            for key in seen[-1][0].ids
        }
        if axes:
            seen = _runs(model, run, scales, axes)
    flat = not any(reads.uneven for reads, _ in seen)
    tables = {name: axes[key] for name, key in _tables(model) if axes.get(key)}
    layers = {
        path: _axes([inputs.get(path, []) for _, inputs in seen], flat=flat) for path in seen[-1][1]
    }
    repeats = [reads.repeats for reads, _ in seen]
    tiles = bool(repeats[0]) and [len(scales) * n for n in repeats[0]] == repeats[-1]
    return Survey(tables, layers, tiles)


def _runs(
    model: nn.Module,
    run: Callable[[Scales], Any],
    scales: Scales,
    axes: Mapping[int, Axes],
) -> list[tuple["_Reads", dict[str, list[Tensor]]]]:
    """What is read in a run over each copy alone, and in one over all; rows of tables vary along
    ``axes``.
    """
    seen = []
    for factors in (*((scale,) for scale in scales), scales):
        with _Reads(factors, axes) as reads, _inputs(model) as inputs:
            run(factors)
        seen.append((reads, inputs))
    return seen


def _tables(model: nn.Module) -> Iterator[tuple[str, int]]:
    """Names and identities of what may be read by rows; an empty name for tables that parameters
    give.
    """
    yield "", 0
    for name, p in model.named_parameters():
        yield name, id(p)


def _axes(reads: list[list[Tensor]], *, flat: bool) -> Axes:
    """The axis in each read: of the runs over one example each, and of that over all; FLAT only if
    that is ``flat``.
    """
    return tuple(_axis(of_one, many, flat=flat) for *of_one, many in zip(*reads, strict=False))


def _axis(one: list[Tensor], many: Tensor, *, flat: bool) -> Axis:
    if {t.shape for t in one} != {one[0].shape} or one[0].ndim != many.ndim:
        return UNKNOWN
    grown = [k for k, (a, b) in enumerate(zip(one[0].shape, many.shape, strict=True)) if a != b]
    if not grown:
        same = all(
            torch.allclose(one[0], t, rtol=1e-5, atol=1e-7, equal_nan=True)
            for t in (*one[1:], many)
        )
        return None if same else UNKNOWN
    if len(grown) > 1:
        return UNKNOWN
    if (one[0].shape[grown[0]], many.shape[grown[0]]) == (1, len(one)):
        return grown[0]
    if not flat:
        return UNKNOWN
    whole = torch.cat(one)
    alike = (
        grown == [0]
        and whole.shape == many.shape
        and torch.allclose(whole, many, rtol=1e-3, atol=1e-6)
    )
    return FLAT if alike and not torch.allclose(one[0], one[1], rtol=1e-2, atol=1e-4) else UNKNOWN


def examples_first(t: Tensor, axis: Axis, batch: int) -> Tensor:
    """A view of t with the examples on the first axis."""
    if axis == FLAT:
        parts: Tensor = t.unflatten(0, (batch, -1))
        return parts
    return t.movedim(axis or 0, 0)


def copies_of(t: Tensor, scales: Scales) -> Tensor:
    """Copies of the first row, varied where it has real numbers."""
    copies = t[:1].detach().expand(len(scales), *t.shape[1:]).clone()
    return vary(copies, scales) if t.is_floating_point() and t.ndim else copies


def vary(copies: Tensor, scales: Scales) -> Tensor:
    """Means of each copy and of a ramp from 0 to 1, so that also copies of zeros differ, within
    their range.
    """
    share = torch.tensor(scales, dtype=copies.dtype, device=copies.device).view(
        -1, *[1] * (copies.ndim - 1)
    )
    ramp = torch.linspace(0, 1, copies[0].numel(), dtype=copies.dtype, device=copies.device).view(
        copies.shape[1:]
    )
    return copies * share + (1 - share) * ramp


class _Reads(TorchFunctionMode):
    """Row numbers of each read, by the identity of the table; rows of examples are varied along
    their ``axes``.

    ``uneven``: whether values may have decided on shapes, so that copies of one example show less
    than examples.
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
            given = dict(zip(("input", "weight"), args, strict=False)) | kwargs
            ids, weight = given["input"], given["weight"]
        elif func is Tensor.__getitem__ and is_row_numbers(args[1]) and args[0].ndim == 2:
            weight, ids = args
        else:
            return out
        if not isinstance(weight, nn.Parameter) and not weight.requires_grad:
            return out
        key = id(weight) if isinstance(weight, nn.Parameter) else 0
        reads = self.ids.setdefault(key, [])
        reads.append(ids.detach().float())
        known = self.axes.get(key, ())
        axis = known[len(reads) - 1] if len(reads) <= len(known) else None
        if axis is None or not 0 <= axis < ids.ndim or ids.shape[axis] != len(self.scales):
            return out
        return vary(out.movedim(axis, 0), self.scales).movedim(0, axis)


def _shaped_by_values(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the shape of a result, or a number of Python, is from the values of a tensor."""
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
    """The first inputs of all layers whose formulas take examples in other places, by path, call
    after call.
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
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout is off inside the context."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
