"""Anchor gradients of public inputs, and an orthonormal basis of them by the power method (GEP: Yu et al. 2021).

Symbols: G (N, m) anchor gradients of one parameter, flattened; L (m, k) basis.
Differs from the source: a group is one parameter, and has at most k vectors; there all parameters are cut into groups
of equal length. Targets are those of every probe (``ProbeSource.batch``).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.carriers.probe.moments import part_of
from fedlsg.frame import Coordinates, Frame, make_blocks
from fedlsg.gradients import Batch, LossFunction, batch_size, check, per_example_gradients, trainable

POWER_STEPS = 2
"""Multiplications by G^T G."""
AT_ONCE, LARGEST = 64, 2**29
"""Examples of a microbatch; largest N times parameters, whose gradients take 2 GiB in float32."""


def anchor_gradients(
    model: nn.Module, loss_fn: LossFunction, inputs: Batch, targets: Batch
) -> dict[str, Float[Tensor, "anchors m"]]:
    """Every anchor's gradient of every trainable parameter, in float32, by name. The model is not changed.

    An anchor whose gradient is not finite is left out. Raises ValueError if none is left, or for too many numbers.
    """
    coordinates = tuple(Coordinates(name=name, shape=tuple(W.shape)) for name, W in trainable(model).items())
    frame = Frame(coordinates=coordinates, blocks=make_blocks(coordinates))
    count = batch_size(inputs, targets)
    if count * frame.size > LARGEST:
        raise ValueError(
            f"probes={count} anchor gradients of {frame.size:,} parameters are too many to hold: choose probes of at "
            f"most {LARGEST // frame.size}, or freeze a part of the model"
        )
    checked = check(model, frame)
    found: list[list[Tensor]] = []
    for start in range(0, count, AT_ONCE):
        x, y = (part_of(batch, start, start + AT_ONCE) for batch in (inputs, targets))
        found.append([g.float() for g in per_example_gradients(model, loss_fn, x, y, frame, checked=checked)])
    each = [torch.cat(parts) for parts in zip(*found, strict=True)]
    finite = torch.stack([g.isfinite().all(1) for g in each]).all(0)
    if not bool(finite.any()):
        raise ValueError(
            f"none of the {count} anchors has a finite gradient: check the weights and the source's inputs"
        )
    return {c.name: g[finite] for c, g in zip(coordinates, each, strict=True)}


def anchor_basis(
    G: Float[Tensor, "anchors m"], count: int, *, generator: torch.Generator
) -> tuple[Float[Tensor, "m k"], Float[Tensor, " k"]]:
    """An orthonormal basis of k = ``count`` columns near the top of G^T G, and the shares of |G|^2 along them.

    L = qr(G^T G L), from a Gaussian start. Where G has fewer directions than k, the others are what is left of the
    start. Guarantee: the columns are orthonormal to rounding for any G, zero included.
    """
    start = torch.randn(G.shape[1], count, generator=generator).to(G)
    L = torch.linalg.qr(start)[0]
    for _ in range(POWER_STEPS):
        L = torch.linalg.qr(G.mT @ (G @ L))[0]
    energy = (G @ L).square().sum(0) / G.square().sum().clamp_min(torch.finfo(G.dtype).tiny)
    return L.contiguous(), energy
