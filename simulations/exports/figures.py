"""``fedlsg export figures``: the figures of a run, or of a comparison, as PDF, SVG and PNG for a column of a paper."""

import re
from pathlib import Path

from rich.console import Console

from simulations.compare.collect import read_runs
from simulations.compare.lines import lines
from simulations.compare.output import PLAIN, drawn
from simulations.report.chart import Chart
from simulations.report.course import course
from simulations.report.figure import save_paper
from simulations.report.terminal import print_line, print_whole
from simulations.rundir.files import write_atomically, writing_to

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
