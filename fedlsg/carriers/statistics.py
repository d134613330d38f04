"""Statistics of gradients that the papers show: stable rank, residual, clipping, energy of units.

Symbols: dW (m, n) gradient of a weight W, L (m, r), R (r, n) carriers, P their projection (Eq. 3),
C clip norm, p sparsity; a convolution kernel (m, c, kh, kw) is flattened, and its in units are the
c channels.
Not private: everything here is a function of gradients without noise, to inspect a simulation,
never to release. A gradient that is zero everywhere has no such statistics: they are NaN.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from fedlsg.frame import Block
from fedlsg.frame.forms import LEFT, TANGENT, Form
from fedlsg.lowrank import check_rank, flatten_kernel
from fedlsg.privacy import Mechanism, clip_factors

LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""Levels of the quantiles in ``Clipping.norms``."""


def stable_rank(dW: Float[Tensor, "m *rest"]) -> float:
    """||dW||_F^2 / ||dW||_2^2 (Yu et al. 2021, Fig. 2), in float64: from 1 to rank(dW)."""
    A = flatten_kernel(dW.detach()).double()
    squares = A.square().sum()
    return float(squares / torch.linalg.matrix_norm(A, 2).square()) if squares > 0 else math.nan


def principal_carriers(
    A: Float[Tensor, "m *rest"], rank: int
) -> tuple[Float[Tensor, "m r"], Float[Tensor, "r n"]]:
    """The first ``rank`` left and right singular vectors of A: the r-SVD of Yu et al. 2021, sec.
    4.2.

    Raises ValueError for a rank outside 1..min(m, n).
    """
    A = flatten_kernel(A.detach())
    check_rank(rank, A.shape)
    U, _, Vt = torch.linalg.svd(A, full_matrices=False)
    return U[:, :rank], Vt[:rank]


def residual(
    dW: Float[Tensor, "m *rest"],
    L: Float[Tensor, "m r"],
    R: Float[Tensor, "s n"],
    form: Form = TANGENT,
) -> float:
    """||dW - P(dW)||_F / ||dW||_F in float64: the share of dW's length that carriers lose.

    Source: Yu et al. 2021, Eq. 5-6.

    P(dW) is ``reconstruct(*project(dW, L, R), L, R)``, so dW - P(dW) = (I - L L^T) dW (I - R^T R);
    in the form ``left`` it is dW (I - R^T R). In the other forms P is the orthogonal projection
    onto span(L) x span(R), whatever the scales of L and R are.
    """
    A, L, R = flatten_kernel(dW.detach()).double(), L.double(), R.double()
    length = A.norm()
    if form in (TANGENT, LEFT):
        kept = form.lift(form.project(A, L, R), L, R)
    else:
        kept = L @ (torch.linalg.pinv(L) @ A @ torch.linalg.pinv(R)) @ R
    return float((A - kept).norm() / length) if length > 0 else math.nan


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Shares of ||dW||_F^2; NaN for a gradient of zeros.

    rows: in kept rows (out units).
    columns: in kept columns (in units).
    either: in entries whose row or column is kept. All other entries of an update come from the
        third term of Eq. 3 alone.
    """

    rows: float
    columns: float
    either: float


def kept_energy(
    dW: Float[Tensor, "m n *taps"], rows: Int[Tensor, " k"], columns: Int[Tensor, " l"]
) -> Energy:
    """Energy of dW in the given out units and in units."""
    squares = dW.detach().double().square()
    squares = squares.flatten(2).sum(2) if dW.ndim > 2 else squares
    total = squares.sum()
    if total == 0:
        return Energy(rows=math.nan, columns=math.nan, either=math.nan)
    frozen = squares.clone()
    frozen[rows] = 0
    frozen[:, columns] = 0
    return Energy(
        rows=float(squares[rows].sum() / total),
        columns=float(squares[:, columns].sum() / total),
        either=float(1 - frozen.sum() / total),
    )


def random_energy(shape: tuple[int, ...], rows: int, columns: int) -> Energy:
    """The mean of ``kept_energy`` over random out units and in units, for any dW of ``shape``.

    ``rows`` and ``columns``: numbers of kept units.
    """
    out_share, in_share = rows / shape[0], columns / shape[1]
    return Energy(rows=out_share, columns=in_share, either=1 - (1 - out_share) * (1 - in_share))


def block_squares(gradients: Sequence[Float[Tensor, "batch _"]]) -> Float64[Tensor, "blocks batch"]:
    """Squared length of every example's gradient, block by block, as ``clipped_sum`` takes it."""
    norms = [torch.linalg.vector_norm(block, dim=1, dtype=torch.float64) for block in gradients]
    return torch.stack(norms).square()


def select_kept(
    gradients: Sequence[Float[Tensor, "batch _"]], blocks: Sequence[Block]
) -> list[Float[Tensor, "batch kept"]]:
    """The kept coordinates of gradients that were computed without a mask, block by block.

    Guarantee: equal to a pass in the masked frame itself, up to rounding, since a mask only leaves
    coordinates out.
    """
    selected = []
    for g, block in zip(gradients, blocks, strict=True):
        if block.keep.index is not None:
            g = g.index_select(1, block.keep.positions(block.shape).to(g.device))
        selected.append(g)
    return selected


@dataclass(frozen=True, kw_only=True, eq=False)
class Clipping:
    """The factors by which one clip scales a batch of examples, and their norms.

    clipped: share of the factors below 1 (Ito et al. 2024, Listing 1 prints the factors), over the
        examples whose gradient is finite; under a clip of each block, over examples and blocks.
    mean_factor: mean of the factors.
    dropped: examples with a gradient that is not finite, which the clip counts as zero.
    norms: quantiles of the joint norm, by level.
    lengths: the joint norms, ascending.
    factors: one for each finite example, in their order: the smallest one of its blocks.
    """

    clipped: float
    mean_factor: float
    dropped: int
    norms: Mapping[float, float]
    lengths: tuple[float, ...] = field(repr=False)
    factors: tuple[float, ...] = field(repr=False)


def clipping(
    squares: Float64[Tensor, "blocks batch"],
    mechanism: Mechanism,
    *,
    dtype: torch.dtype,
    coordinates: int,
) -> Clipping:
    """The clip of examples whose squared norms are ``squares``, by the factors of ``clipped_sum``.

    ``dtype`` and ``coordinates`` of the clipped gradients set the factors' margin for rounding.
    Raises ValueError without an example.
    """
    if not squares.shape[1]:
        raise ValueError("expected one example at least, got none")
    joint = squares.sum(0)
    finite = joint.isfinite()
    norms = (squares if mechanism.clip == "per-block" else joint.unsqueeze(0)).sqrt()[:, finite]
    factors = torch.ones_like(norms)
    if mechanism.clips:
        factors = clip_factors(norms, mechanism.clip_norm, dtype, coordinates).double()
    lengths = joint[finite].sqrt()
    quantiles = [math.nan] * len(LEVELS)
    if len(lengths):
        levels = torch.tensor(LEVELS, dtype=torch.float64, device=lengths.device)
        quantiles = torch.quantile(lengths, levels).tolist()
    return Clipping(
        clipped=float((factors < 1).double().mean()),
        mean_factor=float(factors.mean()),
        dropped=int((~finite).sum()),
        norms=dict(zip(LEVELS, quantiles, strict=True)),
        lengths=tuple(lengths.sort().values.tolist()),
        factors=tuple(factors.amin(0).tolist()) if len(factors) else (),
    )
