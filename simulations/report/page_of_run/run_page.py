"""report.html of one run, written at its end.

It answers four questions, in this order: is it private, does it work, what did it cost, what would
help. Then it says how the run was made, and every setting.
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
    smaller_epsilon,
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
"""Settings whose file a page shows by its name, without its folder."""
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
"""Facts of ``outcome`` in the section of the cost; cards have bytes and time."""
MADE_OF = ("features", "carriers")
"""Facts of ``outcome`` in the section of the quality; cards have what was measured."""
MAX_LISTED = 20
"""The most clients that are listed in a command, each with its epsilon."""


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
    """The page of one run, finished or not.

    against: a run without privacy; None without.
    follow: as in ``render``.
    """
    settings = {
        name: _without_folders(name, value)
        for name, value in result.settings.items()
        if value is not None and name not in PLACES
    }
    typed = Code(text=typed_command(result), note=TYPED)
    again = Code(text=command(result) if is_named(result) else "", note=AGAIN)
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
                ("Is it private?", _privacy(result, against)),
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
    """Workload, method and seed; for unnamed data of a user's own, the file or folder of train."""
    name = str(settings["workload"])
    if name == MODEL and (train := result.start.get("arguments", {}).get("train")):
        name = f"own data ({printable(train[1:-1])})"
    return f"{name} with {shown(result.method)}, seed {settings['seed']}"


def _made(result: Result, *commands: Code) -> Section:
    """What a finished run was trained and ran on, and the commands that repeat it."""
    data = data_facts(result)
    if result.done:
        return made_section([result], *commands, data=data)
    shown_commands = [code for code in commands if code.text]
    return Section(title="How it was made", parts=(*facts_if_any(data), *shown_commands))


def _figure(charts: Sequence[Chart], caption: str) -> list[Part]:
    """The figure, if there is a chart; three charts in a row if two would leave one alone."""
    columns = 3 if len(charts) in (3, 5) else 2
    return [interactive(charts, caption, columns=columns)] if charts else []


def _privacy(result: Result, against: Result | None) -> list[Part]:
    """Of whom and against whom epsilon is, the budget, and what rho means.

    What rho means is advice, which a run without anything left to gain does not need.
    """
    parts = _cards(privacy_tiles(result))
    if before := started_words(result):
        parts.append(Text(words=before))
    if budget := budget_meter(result):
        parts.append(budget)
    elif result.private and result.summary["trust"] != "client":
        line = privacy_line(result.summary)
        parts.append(Text(words=f"{line[:1].upper()}{line[1:]}."))
        parts += facts_if_any(_chosen(result, ("readers",)))
    if (rho := result.summary.get("rho")) and smaller_epsilon(result, against) is None:
        fewer = (result.saved or 1.0) > FEWER_BYTES
        secure = result.summary["trust"] != "client"
        images = result.start.get("rows", {}).get("images", False)
        words = rho_words(rho, fewer=fewer, secure=secure, images=images)
        parts.append(Text(words=f"{words[:1].upper()}{words[1:]}", style="note"))
    return parts


def started_words(result: Result) -> str:
    """The epsilon and rounds of the run that a run starts from, in words; empty without one."""
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
    """The cards as a part, if there are some."""
    return [Tiles(tiles=tuple(cards))] if cards else []


def _quality(result: Result, against: Result | None) -> list[Part]:
    """What was measured, compared with guessing or the mean: by round, class and client."""
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
    """A sentence about the dotted lines of some charts, if there are any."""
    names = dict.fromkeys(
        series.name for chart in drawn for series in chart.series if series.name in REFERENCES
    )
    words = {
        GUESSING: "the accuracy of guessing",
        PREDICT_THE_MEAN: "what predicting the mean of the test targets reaches",
    }
    return [DOTTED.format(" and ".join(map(words.__getitem__, names)))] if names else []


