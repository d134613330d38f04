"""attack.json and attack.html: verdict, table, pictures or texts, assumptions. Both hold private
examples. Of two settings on the same examples they are before-after.json and before-after.html.

Of several runs also curves: what the strongest attack reconstructs over sparsity and over noise.
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
SECRET = "all numbers of the attacks, with the training examples that they recovered"
UNPAIRED = (
    "Each run drew batches of its own, so that two runs are attacked on different examples: "
    "compare their intervals. Attacks on one run are paired: they have the same examples and the "
    "same blind guess."
)
PAIRED = "Both runs have the same examples and weights."
LIMITS = (
    "An attack that fails proves nothing: a stronger one may exist. Only epsilon bounds all, on "
    "what it covers."
)


def output_folder(runs: Sequence[str], out: str | None) -> Path:
    """The folder of the files: ``out``, the only run, or ``attack/`` here. Raises ValueError for a
    file.
    """
    path = Path(out or (runs[0] if len(runs) == 1 else "attack")).expanduser().resolve()
    if path.is_file():
        raise ValueError(f"{path} is a file; give --out as a folder")
    check_writable(path)
    return path


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two runs on the very same examples: what is above their numbers. numbers: for attack.json."""

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
    """attack.html and attack.json, and the curves of several runs as attack-curves.png, each
    replaced whole; ``question``: see ``file_stem``. ``pair``: of two runs on the same examples,
    then they are before-after.html and before-after.json. Returns their names.
    """
    stem = file_stem(folder, "attack" if pair is None else "before-after", question)
    assumed = granted(threat, runs)
    points = [] if pair else [one.best for one in runs if one.best is not None]
    charts = curves(points)
    shown = interactive(charts, caption(points)) if charts else None
    numbers = {
        "warning": WARNING,
        KEY: dict(question),
        "threat_model": asdict(threat),
        "granted": assumed,
        **({} if pair is None else {"same_examples": pair.numbers}),
        "runs": [
            {
                "label": one.label,
                "verdict": one.verdict,
                "facts": dict(one.facts),
                **one.numbers,
                "not_applicable": dict(one.refused),
            }
            for one in runs
        ],
    }
    data = json_text(numbers)
    saved = download(f"{stem}.json", data, SECRET)
    files = {
        f"{stem}.html": page(runs, assumed, lead, saved, shown, pair).encode(),
        f"{stem}.json": data,
    }
    files |= {f"{stem}-curves.png": png(charts)} if charts else {}
    write_private(folder, files)
    return list(files)


def page(
    runs: Sequence[Findings],
    assumed: Mapping[str, str],
    lead: str,
    saved: Download,
    drawn: Drawing | None,
    pair: Pair | None = None,
) -> str:
    """attack.html: one file that requests nothing. ``saved`` is attack.json, ``drawn`` the
    curves.
    """
    limits = " ".join(dict.fromkeys([LIMITS, *(one.limits for one in runs)]))
    assumptions = (facts_of(assumed), Text(words=limits, style="note"))
    alone, first = len(runs) == 1, ("Originals and what was recovered", _shown(runs))
    if pair is not None:
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
                ("In short", [] if alone else [in_short(runs, paired=pair is not None)]),
                ("Over sparsity and noise", [] if drawn is None else [drawn]),
                *(_section(one, alone=alone) for one in runs),
                Section(title="What the adversary is granted", parts=assumptions, folded=True),
                data_section(saved),
            ),
        )
    )


def without_privacy(runs: Sequence[Findings]) -> list[str]:
    """What a reader must know before the verdict, of updates that were made without privacy for the
    attack, also where their folder is that of a private run.
    """
    return [
        f"The attacked updates of {one.label} were made without privacy: what is found in them "
        "says nothing of a run with an epsilon."
        for one in runs
        if not one.private
    ]


def sentence(verdict: str) -> str:
    """A verdict with a capital and a full stop."""
    return f"{verdict[:1].upper()}{verdict[1:]}{'' if verdict.endswith('.') else '.'}"


def _headline(runs: Sequence[Findings]) -> str:
    """The verdict on the only run, or on the worst."""
    worst = worst_first(runs)[0]
    where = "" if len(runs) == 1 else f" Of {len(runs)} runs this is the worst: {worst.label}."
    return sentence(worst.verdict) + where


