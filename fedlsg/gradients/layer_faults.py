"""What torch's errors about sizes and types of a layer's inputs mean, in words: the layer's own
numbers first, those that it gets next, and the fix.

An error of another text stays as torch has it: the words rest on torch's, and name no cause that
they do not say.
"""

import math
import re

import torch
from torch import Tensor, nn

from fedlsg.gradients.per_example import Batch
from fedlsg.tensors import fields_of

SHAPES = re.compile(r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and \d+x\d+\)")
CHANNELS = re.compile(r"to have (\d+) channels, but got (\d+) channels")
TYPES = re.compile(r"must have the same dtype|should be the same|expected scalar type|expected m")


def layer_fault(module: nn.Module, error: BaseException, inputs: Batch) -> str | None:
    """What is wrong with the inputs of a layer that failed on a row; None for another error.

    ``inputs``: of the model, a tensor (B, ...) or several by name.
    """
    said = str(error)
    fields = dict(fields_of(inputs))
    first = next(iter(fields.values()), None)
    if isinstance(module, nn.Linear) and (found := SHAPES.search(said)):
        return _of_width(module, int(found[2]), first)
    if found := CHANNELS.search(said):
        wanted, got = found[1], found[2]
        channels = f"an image has {got} channels" if _is(first, 1, int(got)) else f"it gets {got}"
        return (
            f"takes {wanted} channels, and {channels}: give it in_channels={got}, or images of "
            f"shape ({wanted}, height, width)"
        )
    weight = next(iter(module.parameters(recurse=False)), None)
    if not TYPES.search(said) or weight is None or first is None or first.is_floating_point():
        return None
    own = _type(weight.dtype)
    return (
        f"has weights of {own}, and the inputs are {_type(first.dtype)}: give numbers of its type, "
        f"x.astype('{own}'), or begin with a layer that takes integers, such as nn.Embedding"
    )


def _of_width(layer: nn.Linear, got: int, first: Tensor | None) -> str:
    """Of a Linear that gets rows of another length."""
    takes = f"takes {layer.in_features} numbers a row, and"
    fix = f"give it {got}, nn.Linear({got}, {layer.out_features})"
    if first is None or not _is(first, -1, got):
        return f"{takes} gets {got} from the layers before: {fix}"
    shape = tuple(first.shape[1:])
    if math.prod(shape) == layer.in_features:
        return f"{takes} gets inputs of shape {shape}: put nn.Flatten() before it"
    if len(shape) == 1:
        return f"{takes} the inputs have {got} columns: {fix}, or inputs of {layer.in_features}"
    return f"{takes} gets inputs of shape {shape}: {fix}, or nn.Flatten() before it"


def _is(tensor: Tensor | None, dim: int, size: int) -> bool:
    return tensor is not None and tensor.ndim > 1 and tensor.shape[dim] == size


def _type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
