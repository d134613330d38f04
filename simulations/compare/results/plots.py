"""The figures of a comparison, by file name: charts, which a page draws, and heat maps of pairs.

Charts are accuracy against epsilon, against bytes with the Pareto front, or against one varied
setting, and learning curves.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, cycle
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from fedlsg.config.units import unit_named
from fedlsg.simulations.compare.grid.cells import grouped, is_number
from fedlsg.simulations.compare.results.bytes_axis import PLAIN, View, both_ways, panels
from fedlsg.simulations.compare.results.comparison_table import varied_names
from fedlsg.simulations.compare.results.heat_maps import heat_maps, value_words_of, values_of
from fedlsg.simulations.compare.results.line_words import (
    Line,
    family,
    measured,
    name_with_privacy,
    seeds_of,
)
from fedlsg.simulations.compare.results.lines import SAME, in_legend_order
from fedlsg.simulations.compare.results.pandas_library import pd
from fedlsg.simulations.report.drawing.chart import Axis, Chart, Series, guessing, level, spaced
from fedlsg.simulations.report.drawing.colours import GREY
from fedlsg.simulations.report.drawing.colours import looks as colours_and_markers_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEAR = 0.1
"""The line of guessing is drawn if it is at most this far, in accuracy, below all that is drawn."""
APART = 0.015
"""Marks of two methods at one epsilon are this share of it apart."""
MAX_CURVES = 10
"""Learning curves of varied settings are drawn for at most this many lines."""
LOG_SCALE_RATIO = 8.0
"""Numbers whose largest is so many times the smallest have a logarithmic scale."""
STEP_BETWEEN_EQUAL_BYTES = 1.02
"""Marks at the same bytes are moved apart by this factor, so that they do not cover each other."""
DASHES = ("-", "--", ":", "-.")
"""Line styles of the variants of one method, in turn."""
FRONT = "Pareto front"
AXIS_MARGIN = 0.08
"""A tight axis ends at least this share of what is drawn beyond it."""
TICK_STEPS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""A tight axis ends at multiples of one of them, in points of accuracy."""
MAX_TICK_STEPS = 6
"""Steps of a tight axis, at most."""
WAYS: Mapping[str, Callable[[Line], float]] = {
    "sent": attrgetter("uplink_bytes_total"),
    "sent and received": both_ways,
}
"""Which bytes an axis counts."""
Charts = tuple[Chart, ...]


class Look(NamedTuple):
    """How a line is drawn."""

    colour: str
    marker: str
    dashes: str


Looks = Mapping[str, Look]
"""By the name of a line, or of a family of lines."""


def figures(table: pd.DataFrame, view: View = PLAIN) -> "dict[str, Charts | Figure]":
    """The figures of a comparison by file name, of varied settings first; none if no run is done.

    Curves for one varied setting, heat maps for two.
    """
    finished = in_legend_order(table[table.n > 0])
    if finished.empty:
        return {}
    done, looks = list(finished.itertuples()), looks_of(table.itertuples())
    varied = varied_names(table) if any(finished.varied) else []
    drawn: dict[str, Charts | Figure | None] = {}
    if len(varied) == 1:
        drawn["accuracy-varied"] = accuracy_by_setting(done, varied[0])
    elif varied:
        drawn["accuracy-heat"] = heat_maps(in_legend_order(table).itertuples(), varied)
    if view.bytes:
        drawn["accuracy-total-bytes"] = accuracy_by_total_bytes(finished)
    elif not varied:
        if len(done) > 1:
            drawn["accuracy-epsilon"] = accuracy_by_epsilon(done, looks)
        if _bytes_differ(done):
            drawn["accuracy-bytes"] = accuracy_by_bytes(finished, looks)
    if view.bytes or not varied or len(table) <= MAX_CURVES:
        drawn["learning-curves"] = learning_curves(done, looks)
    return {name: figure for name, figure in drawn.items() if figure}


def _bytes_differ(done: Sequence[Line]) -> bool:
    """Whether an axis of bytes shows more than one place."""
    sent = [line.uplink_bytes_total for line in done if line.uplink_bytes_total]
    return bool(sent) and max(sent) > min(sent) * (1 + SAME)


