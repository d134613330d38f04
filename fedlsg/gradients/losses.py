"""One loss for each example, from a loss in the usual form of torch.

A private step clips the gradient of each example, so it needs the loss of each example: a mean over
the batch would divide every gradient by the size of the batch, which is secret. The losses of the
values of one example, such as its labels or tokens, are combined by the user's reduction:
    "mean", "none"       their mean; of classes, over those that are not ``ignore_index``
    "sum", "batchmean"   their sum
Class weights multiply the losses. They are not divided by a sum of weights, as torch does: the sum
over a batch mixes examples, and that of one example alone would cancel its weight.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import _reduction
from torch.nn.modules.loss import _Loss

from fedlsg.gradients.loss_contents import (
    first_numbers,
    fits,
    follow,
    held_tensors,
    refuse_parameters,
)
from fedlsg.gradients.per_example import LossFunction, batch_size

CLASSES = ("CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss")
"""Losses of torch with class numbers as targets, and the classes on dimension 1 of the outputs."""
OTHER_SHAPES = ("MultiMarginLoss", "multi_margin_loss")
"""Other losses of torch whose targets have another shape than their outputs."""
CLASS_LISTS = ("MultiLabelMarginLoss", "multilabel_margin_loss")
"""Losses of torch whose targets are integers of the shape of the outputs."""
BATCHMEAN = ("KLDivLoss", "kl_div")
"""Losses of torch with the reduction "batchmean"."""
IGNORED = -100
"""The class number that torch's cross-entropy leaves out by default."""


def per_example_loss(loss: Callable[..., Any], model: nn.Module | None = None) -> LossFunction:
    """``loss(outputs, targets)`` in the form that gives one loss for each example, shape (B,).

    A loss of torch in its usual form (``nn.CrossEntropyLoss()``, ``F.mse_loss``), and any function
    with a parameter ``reduction``, is called with ``reduction="none"``; the module itself is not
    changed. Other functions are called as they are. The dimensions of a result (B, ...) after the
    first are added if the reduction is "sum" or "batchmean", else averaged. For torch's losses,
    outputs that have ``.logits`` are replaced by these; cross-entropy takes outputs (B, T, V) with
    targets (B, T), too, and averages over the targets of an example that are not ``ignore_index``.
    Integer or boolean targets of a loss that compares them with outputs (``BCEWithLogitsLoss``)
    become floats. Tensors that the loss holds (class weights) follow the type and device of the
    outputs, in a copy. The result can be pickled if ``loss`` can. It raises ValueError for a result
    without the batch as first dimension, and where torch would broadcast targets against outputs,
    which mixes examples.
    Raises ValueError for anything that is not a function of (outputs, targets), for an unknown
    reduction, and for trainable parameters of the loss that are not of ``model``.
    """
    if isinstance(loss, PerExampleLoss):
        return loss
    if not callable(loss) or isinstance(loss, type):
        hint = f": write {loss.__name__}()" if isinstance(loss, type) else ""
        raise ValueError(
            f"expected loss(outputs, targets), a function or a module of torch, got {loss!r}{hint}"
        )
    check_arguments(loss)
    refuse_parameters(loss, model)
    return _of_module(loss) if isinstance(loss, nn.Module) else _of_function(loss)


def _of_module(loss: nn.Module) -> "PerExampleLoss":
    """A module as a loss of each example; the module itself is not changed."""
    reduction = getattr(loss, "reduction", None)
    name = name_in_torch(type(loss))
    added = adds(reduction, name, loss)
    if isinstance(loss, _Loss) or isinstance(reduction, str):
        loss = copy.copy(loss)
        vars(loss)["reduction"] = "none"
    return PerExampleLoss(loss, name, getattr(loss, "ignore_index", IGNORED), added)


