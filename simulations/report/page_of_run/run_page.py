"""report.html of one run, written at its end. It answers four questions, in this order: is it
private, does it work, what did it cost, what would help; then how it was made, and every setting.
"""

import logging
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fedlsg.simulations.planning.advice.remarks import rho_words
from fedlsg.simulations.report.drawing.chart import GUESSING, PREDICT_THE_MEAN, REFERENCES, Chart
from fedlsg.simulations.report.page_of_run.class_table import class_parts
from fedlsg.simulations.report.page_of_run.client_table import client_parts
from fedlsg.simulations.report.page_of_run.data_facts import data_facts
from fedlsg.simulations.report.page_of_run.run_charts import clients, costs, quality
from fedlsg.simulations.report.page_of_run.tiles import (
    budget_meter,
    cost_tiles,
    privacy_badge,
    privacy_tiles,
    progress_meter,
    quality_tiles,
)
from fedlsg.simulations.report.page_of_run.what_helps import (
    FEWER_BYTES,
    NOTHING,
    hints,
    is_named,
    lost_to_privacy,
)
from fedlsg.simulations.report.pages.facts import epsilon_section, made_section, row_warnings
from fedlsg.simulations.report.pages.figure import interactive
from fedlsg.simulations.report.pages.page import (
    Code,
    Facts,
    Page,
    Part,
    Section,
    Text,
    Tile,
    Tiles,
    data_section,
    download,
    facts_if_any,
    json_text,
    sections,
)
from fedlsg.simulations.report.pages.settings_section import settings_section, values_line
from fedlsg.simulations.report.pages.template import render
from fedlsg.simulations.report.words import (
    epsilon_words,
    outcome,
    percent,
    printable,
    privacy_line,
    run_headline,
)
from fedlsg.simulations.settings.own_epsilons import numbered
from fedlsg.simulations.settings.rule_checker import without_effect
from fedlsg.simulations.settings.settings import (
    FOLDERS,
    MAY_NAME_FILES,
    RUN,
    callbacks_with,
)
from fedlsg.simulations.storage.atomic_files import write_atomically
from fedlsg.simulations.storage.results import Result, Summary, as_csv, read_run
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads.base.split import STANDARD_ERRORS, standard_error
from fedlsg.simulations.workloads.user_workload import MODEL
from fedlsg.user_code import shown

log = logging.getLogger(__name__)

PLACES = frozenset({*FOLDERS, "public_rows"})
"""Settings that name, or may name, folders of this machine."""
NAME_FILES = (*MAY_NAME_FILES, "pretrained", "start_from", "features", "callbacks", "availability")
"""Settings of which a page shows the name of a file, without its folder."""
EACH = "One point a round."
SHARE = "Accuracy is the share of test examples that the model classifies correctly."
DOTTED = "The dotted line is {}."
SPENT = (
    "The same points for what they took: further left is more private, or cheaper. Bytes are "
    "payloads of all clients up to then."
)
WHO = (
    "How many clients were selected, how many replied, and how many brought no update: they were "
    "away, refused, failed, or sent what the server rejected."
)
TIMED = (
    " Dropped out: clients that left before they trained. Late: clients that trained and were "
    "charged, and whose values came too late."
)
TYPED = "What was given; all else is by default, or by the rule:"
AGAIN = "This command gives every setting that is not at its default, whatever the rule says later:"
COST = ("values sent", "transfer", "empty rounds", "simulated time", "selected clients")
MADE_OF = ("features", "carriers")
"""Facts of ``outcome`` by the question that they answer; the others are cards."""


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
    """The page of one run, finished or not. ``against``: a run without privacy; ``follow``: as in
    ``render``.
    """
    settings = {
        name: value
        for name, value in result.settings.items()
        if value is not None and name not in PLACES
    }
    settings = {name: _without_folders(name, value) for name, value in settings.items()}
    typed, again = (
        Code(text=typed_command(result), note=TYPED),
        Code(text=command(result) if is_named(result) else "", note=AGAIN),
    )
    rejected = tuple((f"round {row.round}", row.reasons) for row in result.rows if row.reasons)
    progress = progress_meter(result)
    return render(
        Page(
            kind="fedlsg run",
            title=_title_of(result, settings),
            lead=f"Run directory {result.name}.",
            headline=run_headline(result),
            badge=privacy_badge(result),
            warnings=tuple(_warnings(result)),
            sections=sections(
                ("", [progress] if progress else []),
                ("Is it private?", _privacy(result)),
                ("Does it work?", _quality(result, against)),
                ("What did it cost?", _cost(result)),
                ("What would help?", _help(result, against)),
                ("Clients without an update", [Facts(rows=rejected)] if rejected else []),
                replace(epsilon_section([result]), folded=True),
                _made(result, typed, again),
                settings_section(result, settings),
                _data(result),
            ),
        ),
        follow=follow,
    )


