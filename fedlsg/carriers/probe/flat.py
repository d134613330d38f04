"""A basis as one flat vector, for checkpoints and messages, and back: L, R and both energies of every carried weight.

The round is not in it: it follows from that of the state or message.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.carriers.base import Carrier
from fedlsg.carriers.probe.basis import Basis, Pair


def flatten(basis: Basis) -> Float[Tensor, " numbers"]:
    """All numbers of a basis in the order of its weights, float32."""
    pairs = basis.pairs.values()
    return torch.cat([X.flatten() for pair in pairs for X in (pair.L, pair.R, pair.out_energy, pair.in_energy)])


def unflatten(
    flat: Float[Tensor, " numbers"],
    carrier: Carrier,
    weights: Mapping[str, Tensor],
    carried: Sequence[str],
    *,
    round: int,
) -> Basis:
    """The basis of ``round`` with these numbers, on the device of the weights.

    Raises ValueError for another length, or for numbers that are not finite float32.
    """
    shapes = [shape for name in carried for shape in _shapes(carrier, weights[name])]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    if flat.shape != (sum(sizes),) or flat.dtype != torch.float32 or not bool(flat.isfinite().all()):
        raise ValueError(
            f"expected {sum(sizes)} finite float32 numbers of a basis, got {tuple(flat.shape)} {flat.dtype}"
        )
    device = next(iter(weights.values())).device
    parts = [part.reshape(shape) for part, shape in zip(flat.to(device).split(sizes), shapes, strict=True)]
    fours = [Pair(*(part.clone() for part in parts[i : i + 4])) for i in range(0, len(parts), 4)]
    return Basis(round=round, pairs=dict(zip(carried, fours, strict=True)))


def _shapes(carrier: Carrier, W: Tensor) -> tuple[tuple[int, ...], ...]:
    sizes = carrier.sizes(W)
    rows, columns = carrier.form.energies(sizes, W)
    return (sizes.m, sizes.r), (sizes.s, sizes.n), (rows,), (columns,)
