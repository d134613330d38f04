"""Canaries of the audit: units whose gradients, or updates, are chosen.

They are orthogonal to each other, have energy in every block of the frame, and are so long that the
clip acts on them. What each may add to a sum is computed here, and not by the code that is audited.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.audit.played.setting import AuditSetting

LENGTH_OVER_CLIP = 10.0
"""Norm of a canary's shortest block over C, so that every clip acts."""
ALTERNATIONS = 6
"""Steps of ``orthonormal_rows`` between its two conditions."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Canaries:
    """gradients: (m, kept) as a client's backward pass gives them, or updates in the units of the
    clip.

    clipped: (m, kept) the most that each may add to the sum of one step.
    """

    gradients: Float[Tensor, "m kept"]
    clipped: Float[Tensor, "m kept"]


def make_canaries(setting: AuditSetting, count: int, generator: torch.Generator) -> Canaries:
    """``count`` canaries whose clipped gradients are orthogonal.

    They are for one client, or for one sum of clients.
    Their energy is spread evenly over the blocks, as far as a small block has room for so many
    orthogonal ones: a clip that treats blocks on their own then lets nearly C times the root of
    their number pass, and one that misses a block lets ``LENGTH_OVER_CLIP`` C pass.
    Raises ValueError for more canaries than kept coordinates, or a mechanism that does not clip.
    """
    frame, mechanism = setting.frame, setting.mechanism
    if not 1 <= count <= frame.kept:
        raise ValueError(
            f"expected 1 <= canaries={count} <= {frame.kept} kept coordinates of the frame"
        )
    if not mechanism.clips:
        raise ValueError(
            f"mechanism {mechanism.kind!r} does not clip: there is no sensitivity to audit"
        )
    sizes = [b.kept for b in frame.blocks]
    pieces = orthonormal_rows(sizes, count, generator).split(sizes, dim=1)
    shortest = torch.stack([p.norm(dim=1) for p in pieces if p.shape[1]]).amin(0).clamp_min(1e-6)
    units = [p * (LENGTH_OVER_CLIP * mechanism.clip_norm / shortest).unsqueeze(1) for p in pieces]
    parts = units if mechanism.clip == "per-block" else [torch.cat(units, 1)]
    clipped = [
        part * (mechanism.clip_norm / part.norm(dim=1, keepdim=True).clamp_min(1e-12))
        for part in parts
    ]
    return Canaries(
        gradients=undo_block_weights(setting, torch.cat(units, 1)), clipped=torch.cat(clipped, 1)
    )


def orthonormal_rows(
    sizes: Sequence[int], count: int, generator: torch.Generator
) -> Float[Tensor, "m kept"]:
    """Orthonormal rows whose energy is near ``energy_shares`` of the blocks.

    Steps alternate between the two conditions.
    """
    rows = torch.randn(count, sum(sizes), generator=generator)
    wanted = torch.tensor(energy_shares(sizes, count)).sqrt()
    for _ in range(ALTERNATIONS):
        pieces = [
            p * (w / p.norm(dim=1, keepdim=True).clamp_min(1e-12))
            for p, w in zip(rows.split(list(sizes), dim=1), wanted, strict=True)
        ]
        rows = torch.cat(pieces, 1)
        values, vectors = torch.linalg.eigh((rows @ rows.T).double())
        rows = ((vectors * values.clamp_min(1e-9).rsqrt()) @ vectors.T).float() @ rows
    return rows


def energy_shares(sizes: Sequence[int], count: int) -> list[float]:
    """Share of the energy for each block: equal, but at most what ``count`` orthonormal rows can
    have there.
    """
    caps = [size / count for size in sizes]
    level, left, blocks = 0.0, 1.0, sorted(caps)
    for i, cap in enumerate(blocks):
        level = left / (len(blocks) - i)
        if cap >= level:
            break
        left -= cap
    return [min(cap, level) for cap in caps]


def undo_block_weights(
    setting: AuditSetting, rows: Float[Tensor, "k kept"]
) -> Float[Tensor, "k kept"]:
    """Gradients that become these rows when the blocks' weights multiply them.

    An update is clipped as it was sent.
    """
    if setting.stated.whole:
        return rows
    blocks = setting.frame.blocks
    parts = rows.split([b.kept for b in blocks], dim=1)
    return torch.cat([part / b.weight for part, b in zip(parts, blocks, strict=True)], 1)


def largest_addition(
    setting: AuditSetting, directions: Float[Tensor, "k kept"]
) -> Float[Tensor, " k"]:
    """The most that a unit of any norm may add in these directions.

    C, or what remains of each block's C.
    """
    clip_norm = setting.mechanism.clip_norm
    if setting.mechanism.clip != "per-block":
        return torch.full((len(directions),), clip_norm, dtype=torch.float64)
    parts = directions.double().split([b.kept for b in setting.frame.blocks], dim=1)
    return clip_norm * torch.stack([part.norm(dim=1) > 0 for part in parts]).sum(0).sqrt()