def _title_of(result: Result, settings: Summary) -> str:
    """Workload, method and seed; data of a user's own without a name are those of a file or folder
    of train.
    """
    name = str(settings["workload"])
    if name == MODEL and (train := result.start.get("arguments", {}).get("train")):
        name = f"own data ({printable(train[1:-1])})"
    return f"{name} with {shown(result.method)}, seed {settings['seed']}"


def _made(result: Result, *commands: Code) -> Section:
    """What a finished run was trained and ran on, and the commands that repeat it."""
    data = facts_if_any(data_facts(result))
    if result.done:
        section = made_section([result], *commands)
        return replace(section, parts=(*data, *section.parts))
    shown_commands = [code for code in commands if code.text]
    return Section(title="How it was made", parts=(*data, *shown_commands))


def _figure(charts: Sequence[Chart], caption: str) -> list[Part]:
    """The figure, if there is a chart; three in a row where two would leave one alone."""
    columns = 3 if len(charts) in (3, 5) else 2
    return [interactive(charts, caption, columns=columns)] if charts else []


def _privacy(result: Result) -> list[Part]:
    """For whom and against whom, with how much noise; what rho means, where there is noise."""
    cards, said = privacy_tiles(result), list[Part]()
    if budget := budget_meter(result):
        said = [budget]
    elif result.private and result.summary["trust"] != "client":
        line = privacy_line(result.summary)
        said = [Text(words=f"{line[:1].upper()}{line[1:]}.")]
        said += facts_if_any(_chosen(result, ("readers",)))
    if before := started_words(result):
        said = [Text(words=before), *said]
    rho = list[Part]()
    if length := result.summary.get("rho"):
        fewer = (result.saved or 1.0) > FEWER_BYTES
        secure = result.summary["trust"] != "client"
        words = rho_words(length, fewer=fewer, secure=secure)
        rho = [Text(words=f"{words[:1].upper()}{words[1:]}", style="note")]
    return [*_cards(cards), *said, *rho]


def started_words(result: Result) -> str:
    """What a run that starts from another one counts in addition to its own rounds; empty for
    another run.
    """
    before = result.start.get("before")
    if not before:
        return ""
    what = f"{before['rounds']} rounds"
    if "epsilon" in before and result.noisy:
        what = f"epsilon {epsilon_words(before['epsilon'])} and {what}"
        counted = "The epsilon here includes that; rounds, bytes and time here do not."
    else:
        counted = "Rounds, bytes and time here do not include these."
    return f"Trained further: started from {before['run']}, after {what}. {counted}"


def _cards(cards: Sequence[Tile]) -> list[Part]:
    return [Tiles(tiles=tuple(cards))] if cards else []


def _quality(result: Result, against: Result | None) -> list[Part]:
    """What was measured, against guessing or predicting the mean: round by round, and of each class
    and client.
    """
    drawn, verdict = quality(result, against), works(result)
    words = [EACH, *([SHARE] if result.accuracy is not None else []), *_references(drawn)]
    chance = None if result.chance is None else result.chance.level
    return [
        *_cards(quality_tiles(result, against)),
        *([Text(words=verdict, style="verdict")] if verdict else []),
        *([Text(words=gap)] if (gap := gap_words(result, against)) else []),
        *facts_if_any(_chosen(result, MADE_OF)),
        *_figure(drawn, " ".join(words)),
        *class_parts(result),
        *client_parts(result.summary.get("by_client", []), chance),
    ]


def gap_words(result: Result, against: Result | None) -> str:
    """What privacy costs a run, in one sentence; empty without a run to compare with."""
    lost = lost_to_privacy(result, against)
    if lost is None:
        return ""
    points = f"{100 * abs(lost.points):.1f} points {'more' if lost.points > 0 else 'less'}"
    level = (
        ", which is within the standard error of the test split: no loss is seen"
        if lost.level
        else ""
    )
    return f"Without privacy the accuracy is {percent(lost.without)}, {points}{level}."


def _references(drawn: Sequence[Chart]) -> list[str]:
    """What the dotted line of some charts is."""
    names = dict.fromkeys(
        one.name for chart in drawn for one in chart.series if one.name in REFERENCES
    )
    said = {
        GUESSING: "the accuracy of guessing",
        PREDICT_THE_MEAN: "what predicting the mean of the test targets reaches",
    }
    return [DOTTED.format(" and ".join(said[name] for name in names))] if names else []


def works(result: Result) -> str:
    """Whether a finished run is better than guessing, or than predicting the mean; empty where the
    headline says it, and where it is not known.
    """
    if not result.done:
        return ""
    if result.accuracy is not None and result.chance is not None:
        over = result.accuracy - result.chance.level
        errors = over / standard_error([result.accuracy], result.chance)
        if errors <= STANDARD_ERRORS:
            return ""
        return f"Better than guessing by {100 * over:.1f} points, {errors:.0f} standard errors."
    mean = result.summary.get("predict_the_mean")
    if mean is None:
        return ""
    share = 1 - float(result.summary["loss"]) / mean["loss"] if mean["loss"] else 0.0
    if share <= 0:
        return "Not better than predicting the mean: the model has learned nothing of use."
    return f"The loss is {100 * share:.0f} % below that of predicting the mean."


