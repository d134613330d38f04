"""Directions of a probe: top eigenvectors of a symmetric matrix, or a basis of anchor gradients by
the power method.

Eigenvectors have signs that do not depend on the solver. Symbols: A (k, k) a sum of g^T g, c the
eigenvectors wanted, Q (k, c + EXTRA) orthonormal columns. A small matrix is decomposed whole. A
large one of which few vectors are wanted, by subspace iteration: Q from a Gaussian start, STEPS
times Q = qr(A Q), then the eigenvectors of Q^T A Q (Halko, Martinsson and Tropp 2011, Alg. 4.4).

Anchors (GEP: Yu et al. 2021): G (N, m) gradients of public inputs in one parameter, flattened; L
(m, k) their basis.
Differs from the source: a group is one parameter, and has at most k vectors; there all parameters
are cut into groups of equal length. Targets are those of every probe (``ProbeSource.batch``).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.carriers.probe.moments import dense_frame, part_of
from fedlsg.gradients import Batch, LossFunction, batch_size, check
from fedlsg.gradients.isolation import per_example_gradients

WHOLE_UP_TO = 256
"""Sides up to which the whole decomposition takes less than 5 ms on a CPU."""
FEW = 0.4
"""Subspace iteration is for fewer vectors than this share of the side: at 1,152 and c = 128, 8
times as fast.
"""
EXTRA, STEPS = 16, 4
"""Columns in addition to c, and multiplications by A. With eigenvalues i^-1.4, c = 128 lose 5e-4 of
their energy.
"""


def top_eigenvectors(
    A: Float[Tensor, "k k"], count: int, *, generator: torch.Generator
) -> tuple[Float[Tensor, " c"], Float[Tensor, "k c"]]:
    """The ``count`` largest eigenvalues of A, descending, and their eigenvectors as columns.

    ``A`` is positive semidefinite. ``generator`` is public and on the CPU; it is used where A is
    large and ``count`` small. The eigenvectors are then approximate, by STEPS: their energy is
    within 1e-3 of the largest possible for spectra such as i^-1.4, and closer for those that fall
    faster.
    Guarantee: the columns are orthonormal to rounding, also where rank(A) < ``count`` or A = 0, and
    the largest entry of each in magnitude is positive. The same A, generator state and build of
    LAPACK give the same bits.
    Raises ValueError for an A that is not finite.
    """
    if not bool(A.isfinite().all()):
        raise ValueError(
            "expected a finite matrix of second moments, got NaN or infinity in shape "
            f"{tuple(A.shape)}"
        )
    if is_large(len(A), count):
        start = torch.randn(len(A), count + EXTRA, generator=generator)
        values, vectors = subspace(A, start.to(A))
    else:
        values, vectors = whole(A)
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


def subspace(
    A: Float[Tensor, "k k"], Q: Float[Tensor, "k w"]
) -> tuple[Float[Tensor, " w"], Float[Tensor, "k w"]]:
    """Approximate largest eigenvalues, ascending, and eigenvectors, in float64, from the start Q.

    Householder QR gives orthonormal columns for any A Q, of any rank.
    """
    for _ in range(STEPS):
        Q = torch.linalg.qr(A @ Q)[0]
    values, rotation = torch.linalg.eigh((Q.mT @ (A @ Q)).double())
    return values, Q.double() @ rotation


POWER_STEPS = 2
"""Multiplications by G^T G."""
AT_ONCE, LARGEST = 64, 2**29
"""Examples of a microbatch; largest N times parameters, whose gradients take 2 GiB in float32."""


def anchor_gradients(
    model: nn.Module, loss_fn: LossFunction, inputs: Batch, targets: Batch
) -> dict[str, Float[Tensor, "anchors m"]]:
    """Every anchor's gradient of every trainable parameter, in float32, by name. The model is not
    changed.

    An anchor whose gradient is not finite is left out. Raises ValueError if none is left, or for
    too many numbers.
    """
    frame = dense_frame(model)
    count = batch_size(inputs, targets)
    if count * frame.size > LARGEST:
        raise ValueError(
            f"probes={count} anchor gradients of {frame.size:,} parameters are too many to hold: "
            f"choose probes of at most {LARGEST // frame.size}, or freeze a part of the model"
        )
    checked = check(model, frame)
    parts: list[list[Tensor]] = []
    for start in range(0, count, AT_ONCE):
        x, y = (part_of(batch, start, start + AT_ONCE) for batch in (inputs, targets))
        gradients = per_example_gradients(model, loss_fn, x, y, frame, checked=checked)
        parts.append([g.float() for g in gradients])
    whole_batch = [torch.cat(of_parameter) for of_parameter in zip(*parts, strict=True)]
    finite = torch.stack([g.isfinite().all(1) for g in whole_batch]).all(0)
    if not bool(finite.any()):
        raise ValueError(
            f"none of the {count} anchors has a finite gradient: check the weights and the "
            "source's inputs"
        )
    return {c.name: g[finite] for c, g in zip(frame.coordinates, whole_batch, strict=True)}


def anchor_basis(
    G: Float[Tensor, "anchors m"], count: int, *, generator: torch.Generator
) -> tuple[Float[Tensor, "m k"], Float[Tensor, " k"]]:
    """An orthonormal basis of k = ``count`` columns near the top of G^T G, and the shares of |G|^2
    along them.

    L = qr(G^T G L), from a Gaussian start. Where G has fewer directions than k, the others are what
    is left of the start. Guarantee: the columns are orthonormal to rounding for any G, zero
    included.
    """
    start = torch.randn(G.shape[1], count, generator=generator).to(G)
    L = torch.linalg.qr(start)[0]
    for _ in range(POWER_STEPS):
        L = torch.linalg.qr(G.mT @ (G @ L))[0]
    energy = (G @ L).square().sum(0) / G.square().sum().clamp_min(torch.finfo(G.dtype).tiny)
    return L.contiguous(), energy
