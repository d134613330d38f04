"""Presets as a table for the terminal, one preset in full, and JSON."""

import json
from collections.abc import Iterable, Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from fedlsg.simulations.settings.published import by_name, find, matching
from fedlsg.simulations.settings.published.preset import Published, model_of

WIDE = 140
"""Terminal width from which the table has every column. A narrower one leaves out columns that the
name contains.
"""

COLUMNS: Sequence[tuple[str, str]] = (
    ("preset", ""),
    ("source", ""),
    ("model", "wide"),
    ("method", "wide"),
    ("eps", "wide right"),
    ("delta", "wide right"),
    ("batch", "wide right"),
    ("epochs", "right"),
    ("C", "right"),
    ("r", "wide right"),
    ("p", "wide right"),
    ("%", "right"),
    ("notes", "wide right"),
)
"""Title, whether only a wide table has it, alignment."""

FEW = 20
"""Most presets of a list that shows the texts of the notes."""


def presets_command(words: str, json: bool, console: Console) -> None:
    """``fedlsg list presets``. Raises ValueError where nothing matches, with the nearest name."""
    preset = by_name().get(words)
    listed = (preset,) if preset else matching(words) or (find(words),)
    if json:
        print(as_json(listed))
    else:
        console.print(whole(preset) if preset else overview(listed, console.width), highlight=False)


def overview(listed: Sequence[Published], width: int) -> Group:
    """The table, a line on how to read it, and the notes, if the list is short."""
    wide = width >= WIDE
    shown = {
        title
        for title, style in COLUMNS
        if (wide or "wide" not in style) and (title != "notes" or short(listed))
    }
    numbers = numbered(listed)
    table = Table(
        box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0) if wide else (0, 1)
    )
    for title, style in COLUMNS:
        if title in shown:
            table.add_column(title, justify="right" if "right" in style else "left", no_wrap=True)
    for preset in listed:
        cells = dict(zip((title for title, _ in COLUMNS), row(preset, numbers), strict=True))
        cells["preset"] += "".join(f"\n  = {alias}" for alias in preset.aliases)
        if not wide:
            cells["%"] = cells["%"].split(" ")[0]
        cells["%"] = cells["%"].replace(" ", "")
        cells["source"] = cells["source"].replace("Figure", "Fig.").replace("Table", "Tab.")
        table.add_row(*(Text(cells[title]) for title, _ in COLUMNS if title in shown))
    lines: list[Table | Text] = [
        table,
        Text(f"{len(listed)} presets; % is the paper's accuracy. {HOW}"),
    ]
    if "notes" in shown:
        lines += [Text(f"{number:>2}  {note}") for note, number in numbers.items()]
    return Group(*lines)


def short(listed: Sequence[Published]) -> bool:
    """Whether a list shows the texts of its notes."""
    return len(listed) <= FEW


HOW = "fedlsg list presets NAME shows a preset in full, fedlsg run --preset NAME runs it."


def row(preset: Published, numbers: dict[str, int]) -> tuple[str, ...]:
    """One cell for each column of ``COLUMNS``."""
    s = preset.settings
    return (
        preset.name,
        f"{preset.paper.split(' (')[0]}, {preset.where}",
        model_of(s),
        str(s["method"]),
        number(s.get("epsilon"), none="inf"),
        number(s.get("delta")),
        str(preset.batch),
        f"{round(preset.epochs, 1):g}",
        number(s.get("clip_norm")),
        number(s.get("rank")),
        "+".join(number(s[key]) for key in ("sparsity", "prune_rate", "drop_rate") if key in s)
        or "-",
        accuracy(preset),
        ",".join(str(numbers[note]) for note in preset.notes),
    )


def accuracy(preset: Published) -> str:
    """The printed accuracy, with its standard deviation if there is one; "-" if the paper prints
    none.
    """
    if preset.accuracy is None:
        return "-"
    if preset.spread is not None:
        return f"{preset.accuracy:.2f} ± {preset.spread:.2f}"
    return (
        f"{preset.accuracy:.1f}"
        if round(preset.accuracy, 1) == preset.accuracy
        else f"{preset.accuracy:.2f}"
    )


def number(value: object, none: str = "-") -> str:
    return none if value is None else f"{value:g}".replace("e-0", "e-")


def numbered(listed: Iterable[Published]) -> dict[str, int]:
    """Every note once, numbered in the order of first use."""
    notes = dict.fromkeys(note for preset in listed for note in preset.notes)
    return {note: index for index, note in enumerate(notes, start=1)}


def whole(preset: Published) -> Group:
    """Everything about one preset: paper, number, settings, notes, the command."""
    settings = Table(box=None, show_header=False, pad_edge=False)
    for key, value in preset.settings.items():
        settings.add_row(
            key, number(value) if isinstance(value, float) and key != "sample_rate" else str(value)
        )
    lines: list[Text | Table] = [Text(preset.name, style="bold")]
    if preset.aliases:
        lines.append(Text("also " + ", ".join(preset.aliases)))
    paper = f"{accuracy(preset)} %" if preset.accuracy is not None else "none printed"
    lines.append(Text(f"{preset.source}: test accuracy {paper}"))
    lines.append(
        Text(
            f"{preset.batch:,} of {preset.examples:,} examples a step, {round(preset.epochs, 1):g} "
            "epochs\n"
        )
    )
    lines.append(settings)
    lines += [Text("\nnotes"), *(Text(f"- {note}") for note in preset.notes)]
    lines.append(Text(f"\n{command(preset)}", style="bold"))
    return Group(*lines)


def command(preset: Published) -> str:
    """The command that runs the preset in one process."""
    name = min((preset.name, *preset.aliases), key=len)
    return f"fedlsg run --preset {name} --engine local"


def as_json(listed: Iterable[Published]) -> str:
    """One object for each preset; ``accuracy`` and ``spread`` in percent, null if the paper prints
    none.
    """
    keys = ("name", "aliases", "paper", "where", "accuracy", "spread", "notes")
    rows = [
        {key: getattr(preset, key) for key in keys}
        | {"batch": preset.batch, "epochs": preset.epochs, "settings": dict(preset.settings)}
        for preset in listed
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False)
