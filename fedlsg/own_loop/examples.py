"""Public examples, for what reads shapes, and made-up ones, to check that a model treats examples independently."""

from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.carriers import Adapted
from fedlsg.gradients import Batch, LossFunction
from fedlsg.gradients.independence import check_independent
from fedlsg.gradients.supported import UnsupportedLayerError
from fedlsg.method import Method
from fedlsg.randomness import public_generator

ROWS = 7
"""Examples that are made."""


def check_start(model: nn.Module, method: Method, example: tuple[Batch, Batch] | None) -> None:
    """Raise ValueError for a model that has adapters already, and for pruning that needs an example."""
    if method.carrier.kind == "lora" and any(isinstance(module, Adapted) for module in model.modules()):
        raise ValueError("the model has LoRA adapters already: build it anew, as before the first PrivateStep")
    if method.prune.kind == "synflow" and example is None:
        raise ValueError(
            "prune='synflow' reads the shape of the inputs before the first step: give example=(inputs, targets), some "
            "public or made-up rows, or the setting prune='random'"
        )


def synthetic(like: Batch) -> Batch:
    """``ROWS`` random rows of the shape, type and device of ``like``, of which no value is read.

    Normal numbers for floating point inputs; 0 or 1, and 1 in the first column, for integers and booleans.
    """
    if not isinstance(like, Tensor):
        return {name: _rows(value, name) for name, value in like.items()}
    return _rows(like, "")


def _rows(like: Tensor, name: str) -> Tensor:
    generator = public_generator(0, "synthetic", name)
    shape = (ROWS, *like.shape[1:])
    if like.is_floating_point():
        return torch.randn(shape, generator=generator).to(like)
    drawn = torch.randint(2, shape, generator=generator)
    if drawn.ndim > 1:
        drawn[:, 0] = 1  # no mask of tokens is empty
    return drawn.to(like)


def first_rows(part: Batch) -> Any:
    """The first row alone: a batch of one, for what reads shapes."""
    return part[:1] if isinstance(part, Tensor) else {name: value[:1] for name, value in part.items()}


def check_synthetic(model: nn.Module, loss: LossFunction, inputs: Batch, targets: Batch) -> None:
    """``check_independent`` on made-up examples of these shapes and types: the values of ``inputs`` are not read.

    Raises UnsupportedLayerError for a model that mixes examples; ValueError, asking for public examples, where the
    model cannot be run on made-up ones.
    """
    made, wanted = synthetic(inputs), synthetic(targets)
    if isinstance(wanted, Tensor) and wanted.is_floating_point():
        wanted = wanted.sigmoid()  # a share, which every loss takes
    try:
        check_independent(model, loss, made, wanted)
    except Exception as error:
        if isinstance(error, UnsupportedLayerError) and error.__cause__ is None:
            raise
        reason = str(error).split("\n")[0]
        raise ValueError(
            "the model or the loss cannot be run on made-up examples of the data's shape, by which it is checked that "
            f"examples do not mix: give example=(inputs, targets), some public rows ({reason})"
        ) from error


def made_up(inputs: Batch, targets: Batch) -> tuple[Any, Any]:
    """Made-up rows of inputs and targets of these shapes and types, whose values are not read."""
    wanted = synthetic(targets)
    return synthetic(inputs), wanted.sigmoid() if isinstance(wanted, Tensor) and wanted.is_floating_point() else wanted
