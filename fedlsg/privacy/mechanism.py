"""The mechanism: its clip, its noise, and the noise multiplier for which the ledger is charged.

Symbols: C clip norm, sigma noise multiplier (sigma_k of client k), G number of blocks, d kept
coordinates, B expected batch of a step.
Order: mask, then clip (``clip``), then noise on exactly the kept coordinates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from jaxtyping import Float
from torch import Tensor

from fedlsg.config import Setting, check_declared, check_real
from fedlsg.config.mechanisms import DP, KINDS, Kind
from fedlsg.config.rules import idle_unless
from fedlsg.frame import Group
from fedlsg.noise import check_std
from fedlsg.randomness import SecretStream

ClipKind = Literal["joint", "per-block"]

SMALLEST_CLIP_NORM = 1e-30
"""Least C. Squared norms that are far smaller underflow in float64, and would not be clipped."""

LARGEST_CLIP_NORM = 1e30
"""Largest C. Sums of far longer gradients overflow in float32, and no noise hides infinity."""

WHERE_CLIPPED = (idle_unless("mechanism!=none"),)
"""Rules of settings of the clip."""
ClipNorm = Annotated[
    float,
    Setting(
        "Clip norm C of an example's gradient.",
        "norm",
        at_least=SMALLEST_CLIP_NORM,
        at_most=LARGEST_CLIP_NORM,
        why="each gradient is shortened to it, and noise is in its units; 1 is usual",
        rules=WHERE_CLIPPED,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Clip and noise of per-example gradients, between the mask and the payload.

    kind: its name in ``config.mechanisms``; ``dp`` clips and adds noise, and only it is private.
    clip_norm: C.
    noise_multiplier: sigma.
    clip: "joint" scales an example's whole kept gradient to norm C at most. "per-block" scales each
        block to C on its own, as written in Ito et al. 2023, Alg. 1, lines 25-27, and Ito et al.
        2024, Alg. 1, lines 11-12.
    norms_clip_weight, classifier_clip_weight: factors of the gradients of these groups before the
        joint clip, by which the noisy result is divided: the sensitivity stays C, and a factor
        above 1 makes the noise on the group smaller.
    noise_share: factor of the noise of one client if others see only a sum; otherwise 1.
    colluders: t, the clients of that sum whose own shares of noise are not counted. A sum has m =
        noise_share^-2 + t shares (``totals``).
    Differs from the papers: they account per-block clipping as if its sensitivity were C. It is C
    sqrt(G), and ``effective_noise_multiplier`` uses that.
    """

    kind: Annotated[
        str,
        Setting(
            "What happens to examples' gradients; only dp is private.",
            name="mechanism",
            choices=KINDS,
        ),
    ] = DP.name
    clip_norm: ClipNorm = 1.0
    noise_multiplier: float = 1.0
    clip: Annotated[
        ClipKind,
        Setting(
            "Clip an example's whole gradient, or each block of it on its own.", rules=WHERE_CLIPPED
        ),
    ] = "joint"
    norms_clip_weight: Annotated[
        float,
        Setting(
            "Weight of norm layers' gradients in the clip.",
            "factor",
            above=0,
            below=math.inf,
            rules=WHERE_CLIPPED,
        ),
    ] = 1.0
    classifier_clip_weight: Annotated[
        float,
        Setting(
            "Weight of the classifier's gradients in the clip.",
            "factor",
            above=0,
            below=math.inf,
            rules=WHERE_CLIPPED,
        ),
    ] = 1.0
    noise_share: Annotated[
        float, Setting("Share of the noise that one client adds.", "share", above=0, at_most=1)
    ] = 1.0
    colluders: int = 0

    def __post_init__(self) -> None:
        # a mechanism without clip and noise may have any of these two
        check_declared(self, without=("clip_norm", "noise_multiplier"))
        if not self.is_plain:
            check_real(clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier)
            if not SMALLEST_CLIP_NORM <= self.clip_norm <= LARGEST_CLIP_NORM:
                raise ValueError(
                    f"expected {SMALLEST_CLIP_NORM} <= clip_norm={self.clip_norm} <= "
                    f"{LARGEST_CLIP_NORM}"
                )
        if self.adds_noise and not 0 < self.noise_multiplier < math.inf:
            raise ValueError(
                f"expected 0 < noise_multiplier={self.noise_multiplier} < inf under mechanism "
                f"{self.kind!r}; for training without noise choose mechanism 'none' or 'clip-only'"
            )
        if self.adds_noise:
            check_std(self.noise_std)
        if type(self.colluders) is not int or self.colluders < 0:
            raise ValueError(f"expected colluders={self.colluders!r} to be an integer >= 0")
        if self.private and self.in_sums_alone and self.kind != DP.name:
            raise ValueError(
                f"mechanism={self.kind!r} changes each client's values alone, and shares of noise "
                "add up only as mechanism='dp' adds them: take dp, or a trust in which each "
                "payload has all of its noise"
            )

    def weight_of(self, group: Group) -> float:
        """Weight of a group of parameters in the clip."""
        return {"norms": self.norms_clip_weight, "classifier": self.classifier_clip_weight}.get(
            group, 1.0
        )

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
    def is_plain(self) -> bool:
        """Whether values are sent as they are, without clip and noise."""
        return self.of_kind.plain

    @property
    def private(self) -> bool:
        """Whether the output has a finite epsilon."""
        return self.of_kind.private

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on every kept coordinate of one client's sum: sigma C
        times the share.
        """
        return self.noise_multiplier * self.clip_norm * self.noise_share if self.adds_noise else 0.0

    @property
    def in_sums_alone(self) -> bool:
        """Whether only a sum over clients is private: clients add shares of the noise.

        With ``colluders`` a share can be all of the noise (m = t + 1).
        """
        return self.noise_share < 1 or self.colluders > 0

    @property
    def min_survivors(self) -> int:
        """m: the least number of shares of the noise in a sum."""
        return round(self.noise_share**-2) + self.colluders

    def sensitivity(self, blocks: int) -> float:
        """L2 distance by which adding or removing one example moves the sum: C, or C sqrt(G) per
        block.
        """
        if not self.clips:
            return math.inf
        return self.clip_norm * (math.sqrt(blocks) if self.clip == "per-block" else 1.0)

    def effective_noise_multiplier(self, blocks: int) -> float:
        """Noise over joint sensitivity, for which the ledger is charged; 0 if it is not private.

        sigma_eff = (sum_g C_g^2 / s_g^2)^(-1/2), with the clip norm and the noise of each block.
        With ``noise_share`` it is that of a sum without the shares of ``colluders``.
        """
        if not self.private:
            return 0.0
        return self.noise_multiplier * self.clip_norm / self.sensitivity(blocks)


def add_noise(
    total: Float[Tensor, " kept"], mechanism: Mechanism, noise: SecretStream
) -> Float[Tensor, " kept"]:
    """The sum with the noise of the mechanism on every kept coordinate, and on nothing else.

    Guarantee: at least as private as N(0, (sigma C)^2) on each coordinate (``add_gaussian``).
    """
    add = mechanism.of_kind.add
    noisy: Tensor = total if add is None else add(total, mechanism.noise_std, noise)
    return noisy


def rho(
    mechanism: Mechanism,
    noise_multipliers: Sequence[float],
    *,
    clients_per_round: int,
    values: float,
    blocks: int,
    expected_batch: float,
) -> float | None:
    """Norm of a step's noise over the clip norm, both of the mean gradient that the server gets.

    noise_multipliers: sigma_k of every client.
    clients_per_round: K.
    values: d, the kept coordinates that are clipped and get noise.
    blocks: G.
    expected_batch: B, of a step over all clients of a round: q N for one client, and K q N for K
        clients of N examples.
    rho = sqrt(K mean(sigma_k^2) d) noise_share C / (S B), with the sensitivity S:

    - One client, joint clip: sigma sqrt(d) / B.
    - K clients, ``trust="client"``: their noise adds up to sigma sqrt(K) C in every coordinate. At
      equal batches of a step (B) rho is sqrt(K) times that of one client; at equal batches of a
      client (q N), 1 / sqrt(K) times.
    - ``trust="aggregate"``: each of the K clients adds 1 / sqrt(m - 1) of the noise, m the fewest
      in the sum. If it needs all K, rho is sqrt(K / (K - 1)) times that of one client with the
      batch B. ``trust="secure"`` likewise, 1 / sqrt(m - t) of it.
    - Several local steps: rho of each of them. Over a round the noise adds up as the root of the
      steps, gradients as the steps at most.
    - Clip of each block: S = C sqrt(G), so that rho has the noise multiplier that the ledger is
      charged with.
    - Clients with weights in the sum: their noise multipliers times the weights.
    - Clip weights of groups, and scaled carriers: in the scale of the clip, where every coordinate
      has the same noise.
    - Factors (PowerSGD): of the dense gradient that they are made from.

    The errors of a codec or a secure sum are not in it. 0 without noise; None for noise without a
    clip, which has no clip norm.
    """
    if not mechanism.adds_noise:
        return 0.0
    if not mechanism.clips:
        return None
    mean_square = math.fsum(sigma**2 for sigma in noise_multipliers) / len(noise_multipliers)
    noise = (
        math.sqrt(clients_per_round * mean_square * values)
        * mechanism.noise_share
        * mechanism.clip_norm
    )
    return noise / (mechanism.sensitivity(blocks) * expected_batch)