def worst_first(runs: Sequence[Findings]) -> list[Findings]:
    """By grade, and of each grade those whose strongest attack does most first."""
    grades = list(BADGES)

    def place(one: Findings) -> tuple[int, tuple[float, ...]]:
        return -grades.index(one.grade), () if one.best is None else one.best.strength

    return sorted(runs, key=place, reverse=True)


def outcome(runs: Sequence[Findings]) -> tuple[str, Badge]:
    """In a few words, whether an attack succeeded: of the run that the headline is about."""
    grade = worst_first(runs)[0].grade
    alike = sum(one.grade == grade for one in runs)
    of = "" if alike == len(runs) else f" in {alike} of {len(runs)} runs"
    words, badge = BADGES[grade]
    return f"{words}{of}", badge


def _shown(runs: Sequence[Findings]) -> list[Part]:
    """Images or texts; of several runs one at a time, ordered by noise."""
    if len(runs) == 1:
        return [runs[0].shown]
    ordered = sorted(runs, key=lambda one: -1.0 if one.best is None else one.best.sigma)
    slides = tuple(
        (one.label, (Text(words=sentence(one.verdict), style="verdict"), one.shown))
        for one in ordered
    )
    return [Slides(name="Run, by noise:", slides=slides)]


def in_short(runs: Sequence[Findings], *, paired: bool = False) -> Table:
    """The strongest attack of each of several runs, and the verdict's first words; the worst run
    first. ``paired``: on the same examples.
    """
    rows = []
    for one in worst_first(runs):
        best, words = one.best, one.verdict.partition(": ")[0].replace(LEAK, "leaks")
        if best is None:
            rows.append(Row(cells=(one.label, "--", "--", "--", words)))
            continue
        reach = (
            "--"
            if best.low is None or best.high is None
            else f"{best.low:+z.1f} to {best.high:+z.1f}"
        )
        rows.append(
            Row(cells=(one.label, shown_name(best.attack), f"{best.gain:+z.1f}", reach, words))
        )
    unit = next((one.best.unit for one in runs if one.best is not None), "")
    return Table(
        columns=("run", "strongest", "gain", "95 % interval", "verdict"),
        rows=tuple(rows),
        left=(0, 1, 4),
        note=f"gain: of the strongest attack over the blind guess, in {unit}. "
        f"{PAIRED if paired else UNPAIRED}",
    )


def _section(one: Findings, *, alone: bool) -> Section:
    notes = (Text(words=words, style="note") for words in refusals(one))
    verdict = () if alone else (Text(words=sentence(one.verdict), style="verdict"),)
    parts = (*verdict, one.table, facts_of(one.facts), *notes)
    return Section(title=f"Numbers: {one.label}", parts=parts, folded=not alone)


def refusals(one: Findings) -> list[str]:
    """Which attacks did not apply, and why."""
    return [f"{name} does not apply: {why}" for name, why in one.refused.items()]


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
    for one in runs:
        common.update(one.granted)
    return common


CURVES = (
    "What the strongest attack on each run gains over a blind guess: the one that recognises most. "
    "Bars: 95 % interval of the mean over what was attacked in that run. Each run drew batches of "
    "its own. Dotted: the blind guess."
)
CAPPED = "Gains of 40 dB and more, where an image looks like its original, are drawn at 40 dB."
MAX_DRAWN_GAIN = {"dB": 40.0}
"""Larger gains are drawn at it, by unit: above it, only the rounding of numbers differs."""
DASHES = ("-", "--", ":", "-.")
Number = Callable[[Best], float | None]
Lines = dict[tuple[str, str], list[Best]]


def sparsity_lines(points: Sequence[Best]) -> Lines:
    """By (method, name): the points of one method and sigma, where the sparsities differ."""
    return _lines(
        points,
        lambda one: one.sparsity,
        lambda one: (one.method, f"{one.method}, {sigma_words(one)}"),
    )


def sigma_lines(points: Sequence[Best]) -> Lines:
    """By (method, name): the points of one method and sparsity, where the sigmas differ."""
    return _lines(
        points,
        lambda one: one.sigma,
        lambda one: (one.method, f"{one.method}{sparsity_words(one)}"),
    )