def looks_of(table: Iterable[Line], name_of: Callable[[Line], str] = attrgetter("name")) -> Looks:
    """The look of each name; variants of a method share the colour only."""
    pairs = sorted({(line.method, name_of(line)) for line in table})
    colours_and_markers = colours_and_markers_of(pairs)
    look_by_name = {}
    for variants in grouped(pairs, itemgetter(0)).values():
        for (_, name), dashes in zip(variants, cycle(DASHES), strict=False):
            look_by_name[name] = Look(*colours_and_markers[name], dashes)
    return look_by_name


def accuracy_by_epsilon(table: Sequence[Line], looks: Looks) -> Charts:
    """Mean accuracy ± standard deviation at each epsilon; of one epsilon only, a row a method."""
    targets = targets_of(table)
    if len(targets) < 2:
        return _dots(table, looks)
    protected = " or ".join(dict.fromkeys(unit_named(line.unit).protects for line in table))
    ticks = spaced([(target, f"{target:g}") for target in targets], log=True)
    x = Axis(label=f"epsilon of {protected} (target, logarithmic)", log=True, ticks=ticks)
    series = _over(table, attrgetter("name"), attrgetter("epsilon_target"), looks, apart=APART)
    return (_accuracy("Accuracy at each epsilon", x, series, table),)


def targets_of(table: Iterable[Line]) -> list[float]:
    """The epsilon targets, ascending."""
    return sorted({line.epsilon_target for line in table if line.epsilon_target is not None})


def accuracy_by_setting(done: Sequence[Line], name: str) -> Charts:
    """Mean accuracy ± standard deviation against the values of one varied setting."""
    values = values_of(done, name)
    x, places = values_axis(name, values, value_words_of(done, name, values))
    name_of = partial(family, axes=[name])
    looks = looks_of(done, name_of)
    series = _over(done, name_of, lambda line: places.get(line.varied.get(name)), looks)
    return (_accuracy(f"Accuracy over {name}", x, series, done),)


def values_axis(
    name: str, values: Sequence[Any], words: Iterable[str]
) -> tuple[Axis, dict[Any, float]]:
    """An axis of the values of a setting, and the place of each value on it.

    Numbers, which are ascending, are at themselves; other values are at 0, 1, 2 and so on.
    """
    numbers = all(map(is_number, values))
    places = list(map(float, values if numbers else range(len(values))))
    log = numbers and places[0] > 0 and places[-1] / places[0] >= LOG_SCALE_RATIO
    ticks = spaced(list(zip(places, words, strict=True)), log=log)
    return Axis(label=name, log=log, ticks=ticks), dict(zip(values, places, strict=True))


def _over(
    table: Sequence[Line],
    name_of: Callable[[Line], str],
    place_of: Callable[[Line], float | None],
    looks: Looks,
    apart: float = 0.0,
) -> list[Series]:
    """Marks for the lines of each name, levels for lines without a place, and guessing.

    looks: by the names that ``name_of`` gives.
    apart: names are moved by this share of a place, so that error bars do not cover each other.
    """
    levels = []
    families: dict[str, list[tuple[float, Line]]] = {}
    for line in table:
        name, place = name_of(line), place_of(line)
        if place is None:
            levels.append(level(line.height, name_with_privacy(line, name), looks[name].colour))
        else:
            families.setdefault(name, []).append((place, line))
    series = []
    for number, (name, pairs) in enumerate(families.items()):
        pairs.sort(key=itemgetter(0))
        shift = 1 + apart * (number - (len(families) - 1) / 2)  # symmetric around 1
        own = [line for _, line in pairs]
        places = [shift * place for place, _ in pairs]
        series.append(marks(places, own, looks[name], name_with_privacy(own[0], name)))
    return [*series, *levels, *chance(table)]


def _accuracy(title: str, x: Axis, series: Sequence[Series], table: Sequence[Line]) -> Chart:
    """A chart of the scores of these lines, as ``series``, over the axis ``x``."""
    series = tuple(series)
    y = _tight_axis(table, measured(table), series)
    return Chart(title=title, x=x, y=y, series=series, height=340, spread=_bars(table))


def _bars(table: Iterable[Line]) -> str:
    """What error bars are, in words; empty where there are none."""
    seeds = seeds_of(table)
    return f"bars: ± s.d. over {seeds}" if seeds else ""


def _full_axis(table: Sequence[Line], label: str) -> Axis:
    """An axis of the scores of these lines, which the drawing ends at a round number."""
    if any(line.by_loss for line in table):
        return Axis(label=label)
    largest = max((line.height for line in table if line.mean is not None), default=0.0)
    # above 80 % the next round number of the drawing may be 120 %
    return Axis(label=label, unit="%", high=100.0 if largest > 80 else None)


