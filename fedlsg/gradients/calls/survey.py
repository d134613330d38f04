"""Where the examples are in what layers and tables read: runs over one example and over three say it.

Inputs (T, n) of positions and (B, n) of the batch look alike where T = B, and so do (T, B, n) and (B, T, n). An axis
that has length 1 for one example and 3 for three has the examples; a value that keeps its shape belongs to no example.
Examples that share their axis with positions must come one after another: each third is compared with one of the runs
over one example. Taking positions for examples would clip parts of an example one by one.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedlsg.gradients.calls.registry import kind_of
from fedlsg.gradients.formulas.layers import has_formulas

SCALES = (1.0, 0.5, 0.25)
"""Factors of the copies of one example, so that they differ (``vary``)."""
FLAT, UNKNOWN = -1, -2
Axis = int | None
"""The axis of the examples; None for no axis, FLAT for the first one that they share with positions, in their order."""


@dataclass(frozen=True)
class Survey:
    """The axis of the examples by the name of a table and the path of a layer, for each time that it is read.

    ``tiles``: whether everything that the model repeats along its first dimension is repeated for each example.
    """

    tables: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)
    layers: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)
    tiles: bool = False


_known: WeakKeyDictionary[nn.Module, Survey] = WeakKeyDictionary()


def survey(model: nn.Module, run: Callable[[tuple[float, ...]], Any]) -> Survey:
    """The survey of a model, which is kept. ``run(scales)`` calls it on copies of one example times these factors."""
    if model in _known:
        return _known[model]
    try:
        _known[model] = _look(model, run)
    except Exception:  # the pass itself then says what fails
        return Survey()
    return _known[model]


def _look(model: nn.Module, run: Callable[[tuple[float, ...]], Any]) -> Survey:
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    found: list[tuple[dict[int, list[Tensor]], dict[str, list[Tensor]]]] = []
    repeats: list[list[int]] = []
    with _evaluating(model), torch.random.fork_rng(devices=list(devices)), torch.enable_grad():
        for scales in (*((scale,) for scale in SCALES), SCALES):
            with _Reads(scales) as reads, _inputs(model) as inputs:
                run(scales)
            found.append((reads.ids, inputs))
            repeats.append(reads.repeats)
    tables = {name: _axes([ids.get(key, []) for ids, _ in found]) for name, key in _tables(model)}
    layers = {path: _axes([inputs.get(path, []) for _, inputs in found]) for path in found[-1][1]}
    tiles = bool(repeats[0]) and [len(SCALES) * n for n in repeats[0]] == repeats[-1]
    return Survey({name: axes for name, axes in tables.items() if axes}, layers, tiles)


def _tables(model: nn.Module) -> Iterator[tuple[str, int]]:
    """Names and identities of what may be read by rows; an empty name for tables that parameters give."""
    yield "", 0
    for name, p in model.named_parameters():
        yield name, id(p)


def _axes(reads: list[list[Tensor]]) -> tuple[Axis, ...]:
    """The axis in each read: of the runs over one example each, and of that over all."""
    return tuple(_axis(one, many) for *one, many in zip(*reads, strict=False))


def _axis(one: list[Tensor], many: Tensor) -> Axis:
    if {t.shape for t in one} != {one[0].shape} or one[0].ndim != many.ndim:
        return UNKNOWN
    grown = [k for k, (a, b) in enumerate(zip(one[0].shape, many.shape, strict=True)) if a != b]
    if not grown:
        same = all(torch.allclose(one[0], t, rtol=1e-5, atol=1e-7, equal_nan=True) for t in (*one[1:], many))
        return None if same else UNKNOWN
    if len(grown) > 1:
        return UNKNOWN
    if (one[0].shape[grown[0]], many.shape[grown[0]]) == (1, len(one)):
        return grown[0]
    whole = torch.cat(one)
    alike = grown == [0] and whole.shape == many.shape and torch.allclose(whole, many, rtol=1e-3, atol=1e-6)
    return FLAT if alike and not torch.allclose(one[0], one[1], rtol=1e-2, atol=1e-4) else UNKNOWN


def copies_of(t: Tensor, scales: tuple[float, ...]) -> Tensor:
    """Copies of the first row, varied where it has real numbers."""
    copies = t[:1].detach().expand(len(scales), *t.shape[1:]).clone()
    return vary(copies, scales) if t.is_floating_point() and t.ndim else copies


def vary(copies: Tensor, scales: tuple[float, ...]) -> Tensor:
    """Means of each copy and of a ramp from 0 to 1, so that also copies of zeros differ, within their range."""
    share = torch.tensor(scales, dtype=copies.dtype, device=copies.device).view(-1, *[1] * (copies.ndim - 1))
    ramp = torch.linspace(0, 1, copies[0].numel(), dtype=copies.dtype, device=copies.device).view(copies.shape[1:])
    return copies * share + (1 - share) * ramp


class _Reads(TorchFunctionMode):
    """Row numbers of each read, by the identity of the table; rows of examples are varied."""

    def __init__(self, scales: tuple[float, ...]) -> None:
        super().__init__()
        self.scales = scales
        self.ids: dict[int, list[Tensor]] = {}
        self.repeats: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is Tensor.repeat and not kwargs and args[0].shape[0] > 1:
            self.repeats.append(repeats_of(args)[0])
        if func is F.embedding:
            given = dict(zip(("input", "weight"), args, strict=False)) | kwargs
            ids, weight = given["input"], given["weight"]
        elif func is Tensor.__getitem__ and is_row_numbers(args[1]) and args[0].ndim == 2:
            weight, ids = args
        else:
            return out
        if weight.requires_grad:
            key = id(weight) if isinstance(weight, nn.Parameter) else 0
            self.ids.setdefault(key, []).append(ids.detach().float())
        return vary(out, self.scales) if ids.ndim and len(ids) == len(self.scales) else out


def repeats_of(args: tuple[Any, ...]) -> tuple[int, ...]:
    """The numbers in ``t.repeat(2, 1)`` or ``t.repeat((2, 1))``, from the arguments with t."""
    return tuple(args[1]) if len(args) == 2 and not isinstance(args[1], int) else args[1:]


def is_row_numbers(index: Any) -> bool:
    """Whether an index is one tensor of integers."""
    return isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32)


@contextmanager
def _inputs(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """The first inputs of all layers whose formulas take examples in other places, by path, call after call."""
    found: dict[str, list[Tensor]] = {}
    handles = []
    for path, module in model.named_modules():
        kind = kind_of(module)
        if has_formulas(module) or (kind is not None and kind.positions):

            def note(module: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
                found.setdefault(path, []).append((args[0] if args else kwargs["input"]).detach())

            handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    try:
        yield found
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
