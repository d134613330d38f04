"""The public conditions that settings make of a federation: simulated time, the unit of privacy, an
adaptive clip.

Who is there, who leaves, how fast clients are, and when a round ends. One setting that is given
starts the clock.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedlsg.config.selection import Selection, selection_of
from fedlsg.config.units import EXAMPLE, Unit, unit_named
from fedlsg.method import LocalTraining, Method
from fedlsg.participation import Participation, Trace, read_trace
from fedlsg.randomness import public_generator
from fedlsg.simulations.settings.any_run import Resolved, Settings
from fedlsg.training.client_level import AdaptiveClip

NAMES = (
    "availability",
    "dropout",
    "speed",
    "example_seconds",
    "uplink_mbps",
    "downlink_mbps",
    "deadline",
    "over_selection",
)
EXAMPLE_SECONDS = 0.01
CONSTANT, LOGNORMAL = "constant", "lognormal"
MEGABIT = 1e6
CLIP_RATE = 0.2
"""eta of Andrew et al. 2021."""
COUNT_SHARE = 20
"""sigma_b is the expected number of clients over this (Andrew et al. 2021)."""


def given(s: Settings) -> dict[str, Any]:
    """The settings of simulated time that have a value; none: there is no clock."""
    return {name: getattr(s, name) for name in NAMES if getattr(s, name) is not None}


def fill_participation(s: Settings) -> Mapping[str, Any]:
    """What a run with a clock uses where nothing is said of it."""
    if not given(s):
        return {}
    return {
        "speed": CONSTANT if s.speed is None else s.speed,
        "example_seconds": EXAMPLE_SECONDS if s.example_seconds is None else s.example_seconds,
    }


def availability_of(s: Settings) -> float | str:
    """The chance of a client to be there, or the path of a trace. Raises ValueError for a number
    out of range.
    """
    value = 1.0 if s.availability is None else s.availability
    try:
        share = float(value)
    except ValueError:
        return str(value)
    if not 0 < share <= 1:
        raise ValueError(f"expected 0 < availability={share:g} <= 1, or the path of a CSV trace")
    return share


def spread_of(s: Settings) -> float:
    """S of the factors exp(S z) on computing times, 0 for ``constant``. Raises ValueError for
    another word.
    """
    kind, *rest = (s.speed or CONSTANT).split()
    try:
        if kind == CONSTANT and not rest:
            return 0.0
        if kind == LOGNORMAL and len(rest) == 1 and 0 < (spread := float(rest[0])) < math.inf:
            return spread
    except ValueError:
        pass
    raise ValueError(
        f"expected speed=constant, or speed='lognormal S' with a number S > 0, got {s.speed!r}"
    )


def participation_of(
    s: Resolved,
    local: LocalTraining,
    *,
    sizes: Sequence[int],
    rates: Sequence[float],
    per_round: int,
    selection: Selection,
) -> Participation:
    """Conditions of a run. ``sizes``, ``rates``: declared examples N_k and Poisson rate q_k of
    every client;
    ``per_round``: replies that a round uses at most; ``selection``: the rule of the draw.

    The computing time of a client in a round is q_k N_k (expected, never drawn, examples of a step)
    x local steps x gradients an example x ``example_seconds`` x its factor.
    Raises ValueError for a trace that cannot be read, or that goes with links, and for a deadline
    that nobody can meet.
    """
    if not given(s):
        return Participation(
            clients=len(sizes), per_round=per_round, seed=s.seed, selection=selection
        )
    assert s.example_seconds is not None
    step = local.steps * local.multiplicity * s.example_seconds
    factors = speed_factors(len(sizes), spread_of(s), seed=s.seed)
    seconds = [q * n * step * f for q, n, f in zip(rates, sizes, factors, strict=True)]
    if s.deadline is not None and s.deadline < min(seconds):
        raise ValueError(
            f"deadline={s.deadline:g}: the fastest client computes {min(seconds):.3g} simulated "
            "seconds in a round, so no reply can be in time: raise deadline, or lower "
            "example_seconds"
        )
    return Participation(
        clients=len(sizes),
        per_round=per_round,
        seed=s.seed,
        availability=_availability(s, len(sizes)),
        dropout=s.dropout or 0.0,
        over_selection=s.over_selection or 0.0,
        deadline=math.inf if s.deadline is None else s.deadline,
        compute_seconds=seconds,
        uplink=math.inf if s.uplink_mbps is None else MEGABIT * s.uplink_mbps,
        downlink=math.inf if s.downlink_mbps is None else MEGABIT * s.downlink_mbps,
        least=s.min_survivors,
        selection=selection,
    )


def speed_factors(clients: int, spread: float, *, seed: int) -> list[float]:
    """Factors exp(spread z) on computing times, z standard normal: public, drawn once a client;
    their median is 1.
    """
    z = torch.randn(clients, generator=public_generator(seed, "speed"), dtype=torch.float64)
    return [math.exp(spread * value) for value in z.tolist()]


def trace_digest(participation: Participation) -> str | None:
    """SHA-256 of the trace of a run, None without one: a resumed run must have the same."""
    trace = participation.availability
    return trace.digest if isinstance(trace, Trace) else None


def _availability(s: Resolved, clients: int) -> float | Trace:
    share = availability_of(s)
    return share if isinstance(share, float) else read_trace(Path(share), clients)


def unit_of(s: Resolved, method: Method) -> Unit:
    """The unit, as it takes part in this run; an example for methods without privacy."""
    unit, at_server = unit_named(s.unit), s.trust == "server"
    if not method.mechanism.private:
        return EXAMPLE
    if not unit.whole:
        return unit
    rate = selection_of(s.selection, secret=at_server).sample_rate(s.clients, s.clients_per_round)
    return replace(unit, sample_rate=rate, at_server=at_server)


def adaptive_clip(s: Resolved, noise_multiplier: float) -> AdaptiveClip | None:
    """The adaptive clip that the settings ask for; ``noise_multiplier``: z, of count and sum
    together.

    By default the count has the noise of the paper or, in a small federation, of z clients: then
    the sum has 4/3 of the variance that it would have alone. Raises ValueError for a given noise
    that leaves nothing for the sum.
    """
    if s.clip_quantile is None:
        return None
    clip = AdaptiveClip(
        quantile=s.clip_quantile,
        rate=CLIP_RATE if s.clip_learning_rate is None else s.clip_learning_rate,
        count_noise=s.clip_count_noise or max(s.clients_per_round / COUNT_SHARE, noise_multiplier),
        expected_clients=s.clients_per_round,
    )
    clip.sum_multiplier(noise_multiplier)
    return clip
