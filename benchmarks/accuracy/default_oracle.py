"""Settings tuned for one cell, as a user with free runs would: not private, and not to be had with
real data.

Stage 1 climbs over the learning rate of three optimizers, by factors of 3, until the best rate has
a worse one on both sides. Stage 2 changes one setting of the best at a time. The best three run
again on a second tuning seed, and the best mean wins. No tuning seed is a seed of the results. All
settings cost the same passes over the data.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.accuracy.default_runs import Cell, Scores, Values

EPOCHS = 20
FIRST, SECOND = 101, 102
"""Tuning seeds."""
FINALISTS = 3
FARTHEST = 6
BASE: Values = {"rounds": EPOCHS, "sample_rate": 1.0, "clip_norm": 1.0, "ema": 0.75}
PLAIN: Values = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 3.0}
ADAM: Values = {"optimizer": "adam", "optimizer_options": "betas=0.9 0.999", "learning_rate": 0.03}
Score = Callable[[Values], float]


def tune(scores: Scores, cell: Cell, extra: Values) -> Values:
    """The best settings of a cell. ``extra``: settings that all runs have, such as the method."""
    score = partial(_score, scores, cell, extra)
    tried = _climb(score, {**BASE, **PLAIN})
    fast = max(tried, key=lambda pair: pair[0])[1]
    tried += _climb(score, _rate({**fast, "momentum": 0.9}, 0.1))
    tried += _climb(score, {**BASE, **ADAM})
    best = max(tried, key=lambda pair: pair[0])[1]
    tried += [(score(changed), changed) for changed in _neighbours(best)]
    finalists = sorted(tried, key=lambda pair: -pair[0])[:FINALISTS]
    return max(finalists, key=lambda pair: pair[0] + scores(cell, SECOND, {**pair[1], **extra}))[1]


def _score(scores: Scores, cell: Cell, extra: Values, settings: Values) -> float:
    return scores(cell, FIRST, {**settings, **extra})


def _climb(score: Score, start: Values) -> list[tuple[float, Values]]:
    """All rates that were tried; the best has neighbours on both sides, unless it is ``FARTHEST``
    steps away.
    """
    found: dict[int, tuple[float, Values]] = {}
    place = 0
    while abs(place) <= FARTHEST:
        for step in (0, 1, -1):
            if place + step not in found:
                at = _rate(start, 3.0 ** (place + step))
                found[place + step] = score(at), at
        best = max(found, key=lambda step: found[step][0])
        if best == place:
            break
        place = best
    return list(found.values())


def _neighbours(best: Values) -> Iterator[dict[str, Any]]:
    """One change each; rates keep the length of steps, or the random walk of the noise."""
    sgd = best["optimizer"] == "sgd"
    yield {**best, "ema": 0.0}
    yield {**best, "ema": 0.0, "schedule": "cosine"}
    yield _rate({**best, "clip_norm": 0.3}, 1 / 0.3 if sgd else 1.0)
    yield _rate({**best, "clip_norm": 3.0}, 0.3 if sgd else 1.0)
    yield _rate({**best, "rounds": 2 * EPOCHS, "sample_rate": 0.5}, 0.5**0.5)


def _rate(settings: Values, factor: float) -> dict[str, Any]:
    return {**settings, "learning_rate": float(f"{settings['learning_rate'] * factor:.4g}")}
