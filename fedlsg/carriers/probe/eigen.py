"""Top eigenvectors of a symmetric matrix, with signs that do not depend on the solver.

Symbols: A (k, k) a sum of g^T g, c the eigenvectors wanted, Q (k, c + EXTRA) orthonormal columns.
A small matrix is decomposed whole. A large one of which few vectors are wanted, by subspace iteration: Q from a
Gaussian start, STEPS times Q = qr(A Q), then the eigenvectors of Q^T A Q (Halko, Martinsson and Tropp 2011, Alg. 4.4).
"""

import torch
from jaxtyping import Float
from torch import Tensor

WHOLE_UP_TO = 256
"""Sides up to which the whole decomposition takes less than 5 ms on a CPU."""
FEW = 0.4
"""Subspace iteration is for fewer vectors than this share of the side: at 1,152 and c = 128, 8 times as fast."""
EXTRA, STEPS = 16, 4
"""Columns in addition to c, and multiplications by A. With eigenvalues i^-1.4, c = 128 lose 5e-4 of their energy."""


def top_eigenvectors(
    A: Float[Tensor, "k k"], count: int, *, generator: torch.Generator
) -> tuple[Float[Tensor, " c"], Float[Tensor, "k c"]]:
    """The ``count`` largest eigenvalues of A, descending, and their eigenvectors as columns.

    ``A`` is positive semidefinite. ``generator`` is public and on the CPU; it is used where A is large and ``count``
    small. The eigenvectors are then approximate, by STEPS: their energy is within 1e-3 of the largest possible
    for spectra such as i^-1.4, and closer for those that fall faster.
    Guarantee: the columns are orthonormal to rounding, also where rank(A) < ``count`` or A = 0, and the largest entry
    of each in magnitude is positive. The same A, generator state and build of LAPACK give the same bits.
    Raises ValueError for an A that is not finite.
    """
    if not bool(A.isfinite().all()):
        raise ValueError(f"expected a finite matrix of second moments, got NaN or infinity in shape {tuple(A.shape)}")
    start = torch.randn(len(A), count + EXTRA, generator=generator) if is_large(len(A), count) else None
    values, vectors = whole(A) if start is None else subspace(A, start.to(A))
    values, vectors = values.flip(0)[:count].clamp_min(0), vectors.flip(1)[:, :count]
    largest = vectors.abs().argmax(0)
    signs = torch.where(vectors.gather(0, largest.unsqueeze(0)) < 0, -1.0, 1.0)
    return values.to(A), (vectors * signs).to(A).contiguous()


def is_large(side: int, count: int) -> bool:
    """Whether subspace iteration is worth it."""
    return side > WHOLE_UP_TO and count < FEW * side


def whole(A: Float[Tensor, "k k"]) -> tuple[Float[Tensor, " k"], Float[Tensor, "k k"]]:
    """All eigenvalues, ascending, and eigenvectors, in float64."""
    values, vectors = torch.linalg.eigh(A.double())
    return values, vectors


def subspace(A: Float[Tensor, "k k"], Q: Float[Tensor, "k w"]) -> tuple[Float[Tensor, " w"], Float[Tensor, "k w"]]:
    """Approximate largest eigenvalues, ascending, and eigenvectors, in float64, from the start Q.

    Householder QR gives orthonormal columns for any A Q, of any rank.
    """
    for _ in range(STEPS):
        Q = torch.linalg.qr(A @ Q)[0]
    values, rotation = torch.linalg.eigh((Q.mT @ (A @ Q)).double())
    return values, Q.double() @ rotation
