"""Means over seeds against numbers worked by hand, the mark of guessing, and what a terminal shows."""

import csv
import io
import math
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from simulations.compare.lines import lines
from simulations.compare.table import columns_of, comparison_table, notes, table_csv, table_markdown, unfinished
from simulations.plan.noise import RHO_MEANING
from simulations.report.table import records
from simulations.report.terminal import terminal_table
from simulations.rundir.results import Result, results_csv
from tests.simulations.support.compare_cases import result

TABLE = [
    *(result(a, seed=s, settings={"rank": 4, "sparsity": 0.3}) for s, a in enumerate((0.80, 0.84, 0.85))),
    *(result(a, seed=s, method="linear-probe") for s, a in enumerate((0.70, 0.74))),
    *(result(a, seed=s, method="rs", settings={"sparsity": 0.5}) for s, a in enumerate((0.10, 0.12))),
    result(0.97, method="sgd", epsilon=None),
    result(0.81, method="dpsgd"),
    result(None, method="dpsgd", seed=1),
    result(None, method="rgp", settings={"rank": 512}),
]


def test_a_line_by_hand():
    """.80 .84 .85: mean .83, squares 9 + 1 + 4 = 14 e-4 over 2; s.e. sqrt(7e-4 / 3 + .83 * .17 / 400)."""
    line = next(line for line in lines(TABLE) if line.method == "lsg")
    assert records(columns_of([line]), [line])[0] == {
        "label": "lsg", "method": "lsg", "workload": "digits", "model": "mlp", "rank": 4, "sparsity": 0.3,
        "delta": 1e-5, "epsilon_target": 3.0, "epsilon_max": pytest.approx(2.999), "epsilon_outside": None,
        "private": True, "unit": "example", "trust": "client",
        "rho": None, "n": 3, "planned": 3, "accuracy_mean": pytest.approx(0.83),
        "accuracy_sd": pytest.approx(math.sqrt(7e-4)),
        "loss_mean": 0.5, "standard_error": pytest.approx(math.sqrt(7e-4 / 3 + 0.83 * 0.17 / 400)), "chance": 0.1,
        "beats_chance": True, "over_linear_probe": pytest.approx(0.11), "uplink_bytes_per_client_round": 100.0,
        "saved_ratio": 4.0, "uplink_bytes_total": 1000.0, "downlink_bytes_total": 4000.0, "transfer_seconds": None,
        "wall_seconds": 11.0, "training_seconds": 5.0,
    }  # fmt: skip


def test_a_table_says_whom_each_epsilon_protects_against_unless_all_protect_each_payload():
    sums = [result(0.9, method="rgp", settings={"trust": "aggregate"}), result(0.8, settings={"trust": "secure"})]
    table = comparison_table(lines([*sums, result(0.7, method="rs")]))
    place = table.columns.index("trust")
    assert sorted(row.cells[place] for row in table.rows) == ["aggregate", "client", "secure"]
    assert [note for note in notes(lines(sums)) if note.startswith("trust=")] != []
    assert "trust" not in comparison_table(lines(TABLE)).columns
    assert not any(note.startswith("trust=") for note in notes(lines(TABLE)))


def read_by(outside: float, **more: Any) -> Result:
    found = result(0.8, **more)
    return replace(found, summary=found.summary | {"epsilon_by_reader": {"outside": outside, "participant": 2.999}})


def test_a_comparison_of_trust_shows_the_epsilon_against_the_outside_next_to_that_against_the_clients():
    """Rounded up, like every epsilon; no column where one number holds for every reader."""
    runs = [read_by(2.1001, settings={"trust": "secure"}), read_by(2.999, method="rs")]
    table = comparison_table(lines(runs))
    place = table.columns.index("outside")
    assert sorted(row.cells[place] for row in table.rows) == ["2.101", "2.999"]
    assert any("outside: the epsilon against a reader of the weights alone" in note for note in notes(lines(runs)))
    assert "outside" not in comparison_table(lines(runs[1:])).columns
    assert [row["epsilon_outside"] for row in records(columns_of(lines(runs)), lines(runs))] == [2.1001, 2.999]
    assert results_csv(runs[:1]).splitlines()[0].count("epsilon_outside") == 1


def test_order_marks_and_failures():
    found = lines(TABLE)
    assert [line.method for line in found] == ["lsg", "dpsgd", "linear-probe", "rs", "rgp", "sgd"]
    assert [line.beats_chance for line in found] == [True, True, True, False, None, True]
    assert [line.private for line in found] == [True, True, True, True, None, False]
    assert unfinished(found) == {"dpsgd-seed1": "failed: rank too big", "rgp-seed0": "failed: rank too big"}
    assert any("not better than guessing" in note for note in notes(found))
    assert not any("not better than guessing" in note for note in notes(lines(TABLE[:3])))


