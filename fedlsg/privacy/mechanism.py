"""Clip and noise: the mechanism, and the noise multiplier that the ledger is charged with.

Symbols: C clip norm, sigma noise multiplier, G number of blocks.
Order: mask, then clip, then noise on exactly the kept coordinates. The input gradients are masked already
(``per_example_gradients`` returns kept coordinates only), so the same coordinates are clipped, summed and made noisy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedlsg.frame import Group
from fedlsg.gradients import GhostGradients, without_autocast
from fedlsg.mechanisms import DP, KINDS, Kind
from fedlsg.randomness import SecretStream
from fedlsg.rules import idle_unless
from fedlsg.setting import Setting, check_declared
from fedlsg.tensors import in_memory_order, keeps_digits, weighted_sum

ClipKind = Literal["joint", "per-block"]

NARROW_SUM = 32
"""Largest number of examples that are summed in float32. Rounding adds at most n (n + 1) / 2 * 2^-24 C to the
difference that one example makes: 3.1e-5 C at 32. At 256 aligned examples, 2.3e-4 C were measured."""

SMALLEST_CLIP_NORM = 1e-30
"""Far below it squared norms underflow in float64, and the clip would not bound them."""

LARGEST_CLIP_NORM = 1e30
"""Far above it the float32 sum of two clipped gradients overflows. No noise hides an infinite value."""

WHERE_CLIPPED = (idle_unless("mechanism!=none"),)
"""Rules of settings of the clip."""
ClipNorm = Annotated[
    float,
    Setting(
        "Clip norm C of an example's gradient.", "norm", at_least=SMALLEST_CLIP_NORM, at_most=LARGEST_CLIP_NORM,
        rules=WHERE_CLIPPED,
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What happens to per-example gradients between the mask and the payload.

    ``dp`` clips and adds noise, and is the only one that is private. ``clip="joint"`` scales an example's whole kept
    gradient to norm C at most. ``clip="per-block"`` scales every block to C on its own, as written in Ito et al. 2023,
    Alg. 1, lines 25-27, and Ito et al. 2024, Alg. 1, lines 11-12.
    Differs from the papers: they account per-block clipping as if its sensitivity were C. It is C sqrt(G), and
    ``effective_noise_multiplier`` uses that.
    ``norms_clip_weight`` and ``classifier_clip_weight`` multiply the gradients of those groups before the joint clip,
    and divide the noisy result: the sensitivity stays C, and the noise on the group is smaller.
    ``noise_share`` scales the noise of one client where only a sum is seen; otherwise it is 1. ``colluders``: t, the
    clients of that sum whose own shares are not counted. A sum has m = noise_share^-2 + t shares (``totals``).
    """

    kind: Annotated[
        str,
        Setting("What happens to examples' gradients; only dp is private.", name="mechanism", choices=KINDS),
    ] = DP.name
    clip_norm: ClipNorm = 1.0
    noise_multiplier: float = 1.0
    clip: Annotated[
        ClipKind, Setting("Clip an example's whole gradient, or each block of it on its own.", rules=WHERE_CLIPPED)
    ] = "joint"
    norms_clip_weight: Annotated[
        float,
        Setting(
            "Weight of norm layers' gradients in the clip.", "factor", above=0, below=math.inf, rules=WHERE_CLIPPED
        ),
    ] = 1.0
    classifier_clip_weight: Annotated[
        float,
        Setting(
            "Weight of the classifier's gradients in the clip.", "factor", above=0, below=math.inf, rules=WHERE_CLIPPED
        ),
    ] = 1.0
    noise_share: Annotated[float, Setting("Share of the noise that one client adds.", "share", above=0, at_most=1)] = (
        1.0
    )
    colluders: int = 0

    def __post_init__(self) -> None:
        check_declared(self, without=("clip_norm", "noise_multiplier"))  # a mechanism that uses neither may have any
        if (self.clips or self.adds_noise) and not SMALLEST_CLIP_NORM <= self.clip_norm <= LARGEST_CLIP_NORM:
            raise ValueError(f"expected {SMALLEST_CLIP_NORM} <= clip_norm={self.clip_norm} <= {LARGEST_CLIP_NORM}")
        if self.adds_noise and not 0 < self.noise_multiplier < math.inf:
            raise ValueError(
                f"expected 0 < noise_multiplier={self.noise_multiplier} < inf under mechanism {self.kind!r}; "
                "for training without noise choose mechanism 'none' or 'clip-only'"
            )
        if type(self.colluders) is not int or self.colluders < 0:
            raise ValueError(f"expected colluders={self.colluders!r} to be an integer >= 0")
        if self.private and self.in_sums_alone and self.kind != DP.name:
            raise ValueError(
                f"mechanism={self.kind!r} changes each client's values alone, and shares of noise add up only as "
                "mechanism='dp' adds them: take dp, or a trust in which each payload has all of its noise"
            )

    def weight_of(self, group: Group) -> float:
        """Weight of a group of parameters in the clip."""
        return {"norms": self.norms_clip_weight, "classifier": self.classifier_clip_weight}.get(group, 1.0)

    @property
    def of_kind(self) -> Kind:
        """The object that ``kind`` names."""
        return KINDS[self.kind]

    @property
    def clips(self) -> bool:
        """Whether per-example gradients are clipped."""
        return self.of_kind.clips

    @property
    def adds_noise(self) -> bool:
        """Whether noise is added."""
        return self.of_kind.adds_noise

    @property
    def private(self) -> bool:
        """Whether the output has a finite epsilon."""
        return self.of_kind.private

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on every kept coordinate of one client's sum: sigma C (times the share)."""
        return self.noise_multiplier * self.clip_norm * self.noise_share if self.adds_noise else 0.0

    @property
    def in_sums_alone(self) -> bool:
        """Whether only a sum over clients is private, also where each of two clients adds all of the noise."""
        return self.noise_share < 1 or self.colluders > 0

    @property
    def min_survivors(self) -> int:
        """m: shares of the noise that a sum has at least."""
        return round(self.noise_share**-2) + self.colluders

    def sensitivity(self, blocks: int) -> float:
        """L2 distance by which adding or removing one example moves the sum: C, or C sqrt(G) per block."""
        if not self.clips:
            return math.inf
        return self.clip_norm * (math.sqrt(blocks) if self.clip == "per-block" else 1.0)

    def effective_noise_multiplier(self, blocks: int) -> float:
        """sigma_eff = (sum_g C_g^2 / s_g^2)^(-1/2), noise over joint sensitivity: what the ledger is charged with.

        0 unless the mechanism is private. With ``noise_share``: of a sum without the shares of ``colluders``.
        """
        if not self.private:
            return 0.0
        return self.noise_multiplier * self.clip_norm / self.sensitivity(blocks)


