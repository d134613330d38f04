"""What an output must hide, by the user's claim and by who reads it: an independent computation.

Nothing here comes from the plan that is audited: no accountant, mechanism or ledger is imported.
A plan with noise for the wrong number of clients, or at the wrong epsilon, is contradicted here.

Symbols: K clients in a round, m the fewest in a sum, t clients that read along with the server, h =
m - t, q the Poisson rate, T steps, sigma noise over the distance by which one unit moves an output,
L privacy loss of one step.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, ndtr

from fedlsg.config import Setting, check_declared
from fedlsg.config.units import EXAMPLE, unit_named

Trust = Literal["client", "secure", "server", "aggregate"]
Epsilon = Annotated[float, Setting(above=0, below=math.inf, why="no claim, no audit")]
Delta = Annotated[float, Setting(above=0, below=1, why="no claim, no audit")]
SampleRate = Annotated[float, Setting(above=0, at_most=1)]
Steps = Annotated[int, Setting(at_least=1)]

LEAST_NOISE_ERROR = 1e-3
"""Relative error of ``least_noise``, which is taken off: a correct mechanism is not accused because
of it.
"""
CELLS = 40
"""Cells of the loss grid in one deviation of L."""
MOST_CELLS = 2**22
"""Cells of the loss grid, at most."""
MAX_TILT = 200.0
"""Largest theta of a tilted law."""
NEGLIGIBLE_CHANCE = 1e-18
"""A smaller probability counts as 0 for the reach of the grid."""
GRID_DEVIATIONS = 14.0
"""Deviations of the noise, and of the loss, that the grids reach."""
MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER = 1e-3, 1e6
"""The range of noise multipliers that are searched."""


@dataclass(frozen=True, kw_only=True)
class Stated:
    """The threat model and the claim, as a user states them.

    trust: whom a client trusts.
    unit: of privacy.
    clients: K.
    min_survivors: m.
    colluders: t.
    epsilon, delta: claimed for ``steps`` releases.
    sample_rate: probability with which a unit takes part in a release.
    steps: number of releases.
    Raises ValueError without a claim, or without a client whose noise is unknown to the readers.
    """

    trust: Trust = "client"
    unit: str = EXAMPLE.name
    clients: int = 1
    min_survivors: int = 1
    colluders: int = 0
    epsilon: Epsilon
    delta: Delta
    sample_rate: SampleRate
    steps: Steps

    def __post_init__(self) -> None:
        check_declared(self)
        if not 1 <= self.members <= self.clients or self.honest < 1:
            raise ValueError(
                f"expected {self.readers} < min_survivors={self.min_survivors} <= {self.clients} "
                f"clients: of {self.readers} clients the reader knows the noise"
            )

    @property
    def whole(self) -> bool:
        """Whether a unit is a client, and not an example."""
        return unit_named(self.unit).whole

    @property
    def readers(self) -> int:
        """t: clients whose noise the reader knows.

        Of a sum at least one: each client gets the weights.
        """
        if self.trust == "secure":
            return max(1, self.colluders)
        return int(self.trust == "aggregate" and self.members > 1)

    @property
    def members(self) -> int:
        """Clients whose values are in one output, at the fewest."""
        return self.min_survivors if self.trust in ("secure", "aggregate") else 1

    @property
    def honest(self) -> int:
        """h: those of them whose noise the reader does not know."""
        return self.members - self.readers

    @property
    def noise_multiplier(self) -> float:
        """The least sigma at which the claim is true, for noise of clients or of the server."""
        return least_noise(self.epsilon, self.delta, self.sample_rate, self.steps)

    @property
    def reader(self) -> str:
        """Who reads, in words."""
        also = "one client" if self.readers == 1 else f"{self.readers} clients"
        return {
            "client": "anybody who sees single payloads",
            "aggregate": f"{also if self.readers else 'anybody'} who sees nothing but sums",
            "secure": f"the server of a secure sum together with {also}, who know their own noise",
            "server": "anybody but the server",
        }[self.trust]


@lru_cache(maxsize=64)  # by its arguments alone: never stale
def least_noise(epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """The least noise multiplier at which T releases are (epsilon, delta)-private.

    By bisection, less its own error.
    Raises ValueError where no multiplier that is searched is enough.
    """
    low, high = math.log(MIN_NOISE_MULTIPLIER), math.log(MAX_NOISE_MULTIPLIER)
    if delta_of(epsilon, sample_rate, MAX_NOISE_MULTIPLIER, steps) > delta:
        raise ValueError(
            f"no noise multiplier up to {MAX_NOISE_MULTIPLIER:g} gives {epsilon=} at {delta=} "
            f"after {steps} steps"
        )
    while high - low > LEAST_NOISE_ERROR / 10:
        middle = (low + high) / 2
        private = delta_of(epsilon, sample_rate, math.exp(middle), steps) <= delta
        low, high = (low, middle) if private else (middle, high)
    return math.exp(low) * (1 - LEAST_NOISE_ERROR)


def delta_of(epsilon: float, sample_rate: float, noise_multiplier: float, steps: int) -> float:
    """delta at epsilon of T Poisson-subsampled Gaussian releases.

    The larger one of adding and removing a unit.
    q = 1 in closed form (Balle and Wang 2018, Theorem 8), at mu = sqrt(T) / sigma. Else the law of
    L on a grid, to the T-th power by Fourier: an estimate, and no bound.
    """
    if sample_rate == 1:
        mu = math.sqrt(steps) / noise_multiplier
        return float(ndtr(mu / 2 - epsilon / mu)) - math.exp(min(epsilon, 700)) * float(
            ndtr(-mu / 2 - epsilon / mu)
        )
    edges = np.linspace(-GRID_DEVIATIONS, GRID_DEVIATIONS + 1 / noise_multiplier, 30_001)
    centre = (edges[1:] + edges[:-1]) / 2
    without = np.diff(ndtr(edges))
    shifted = np.diff(ndtr(edges - 1 / noise_multiplier))
    exponent = centre / noise_multiplier - 0.5 / noise_multiplier**2
    loss = np.logaddexp(math.log1p(-sample_rate), math.log(sample_rate) + exponent)
    removed = (1 - sample_rate) * without + sample_rate * shifted
    return max(_composed(loss, removed, steps, epsilon), _composed(-loss, without, steps, epsilon))


def _composed(
    loss: Float[np.ndarray, " n"], law: Float[np.ndarray, " n"], steps: int, epsilon: float
) -> float:
    """E[(1 - e^(epsilon - S))_+] for the sum S of T losses with this law.

    Computed on a grid around the mean of S.
    The law is tilted by e^(theta L) first, so that S is near epsilon: the Fourier transform has
    absolute errors, which would hide a small delta.
    """
    law = law / law.sum()

    def log_mgf(theta: float) -> float:
        return float(logsumexp(theta * loss, b=law))

    theta = float(
        minimize_scalar(
            lambda x: steps * log_mgf(x) - x * epsilon, bounds=(0, MAX_TILT), method="bounded"
        ).x
    )
    scale = log_mgf(theta)
    with np.errstate(divide="ignore"):
        # not a product: 0 times infinity is no number
        law = np.exp(np.log(law) + theta * loss - scale)
    mean = float(law @ loss)
    spread = math.sqrt(float(law @ np.square(loss - mean)))
    if spread == 0:
        return 0.0
    reach = GRID_DEVIATIONS * spread * math.sqrt(steps) + float(
        np.abs(loss[law > NEGLIGIBLE_CHANCE] - mean).max()
    )
    width = max(spread / CELLS, 2 * reach / MOST_CELLS)
    size = 1 << math.ceil(math.log2(2 * reach / width + 2))
    place = np.clip((loss - mean) / width, -size / 2, size / 2 - 2)
    below = np.floor(place).astype(np.int64)
    upper = place - below  # shared between two cells, so that the mean stays
    cells = np.bincount(below % size, law * (1 - upper), size) + np.bincount(
        (below + 1) % size, law * upper, size
    )
    powers = np.clip(np.fft.irfft(np.fft.rfft(cells) ** steps, n=size), 0, None)
    sums = steps * mean + width * np.fft.fftfreq(size, 1 / size)
    beyond = sums > epsilon
    logs = steps * scale - theta * sums[beyond] + np.log(-np.expm1(epsilon - sums[beyond]))
    return float(powers[beyond] @ np.exp(np.minimum(logs, 0.0)))