def works(result: Result) -> str:
    """How much better a finished run is than guessing, or than predicting the mean, in words.

    Empty if the headline says it, or if it is not known.
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
    """Bytes, time, the score against privacy and bytes, and who took part unless all did."""
    spent, who = costs(result), clients(result)
    timed = TIMED if any(row.simulated for row in result.rows) else ""
    return [
        *_cards(cost_tiles(result)),
        *_figure(spent, SPENT),
        *_figure(who, WHO + timed),
        *facts_if_any(_chosen(result, COST)),
    ]


def _help(result: Result, against: Result | None) -> list[Part]:
    """Hints for a finished run, or that there are none."""
    if not result.done:
        return []
    rows = hints(result, against=against)
    return [Facts(rows=tuple(rows))] if rows else [Text(words=NOTHING)]


def _chosen(result: Result, names: Iterable[str]) -> dict[str, str]:
    """The named facts of a finished run; the transfer is for the link that the reader named."""
    if not result.done:
        return {}
    words = outcome(result.summary)
    if values := values_line(result.summary):
        words["values sent"] = values
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
    """The ``fedlsg run`` command with all settings of the run that are not at their defaults.

    It has no folders of this machine, and no settings without effect, which a run would refuse.
    """
    left_out = {*PLACES, *without_effect(result.settings), "workload"}
    words = ["fedlsg", "run", shown(str(result.settings["workload"]))]
    for name, value in result.settings.items():
        default = RUN[name].default if name in RUN else None
        if value != default and name not in left_out:
            value = _without_folders(name, value)
            words += ["-c", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join(words)


def typed_command(result: Result) -> str:
    """What the user gave, as a command; empty if it is not on record.

    It is a call in Python if workload or method have no name that a command knows. The epsilons and
    deltas of clients are by number. They are left out if clients have names, which others may read
    here, or if there are many clients.
    """
    given, settings = result.start.get("given"), result.settings
    if given is None:
        return ""
    values = _typed_values(result, given)
    workload = shown(str(values.pop("workload", settings["workload"])))
    if is_named(result):
        words = ["fedlsg", "run", workload]
        for name, value in values.items():
            if isinstance(value, bool):
                words += ["-c", f"{name}={str(value).lower()}"]
            else:
                option = f"--{name.replace('_', '-')}"
                words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
        return shlex.join(words)
    if "method" in values:
        values = {"method": shown(str(values["method"])), **values}
    of_data = result.start.get("arguments", {})
    # arguments of the data come first, and win over settings of one name
    texts = {**of_data, **{name: repr(value) for name, value in values.items()}, **of_data}
    words = [f"{name}={text}" for name, text in texts.items()]
    return f"fedlsg.simulate({', '.join(['...', *words])})"


def _typed_values(result: Result, given: Summary) -> dict[str, Any]:
    """The values of the settings that the user gave, without those that change no number.

    given: by setting, the word that stands for its value; empty: the value itself.
    """
    settings = result.settings
    values: dict[str, Any] = {}
    for name, word in given.items():
        value = settings.get("from_preset" if name == "preset" else name)
        if name in PLACES or value is None:
            continue
        own = f"client_{name}s"  # of epsilon and delta: the setting of each client's own
        if name in ("client_epsilons", "client_deltas"):
            values[name] = _by_number(result, name)
        elif name in ("epsilon", "delta") and own not in given and settings.get(own) is not None:
            values[own] = _by_number(result, own)
        else:
            values[name] = word or _without_folders(name, value)
    if "method" in (settings.get("auto") or "").split():
        values.pop("method", None)
    if settings.get("engine") != "flower":
        values.pop("engine", None)
    return values


def _by_number(result: Result, setting: str) -> str:
    """Each client's own epsilon or delta as a text to copy; dots if it is left out."""
    what = "epsilon" if setting == "client_epsilons" else "delta"
    numbers = numbered(str(result.settings[setting]), what)
    if result.start.get("rows", {}).get("named", True) or len(numbers) > MAX_LISTED:
        return "..."
    return ", ".join(f"#{client}={value:g}" for client, value in numbers.items())


def _without_folders(name: str, value: Any) -> Any:
    """A setting without the folders of this machine."""
    if not isinstance(value, str) or name not in NAME_FILES:
        return value
    return callbacks_with(value, shown) if name == "callbacks" else shown(value)


def _warnings(result: Result) -> list[str]:
    """Sentences that a reader must not overlook."""
    warnings = []
    if not result.done and result.status != "running":
        why = result.reason or "this run is not finished; continue it with fedlsg resume"
        warnings.append(f"{result.status}: {why}")
    warnings += row_warnings([result])
    if result.done and result.reason:
        warnings.append(f"stopped early: {result.reason}")
    return warnings
