"""The files of a comparison, all of the same results: results.csv, table.csv, table.md, table.tex,
plots/ and report.html.

The page has the table, the figures, what failed, and what the numbers do and do not mean.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedlsg.simulations.compare.results.bytes_axis import (
    NOTE,
    PLAIN,
    View,
    panel_table,
    panels,
)
from fedlsg.simulations.compare.results.comparison_table import (
    comparison_table,
    notes,
    runs_of,
    sentences,
    table_csv,
    unfinished,
    variants,
)
from fedlsg.simulations.compare.results.latex_table import latex_table
from fedlsg.simulations.compare.results.line_words import Line
from fedlsg.simulations.compare.results.lines import PROBE, lines
from fedlsg.simulations.compare.results.pandas_library import pd
from fedlsg.simulations.compare.results.plots import Charts, figures
from fedlsg.simulations.compare.results.search_paid import search_paid
from fedlsg.simulations.report.pages.facts import epsilon_section, made_section, row_warnings
from fedlsg.simulations.report.pages.figure import interactive, picture, png
from fedlsg.simulations.report.pages.page import (
    Code,
    Page,
    Part,
    Text,
    data_section,
    download,
    facts_if_any,
    markdown,
    sections,
)
from fedlsg.simulations.report.pages.template import render
from fedlsg.simulations.report.words import NOT_PRIVATE, counted
from fedlsg.simulations.storage.atomic_files import write_atomically
from fedlsg.simulations.storage.results import Result, results_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARE = 0.05
"""Share of the time that drawing may take while results come in."""

BARS = "A mark is the mean over seeds; bars show one standard deviation (s.d.), as ± does."
CAPTIONS = {
    "accuracy-epsilon": "How accurate each method is at each privacy budget. Further up is more "
    f"accurate; a smaller epsilon is more private. {BARS} The dotted line, if "
    "there is one, is the accuracy of guessing; dashed horizontal lines, if "
    "there are any, are methods without privacy.",
    "accuracy": f"How accurate each method is. Further right is more accurate. {BARS} The dotted "
    "line, if there is one, is the accuracy of guessing.",
    "accuracy-bytes": "How accurate each method is for the bytes that it sends. Further up is more "
    "accurate, further left is cheaper. Bytes are the payloads that all clients "
    f"sent in the whole run. {BARS} Filled marks have the largest epsilon, or "
    "none. A dashed grey line, of three methods or more, is the Pareto front of "
    "an epsilon: nothing is more accurate for fewer bytes.",
    "accuracy-total-bytes": "How accurate each method is for the bytes that it sends, at equal "
    "epsilon. Further up is more accurate, further left is cheaper. One "
    "panel counts what clients sent, the other also what they received. "
    f"{BARS} Filled marks are private, hollow marks are {NOT_PRIVATE}.",
    "accuracy-varied": "How the accuracy depends on the varied setting. "
    f"{BARS} Dashed horizontal lines, if there are any, are methods without the setting.",
    "accuracy-heat": "The accuracy for each pair of values: mean over seeds, and below it one "
    "standard deviation. All panels have the same colours; lighter is better. A "
    "frame marks the best pair of a panel. Methods that lack one of the settings "
    "are in the table alone. The table above has the numbers.",
    "learning-curves": "Test accuracy after each round. A line is the mean over seeds; the band "
    "around it reaches from the worst to the best seed. If all runs have a "
    "simulated clock, rounds are at their mean simulated time.",
}
GRID = "The grid; fedlsg compare --grid grid.toml runs it again:"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What an output folder shows.

    ``command`` made it; ``grid`` is the text of its grid.toml.
    """

    title: str
    results: Sequence[Result]
    command: str = ""
    grid: str = ""
    view: View = PLAIN

    @cached_property  # its results never change
    def table(self) -> pd.DataFrame:
        """Its runs as lines."""
        return lines(self.results, self.view.labels, self.view.choosing)

    @property
    def methods(self) -> list[Part]:
        """The table, what its columns mean, and what numbered labels stand for."""
        words = [Text(words=note, style="note") for note in notes(self.table)]
        return [comparison_table(self.table), *words, *facts_if_any(variants(self.table))]

    @property
    def bytes(self) -> list[Part]:
        """The tables of the bytes axis."""
        if not self.view.bytes:
            return []
        return [*map(panel_table, panels(self.table)), Text(words=NOTE, style="note")]

    @cached_property
    def files(self) -> dict[str, str]:
        """The texts of its tables by the names of their files."""
        said = (*search_paid(self.table), *self.view.how_chosen, *self.view.notes)
        more = (Text(words=words) for words in said)
        left = facts_if_any(unfinished(self.results))
        texts = {
            "results.csv": results_csv(self.results),
            "table.csv": table_csv(self.table),
            "table.md": markdown([*self.methods, *more, *left]),
            "table.tex": latex_table(self.table, self.view.how_chosen),
        }
        return texts | ({"bytes.md": markdown(self.bytes)} if self.bytes else {})


def write_tables(folder: Path, made: Comparison) -> None:
    """results.csv, table.csv, table.md and table.tex, and bytes.md on the bytes axis: milliseconds,
    after the first time.
    """
    for name, text in made.files.items():
        write_atomically(folder / name, text.encode())


