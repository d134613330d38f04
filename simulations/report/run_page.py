"""report.html of one run, written at its end: what it reached and cost, its rounds as charts, and
every setting.
"""

import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import ceil
from typing import Any

from fedlsg import strategies
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.advice import RHO_MEANING
from fedlsg.simulations.report.chart import Axis, Chart, Series, guessing
from fedlsg.simulations.report.client_table import client_parts
from fedlsg.simulations.report.colours import BLACK, BLUE, GREEN, GREY, ORANGE, RED
from fedlsg.simulations.report.facts import (
    epsilon_section,
    made_section,
    row_warnings,
    settings_section,
    values_line,
)
from fedlsg.simulations.report.figure import interactive
from fedlsg.simulations.report.page import (
    Code,
    Facts,
    Page,
    Part,
    Section,
    Text,
    data_section,
    download,
    facts_of,
    json_text,
    sections,
)
from fedlsg.simulations.report.template import render
from fedlsg.simulations.report.tiles import privacy_badge, run_tiles
from fedlsg.simulations.report.words import duration, outcome, percent, privacy_line, run_headline
from fedlsg.simulations.settings.settings import (
    FOLDERS,
    MAY_NAME_FILES,
    NAMES_OF_CODE,
    RUN,
    callbacks_with,
)
from fedlsg.simulations.storage.atomic_files import write_atomically
from fedlsg.simulations.storage.results import Result, as_csv, read_run
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads.base.split import beats_chance
from fedlsg.user_code import is_reference, shown

log = logging.getLogger(__name__)

PLACES = frozenset({*FOLDERS, "public_rows"})
"""Settings that name, or may name, folders of this machine."""
NAME_FILES = (*MAY_NAME_FILES, "pretrained", "start_from", "features", "callbacks", "availability")
"""Settings of which a page shows the name of a file, without its folder."""
NOISE = frozenset({"noise", "readers", "features", "carriers"})
"""Facts about the noise and what it is added to."""
SAID_GUESSING = "; the dotted line is the accuracy of guessing"
CAPTION = (
    "One point a round. Test accuracy: the share of test examples that the model classifies "
    f"correctly{SAID_GUESSING}. Epsilon: the privacy that is spent; it grows with every round, and "
    "smaller is more private. Payload bytes: what all clients sent (uplink) and received "
    "(downlink) up to then."
)
TIMED_CAPTION = (
    " Dropped out: clients that left before they trained. Late: clients that trained and were "
    "charged, and whose values came too late. The simulated clock shows {} at the last round."
)
SAID_CLIENTS = (
    " Clients: how many were selected, how many replied, and how many replies the server rejected."
)
COUNTS = CAPTION[CAPTION.index(" Payload bytes:") :]
LOSS_CAPTION = CAPTION.replace(
    f"Test accuracy: the share of test examples that the model classifies correctly{SAID_GUESSING}",
    "Test loss: smaller is better",
)


def write_run_page(run: RunDir) -> None:
    """Write report.html into a run directory.

    A page that cannot be made is logged, and the run goes on: its numbers are already on disk, and
    ``fedlsg report RUN`` makes the page later.
    """
    try:
        text = run_page(read_run(run.path))
        write_atomically(run.path / "report.html", text.encode())
    except Exception:
        log.exception("no report.html; try again with: fedlsg report %s", run.path)


def run_page(result: Result, *, against: Result | None = None, follow: str = "") -> str:
    """The page of one run, finished or not. ``against``: as in ``run_tiles``; ``follow``: as in
    ``render``.
    """
    settings = {
        name: value
        for name, value in result.settings.items()
        if value is not None and name not in PLACES
    }
    settings = {name: _without_folders(name, value) for name, value in settings.items()}
    again = Code(
        text=command(result) if _is_named(result) else "",
        note="This command runs the same settings again:",
    )
    facts, by_client = _outcome(result), result.summary.get("by_client", [])
    chance = None if result.chance is None else result.chance.level
    rejected = tuple((f"round {row.round}", row.reasons) for row in result.rows if row.reasons)
    return render(
        Page(
            kind="fedlsg run",
            title=f"{settings['workload']} with {shown(result.method)}, seed {settings['seed']}",
            lead=f"Run directory {result.name}.",
            headline=run_headline(result),
            badge=privacy_badge(result),
            warnings=tuple(_warnings(result)),
            sections=sections(
                ("", [tiles] if (tiles := run_tiles(result, against)) else []),
                ("Round by round", _rounds(result)),
                ("Each client", client_parts(by_client, chance)),
                ("What the noise costs", _noise(result, facts)),
                ("In words", [facts_of({k: v for k, v in facts.items() if k not in NOISE})]),
                ("Rejected payloads", [Facts(rows=rejected)] if rejected else []),
                epsilon_section([result]),
                made_section([result] if result.done else [], again),
                settings_section(result, settings),
                _data(result),
            ),
        ),
        follow=follow,
    )