def test_a_probe_that_is_not_private_is_no_measure():
    """Negative control: the column compares with the private linear probe only."""
    probe = result(0.7, method="linear-probe", private=False)
    assert [line.over_probe for line in lines([result(0.8), probe])] == [None, None]


def test_only_finished_runs_enter_a_mean():
    line = next(line for line in lines(TABLE) if line.method == "dpsgd")
    assert (line.mean, line.sd, len(line.done), len(line.runs)) == (0.81, None, 1, 2)


def test_csv_reads_back():
    rows = list(csv.DictReader(io.StringIO(results_csv(TABLE))))
    assert len(rows) == len(TABLE)
    assert [float(r["accuracy"]) for r in rows[:3]] == [0.80, 0.84, 0.85]
    assert {r["method"]: r["epsilon_max"] for r in rows}["sgd"] == "inf"
    assert [r["reason"] for r in rows[-2:]] == ["rank too big"] * 2
    aggregated = list(csv.DictReader(io.StringIO(table_csv(lines(TABLE)))))
    assert [r["beats_chance"] for r in aggregated] == ["True", "True", "True", "False", "", "True"]


def test_markdown_by_hand():
    text = table_markdown(lines(TABLE))
    assert text.splitlines()[:4] == [
        "| method | r | p | epsilon | accuracy, % | s.e. | n | over probe | uplink | saved | training, s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        "| lsg | 4 | 0.3 | 2.999 | 83.0 ± 2.6 | 2.4 | 3 | +11.0 | 100 B | 4.0x | 5 |",
        "| dpsgd | -- | -- | 2.999 | 81.0 | 2.0 | 1/2 | +9.0 | 100 B | 4.0x | 4 |",
    ]
    assert "| rs | -- | 0.5 | 2.999 | 11.0 ± 1.4 † |" in text
    assert "NOT PRIVATE" in text
    assert "- `rgp-seed0`: failed: rank too big" in text


def with_rho(rho: float | None, **more: Any) -> Result:
    found = result(0.8, **more)
    return replace(found, summary=found.summary | {"rho": rho})


def test_rho_has_a_column_where_it_is_on_record():
    """Mean over seeds; none for older runs and for runs without noise; no column if there is none at all."""
    runs = [with_rho(0.2), with_rho(0.4, seed=1), result(0.7, method="rgp"), with_rho(0.0, method="sgd", epsilon=None)]
    table = lines(runs)
    assert {line.method: line.rho for line in table} == {"lsg": pytest.approx(0.3), "rgp": None, "sgd": 0.0}
    text = table_markdown(table)
    assert "| method | epsilon | rho | accuracy, % |" in text
    assert "| lsg | 2.999 | 0.30 | 80.0" in text
    assert "| rgp | 2.999 | -- | 70.0" in text
    assert "| sgd | NOT PRIVATE | -- | 80.0" in text
    assert text.count(RHO_MEANING) == 1
    assert next(row["rho"] for row in csv.DictReader(io.StringIO(table_csv(table)))).startswith("0.3")
    assert "rho" not in table_markdown(lines([result(0.8)]))


def test_a_pipe_does_not_break_a_markdown_table():
    assert "a\\|b" in table_markdown(lines([result(None, reason="a|b\nc")]))


@pytest.mark.parametrize("width", [80, 140])
def test_the_terminal_table_fits(width):
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(terminal_table(comparison_table(lines(TABLE)), width))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    for part in ("83.0 ± 2.6", "11.0 ± 1.4 †", "NOT PRIVATE", "+11.0", "100 B", "1/2"):
        assert part in text
    assert "…" not in text
    assert ("s.e." in text) is (width >= 100)


def test_a_probe_of_another_workload_is_no_measure():
    """Runs of several workloads, or of other evaluated rows, in one report."""
    probe = result(0.5, method="linear-probe")
    others = [result(0.7, settings=other) for other in ({"workload": "cifar10"}, {"dataset": "a/b"}, {"holdout": 0.1})]
    for position, other in enumerate(others):
        (line,) = [found for found in lines([probe, replace(other, group=(position,))]) if found.method == "lsg"]
        assert line.over_probe is None
    (same,) = [found for found in lines([probe, result(0.7)]) if found.method == "lsg"]  # negative control
    assert same.over_probe == pytest.approx(0.2)
