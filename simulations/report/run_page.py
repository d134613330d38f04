"""report.html of one run, written at its end: what it reached, what it cost, and every setting."""

import logging
import shlex
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import strategies
from fedlsg.user_code import is_reference, shown
from simulations import workloads
from simulations.plan.noise import RHO_MEANING
from simulations.report.facts import epsilon_section, made_section, row_warnings
from simulations.report.figure import (
    ALARM,
    BLACK,
    BLUE,
    GREEN,
    GREY,
    GUESSING,
    ORANGE,
    RED,
    new_figure,
    picture,
    short_bytes,
    use_style,
    whole_numbers,
)
from simulations.report.page import Code, Facts, Page, Part, Section, Text, facts_of, render
from simulations.report.words import outcome, percent, privacy_line
from simulations.rundir.files.atomic import write_atomically
from simulations.rundir.results import Result, read_run
from simulations.rundir.rundir import RunDir
from simulations.rundir.tables import Row
from simulations.settings.settings import MAY_NAME_FILES, NAMES_OF_CODE, RUN
from simulations.workloads.chance import beats_chance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

PLACES = frozenset({"run_dir", "data_dir", "public_rows"})
"""Settings that name, or may name, folders of this machine."""
CLIENTS = (("asked", "selected", GREY, "-"), ("answered", "replied", GREEN, "--"), ("rejected", "rejected", RED, ":"))
"""Columns of rounds.csv, and how the legend names them."""
CAPTION = (
    "Test accuracy, epsilon, payload bytes and clients after each round. The dotted line is the accuracy of guessing."
)
LOSS_CAPTION = "Test loss, epsilon, payload bytes and clients after each round."


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


def run_page(result: Result) -> str:
    """The page of one run, finished or not."""
    settings = {name: value for name, value in result.settings.items() if value is not None and name not in PLACES}
    settings |= {name: shown(str(settings[name])) for name in MAY_NAME_FILES if name in settings}
    again = Code(text=command(result) if _is_named(result) else "", note="This command runs the same settings again:")
    return render(
        Page(
            title=f"{settings['workload']} with {shown(result.method)}, seed {settings['seed']}",
            lead=result.name,
            warnings=tuple(_warnings(result)),
            sections=(
                Section(parts=tuple(_result(result))),
                *_rejections(result),
                epsilon_section([result]),
                made_section([result] if result.done else [], again),
                Section(title="Settings", parts=(facts_of(settings),)),
            ),
        )
    )


def _result(result: Result) -> list[Part]:
    """What the run reached, and its rounds."""
    parts: list[Part] = [facts_of(_outcome(result))]
    parts += [Text(words=RHO_MEANING, style="note")] if result.summary.get("rho") else []
    if result.rows:
        chance = None if result.chance is None else result.chance.level
        parts.append(picture(course(result.rows, chance), LOSS_CAPTION if result.accuracy is None else CAPTION))
    return parts


def _outcome(result: Result) -> dict[str, str]:
    """The words of a finished run; on one link if the reader named one."""
    if not result.done:
        return {"test accuracy so far": percent(result.accuracy), "rounds": str(len(result.rows))}
    words = outcome(result.summary)
    return words if result.transfer is None else words | {"transfer": f"{result.transfer:.3g} s on {result.link}"}


def _rejections(result: Result) -> list[Section]:
    rows = tuple((f"round {row.round}", row.reasons) for row in result.rows if row.rejected)
    return [Section(title="Rejected payloads", parts=(Facts(rows=rows),))] if rows else []