def clipped_sum(
    gradients: Sequence[Float[Tensor, "batch *kept"] | GhostGradients], mechanism: Mechanism, *, wide: bool = False
) -> Float[Tensor, " kept"]:
    """Sum of the examples' clipped gradients: of one (B, *kept) tensor a block, concatenated to a flat vector.

    Guarantee: each example moves the sum by at most ``mechanism.sensitivity`` in L2 (before the rounding of the
    sum itself): factors come from float64 norms of the very numbers that are summed and are rounded down. An
    example with a non-finite coordinate or norm contributes exactly zero. An empty batch gives zeros.
    A caller's autocast is switched off for the products: it would round more than the clip's margin covers.
    ``GhostGradients`` are for a joint clip only; their norms are upper bounds.
    The sum is taken and returned in float32 at least, and in float64 if ``wide``. The factors are the same in both, so
    an example adds the same whether it has many neighbours or few.
    """
    if not mechanism.clips:
        dtype = torch.float64 if wide else narrow_type(gradients)
        return torch.cat([block.sum(0, dtype=dtype).flatten() for block in gradients if isinstance(block, Tensor)])
    return _clipped_sum(gradients, clip_norms(gradients, mechanism), mechanism, wide=wide)


def clipped_sums(
    gradients: Sequence[Float[Tensor, "batch *kept"] | GhostGradients],
    mechanism: Mechanism,
    runs: Sequence[range],
    *,
    slot: int = 0,
) -> Sequence[Float[Tensor, " kept"]]:
    """The clipped sum of each run of rows, such as those of one client; in float64 where it has many examples.

    ``slot``: rows of each run's place, where all have as many, from public numbers: then one product a block sums them.
    Guarantees as ``clipped_sum``, and a row outside of a run changes no bit of its sum, whatever its numbers are; nor
    does the length of another run, which is secret: it does not decide how runs are summed.
    """
    norms = clip_norms(gradients, mechanism)
    narrow = narrow_type(gradients)
    exact = narrow == torch.float64 or keeps_digits(norms.device.type)
    if exact and 0 < slot <= NARROW_SUM and all(block.dtype == narrow for block in gradients):
        return _sums_of_slots(gradients, norms, mechanism, [len(run) for run in runs], slot).unbind()
    found = []
    for run in runs:
        own = [
            b.part(run.start, run.stop) if isinstance(b, GhostGradients) else b[run.start : run.stop] for b in gradients
        ]
        found.append(
            _clipped_sum(own, norms[:, run.start : run.stop], mechanism, wide=len(run) > NARROW_SUM)
            if run
            else torch.zeros(sum(math.prod(b.shape[1:]) for b in own), dtype=narrow, device=norms.device)
        )
    return found