def _cost(result: Result) -> list[Part]:
    """Bytes, time, and the score against privacy and bytes; who took part, where not all did."""
    spent, who = costs(result), clients(result)
    timed = TIMED if any(row.simulated for row in result.rows) else ""
    return [
        *_cards(cost_tiles(result)),
        *_figure(spent, SPENT),
        *_figure(who, WHO + timed),
        *facts_if_any(_chosen(result, COST)),
    ]


def _help(result: Result, against: Result | None) -> list[Part]:
    """Hints; that there is none, of a finished run."""
    if not result.done:
        return []
    found = hints(result, against=against)
    return [Facts(rows=tuple(found))] if found else [Text(words=NOTHING)]


def _chosen(result: Result, names: Iterable[str]) -> dict[str, str]:
    """These facts of a finished run; the transfer on one link if the reader named one."""
    if not result.done:
        return {}
    words = outcome(result.summary)
    if said := values_line(result.summary):
        words["values sent"] = said
    if result.transfer is not None:
        words["transfer"] = f"{result.transfer:.3g} s on {result.link}"
    return {name: words[name] for name in names if name in words}


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


def command(result: Result) -> str:
    """The ``fedlsg run`` command with these settings, without the folders of this machine, and
    without settings that have no effect, which a run refuses where they are given.
    """
    idle = without_effect(result.settings)
    words = ["fedlsg", "run", shown(str(result.settings["workload"]))]
    for name, given in result.settings.items():
        usual = RUN[name].default if name in RUN else None
        if given != usual and name not in {*PLACES, *idle, "workload"}:
            value = _without_folders(name, given)
            words += ["-c", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join(words)


def typed_command(result: Result) -> str:
    """What the user gave, as a command, or as a call where workload or method have no name that a
    command knows; empty where it is not on record. What each client has is by its number, and left
    out where clients have names, which others may read here, and where they are many.
    """
    given, settings = result.start.get("given"), result.settings
    if given is None:
        return ""
    values: dict[str, Any] = {}
    for name, word in given.items():
        own = settings.get(f"client_{name}s") if name in ("epsilon", "delta") else None
        value = settings.get("from_preset" if name == "preset" else name)
        if name in PLACES or value is None:
            continue
        if name in ("client_epsilons", "client_deltas") or (
            own is not None and f"client_{name}s" not in given
        ):
            setting = name if own is None else f"client_{name}s"
            values[setting] = _by_number(result, setting)
        else:
            values[name] = word or _without_folders(name, value)
    if "method" in (settings.get("auto") or "").split():
        values.pop("method", None)
    if "engine" in values and settings.get("engine") != "flower":
        values.pop("engine")  # it changes no number
    workload = shown(str(values.pop("workload", settings["workload"])))
    if is_named(result):
        words = ["fedlsg", "run", workload]
        for name, value in values.items():
            dashed = f"--{name.replace('_', '-')}"
            words += (
                ["-c", f"{name}={str(value).lower()}"]
                if isinstance(value, bool)
                else [dashed, f"{value:g}" if isinstance(value, float) else str(value)]
            )
        return shlex.join(words)
    if "method" in values:
        values = {"method": shown(str(values["method"])), **values}
    of_data = result.start.get("arguments", {})
    typed = {**of_data, **{name: repr(value) for name, value in values.items()}, **of_data}
    words = [f"{name}={as_typed}" for name, as_typed in typed.items()]
    return f"fedlsg.simulate({', '.join(['...', *words])})"


LISTED = 20
"""So many clients are listed in a command, each with its epsilon."""


def _by_number(result: Result, setting: str) -> str:
    """A setting of the clients' own epsilons or deltas, to copy; dots where it is left out."""
    what = "epsilon" if setting == "client_epsilons" else "delta"
    numbers = numbered(str(result.settings[setting]), what)
    if result.start.get("rows", {}).get("named", True) or len(numbers) > LISTED:
        return "..."
    return ", ".join(f"#{client}={value:g}" for client, value in numbers.items())


def _without_folders(name: str, value: Any) -> Any:
    """A setting without the folders of this machine."""
    if not isinstance(value, str) or name not in NAME_FILES:
        return value
    return callbacks_with(value, shown) if name == "callbacks" else shown(value)


def _warnings(result: Result) -> list[str]:
    """What a reader must not overlook."""
    found = []
    if not result.done and result.status != "running":
        found.append(
            f"{result.status}: "
            f"{result.reason or 'this run is not finished; continue it with fedlsg resume'}"
        )
    found += row_warnings([result])
    if result.done and result.reason:
        found.append(f"stopped early: {result.reason}")
    return found
