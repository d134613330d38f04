"""From settings to the public conditions of a simulated federation: ``fedlsg.participation.Participation``."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from fedlsg.method import LocalTraining
from fedlsg.participation import Participation, Trace, read_trace
from fedlsg.randomness import public_generator
from simulations.settings.participation import availability_of, given, spread_of
from simulations.settings.run import Resolved

MEGABIT = 1e6


def participation_of(
    s: Resolved, local: LocalTraining, *, sizes: Sequence[int], rates: Sequence[float], per_round: int
) -> Participation:
    """Conditions of a run. ``sizes``, ``rates``: declared examples N_k and Poisson rate q_k of every client;
    ``per_round``: replies that a round uses at most.

    The computing time of a client in a round is q_k N_k (expected, never drawn, examples of a step) x local steps x
    gradients an example x ``example_seconds`` x its factor.
    Raises ValueError for a trace that cannot be read, or that goes with links.
    """
    if not given(s):
        return Participation(clients=len(sizes), per_round=per_round, seed=s.seed)
    assert s.example_seconds is not None
    step = local.steps * local.multiplicity * s.example_seconds
    factors = speed_factors(len(sizes), spread_of(s), seed=s.seed)
    return Participation(
        clients=len(sizes),
        per_round=per_round,
        seed=s.seed,
        availability=_availability(s, len(sizes)),
        dropout=s.dropout or 0.0,
        over_selection=s.over_selection or 0.0,
        deadline=math.inf if s.deadline is None else s.deadline,
        compute_seconds=[q * n * step * f for q, n, f in zip(rates, sizes, factors, strict=True)],
        uplink=math.inf if s.uplink_mbps is None else MEGABIT * s.uplink_mbps,
        downlink=math.inf if s.downlink_mbps is None else MEGABIT * s.downlink_mbps,
        least=s.min_survivors,
    )


def speed_factors(clients: int, spread: float, *, seed: int) -> list[float]:
    """Factors exp(spread z) on computing times, z standard normal: public, drawn once a client; their median is 1."""
    z = torch.randn(clients, generator=public_generator(seed, "speed"), dtype=torch.float64)
    return [math.exp(spread * value) for value in z.tolist()]


def trace_digest(participation: Participation) -> str | None:
    """SHA-256 of the trace of a run, None without one: a resumed run must have the same."""
    found = participation.availability
    return found.digest if isinstance(found, Trace) else None


def _availability(s: Resolved, clients: int) -> float | Trace:
    found = availability_of(s)
    return found if isinstance(found, float) else read_trace(Path(found), clients)
