"""The files of ``fedlsg attack``: attack.json and attack.html, with private examples in both.

Two runs on the same examples have before-after.json and before-after.html. Several runs have
curves, too: the gain of the strongest attack over sparsity and over noise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from fedlsg.attacks.observation import ThreatModel
from fedlsg.simulations.attacks.findings import BADGES, LEAK, Best, Findings, shown_name
from fedlsg.simulations.attacks.question import KEY, Question, file_stem
from fedlsg.simulations.report.drawing.chart import Axis, Chart, Series, level, spaced
from fedlsg.simulations.report.drawing.colours import GREY, canonical, looks
from fedlsg.simulations.report.pages.figure import interactive, png
from fedlsg.simulations.report.pages.page import (
    Badge,
    Download,
    Drawing,
    Page,
    Part,
    Row,
    Section,
    Slides,
    Table,
    Text,
    data_section,
    download,
    facts_of,
    json_text,
    sections,
)
from fedlsg.simulations.report.pages.template import render
from fedlsg.simulations.report.terminals.terminal import write_private
from fedlsg.simulations.storage.atomic_files import check_writable

WARNING = (
    "This page shows training examples of the clients: the originals and what attacks recovered. "
    "It was made in a simulation, to judge a method. Do not publish it if the data are not public."
)
DATA_NOTE = "all numbers of the attacks, with the training examples that they recovered"
UNPAIRED_NOTE = (
    "Each run drew batches of its own, so that two runs are attacked on different examples: "
    "compare their intervals. Attacks on one run are paired: they have the same examples and the "
    "same blind guess."
)
PAIRED_NOTE = "Both runs have the same examples and weights."
LIMITS_NOTE = (
    "An attack that fails proves nothing: a stronger one may exist. Only epsilon bounds all, on "
    "what it covers."
)


def output_folder(runs: Sequence[str], out: str | None) -> Path:
    """The folder of the files: ``out``, else the only run, else ``attack/``.

    Raises ValueError for a file, and for a folder that is not writable.
    """
    path = Path(out or (runs[0] if len(runs) == 1 else "attack")).expanduser().resolve()
    if path.is_file():
        raise ValueError(f"{path} is a file; give --out as a folder")
    check_writable(path)
    return path


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The part of a page about two runs on the very same examples.

    headline: the verdict.
    badge: the verdict in a few words, and its colour.
    parts: above the numbers of each run.
    numbers: for before-after.json.
    """

    headline: str
    badge: tuple[str, Badge]
    parts: tuple[Part, ...]
    numbers: Mapping[str, Any]


def write(
    folder: Path,
    runs: Sequence[Findings],
    threat: ThreatModel,
    *,
    question: Question,
    lead: str,
    pair: Pair | None = None,
) -> list[str]:
    """Write the page, its numbers and the curves of several runs; return the names of the files.

    They are attack.html, attack.json and attack-curves.png, each replaced whole.

    question: see ``file_stem``.
    lead: the first line of the page.
    pair: of two runs on the same examples; then the files are before-after.html and
        before-after.json.
    """
    stem = file_stem(folder, "attack" if pair is None else "before-after", question)
    assumptions = granted(threat, runs)
    points = [] if pair else [run.best for run in runs if run.best is not None]
    charts = curves(points)
    drawing = interactive(charts, caption(points)) if charts else None
    numbers = {
        "warning": WARNING,
        KEY: dict(question),
        "threat_model": asdict(threat),
        "granted": assumptions,
        **({} if pair is None else {"same_examples": pair.numbers}),
        "runs": [
            {
                "label": run.label,
                "verdict": run.verdict,
                "facts": dict(run.facts),
                **run.numbers,
                "not_applicable": dict(run.refused),
            }
            for run in runs
        ],
    }
    data = json_text(numbers)
    saved = download(f"{stem}.json", data, DATA_NOTE)
    files = {
        f"{stem}.html": page(runs, assumptions, lead, saved, drawing, pair).encode(),
        f"{stem}.json": data,
    }
    if charts:
        files[f"{stem}-curves.png"] = png(charts)
    write_private(folder, files)
    return list(files)