def _sums_of_slots(
    gradients: Sequence[Tensor | GhostGradients],
    norms: Float[Tensor, "blocks batch"],
    mechanism: Mechanism,
    counts: Sequence[int],
    slot: int,
) -> Float[Tensor, "slots kept"]:
    """The clipped sums of the first ``counts`` rows of each slot; the others have the factor 0."""
    rows, sizes = len(counts) * slot, [math.prod(block.shape[1:]) for block in gradients]
    norms, finite = norms[:, :rows], norms[:, :rows].isfinite().all(0)
    inside = (torch.arange(slot) < torch.tensor(counts).unsqueeze(1)).flatten().to(norms.device)
    factors = clip_factors(norms, mechanism.clip_norm, narrow_type(gradients), sum(sizes))
    factors = factors.masked_fill(~(inside & finite), 0.0).unflatten(1, (-1, slot)).expand(len(sizes), -1, -1)
    total = torch.empty(len(counts), sum(sizes), dtype=factors.dtype, device=norms.device)
    with without_autocast(norms.device.type):
        for out, own, block in zip(total.split(sizes, 1), factors, gradients, strict=True):
            if isinstance(block, GhostGradients):
                out.copy_(block.part(0, rows).weighted_sums(own, finite))
            else:
                kept = block[:rows].reshape(len(counts), slot, -1)
                if not finite.all():
                    kept = kept.masked_fill(~finite.view(-1, slot, 1), 0.0)
                out.copy_(torch.bmm(own.unsqueeze(1), kept).squeeze(1))
    return total


def narrow_type(gradients: Sequence[Tensor | GhostGradients]) -> torch.dtype:
    """The type of a sum that is not ``wide``: float32 at least."""
    return reduce(torch.promote_types, (block.dtype for block in gradients), torch.float32)


