"""Settings of simulated time: who is there, who leaves, how fast clients are, and when a round ends.

One of them that is given starts the simulated clock. Nothing here imports torch.
"""

import math
from collections.abc import Mapping
from typing import Any

from simulations.settings.run import Resolved, Settings

NAMES = (
    "availability", "dropout", "speed", "example_seconds", "uplink_mbps", "downlink_mbps", "deadline", "over_selection",
)  # fmt: skip
EXAMPLE_SECONDS = 0.01
CONSTANT, LOGNORMAL = "constant", "lognormal"


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


def check_participation(s: Resolved) -> None:
    """Raise ValueError, naming the setting and the fix, for values that are out of range or do not fit together."""
    share = availability_of(s)
    spread_of(s)
    if s.trust == "secure" and (share != 1.0 or s.over_selection):
        raise ValueError(
            f"trust=secure plans each sum for exactly clients_per_round={s.clients_per_round} clients, and "
            f"{'availability' if share != 1.0 else 'over_selection'} selects another number: leave it out; dropout, "
            "speed and deadline are possible"
        )
    if s.over_selection and s.clients_per_round == s.clients:
        raise ValueError(
            f"over_selection={s.over_selection:g} selects more clients than are needed, and every round needs all "
            f"clients={s.clients}: lower clients_per_round, or leave over_selection out"
        )


def check_values_used(s: Settings, method: str) -> None:
    """Raise ValueError where clients remember what they have sent, and the server may throw a reply away."""
    for name in ("deadline", "over_selection"):
        if getattr(s, name):
            raise ValueError(
                f"{method!r} with codec={s.codec!r} keeps a memory of what was not sent, and {name}="
                f"{getattr(s, name):g} throws away replies that this memory counts as received: leave {name} out"
            )


def refuse_deployed(s: Settings) -> None:
    """Raise ValueError for a deployment: its clients really are away, leave or are slow."""
    if names := given(s):
        raise ValueError(
            f"{', '.join(f'{name}={value}' for name, value in names.items())}: these settings simulate what a "
            "deployment has of its own: leave them out, or run a simulation"
        )


def availability_of(s: Settings) -> float | str:
    """The chance of a client to be there, or the path of a trace. Raises ValueError for a number out of range."""
    said = 1.0 if s.availability is None else s.availability
    try:
        share = float(said)
    except ValueError:
        return str(said)
    if not 0 < share <= 1:
        raise ValueError(f"expected 0 < availability={share:g} <= 1, or the path of a CSV trace")
    return share


def spread_of(s: Settings) -> float:
    """S of the factors exp(S z) on computing times, 0 for ``constant``. Raises ValueError for another word."""
    kind, *rest = (s.speed or CONSTANT).split()
    try:
        if kind == CONSTANT and not rest:
            return 0.0
        if kind == LOGNORMAL and len(rest) == 1 and 0 < (spread := float(rest[0])) < math.inf:
            return spread
    except ValueError:
        pass
    raise ValueError(f"expected speed=constant, or speed='lognormal S' with a number S > 0, got {s.speed!r}")