def page(
    runs: Sequence[Findings],
    assumptions: Mapping[str, str],
    lead: str,
    saved: Download,
    drawing: Drawing | None,
    pair: Pair | None = None,
) -> str:
    """The page, as one file that loads nothing from elsewhere.

    assumptions: by name, see ``granted``.
    lead: the first line.
    saved: attack.json.
    drawing: the curves; None without.
    """
    limits = " ".join(dict.fromkeys([LIMITS_NOTE, *(run.limits for run in runs)]))
    assumption_parts = (facts_of(assumptions), Text(words=limits, style="note"))
    is_single = len(runs) == 1
    if pair is None:
        first = ("Originals and what was recovered", _shown(runs))
    else:
        first = ("Before and after, on the same examples", list(pair.parts))
    return render(
        Page(
            kind="fedlsg attack",
            title="What the updates give away",
            lead=lead,
            headline=_headline(runs) if pair is None else pair.headline,
            badge=outcome(runs) if pair is None else pair.badge,
            warnings=(WARNING, *without_privacy(runs)),
            sections=sections(
                first,
                ("In short", [] if is_single else [in_short(runs, paired=pair is not None)]),
                ("Over sparsity and noise", [] if drawing is None else [drawing]),
                *(_section(run, is_single=is_single) for run in runs),
                Section(title="What the adversary is granted", parts=assumption_parts, folded=True),
                data_section(saved),
            ),
        )
    )


def without_privacy(runs: Sequence[Findings]) -> list[str]:
    """Warnings about updates that were made without privacy for the attack.

    The page may be in the folder of a private run, whose updates were not attacked.
    """
    return [
        f"The attacked updates of {run.label} were made without privacy: what is found in them "
        "says nothing of a run with an epsilon."
        for run in runs
        if not run.private
    ]


def as_sentence(verdict: str) -> str:
    """A verdict with a capital and a full stop."""
    return f"{verdict[:1].upper()}{verdict[1:]}{'' if verdict.endswith('.') else '.'}"


def _headline(runs: Sequence[Findings]) -> str:
    """The verdict on the only run, or on the worst of several."""
    worst = worst_first(runs)[0]
    where = "" if len(runs) == 1 else f" Of {len(runs)} runs this is the worst: {worst.label}."
    return as_sentence(worst.verdict) + where


def worst_first(runs: Sequence[Findings]) -> list[Findings]:
    """The runs ordered by grade, and within a grade by the strength of the strongest attack."""
    grades = list(BADGES)  # the worst one first

    def badness(run: Findings) -> tuple[int, tuple[float, ...]]:
        return -grades.index(run.grade), () if run.best is None else run.best.strength

    return sorted(runs, key=badness, reverse=True)


def outcome(runs: Sequence[Findings]) -> tuple[str, Badge]:
    """The verdict of the headline in a few words, and its colour."""
    grade = worst_first(runs)[0].grade
    count = sum(run.grade == grade for run in runs)
    where = "" if count == len(runs) else f" in {count} of {len(runs)} runs"
    words, badge = BADGES[grade]
    return f"{words}{where}", badge


def _shown(runs: Sequence[Findings]) -> list[Part]:
    """Recovered images or texts; of several runs one at a time, ordered by noise."""
    if len(runs) == 1:
        return [runs[0].shown]
    ordered = sorted(runs, key=lambda run: -1.0 if run.best is None else run.best.sigma)
    slides = tuple(
        (run.label, (Text(words=as_sentence(run.verdict), style="verdict"), run.shown))
        for run in ordered
    )
    return [Slides(name="Run, by noise:", slides=slides)]