def _tight_axis(table: Sequence[Line], label: str, series: Sequence[Series]) -> Axis:
    """An axis that ends a little beyond these lines, their bars, and the levels among ``series``.

    It ends at round numbers, and not beyond 100 %. Losses have a full axis.
    """
    ends = [line.height + side for line in table if line.n for side in (-line.spread, line.spread)]
    if not series or not ends or any(line.by_loss for line in table):
        return _full_axis(table, label)
    ends += [each.place for each in series if each.place is not None]
    margin = max(AXIS_MARGIN * (max(ends) - min(ends)), TICK_STEPS[0] / 2)
    low, high = min(ends) - margin, max(ends) + margin
    step = _tick_step(low, high)
    low, high = step * math.floor(low / step), step * math.ceil(high / step)
    return Axis(label=label, unit="%", low=max(low, 0.0), high=min(high, 100.0))


def _tick_step(low: float, high: float) -> float:
    """The smallest step for which ``MAX_TICK_STEPS`` steps are enough; else the largest step."""
    for step in TICK_STEPS:
        if math.ceil(high / step) - math.floor(low / step) <= MAX_TICK_STEPS:
            return step
    return TICK_STEPS[-1]


def _dots(table: Sequence[Line], looks: Looks) -> Charts:
    """Mean accuracy ± standard deviation, a row for each line, the best one at the top."""
    ordered = sorted(table, key=attrgetter("deficit", "name"), reverse=True)
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
    rows = (*series, *chance(table, upright=True))
    names = tuple((float(place), name_with_privacy(line)) for place, line in enumerate(ordered))
    chart = Chart(
        title="Accuracy",
        x=_tight_axis(table, f"{measured(table)}{epsilon}", rows),
        y=Axis(ticks=names, low=-0.6, high=len(ordered) - 0.4),
        series=rows,
        height=max(250, 90 + 34 * len(ordered)),
        spread=_bars(ordered),
    )
    return (chart,)


def accuracy_by_bytes(table: pd.DataFrame, looks: Looks) -> Charts:
    """Mean accuracy ± standard deviation against all payload bytes of a run, logarithmic.

    Marks of the largest epsilon target, and of no target, are filled; others are hollow. Each
    epsilon has its Pareto front.
    """
    sent = table[table.uplink_bytes_total.fillna(0.0).gt(0.0)]
    equal = sent.groupby("uplink_bytes_total").uplink_bytes_total
    steps = equal.cumcount() - (equal.transform("size") - 1) / 2  # symmetric around 0
    sent = sent.assign(x=sent.uplink_bytes_total * STEP_BETWEEN_EQUAL_BYTES**steps)
    lines = list(table.itertuples())
    filled = (None, *targets_of(lines)[-1:])
    series = []
    for line in sent.itertuples():
        is_filled = line.epsilon_target in filled
        series.append(_mark(line, looks, filled=is_filled, named=is_filled))
    x = Axis(label="bytes sent, all clients, whole run (logarithmic)", unit="bytes", log=True)
    return (_accuracy("Accuracy for bytes", x, [*fronts(sent), *series, *chance(lines)], lines),)


def accuracy_by_total_bytes(table: pd.DataFrame) -> Charts:
    """Mean accuracy ± standard deviation against payload bytes of a whole run, logarithmic.

    Filled marks are private, hollow ones are not. Each epsilon has two charts: bytes sent, and both
    ways.
    """
    charts, by_epsilon = [], panels(table)
    looks = looks_of(line for panel in by_epsilon for line in panel.lines)
    for panel in by_epsilon:
        for ways, bytes_of in WAYS.items():
            sent = pd.DataFrame(panel.lines, dtype=object)
            sent["x"] = list(map(bytes_of, panel.lines))
            series = [_mark(line, looks, filled=line.private) for line in sent.itertuples()]
            x = Axis(label=f"bytes {ways}, all clients, whole run", unit="bytes", log=True)
            title = f"{panel.title}, bytes {ways}"
            charts.append(_accuracy(title, x, [*fronts(sent), *series], panel.lines))
    return tuple(charts)


