"""u = x R^T of a carried layer from the layer's output, m wide, where its input under the kernel is wider.

Symbols: y = x W^T + b the output, L (m, r), R (r, n) carriers, u = x R^T.
Carriers of W itself (lowrank.decompose) have R = S^-1 L^T W with S = L^T W R^T, for R spans the rows of L^T W. So
    u = x R^T = (y - b) A        A = L S^-T, (m, r)
and the product of x with R, n wide (a whole convolution for a kernel), becomes one of y with A, m wide.
Exact but for rounding, and checked, never assumed: weights that moved since the frame was made, carriers of something
else, or an S so near singular that rounding would show leave S^-1 L^T W different from R. What the sum with a bias
that is far longer than x W^T has rounded away does not show there, and is checked apart (``bias_lost``).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.tensors import matrix_in_memory_order, to_memory_order

TOLERATED = 1e3
"""Units in the last place by which S^-1 L^T W may differ from R, in Frobenius norm, for each row of R."""


def output_carriers(
    W: Float[Tensor, "m *rest"], L: Float[Tensor, "m r"], R: Float[Tensor, "r n"]
) -> tuple[Float[Tensor, "m r"], Float[Tensor, ""]]:
    """A, and the Frobenius norm of S^-1 L^T W - R, NaN or huge where there is no such A."""
    core, rows = L.mT @ matrix_in_memory_order(W), to_memory_order(R, W)
    inverse, _ = torch.linalg.inv_ex(core @ rows.mT)
    return L @ inverse.mT, torch.linalg.vector_norm(inverse @ core - rows)


def bias_lost(bias: Float[Tensor, " m"], A: Float[Tensor, "m r"]) -> Float[Tensor, ""]:
    """What rounding next to b can take off u for an input of length 1, to be added to that of ``output_carriers``."""
    lost: Tensor = torch.finfo(A.dtype).eps * torch.linalg.vector_norm(bias) * torch.linalg.vector_norm(A)
    return lost


def tolerance(R: Float[Tensor, "r n"]) -> float:
    """The largest such norm that rounding explains."""
    return TOLERATED * float(torch.finfo(R.dtype).eps) * math.sqrt(R.shape[0])