def _of_function(loss: Callable[..., Any]) -> "PerExampleLoss":
    """A function as a loss of each example, with ``reduction="none"`` if it has that parameter."""
    function: Any = loss
    keywords: dict[str, Any] = {}
    while isinstance(function, partial):
        function, keywords = function.func, function.keywords | keywords
    name = name_in_torch(function)
    defaults = defaults_of(loss)
    reduction = defaults.get("reduction")
    if "reduction" in defaults:
        old_names = ("size_average", "reduce")  # torch's older names of the reduction
        old = {key: None for key in old_names if name and defaults.get(key) is not None}
        if old:
            reduction = _reduction.legacy_get_string(
                defaults["size_average"], defaults["reduce"], emit_warning=False
            )
        loss = partial(loss, reduction="none", **old)
    added = adds(reduction, name, function)
    return PerExampleLoss(loss, name, keywords.get("ignore_index", IGNORED), added)


def adds(reduction: object, name: str, loss: Any) -> bool:
    """Whether a reduction adds the values of an example, and does not average them.

    name: of the loss in torch, or empty.
    Raises ValueError for an unknown reduction.
    """
    known = ["none", "mean", "sum"]
    if not name or name in BATCHMEAN:
        known.append("batchmean")
    if isinstance(reduction, str) and reduction not in known:
        raise ValueError(
            f"{loss_name(loss)}: expected a reduction in {tuple(known)}, got {reduction!r}: choose "
            "one of these"
        )
    return reduction in ("sum", "batchmean")


