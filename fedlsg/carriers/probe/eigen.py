"""The top eigenvectors of a symmetric matrix, such as the sums of g^T g of a probe's gradients g.

Symbols: A (k, k) positive semidefinite    c number of eigenvectors    Q (k, c + EXTRA) orthonormal

A small matrix is decomposed as a whole. Of a large one few vectors are wanted, and subspace
iteration is faster (Halko, Martinsson and Tropp 2011, Alg. 4.4): Q from a Gaussian start, STEPS
times Q = qr(A Q), then the eigenvectors of Q^T A Q.
"""

import torch
from jaxtyping import Float
from torch import Tensor

WHOLE_UP_TO = 256
"""Up to this k the whole decomposition takes less than 5 ms on a CPU."""
FEW = 0.4
"""Subspace iteration is for c below this share of k: at k = 1,152 and c = 128 it is 8 times as
fast."""
EXTRA = 16
"""Columns of Q in addition to c: they make the last of the c vectors accurate."""
STEPS = 4
"""Multiplications by A. With EXTRA, and eigenvalues i^-1.4, c = 128 vectors lose 5e-4 of their
energy."""


def top_eigenvectors(
    A: Float[Tensor, "k k"], count: int, *, generator: torch.Generator
) -> tuple[Float[Tensor, " c"], Float[Tensor, "k c"]]:
    """The ``count`` largest eigenvalues of A, descending, and their eigenvectors as columns.

    ``generator``: public, on the CPU; it is used only if A is large and ``count`` small. Then the
    eigenvectors are approximate: their energy is within 1e-3 of the largest possible for spectra
    such as i^-1.4, and closer for spectra that fall faster.
    Guarantee: the columns are orthonormal to rounding, even if rank(A) < ``count`` or A = 0. The
    largest entry of each in magnitude is positive, so that signs do not depend on the solver. The
    same A, generator state and build of LAPACK give the same bits.
    Raises ValueError for an A that is not finite.
    """
    if not bool(A.isfinite().all()):
        raise ValueError(
            "expected a finite matrix of second moments, got NaN or infinity in shape "
            f"{tuple(A.shape)}"
        )
    if is_large(len(A), count):
        start = torch.randn(len(A), count + EXTRA, generator=generator)
        values, vectors = iterate_subspace(A, start.to(A))
    else:
        values, vectors = torch.linalg.eigh(A.double())
    values = values.flip(0)[:count].clamp_min(0)
    vectors = vectors.flip(1)[:, :count]
    largest = vectors.abs().argmax(0)
    signs = torch.where(vectors.gather(0, largest.unsqueeze(0)) < 0, -1.0, 1.0)
    return values.to(A), (vectors * signs).to(A).contiguous()


def is_large(side: int, count: int) -> bool:
    """Whether subspace iteration is faster for ``count`` vectors of a matrix of this side."""
    return side > WHOLE_UP_TO and count < FEW * side


def iterate_subspace(
    A: Float[Tensor, "k k"], Q: Float[Tensor, "k w"]
) -> tuple[Float[Tensor, " w"], Float[Tensor, "k w"]]:
    """Approximations of the largest eigenvalues, ascending, and of their eigenvectors, in float64.

    ``Q``: the start. Householder QR gives orthonormal columns for A Q of any rank.
    """
    for _ in range(STEPS):
        Q = torch.linalg.qr(A @ Q)[0]
    values, rotation = torch.linalg.eigh((Q.mT @ (A @ Q)).double())
    return values, Q.double() @ rotation