def sigma_words(one: Best) -> str:
    """The noise in a few words."""
    return f"sigma {one.sigma:.3g}" if one.sigma else "no noise"


def sparsity_words(one: Best) -> str:
    """The sparsity in a few words; nothing for a method without one."""
    return "" if one.sparsity is None else f", sparsity {one.sparsity:g}"


def _lines(points: Sequence[Best], x: Number, name: Callable[[Best], tuple[str, str]]) -> Lines:
    known = sorted(
        (one for one in points if x(one) is not None),
        key=lambda one: (canonical(one.method), name(one)),
    )
    found = {
        key: sorted(some, key=lambda one: x(one) or 0.0) for key, some in groupby(known, key=name)
    }
    return {
        key: some
        for key, some in found.items()
        if len({round(x(one) or 0.0, 9) for one in some}) > 1
    }


def curves(points: Sequence[Best]) -> tuple[Chart, ...]:
    """A chart over sparsity, a chart over sigma: those in which something differs; none if nothing
    does.

    Runs that differ in nothing else (another seed) are points of one line, which goes through their
    means.
    """
    if len(points) < 2:
        return ()
    over = [
        ("sparsity", sparsity_lines(points), _sparsity),
        ("sigma: noise over clip norm", sigma_lines(points), _sigma),
    ]
    return tuple(_chart(words, lines, x, points[0].unit) for words, lines, x in over if lines)


def _sparsity(one: Best) -> float:
    return one.sparsity or 0.0


def _sigma(one: Best) -> float:
    return one.sigma


def _chart(words: str, lines: Lines, x: Callable[[Best], float], unit: str) -> Chart:
    styles, series = looks(list(lines)), []
    across = (
        Axis(label=words)
        if x is _sparsity
        else _noise_axis(sorted({one.sigma for some in lines.values() for one in some}))
    )
    places = {0.0: across.ticks[0][0]} if across.ticks else {}
    for number, ((_, name), some) in enumerate(lines.items()):
        series += _line(
            some,
            lambda one: places.get(x(one), x(one)),
            name,
            (*styles[name], DASHES[number % len(DASHES)]),
        )
    title = f"gain over the blind guess, {unit}"
    return Chart(
        title=title, x=across, series=(*series, level(0.0, "blind guess", GREY, ":")), height=360
    )


def _line(
    some: Sequence[Best], x: Callable[[Best], float], name: str, style: tuple[str, str, str]
) -> list[Series]:
    """A line through the means, and every run with its interval."""
    colour, marker, dashes = style
    means = {
        place: fmean(_drawn(one.gain, one) for one in of) for place, of in groupby(some, key=x)
    }
    line = Series(name=name, x=list(means), y=list(means.values()), colour=colour, dashes=dashes)
    runs = Series(
        name=name,
        x=[x(one) for one in some],
        y=[_drawn(one.gain, one) for one in some],
        colour=colour,
        marker=marker,
        low=[None if one.low is None else _drawn(one.low, one) for one in some],
        line=False,
        high=[None if one.high is None else _drawn(one.high, one) for one in some],
        words=tuple(f"{one.attack}, {sigma_words(one)}{sparsity_words(one)}" for one in some),
    )
    return [line, runs]


def _drawn(value: float, one: Best) -> float:
    return min(value, MAX_DRAWN_GAIN.get(one.unit, value))


def caption(points: Sequence[Best]) -> str:
    """What the figure shows."""
    return (
        f"{CURVES} {CAPPED}" if any(_drawn(one.gain, one) < one.gain for one in points) else CURVES
    )


def _noise_axis(sigmas: Sequence[float]) -> Axis:
    """Logarithmic; a run without noise is at the left end."""
    shown = [sigma or min(other for other in sigmas if other) / 4 for sigma in sigmas]
    ticks = [
        (at, f"{sigma:.3g}" if sigma else "no noise")
        for at, sigma in zip(shown, sigmas, strict=True)
    ]
    return Axis(label="sigma: noise over clip norm", log=True, ticks=spaced(ticks, log=True))
