"""Norm and finiteness of very many values, in one pass."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

AT_ONCE = 2**18
"""Values whose squares are added up in float32 at once."""


def norm_of(values: Float[Tensor, " kept"]) -> float:
    """L2 norm, to float32's precision for any number of values; not finite if a value is not, or if it overflows.

    In pieces: one float32 sum over very many values would stop growing, and a float64 one takes ten times as long.
    """
    if len(values) <= AT_ONCE:
        return float(torch.linalg.vector_norm(values))
    return float(torch.stack([torch.linalg.vector_norm(piece) for piece in values.split(AT_ONCE)]).double().norm())


def all_finite(values: Float[Tensor, " kept"]) -> bool:
    """Whether every value is finite; looks at single values only if the norm is not finite."""
    return math.isfinite(norm_of(values)) or bool(values.isfinite().all())
