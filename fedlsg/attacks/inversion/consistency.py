"""The r x r core that carriers send twice: L^T dL = L^T dW R^T = dR R^T.

Symbols: s deviation of the noise on each value, r rank.
Two noised copies of the same r^2 numbers: their mean is free denoising, for server and attacker alike, and their
difference is noise alone, so that it tests the claimed s. Both are true of a layer of which everything was sent with
one clip factor; a frozen row or column leaves its share out of one copy, and nothing of it can be averaged.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedlsg.attacks.observation import Observation
from fedlsg.frame import Coordinates
from fedlsg.gradients import kept_values
from fedlsg.lowrank import average_core


@dataclass(frozen=True, kw_only=True)
class Core:
    """The two copies of one carried layer.

    holds: whether they are two copies of the same numbers. why: what breaks it where not.
    difference: |L^T dL - dR R^T|^2, expected: 2 r^2 s^2, what noise alone gives. removed: r^2 s^2, the expected drop
    of the squared error of (dL, dR) together by averaging, of r (m + n) s^2. All NaN where it does not hold.
    """

    parameter: str
    holds: bool
    why: str = ""
    difference: float = float("nan")
    expected: float = float("nan")
    removed: float = float("nan")


def cores(seen: Observation) -> tuple[Core, ...]:
    """The state of every carried layer of the observation, in order."""
    return tuple(_core(seen, c) for c in seen.frame.coordinates if c.L is not None)


def denoised(seen: Observation) -> Observation:
    """The same observation with both cores averaged wherever they are copies; other layers as they were received.

    Guarantee: on these layers the expected squared error drops by r^2 s^2, and a payload without noise changes by
    rounding only. Differs from the server's own averaging (after.py): layers with frozen units are never touched.
    """
    averaged: dict[tuple[str, str], Tensor] = {}
    holding = {core.parameter for core in cores(seen) if core.holds}
    for c in seen.frame.coordinates:
        if c.name in holding:
            L, R, dL, dR = _parts(seen, c)
            dL, flat = average_core(dL, dR, L, R)
            averaged[c.name, "L"], averaged[c.name, "R"] = dL, flat
    pieces = []
    for block, piece in zip(seen.frame.blocks, seen.frame.split(seen.values), strict=True):
        new = averaged.get((block.parameter, block.part))
        piece = piece if new is None else (new * block.weight).reshape(block.shape).to(piece)
        pieces.append(kept_values(piece.unsqueeze(0), block.keep).flatten())
    return replace(seen, values=torch.cat(pieces))


def _core(seen: Observation, c: Coordinates) -> Core:
    kept = seen.kept
    frozen = [part for part in ("L", "R") if not bool(kept[c.name, part].all())]
    if frozen:
        names = " and ".join({"L": "rows of dL", "R": "columns of dR"}[part] for part in frozen)
        return Core(parameter=c.name, holds=False, why=f"{names} are frozen: the copies are not of the same numbers")
    if seen.mechanism.clips and seen.mechanism.clip == "per-block":
        return Core(parameter=c.name, holds=False, why="dL and dR were clipped by different factors")
    L, R, dL, dR = _parts(seen, c)
    rank, weight = L.shape[1], next(b.weight for b in seen.frame.blocks if b.parameter == c.name)
    noise = (rank * seen.noise_std / weight) ** 2
    difference = float((L.mT @ dL - dR @ R.mT).square().sum())
    return Core(parameter=c.name, holds=True, difference=difference, expected=2 * noise, removed=noise)


def _parts(seen: Observation, c: Coordinates) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert c.L is not None
    assert c.R is not None
    blocks = seen.blocks
    return c.L.double(), c.R.double(), blocks[c.name, "L"].double(), blocks[c.name, "R"].flatten(1).double()
