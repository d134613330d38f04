"""The table of a comparison for a paper, in LaTeX: each mean that may be the best is bold.

A paper needs the package booktabs, and reads the file with its command input.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from fedlsg.simulations.compare.results.comparison_table import (
    columns_of,
    epsilon_group,
    informative,
)
from fedlsg.simulations.compare.results.pandas_library import pd
from fedlsg.simulations.report.pages.figure import FORMULA
from fedlsg.simulations.report.pages.page import Row
from fedlsg.simulations.report.pages.table import Column, make_table

PRINTED = frozenset(
    {
        "label",
        "rank",
        "sparsity",
        "epsilon_max",
        "epsilon_outside",
        "epsilon_with_choosing",
        "unit",
        "trust",
        "mean",
        "behind",
        "n",
        "uplink_bytes_per_client_round",
        "saved_ratio",
    }
)
"""Columns of a comparison that a paper's table has as well, and those of varied settings."""
HEADINGS = {"epsilon": "$\\varepsilon$", "n": "$n$"}
"""Headings that are formulas."""
END = "\\end{tabular}"
NOTE = "\\multicolumn{{{}}}{{p{{\\linewidth}}}}{{\\footnotesize {}}} \\\\\n"
"""A row with a note across so many columns."""
SYMBOLS = {"±": "$\\pm$", "≈": "$\\approx$"}
"""Characters that need a command."""
ABOUT = (
    "% Mean \\pm standard deviation (s.d.) over n seeds. Behind: the best mean of the same epsilon "
    "minus this one,\n% paired by seed, with the standard error (s.e.) of this difference. "
    "\\approx: it may be chance\n% (Student's t at 95 %, each line by itself). Bold: every mean "
    "that may be the best.\n"
    "% Needs \\usepackage{booktabs}.\n"
)


FIRST_MARK = 0xE000
"""The first of the characters that stand for formulas while cells are escaped: no name has them."""


def latex_table(table: pd.DataFrame, notes: Sequence[str] = ()) -> str:
    """One ``tabular`` with a rule between the epsilons, and ``notes`` below the last one.

    Guarantee: text stays text, for any names, because pandas escapes each cell. Only formulas such
    as ``$\\sigma$`` in names of methods stay as they are.
    """
    lines = list(table.itertuples())
    printed = PRINTED.union(*(line.varied for line in lines))
    columns = [
        column if column.value == "mean" else replace(column, best="")
        for column in informative(columns_of(table), lines)
        if column.value in printed
    ]
    rows = make_table(columns, lines, group=epsilon_group).rows
    text = ABOUT + _tabular(columns, rows)
    below = "".join(NOTE.format(len(columns), _escaped(note)) for note in notes)
    return text.replace(END, below + END)


def _escaped(words: str) -> str:
    """Text for LaTeX, as pandas escapes a cell."""
    style = pd.DataFrame([[words]]).style.hide(axis="index").hide(axis="columns")
    text = style.format(escape="latex").to_latex()
    # the cell is between the first line, \begin{tabular}, and the end of its row
    return str(text).partition("\n")[2].partition(" \\\\\n")[0]


def _tabular(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """The table without notes, with a rule between two groups of rows."""
    names = [column.name for column in columns]
    formulas = list[str]()

    def mark(formula: re.Match[str]) -> str:
        formulas.append(formula[0])
        return chr(FIRST_MARK + len(formulas) - 1)

    marked = [[FORMULA.sub(mark, str(row.cells[0])), *row.cells[1:]] for row in rows]
    cells = pd.DataFrame(marked, columns=names)
    bold = pd.DataFrame("", cells.index, names)
    for number, row in enumerate(rows):
        for place in row.best:
            bold.iloc[number, place] = "textbf:--rwrap;"  # pandas' word for \textbf{...}
    style = cells.style.hide(axis="index").apply(lambda _: bold, axis=None).format(escape="latex")
    style = style.format_index(lambda name: HEADINGS.get(name, name), escape="latex", axis=1)
    text = style.to_latex(hrules=True, column_format="l" + "r" * (len(names) - 1))
    for symbol, command in SYMBOLS.items():
        text = text.replace(symbol, command)
    for number, formula in enumerate(formulas):
        text = text.replace(chr(FIRST_MARK + number), formula)
    head, rule, body = text.partition("\\midrule\n")
    text_lines = body.splitlines(keepends=True)
    for number in reversed(range(1, len(rows))):  # from the end: an insertion moves later lines
        if rows[number].group != rows[number - 1].group:
            text_lines.insert(number, rule)
    return "".join([head, rule, *text_lines])
