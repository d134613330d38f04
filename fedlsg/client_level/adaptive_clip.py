"""A clip norm that follows a quantile of the updates' norms (Andrew et al. 2021, Alg. 1), privately.

Symbols: gamma the quantile, C_t the clip norm, b_i = 1 where the norm of update i is at most C_t, m the expected
number of clients in a round, sigma_b the deviation of the noise in the count, eta the learning rate of log C.

    count      sum_i (b_i - 1/2) + N(0, sigma_b^2)        one client moves it by 1/2
    fraction   count / m + 1/2
    update     C_{t+1} = C_t exp(-eta (fraction - gamma))

Both releases of a round read the same clients. Together they are one Gaussian mechanism of noise multiplier z, with
1 / z^2 = 1 / z_sum^2 + 1 / (2 sigma_b)^2: the ledger is charged with z, and the sum gets z_sum > z.
The divisor m is public and fixed, as in the paper.
"""

import math
from dataclasses import dataclass

from fedlsg.privacy.mechanism import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM
from fedlsg.randomness import SecretStream

HALF = 0.5
"""How far one client moves the centred count: b - 1/2 is -1/2 or 1/2, and 0 without the client."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    """``quantile``: gamma. ``rate``: eta. ``count_noise``: sigma_b, in clients. ``expected_clients``: m."""

    quantile: float
    rate: float
    count_noise: float
    expected_clients: float

    @property
    def count_multiplier(self) -> float:
        """Noise over sensitivity of the count: 2 sigma_b."""
        return self.count_noise / HALF

    def sum_multiplier(self, noise_multiplier: float) -> float:
        """z_sum, so that count and sum together have the noise multiplier z.

        Raises ValueError where the count alone has less noise than z: nothing is left for the sum.
        """
        rest = noise_multiplier**-2 - self.count_multiplier**-2
        if rest <= 0:
            raise ValueError(
                f"clip_count_noise={self.count_noise:g} is a noise multiplier of {self.count_multiplier:.3g} for the "
                f"count alone, and both releases together need {noise_multiplier:.3g}: raise clip_count_noise above "
                f"{noise_multiplier * HALF:.3g}"
            )
        # Rounded up by a relative 1e-12: float64 must not leave the pair below z.
        return float(rest**-0.5) * (1 + 1e-12)

    def next_norm(self, clip_norm: float, within: int, clients: int, noise: SecretStream) -> float:
        """C_{t+1}; ``within`` of the round's ``clients`` have a norm of at most ``clip_norm``. Both are secret."""
        count = within - HALF * clients + float(noise.normal(1)) * self.count_noise
        fraction = count / self.expected_clients + HALF
        moved = clip_norm * math.exp(-self.rate * (fraction - self.quantile))
        return min(max(moved, SMALLEST_CLIP_NORM), LARGEST_CLIP_NORM)