def write_page(folder: Path, made: Comparison) -> None:
    """plots/*.png and report.html: a second or two."""
    drawn = figures(made.table, made.view)
    write_report(folder, page(made, drawn), drawn)


def write_report(folder: Path, html: str, made: "Mapping[str, Charts | Figure]") -> None:
    """report.html, and its figures as plots/NAME.png; nothing where one cannot be drawn."""
    images = {name: png(figure) for name, figure in made.items()}
    write_atomically(folder / "report.html", html.encode())
    for name, image in images.items():
        write_atomically(folder / "plots" / f"{name}.png", image)


class Output:
    """Writes tables and page again while results come in.

    Guarantee: the tables follow every result. Page and plots take a twentieth of the time at most,
    and are written at the end.
    """

    def __init__(self, folder: Path, compared: Callable[[], Comparison]) -> None:
        self.folder, self.compared = folder, compared
        self.drawn, self.pause = time.monotonic(), 2.0 / SHARE

    def update(self, *, ended: bool = False) -> Comparison:
        """After a cell, or when all have ``ended``."""
        made, began = self.compared(), time.monotonic()
        write_tables(self.folder, made)
        if ended or began - self.drawn > self.pause:
            write_page(self.folder, made)
            self.drawn = time.monotonic()
            self.pause = (self.drawn - began) / SHARE
        return made


def page(made: Comparison, drawn: "Mapping[str, Charts | Figure]") -> str:
    """The page of a comparison, with its figures."""
    results, table, view = made.results, made.table, made.view
    first, *others = sentences(table)
    paid = [Text(words=words) for words in search_paid(table)]
    free = view.choosing is None or view.choosing.free
    notes = (*(view.how_chosen if free else ()), *view.notes)
    more = [Text(words=words) for words in others]
    dropped = [f"{line[0].upper()}{line[1:]}." for line in view.left_out]
    rows = {
        "table.csv": "a row for each line of the table",
        "table.tex": "the table for a paper, LaTeX with booktabs",
        "results.csv": "a row for each run",
    }
    return render(
        Page(
            kind="fedlsg compare",
            title=made.title,
            lead=lead(results, table),
            headline=first,
            warnings=(*(() if free else view.how_chosen), *warnings(table)),
            advice=(*advice(table), *notes, *dropped),
            sections=sections(
                ("Did the search pay?", paid),
                ("All methods", [*more, *made.methods]),
                ("Figures", [_figure(name, one, table) for name, one in drawn.items()]),
                ("Accuracy against bytes", made.bytes),
                replace(epsilon_section(results), folded=True),
                ("Not in the means", facts_if_any(unfinished(results))),
                made_section(
                    [run for run in results if run.done],
                    Code(text=made.command),
                    Code(text=made.grid, note=GRID),
                ),
                data_section(
                    *(
                        download(name, made.files[name].encode(), says)
                        for name, says in rows.items()
                    )
                ),
            ),
        )
    )


def _figure(name: str, made: "Charts | Figure", table: pd.DataFrame) -> Part:
    """Charts, or a heat map as it is."""
    single = (
        name == "accuracy-epsilon" and table.epsilon_target.nunique() < 2
    )  # a row for each method
    caption = CAPTIONS["accuracy" if single else name]
    if isinstance(made, tuple):
        return interactive(made, caption, columns=3 if len(made) % 2 else 2)
    return picture(made, caption)


def lead(results: Sequence[Result], table: pd.DataFrame) -> str:
    """How many runs, settings and seeds."""
    done = sum(run.done for run in results)
    seeds = sorted({run.settings["seed"] for run in results if "seed" in run.settings})
    words = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 12 else ", ".join(map(str, seeds))
    settings = counted(len(table), "setting")
    return (
        f"{done} of {counted(len(results), 'run')} finished, {settings}, "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {words or '--'}."
    )


def warnings(table: pd.DataFrame) -> list[str]:
    """What nobody may overlook: no privacy, no better than guessing, held-out accuracy."""
    runs = runs_of(table)
    public = [f'"{name}"' for name in table.name[table.private.eq(False)]]
    claim = "claims" if len(public) == 1 else "claim"
    lost = list(map(_at_target, table[table.beats_chance.eq(False)].itertuples()))
    stopped = [run.name for run in runs if run.done and run.reason]
    found = {
        f"{NOT_PRIVATE}: {len(public)} of {counted(len(table), 'line')} {claim} no privacy: "
        f"{', '.join(public)}.": public,
        f"Not better than guessing by three standard errors: {', '.join(lost)}.": lost,
        "Stopped before their last round, with the epsilon of the rounds that ran: "
        f"{', '.join(stopped)}.": stopped,
    }
    return [*(words for words, said in found.items() if len(said)), *row_warnings(runs)]


def _at_target(line: Line) -> str:
    target = line.epsilon_target
    return line.name if target is None else f"{line.name} at epsilon {target:g}"


def advice(table: pd.DataFrame) -> list[str]:
    """What would make the comparison more useful: the private linear probe, a run without
    privacy.
    """
    methods = set(table.method[table.private.eq(True)])
    found = []
    if methods and PROBE not in methods:
        found.append(
            "The private linear probe is missing. A private method is useful only if it is better: "
            f"add {PROBE} to the methods."
        )
    if methods and not table.private.eq(False).any():
        found.append(
            "No method without privacy is among them, so what privacy costs is not known: add sgd "
            "to the methods."
        )
    return found
