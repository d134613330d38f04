"""A shortcut to u = x R^T of a carried layer: from its output, if that is narrower than its input.

Symbols: y = x W^T + b the output, L (m, r), R (r, n) carriers, u = x R^T.
Carriers of W itself (``decompose``) have R = S^-1 L^T W with S = L^T W R^T, because R spans the rows of L^T W. So
    u = x R^T = (y - b) A        A = L S^-T, (m, r)
and the product of x and R, n wide (a whole convolution for a kernel), becomes a product of y and A, m wide.
Exact up to rounding, and checked for every layer: S^-1 L^T W differs from R if the weights have moved since the frame
was made, if the carriers are not those of W, or if S is too near singular. A bias far longer than x W^T rounds away
digits of y. That does not show in R and is checked separately (``bias_lost``).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.tensors import matrix_in_memory_order, to_memory_order

TOLERATED = 1e3
"""Units in the last place by which S^-1 L^T W may differ from R in Frobenius norm, for each row of R."""


def output_carriers(
    W: Float[Tensor, "m *rest"], L: Float[Tensor, "m r"], R: Float[Tensor, "r n"]
) -> tuple[Float[Tensor, "m r"], Float[Tensor, ""]]:
    """A, and the Frobenius norm of S^-1 L^T W - R: NaN or huge if there is no such A."""
    core, rows = L.mT @ matrix_in_memory_order(W), to_memory_order(R, W)
    inverse, _ = torch.linalg.inv_ex(core @ rows.mT)
    return L @ inverse.mT, torch.linalg.vector_norm(inverse @ core - rows)


def bias_lost(bias: Float[Tensor, " m"], A: Float[Tensor, "m r"]) -> Float[Tensor, ""]:
    """The error in u, for an input of length 1, that rounding y = x W^T + b can cause; add it to the norm above."""
    lost: Tensor = torch.finfo(A.dtype).eps * torch.linalg.vector_norm(bias) * torch.linalg.vector_norm(A)
    return lost


def tolerance(R: Float[Tensor, "r n"]) -> float:
    """The largest norm that rounding explains."""
    return TOLERATED * float(torch.finfo(R.dtype).eps) * math.sqrt(R.shape[0])
