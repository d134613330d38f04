"""The files of a comparison, all of the same results: results.csv, table.csv, table.md, plots/ and report.html.

The page has the table, the figures, what failed, and what the numbers do and do not mean.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from simulations.compare.bytes_axis import NOTE, PLAIN, View, bytes_markdown, panel_table, panels
from simulations.compare.lines import PROBE, Line, lines
from simulations.compare.plots import Charts, figures
from simulations.compare.table import (
    comparison_table,
    notes,
    sentences,
    table_csv,
    table_markdown,
    unfinished,
    variants,
)
from simulations.compare.vary_plots import CAPTIONS as VARIED
from simulations.compare.vary_plots import varied_figures
from simulations.report.facts import epsilon_section, made_section, row_warnings
from simulations.report.figure import interactive, picture, png
from simulations.report.page import Code, Page, Part, Text, data_section, download, facts_of, sections
from simulations.report.template import render
from simulations.report.words import NOT_PRIVATE
from simulations.rundir.files import write_atomically
from simulations.rundir.results import Result, results_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARE = 0.05
"""Share of the time that drawing may take while results come in."""

BARS = "A mark is the mean over seeds; bars show one standard deviation."
CAPTIONS = {
    "accuracy-epsilon": "How accurate each method is at each privacy budget. Further up is more accurate; a smaller "
    f"epsilon is more private. {BARS} The dotted line, if there is one, is the accuracy of guessing; dashed "
    "horizontal lines, if there are any, are methods without privacy.",
    "accuracy": f"How accurate each method is. Further right is more accurate. {BARS} The dotted line, if there is "
    "one, is the accuracy of guessing.",
    "accuracy-bytes": "How accurate each method is for the bytes that it sends. Further up is more accurate, further "
    f"left is cheaper. Bytes are the payloads that all clients sent in the whole run. {BARS} Filled marks have the "
    "largest epsilon, or none. A dashed grey line, of three methods or more, is the Pareto front of an epsilon: "
    "nothing is more accurate for fewer bytes.",
    "accuracy-total-bytes": "How accurate each method is for the bytes that it sends, at equal epsilon. Further up is "
    "more accurate, further left is cheaper. One panel counts what clients sent, the other also what they received. "
    f"{BARS} Filled marks are private, hollow marks are {NOT_PRIVATE}.",
    "learning-curves": "Test accuracy after each round. A line is the mean over seeds; the band around it reaches from "
    "the worst to the best seed. If all runs have a simulated clock, rounds are at their mean simulated time.",
}
GRID = "The grid; fedlsg compare --grid grid.toml runs it again:"


def write_tables(folder: Path, results: Sequence[Result], view: View = PLAIN) -> None:
    """results.csv, table.csv and table.md, and bytes.md on the bytes axis: milliseconds."""
    table = lines(results)
    texts = {
        "results.csv": results_csv(results),
        "table.csv": table_csv(table),
        "table.md": table_markdown(table, view.notes),
    }
    texts |= {"bytes.md": bytes_markdown(table)} if view.bytes else {}
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())


def write_page(
    folder: Path, title: str, results: Sequence[Result], *, command: str = "", grid: str = "", view: View = PLAIN
) -> None:
    """plots/*.png and report.html: a second or two."""
    table = lines(results)
    made = drawn(table, view)
    write_report(folder, page(title, results, table, command=command, grid=grid, view=view, figures=made), made)


def write_report(folder: Path, html: str, made: "Mapping[str, Charts | Figure]") -> None:
    """report.html, and its figures as plots/NAME.png; nothing where one cannot be drawn."""
    images = {name: png(figure) for name, figure in made.items()}
    write_atomically(folder / "report.html", html.encode())
    for name, image in images.items():
        write_atomically(folder / "plots" / f"{name}.png", image)


@dataclass(kw_only=True)
class Output:
    """Writes tables and page again while results come in.

    Guarantee: the tables follow every result. Page and plots take a twentieth of the time at most, and are written at
    the end.
    """

    folder: Path
    title: str
    results: Callable[[], Sequence[Result]]
    command: str
    grid: str
    view: View = PLAIN
    drawn: float = field(default_factory=time.monotonic)
    cost: float = 2.0

    def update(self) -> None:
        """After a cell."""
        write_tables(self.folder, self.results(), self.view)
        if time.monotonic() - self.drawn > self.cost / SHARE:
            self._draw()

    def finish(self) -> Sequence[Result]:
        """Everything, at the end; returns the results."""
        write_tables(self.folder, self.results(), self.view)
        self._draw()
        return self.results()

    def _draw(self) -> None:
        began = time.monotonic()
        write_page(self.folder, self.title, self.results(), command=self.command, grid=self.grid, view=self.view)
        self.drawn = time.monotonic()
        self.cost = self.drawn - began


def page(
    title: str, results: Sequence[Result], table: Sequence[Line], *, command: str = "", grid: str = "",
    view: View = PLAIN, figures: "Mapping[str, Charts | Figure] | None" = None,
) -> str:  # fmt: skip
    """The page of a comparison. ``command`` made it; ``grid`` is the text of its grid.toml; ``figures``: by name."""
    done = [run for run in results if run.done]
    first, *others = sentences(table)
    more = [" ".join(others)] if others else []
    return render(
        Page(
            kind="fedlsg compare",
            title=title,
            lead=lead(results, table),
            headline=first,
            warnings=tuple(warnings(table)),
            advice=(*advice(table), *view.notes, *(f"{line[0].upper()}{line[1:]}." for line in view.left_out)),
            sections=sections(
                ("All methods", [*(Text(words=words) for words in more), *_table(table)]),
                ("Figures", _figures(table, drawn(table, view) if figures is None else figures)),
                ("Accuracy against bytes", _panels(table, view)),
                epsilon_section(results),
                ("Not in the means", [facts_of(left)] if (left := unfinished(table)) else []),
                made_section(done, Code(text=command), Code(text=grid, note=GRID)),
                data_section(
                    download("table.csv", table_csv(table).encode(), "a row for each line of the table"),
                    download("results.csv", results_csv(results).encode(), "a row for each run"),
                ),
            ),
        )
    )


def _table(table: Sequence[Line]) -> list[Part]:
    """The table, what its columns mean, and what numbered labels stand for."""
    parts: list[Part] = [comparison_table(table), *(Text(words=note, style="note") for note in notes(table))]
    named = variants(table)
    return [*parts, facts_of(named)] if named else parts


def _figures(table: Sequence[Line], made: "Mapping[str, Charts | Figure]") -> list[Part]:
    """The figures, if a run is finished."""
    one = len({line.epsilon_target for line in table if line.epsilon_target is not None}) < 2  # a row for each method
    captions = {**CAPTIONS, **VARIED, **({"accuracy-epsilon": CAPTIONS["accuracy"]} if one else {})}
    return [shown(figure, captions[name]) for name, figure in made.items()]


def shown(figure: "Charts | Figure", caption: str) -> Part:
    """Charts, or a heat map as it is."""
    if isinstance(figure, tuple):
        return interactive(figure, caption, columns=3 if len(figure) % 2 else 2)
    return picture(figure, f"{caption} The table above has the numbers.")


def drawn(table: Sequence[Line], view: View) -> "dict[str, Charts | Figure]":
    """All figures by file name: of varied settings first."""
    return varied_figures(table) | figures(table, view)


def _panels(table: Sequence[Line], view: View) -> list[Part]:
    """The tables of the bytes axis, if the view has it."""
    tables = [panel_table(panel) for panel in (panels(table) if view.bytes else [])]
    return [*tables, Text(words=NOTE, style="note")] if tables else []


def lead(results: Sequence[Result], table: Sequence[Line]) -> str:
    """How many runs, settings and seeds."""
    done = sum(run.done for run in results)
    seeds = sorted({run.settings["seed"] for run in results if "seed" in run.settings})
    shown_seeds = ", ".join(map(str, seeds)) if len(seeds) <= 12 else f"{seeds[0]} to {seeds[-1]}"
    return f"{done} of {len(results)} runs finished, {len(table)} settings, seeds {shown_seeds or '--'}."


def warnings(table: Sequence[Line]) -> list[str]:
    """What nobody may overlook: no privacy, no better than guessing, held-out accuracy."""
    found = []
    public = list(dict.fromkeys(line.name for line in table if line.private is False))
    if public:
        found.append(f"{NOT_PRIVATE}: {', '.join(public)}. No privacy is claimed for these runs.")
    lost = [
        line.name if line.epsilon_target is None else f"{line.name} at epsilon {line.epsilon_target:g}"
        for line in table
        if line.beats_chance is False
    ]
    if lost:
        found.append(f"Not better than guessing by three standard errors: {', '.join(lost)}.")
    stopped = [run.name for line in table for run in line.runs if run.done and run.reason]
    if stopped:
        found.append(f"Stopped before their last round, with the epsilon of the rounds that ran: {', '.join(stopped)}.")
    return [*found, *row_warnings([run for line in table for run in line.runs])]


def advice(table: Sequence[Line]) -> list[str]:
    """What would make the comparison more useful: the private linear probe."""
    private = [line for line in table if line.private]
    if not private or any(line.method == PROBE for line in private):
        return []
    return [
        f"The private linear probe is missing. A private method is useful only if it is better: add {PROBE} to the "
        "methods."
    ]
