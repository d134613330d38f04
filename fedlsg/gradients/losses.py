"""One loss for each example, from a loss in the form in which torch's users have it.

A private step clips the gradient of each example, so it needs the loss of each example: a mean over the batch would
divide every gradient by the size of the batch, which is secret.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from fedlsg.gradients.per_example import LossFunction, batch_size

CLASSES = ("CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss")
"""Losses of torch whose outputs have the classes on dimension 1, and whose targets are class numbers."""
OTHER_SHAPES = ("MultiMarginLoss", "multi_margin_loss")
"""Other losses of torch whose targets have another shape than their outputs."""
CLASS_LISTS = ("MultiLabelMarginLoss", "multilabel_margin_loss")
"""Losses of torch whose targets are integers of the shape of the outputs."""
IGNORED = -100
"""The class number that torch's cross-entropy leaves out by default."""


def per_example_loss(loss: Callable[..., Any]) -> LossFunction:
    """``loss(outputs, targets)`` in the form that gives one loss for each example, shape (B,).

    A loss of torch in its usual form (``nn.CrossEntropyLoss()``, ``F.mse_loss``), and any function with a parameter
    ``reduction``, is called with ``reduction="none"``; the module itself is not changed. Other functions are called as
    they are. The dimensions of a result (B, ...) after the first are averaged. For torch's losses, outputs that have
    ``.logits`` are replaced by these; cross-entropy takes outputs (B, T, V) with targets (B, T), too, and averages over
    the targets of an example that are not ``ignore_index``.
    Integer or boolean targets of a loss that compares them with outputs (``BCEWithLogitsLoss``) become floats.
    The result can be pickled if ``loss`` can. It raises ValueError for a result without the batch as first dimension,
    and where torch would broadcast targets against outputs, which mixes examples.
    """
    if isinstance(loss, PerExampleLoss):
        return loss
    if not callable(loss) or isinstance(loss, type):
        hint = f": write {loss.__name__}()" if isinstance(loss, type) else ""
        raise ValueError(f"expected loss(outputs, targets), a function or a module of torch, got {loss!r}{hint}")
    if isinstance(loss, nn.Module):
        if isinstance(loss, _Loss) or isinstance(getattr(loss, "reduction", None), str):
            loss = copy.copy(loss)
            vars(loss)["reduction"] = "none"
        return PerExampleLoss(loss, name_in_torch(type(loss)), getattr(loss, "ignore_index", IGNORED))
    base: Any = loss
    given: dict[str, Any] = {}
    while isinstance(base, partial):
        base, given = base.func, base.keywords | given
    if has_reduction(loss):
        loss = partial(loss, reduction="none")
    return PerExampleLoss(loss, name_in_torch(base), given.get("ignore_index", IGNORED))


def has_reduction(loss: Callable[..., Any]) -> bool:
    """Whether a function has a parameter ``reduction``."""
    try:
        return "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False


def name_in_torch(loss: Any) -> str:
    """The name of a loss, of a function or a class; empty if it is not one of torch's."""
    own = str(getattr(loss, "__module__", "")).startswith("torch.nn")
    return str(getattr(loss, "__name__", "")) if own else ""


@dataclass(frozen=True, eq=False)
class PerExampleLoss:
    """See ``per_example_loss``. ``name``: torch's own, or empty; ``ignored``: the class that does not count."""

    loss: Callable[..., Any]
    name: str
    ignored: int

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of each example, shape (B,)."""
        if self.name:
            outputs = self._arranged(outputs, targets)
            targets = self._numbers(outputs, targets)
        losses: Any = self.loss(outputs, targets)
        size = batch_size(targets, targets)
        if not isinstance(losses, Tensor) or losses.ndim == 0 or len(losses) != size:
            found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(
                f"expected one loss an example, shape ({size},), got {found}: the loss averages over the batch; return "
                "the loss of each example, without a mean or sum over dimension 0 (reduction='none' in torch's losses)"
            )
        if losses.ndim == 1:
            return losses
        if self.name in CLASSES and losses.shape == targets.shape:
            counted: Tensor = (targets != self.ignored).flatten(1)
            return losses.flatten(1).sum(1) / counted.sum(1).clamp(min=1)
        return losses.flatten(1).mean(1)

    def _numbers(self, outputs: Any, targets: Any) -> Any:
        """Targets such as 0 and 1 or True and False as floats, where the loss compares them with the outputs."""
        if self.name in (*CLASSES, *OTHER_SHAPES, *CLASS_LISTS) or not isinstance(targets, Tensor):
            return targets
        return targets if targets.is_floating_point() else targets.to(outputs.dtype)

    def _arranged(self, outputs: Any, targets: Any) -> Any:
        """The outputs as torch's loss takes them."""
        classes_last = hasattr(outputs, "logits")
        outputs = outputs.logits if classes_last else outputs
        if isinstance(outputs, Tensor) and outputs.dtype in (torch.bfloat16, torch.float16):
            outputs = outputs.float()  # of a pass in mixed precision
        if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
            return outputs
        if self.name not in CLASSES:
            if outputs.shape != targets.shape and self.name not in OTHER_SHAPES:
                raise ValueError(
                    f"expected outputs and targets of one shape for {self.name}, got {tuple(outputs.shape)} and "
                    f"{tuple(targets.shape)}: reshape one of the two, such as targets[:, None]"
                )
            return outputs
        if outputs.ndim != 3 or targets.is_floating_point() or outputs.shape[:2] != targets.shape:
            return outputs
        if not classes_last and outputs.shape[1] == outputs.shape[2]:
            raise ValueError(
                f"outputs of shape {tuple(outputs.shape)} may have their classes on dimension 1 or 2: give a function "
                "that calls F.cross_entropy with the classes on dimension 1 and reduction='none'"
            )
        return outputs.movedim(2, 1)
