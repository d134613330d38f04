"""The figures of a comparison, by file name: charts, which a page draws, and heat maps of pairs.

Charts are accuracy against epsilon, against bytes with the Pareto front, or against one varied
setting, and learning curves.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fedlsg.simulations.compare.bytes_axis import PLAIN, View, panels
from fedlsg.simulations.compare.cells import grouped, is_number
from fedlsg.simulations.compare.heat_maps import heat_maps, value_words_of, values_of, varied_names
from fedlsg.simulations.compare.lines import Line, in_legend_order, measured, order
from fedlsg.simulations.report.chart import Axis, Chart, Series, guessing, level, spaced
from fedlsg.simulations.report.colours import GREY, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEAR = 0.1
"""The line of guessing is drawn if it is at most this far, in accuracy, below all that is drawn."""
CURVES = 10
"""So many learning curves, at most, are drawn of settings that are varied."""
WIDE = 8.0
"""Numbers whose largest is so many times the smallest have a logarithmic scale."""
DASHES = ("-", "--", ":", "-.")
FRONT = "Pareto front"
WAYS = {"sent": ("uplink_bytes",), "sent and received": ("uplink_bytes", "downlink_bytes")}
"""Which bytes of summary.json an axis counts."""
Charts = tuple[Chart, ...]
Looks = Mapping[str, tuple[str, str, str]]
Place = tuple[float, Line]
"""A line, and where it is across."""


def figures(table: Sequence[Line], view: View = PLAIN) -> "dict[str, Charts | Figure]":
    """The figures of a comparison by file name, of varied settings first; none if no run is done.

    Curves for one varied setting, heat maps for two.
    """
    finished = in_legend_order(line for line in table if line.done)
    if not finished:
        return {}
    found: dict[str, Charts | Figure] = {}
    looks = looks_of(table)
    varied = varied_names(table) if any(line.varied for line in finished) else []
    if len(varied) == 1:
        found["accuracy-varied"] = accuracy_by_setting(finished, varied[0])
    elif varied and (heat := heat_maps(table, varied)):
        found["accuracy-heat"] = heat
    if view.bytes:
        found["accuracy-total-bytes"] = accuracy_by_total_bytes(finished)
    elif not varied:
        found["accuracy-epsilon"] = accuracy_by_epsilon(finished, looks)
        found["accuracy-bytes"] = accuracy_by_bytes(finished, looks)
    if view.bytes or not varied or len(table) <= CURVES:
        found["learning-curves"] = learning_curves(finished, looks)
    return found


def looks_of(table: Iterable[Line]) -> Looks:
    """(colour, marker, dashes) by the name of a line; variants of a method share the colour
    only.
    """
    names = sorted({(line.method, line.name) for line in table})
    found = looks(names)
    return {
        name: (*found[name], DASHES[at % len(DASHES)])
        for own in grouped(names, lambda one: one[0]).values()
        for at, (_, name) in enumerate(own)
    }


def accuracy_by_epsilon(table: Sequence[Line], looks: Looks) -> Charts:
    """Mean accuracy ± standard deviation at each epsilon; of one epsilon only, a row a method."""
    aimed = [line for line in table if line.epsilon_target is not None]
    targets = targets_of(aimed)
    if len(targets) < 2:
        return _dots(table, looks)
    families = grouped(aimed, lambda line: line.name)
    middle = (len(families) - 1) / 2
    series = []
    for at, own in enumerate(families.values()):
        shift = 1 + 0.015 * (at - middle)  # so that error bars do not cover each other
        places = [shift * (line.epsilon_target or 0.0) for line in own]
        series.append(marks(places, own, looks[own[0].name], own[0].marked))
    free = [line for line in table if line.epsilon_target is None]
    series += [level(line.height, line.marked, looks[line.name][0]) for line in free]
    of = " or ".join(dict.fromkeys(line.unit.protects for line in table))
    ticks = spaced([(target, f"{target:g}") for target in targets], log=True)
    x = Axis(label=f"epsilon of {of} (target, logarithmic)", log=True, ticks=ticks)
    return (_accuracy("Accuracy at each epsilon", x, [*series, *chance(table)], table),)


def targets_of(table: Iterable[Line]) -> list[float]:
    """The epsilon targets, ascending."""
    return sorted({line.epsilon_target for line in table if line.epsilon_target is not None})


def accuracy_by_setting(done: Sequence[Line], name: str) -> Charts:
    """Mean accuracy ± standard deviation against the values of one varied setting."""
    values = values_of(done, name)
    numbers = all(map(is_number, values))
    places = values if numbers else range(len(values))
    families = grouped(done, lambda line: line.family([name]))
    looks = looks_of(own[0] for own in families.values())
    series = []
    for own in families.values():
        first, called = own[0], own[0].family([name], marked=True)
        if name in first.varied:
            own = sorted(own, key=lambda line: values.index(line.varied[name]))
            x = [places[values.index(line.varied[name])] for line in own]
            series.append(marks(x, own, looks[first.name], called))
        else:
            series.append(level(first.height, called, looks[first.name][0]))
    log = bool(numbers and values[0] > 0 and values[-1] / values[0] >= WIDE)
    words = value_words_of(done, name, values)
    ticks = spaced(list(zip(map(float, places), words, strict=True)), log=log)
    across = Axis(label=name, log=log, ticks=ticks)
    return (_accuracy(f"Accuracy over {name}", across, [*series, *chance(done)], done),)


def _accuracy(
    title: str, x: Axis, series: Sequence[Series], table: Sequence[Line], height: int = 420
) -> Chart:
    y = _scores(table, measured(table))
    return Chart(title=title, x=x, y=y, series=tuple(series), height=height)


def _scores(table: Iterable[Line], label: str = "") -> Axis:
    """An axis of the scores of these lines."""
    return Axis(label=label, unit="" if any(line.by_loss for line in table) else "%")


def _dots(table: Sequence[Line], looks: Looks) -> Charts:
    ordered = sorted(table, key=order, reverse=True)
    series = [
        Series(
            x=(line.height,),
            y=(place,),
            left=(line.height - line.spread,),
            right=(line.height + line.spread,),
            colour=looks[line.name][0],
            marker=looks[line.name][1],
            line=False,
            filled=line.private is not False,
        )
        for place, line in enumerate(ordered)
    ]
    epsilon = "".join(f", epsilon {target:g}" for target in targets_of(table))
    names = tuple((float(place), line.marked) for place, line in enumerate(ordered))
    return (
        Chart(
            title="Accuracy",
            x=_scores(table, f"{measured(table)}{epsilon}"),
            y=Axis(ticks=names, low=-0.6, high=len(ordered) - 0.4),
            series=(*series, *chance(table, upright=True)),
            height=90 + 34 * len(ordered),
        ),
    )


def accuracy_by_bytes(table: Sequence[Line], looks: Looks) -> Charts:
    """Mean accuracy ± standard deviation against all payload bytes of a run, logarithmic.

    Filled: the largest epsilon, or none. With the Pareto front of each epsilon.
    """
    bytes_sent = [line.mean_of("uplink_bytes") or 0.0 for line in table]
    sent = [one for one in zip(_move_apart(bytes_sent), table, strict=True) if one[0]]
    last = (None, *targets_of(table)[-1:])
    series = [
        _mark(one, looks, filled=one[1].epsilon_target in last, named=one[1].epsilon_target in last)
        for one in sent
    ]
    x = Axis(label="bytes sent, all clients, whole run (logarithmic)", unit="bytes", log=True)
    return (_accuracy("Accuracy for bytes", x, [*fronts(sent), *series, *chance(table)], table),)


def accuracy_by_total_bytes(table: Sequence[Line]) -> Charts:
    """Mean accuracy ± standard deviation against payload bytes of a whole run, logarithmic.

    Filled marks are private, hollow ones are not. Each epsilon has two charts: bytes sent, and both
    ways.
    """
    charts, found = [], panels(table)
    looks = looks_of(line for panel in found for line in panel.lines)
    for panel in found:
        for ways, names in WAYS.items():
            places = [sum(line.mean_of(name) or 0.0 for name in names) for line in panel.lines]
            sent = list(zip(places, panel.lines, strict=True))
            series = [_mark(one, looks, filled=bool(one[1].private)) for one in sent]
            x = Axis(label=f"bytes {ways}, all clients, whole run", unit="bytes", log=True)
            charts.append(_accuracy(panel.title, x, [*fronts(sent), *series], panel.lines, 340))
    return tuple(charts)


def _mark(one: Place, looks: Looks, *, filled: bool, named: bool = True) -> Series:
    """One line as a mark whose words name it."""
    place, line = one
    at = "" if line.epsilon_target is None else f" at epsilon {line.epsilon_target:g}"
    name, look = line.marked if named else "", (*looks[line.name][:2], "-")
    words = (f"{line.marked}{at}",)
    return marks([place], [line], look, name, filled=filled, line=False, words=words)


def fronts(sent: Iterable[Place]) -> list[Series]:
    """The lines that no other one beats in accuracy and in bytes, of each epsilon target.

    None of fewer than three lines.
    """
    found = []
    private = [one for one in sent if one[1].private]
    for target, own in grouped(private, lambda one: one[1].epsilon_target).items():
        best = pareto(own)
        if len(own) > 2 and len(best) > 1:
            x, y = zip(*((place, line.height) for place, line in best), strict=True)
            words = ("" if target is None else f"epsilon {target:g}",) * len(best)
            found.append(Series(name=FRONT, x=x, y=y, colour=GREY, dashes="--", words=words))
    return found


def pareto(sent: Sequence[Place]) -> list[Place]:
    """The lines that no other line beats: cheaper ones all have a worse score."""
    best: list[Place] = []
    for place, line in sorted(sent, key=lambda one: (one[0], one[1].deficit)):
        if not best or line.deficit < best[-1][1].deficit:
            best.append((place, line))
    return best


def _move_apart(places: Sequence[float]) -> list[float]:
    """Equal places of a logarithmic axis 2 % apart, so that marks do not cover each other."""
    return [
        place * 1.02 ** (places[:at].count(place) - (places.count(place) - 1) / 2)
        for at, place in enumerate(places)
    ]


def learning_curves(table: Sequence[Line], looks: Looks) -> Charts:
    """Accuracy after each round: mean over seeds, band from the worst to the best seed.

    A chart for each epsilon. Where every run has a simulated clock, the rounds are at their mean
    simulated time.
    """
    timed = all(row.simulated for line in table for run in line.done for row in run.rows)
    charts = []
    groups = grouped(table, lambda line: line.epsilon_target)
    for target in sorted(groups, key=lambda target: target or math.inf):
        own = groups[target]
        at = "no epsilon target" if target is None else f"epsilon {target:g}"
        charts.append(
            Chart(
                title=f"{measured(table)}; {at}",
                x=Axis(label="simulated seconds" if timed else "round", whole=not timed),
                y=_scores(table),
                series=tuple(one for line in own for one in _curve(line, looks, timed=timed)),
                height=320,
            )
        )
    return tuple(charts)


def _curve(line: Line, looks: Looks, *, timed: bool) -> list[Series]:
    """The rounds that all finished seeds have, as a line and a band."""
    score = "loss" if line.by_loss else "accuracy"
    seeds = [
        {row.round: row for row in run.rows if getattr(row, score) is not None} for run in line.done
    ]
    rounds = sorted(set.intersection(*map(set, seeds)))
    rows = [[seed[round] for seed in seeds] for round in rounds]
    scores = [[line.scale * getattr(row, score) for row in own] for own in rows]
    at = attrgetter("simulated.simulated_clock" if timed else "round")
    clocks = [map(at, own) for own in rows]
    x, y = (list(map(statistics.fmean, numbers)) for numbers in (clocks, scores))
    colour, marker, dashes = looks[line.name]
    marker = marker if len(rounds) == 1 else ""
    found = [Series(name=line.name, x=x, y=y, colour=colour, marker=marker, dashes=dashes)]
    if len(line.done) > 1:
        low, high = list(map(min, scores)), list(map(max, scores))
        found.append(replace(found[0], low=low, high=high, kind="band", marker="", dashes="-"))
    return found


def marks(
    places: Sequence[float], own: Sequence[Line], look: Sequence[str], name: str, **more: Any
) -> Series:
    """Means ± standard deviations of lines at these places."""
    colour, marker, dashes = look
    return Series(
        name=name,
        x=tuple(places),
        y=tuple(line.height for line in own),
        low=tuple(line.height - line.spread for line in own),
        high=tuple(line.height + line.spread for line in own),
        colour=colour,
        marker=marker,
        dashes=dashes,
        **more,
    )


def chance(table: Sequence[Line], *, upright: bool = False) -> list[Series]:
    """A dotted line at guessing, if all runs share it and it is near enough to what is drawn."""
    known = {line.chance.level for line in table if line.chance is not None}
    means = [line.mean for line in table if line.mean is not None]
    if len(known) == 1 and min(means) - max(known) < NEAR + max(means) - min(means):
        return [guessing(100 * known.pop(), upright=upright)]
    return []
