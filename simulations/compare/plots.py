"""The charts of a comparison: accuracy against epsilon and against bytes, the Pareto front, and learning curves."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulations.compare.bytes_axis import PLAIN, Panel, View, marked, panels
from simulations.compare.lines import Line, measured, order
from simulations.report.chart import Axis, Chart, Series, guessing, level, spaced
from simulations.report.colours import GREY, canonical, looks

NEAR = 0.1
"""The line of guessing is drawn if it is at most this far below what the means already span, in accuracy."""
CURVES = 10
"""So many learning curves, at most, are drawn of settings that are varied."""
DASHES = ("-", "--", ":", "-.")
FRONT = "Pareto front"
Charts = tuple[Chart, ...]


def figures(table: Sequence[Line], view: View = PLAIN) -> dict[str, Charts]:
    """The figures of a comparison by file name; none if no run is done."""
    finished = in_legend_order(line for line in table if line.done)
    if not finished:
        return {}
    looks = looks_of(table)
    if any(line.varied for line in finished) and not view.bytes:  # vary_plots has figures that fit
        return {"learning-curves": learning_curves(finished, looks)} if len(table) <= CURVES else {}
    if view.bytes:
        by_bytes = {"accuracy-total-bytes": accuracy_by_total_bytes(panels(finished))}
        return by_bytes | {"learning-curves": learning_curves(finished, looks)}
    return {
        "accuracy-epsilon": accuracy_by_epsilon(finished, looks),
        "accuracy-bytes": accuracy_by_bytes(finished, looks),
        "learning-curves": learning_curves(finished, looks),
    }


def in_legend_order(table: Iterable[Line]) -> list[Line]:
    """Lines in the order of every legend: by method, then by name, the smallest epsilon first."""
    return sorted(table, key=lambda line: (canonical(line.method), line.name, order(line)))


def looks_of(table: Sequence[Line]) -> dict[str, tuple[str, str, str]]:
    """(colour, marker, dashes) by the name of a line; variants of a method share the colour only."""
    names = sorted({(line.method, line.name) for line in table})
    methods = [method for method, _ in names]
    variants = {name: position - methods.index(method) for position, (method, name) in enumerate(names)}
    return {name: (*look, DASHES[variants[name] % len(DASHES)]) for name, look in looks(names).items()}


Looks = Mapping[str, tuple[str, str, str]]


def accuracy_by_epsilon(table: Sequence[Line], looks: Looks) -> Charts:
    """Mean accuracy ± standard deviation at each epsilon; with one epsilon only, a row for each method."""
    targets = sorted({line.epsilon_target for line in table if line.epsilon_target is not None})
    return _curves_over_epsilon(table, looks, targets) if len(targets) > 1 else _dots(table, looks)


def _curves_over_epsilon(table: Sequence[Line], looks: Looks, targets: Sequence[float]) -> Charts:
    families: dict[str, list[tuple[float, Line]]] = {}
    for line in table:
        if line.epsilon_target is not None:
            families.setdefault(line.name, []).append((line.epsilon_target, line))
    series = []
    for position, (name, points) in enumerate(families.items()):
        shift = 1 + 0.015 * (position - (len(families) - 1) / 2)  # so that error bars do not cover each other
        series.append(marks([shift * target for target, _ in points], [line for _, line in points], looks[name]))
    series += levels((line for line in table if line.epsilon_target is None), looks)
    of = " or ".join(dict.fromkeys(line.of_unit.protects for line in table))
    ticks = spaced([(target, f"{target:g}") for target in targets], log=True)
    x = Axis(label=f"epsilon of {of} (target, logarithmic)", log=True, ticks=ticks)
    return (_accuracy("Accuracy at each epsilon", x, [*series, *chance(table)], table),)


def _accuracy(title: str, x: Axis, series: Sequence[Series], table: Sequence[Line], height: int = 420) -> Chart:
    y = Axis(label=measured(table), unit=unit_of(table))
    return Chart(title=title, x=x, y=y, series=tuple(series), height=height)


def unit_of(table: Iterable[Line]) -> Any:
    """Of the scores of these lines."""
    return "" if any(line.by_loss for line in table) else "%"


def _dots(table: Sequence[Line], looks: Looks) -> Charts:
    ordered = sorted(table, key=order, reverse=True)
    series = []
    for place, line in enumerate(ordered):
        (mean,), (sd,) = heights([line])
        colour, marker, _ = looks[line.name]
        series.append(
            Series(
                x=(mean,), y=(place,), left=(mean - sd,), right=(mean + sd,), colour=colour, marker=marker, line=False,
                filled=line.private is not False,
            )
        )  # fmt: skip
    epsilon = next((f", epsilon {line.epsilon_target:g}" for line in table if line.epsilon_target is not None), "")
    names = tuple((float(place), marked(line)) for place, line in enumerate(ordered))
    x = Axis(label=f"{measured(table)}{epsilon}", unit=unit_of(table))
    y = Axis(ticks=names, low=-0.6, high=len(ordered) - 0.4)
    levels = chance(table, upright=True)
    return (Chart(title="Accuracy", x=x, y=y, series=(*series, *levels), height=90 + 34 * len(ordered)),)


def accuracy_by_bytes(table: Sequence[Line], looks: Looks) -> Charts:
    """Mean accuracy ± standard deviation against all payload bytes of a run, logarithmic, and the Pareto front."""
    series = []
    targets = sorted({line.epsilon_target for line in table if line.epsilon_target is not None})
    places = _move_apart([line.total_uplink or 0.0 for line in table])
    for line, place in zip(table, places, strict=True):
        if place:
            last = line.epsilon_target is None or line.epsilon_target == targets[-1]
            series.append(_mark(line, place, looks[line.name][:2], filled=last, named=last))
    sent = [(place, line) for line, place in zip(table, places, strict=True) if place]
    x = Axis(label="bytes sent, all clients, whole run (logarithmic)", unit="bytes", log=True)
    return (_accuracy("Accuracy for bytes", x, [*fronts(sent), *series, *chance(table)], table),)


def _mark(line: Line, place: float, look: tuple[str, str], *, filled: bool, named: bool = True) -> Series:
    """One line as a mark whose words name it."""
    at = "" if line.epsilon_target is None else f" at epsilon {line.epsilon_target:g}"
    plain = marks([place], [line], (*look, "-"), filled=filled)
    return replace(plain, line=False, name=plain.name if named else "", words=(f"{marked(line)}{at}",))


def fronts(sent: Sequence[tuple[float, Line]]) -> list[Series]:
    """The lines that no other line beats in accuracy and in bytes, of each epsilon target; none of fewer than three."""
    found = []
    for target in dict.fromkeys(line.epsilon_target for _, line in sent if line.private):
        own = [(place, line) for place, line in sent if line.private and line.epsilon_target == target]
        best = pareto([(place, line.scale * (line.mean or 0.0)) for place, line in own], least=own[0][1].by_loss)
        if len(own) > 2 and len(best) > 1:
            x, y = zip(*best, strict=True)
            words = tuple("" if target is None else f"epsilon {target:g}" for _ in x)
            found.append(Series(name=FRONT, x=x, y=y, colour=GREY, dashes="--", words=words))
    return found


def pareto(points: Sequence[tuple[float, float]], *, least: bool = False) -> list[tuple[float, float]]:
    """(cost, score) of the points that no other point beats: cheaper ones all have a worse score."""
    best: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda one: (one[0], one[1] if least else -one[1])):
        if not best or (score < best[-1][1] if least else score > best[-1][1]):
            best.append((cost, score))
    return best


def _move_apart(places: Sequence[float]) -> list[float]:
    """Move equal places of a logarithmic axis 2 % apart, so that marks do not cover each other."""
    found = []
    for index, place in enumerate(places):
        before, count = places[:index].count(place), places.count(place)
        found.append(place * 1.02 ** (before - (count - 1) / 2))
    return found


def accuracy_by_total_bytes(panels: Sequence[Panel]) -> Charts:
    """Mean accuracy ± standard deviation over seeds against payload bytes of a whole run, logarithmic.

    Filled marks are private, hollow ones are not. Each epsilon has two charts: bytes sent, and both ways.
    """
    shapes = looks([(line.method, line.name) for panel in panels for line in panel.lines])
    charts = []
    for panel in panels:
        for ways in ("sent", "sent and received"):
            series, sent = [], []
            for line in panel.lines:
                place = (line.total_uplink or 0.0) + (line.total_downlink or 0.0 if ways != "sent" else 0.0)
                series.append(_mark(line, place, shapes[line.name], filled=bool(line.private)))
                sent.append((place, line))
            x = Axis(label=f"bytes {ways}, all clients, whole run", unit="bytes", log=True)
            charts.append(_accuracy(panel.title, x, [*fronts(sent), *series], panel.lines, 340))
    return tuple(charts)


def learning_curves(table: Sequence[Line], looks: Looks) -> Charts:
    """Accuracy after each round: mean over seeds, band from the worst to the best seed; a chart for each epsilon.

    Where every run has a simulated clock, the rounds are at their mean simulated time.
    """
    timed = all(row.simulated is not None for line in table for run in line.done for row in run.rows)
    targets = sorted({line.epsilon_target for line in table}, key=lambda target: target or math.inf)
    charts = []
    for target in targets:
        own = [one for line in table if line.epsilon_target == target for one in _curve(line, looks, timed=timed)]
        at = "no epsilon target" if target is None else f"epsilon {target:g}"
        x = Axis(label="simulated seconds" if timed else "round", whole=not timed)
        y = Axis(unit=unit_of(table))
        charts.append(Chart(title=f"{measured(table)}; {at}", x=x, y=y, series=tuple(own), height=320))
    return tuple(charts)


def _curve(line: Line, looks: Looks, *, timed: bool) -> list[Series]:
    colour, marker, dashes = looks[line.name]
    rounds, mean, low, high = curve(line)
    places = clock_times(line, rounds) if timed else rounds
    mark = marker if len(rounds) == 1 else ""
    found = [Series(name=line.name, x=places, y=mean, colour=colour, marker=mark, dashes=dashes)]
    if len(line.done) > 1:
        found.append(Series(name=line.name, x=places, y=mean, low=low, high=high, kind="band", colour=colour))
    return found


def curve(line: Line) -> tuple[list[int], list[float], list[float], list[float]]:
    """(rounds, mean, smallest, largest) of accuracy in percent, or loss, over the rounds of all finished seeds."""
    name = "loss" if line.by_loss else "accuracy"
    rows = [[(row.round, getattr(row, name)) for row in run.rows] for run in line.done]
    seeds = [{round: line.scale * value for round, value in own if value is not None} for own in rows]
    rounds = sorted(set.intersection(*(set(seed) for seed in seeds)))
    values = [[seed[round] for seed in seeds] for round in rounds]
    return rounds, [statistics.fmean(v) for v in values], [min(v) for v in values], [max(v) for v in values]


def clock_times(line: Line, rounds: Sequence[int]) -> list[float]:
    """Simulated seconds at the ends of rounds, mean over the finished seeds, which all have a clock."""
    clocks = [{row.round: row.simulated.simulated_clock for row in run.rows if row.simulated} for run in line.done]
    return [statistics.fmean(clock[round] for clock in clocks) for round in rounds]


def heights(own: Sequence[Line]) -> tuple[list[float], list[float]]:
    """Means and standard deviations as they are shown."""
    return [line.scale * (line.mean or 0.0) for line in own], [line.scale * (line.sd or 0.0) for line in own]


def marks(
    places: Sequence[float], own: Sequence[Line], look: tuple[str, str, str], *, filled: bool = True, name: str = ""
) -> Series:
    """Means ± standard deviations of lines at these places; ``name``: by default that of the first line."""
    colour, marker, dashes = look
    means, sds = heights(own)
    return Series(
        name=name or marked(own[0]), x=tuple(places), y=tuple(means), colour=colour, marker=marker, dashes=dashes,
        low=tuple(mean - sd for mean, sd in zip(means, sds, strict=True)), filled=filled,
        high=tuple(mean + sd for mean, sd in zip(means, sds, strict=True)),
    )  # fmt: skip


def levels(own: Iterable[Line], looks: Looks) -> list[Series]:
    """A dashed line across at the mean of each line."""
    return [level(line.scale * line.mean, marked(line), looks[line.name][0]) for line in own if line.mean is not None]


def chance(table: Sequence[Line], *, upright: bool = False) -> list[Series]:
    """A dotted line at guessing, if all runs share it and it is near enough not to flatten everything else."""
    known = {line.chance.level for line in table if line.chance is not None}
    means = [line.mean for line in table if line.mean is not None]
    if len(known) == 1 and min(means) - max(known) < NEAR + max(means) - min(means):
        return [guessing(100 * known.pop(), upright=upright)]
    return []
