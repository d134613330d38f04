"""Low-rank carriers: decompose a weight, project a gradient onto (L, R), lift it back.

Symbols (Ito et al. 2023, sec. 3.3; Yu et al. 2021, sec. 3):
    W (m, n) public weight      L (m, r) orthonormal columns
    R (r, n) orthonormal rows   dX loss gradient with respect to X
A convolution kernel (m, c, kh, kw) is flattened to (m, c * kh * kw) first (sec. 3.4).
Draws no noise and reads no private data.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.tensors import (
    matrix_in_memory_order,
    times_transposed,
    to_device,
    to_kernel_order,
    to_memory_order,
)

Sides = tuple[Float[Tensor, "m r"], Float[Tensor, "r n"]]
"""L or dL, and R or dR."""


def flatten_kernel(W: Float[Tensor, "m *rest"]) -> Float[Tensor, "m n"]:
    """W as a matrix: out units by everything else. Two-dimensional weights pass unchanged."""
    if W.ndim < 2:
        raise ValueError(f"expected a weight of two dimensions or more, got shape {tuple(W.shape)}")
    return W.flatten(1)


def decompose(
    W: Float[Tensor, "m *rest"], rank: int, *, generator: torch.Generator, power_steps: int = 1
) -> Sides:
    """Orthonormal carriers L (m, r), R (r, n) of W (m, n) by the power method with a Gaussian
    start.

    A kernel (m, c, kh, kw) has n = c kh kw. ``generator`` must be public: every client draws the
    same start.
    Source: Yu et al. 2021, Alg. 2; Ito et al. 2023, Alg. 2.
    ``power_steps=1`` is the papers' single step: L spans W R0^T, R spans L^T W. Each further step
    starts from the R just found. Guarantee: L^T L = R R^T = I to rounding, also where rank(W) <
    ``rank`` (or W = 0); the same W, rank, generator state and build of LAPACK give the same bits.
    Differs from the papers: Householder QR with the signs fixed by a positive diagonal, where they
    use Gram-Schmidt, which silently loses orthogonality on rank-deficient W.
    Raises ValueError for a rank outside 1..min(m, n) or ``power_steps < 1``.
    """
    return decompose_each([W], rank, generators=[generator], power_steps=power_steps)[0]


def decompose_each(
    weights: Sequence[Float[Tensor, "m *rest"]],
    rank: int,
    *,
    generators: Sequence[torch.Generator],
    power_steps: int,
) -> list[Sides]:
    """``decompose`` of each weight with its own generator; one QR for all weights of a shape."""
    if power_steps < 1:
        raise ValueError(f"expected {power_steps=} >= 1")
    kernels = [W.detach() for W in weights]
    for kernel in kernels:
        if kernel.ndim < 2:
            raise ValueError(
                f"expected a weight of two dimensions or more, got shape {tuple(kernel.shape)}"
            )
    matrices = [matrix_in_memory_order(kernel) for kernel in kernels]
    starts, Lts = [], []
    for W, generator in zip(matrices, generators, strict=True):
        check_rank(rank, W.shape)
        starts.append(
            torch.randn(rank, W.shape[1], generator=generator, dtype=torch.float32, device="cpu")
        )
    on_device = to_device(starts, matrices[0].device) if matrices else []
    Rs = [
        to_memory_order(R.to(W), kernel)
        for R, W, kernel in zip(on_device, matrices, kernels, strict=True)
    ]
    for _ in range(power_steps):  # wide products: the tall W R^T takes twice as long
        Lts = orthonormal_rows_of_each(
            [times_transposed(R, W) for R, W in zip(Rs, matrices, strict=True)]
        )
        Rs = orthonormal_rows_of_each([Lt @ W for Lt, W in zip(Lts, matrices, strict=True)])
    return [
        (Lt.mT.contiguous(), to_kernel_order(R, kernel).contiguous())
        for Lt, R, kernel in zip(Lts, Rs, kernels, strict=True)
    ]


def random_carriers(
    shape: tuple[int, int], rank: int, *, generator: torch.Generator, like: Tensor
) -> Sides:
    """Uniformly random orthonormal carriers for a weight of ``shape`` (Yu et al. 2021, sec. 4,
    "RGP-random").

    ``like`` gives dtype and device; no weight is read.
    """
    m, n = shape
    check_rank(rank, shape)
    draws = [
        torch.randn(k, rank, generator=generator, dtype=torch.float32, device="cpu") for k in (m, n)
    ]
    left, right = (draw.to(like) for draw in to_device(draws, like.device))
    return orthonormal_columns(left), orthonormal_columns(right).mT.contiguous()


def check_rank(rank: int, shape: tuple[int, ...] | torch.Size) -> None:
    """Raise ValueError unless 1 <= rank <= min(shape)."""
    if not 1 <= rank <= min(shape):
        raise ValueError(
            f"expected 1 <= {rank=} <= {min(shape)} for a weight of shape {tuple(shape)}"
        )


def orthonormal_columns(A: Float[Tensor, "k r"]) -> Float[Tensor, "k r"]:
    """Q of A = Q T with the diagonal of T positive, so that Q is unique for A of full column
    rank.
    """
    return orthonormal_rows(A.mT).mT.contiguous()


def orthonormal_rows(A: Float[Tensor, "*each r k"]) -> Float[Tensor, "*each r k"]:
    """The transpose of ``orthonormal_columns(A.mT)``, as LAPACK leaves it in memory."""
    # LAPACK has no half precision
    Q, T = torch.linalg.qr(A.mT.float() if A.dtype.itemsize < 4 else A.mT)
    signs = torch.where(T.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(Q)
    rows: Tensor = (Q.mT * signs.unsqueeze(-1)).to(A.dtype).contiguous()
    return rows


def orthonormal_rows_of_each(
    matrices: Sequence[Float[Tensor, "r _"]],
) -> list[Float[Tensor, "r _"]]:
    """``orthonormal_rows`` of each matrix, in one call for all of a shape and kind."""
    alike: dict[tuple[torch.Size, torch.dtype, torch.device], list[int]] = {}
    for place, A in enumerate(matrices):
        alike.setdefault((A.shape, A.dtype, A.device), []).append(place)
    by_place: dict[int, Tensor] = {}
    for places in alike.values():
        rows = orthonormal_rows(torch.stack([matrices[place] for place in places]))
        by_place.update(zip(places, rows, strict=True))
    return [by_place[place] for place in range(len(matrices))]


def project(
    dW: Float[Tensor, "m *rest"], L: Float[Tensor, "m r"], R: Float[Tensor, "r n"]
) -> Sides:
    """Carrier gradients dL = dW R^T (m, r) and dR = L^T dW (r, n) of a weight's gradient dW.

    Source: Ito et al. 2023, Eq. 8; Yu et al. 2021, Eq. 2. A kernel's dW is flattened to (m, c kh
    kw).
    Guarantee: linear in dW. With orthonormal L and R neither is longer than dW, so both together
    are at most sqrt(2) times as long: clip them jointly. Raises ValueError for a dW of one
    dimension.
    """
    dW = flatten_kernel(dW)
    return dW @ R.mT, L.mT @ dW


def reconstruct(
    dL: Float[Tensor, "m r"],
    dR: Float[Tensor, "r n"],
    L: Float[Tensor, "m r"],
    R: Float[Tensor, "r n"],
) -> Float[Tensor, "m n"]:
    """Weight gradient (m, n) implied by carrier gradients: dW = dL R + L dR - L L^T dL R (Ito et
    al. 2023, Eq. 3).

    ``L``, ``R``: orthonormal, as ``decompose`` makes them. A kernel's gradient comes back as a
    matrix.
    Guarantee: ``reconstruct(*project(dW, L, R), L, R)`` is the orthogonal projection of dW onto the
    tangent space of (L, R), so it never lengthens it. Linear in (dL, dR). With frozen rows or
    columns it is no projection: its norm can reach 2/sqrt(3) times that of dW.
    Differs from the paper: "dW_ij = 0 iff row i and column j are frozen" is false, the third term
    mixes rows.
    """
    return dL @ R + L @ (dR - (L.mT @ dL) @ R)


def project_core(
    dW: Float[Tensor, "m *rest"], L: Float[Tensor, "m r"], R: Float[Tensor, "s n"]
) -> Float[Tensor, "r s"]:
    """Core gradient S = L^T dW R^T (r, s) of a weight's gradient dW, in one block. A kernel's dW is
    flattened.

    ``L`` and ``R`` may be any matrices: their scales weight rows and columns of S before the clip.
    Guarantee: linear in dW; with orthonormal carriers S is not longer than dW. Raises ValueError
    for a dW of one dimension.
    """
    return L.mT @ flatten_kernel(dW) @ R.mT


def lift_core(
    S: Float[Tensor, "r s"], L: Float[Tensor, "m r"], R: Float[Tensor, "s n"]
) -> Float[Tensor, "m n"]:
    """Weight gradient (m, n) implied by a core gradient: L S R. A kernel's gradient comes back as a
    matrix.

    Guarantee: linear in S, and the adjoint of ``project_core``. With orthonormal carriers,
    ``lift_core(project_core(dW, L, R), L, R)`` is the orthogonal projection of dW onto span(L) x
    span(R), and dW itself if they are square, too. Scaled carriers L = U D, R = E V give U D^2 U^T
    dW V^T E^2 V: each direction counts by its squared scale.
    """
    return L @ S @ R


def average_core(
    dL: Float[Tensor, "m r"],
    dR: Float[Tensor, "r n"],
    L: Float[Tensor, "m r"],
    R: Float[Tensor, "r n"],
) -> Sides:
    """dL and dR with the average of their two noisy copies of the r x r core, L^T dL and dR R^T.

    It makes the noise smaller, and is not in the papers. Unbiased for unmasked carriers under one
    joint clip; with frozen units the two cores differ, so it is biased.
    """
    left, right = L.mT @ dL, dR @ R.mT
    core = (left + right) / 2
    return dL + L @ (core - left), dR + (core - right) @ R


def add_reconstruction(
    W: Float[Tensor, "m *rest"],
    dL: Float[Tensor, "m r"],
    dR: Float[Tensor, "r n"],
    L: Float[Tensor, "m r"],
    R: Float[Tensor, "r n"],
    scale: float,
) -> None:
    """W += scale * reconstruct(dL, dR, L, R), in place if W's memory is that of a matrix."""
    add_product(W, torch.cat([dL, L], 1), torch.cat([R, dR - (L.mT @ dL) @ R]), scale)


def add_core(
    W: Float[Tensor, "m *rest"],
    S: Float[Tensor, "r s"],
    L: Float[Tensor, "m r"],
    R: Float[Tensor, "s n"],
    scale: float,
) -> None:
    """W += scale * L S R, as one product over the smaller of r and s."""
    left, right = (L, S @ R) if S.shape[0] <= S.shape[1] else (L @ S, R)
    add_product(W, left, right, scale)


def add_product(
    W: Float[Tensor, "m *rest"],
    left: Float[Tensor, "m k"],
    right: Float[Tensor, "k n"],
    scale: float,
) -> None:
    """W += scale * left right, in place if W's memory is that of a matrix."""
    left, right = left.to(W.dtype), right.to(W.dtype)
    matrix = matrix_in_memory_order(W)
    if matrix.data_ptr() == W.data_ptr():
        matrix.addmm_(left, to_memory_order(right, W), alpha=scale)
    else:  # the matrix is a copy, for example of a kernel that was loaded as a permuted view
        W.add_((left @ right).view(W.shape), alpha=scale)
