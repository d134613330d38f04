"""Client-level privacy of a run: how a round releases whole clients, and the clip that follows their norms."""

from fedlsg.client_level import AdaptiveClip, ClientUnit
from fedlsg.method import Method
from simulations.settings.run import Resolved

RATE = 0.2
"""eta of Andrew et al. 2021."""
COUNT_SHARE = 20
"""sigma_b is the expected number of clients over this (Andrew et al. 2021)."""


def client_unit(s: Resolved, method: Method) -> ClientUnit | None:
    """How a round releases whole clients; None at example level, and for methods without privacy."""
    if s.unit == "example" or not method.mechanism.private:
        return None
    if s.trust == "server":
        return ClientUnit(sample_rate=s.clients_per_round / s.clients, at_server=True)
    return ClientUnit(sample_rate=1.0, at_server=False)


def adaptive_clip(s: Resolved, noise_multiplier: float) -> AdaptiveClip | None:
    """The adaptive clip that the settings ask for; ``noise_multiplier``: z, of count and sum together.

    By default the count has the noise of the paper or, in a small federation, of z clients: then the sum has 4/3 of the
    variance that it would have alone. Raises ValueError for a given noise that leaves nothing for the sum.
    """
    if s.clip_quantile is None:
        return None
    made = AdaptiveClip(
        quantile=s.clip_quantile,
        rate=RATE if s.clip_learning_rate is None else s.clip_learning_rate,
        count_noise=s.clip_count_noise or max(s.clients_per_round / COUNT_SHARE, noise_multiplier),
        expected_clients=s.clients_per_round,
    )
    made.sum_multiplier(noise_multiplier)
    return made