def _clipped_sum(
    gradients: Sequence[Tensor | GhostGradients],
    norms: Float[Tensor, "blocks batch"],
    mechanism: Mechanism,
    *,
    wide: bool,
) -> Float[Tensor, " kept"]:
    narrow = narrow_type(gradients)
    dtype = torch.float64 if wide else narrow
    finite = norms.isfinite().all(0)
    if not finite.all():
        gradients = [zero_rows(block, ~finite) for block in gradients]
        norms = norms.masked_fill(~finite, 0.0)
    sizes = [math.prod(block.shape[1:]) for block in gradients]
    factors = clip_factors(norms, mechanism.clip_norm, narrow, sum(sizes))
    rows = [factors] * len(gradients) if len(factors) == 1 else [factors[i : i + 1] for i in range(len(factors))]
    each = list(zip(rows, gradients, strict=True))
    with without_autocast(norms.device.type):
        if torch.is_grad_enabled() and any(isinstance(block, Tensor) and block.requires_grad for block in gradients):
            return torch.cat([part_of(row[0], block, finite, dtype).flatten() for row, block in each])  # for attacks
        total = torch.empty(sum(sizes), dtype=dtype, device=norms.device)
        exact = dtype == torch.float64 or keeps_digits(norms.device.type)
        parts = torch.split_with_sizes(total.unsqueeze(0), sizes, 1)
        for own, (row, block) in zip(parts, each, strict=True):  # no second copy to join
            if exact and isinstance(block, Tensor) and block.dtype == dtype == row.dtype and block.is_contiguous():
                torch.mm(row, block.flatten(1), out=own)  # ``weighted_sum``, in place
            else:
                part = part_of(row[0], block, finite, dtype)
                own.view(part.shape).copy_(part)
    return total


def part_of(
    factor: Float[Tensor, " batch"], block: Tensor | GhostGradients, finite: Bool[Tensor, " batch"], dtype: torch.dtype
) -> Tensor:
    """The sum of one block of ``clipped_sum``."""
    if isinstance(block, GhostGradients):
        return block.weighted_sum(factor, finite).to(dtype)
    return weighted_sum(factor, block, dtype)


def clip_norms(gradients: Sequence[Tensor | GhostGradients], mechanism: Mechanism) -> Float[Tensor, "rows batch"]:
    """The norms that the clip compares with C, in float64: a row for each block, or one of the whole gradient."""
    squares = torch.stack([norms_of(block) for block in gradients]).square()
    return (squares.sum(0, keepdim=True) if mechanism.clip == "joint" else squares).sqrt()


def zero_rows(block: Tensor | GhostGradients, rows: Bool[Tensor, " batch"]) -> Tensor | GhostGradients:
    """The block with zeros for the examples ``rows``. ``GhostGradients.weighted_sum`` leaves those out itself."""
    if isinstance(block, GhostGradients):
        return block
    return block.masked_fill(rows.view(-1, *[1] * (block.ndim - 1)), 0.0)


def norms_of(block: Float[Tensor, "batch *kept"] | GhostGradients) -> Float[Tensor, " batch"]:
    """Norm of each example's block in float64; an upper bound on it for ``GhostGradients``."""
    if isinstance(block, GhostGradients):
        return block.norms()
    norms: Tensor = torch.linalg.vector_norm(in_memory_order(block).flatten(1), dim=1, dtype=torch.float64)
    return norms


def clip_factors(
    norms: Float[Tensor, "*any"], clip_norm: float, dtype: torch.dtype, coordinates: int
) -> Float[Tensor, "*any"]:
    """min(1, C / norm), rounded down by a margin if it is below 1; 0 if it is subnormal in ``dtype``.

    The margin is four units in the last place of ``dtype`` for the rounding of the factor and of each product, and
    one of float64 a coordinate for the rounding of the norm: a clipped gradient never exceeds C. A subnormal factor
    has too few digits for any margin.
    """
    info = torch.finfo(dtype)
    margin = 1 - 4 * info.eps - coordinates * torch.finfo(torch.float64).eps
    scale = (clip_norm * margin / norms).clamp(max=1)
    return scale.masked_fill(scale < info.tiny, 0.0).to(dtype)


def add_noise(total: Float[Tensor, " kept"], mechanism: Mechanism, noise: SecretStream) -> Float[Tensor, " kept"]:
    """The sum with the noise of the mechanism: N(0, (sigma C)^2) on every kept coordinate, and on nothing else."""
    add, noisy = mechanism.of_kind.add, total
    if add is not None:
        noisy = add(total, mechanism.noise_std, noise)
    return noisy
