"""Messages for torch's errors about sizes and types of a layer's inputs, with the fix.

A message says first what the layer takes, then what it gets. It rests on the text of torch's error
and names no cause that is not in it. Errors of other texts stay as they are.
"""

import math
import re

from torch import Tensor, nn

from fedlsg.gradients.per_example import Batch
from fedlsg.tensors import fields_of

SHAPES = re.compile(r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and \d+x\d+\)")
CHANNELS = re.compile(r"to have (\d+) channels, but got (\d+) channels")
TYPES = re.compile(r"must have the same dtype|should be the same|expected scalar type|expected m")


def layer_fault(module: nn.Module, error: BaseException, inputs: Batch) -> str | None:
    """What is wrong with the inputs of a layer that failed on a row; None for another error.

    inputs: of the model, a tensor (B, ...) or several by name.
    """
    text = str(error)
    first = next(iter(fields_of(inputs).values()), None)
    if isinstance(module, nn.Linear) and (match := SHAPES.search(text)):
        return _width_fault(module, int(match[2]), first)
    if match := CHANNELS.search(text):
        wanted, got = match[1], match[2]
        of_image = _has_size(first, 1, int(got))
        channels = f"an image has {got} channels" if of_image else f"it gets {got}"
        return (
            f"takes {wanted} channels, and {channels}: give it in_channels={got}, or images of "
            f"shape ({wanted}, height, width)"
        )
    weight = next(iter(module.parameters(recurse=False)), None)
    if not TYPES.search(text) or weight is None or first is None or first.is_floating_point():
        return None
    wanted, got = (str(t.dtype).removeprefix("torch.") for t in (weight, first))
    return (
        f"has weights of {wanted}, and the inputs are {got}: give numbers of its type, "
        f"x.astype('{wanted}'), or begin with a layer that takes integers, such as nn.Embedding"
    )


def _width_fault(layer: nn.Linear, got: int, first: Tensor | None) -> str:
    """The message for a Linear that gets rows of ``got`` numbers; ``first``: the first input."""
    takes = f"takes {layer.in_features} numbers a row, and"
    fix = f"give it {got}, nn.Linear({got}, {layer.out_features})"
    if first is None or not _has_size(first, -1, got):
        return f"{takes} gets {got} from the layers before: {fix}"
    shape = tuple(first.shape[1:])
    if math.prod(shape) == layer.in_features:
        return f"{takes} gets inputs of shape {shape}: put nn.Flatten() before it"
    if len(shape) == 1:
        return f"{takes} the inputs have {got} columns: {fix}, or inputs of {layer.in_features}"
    return f"{takes} gets inputs of shape {shape}: {fix}, or nn.Flatten() before it"


def _has_size(tensor: Tensor | None, dim: int, size: int) -> bool:
    return tensor is not None and tensor.ndim > 1 and tensor.shape[dim] == size
