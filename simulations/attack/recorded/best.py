"""The strongest attack of a run, as one point of a curve over runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedlsg.attacks.observation import Observation
from simulations.attack.recorded.names import split_name
from simulations.attack.recorded.observations import Record

CONVERGED = 0.01
"""A search that leaves a larger share of an update unexplained has found no batch that may have made it."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """What the strongest attack gains over the blind guess in a run, in ``unit``, and the run's settings.

    sparsity: None for a method without one. sigma: noise over sensitivity of what was seen, 0 without noise. low and
    high: ends of the 95 % interval over what was attacked; None for one of it.
    """

    method: str
    sparsity: float | None
    sigma: float
    attack: str
    unit: str
    gain: float
    low: float | None
    high: float | None


def best_of(rows: Sequence[Any], record: Record, seen: Observation, unit: str, scale: float) -> Best | None:
    """The strongest attack of the smallest batches, in ``unit`` of ``scale``."""
    known = [row for row in rows if split_name(row.attack)[1] != "naive"]
    smallest = [row for row in known if row.batch == min(other.batch for other in known)]
    if not smallest:
        return None
    row, settings = max(smallest, key=lambda row: row.mean_gain), record.base.settings
    return Best(
        method=settings.method, sparsity=settings.parameters.get("sparsity"), sigma=sigma_of(seen), attack=row.attack,
        unit=unit, gain=scale * row.mean_gain, low=None if row.gain is None else scale * row.gain.low,
        high=None if row.gain is None else scale * row.gain.high,
    )  # fmt: skip


def not_converged(rows: Sequence[Any]) -> str:
    """The first words of a verdict where no search explains its updates; empty where one does, or none searched."""
    left = [row.unexplained for row in rows if row.unexplained is not None]
    if not left or min(left) <= CONVERGED:
        return ""
    return (
        f"undecided, no search converged (the best guess leaves {100 * min(left):.0f} % of an update unexplained): no "
        "evidence of privacy; give more --seconds, or other --attacks"
    )


def sigma_of(seen: Observation) -> float:
    """Noise over the sensitivity of what was seen, 0 without noise; over the clip norm where nothing is clipped."""
    if not seen.mechanism.clips:
        return seen.noise_std / seen.mechanism.clip_norm
    return seen.noise_std / seen.mechanism.sensitivity(len(seen.frame.blocks))
