"""Canary gradients against the shipped mechanism: what the unit mode of the audit sends through ``client_step``.

A canary is an example whose gradient is chosen: orthogonal to the other canaries', with energy in every block of the
frame, and long enough that the clip acts on it. Each is in a client's data with probability 1/2, in secret. All
that follows the backward pass is the client's own: Poisson batch, weights of the blocks, clip, sum, noise, local steps.
The backward pass alone is replaced (``injected``).

One client holds at most as many canaries as the frame has directions; more canaries are spread over more clients.
Clients have disjoint data, so that all outputs together are as private for each canary as one client's are.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.attacks.audit.setting import Setting
from fedlsg.frame import Frame
from fedlsg.privacy import Mechanism
from fedlsg.randomness import SecretStream
from fedlsg.training import LocalTraining, client_step
from fedlsg.training.client import AddNoise

LENGTH = 10.0
"""Norm of a canary's shortest block over C, so that every clip acts."""
ALTERNATIONS = 6
MOST, LARGEST = 256, 2**26
"""Canaries of one client at most, and numbers in one client's canaries."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Canaries:
    """gradients: (m, kept) as a client's backward pass gives them, or updates in the units of the clip.

    clipped: (m, kept) the most that each may add to the sum of one step.
    """

    gradients: Float[Tensor, "m kept"]
    clipped: Float[Tensor, "m kept"]


def make_canaries(setting: Setting, count: int, generator: torch.Generator) -> Canaries:
    """``count`` canaries for one client, or for one sum of clients, whose clipped gradients are orthogonal.

    Their energy is spread evenly over the blocks, as far as a small block has room for so many orthogonal ones: a clip
    that treats blocks on their own then lets nearly C times the root of their number pass, and one that misses a block
    lets ``LENGTH`` C pass. What they may add is computed here, and not by the code that is audited.
    Raises ValueError for more canaries than kept coordinates, or a mechanism that does not clip.
    """
    frame, mechanism = setting.frame, setting.mechanism
    if not 1 <= count <= frame.kept:
        raise ValueError(f"expected 1 <= canaries={count} <= {frame.kept} kept coordinates of the frame")
    if not mechanism.clips:
        raise ValueError(f"mechanism {mechanism.kind!r} does not clip: there is no sensitivity to audit")
    sizes = [b.kept for b in frame.blocks]
    pieces = orthogonal(sizes, count, generator).split(sizes, dim=1)
    shortest = torch.stack([p.norm(dim=1) for p in pieces if p.shape[1]]).amin(0).clamp_min(1e-6)
    units = [p * (LENGTH * mechanism.clip_norm / shortest).unsqueeze(1) for p in pieces]
    parts = units if mechanism.clip == "per-block" else [torch.cat(units, 1)]
    clipped = [part * (mechanism.clip_norm / part.norm(dim=1, keepdim=True).clamp_min(1e-12)) for part in parts]
    weighted = setting.stated.unit == "example"  # an update is clipped as it was sent
    gradients = [u / b.weight if weighted else u for u, b in zip(units, frame.blocks, strict=True)]
    return Canaries(gradients=torch.cat(gradients, 1), clipped=torch.cat(clipped, 1))


def orthogonal(sizes: Sequence[int], count: int, generator: torch.Generator) -> Float[Tensor, "m kept"]:
    """Orthonormal rows whose energy is near ``shares`` of the blocks: alternating between the two conditions."""
    rows = torch.randn(count, sum(sizes), generator=generator)
    wanted = torch.tensor(shares(sizes, count)).sqrt()
    for _ in range(ALTERNATIONS):
        pieces = [
            p * (w / p.norm(dim=1, keepdim=True).clamp_min(1e-12))
            for p, w in zip(rows.split(list(sizes), dim=1), wanted, strict=True)
        ]
        rows = torch.cat(pieces, 1)
        values, vectors = torch.linalg.eigh((rows @ rows.T).double())
        rows = ((vectors * values.clamp_min(1e-9).rsqrt()) @ vectors.T).float() @ rows
    return rows


def shares(sizes: Sequence[int], count: int) -> list[float]:
    """Share of the energy for each block: equal, but at most what ``count`` orthonormal rows can have there."""
    caps = [size / count for size in sizes]
    level, left, blocks = 0.0, 1.0, sorted(caps)
    for i, cap in enumerate(blocks):
        level = left / (len(blocks) - i)
        if cap >= level:
            break
        left -= cap
    return [min(cap, level) for cap in caps]


@contextmanager
def injected() -> Iterator[None]:
    """Inside, ``client_step`` takes a batch's inputs, (B, kept), for the per-example gradients themselves."""

    def given(
        model: nn.Module, loss_fn: object, inputs: Tensor, targets: Tensor, frame: Frame, **options: object
    ) -> list[Tensor]:
        return list(inputs.split([b.kept for b in frame.blocks], dim=1))

    with (
        patch("fedlsg.training.client.per_example_gradients", given),
        patch("fedlsg.training.client.allows_ghost_clipping", lambda frame: False),
    ):
        yield  # no ghost clipping: there is no layer whose input and gradient these would be made of


