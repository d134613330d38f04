"""The charts of a search: the best accuracy so far after each trial, and the accuracy against each setting."""

from collections.abc import Sequence

from simulations.compare.lines import is_number, measured
from simulations.compare.search.space import Choices, Dimension
from simulations.compare.search.space import shown as value_shown
from simulations.compare.search.trials import Arm, Trial, best_of, score_of
from simulations.report.chart import Axis, Chart, Series, spaced
from simulations.report.colours import looks

Charts = tuple[Chart, ...]


def figures(arms: Sequence[Arm], trials: Sequence[Trial]) -> dict[str, Charts]:
    """By file name; none before a trial is done."""
    done = [trial for trial in trials if trial.line.mean is not None]
    return {"history": history(arms, done), "settings": by_setting(arms, done)} if done else {}


def history(arms: Sequence[Arm], done: Sequence[Trial]) -> Charts:
    """A mark for each trial, and a line through the best one so far."""
    shapes, series = _shapes(arms), []
    for arm in arms:
        own = [trial for trial in done if trial.arm.label == arm.label]
        if not own:
            continue
        colour, marker = shapes[arm.label]
        numbers = [trial.number + 1 for trial in own]
        best = [_height(max(own[: k + 1], key=score_of)) for k in range(len(own))]
        series.append(Series(name=arm.label, x=numbers, y=best, colour=colour, steps=True))
        series.append(_marks(arm.label, numbers, own, (colour, marker), filled=False))
    x = Axis(label="trial", whole=True)
    return (Chart(title="The best so far", x=x, y=Axis(label=_measured(done)), series=tuple(series), height=360),)


def by_setting(arms: Sequence[Arm], done: Sequence[Trial]) -> Charts:
    """A chart for each setting; filled: the best trial of a method."""
    dimensions = {one.name: one for arm in arms for one in arm.space}
    return tuple(_over(dimension, arms, done) for dimension in dimensions.values())


def _over(dimension: Dimension, arms: Sequence[Arm], done: Sequence[Trial]) -> Chart:
    name, shapes, series = dimension.name, _shapes(arms), []
    words = [value for value in dimension.values if not is_number(value)] if isinstance(dimension, Choices) else []
    for arm in arms:
        own = [t for t in done if t.arm.label == arm.label and name in t.params]
        best = best_of(own)
        for some, filled in ((own, False), ([] if best is None else [best], True)):
            places = [_place(trial.params[name], dimension, words) for trial in some]
            series.append(_marks(arm.label, places, some, shapes[arm.label], filled=filled))
    return Chart(
        title=name, x=_scale(dimension, words), y=Axis(label=_measured(done)), series=tuple(series), height=320
    )


def _marks(name: str, places: Sequence[float], own: Sequence[Trial], look: tuple[str, str], *, filled: bool) -> Series:
    """Trials as marks; their words are their settings."""
    words = tuple(
        f"trial {t.number + 1}: " + ", ".join(f"{key} {value_shown(value)}" for key, value in t.params.items())
        for t in own
    )
    return Series(
        name=name, x=places, y=[_height(trial) for trial in own], colour=look[0], marker=look[1], filled=filled,
        line=False, words=words,
    )  # fmt: skip


def _scale(dimension: Dimension, words: Sequence[object]) -> Axis:
    if not isinstance(dimension, Choices):
        if not dimension.log:
            return Axis(label=dimension.name, whole=dimension.whole)
        return Axis(label=dimension.name, log=True, low=dimension.low / 1.1, high=dimension.high * 1.1)
    if words:
        ticks = [(float(at), str(value)) for at, value in enumerate(dimension.values)]
        return Axis(label=dimension.name, ticks=tuple(ticks))
    log = all(value > 0 for value in dimension.values)
    ticks = [(float(value), f"{value:g}") for value in sorted(dimension.values)]
    return Axis(label=dimension.name, log=log, ticks=spaced(ticks, log=log))


def _place(value: object, dimension: Dimension, words: Sequence[object]) -> float:
    return float(dimension.values.index(value)) if words and isinstance(dimension, Choices) else float(value)  # type: ignore[arg-type]


def _shapes(arms: Sequence[Arm]) -> dict[str, tuple[str, str]]:
    return looks([(str(arm.given["method"]), arm.label) for arm in arms])


def _height(trial: Trial) -> float:
    assert trial.line.mean is not None
    return trial.line.scale * trial.line.mean


def _measured(done: Sequence[Trial]) -> str:
    return measured([trial.line for trial in done]).replace("test ", "")