def in_short(runs: Sequence[Findings], *, paired: bool = False) -> Table:
    """A table with the strongest attack and the verdict of each run, the worst run first.

    paired: whether the runs have the same examples.
    """
    rows = []
    for run in worst_first(runs):
        best = run.best
        words = run.verdict.partition(": ")[0].replace(LEAK, "leaks")
        attack = gain = interval = "--"
        if best is not None:
            attack, gain = shown_name(best.attack), f"{best.gain:+z.1f}"
            if best.low is not None and best.high is not None:
                interval = f"{best.low:+z.1f} to {best.high:+z.1f}"
        rows.append(Row(cells=(run.label, attack, gain, interval, words)))
    unit = next((run.best.unit for run in runs if run.best is not None), "")
    return Table(
        columns=("run", "strongest", "gain", "95 % interval", "verdict"),
        rows=tuple(rows),
        left=(0, 1, 4),
        note=f"gain: of the strongest attack over the blind guess, in {unit}. "
        f"{PAIRED_NOTE if paired else UNPAIRED_NOTE}",
    )


def _section(run: Findings, *, is_single: bool) -> Section:
    """The numbers of a run; of several runs, folded and with its verdict."""
    notes = (Text(words=words, style="note") for words in refusals(run))
    verdict = () if is_single else (Text(words=as_sentence(run.verdict), style="verdict"),)
    parts = (*verdict, run.table, facts_of(run.facts), *notes)
    return Section(title=f"Numbers: {run.label}", parts=parts, folded=not is_single)


def refusals(run: Findings) -> list[str]:
    """Which attacks did not apply to a run, and why."""
    return [f"{name} does not apply: {why}" for name, why in run.refused.items()]


def granted(threat: ThreatModel, runs: Sequence[Findings]) -> dict[str, str]:
    """What the adversary sees and knows, in words."""
    common = {
        "sees": "every client's payload as it was sent"
        if threat.view == "client"
        else "the sum of all payloads",
        "knows": "architecture, weights of the round, carriers, mask, clip norm, sigma, Poisson "
        "rate, local optimizer",
        "labels": "of the batch, without an order"
        if threat.labels == "known"
        else "unknown: the attack searches for them",
        "number of examples": "of the batch"
        if threat.examples == "known"
        else "unknown: the expected batch size is used",
    }
    for run in runs:
        common.update(run.granted)
    return common


CURVES_CAPTION = (
    "What the strongest attack on each run gains over a blind guess: the one that recognises most. "
    "Bars: 95 % interval of the mean over what was attacked in that run. Each run drew batches of "
    "its own. Dotted: the blind guess."
)
CAPPED = "Gains of 40 dB and more, where an image looks like its original, are drawn at 40 dB."
MAX_DRAWN_GAIN = {"dB": 40.0}
"""By unit, the value at which larger gains are drawn: they differ in the rounding of numbers only.
"""
DASHES = ("-", "--", ":", "-.")
NumberOf = Callable[[Best], float | None]
"""The horizontal position of a run; None for a run without one."""
Lines = dict[tuple[str, str], list[Best]]
"""By method and name of the line: its points, ascending."""
ROUNDING_DIGITS = 9
"""Positions that agree in so many digits after the point are one position."""


def sparsity_lines(points: Sequence[Best]) -> Lines:
    """The points of each method and sigma whose sparsities differ."""
    return _lines(
        points,
        lambda point: point.sparsity,
        lambda point: (point.method, f"{point.method}, {sigma_words(point)}"),
    )


def sigma_lines(points: Sequence[Best]) -> Lines:
    """The points of each method and sparsity whose sigmas differ."""
    return _lines(
        points,
        _sigma,
        lambda point: (point.method, f"{point.method}{sparsity_words(point)}"),
    )


def sigma_words(point: Best) -> str:
    """The noise of a run in a few words."""
    return f"sigma {point.sigma:.3g}" if point.sigma else "no noise"


def sparsity_words(point: Best) -> str:
    """The sparsity of a run in a few words; empty for a method without one."""
    return "" if point.sparsity is None else f", sparsity {point.sparsity:g}"


def _lines(points: Sequence[Best], x: NumberOf, name: Callable[[Best], tuple[str, str]]) -> Lines:
    """The points with a position, by ``name``; lines whose points have one position are left out.

    The lines are in the order of the methods in figures.
    """
    with_x = sorted(
        (point for point in points if x(point) is not None),
        key=lambda point: (canonical(point.method), name(point)),
    )
    lines: Lines = {}
    for key, group in groupby(with_x, key=name):
        line = sorted(group, key=lambda point: x(point) or 0.0)
        if len({round(x(point) or 0.0, ROUNDING_DIGITS) for point in line}) > 1:
            lines[key] = line
    return lines


