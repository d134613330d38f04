"""The axes of a comparison: accuracy at each epsilon, or against all bytes at equal epsilon.

On the bytes axis lines are in panels. Two lines share a panel if they solve the same task under the
same trust and delta, and their epsilons differ by one percent at most. Lines without a finite
epsilon are in every panel of their task, marked as NOT PRIVATE.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fedlsg.config.choices import choose
from fedlsg.simulations.compare.grid.choosing import Choosing
from fedlsg.simulations.compare.results.line_words import (
    Line,
    mean_of,
    name_with_privacy,
    score_words,
)
from fedlsg.simulations.compare.results.lines import SAME, Labels
from fedlsg.simulations.compare.results.pandas_library import pd
from fedlsg.simulations.report.pages.page import Table
from fedlsg.simulations.report.pages.table import Column, make_table
from fedlsg.simulations.report.words import human_bytes
from fedlsg.simulations.storage.messages.links import Link, parse_link

AXES = ("epsilon", "bytes")


@dataclass(frozen=True, kw_only=True)
class View:
    """What a comparison shows.

    bytes: also accuracy against total bytes at equal epsilon.
    link: for which seconds of transfer are shown; None without.
    labels: names of methods, by their own labels.
    left_out: lines about methods and settings that are left out.
    notes: sentences of the grid.
    choosing: the search that chose the settings; None without one.
    """

    bytes: bool = False
    link: Link | None = None
    labels: Labels = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    choosing: Choosing | None = None

    @property
    def how_chosen(self) -> list[str]:
        """What choosing the settings cost, in sentences."""
        return self.choosing.words if self.choosing else []


PLAIN = View()


def make_view(axis: str | None, link: str | None, labels: Iterable[str] | None = None) -> View:
    """The view of the options ``--axis``, ``--link`` and ``--label``.

    Raises ValueError, naming the option, for other values.
    """
    if axis is not None:
        choose("--axis", axis, dict.fromkeys(AXES))
    return View(
        bytes=axis == "bytes",
        link=None if link is None else parse_link(link),
        labels=read_labels(labels or ()),
    )


def read_labels(pairs: Iterable[str]) -> Labels:
    """Names of methods from texts such as ``lsg=LSG, rank 4``.

    Raises ValueError for another form, and for a method or a name that comes twice.
    """
    labels = dict[str, str]()
    for pair in pairs:
        key, _, name = (part.strip() for part in pair.partition("="))
        if not key or not name:
            raise ValueError(f"expected --label METHOD=NAME, got {pair!r}")
        if key in labels or name in labels.values():
            raise ValueError(f"--label {pair}: {key} or {name} is given twice, leave one out")
        labels[key] = name
    return labels


class Panel(NamedTuple):
    """Lines at the epsilon of the ``title``, the fewest bytes first; some may be not private."""

    title: str
    lines: list[Line]


def panels(table: pd.DataFrame) -> list[Panel]:
    """Lines that sent bytes in panels of equal epsilon, ascending; tasks as in the table."""
    sent = table[table.uplink_bytes_total.fillna(0.0).gt(0.0)]
    panels = []
    for task, of_task in sent.groupby("task", sort=False):
        prefix = f"{task[0]}: " if sent.task.nunique() > 1 else ""
        bounded = of_task.epsilon_max < math.inf
        ordered = list(of_task.sort_values(["uplink_bytes_total", "name"]).itertuples())
        for group in _equal(of_task[bounded]) or [[]]:  # without private lines, one empty group
            title = _title(group) if group else "no private method"
            rows = {line.Index for line in group}
            kept = [line for line in ordered if line.Index in rows or line.epsilon_max == math.inf]
            panels.append(Panel(prefix + title, kept))
    return panels


def _equal(private: pd.DataFrame) -> list[list[Line]]:
    """Groups of one claim and of equal epsilon, ascending."""
    groups: list[list[Line]] = []
    for line in sorted(private.itertuples(), key=lambda line: (_claim(line), line.epsilon_max)):
        first = groups[-1][0] if groups else line
        limit = first.epsilon_max * (1 + SAME)
        if groups and _claim(first) == _claim(line) and line.epsilon_max <= limit:
            groups[-1].append(line)
        else:
            groups.append([line])
    return groups


def _claim(line: Line) -> tuple[str, str, float]:
    """What an epsilon refers to: level, trust and delta."""
    return line.level, line.trust, line.delta or 0.0


def _title(group: Sequence[Line]) -> str:
    """The claim that all lines of a group make, in words."""
    level, trust, delta = _claim(group[0])
    ends = (f"{line.epsilon_max:.3g}" for line in (group[0], group[-1]))  # ascending
    level_words = level and f", {level}"
    against = f", {AGAINST[trust]} (trust={trust})" if trust in AGAINST else ""
    return f"epsilon {' to '.join(dict.fromkeys(ends))} at delta {delta:g}{level_words}{against}"


AGAINST = {"server": "of the weights of all rounds", "secure": "of the sum, against its clients"}
"""What an epsilon is of, unless it is of each payload (trust=client)."""
NOTE = (
    "Bytes: payloads of a whole run over all clients, mean over seeds; saved: how many times "
    "smaller they are than dense updates; both ways: uplink plus downlink. The methods of one "
    "table have the same epsilon (within one percent), level, delta and trust."
)


def panel_table(panel: Panel) -> Table:
    """A row for each line of a panel; no column of transfer if no link is given."""
    ratio = "{:.1f}x".format
    columns = [
        Column("method", name_with_privacy),
        Column(mean_of(panel.lines), score_words),
        Column("n", "n"),
        Column("uplink", "uplink_bytes_total", human_bytes),
        Column("saved", "saved_ratio", ratio, optional=2),
        Column("both ways", both_ways, human_bytes),
        Column("saved", "saved_both", ratio, optional=1),
    ]
    if any(line.transfer_seconds is not None for line in panel.lines):
        columns.append(Column("transfer, s", "transfer_seconds", ".3g"))
    return make_table(
        columns,
        panel.lines,
        title=panel.title,
        style=lambda line: "" if line.private else "no-epsilon",
    )


def both_ways(line: Line) -> float:
    """Bytes of all payloads of a run."""
    return float(line.uplink_bytes_total + (line.downlink_bytes_total or 0.0))
