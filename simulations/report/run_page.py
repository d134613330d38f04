"""report.html of one run, written at its end: what it reached, what it cost, and every setting."""

import logging
import shlex

from simulations.report.course import CAPTION, course
from simulations.report.facts import HELD_OUT, epsilon_section, made_section
from simulations.report.figure import picture
from simulations.report.page import render
from simulations.report.sections import Code, Facts, Page, Part, Section, facts_of
from simulations.report.words import outcome, percent, privacy_line
from simulations.rundir.files.atomic import write_atomically
from simulations.rundir.results import Result, read_run
from simulations.rundir.rundir import RunDir
from simulations.settings.settings import RUN
from simulations.workloads.chance import beats_chance

log = logging.getLogger(__name__)

PLACES = frozenset({"run_dir", "data_dir"})
"""Settings that name folders of this machine."""


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
    again = Code(text=command(result), note="This command runs the same settings again:")
    return render(
        Page(
            title=f"{result.settings['workload']} with {result.method}, seed {result.settings['seed']}",
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
    if result.rows:
        chance = None if result.chance is None else result.chance.level
        parts.append(picture(course(result.rows, chance), CAPTION))
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
    words = ["fedlsg", "run", str(result.settings["workload"])]
    for name, value in given.items():
        words += ["-c", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join(words)


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
    if result.held_out:
        found.append(HELD_OUT)
    if result.done and result.reason:
        found.append(f"stopped early: {result.reason}")
    return found
