"""Accuracy against all bytes of a run, at equal epsilon: which lines may stand in one picture, and their table.

Two lines share a panel where they solve the same task under the same trust and delta, and their epsilons differ by one
percent at most. Lines without any finite epsilon stand in every panel of their task, marked as NOT private.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulations.compare.table import Line
from simulations.report.terminal import human_bytes

SAME = 0.01
"""Share by which epsilons may differ and still count as equal: calibration ends within it below its target."""

TASK = ("workload", "dataset", "subset", "holdout")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines at one epsilon, the fewest uplink bytes first; ``title`` says which. Lines in it may be not private."""

    title: str
    lines: tuple[Line, ...]


def panels(table: Sequence[Line]) -> list[Panel]:
    """The finished lines, in panels of equal epsilon: ascending, tasks in the order of the table."""
    sent = [line for line in table if line.mean is not None and line.total_uplink]
    tasks = list(dict.fromkeys(_task(line) for line in sent))
    found = []
    for task in tasks:
        own = [line for line in sent if _task(line) == task]
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


def _task(line: Line) -> tuple[Any, ...]:
    return tuple(line.setting(name) for name in TASK)


def _bounded(line: Line) -> bool:
    return line.epsilon is not None and math.isfinite(line.epsilon)


def _claim(line: Line) -> tuple[str, float]:
    """What an epsilon is about, apart from its number."""
    return str(line.setting("trust") or "client"), float(line.setting("delta") or 0.0)


def _close(one: Line, other: Line) -> bool:
    assert one.epsilon is not None
    assert other.epsilon is not None
    return other.epsilon <= one.epsilon * (1 + SAME)


def _title(group: Sequence[Line]) -> str:
    epsilons = sorted({f"{line.epsilon:.3g}" for line in group}, key=float)
    trust, delta = _claim(group[0])
    span = epsilons[0] if len(epsilons) == 1 else f"{epsilons[0]} to {epsilons[-1]}"
    sums = ", of the sum alone (trust=aggregate)" if trust == "aggregate" else ""
    return f"epsilon {span} at delta {delta:g}{sums}"


def _ordered(own: Sequence[Line]) -> tuple[Line, ...]:
    return tuple(sorted(own, key=lambda line: (line.total_uplink or 0.0, line.name)))


COLUMNS = {
    "method": "method", "accuracy": "accuracy, %", "n": "n", "up": "uplink", "up_saved": "saved",
    "both": "both ways", "both_saved": "saved", "transfer": "transfer, s",
}  # fmt: skip


def cells(panel: Panel) -> list[dict[str, str]]:
    """What a reader sees of a panel's lines, by the keys of COLUMNS; no transfer where no link was asked for."""
    rows = [_cells(line) for line in panel.lines]
    empty = {"transfer"} if all(line.transfer is None for line in panel.lines) else set()
    return [{key: value for key, value in row.items() if key not in empty} for row in rows]


def _cells(line: Line) -> dict[str, str]:
    assert line.mean is not None
    up, down = line.total_uplink or 0.0, line.total_downlink or 0.0
    dense = (line.mean_of("uplink_bytes_dense") or 0.0, line.mean_of("downlink_bytes_dense") or 0.0)
    return {
        "method": marked(line),
        "accuracy": f"{100 * line.mean:.1f}" + ("" if line.sd is None else f" ± {100 * line.sd:.1f}"),
        "n": str(len(line.done)),
        "up": human_bytes(up),
        "up_saved": f"{dense[0] / up:.1f}x",
        "both": human_bytes(up + down),
        "both_saved": f"{sum(dense) / (up + down):.1f}x",
        "transfer": "--" if line.transfer is None else f"{line.transfer:.3g}",
    }


def marked(line: Line) -> str:
    """Its name, and that it is not private where it is not."""
    return line.name + ("" if line.private else ", NOT private")


def bytes_markdown(table: Sequence[Line]) -> str:
    """A heading and a Markdown table for each panel."""
    parts = []
    for panel in panels(table):
        rows = cells(panel)
        parts += [f"## {panel.title}", "", "| " + " | ".join(COLUMNS[key] for key in rows[0]) + " |"]
        parts += ["|" + "---|" * len(rows[0])]
        parts += ["| " + " | ".join(value.replace("|", "\\|") for value in row.values()) + " |" for row in rows]
        parts.append("")
    return "\n".join([*parts, f"{NOTE}.", ""])


NOTE = (
    "bytes are payloads of a whole run over all clients, mean over seeds; saved: dense bytes over them, beside "
    "it; both ways: uplink and downlink; panels hold what has the same epsilon (to one percent), delta and trust"
)