def _rounds(result: Result) -> list[Part]:
    """The figure, if there is a round."""
    if not result.rows:
        return []
    chance = None if result.chance is None else result.chance.level
    drawn = course(result.rows, chance)
    caption, last = LOSS_CAPTION if result.accuracy is None else CAPTION, result.rows[-1].simulated
    caption = caption if result.rows[-1].counted else caption.removesuffix(COUNTS)
    caption += SAID_CLIENTS if any(chart.title.startswith("clients") for chart in drawn) else ""
    caption += "" if last is None else TIMED_CAPTION.format(duration(last.simulated_clock))
    return [
        interactive(drawn, caption if chance is not None else caption.replace(SAID_GUESSING, ""))
    ]


def _noise(result: Result, facts: Mapping[str, str]) -> list[Part]:
    """How much noise there is, who reads what it hides, and what rho means."""
    noise = {name: words for name, words in facts.items() if name in NOISE}
    rho = [Text(words=RHO_MEANING, style="note")] if result.summary.get("rho") else []
    return [*([facts_of(noise)] if noise else []), *rho]


def _data(result: Result) -> Section:
    """The numbers of the page as files."""
    table = as_csv([row.columns for row in result.rows], otherwise="round").encode()
    files = [download("rounds.csv", table, "a row for each round")]
    if result.summary:
        says = "the results, every accountant's interval, hardware and versions"
        files.append(download("summary.json", json_text(result.summary, not_finite=str), says))
    if rows := result.summary.get("by_client"):
        content = as_csv(rows, otherwise="client").encode()
        files.append(download("clients.csv", content, "a row for each client, the worst first"))
    return data_section(*files)


def _outcome(result: Result) -> dict[str, str]:
    """The words of a finished run; on one link if the reader named one."""
    if not result.done:
        return {"test accuracy so far": percent(result.accuracy), "rounds": str(len(result.rows))}
    words = outcome(result.summary)
    words |= {"values sent": said} if (said := values_line(result.summary)) else {}
    return (
        words
        if result.transfer is None
        else words | {"transfer": f"{result.transfer:.3g} s on {result.link}"}
    )


