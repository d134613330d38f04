"""What a search found, in sentences, and the command of the run that follows."""

import shlex
import statistics
from collections.abc import Mapping, Sequence
from math import inf, sqrt
from typing import Any

from simulations.compare.lines import Line
from simulations.tune.axes import REACH, Axis
from simulations.tune.search import Point, Side
from simulations.tune.trials import score

TUNED_ONLY = frozenset({"holdout", "workload", "method"})
"""Settings of the trials that the run's command leaves out, or says otherwise."""


def edge_notes(axes: Sequence[Axis], best: Point, sides: Mapping[str, Side]) -> list[str]:
    """One sentence for each best value that has no worse value on both sides."""
    found = []
    for axis, at in zip(axes, best, strict=True):
        side = sides.get(axis.name)
        if side is None:
            continue
        words = f"The best {axis.name}, {shown(axis.values[at])}, is at the edge: it is the {side} "
        beyond = "lower" if side == "lowest" else "higher"
        steps = axis.start if side == "lowest" else len(axis.values) - 1 - axis.start
        if axis.listed and axis.values[at] == axis.ends[side != "lowest"]:
            words += "that the setting takes."
        elif axis.listed:
            words += f"of the values given. A {beyond} one may be better: give one with --vary {axis.name}=..."
        elif steps < REACH:
            words += "that the setting takes on this grid."
        else:
            words += f"of the grid. A {beyond} one may be better: start from here with -c {axis.name}=..."
        found.append(words)
    return found


def difference(lines: Mapping[Point, Line], best: Point, names: Sequence[Axis]) -> str:
    """How far the next best point is behind, with the standard error of the difference paired by seed."""
    others = [point for point in lines if point != best and score(lines[point]) > -inf]
    if not others:
        return ""
    own, next_best = lines[best], max(others, key=lambda point: score(lines[point]))
    other = lines[next_best]
    gaps = [(a - b) * own.scale for a, b in zip(own.scores, other.scores, strict=False)]
    where = ", ".join(f"{axis.name}={shown(axis.values[at])}" for axis, at in zip(names, next_best, strict=True))
    unit = "in loss" if own.by_loss else "points"
    words = f"The next best point ({where}) is {abs(statistics.fmean(gaps)):.3g} {unit} behind"
    if len(gaps) < 2:
        each = own.standard_error
        unsure = "" if own.by_loss or each is None else f" (standard error of each accuracy {own.scale * each:.1f})"
        return f"{words}, with one seed{unsure}: --seeds 3 gives a standard error of the difference."
    error = statistics.stdev(gaps) / sqrt(len(gaps))
    return f"{words} (standard error of the difference {error:.2g}, paired over {len(gaps)} seeds)."


def command_of_run(given: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """``fedlsg run`` with the user's settings and the chosen ones."""
    settings = {name: value for name, value in given.items() if name not in TUNED_ONLY} | dict(chosen)
    pairs = [word for name, value in settings.items() for word in ("-c", f"{name}={shown(value)}")]
    return shlex.join(["fedlsg", "run", str(given["workload"]), "--method", str(given["method"]), *pairs])


def shown(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.10g}" if isinstance(value, float) else str(value)