def release(
    rows: Float[Tensor, "n kept"],
    *,
    model: nn.Module,
    frame: Frame,
    mechanism: Mechanism,
    local: LocalTraining,
    sampler: SecretStream,
    noise: SecretStream,
    add: AddNoise | None = None,
) -> Float[Tensor, " kept"]:
    """What a client sends whose data are examples with these gradients: the shipped ``client_step``."""

    def batch(positions: Tensor) -> tuple[Tensor, Tensor]:
        return rows[positions], torch.zeros(len(positions))

    with injected():
        sent: Tensor = client_step(
            model,
            batch,
            given_loss,
            frame=frame,
            mechanism=mechanism,
            local=local,
            num_examples=len(rows),
            sampler=sampler,
            noise=noise,
            charge=lambda: None,
            add=add,
        )
    return sent


def given_loss(outputs: object, targets: object) -> Tensor:
    """The loss of a canary, which nothing computes."""
    raise AssertionError("a canary's gradient is given, no loss is computed")


def along(outputs: Float[Tensor, "rounds kept"], clipped: Float[Tensor, "m kept"]) -> Float[Tensor, "rounds m"]:
    """Each output's component along each canary, in units of what the canary adds when it takes part."""
    products: Tensor = (outputs @ clipped.T).double()
    return products / clipped.double().square().sum(1)


def log_ratios(
    components: Float[Tensor, "rounds m"], lengths: Float[Tensor, " m"], *, noise_std: float, sample_rate: float
) -> Float[Tensor, " m"]:
    """Score of each canary, in against out, from the claimed parameters: its log likelihood ratio over all rounds.

    With s = length / noise_std the component y is N(b, 1 / s^2) where b says whether the canary took part, and the
    ratio is the sum over rounds of log(1 - q + q exp(s^2 (y - 1/2))). No score is better for one local step if the
    canaries are orthogonal and the claim is true.
    """
    exponent = (lengths.double() / noise_std).square() * (components - 0.5)
    if sample_rate == 1:
        return exponent.sum(0)
    absent = torch.full_like(exponent, math.log1p(-sample_rate))
    return torch.logaddexp(absent, exponent + math.log(sample_rate)).sum(0)


def spread(count: int, kept: int, *, most: int | None = None) -> list[int]:
    """Canaries of each client: as few clients as hold them, each at most half of the frame's directions.

    ``most``: canaries in one series of outputs, where fewer fit.
    """
    each = max(1, min(MOST, kept // 2, LARGEST // kept))
    each = each if most is None else min(each, most)
    clients = -(-count // each)
    return [count // clients + (i < count % clients) for i in range(clients)]
