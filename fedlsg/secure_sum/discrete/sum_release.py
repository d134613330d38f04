"""One release of a secure sum: its plan, which clients and server share, and its charge.

All of it follows from public constants (``SumTerms`` and the mechanism, by ``plan_release``):

    clients    encode(clipped sum)      rotate, divide by the step, discrete Gaussian around the
                                        real value, mod 2^b
    server     decode(sum mod 2^b)      multiply by the step, rotate back
    ledger     log_ratio                bound of the difference to the Gaussian mechanism that is
                                        charged

The sum has nearly the law of a Gaussian mechanism whose result is rounded. That mechanism is
charged, and ``log_ratio`` bounds the difference. docs/discrete-noise.md has the proof.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from jaxtyping import Float, Float64, Int64
from torch import Tensor

from fedlsg.accounting.events import Event
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.privacy.totals import shares_hidden
from fedlsg.randomness import SecretStream, public_generator
from fedlsg.secure_sum.discrete.bound import log_ratio, rounding_deviation
from fedlsg.secure_sum.discrete.grid import (
    DiscreteGrid,
    decode,
    encode,
    largest_rotated,
    most_examples,
    plan_grid,
    random_signs,
    rotate,
    rounding_error,
    unrotate,
)


def charge(
    *, grid: DiscreteGrid, rounding: float, sensitivity: float, largest_batch: int, values: int
) -> Event:
    """The charge for one release of a sum of d = ``values`` integers on ``grid``; ``log_ratio`` is
    Lambda = d lambda.

    If the Gaussian mechanism of the event is (epsilon, delta)-private, the release is (epsilon + 2
    Lambda, e^Lambda delta)-private: ``compose`` and the ledger charge this.

    rounding: r in grid steps, from ``rounding_deviation``.
    sensitivity: C, by which one example moves the real vector before it is encoded.
    largest_batch: the most examples of one client's sum; all of its examples if in doubt.
    Rotation and division round in float64 by at most w |x| together, w = ``rounding_error``, and
    |x| is at most ``largest_batch`` C. Both neighbours are rounded, so the sensitivity is taken as
    C (1 + 2 w ``largest_batch``).
    Guarantee: the noise multiplier is sqrt(h s_k^2 - r^2) D over that sensitivity, where h =
    ``grid.contributors`` must be the honest clients that are certain to be in the sum. Noise of
    others is not counted, and cannot harm. 1e-14 is for the rounding of the quotient.
    Raises ValueError for settings out of range, or if Lambda is infinite: the shares or r are too
    small.
    """
    if not 0 < sensitivity < math.inf or largest_batch < 1 or values < 1:
        raise ValueError(
            f"expected a finite {sensitivity=} > 0, {largest_batch=} >= 1 and {values=} >= 1"
        )
    moved = sensitivity * (1 + 2 * rounding_error(values) * largest_batch)
    shares = [float(grid.share)] * grid.contributors
    return Event(
        sample_rate=1.0,
        noise_multiplier=grid.noise_std(rounding) / moved * (1 - 1e-14),
        steps=1,
        log_ratio=log_ratio(shares, rounding) * values,
    )


LEAST_STEPS = 4
"""The fewest grid steps in the deviation of one client's noise."""
LEAST_BITS = 8
"""The fewest bits of an integer in a secure sum that its protocol takes."""
LARGEST_EPSILON = 20.0
"""The deviation of the rounding is planned for this epsilon, so that it depends on no target."""
MOST_EXAMPLES = 10**6
"""Training examples of a client: the rounding of its sum in float64 is bounded for so many."""
SUM_ROUNDING = 2 * MOST_EXAMPLES**2 * 2.0**-53
"""The distance, over C, that float64 rounding adds between sums of neighbouring data sets. Each of
n additions rounds a sum of at most n C.
"""
MARGIN = 3e-4
"""Share of additional noise, which covers the rounding of the sum, of its rotation and of its
division by the step.
"""
WRAPS = 1e-9
"""Probability that a coordinate of a round's sum wraps around. It would cost accuracy, never
privacy.
"""


@dataclass(frozen=True, kw_only=True)
class SumTerms:
    """Public constants of the secure sums of a run.

    clients: K, selected in a round.
    min_survivors: m, the fewest in a sum.
    colluders: t, clients that may read together, or show the server all that they know; at least
        one, as every client of a sum reads the next weights and knows its own noise.
    expected_examples: of a round, over all clients.
    releases: T, the number of rounds.
    delta: of the run; bounds of the rounding are small compared with it.
    Raises ValueError without a reader among the clients, or without an honest survivor: 1 <= t < m
    <= K.
    """

    clients: int
    min_survivors: int
    colluders: int
    expected_examples: float
    releases: int
    delta: float

    def __post_init__(self) -> None:
        if not 1 <= self.colluders < self.min_survivors <= self.clients:
            raise ValueError(
                f"expected 1 <= colluders={self.colluders} < min_survivors={self.min_survivors} <= "
                f"{self.clients} clients: noise of honest survivors is what counts, and every "
                "client knows its own"
            )

    @property
    def contributors(self) -> int:
        """h = m - t, the honest clients that are certain to be in a sum: their noise counts."""
        return self.min_survivors - self.colluders


