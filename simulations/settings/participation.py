"""From settings to objects of a run: participation and its clock, unit of privacy, adaptive clip.

Participation determines which clients are available, which leave, how fast they are, and when a
round ends. A run has a simulated clock if one of the settings ``NAMES`` is given. Everything here
is public.
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
"""The settings of simulated time."""
EXAMPLE_SECONDS = 0.01
"""Simulated seconds for the gradient of one example, if not given."""
CONSTANT, LOGNORMAL = "constant", "lognormal"
"""Laws of the setting ``speed``."""
MEGABIT = 1e6
"""Bits."""
CLIP_RATE = 0.2
"""The learning rate eta of the adaptive clip in Andrew et al. 2021."""
COUNT_SHARE = 20
"""Expected clients over sigma_b, the noise of the count, in Andrew et al. 2021."""


def given(s: Settings) -> dict[str, Any]:
    """The settings of simulated time that have a value; without any, there is no clock."""
    return {name: getattr(s, name) for name in NAMES if getattr(s, name) is not None}


def fill_participation(s: Settings) -> Mapping[str, Any]:
    """The settings ``speed`` and ``example_seconds`` of a run with a clock, with defaults."""
    if not given(s):
        return {}
    return {
        "speed": CONSTANT if s.speed is None else s.speed,
        "example_seconds": EXAMPLE_SECONDS if s.example_seconds is None else s.example_seconds,
    }


def availability_of(s: Settings) -> float | str:
    """The probability that a client is available, or the path of a trace.

    Raises ValueError for a number out of range.
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
    """S of the factors exp(S z) on computing times; 0 for "constant".

    Raises ValueError for another word than "constant" and "lognormal".
    """
    kind, *rest = (s.speed or CONSTANT).split()
    try:
        if kind == CONSTANT and not rest:
            return 0.0
        if kind == LOGNORMAL and len(rest) == 1:
            spread = float(rest[0])
            if 0 < spread < math.inf:
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
    """The participation of a run.

    sizes, rates: declared examples N_k and Poisson rate q_k of every client.
    per_round: the most replies that a round uses.
    selection: the rule by which clients are selected.

    The computing time of a client in a round is q_k N_k (the expected examples of a step, never the
    sampled ones, which are private) x local steps x gradients an example x ``example_seconds`` x
    its speed factor.
    Raises ValueError for a trace that cannot be read, or next to given link rates, and for a
    deadline that no client can meet.
    """
    if not given(s):
        return Participation(
            clients=len(sizes), per_round=per_round, seed=s.seed, selection=selection
        )
    assert s.example_seconds is not None
    seconds_an_example = local.steps * local.multiplicity * s.example_seconds
    factors = speed_factors(len(sizes), spread_of(s), seed=s.seed)
    seconds = [
        rate * size * seconds_an_example * factor
        for rate, size, factor in zip(rates, sizes, factors, strict=True)
    ]
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
    """One public factor on the computing times of each client: exp(spread z), z standard normal.

    Their median is 1.
    """
    z = torch.randn(clients, generator=public_generator(seed, "speed"), dtype=torch.float64)
    return [math.exp(spread * value) for value in z.tolist()]


def trace_digest(participation: Participation) -> str | None:
    """SHA-256 of the trace of a run, which a resumed run must have, too; None without a trace."""
    trace = participation.availability
    return trace.digest if isinstance(trace, Trace) else None


def _availability(s: Resolved, clients: int) -> float | Trace:
    """The probability that a client is available, or the trace of a file."""
    share = availability_of(s)
    return share if isinstance(share, float) else read_trace(Path(share), clients)


def unit_of(s: Resolved, method: Method) -> Unit:
    """The unit of privacy, with the probability that a client is selected if clients are units.

    An example for methods without privacy.
    """
    unit = unit_named(s.unit)
    at_server = s.trust == "server"
    if not method.mechanism.private:
        return EXAMPLE
    if not unit.whole:
        return unit
    rate = selection_of(s.selection, secret=at_server).sample_rate(s.clients, s.clients_per_round)
    return replace(unit, sample_rate=rate, at_server=at_server)


def adaptive_clip(s: Resolved, noise_multiplier: float) -> AdaptiveClip | None:
    """The adaptive clip of the settings; None without one.

    ``noise_multiplier``: z, of the count and the sum together.
    By default the noise of the count is that of the paper or, in a small federation, z clients. In
    the latter case the sum has 4/3 of the variance that it would have without the count.
    Raises ValueError if the given noise of the count leaves nothing for the sum.
    """
    if s.clip_quantile is None:
        return None
    clip = AdaptiveClip(
        quantile=s.clip_quantile,
        rate=CLIP_RATE if s.clip_learning_rate is None else s.clip_learning_rate,
        count_noise=s.clip_count_noise or max(s.clients_per_round / COUNT_SHARE, noise_multiplier),
        expected_clients=s.clients_per_round,
    )
    clip.sum_multiplier(noise_multiplier)  # raises if nothing is left
    return clip
