"""Step the weights by kept values without ever building a carried weight's gradient: Eq. 3 or L S R in place.

Symbols as in ``lowrank``. dL R + L dR - L L^T dL R = [dL, L] [R; dR - L^T dL R]: one product of rank 2 r added to W.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.frame import Frame, lift
from fedlsg.lowrank import average_core
from fedlsg.tensors import matrix_in_memory_order, to_memory_order


@torch.no_grad()
def move(
    parameters: Mapping[str, nn.Parameter],
    frame: Frame,
    values: Float[Tensor, " kept"],
    scales: Mapping[str, float],
    *,
    averaged: bool = False,
) -> None:
    """Add scale times the gradient that ``frame.gradients(values)`` would give to every parameter of the frame."""
    parts = dict(zip([(b.parameter, b.part) for b in frame.blocks], frame.unflatten(values), strict=True))
    for c in frame.coordinates:
        W, scale = parameters[c.name], scales[c.name]
        if c.L is None or c.R is None:
            W.add_(parts[c.name, "dense"], alpha=scale)
            continue
        if c.form == "preconditioned":
            W.add_(parts[c.name, "core"].view(W.shape), alpha=scale)
            continue
        if c.form == "core":
            add_core(W, parts[c.name, "core"], c.L, c.R, scale)
            continue
        if c.form != "tangent":
            W.add_(lift(c, parts), alpha=scale)
            continue
        dL, dR = parts[c.name, "L"], parts[c.name, "R"].flatten(1)
        if averaged:
            dL, dR = average_core(dL, dR, c.L, c.R)
        add_reconstruction(W, dL, dR, c.L, c.R, scale)


def add_reconstruction(
    W: Float[Tensor, "m *rest"],
    dL: Float[Tensor, "m r"],
    dR: Float[Tensor, "r n"],
    L: Float[Tensor, "m r"],
    R: Float[Tensor, "r n"],
    scale: float,
) -> None:
    """W += scale * reconstruct(dL, dR, L, R), in W's own memory where W is a matrix there."""
    add_product(W, torch.cat([dL, L], 1), torch.cat([R, dR - (L.mT @ dL) @ R]), scale)


def add_core(
    W: Float[Tensor, "m *rest"], S: Float[Tensor, "r s"], L: Float[Tensor, "m r"], R: Float[Tensor, "s n"], scale: float
) -> None:
    """W += scale * L S R, as one product over the smaller of r and s."""
    left, right = (L, S @ R) if S.shape[0] <= S.shape[1] else (L @ S, R)
    add_product(W, left, right, scale)


def add_product(
    W: Float[Tensor, "m *rest"], left: Float[Tensor, "m k"], right: Float[Tensor, "k n"], scale: float
) -> None:
    """W += scale * left right, in W's own memory where W is a matrix there."""
    left, right = left.to(W.dtype), right.to(W.dtype)
    matrix = matrix_in_memory_order(W)
    if matrix.data_ptr() == W.data_ptr():
        matrix.addmm_(left, to_memory_order(right, W), alpha=scale)
    else:  # a kernel in a memory of its own (loaded as a permuted view, say): the matrix is a copy
        W.add_((left @ right).view(W.shape), alpha=scale)