def curves(points: Sequence[Best]) -> tuple[Chart, ...]:
    """The charts over sparsity and over sigma that have a line.

    Runs that differ in nothing else (another seed) are points of one line, which goes through their
    means.
    """
    if len(points) < 2:
        return ()
    unit, charts = points[0].unit, []
    if by_sparsity := sparsity_lines(points):
        charts.append(_chart(Axis(label="sparsity"), by_sparsity, _sparsity, unit))
    if by_sigma := sigma_lines(points):
        sigmas = sorted({point.sigma for line in by_sigma.values() for point in line})
        position = _sigma_positions(sigmas)
        axis = _sigma_axis(position)
        charts.append(_chart(axis, by_sigma, lambda point: position[point.sigma], unit))
    return tuple(charts)


def _sparsity(point: Best) -> float:
    return point.sparsity or 0.0


def _sigma(point: Best) -> float:
    return point.sigma


def _chart(axis: Axis, lines: Lines, x: Callable[[Best], float], unit: str) -> Chart:
    """The gains of several lines over the horizontal ``axis``, and the blind guess at 0."""
    styles = looks(list(lines))
    series = []
    for number, ((_, name), line) in enumerate(lines.items()):
        style = (*styles[name], DASHES[number % len(DASHES)])
        series += _line(line, x, name, style)
    return Chart(
        title=f"gain over the blind guess, {unit}",
        x=axis,
        series=(*series, level(0.0, "blind guess", GREY, ":")),
        height=360,
    )


def _line(
    points: Sequence[Best], x: Callable[[Best], float], name: str, style: tuple[str, str, str]
) -> list[Series]:
    """A line through the mean at each position, and every run with its interval.

    points: ascending in ``x``.
    style: colour, marker and dashes.
    """
    colour, marker, dashes = style
    means = {
        position: fmean(_capped(point.gain, point) for point in group)
        for position, group in groupby(points, key=x)
    }
    line = Series(name=name, x=list(means), y=list(means.values()), colour=colour, dashes=dashes)
    runs = Series(
        name=name,
        x=[x(point) for point in points],
        y=[_capped(point.gain, point) for point in points],
        colour=colour,
        marker=marker,
        low=[None if point.low is None else _capped(point.low, point) for point in points],
        line=False,
        high=[None if point.high is None else _capped(point.high, point) for point in points],
        words=tuple(
            f"{point.attack}, {sigma_words(point)}{sparsity_words(point)}" for point in points
        ),
    )
    return [line, runs]


def _capped(gain: float, point: Best) -> float:
    """A gain as it is drawn, in the unit of a run."""
    return min(gain, MAX_DRAWN_GAIN.get(point.unit, gain))


def caption(points: Sequence[Best]) -> str:
    """The words under the curves; they say so if a gain is drawn lower than it is."""
    if any(_capped(point.gain, point) < point.gain for point in points):
        return f"{CURVES_CAPTION} {CAPPED}"
    return CURVES_CAPTION


def _sigma_positions(sigmas: Sequence[float]) -> dict[float, float]:
    """Positions on a logarithmic axis: no noise is left of the least sigma, at a quarter of it.

    On a long axis it is further left, by a fifth of the length, to make room for its label.

    sigmas: ascending and different.
    """
    least, most = min(sigma for sigma in sigmas if sigma), sigmas[-1]
    return {sigma: sigma or least / max(4, (most / least) ** 0.2) for sigma in sigmas}


def _sigma_axis(position: Mapping[float, float]) -> Axis:
    """The logarithmic axis of sigma, with its ticks at these positions."""
    ticks = [(place, f"{sigma:.3g}" if sigma else "no noise") for sigma, place in position.items()]
    return Axis(label="sigma: noise over clip norm", log=True, ticks=spaced(ticks, log=True))
