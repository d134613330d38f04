"""The seam of the noise: inside, ``fedlsg.noise.add_gaussian`` is another function, for every path.

``old_noise`` injects the draws of versions up to 2b19fbd6, so that what they gave can be compared.
They are NOT private where a reader knows both means (test_mironov.py).
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from fedlsg.randomness import SecretStream

AddGaussian = Callable[[Tensor, float, SecretStream], Tensor]
AT_ONCE = 2**14


def noise_by(add: AddGaussian) -> AbstractContextManager[object]:
    """All noise by ``add``: from a sum, a deviation and a stream."""
    return patch("fedlsg.noise.add_gaussian", add)


def no_noise() -> AbstractContextManager[object]:
    """No noise: what a step returns is the very vector that gets noise."""
    return noise_by(lambda total, std, stream: total)


def old_noise() -> AbstractContextManager[object]:
    """The old draws."""
    return noise_by(add_old)


def add_old(total: Tensor, std: float, stream: SecretStream) -> Tensor:
    """Float64 normals of 52-bit uniforms, added and rounded to the type of the sum."""
    noise = old_normals(stream.words(len(total))).to(total.device)
    return noise.mul_(std).add_(total).to(total.dtype)


def old_normals(words: np.ndarray) -> Tensor:
    """sqrt(2) erfinv(2 u - 1), u the mid-point of the cell of a word's first 52 bits."""
    signed = (words ^ np.uint64(1 << 63)).view(np.int64) >> 12
    numbers = torch.from_numpy((signed + 0.5) * 2.0**-51)
    for part in numbers.split(AT_ONCE):
        torch.erfinv(part, out=part).mul_(math.sqrt(2))
    return numbers
