"""The words of a line of a comparison: its name, its score, and what its numbers are."""

from collections.abc import Iterable, Mapping
from typing import Any

from fedlsg.simulations.report.words import NOT_PRIVATE

Line = Any
"""A row of the table, of ``itertuples``."""
NAMELESS = (("rank", None), ("rank", 0), ("sparsity", None))
"""Values that the name of a line leaves out."""


def line_name(label: str, settings: Mapping[str, Any], level: str = "") -> str:
    """A label with settings and what epsilon protects, for legends."""
    words = [
        f"{name} {value_words(value)}"
        for name, value in settings.items()
        if (name, value) not in NAMELESS
    ]
    words += [level] if level and "unit" not in settings else []
    return f"{label} ({', '.join(words)})" if words else label


def family(line: Line, axes: Iterable[str] = ()) -> str:
    """The name that a line shares with those that differ from it in the settings ``axes`` alone."""
    settings = {name: value for name, value in line.settings.items() if name not in axes}
    if line.epsilon_target is not None:
        settings["epsilon"] = line.epsilon_target
    return line_name(line.label, settings, line.level)


def name_with_privacy(line: Line, name: str = "") -> str:
    """The name of a line, or another one for it, which says so if the line is not private."""
    name = name or line.name
    return f"{name}, {NOT_PRIVATE}" if line.private is False else name


def shown(line: Line, value: float) -> str:
    """A score for people: percent with one decimal, or a loss."""
    return f"{value:.4g}" if line.by_loss else f"{100 * value:.1f}"


def score_words(line: Line) -> str:
    """The mean of a finished line, with its standard deviation over seeds."""
    return shown(line, line.mean) + ("" if line.sd is None else f" ± {shown(line, line.sd)}")


def measured(table: Iterable[Line]) -> str:
    """What the scores of these lines are, for axes."""
    table = list(table)
    rows = "held-out" if any(line.run.held_out for line in table) else "test"
    return f"{rows} loss" if any(line.by_loss for line in table) else f"{rows} accuracy, %"


def mean_of(table: Iterable[Line]) -> str:
    """What the scores of these lines are, for columns: each is mean ± standard deviation."""
    table = list(table)
    loss = any(line.by_loss for line in table)
    return f"{measured(table)} ± s.d." if loss else "accuracy ± s.d., %"


def seeds_of(table: Iterable[Line]) -> str:
    """The number of seeds of these lines in words, "2 to 3 seeds"; empty if each has one."""
    counts = {line.n for line in table if line.n}
    least, most = min(counts, default=0), max(counts, default=0)
    if most < 2:
        return ""
    return f"{most} seeds" if least == most else f"{least} to {most} seeds"


def number_of(line: Line, value: float | None) -> str:
    """A difference of losses, or of accuracies in points; empty for None.

    It has one decimal. Below 0.095 in size, it has two significant digits.
    """
    if value is None:
        return ""
    number = value if line.by_loss else 100 * value
    return f"{number:.1f}" if abs(number) >= 0.095 else f"{number:.2g}"


def value_words(value: Any) -> str:
    """A varied value for people."""
    return f"{value:g}" if isinstance(value, float) else str(value)
