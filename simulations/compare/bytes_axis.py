"""The axes of a comparison: accuracy at each epsilon, or against all bytes of a run at equal epsilon, in panels.

Two lines share a panel if they solve the same task under the same trust and delta, and their epsilons differ by one
percent at most. Lines without a finite epsilon are in every panel of their task, marked as NOT PRIVATE.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fedlsg.setting.choices import choose
from simulations.compare.lines import Line, score_words
from simulations.report.page import Table
from simulations.report.table import Column, make_table
from simulations.report.words import NOT_PRIVATE, human_bytes
from simulations.rundir.journal import Link, parse_link

SAME = 0.01
"""Relative difference of epsilons that count as equal: calibration ends within it below its target."""


AXES = ("epsilon", "bytes")


@dataclass(frozen=True, kw_only=True)
class View:
    """``axis`` bytes adds accuracy against total bytes at equal epsilon; ``link`` adds seconds of transfer on it.

    ``left_out``: lines about methods and settings that are left out. ``notes``: how the settings were chosen.
    """

    axis: str = "epsilon"
    link: Link | None = None
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> bool:
        return self.axis == "bytes"


PLAIN = View()


def make_view(axis: str | None, link: str | None) -> View:
    """From the options ``--axis`` and ``--link``; raises ValueError naming the option."""
    if axis is not None:
        choose("--axis", axis, dict.fromkeys(AXES))
    return View(axis=axis or "epsilon", link=None if link is None else parse_link(link))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines at the epsilon of the ``title``, the fewest uplink bytes first; some of them may be not private."""

    title: str
    lines: tuple[Line, ...]


def panels(table: Sequence[Line]) -> list[Panel]:
    """The finished lines in panels of equal epsilon, ascending; tasks in the order of the table."""
    sent = [line for line in table if line.mean is not None and line.total_uplink]
    tasks = list(dict.fromkeys(line.task for line in sent))
    found = []
    for task in tasks:
        own = [line for line in sent if line.task == task]
        free = [line for line in own if not _bounded(line)]
        bounded = [line for line in own if _bounded(line)]
        groups: list[list[Line]] = []
        for line in sorted(bounded, key=lambda line: (_claim(line), line.epsilon)):
            if groups and _claim(groups[-1][0]) == _claim(line) and _close(groups[-1][0], line):
                groups[-1].append(line)
            else:
                groups.append([line])
        prefix = f"{task[0]}: " if len(tasks) > 1 else ""
        found += [Panel(title=prefix + _title(group), lines=_ordered([*group, *free])) for group in groups]
        if not groups:
            found.append(Panel(title=prefix + "no private method", lines=_ordered(free)))
    return found


def _bounded(line: Line) -> bool:
    return line.epsilon is not None and math.isfinite(line.epsilon)


def _claim(line: Line) -> tuple[str, str, float]:
    """What an epsilon refers to: level, trust and delta."""
    return line.of_unit.level, line.trust, float(line.setting("delta") or 0.0)


def _close(one: Line, other: Line) -> bool:
    assert one.epsilon is not None
    assert other.epsilon is not None
    return other.epsilon <= one.epsilon * (1 + SAME)


def _title(group: Sequence[Line]) -> str:
    epsilons = sorted({f"{line.epsilon:.3g}" for line in group}, key=float)
    level, trust, delta = _claim(group[0])
    span = epsilons[0] if len(epsilons) == 1 else f"{epsilons[0]} to {epsilons[-1]}"
    of = level and f", {level}"
    sums = "" if trust == "client" else f", of the sum only, against its clients (trust={trust})"
    return f"epsilon {span} at delta {delta:g}{of}{sums}"


def _ordered(own: Sequence[Line]) -> tuple[Line, ...]:
    return tuple(sorted(own, key=lambda line: (line.total_uplink or 0.0, line.name)))


NOTE = (
    "Bytes: payloads of a whole run over all clients, mean over seeds; saved: how many times smaller they are than "
    "dense updates; both ways: uplink plus downlink. The methods of one table have the same epsilon (within one "
    "percent), delta and trust."
)


def panel_table(panel: Panel) -> Table:
    """A row for each line of a panel; no column of transfer if no link is given."""
    by_loss = any(line.by_loss for line in panel.lines)
    columns = [
        Column("method", marked),
        Column("test loss" if by_loss else "accuracy, %", score_words),
        Column("n", lambda line: len(line.done)),
        Column("uplink", lambda line: line.total_uplink, human_bytes),
        Column("saved", _saved, "{:.1f}x".format, optional=2),
        Column("both ways", lambda line: line.total_uplink + line.total_downlink, human_bytes),
        Column("saved", partial(_saved, both=True), "{:.1f}x".format, optional=1),
        Column("transfer, s", lambda line: line.transfer, ".3g"),
    ]  # fmt: skip
    timed = any(line.transfer is not None for line in panel.lines)
    return make_table(
        columns if timed else columns[:-1], panel.lines, title=panel.title,
        style=lambda line: "" if line.private else "no-epsilon",
    )  # fmt: skip


def _saved(line: Line, *, both: bool = False) -> float:
    """How many times smaller than dense updates the payloads are that were sent, or also received."""
    ways = ("uplink", "downlink") if both else ("uplink",)
    dense, found = (sum(line.mean_of(f"{way}_bytes{kind}") or 0.0 for way in ways) for kind in ("_dense", ""))
    return dense / found


def marked(line: Line) -> str:
    """The name of a line; one that is not private says so."""
    return line.name + ("" if line.private else f", {NOT_PRIVATE}")


def bytes_markdown(table: Sequence[Line]) -> str:
    """A heading and a Markdown table for each panel."""
    parts = [part for panel in panels(table) for part in (f"## {panel.title}", "", panel_table(panel).markdown)]
    return "\n".join([*parts, NOTE, ""])
