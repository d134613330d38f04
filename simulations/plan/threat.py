"""The threat model and the schedule as the settings state them, for code that checks a plan."""

import math

from fedlsg.attacks.audit.stated import Stated
from fedlsg.state import ClientTerms
from fedlsg.units import UNITS
from simulations.plan.base import Base


def stated_of(base: Base, *, epsilon: float, delta: float, sample_rate: float, steps: int) -> Stated:
    """The threat model, with a claim."""
    s = base.settings
    return Stated(
        trust=s.trust,
        unit=s.unit,
        clients=s.clients_per_round,
        min_survivors=s.min_survivors,
        colluders=s.colluders or 0,
        epsilon=epsilon,
        delta=delta,
        sample_rate=sample_rate,
        steps=steps,
    )


def schedule_of(base: Base, terms: ClientTerms) -> tuple[float, int]:
    """The probability with which a unit is in a release, and in how many releases it may be at the most."""
    s, rounds = base.settings, base.schedule.rounds
    if s.trust == "server":
        return s.clients_per_round / s.clients, rounds
    rounds = base.participation.most_selections(rounds)
    if UNITS[s.unit].whole:
        return 1.0, rounds
    batches = rounds * s.local_steps
    if s.batch_size is None:
        return base.local.sample_rate, batches
    if s.sampling == "shuffle":
        return 1.0, math.ceil(batches / math.ceil(terms.num_examples / s.batch_size))
    return min(1.0, s.batch_size / terms.num_examples), batches