def command(result: Result) -> str:
    """The ``fedlsg run`` command with these settings, without the folders of this machine."""
    words = ["fedlsg", "run", shown(str(result.settings["workload"]))]
    for name, given in result.settings.items():
        usual = RUN[name].default if name in RUN else None
        if given != usual and name not in PLACES and name != "workload":
            value = _without_folders(name, given)
            words += ["-c", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join(words)


def _without_folders(name: str, value: Any) -> Any:
    """A setting without the folders of this machine."""
    if not isinstance(value, str) or name not in NAME_FILES:
        return value
    return callbacks_with(value, shown) if name == "callbacks" else shown(value)


def _is_named(result: Result) -> bool:
    """Whether a command finds workload and method by their names: those of a script or notebook
    have none.
    """
    known = (*workloads.names(), *strategies.names())
    return all(
        is_reference(str(result.settings[name])) or result.settings[name] in known
        for name in NAMES_OF_CODE
    )


def _warnings(result: Result) -> list[str]:
    """What a reader must not overlook."""
    found = []
    if not result.done and result.status != "running":
        found.append(
            f"{result.status}: "
            f"{result.reason or 'this run is not finished; continue it with fedlsg resume'}"
        )
    elif result.done and not result.private:
        found.append(privacy_line(result.summary))
    measured = [] if result.accuracy is None else [result.accuracy]
    if (
        result.done
        and measured
        and result.chance is not None
        and not beats_chance(measured, result.chance)
    ):
        found.append("The accuracy is not better than guessing by three standard errors.")
    found += row_warnings([result])
    if result.done and result.reason:
        found.append(f"stopped early: {result.reason}")
    return found


Rows = Sequence[Row]
"""Rounds in their order."""
ROUND = Axis(label="round", whole=True)
CLIENTS = (
    ("asked", "selected", GREY, "-"),
    ("answered", "replied", GREEN, "--"),
    ("rejected", "rejected", RED, ":"),
)
SIMULATED = (("dropped", "dropped out", ORANGE, "-."), ("late", "late", BLUE, "-."))
"""Columns of rounds.csv, and how the legend names them; the second ones in runs with a simulated
clock.
"""
MOST = 600
"""Points of a line, about: more cannot be told apart, and a page of very many rounds would be
large.
"""


def course(rows: Rows, chance: float | None) -> tuple[Chart, ...]:
    """``chance``: the accuracy of guessing. Without bytes and clients where counts may not be
    seen.
    """
    found = [_tested(rows, chance), _epsilon(rows)]
    if all(row.counted for row in rows):
        found += [_bytes(rows), *_clients(rows)]
    if len(rows) == 1:
        alone = replace(ROUND, low=rows[0].round - 1.0, high=rows[0].round + 1.0)
        found = [replace(chart, x=alone) for chart in found]
    return tuple(found)


def _tested(rows: Rows, chance: float | None) -> Chart:
    """Accuracy; the loss where targets are no classes."""
    measured = {row.round: 100 * row.accuracy for row in rows if row.accuracy is not None}
    losses = {} if measured else {row.round: row.loss for row in rows if row.loss is not None}
    line = thinned(Series(x=list(measured or losses), y=list((measured or losses).values())))
    series = [line] if chance is None else [line, guessing(100 * chance)]
    if losses:
        return Chart(title="test loss", x=ROUND, series=series, height=300)
    top = 100.0 if max(measured.values(), default=0.0) > 80 else None  # else the axis ends at 120 %
    return Chart(
        title="test accuracy, %", x=ROUND, y=Axis(unit="%", high=top), series=series, height=300
    )


def _epsilon(rows: Rows) -> Chart:
    """What the largest client spent, and the median one where it spent less."""
    largest, median = [row.epsilon_max for row in rows], [row.epsilon_median for row in rows]
    lines = [("largest client", RED, "-", largest)]
    lines += [] if median == largest else [("median client", BLACK, "--", median)]
    return Chart(
        title="epsilon so far",
        x=ROUND,
        note="no finite epsilon",
        height=300,
        series=[_line(rows, *one) for one in lines],
    )


def _bytes(rows: Rows) -> Chart:
    lines = []
    for name, colour, dashes in (("uplink", BLUE, "-"), ("downlink", ORANGE, "--")):
        sums = list(accumulate(getattr(row, f"{name}_bytes") for row in rows))
        lines.append(_line(rows, name, colour, dashes, sums))
    return Chart(
        title="payload bytes so far, all clients",
        x=ROUND,
        y=Axis(unit="bytes", low=0),
        series=lines,
        height=300,
    )


def _clients(rows: Rows) -> list[Chart]:
    """Nothing where all selected clients replied in every round."""
    timed = SIMULATED if any(row.simulated for row in rows) else ()
    counts = {
        name: [len(str(row.columns.get(name, "")).split()) for row in rows]
        for name, *_ in (*CLIENTS, *timed)
    }
    if (
        len(set(counts["asked"])) < 2
        and counts["asked"] == counts["answered"]
        and not any(counts["rejected"])
    ):
        return []
    lines = [
        _line(rows, label, colour, dashes, counts[name])
        for name, label, colour, dashes in (*CLIENTS, *timed)
    ]
    return [
        Chart(
            title="clients in each round",
            x=ROUND,
            y=Axis(low=0, whole=True),
            series=lines,
            height=300,
        )
    ]


def _line(rows: Rows, name: str, colour: str, dashes: str, values: Iterable[float]) -> Series:
    return thinned(
        Series(
            name=name, x=[row.round for row in rows], y=list(values), colour=colour, dashes=dashes
        )
    )


def thinned(line: Series) -> Series:
    """A line of many points with the lowest and the highest of each stretch, so that no peak is
    lost, and both ends.
    """
    x, y = line.x, [0.0 if value is None else value for value in line.y]
    if len(x) <= MOST:
        return line
    size, kept = ceil(2 * len(x) / MOST), {0, len(x) - 1}
    for start in range(0, len(x), size):
        stretch = range(start, min(start + size, len(x)))
        kept |= {min(stretch, key=y.__getitem__), max(stretch, key=y.__getitem__)}
    return replace(
        line, x=[x[place] for place in sorted(kept)], y=[y[place] for place in sorted(kept)]
    )
