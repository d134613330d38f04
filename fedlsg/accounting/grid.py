"""Settings on a grid of powers of two, 2^(k/n) for integers k: fewer different ones, each at least as lossy.

Epsilon rises with q and falls with sigma, so q moves up and sigma down.
"""

import math
from dataclasses import replace

from fedlsg.accounting.events import Event, canonical

FINEST = 128.0


def fewer(events: tuple[Event, ...], most: int) -> tuple[Event, ...]:
    """At most ``most`` different (q, sigma) that lose at least as much privacy, on the finest grid that has so few.

    Events without Lambda, none below a noise multiplier of 1e-30. As many steps in all; the same events if they are
    few.
    """
    found, level = events, FINEST
    while len(found) > most:
        found = canonical(
            replace(
                event,
                sample_rate=min(grid_up(event.sample_rate, level), 1.0),
                noise_multiplier=grid_down(event.noise_multiplier, level),
            )
            for event in events
        )
        level /= 1.25
    return found


def grid_up(value: float, level: float) -> float:
    """The lowest point of the grid that is not below a positive value."""
    k = math.floor(math.log2(value) * level) - 1
    while (point := math.exp2(k / level)) < value:
        k += 1
    return point


def grid_down(value: float, level: float) -> float:
    """The highest point of the grid that is not above a positive value."""
    k = math.ceil(math.log2(value) * level) + 1
    while (point := math.exp2(k / level)) > value:
        k -= 1
    return point
