"""The search: along one axis at a time to a value whose neighbours are no better, until no axis moves.

It knows positions and scores only. Equal scores give equal steps, so a search that is repeated on kept scores looks at
the same points in the same order: that is how an interrupted one continues.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from simulations.tune.axes import Axis

Point = tuple[int, ...]
"""A position on each axis."""

Measure = Callable[[Sequence[Point]], Mapping[Point, float]]
"""Scores of points; higher is better, minus infinity for one that failed."""

Side = Literal["lowest", "highest"]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best point, and all scores in the order in which they were measured."""

    best: Point
    scores: Mapping[Point, float]


def search(axes: Sequence[Axis], measure: Measure) -> Found:
    """The best point of a climb from the start; ``measure`` is asked once for each point.

    Guarantee: all of ``around`` the best point was measured on every axis, and none of it has a higher score. So a best
    value of a grid has both neighbours, unless it is at an end of the grid (``edges``). On equal scores the point that
    was measured first is the best one.
    """
    scores: dict[Point, float] = {}

    def look(points: Sequence[Point]) -> Point:
        new = [point for point in points if point not in scores]
        if new:
            scores.update(measure(new))
        return max((point for point in scores if point in points), key=lambda point: scores[point])

    best = look([start_of(axes)])
    while True:
        before = best
        for place in range(len(axes)):
            best = _along(axes, place, best, look)
        if best == before:
            return Found(best=best, scores=scores)


def start_of(axes: Sequence[Axis]) -> Point:
    """The point that is measured first."""
    return tuple(axis.start for axis in axes)


def fewest_points(axes: Sequence[Axis]) -> int:
    """How many points a search measures if its start is the best: the start, and what brackets it on each axis."""
    start = start_of(axes)
    return len({start, *(point for place in range(len(axes)) for point in around(axes, place, start))})


def edges(axes: Sequence[Axis], best: Point) -> dict[str, Side]:
    """The settings whose best value is the lowest or the highest that could be tried: nothing brackets it there."""
    found: dict[str, Side] = {}
    for axis, at in zip(axes, best, strict=True):
        if axis.ordered and len(axis.values) > 1 and at in (0, len(axis.values) - 1):
            found[axis.name] = "lowest" if at == 0 else "highest"
    return found


def around(axes: Sequence[Axis], place: int, best: Point) -> list[Point]:
    """The points that an axis compares with ``best``, which is one: all listed values, or the neighbours on a grid.

    A clip norm C is tried with the learning rate moved the other way, too. Where every gradient is clipped, a step is
    as long as learning rate x C, so C alone would be another learning rate.
    """
    axis, at = axes[place], best[place]
    if axis.listed:
        return [_moved(best, {place: k}) for k in range(len(axis.values))]
    found = [_moved(best, {place: k}) for k in (at - 1, at, at + 1)]
    rate = next((k for k, other in enumerate(axes) if other.name == "learning_rate" and not other.listed), None)
    if axis.name == "clip_norm" and rate is not None:
        found += [_moved(best, {place: at + step, rate: best[rate] - step}) for step in (-1, 1)]
    return [p for p in found if all(0 <= k < len(one.values) for k, one in zip(p, axes, strict=True))]


def _along(axes: Sequence[Axis], place: int, best: Point, look: Callable[[Sequence[Point]], Point]) -> Point:
    """The best point of a climb by the steps of one axis."""
    while True:
        top = look(around(axes, place, best))
        if top == best or axes[place].listed:
            return top
        best = top


def _moved(point: Point, to: Mapping[int, int]) -> Point:
    return tuple(to.get(place, at) for place, at in enumerate(point))
