"""The figures of a comparison, by file name: charts, which a page draws, and heat maps of pairs.

Charts are accuracy against epsilon, against bytes with the Pareto front, or against one varied
setting, and learning curves.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple

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


class Look(NamedTuple):
    """How a line is drawn."""

    colour: str
    marker: str
    dashes: str


Looks = Mapping[str, Look]
"""By the name of a line."""


class Place(NamedTuple):
    """A line, and where it is across."""

    x: float
    line: Line


def figures(table: Sequence[Line], view: View = PLAIN) -> "dict[str, Charts | Figure]":
    """The figures of a comparison by file name, of varied settings first; none if no run is done.

    Curves for one varied setting, heat maps for two.
    """
    finished = in_legend_order(line for line in table if line.done)
    if not finished:
        return {}
    drawn: dict[str, Charts | Figure] = {}
    looks = looks_of(table)
    varied = varied_names(table) if any(line.varied for line in finished) else []
    if len(varied) == 1:
        drawn["accuracy-varied"] = accuracy_by_setting(finished, varied[0])
    elif varied and (heat := heat_maps(table, varied)):
        drawn["accuracy-heat"] = heat
    if view.bytes:
        drawn["accuracy-total-bytes"] = accuracy_by_total_bytes(finished)
    elif not varied:
        drawn["accuracy-epsilon"] = accuracy_by_epsilon(finished, looks)
        drawn["accuracy-bytes"] = accuracy_by_bytes(finished, looks)
    if view.bytes or not varied or len(table) <= CURVES:
        drawn["learning-curves"] = learning_curves(finished, looks)
    return drawn


def looks_of(table: Iterable[Line]) -> Looks:
    """The look of each line by its name; variants of a method share the colour only."""
    pairs = sorted({(line.method, line.name) for line in table})
    colours_and_markers = looks(pairs)
    of_lines = {}
    for variants in grouped(pairs, itemgetter(0)).values():
        for (_, name), dashes in zip(variants, cycle(DASHES), strict=False):
            of_lines[name] = Look(*colours_and_markers[name], dashes)
    return of_lines


def accuracy_by_epsilon(table: Sequence[Line], looks: Looks) -> Charts:
    """Mean accuracy ± standard deviation at each epsilon; of one epsilon only, a row a method."""
    aimed = [line for line in table if line.epsilon_target is not None]
    targets = targets_of(aimed)
    if len(targets) < 2:
        return _dots(table, looks)
    families = grouped(aimed, lambda line: line.name)
    middle = (len(families) - 1) / 2
    series = []
    for at, family in enumerate(families.values()):
        shift = 1 + 0.015 * (at - middle)  # so that error bars do not cover each other
        places = [shift * (line.epsilon_target or 0.0) for line in family]
        series.append(marks(places, family, looks[family[0].name], family[0].marked))
    for line in table:
        if line.epsilon_target is None:
            series.append(level(line.height, line.marked, looks[line.name].colour))
    protected = " or ".join(dict.fromkeys(line.unit.protects for line in table))
    ticks = spaced([(target, f"{target:g}") for target in targets], log=True)
    x = Axis(label=f"epsilon of {protected} (target, logarithmic)", log=True, ticks=ticks)
    return (_accuracy("Accuracy at each epsilon", x, [*series, *chance(table)], table),)


def targets_of(table: Iterable[Line]) -> list[float]:
    """The epsilon targets, ascending."""
    return sorted({line.epsilon_target for line in table if line.epsilon_target is not None})


def accuracy_by_setting(done: Sequence[Line], name: str) -> Charts:
    """Mean accuracy ± standard deviation against the values of one varied setting."""
    values = values_of(done, name)
    numbers = all(map(is_number, values))
    places = values if numbers else range(len(values))
    families = grouped(done, lambda line: line.family([name])).values()
    looks = looks_of(family[0] for family in families)
    series = []
    for family in families:
        first = family[0]
        look, legend = looks[first.name], first.family([name], marked=True)
        if name in first.varied:
            family.sort(key=lambda line: values.index(line.varied[name]))
            x = [places[values.index(line.varied[name])] for line in family]
            series.append(marks(x, family, look, legend))
        else:
            series.append(level(first.height, legend, look.colour))
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
    series = []
    for place, line in enumerate(ordered):
        look = looks[line.name]
        row = Series(
            x=(line.height,),
            y=(place,),
            left=(line.height - line.spread,),
            right=(line.height + line.spread,),
            colour=look.colour,
            marker=look.marker,
            line=False,
            filled=line.private is not False,
        )
        series.append(row)
    epsilon = "".join(f", epsilon {target:g}" for target in targets_of(table))
    names = tuple((float(place), line.marked) for place, line in enumerate(ordered))
    chart = Chart(
        title="Accuracy",
        x=_scores(table, f"{measured(table)}{epsilon}"),
        y=Axis(ticks=names, low=-0.6, high=len(ordered) - 0.4),
        series=(*series, *chance(table, upright=True)),
        height=90 + 34 * len(ordered),
    )
    return (chart,)


def accuracy_by_bytes(table: Sequence[Line], looks: Looks) -> Charts:
    """Mean accuracy ± standard deviation against all payload bytes of a run, logarithmic.

    Filled: the largest epsilon, or none. With the Pareto front of each epsilon.
    """
    bytes_sent = [line.mean_of("uplink_bytes") or 0.0 for line in table]
    places = list(map(Place, _move_apart(bytes_sent), table))
    sent = [place for place in places if place.x]
    last = (None, *targets_of(table)[-1:])
    series = []
    for place in sent:
        filled = place.line.epsilon_target in last
        series.append(_mark(place, looks, filled=filled, named=filled))
    x = Axis(label="bytes sent, all clients, whole run (logarithmic)", unit="bytes", log=True)
    return (_accuracy("Accuracy for bytes", x, [*fronts(sent), *series, *chance(table)], table),)


def accuracy_by_total_bytes(table: Sequence[Line]) -> Charts:
    """Mean accuracy ± standard deviation against payload bytes of a whole run, logarithmic.

    Filled marks are private, hollow ones are not. Each epsilon has two charts: bytes sent, and both
    ways.
    """
    charts, by_epsilon = [], panels(table)
    looks = looks_of(line for panel in by_epsilon for line in panel.lines)
    for panel in by_epsilon:
        for ways, names in WAYS.items():
            sent = [
                Place(sum(line.mean_of(name) or 0.0 for name in names), line)
                for line in panel.lines
            ]
            series = [_mark(place, looks, filled=bool(place.line.private)) for place in sent]
            x = Axis(label=f"bytes {ways}, all clients, whole run", unit="bytes", log=True)
            charts.append(_accuracy(panel.title, x, [*fronts(sent), *series], panel.lines, 340))
    return tuple(charts)


def _mark(place: Place, looks: Looks, *, filled: bool, named: bool = True) -> Series:
    """One line as a mark whose words name it."""
    line = place.line
    epsilon = "" if line.epsilon_target is None else f" at epsilon {line.epsilon_target:g}"
    name = line.marked if named else ""
    mark = marks([place.x], [line], looks[line.name]._replace(dashes="-"), name)
    return replace(mark, filled=filled, line=False, words=(f"{line.marked}{epsilon}",))


def fronts(sent: Iterable[Place]) -> list[Series]:
    """The lines that no other one beats in accuracy and in bytes, of each epsilon target.

    None of fewer than three lines.
    """
    series = []
    private = [place for place in sent if place.line.private]
    for target, rivals in grouped(private, attrgetter("line.epsilon_target")).items():
        best = pareto(rivals)
        if len(rivals) > 2 and len(best) > 1:
            x = [place.x for place in best]
            y = [place.line.height for place in best]
            words = ("" if target is None else f"epsilon {target:g}",) * len(best)
            series.append(Series(name=FRONT, x=x, y=y, colour=GREY, dashes="--", words=words))
    return series


def pareto(sent: Sequence[Place]) -> list[Place]:
    """The lines that no other line beats: cheaper ones all have a worse score."""
    best: list[Place] = []
    for place in sorted(sent, key=attrgetter("x", "line.deficit")):
        if not best or place.line.deficit < best[-1].line.deficit:
            best.append(place)
    return best


def _move_apart(places: Sequence[float]) -> list[float]:
    """Equal places of a logarithmic axis 2 % apart, so that marks do not cover each other."""
    moved = []
    for at, place in enumerate(places):
        middle = (places.count(place) - 1) / 2
        moved.append(place * 1.02 ** (places[:at].count(place) - middle))
    return moved


def learning_curves(table: Sequence[Line], looks: Looks) -> Charts:
    """Accuracy after each round: mean over seeds, band from the worst to the best seed.

    A chart for each epsilon. Where every run has a simulated clock, the rounds are at their mean
    simulated time.
    """
    timed = all(row.simulated for line in table for run in line.done for row in run.rows)
    charts = []
    groups = grouped(table, lambda line: line.epsilon_target)
    for target in sorted(groups, key=lambda target: target or math.inf):
        epsilon = "no epsilon target" if target is None else f"epsilon {target:g}"
        series = [_curve(line, looks[line.name], timed=timed) for line in groups[target]]
        chart = Chart(
            title=f"{measured(table)}; {epsilon}",
            x=Axis(label="simulated seconds" if timed else "round", whole=not timed),
            y=_scores(table),
            series=tuple(chain.from_iterable(series)),
            height=320,
        )
        charts.append(chart)
    return tuple(charts)


def _curve(line: Line, look: Look, *, timed: bool) -> list[Series]:
    """The rounds that all finished seeds have, as a line and a band."""
    score = attrgetter("loss" if line.by_loss else "accuracy")
    clock = attrgetter("simulated.simulated_clock" if timed else "round")
    tested = [row for run in line.done for row in run.rows if score(row) is not None]
    rounds = [
        rows
        for _, rows in sorted(grouped(tested, attrgetter("round")).items())
        if len(rows) == len(line.done)
    ]
    scores = [[line.scale * score(row) for row in rows] for rows in rounds]
    mean = Series(
        name=line.name,
        x=[statistics.fmean(map(clock, rows)) for rows in rounds],
        y=list(map(statistics.fmean, scores)),
        colour=look.colour,
        marker=look.marker if len(rounds) == 1 else "",
        dashes=look.dashes,
    )
    if len(line.done) == 1:
        return [mean]
    low, high = list(map(min, scores)), list(map(max, scores))
    return [mean, replace(mean, low=low, high=high, kind="band", marker="", dashes="-")]


def marks(places: Sequence[float], table: Sequence[Line], look: Look, name: str) -> Series:
    """Means ± standard deviations of lines at these places."""
    return Series(
        name=name,
        x=tuple(places),
        y=tuple(line.height for line in table),
        low=tuple(line.height - line.spread for line in table),
        high=tuple(line.height + line.spread for line in table),
        **look._asdict(),
    )


def chance(table: Sequence[Line], *, upright: bool = False) -> list[Series]:
    """A dotted line at guessing, if all runs share it and it is near enough to what is drawn."""
    levels = {line.chance.level for line in table if line.chance is not None}
    if len(levels) != 1:
        return []
    level = levels.pop()
    means = [line.mean for line in table if line.mean is not None]
    near = min(means) - level < NEAR + max(means) - min(means)
    return [guessing(100 * level, upright=upright)] if near else []
