"""Runs with nothing but epsilon, clients and method, against settings that were tuned for each
cell.

    OMP_NUM_THREADS=1 python -m benchmarks.accuracy.defaults --scores FILE [--tasks digits wine]
    [--cells 5:8 1:1]

A cell is a task (``default_tasks``), a number of clients and an epsilon. The table has the rule,
the defaults before it, the oracle (``default_oracle``) and the gap: oracle minus rule. FILE has a
line for each run: the same command goes on where an interrupted one ended, and prints the table
again. After a change of the rule give ``--again``, once.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.accuracy.default_oracle import tune
from benchmarks.accuracy.default_runs import OLD, Cell, Scores, Values, as_cell
from benchmarks.accuracy.default_tasks import HELD_OUT, KNOWN, LATER, TASKS

CELLS = ("5:8", "1:1")
HEAD = (
    "| task | K | epsilon | rule | before | oracle | gap | the oracle's settings |\n"
    "|---|---|---|---|---|---|---|---|"
)


def compare(scores: Scores, cell: Cell, seeds: range, method: str) -> tuple[str, float]:
    """A row of the table, and the gap."""
    fixed = {"method": method}
    best = tune(scores, cell, fixed)
    rule, before, oracle = (
        scores.mean(cell, seeds, {**values, **fixed}) for values in ({}, OLD, best)
    )
    numbers = f"{rule:.1f} | {before:.1f} | {oracle:.1f} | {oracle - rule:+.1f}"
    return (
        f"| {cell.task} | {cell.clients} | {cell.epsilon:g} | {numbers} | {describe(best)} |",
        oracle - rule,
    )


def describe(best: Values) -> str:
    """The oracle's settings in short."""
    name = best["optimizer"] + (f" {best['momentum']:g}" if best.get("momentum") else "")
    schedule = f" {best['schedule']}" if "schedule" in best else ""
    shape = (
        f"{best['rounds']} x {best['sample_rate']:g}, C {best['clip_norm']:g}, ema {best['ema']:g}"
    )
    return f"{name}, {best['learning_rate']:.3g}{schedule}, {shape}"


def summarise(gaps: dict[Cell, float]) -> list[str]:
    """Mean, median and worst gap, of all tasks and of those that were held out."""
    lines = []
    groups = {"known tasks": KNOWN, "held-out tasks": HELD_OUT, "later tasks": LATER, "all": TASKS}
    for name, tasks in groups.items():
        some = {cell: gap for cell, gap in gaps.items() if cell.task in tasks}
        if not some:
            continue
        worst = max(some, key=lambda cell: some[cell])
        lines.append(
            f"{name}: {len(some)} cells, mean gap {statistics.mean(some.values()):+.2f}, median "
            f"{statistics.median(some.values()):+.2f}, worst {some[worst]:+.1f} ({worst.task}, K = "
            f"{worst.clients}, epsilon {worst.epsilon:g})"
        )
    return lines


def table(scores: Scores, cells: Sequence[Cell], seeds: range, method: str) -> list[str]:
    """The lines of the table and its summary, printed as they are found."""
    print(HEAD, flush=True)
    lines, gaps = [HEAD], {}
    for cell in cells:
        row, gaps[cell] = compare(scores, cell, seeds, method)
        print(row, flush=True)
        lines.append(row)
    print("", *summarise(gaps), sep="\n")
    return [*lines, "", *summarise(gaps)]


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--cells", nargs="+", default=list(CELLS), help="clients:epsilon")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--method", default="dpsgd")
    parser.add_argument(
        "--again", action="store_true", help="measure the rule anew, and keep the other scores"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    scores, seeds = Scores(given.scores, again=given.again), range(given.seeds)
    cells = [as_cell(task, text) for text in given.cells for task in given.tasks]
    table(scores, cells, seeds, given.method)


if __name__ == "__main__":
    main()