def command(result: Result) -> str:
    """The ``fedlsg run`` command with these settings, without the folders of this machine."""
    defaults = {name: declared.default for name, declared in RUN.items()}
    given = {
        name: value
        for name, value in result.settings.items()
        if value != defaults.get(name) and name not in PLACES and name != "workload"
    }
    words = ["fedlsg", "run", shown(str(result.settings["workload"]))]
    for name, value in given.items():
        value = shown(str(value)) if name == "method" else value
        words += ["-c", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join(words)


def _is_named(result: Result) -> bool:
    """Whether a command finds workload and method by their names: those of a script or notebook have none."""
    known = (*workloads.names(), *strategies.names())
    return all(is_reference(str(result.settings[name])) or result.settings[name] in known for name in NAMES_OF_CODE)


def _warnings(result: Result) -> list[str]:
    """What a reader must not overlook."""
    found = []
    if not result.done:
        found.append(f"{result.status}: {result.reason or 'this run is not finished; continue it with fedlsg resume'}")
    elif not result.private:
        found.append(privacy_line(result.summary))
    measured = [] if result.accuracy is None else [result.accuracy]
    if result.done and measured and result.chance is not None and not beats_chance(measured, result.chance):
        found.append("The accuracy is not better than guessing by three standard errors.")
    found += row_warnings([result])
    if result.done and result.reason:
        found.append(f"stopped early: {result.reason}")
    return found


@use_style
def course(rows: Sequence[Row], chance: float | None) -> "Figure":
    """The rounds of one run in four panels; ``chance`` is the accuracy of guessing."""
    figure = new_figure(7.2, 4.8, arrange=False)  # every run draws this, and finding places doubles its time
    places = {"left": 0.09, "right": 0.985, "bottom": 0.095, "top": 0.95, "wspace": 0.22, "hspace": 0.3}
    panels = figure.subplots(2, 2, gridspec_kw=places)
    (accuracy, epsilon), (sent, clients) = panels
    _tested(accuracy, rows, chance)
    _epsilon(epsilon, rows)
    _bytes(sent, rows)
    for name, label, colour, dashes in CLIENTS:
        counts = [len(getattr(row, name).split()) for row in rows]
        clients.plot([row.round for row in rows], counts, color=colour, linestyle=dashes, label=label)
    clients.set_ylim(bottom=-0.2)
    clients.set_title("clients in each round", fontsize=9, loc="left")
    for panel in (epsilon, sent, clients):
        panel.legend()
    for panel in panels.flat:
        whole_numbers(panel.xaxis)
        for curve in panel.lines:
            if len(curve.get_xdata()) == 1:  # a line through one point is invisible
                curve.set_marker("o")
        if len(rows) == 1:
            panel.set_xlim(rows[0].round - 1, rows[0].round + 1)
    for panel in (sent, clients):
        panel.set_xlabel("round")
    return figure


def _tested(panel: "Axes", rows: Sequence[Row], chance: float | None) -> None:
    """Accuracy; the loss where targets are no classes."""
    measured = [(row.round, 100 * row.accuracy) for row in rows if row.accuracy is not None]
    losses = [] if measured else [(row.round, row.loss) for row in rows if row.loss is not None]
    shown = measured or losses
    panel.plot([r for r, _ in shown], [a for _, a in shown], color=BLUE)
    panel.set_title("test loss" if losses else "test accuracy, %", fontsize=9, loc="left")
    if chance is not None:
        panel.axhline(100 * chance, **GUESSING)


def _epsilon(panel: "Axes", rows: Sequence[Row]) -> None:
    for name, label, colour, dashes in (("max", "largest client", RED, "-"), ("median", "median client", BLACK, "--")):
        spent = [(row.round, getattr(row, f"epsilon_{name}")) for row in rows]
        finite = [(r, e) for r, e in spent if e < float("inf")]
        panel.plot([r for r, _ in finite], [e for _, e in finite], color=colour, linestyle=dashes, label=label)
        if not finite and name == "max":
            panel.text(0.5, 0.4, "no finite epsilon", ha="center", transform=panel.transAxes, color=ALARM)
    panel.set_title("epsilon so far", fontsize=9, loc="left")


def _bytes(panel: "Axes", rows: Sequence[Row]) -> None:
    for name, colour, dashes in (("uplink", BLUE, "-"), ("downlink", ORANGE, "--")):
        sums = list(accumulate(getattr(row, f"{name}_bytes") for row in rows))
        panel.plot([row.round for row in rows], sums, color=colour, linestyle=dashes, label=name)
    panel.yaxis.set_major_formatter(short_bytes)
    panel.set_title("payload bytes so far, all clients", fontsize=9, loc="left")
