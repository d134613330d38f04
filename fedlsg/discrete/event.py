"""What a sum with discrete noise costs: an event for the accountants and the ledger.

docs/discrete-noise.md has the proof. The event is the Gaussian mechanism whose rounding the sum nearly is. Its
``log_ratio`` covers "nearly": the ledger charges it. A term that is added to delta is another way to cover it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedlsg.accounting.events import Event
from fedlsg.discrete.bound import log_ratio, total_variation
from fedlsg.discrete.grid import DiscreteGrid
from fedlsg.discrete.rotation import rounding_error


@dataclass(frozen=True, kw_only=True)
class DiscreteCharge:
    """T releases of d values: ``event`` at the noise multiplier to charge, with Lambda = T d lambda as its log_ratio.

    ``total_variation``: T d tau, the distance from what the event describes, at most 1. ``log_ratio``: Lambda again.
    If the event's Gaussian mechanisms are (epsilon, delta)-private, the release is both
        (epsilon + 2 Lambda, e^Lambda delta)-private: ``compose`` and the ledger charge this for the event;  and
        (epsilon, delta + (1 + e^epsilon) T d tau)-private: see ``delta_term``.
    """

    event: Event
    total_variation: float
    log_ratio: float


def charge(
    *,
    grid: DiscreteGrid,
    rounding: float,
    sensitivity: float,
    largest_batch: int,
    sample_rate: float,
    steps: int,
    values: int,
) -> DiscreteCharge:
    """The charge for T = ``steps`` releases of sums of d = ``values`` integers on ``grid``.

    ``rounding``: r in grid steps, from ``rounding_deviation``. ``sensitivity``: C, by which one example moves the real
    vector before it is encoded. ``largest_batch``: the examples that one client's sum can have; all of its examples if
    in doubt. Rotation and division round in float64 by at most w |x| together, w = ``rounding_error``, and |x| is at
    most ``largest_batch`` C. So the sensitivity is taken as C (1 + 2 w ``largest_batch``).
    Guarantee: the noise multiplier is sqrt(h s_k^2 - r^2) D over that sensitivity, where h = ``grid.contributors`` must
    be the honest clients that are certain to be in the sum. Noise of others is not counted, and cannot harm.
    Raises ValueError for settings out of range, or if Lambda is infinite: the shares or r are too small.
    """
    if not 0 < sensitivity < math.inf or largest_batch < 1 or values < 1:
        raise ValueError(f"expected a finite {sensitivity=} > 0, {largest_batch=} >= 1 and {values=} >= 1")
    moved = sensitivity * (1 + 2 * rounding_error(values) * largest_batch)
    shares = [float(grid.share)] * grid.contributors
    event = Event(
        sample_rate=sample_rate,
        noise_multiplier=grid.noise_std(rounding) / moved * (1 - 1e-14),
        steps=steps,
        log_ratio=log_ratio(shares, rounding) * values * steps,
    )
    return DiscreteCharge(
        event=event,
        total_variation=min(total_variation(shares, rounding) * values * event.steps, 1.0),
        log_ratio=event.log_ratio,
    )


def delta_term(charges: Iterable[DiscreteCharge], epsilon: float) -> float:
    """What to add to delta at ``epsilon`` for all releases on the same examples, or to subtract before calibration.

    (1 + e^epsilon) times the sum of the total variations. Their order, and what was chosen between them, do not matter.
    It stands in place of Lambda: ``epsilon`` is that of the events without their ``log_ratio``.
    """
    return (1 + math.exp(min(epsilon, 700.0))) * math.fsum(charge.total_variation for charge in charges)
