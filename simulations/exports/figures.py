"""``fedlsg export figures``: the figures of a run, or of a comparison, as PDF, SVG and PNG for a column of a paper."""

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from simulations.compare.collect import read_runs
from simulations.compare.lines import lines
from simulations.compare.output import PLAIN, drawn
from simulations.report.chart import Chart, keys
from simulations.report.figure import PIXELS, STYLE, draw_chart, legend_entries, panel_grid, save, use_style, wrap
from simulations.report.run_page import course
from simulations.report.terminal import print_line, print_whole
from simulations.rundir.files.atomic import write_atomically, writing_to

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN = 3.3
"""Inches of a column of a paper with two."""
PAPER: Any = {
    **STYLE, "font.size": 8, "axes.labelsize": 8, "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 7,
    "lines.linewidth": 1.2, "lines.markersize": 4, "pdf.fonttype": 42, "svg.fonttype": "path",
}  # fmt: skip
KINDS = ("pdf", "svg", "png")


def figures_command(directory: str, out: str | None, console: Console) -> None:
    """Write each chart in each form. Raises ValueError for a folder that is no run and no comparison."""
    path = Path(directory).expanduser().resolve()
    folder = Path(out or f"figures-{path.name}").expanduser().resolve()
    charts = charts_of(path, console)
    if not charts:
        raise ValueError(f"{directory} has no finished round: there is nothing to draw")
    with writing_to(folder):
        for name, chart in charts.items():
            for kind in KINDS:
                write_atomically(folder / f"{name}.{kind}", save_paper(chart, kind))
    print_whole(f"{len(charts)} figures, each as {', '.join(KINDS)}, in {folder}", console)


def charts_of(path: Path, console: Console) -> dict[str, Chart]:
    """By file name: of a run its rounds, of a comparison all its figures but heat maps, which have a table."""
    results = read_runs([path], say=lambda line: print_line(line, console, "yellow"))
    if len(results) == 1:
        (run,) = results
        found = {"": course(run.rows, None if run.chance is None else run.chance.level)} if run.rows else {}
    else:
        found = {name: made for name, made in drawn(lines(results), PLAIN).items() if isinstance(made, tuple)}
    named: dict[str, Chart] = {}
    for group, charts in found.items():
        for chart in charts:
            words = [group] if group and len(charts) == 1 else [group, chart.title]
            named["-".join(filter(None, map(_file_name, words)))] = chart
    return named


def _file_name(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


@partial(use_style, style=PAPER)
def paper(chart: Chart) -> "Figure":
    """One chart for a column of a paper: 3.3 inches wide, letters of 8 points, fonts in the file."""
    entries = -(-len(keys([chart])) // 2)
    figure, (axes,) = panel_grid(1, 1, (COLUMN, max(0.68 * COLUMN, chart.height / PIXELS * 0.7)), 0.16 * entries)
    draw_chart(axes, chart)
    axes.set_ylabel(wrap(chart.y.label or chart.title))
    if found := legend_entries([axes]):
        figure.legend(found.values(), found.keys(), loc="outside lower left", ncols=2, fontsize=7)
    return figure


def save_paper(chart: Chart, kind: str) -> bytes:
    """The figure of ``paper`` as pdf, svg or png (600 dots an inch), the same bytes each time."""
    dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
    return save(paper(chart), PAPER, format=kind, dpi=600, metadata=dated)