def _mark(line: Line, looks: Looks, *, filled: bool, named: bool = True) -> Series:
    """One line as a mark whose words name it; ``named``: the legend names it, too."""
    epsilon = "" if line.epsilon_target is None else f" at epsilon {line.epsilon_target:g}"
    name = name_with_privacy(line) if named else ""
    mark = marks([line.x], [line], looks[line.name]._replace(dashes="-"), name)
    return replace(mark, filled=filled, line=False, words=(f"{name_with_privacy(line)}{epsilon}",))


def fronts(sent: pd.DataFrame) -> list[Series]:
    """The lines that no other one beats in accuracy and in bytes, of each epsilon target.

    None of fewer than three lines.
    """
    series = []
    private = sent[sent.private.astype(bool)]
    for target, rivals in private.groupby("epsilon_target", dropna=False, sort=False):
        best = pareto(rivals)
        if len(rivals) > 2 and len(best) > 1:
            words = "" if pd.isna(target) else f"epsilon {target:g}"
            front = Series(
                name=FRONT,
                x=best.x.tolist(),
                y=best.height.tolist(),
                colour=GREY,
                dashes="--",
                words=(words,) * len(best),
            )
            series.append(front)
    return series


def pareto(sent: pd.DataFrame) -> pd.DataFrame:
    """The lines that no other line beats: cheaper ones all have a worse score."""
    ascending = sent.sort_values(["x", "deficit"], kind="stable")
    deficit = ascending.deficit.astype(float)
    return ascending[deficit < deficit.cummin().shift(fill_value=math.inf)]


def learning_curves(table: Sequence[Line], looks: Looks) -> Charts:
    """Accuracy after each round: mean over seeds, band from the worst to the best seed.

    A chart for each epsilon, in which lines without privacy are dashed, for reference. Where every
    run has a simulated clock, the rounds are at their mean simulated time.
    """
    runs = [run for line in table for run in line.runs if run.done]
    timed = all(row.simulated for run in runs for row in run.rows)
    private = [line for line in table if line.private]
    free = [line for line in table if private and not line.private]
    # a dashed line for reference, without its band
    references = [
        _curve(line, looks[line.name]._replace(dashes="--"), timed=timed)[0] for line in free
    ]
    groups = grouped(private or table, attrgetter("epsilon_target"))
    charts = []
    for target in sorted(groups, key=lambda target: target or math.inf):
        epsilon = "no epsilon target" if target is None else f"epsilon {target:g}"
        curves = [_curve(line, looks[line.name], timed=timed) for line in groups[target]]
        seeds = seeds_of([*groups[target], *free])
        chart = Chart(
            title=f"Learning curves, {epsilon}",
            x=Axis(label="simulated time, s" if timed else "round", whole=not timed),
            y=_full_axis(table, measured(table)),
            series=(*chain.from_iterable(curves), *references),
            height=320,
            spread=f"band: worst to best of {seeds}" if seeds else "",
        )
        charts.append(chart)
    return tuple(charts)


def _curve(line: Line, look: Look, *, timed: bool) -> list[Series]:
    """The rounds that all finished seeds have: a line of means, and a band if there are several."""
    clock = "simulated.simulated_clock" if timed else "round"
    numbers_of = attrgetter("round", clock, "loss" if line.by_loss else "accuracy")
    rows = [numbers_of(row) for run in line.runs if run.done for row in run.rows]
    tested = pd.DataFrame(rows, columns=["round", "x", "y"]).dropna().groupby("round")
    complete = tested.size() == line.n
    middle, low, high = (tested.agg(statistic)[complete] for statistic in ("mean", "min", "max"))
    scale = 1 if line.by_loss else 100
    mean = Series(
        name=name_with_privacy(line),
        x=middle.x.tolist(),
        y=(scale * middle.y).tolist(),
        colour=look.colour,
        marker=look.marker if complete.sum() == 1 else "",
        dashes=look.dashes,
    )
    if line.n == 1:
        return [mean]
    ends = {"low": (scale * low.y).tolist(), "high": (scale * high.y).tolist()}
    return [mean, replace(mean, **ends, kind="band", marker="", dashes="-")]


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
    """A dotted line at the accuracy of guessing.

    There is none if the lines differ in it, or if it is more than NEAR below what is drawn.
    """
    levels = {line.chance for line in table} - {None}
    if len(levels) != 1:
        return []
    chance_level = levels.pop()
    means = [line.mean for line in table if line.mean is not None]
    near = min(means) - chance_level < NEAR + max(means) - min(means)
    return [guessing(100 * chance_level, upright=upright)] if near else []
