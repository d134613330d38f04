"""Client-level privacy of a run: how a round releases whole clients, and the clip that follows their norms."""

from dataclasses import replace

from fedlsg.client_level import AdaptiveClip
from fedlsg.method import Method
from fedlsg.selection import selection_of
from fedlsg.units import EXAMPLE, UNITS, Unit
from simulations.settings.run import Resolved

RATE = 0.2
"""eta of Andrew et al. 2021."""
COUNT_SHARE = 20
"""sigma_b is the expected number of clients over this (Andrew et al. 2021)."""


def unit_of(s: Resolved, method: Method) -> Unit:
    """The unit, as it takes part in this run; an example for methods without privacy."""
    unit, at_server = UNITS[s.unit], s.trust == "server"
    if not method.mechanism.private:
        return EXAMPLE
    if not unit.whole:
        return unit
    rate = selection_of(s.selection, secret=at_server).sample_rate(s.clients, s.clients_per_round)
    return replace(unit, sample_rate=rate, at_server=at_server)


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
