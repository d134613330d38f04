"""The table of a comparison for a paper: LaTeX with booktabs, in bold each mean that may be the
best of its epsilon.

A paper needs the package booktabs, and reads the file with its command input.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedlsg.simulations.compare.results.comparison_table import (
    columns_of,
    epsilon_group,
    informative,
)
from fedlsg.simulations.compare.results.pandas_library import pd
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
END = "\\end{tabular}"
NOTE = "\\multicolumn{{{}}}{{p{{\\linewidth}}}}{{\\footnotesize {}}} \\\\\n"
SYMBOLS = {"±": "$\\pm$", "≈": "$\\approx$"}
ABOUT = (
    "% Mean \\pm standard deviation (s.d.) over n seeds. Behind: the best mean of the same epsilon "
    "minus this one,\n% paired by seed, with the standard error (s.e.) of this difference. "
    "\\approx: it may be chance\n% (Student's t at 95 %, each line by itself). Bold: every mean "
    "that may be the best.\n"
    "% Needs \\usepackage{booktabs}.\n"
)


def latex_table(table: pd.DataFrame, notes: Sequence[str] = ()) -> str:
    """One ``tabular`` with a rule between the epsilons, and ``notes`` below the last one.

    Guarantee: text stays text, whatever a name holds: pandas escapes each cell.
    """
    lines = list(table.itertuples())
    varied = {name for line in lines for name in line.varied}
    columns = [
        one if one.value == "mean" else replace(one, best="")
        for one in informative(columns_of(table), lines)
        if one.value in PRINTED | varied
    ]
    rows = make_table(columns, lines, group=epsilon_group).rows
    text = ABOUT + _tabular(columns, rows)
    below = "".join(NOTE.format(len(columns), _escaped(note)) for note in notes)
    return text.replace(END, below + END)


def _escaped(words: str) -> str:
    """Text for LaTeX, as pandas escapes a cell."""
    style = pd.DataFrame([[words]]).style.hide(axis="index").hide(axis="columns")
    text = style.format(escape="latex").to_latex()
    return str(text).partition("\n")[2].partition(" \\\\\n")[0]


def _tabular(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    names = [column.name for column in columns]
    cells = pd.DataFrame([row.cells for row in rows], columns=names)
    bold = pd.DataFrame("", cells.index, names)
    for at, row in enumerate(rows):
        for place in row.best:
            bold.iloc[at, place] = "textbf:--rwrap;"
    style = cells.style.hide(axis="index").apply(lambda _: bold, axis=None).format(escape="latex")
    style = style.format_index(lambda name: HEADINGS.get(name, name), escape="latex", axis=1)
    text = style.to_latex(hrules=True, column_format="l" + "r" * (len(names) - 1))
    for symbol, command in SYMBOLS.items():
        text = text.replace(symbol, command)
    head, _, body = text.partition("\\midrule\n")
    found = body.splitlines(keepends=True)
    for at in reversed(range(1, len(rows))):
        if rows[at].group != rows[at - 1].group:
            found.insert(at, "\\midrule\n")
    return "".join([head, "\\midrule\n", *found])