@dataclass(frozen=True, kw_only=True)
class Release:
    """The plan of one sum.

    values: d, its coordinates.
    grid: the integers that are added up: step, bits, and each client's share of the noise.
    log_ratio: Lambda of this release (docs/discrete-noise.md): against each reader its privacy loss
        differs from that of a Gaussian mechanism by at most this.
    """

    values: int
    grid: DiscreteGrid
    log_ratio: float

    def encode(
        self, total: Float[Tensor, " values"], stream: SecretStream, *, seed: int, round: int
    ) -> Int64[Tensor, " values"]:
        """A client's integers in [0, 2^bits): its clipped sum, rotated, with its share of the
        noise.

        Guarantee: the noise is drawn around the real sum; nothing of the sum is rounded before it.
        """
        return encode(rotate(total, self._signs(seed, round)), self.grid, stream)

    def decode(
        self, total: Int64[Tensor, " values"], *, seed: int, round: int
    ) -> Float64[Tensor, " values"]:
        """The clients' sum with noise, from the sum of their integers modulo 2^bits."""
        return unrotate(decode(total, self.grid), self._signs(seed, round))

    def noise_std(self, clients: int) -> float:
        """Deviation of the noise in each coordinate of a sum of so many clients."""
        return float(self.grid.share) * self.grid.step * math.sqrt(clients)

    def _signs(self, seed: int, round: int) -> Tensor:
        """The public signs of a round's rotation."""
        return random_signs(self.values, public_generator(seed, "rotation", round))


@lru_cache(maxsize=16)  # by its arguments alone: never stale
def plan_release(terms: SumTerms, mechanism: Mechanism, *, values: int, blocks: int) -> Release:
    """The release of a round in which clients send ``values`` coordinates of ``blocks`` blocks
    under ``mechanism``.

    ``mechanism.noise_share`` is 1 / sqrt(h), so that ``noise_std`` is one client's share of the
    sum's noise.
    Guarantee: for every number n of shares that some reader does not know (``totals``; h is the
    fewest), the noise multiplier of their sum, with the rounding taken off and the error of float64
    added to the sensitivity, is at least sqrt(n / h)
    ``mechanism.effective_noise_multiplier(blocks)``, and its Lambda at most ``log_ratio``.
    Raises ValueError for a mechanism that is not private, or a sum that needs more than 52 bits.
    """
    if not mechanism.private:
        raise ValueError(
            f"expected a private mechanism, got {mechanism.kind!r}: a secure sum has noise of its "
            "own"
        )
    if not math.isclose(mechanism.noise_share**2 * terms.contributors, 1.0, rel_tol=1e-9):
        raise ValueError(
            f"expected noise_share = 1 / sqrt({terms.contributors}), got {mechanism.noise_share}"
        )
    sensitivity = mechanism.sensitivity(blocks)
    honest = terms.contributors
    hidden = shares_hidden(terms.min_survivors, terms.colluders)
    rounding = max(
        rounding_deviation(
            [float(LEAST_STEPS)] * n,
            values=values,
            steps=terms.releases,
            epsilon=LARGEST_EPSILON,
            delta=terms.delta,
        )
        for n in hidden
    )
    examples = most_examples(terms.expected_examples, MOST_EXAMPLES * terms.clients, WRAPS)
    grid = plan_grid(
        noise_std=mechanism.noise_multiplier * mechanism.clip_norm * (1 + MARGIN),
        contributors=honest,
        clients=terms.clients,
        largest_sum=largest_rotated(sensitivity, examples, values, WRAPS),
        values=values,
        rounding=rounding,
        least_bits=LEAST_BITS,
    )
    log_ratio = 0.0
    for n in hidden:
        charged = charge(
            grid=replace(grid, contributors=n),
            rounding=rounding,
            sensitivity=sensitivity,
            largest_batch=MOST_EXAMPLES,
            values=values,
        )
        promised = mechanism.effective_noise_multiplier(blocks) * math.sqrt(n / honest)
        if charged.noise_multiplier < promised * (1 + SUM_ROUNDING):
            raise ValueError(
                f"{values} values: float64 rounds more than the margin of {MARGIN} covers"
            )
        log_ratio = max(log_ratio, charged.log_ratio)
    # Rounded up to a power of two: servers and clients compare ledger entries, and exp and log of
    # two machines may differ in their last bits.
    return Release(values=values, grid=grid, log_ratio=2.0 ** math.ceil(math.log2(log_ratio)))


def most_log_ratio(terms: SumTerms) -> float:
    """An upper bound of the sum of ``Release.log_ratio`` over all releases of a run.

    It needs no frame. ``rounding_deviation`` keeps (1 + e^epsilon) T d tau below 1e-6 delta, Lambda
    is at most 5 T d tau, and a release rounds its own up to a power of two: a factor of 10 in all.
    """
    return 1e-5 * terms.delta / (1 + math.exp(LARGEST_EPSILON)) * (1 + 1e-9)
