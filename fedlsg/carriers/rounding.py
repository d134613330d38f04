"""Carriers by which the rounding of one example's gradient can fill the clip of others.

The number of rows in a pass decides the last bit of every row's gradient. A scale multiplies that bit: scales of 1e6
turn it into 0.7 C (``power=1``, ``damping=1e-6``, an adversary's rows, a network of 256-64-10). It adds up over rows
and grows with the layer. The rest of an embedding is nothing but such bits where L spans the gradient, and it is
clipped by itself. So microbatches of such a frame have one number of rows (``training.local``).
"""

from torch import Tensor
from torch.linalg import vector_norm

EVEN = 4.0
"""Largest scale on either side of a weight at which microbatches may differ in their number of rows."""


def longest(matrix: Tensor, dim: int) -> float:
    """The norm of the longest column (``dim`` 0) or row (1); they are orthogonal."""
    return float(vector_norm(matrix.float(), dim=dim).max())
