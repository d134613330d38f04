"""A basis of the gradients of public inputs, the anchors (GEP: Yu et al. 2021).

Symbols: G (N, m) gradients of N anchors in one parameter, flattened    L (m, k) their basis

Differs from the source: a group is one parameter, and has at most k vectors; there all parameters
are cut into groups of equal length. Targets are those of every probe (``ProbeSource.batch``).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.carriers.probe.moments import dense_frame, part_of
from fedlsg.gradients import Batch, LossFunction, batch_size, check
from fedlsg.gradients.isolation import per_example_gradients

POWER_STEPS = 2
"""Multiplications by G^T G."""
AT_ONCE = 64
"""Anchors of a microbatch."""
MAX_NUMBERS = 2**29
"""Numbers in all gradients: they take 2 GiB in float32."""


def anchor_gradients(
    model: nn.Module, loss_fn: LossFunction, inputs: Batch, targets: Batch
) -> dict[str, Float[Tensor, "anchors m"]]:
    """Every anchor's gradient of every trainable parameter, in float32, by name.

    Anchors whose gradient is not finite are left out. The model is not changed. Raises ValueError
    if no anchor is left, or if all gradients would have more than MAX_NUMBERS numbers.
    """
    frame = dense_frame(model)
    count = batch_size(inputs, targets)
    if count * frame.size > MAX_NUMBERS:
        raise ValueError(
            f"probes={count} anchor gradients of {frame.size:,} parameters are too many to hold: "
            f"choose probes of at most {MAX_NUMBERS // frame.size}, or freeze a part of the model"
        )
    checked = check(model, frame)
    microbatches: list[list[Tensor]] = []
    for start in range(0, count, AT_ONCE):
        x, y = (part_of(batch, start, start + AT_ONCE) for batch in (inputs, targets))
        gradients = per_example_gradients(model, loss_fn, x, y, frame, checked=checked)
        microbatches.append([g.float() for g in gradients])
    of_parameters = [torch.cat(parts) for parts in zip(*microbatches, strict=True)]
    finite = torch.stack([G.isfinite().all(1) for G in of_parameters]).all(0)
    if not bool(finite.any()):
        raise ValueError(
            f"none of the {count} anchors has a finite gradient: check the weights and the "
            "source's inputs"
        )
    names = [coordinates.name for coordinates in frame.coordinates]
    return {name: G[finite] for name, G in zip(names, of_parameters, strict=True)}


def anchor_basis(
    G: Float[Tensor, "anchors m"], count: int, *, generator: torch.Generator
) -> tuple[Float[Tensor, "m k"], Float[Tensor, " k"]]:
    """L, and the share of |G|^2 along each of its columns.

    They are k = ``count`` orthonormal columns near the top eigenvectors of G^T G.
    The power method: L = qr(G^T G L), from a Gaussian start. If G has fewer than k directions, the
    other columns are what is left of the start.
    Guarantee: the columns are orthonormal to rounding for any G, zero included.
    """
    start = torch.randn(G.shape[1], count, generator=generator).to(G)
    L = torch.linalg.qr(start)[0]
    for _ in range(POWER_STEPS):
        L = torch.linalg.qr(G.mT @ (G @ L))[0]
    energy = (G @ L).square().sum(0) / G.square().sum().clamp_min(torch.finfo(G.dtype).tiny)
    return L.contiguous(), energy