def defaults_of(loss: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a function, each with its default."""
    try:
        return {p.name: p.default for p in inspect.signature(loss).parameters.values()}
    except (TypeError, ValueError):  # a builtin without a signature
        return {}


def check_arguments(loss: Callable[..., Any]) -> None:
    """Raise ValueError unless a loss can be called with (outputs, targets)."""
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None, None)
    except TypeError:
        required = [
            p.name
            for p in signature.parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        raise ValueError(
            f"{loss_name(loss)} needs {len(required)} arguments ({', '.join(required)}), and a "
            "loss gets two: give a function of (outputs, targets) that calls it with "
            "reduction='none', and returns one loss an example, shape (B,)"
        ) from None


def loss_name(loss: Any) -> str:
    """The name of a loss, for messages."""
    return str(getattr(loss, "__name__", type(loss).__name__))


def name_in_torch(function: Any) -> str:
    """The name of one of torch's loss functions or classes; empty for others."""
    in_torch = str(getattr(function, "__module__", "")).startswith("torch.nn")
    return str(getattr(function, "__name__", "")) if in_torch else ""


@dataclass(frozen=True, eq=False)
class PerExampleLoss:
    """A loss that gives one number for each example; made by ``per_example_loss``.

    loss: a function of (outputs, targets) without reduction over the batch.
    name: of the loss in torch, or empty.
    ignored: the class number that does not count.
    added: whether the losses of the values of an example are added, not averaged.
    tensors: that the loss holds.
    """

    loss: Callable[..., Any]
    name: str
    ignored: int
    added: bool = False
    tensors: tuple[Tensor, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", tuple(t for _, t in held_tensors(self.loss)))

    def __reduce__(self) -> Any:
        """Pickles the arguments alone: ``tensors`` follow from the loss."""
        return type(self), (self.loss, self.name, self.ignored, self.added)

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of each example, shape (B,)."""
        if self.name:
            outputs = self._arrange_outputs(outputs, targets)
            targets = self._convert_targets(outputs, targets)
        losses: Any = self._fit_loss(outputs)(outputs, targets)
        size = batch_size(targets, targets)
        if not isinstance(losses, Tensor) or losses.ndim == 0 or len(losses) != size:
            raise ValueError(
                f"expected one loss an example, shape ({size},), got {self._fault(losses, size)}"
            )
        if losses.ndim == 1:
            return losses
        if self.added:
            return losses.flatten(1).sum(1)
        if self.name in CLASSES and losses.shape == targets.shape:
            counted: Tensor = (targets != self.ignored).flatten(1)
            return losses.flatten(1).sum(1) / counted.sum(1).clamp(min=1)
        return losses.flatten(1).mean(1)

    def _fault(self, losses: Any, size: int) -> str:
        """The fault of a result that is not one loss an example, with the fix."""
        if isinstance(losses, Tensor) and losses.ndim and size and losses.shape[0] % size == 0:
            return (
                f"shape {tuple(losses.shape)}: examples and their positions are on one dimension; "
                "end the loss with .unflatten(0, (len(targets), -1))"
            )
        if not isinstance(losses, Tensor):
            returned = type(losses).__name__
            return (
                f"{returned}: give a tensor; one number averages over the batch (reduction='none' "
                "in torch's losses)"
            )
        return (
            f"shape {tuple(losses.shape)}: the loss averages over the batch; return the loss of "
            "each example, without a mean or sum over dimension 0 (reduction='none' in torch's "
            "losses)"
        )

    def _fit_loss(self, outputs: Any) -> Callable[..., Any]:
        """The loss, or a copy whose tensors have the type and device of the outputs.

        The copy is made in every call, because the owner of the loss may change it between calls.
        """
        like = first_numbers(outputs) if self.tensors else None
        if like is None or all(fits(t, like, strict=bool(self.name)) for t in self.tensors):
            return self.loss
        return follow(self.loss, like)

    def copy_like(self, like: Tensor) -> "PerExampleLoss":
        """The same on a copy of the loss, whose tensors have the type and device of ``like``.

        The copy has a state of its own.
        """
        return PerExampleLoss(follow(self.loss, like), self.name, self.ignored, self.added)

    def _convert_targets(self, outputs: Any, targets: Any) -> Any:
        """The targets; integers and booleans as floats, if the loss compares them with outputs."""
        if self.name in (*CLASSES, *OTHER_SHAPES, *CLASS_LISTS) or not isinstance(targets, Tensor):
            return targets
        return targets if targets.is_floating_point() else targets.to(outputs.dtype)

    def _arrange_outputs(self, outputs: Any, targets: Any) -> Any:
        """The outputs as torch's loss takes them: logits, with the classes on dimension 1.

        Raises ValueError where torch would broadcast outputs and targets, or where the dimension of
        the classes cannot be known.
        """
        classes_last = hasattr(outputs, "logits")  # as models of transformers have them
        outputs = outputs.logits if classes_last else outputs
        if isinstance(outputs, Mapping) and "logits" in outputs:
            outputs = outputs["logits"]
        if isinstance(outputs, Tensor) and outputs.dtype in (torch.bfloat16, torch.float16):
            outputs = outputs.float()  # of a pass in mixed precision
        if not isinstance(outputs, Tensor):
            raise ValueError(
                f"{self.name}: expected outputs that are a tensor or have .logits, got "
                f"{type(outputs).__name__}: give a function that calls it with a part of them, "
                "such as lambda outputs, targets: F.cross_entropy(outputs[0], targets, "
                "reduction='none')"
            )
        if not isinstance(targets, Tensor):
            return outputs
        if self.name not in CLASSES:
            if outputs.shape != targets.shape and self.name not in OTHER_SHAPES:
                fix = "by squeeze(-1) in forward: squeeze() also takes the batch of one example"
                if outputs.ndim:
                    fix = (
                        "such as targets[:, None], or in the loss: lambda outputs, targets: "
                        f"nn.{self.name}(reduction='none')(outputs[:, 0], targets.float())"
                    )
                raise ValueError(
                    f"expected outputs and targets of one shape for {self.name}, got "
                    f"{tuple(outputs.shape)} and {tuple(targets.shape)}: reshape one of the two, "
                    f"{fix}"
                )
            return outputs
        if outputs.ndim != 3 or targets.is_floating_point() or outputs.shape[:2] != targets.shape:
            return outputs
        if not classes_last and outputs.shape[1] == outputs.shape[2]:
            raise ValueError(
                f"outputs of shape {tuple(outputs.shape)} may have their classes on dimension 1 or "
                "2: give a function that calls F.cross_entropy with the classes on dimension 1 and "
                "reduction='none'"
            )
        return outputs.movedim(2, 1)
