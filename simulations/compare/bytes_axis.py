"""The axes of a comparison: accuracy at each epsilon, or against all bytes at equal epsilon.

On the bytes axis lines are in panels. Two lines share a panel if they solve the same task under the
same trust and delta, and their epsilons differ by one percent at most. Lines without a finite
epsilon are in every panel of their task, marked as NOT PRIVATE.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter, methodcaller

from fedlsg.config.choices import choose
from fedlsg.simulations.compare.lines import SAME, Line, measured, score_words
from fedlsg.simulations.report.page import Table
from fedlsg.simulations.report.table import Column, make_table
from fedlsg.simulations.report.words import human_bytes
from fedlsg.simulations.storage.journal import Link, parse_link

AXES = ("epsilon", "bytes")


@dataclass(frozen=True, kw_only=True)
class View:
    """What a comparison shows.

    ``bytes`` adds accuracy against total bytes at equal epsilon; ``link`` adds seconds of transfer
    on it. ``left_out``: lines about methods and settings that are left out. ``notes``: how the
    settings were chosen.
    """

    bytes: bool = False
    link: Link | None = None
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


PLAIN = View()


def make_view(axis: str | None, link: str | None) -> View:
    """From the options ``--axis`` and ``--link``; raises ValueError naming the option."""
    if axis is not None:
        choose("--axis", axis, dict.fromkeys(AXES))
    return View(bytes=axis == "bytes", link=None if link is None else parse_link(link))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines at the epsilon of the ``title``, the fewest bytes first; some may be not private."""

    title: str
    lines: tuple[Line, ...]


def panels(table: Sequence[Line]) -> list[Panel]:
    """The finished lines in panels of equal epsilon, ascending; tasks in the order of the table."""
    sent = sorted(
        (line for line in table if line.mean_of("uplink_bytes")),
        key=lambda line: (line.mean_of("uplink_bytes"), line.name),
    )
    tasks = list(dict.fromkeys(line.task for line in table if line in sent))
    found = []
    for task in tasks:
        prefix = f"{task[0]}: " if len(tasks) > 1 else ""
        own = [line for line in sent if line.task == task]
        groups = _equal([line for line in own if line.bounded]) or [[]]
        for group in groups:
            title = _title(group) if group else "no private method"
            shown = [line for line in own if line in group or not line.bounded]
            found.append(Panel(title=prefix + title, lines=tuple(shown)))
    return found


def _equal(own: Sequence[Line]) -> list[list[Line]]:
    """Groups of one claim and of equal epsilon, ascending."""
    groups: list[list[Line]] = []
    most = 0.0
    for line in sorted(own, key=lambda line: (_claim(line), line.epsilon)):
        epsilon = line.epsilon or 0.0
        if groups and _claim(groups[-1][0]) == _claim(line) and epsilon <= most:
            groups[-1].append(line)
        else:
            groups.append([line])
            most = epsilon * (1 + SAME)
    return groups


def _claim(line: Line) -> tuple[str, str, float]:
    """What an epsilon refers to: level, trust and delta."""
    return line.unit.level, line.trust, float(line.setting("delta") or 0.0)


def _title(group: Sequence[Line]) -> str:
    epsilons = sorted({f"{line.epsilon:.3g}" for line in group}, key=float)
    level, trust, delta = _claim(group[0])
    span = " to ".join(dict.fromkeys((epsilons[0], epsilons[-1])))
    of = level and f", {level}"
    against = "" if trust == "client" else f", of the sum only, against its clients (trust={trust})"
    return f"epsilon {span} at delta {delta:g}{of}{against}"


NOTE = (
    "Bytes: payloads of a whole run over all clients, mean over seeds; saved: how many times "
    "smaller they are than dense updates; both ways: uplink plus downlink. The methods of one "
    "table have the same epsilon (within one percent), delta and trust."
)


def panel_table(panel: Panel) -> Table:
    """A row for each line of a panel; no column of transfer if no link is given."""
    scores = measured(panel.lines).replace("test accuracy", "accuracy")
    ratio = "{:.1f}x".format
    columns = [
        Column("method", attrgetter("marked")),
        Column(scores, score_words),
        Column("n", lambda line: len(line.done)),
        Column("uplink", methodcaller("mean_of", "uplink_bytes"), human_bytes),
        Column("saved", attrgetter("saved"), ratio, optional=2),
        Column("both ways", _both_ways, human_bytes),
        Column("saved", methodcaller("compression", "uplink", "downlink"), ratio, optional=1),
    ]
    if any(line.transfer is not None for line in panel.lines):
        columns.append(Column("transfer, s", attrgetter("transfer"), ".3g"))
    return make_table(
        columns,
        panel.lines,
        title=panel.title,
        style=lambda line: "" if line.private else "no-epsilon",
    )


def _both_ways(line: Line) -> float:
    return sum(line.mean_of(f"{way}_bytes") or 0.0 for way in ("uplink", "downlink"))


def bytes_markdown(table: Sequence[Line]) -> str:
    """A heading and a Markdown table for each panel."""
    found = [f"## {panel.title}\n\n{panel_table(panel).markdown}" for panel in panels(table)]
    return "\n".join([*found, NOTE, ""])
