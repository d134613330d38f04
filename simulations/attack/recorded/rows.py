"""One row for each attack and batch size, of images and texts: names, means, the strongest, the verdict."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.metrics import Interval, mean_interval
from fedlsg.attacks.observation import Observation
from simulations.attack.recorded.observations import Record

NAIVE = "-naive"
CLOSED = frozenset({"first-layer", "relu-batch", "span"})
"""Attacks that solve equations; the others search."""
CONVERGED = 0.01
"""A search that leaves a larger share of an update unexplained has found no batch that may have made it."""
FORMS = (
    "closed: solves equations. adaptive: searches, and sends its candidates through the client's own projection, mask "
    "and clip. naive: searches without them."
)


def split_name(attack: str) -> tuple[str, str]:
    """An attack's name, and its form: closed, adaptive or naive."""
    if attack.endswith(NAIVE):
        return attack.removesuffix(NAIVE), "naive"
    return attack, "closed" if attack in CLOSED else "adaptive"


def shown_name(attack: str) -> str:
    """An attack's name in a sentence."""
    name, form = split_name(attack)
    return f"naive {name}" if form == "naive" else name


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One attack over all updates of one run and batch size; ``images.score`` and ``texts.score`` add their figures.

    blind: mean of the blind guess. mean_gain: of the attack over it; gain: with its interval, None for fewer than two.
    unexplained: the largest share of an update that its guess leaves open; None for attacks that do not search.
    """

    attack: str
    batch: int
    blind: float
    mean_gain: float
    gain: Interval | None
    seconds: float
    unexplained: float | None = None


def common_figures(
    results: Sequence[Any], batch: int, *, score: float, blind: float, gains: Float[Tensor, " n"]
) -> dict[str, Any]:
    """What every ``Outcome`` has, of one attack's results."""
    unexplained = [one.unexplained for one in results if one.unexplained is not None]
    return {
        "attack": results[0].attack,
        "batch": batch,
        "blind": blind,
        "mean_gain": score - blind,
        "gain": mean_interval(gains) if len(gains) > 1 else None,
        "seconds": statistics.fmean(one.seconds for one in results),
        "unexplained": max(unexplained, default=None),
    }


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


def best_of(rows: Sequence[Outcome], record: Record, observation: Observation, unit: str, scale: float) -> Best | None:
    """The strongest attack of the smallest batches, in ``unit`` of ``scale``."""
    known = [row for row in rows if split_name(row.attack)[1] != "naive"]
    smallest = [row for row in known if row.batch == min(other.batch for other in known)]
    if not smallest:
        return None
    row, settings = max(smallest, key=lambda row: row.mean_gain), record.base.settings
    return Best(
        method=settings.method, sparsity=settings.parameters.get("sparsity"), sigma=sigma_of(observation),
        attack=row.attack, unit=unit, gain=scale * row.mean_gain,
        low=None if row.gain is None else scale * row.gain.low,
        high=None if row.gain is None else scale * row.gain.high,
    )  # fmt: skip


def not_converged(rows: Sequence[Outcome]) -> str:
    """The first words of a verdict where no search explains its updates; empty where one does, or none searched."""
    left = [row.unexplained for row in rows if row.unexplained is not None]
    if not left or min(left) <= CONVERGED:
        return ""
    return (
        f"undecided, no search converged (the best guess leaves {100 * min(left):.0f} % of an update unexplained): no "
        "evidence of privacy; give more --seconds, or other --attacks"
    )


def judge(
    rows: Sequence[Outcome],
    *,
    things: str,
    least: float,
    result: Callable[[Any], str],
    single: str,
    reach: Callable[[Interval], str],
    nothing: str,
) -> str:
    """Whether the strongest attack gets more than the blind guess, which needs no payload, in words.

    things: what leaks. least: a gain that is a leak. result: what an attack gets, ``single``: after it, for one update;
    reach: its interval. nothing: what is said where no attack gains more than ``least``.
    """
    if not rows:
        return "no attack applies to these updates, for the given reasons: that is no proof of privacy"
    best = max(rows, key=lambda row: (-math.inf if row.gain is None else row.gain.low, row.mean_gain))
    found = f"the strongest attack ({shown_name(best.attack)}, batch of {best.batch}) {result(best)}"
    stuck = not_converged(rows)
    if stuck and (best.gain is None or best.gain.low <= 0):
        return f"{stuck}: {found}"
    if best.gain is None:
        return f"{found}{single}: too few for a verdict"
    found += reach(best.gain)
    if best.gain.low > least:
        return f"these updates leak {things}: {found}"
    if best.gain.low > 0:
        return f"slightly better than a blind guess: {found}"
    if any(row.gain is None or row.gain.high > least for row in rows):
        return f"undecided, too few {things}: {found}"
    return f"{nothing}: {found}. Other attacks may do better"


def sigma_of(observation: Observation) -> float:
    """Noise over the sensitivity of what was seen, 0 without noise; over the clip norm where nothing is clipped."""
    if not observation.mechanism.clips:
        return observation.noise_std / observation.mechanism.clip_norm
    return observation.noise_std / observation.mechanism.sensitivity(len(observation.frame.blocks))
