"""Accuracy against all bytes: which lines share a panel, numbers by hand, the figure, the page, the commands."""

import csv
import io
import shutil
from dataclasses import replace

import pytest
from rich.console import Console

from simulations.compare.bytes_axis import SAME, View, bytes_markdown, make_view, panel_table, panels
from simulations.compare.command import print_panels
from simulations.compare.lines import lines
from simulations.compare.output import page
from simulations.compare.plots import accuracy_by_total_bytes, figures, pareto
from simulations.report.chart import keys
from simulations.report.figure import plot, png
from simulations.report.looks import looks
from simulations.rundir.links import LINKS, transfer_seconds
from simulations.rundir.results import Result
from simulations.rundir.simulated import Simulated
from simulations.rundir.tables import read_lines
from tests.simulations.support.compare_cases import result
from tests.simulations.support.runs import Run, reconfigure

TABLE = [
    result(0.80), result(0.84, seed=1), result(0.81, method="dpsgd"), result(0.90, epsilon=8.0),
    result(0.97, method="sgd", epsilon=None), result(None, method="rgp"),
]  # fmt: skip


def shown(results):
    return [(panel.title, [line.name for line in panel.lines]) for panel in panels(lines(results))]


def test_a_panel_an_epsilon_and_what_is_not_private_in_each():
    assert shown(TABLE) == [
        ("epsilon 3 at delta 1e-05", ["dpsgd", "lsg", "sgd"]),
        ("epsilon 8 at delta 1e-05", ["lsg", "sgd"]),
    ]
    assert shown(TABLE[4:]) == [("no private method", ["sgd"])]
    assert shown(TABLE[5:]) == []


def claimed(epsilon: float, **more):
    """A run whose ledgers say ``epsilon``, whatever its target was."""
    found = result(0.8, **more)
    return found.__class__(**{**vars(found), "summary": {**found.summary, "epsilon_max": epsilon}})


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ({"epsilon": 3.0}, {"epsilon": 3.0 * (1 + SAME)}, True),
        ({"epsilon": 3.0}, {"epsilon": 3.0 * (1 + SAME) + 0.01}, False),
        ({"epsilon": 3.0}, {"epsilon": 3.0, "settings": {"delta": 1e-6}}, False),
        ({"epsilon": 3.0}, {"epsilon": 3.0, "settings": {"trust": "aggregate"}}, False),
        ({"epsilon": 3.0}, {"epsilon": 3.0, "settings": {"trust": "client"}}, True),
        ({"epsilon": 3.0}, {"epsilon": 3.0, "settings": {"workload": "cifar10"}}, False),
        ({"epsilon": 3.0}, {"epsilon": 3.0, "settings": {"holdout": 0.1}}, False),
    ],
    ids=["within a percent", "epsilon", "delta", "trust", "the default trust", "workload", "other rows"],
)
def test_only_equal_claims_share_a_panel(one, other, together):
    """What counts is the epsilon that the ledgers say, not the target: both targets are 3 here."""
    own = {key: dict(value.get("settings", {})) for key, value in (("one", one), ("other", other))}
    runs = [claimed(one["epsilon"], method="rs", settings=own["one"])]
    runs += [claimed(other["epsilon"], method="rgp", settings=own["other"])]
    found = shown(runs)
    assert len(found) == (1 if together else 2)
    assert sorted(name for _, names in found for name in names) == ["rgp", "rs"]


def test_a_chain_of_near_epsilons_is_no_bridge():
    """Negative control: each is within a percent of the next, the ends are not equal."""
    runs = [claimed(3.0 * 1.008**i, method=name) for i, name in enumerate(("rs", "rgp", "lsg"))]
    assert shown(runs) == [
        ("epsilon 3 to 3.02 at delta 1e-05", ["rgp", "rs"]),
        ("epsilon 3.05 at delta 1e-05", ["lsg"]),
    ]


def test_a_seeded_run_stands_at_its_epsilon_and_is_marked():
    """Noised, but reproducible: its ledger has an epsilon, and it is not private."""
    seeded = claimed(8.0, method="rs", private=False)
    (first, own) = panels(lines([result(0.8), seeded]))
    assert [line.name for line in first.lines] == ["lsg"]
    assert panel_table(own).rows[0].cells[0] == "rs, NOT PRIVATE"


def test_the_table_by_hand():
    """Two runs of 1,000 B up and 4,000 B down where dense is 4,000 B each way."""
    text = bytes_markdown(lines(TABLE))
    assert text.splitlines()[:6] == [
        "## epsilon 3 at delta 1e-05",
        "",
        "| method | accuracy, % | n | uplink | saved | both ways | saved |",
        "|---|---|---|---|---|---|---|",
        "| dpsgd | 81.0 | 1 | 1.00 kB | 4.0x | 5.00 kB | 1.6x |",
        "| lsg | 82.0 ± 2.8 | 2 | 1.00 kB | 4.0x | 5.00 kB | 1.6x |",
    ]
    assert "| sgd, NOT PRIVATE | 97.0 |" in text


def test_the_figure_has_a_row_an_epsilon_and_hollow_marks_for_what_is_not_private():
    charts = accuracy_by_total_bytes(panels(lines(TABLE)))
    assert len(charts) == 4
    for chart, place in zip(charts, (1000, 5000) * 2, strict=True):
        assert chart.x.log
        assert {mark.x for mark in chart.series} == {(place,)}
        assert {mark.name for mark in chart.series if not mark.filled} == {"sgd, NOT PRIVATE"}
    ends = [(mark.low[0], mark.high[0]) for mark in charts[0].series]
    assert any(abs(high - low - 2 * 100 * 0.02 * 2**0.5) < 1e-6 for low, high in ends), "one deviation to each side"
    assert {key.name for key in keys(charts)} == {"lsg", "dpsgd", "sgd, NOT PRIVATE"}
    assert png(plot(charts)).startswith(b"\x89PNG")


def test_the_front_holds_what_nothing_beats():
    """By hand: 300 bytes for 80 is beaten by 200 for 85; the most accurate one stays, though it is expensive."""
    points = [(100.0, 70.0), (200.0, 85.0), (300.0, 80.0), (900.0, 90.0), (200.0, 60.0)]
    assert pareto(points) == [(100.0, 70.0), (200.0, 85.0), (900.0, 90.0)]
    assert pareto([(1.0, 0.5), (2.0, 0.7), (3.0, 0.2)], least=True) == [(1.0, 0.5), (3.0, 0.2)]


def test_variants_of_a_method_differ_in_their_marks():
    names = [("lsg", f"lsg {i}") for i in range(8)] + [("rs", "rs"), ("new", "new")]
    found = looks(names)
    assert len(set(found.values())) == len(names)
    assert len({found[name][0] for method, name in names if method == "lsg"}) == 1


def test_learning_curves_are_over_simulated_time_if_every_run_has_a_clock():
    """Rounds end after 3 and 7 seconds in one seed, after 5 and 9 in the other: their means are 4 and 8."""

    def timed(run: Result, *clock: float) -> Result:
        own = (Simulated(simulated_clock=time, dropped="", late="") for time in clock)
        return replace(run, rows=tuple(replace(row, simulated=one) for row, one in zip(run.rows, own, strict=True)))

    both = [timed(result(0.5), 3.0, 7.0), timed(result(0.7, seed=1), 5.0, 9.0)]
    for runs, label, places in ((both, "simulated seconds", [4, 8]), ([*both, result(0.6, seed=2)], "round", [1, 2])):
        chart = figures(lines(runs))["learning-curves"][0]
        assert chart.x.label == label
        assert list(chart.series[0].x) == places


def test_the_page_and_the_terminal_show_the_panels():
    view = View(axis="bytes", link=LINKS["broadband"])
    table = lines(TABLE)
    source = page("digits", TABLE, table, view=view)
    assert "epsilon 3 at delta 1e-05" in source
    assert source.count('<figure class="chart">') == 2
    assert "Accuracy against bytes" not in page("digits", TABLE, table)
    assert set(figures(table, view)) == {"accuracy-total-bytes", "learning-curves"}
    assert set(figures(table)) == {"accuracy-epsilon", "accuracy-bytes", "learning-curves"}
    for width in (80, 120):
        console = Console(file=io.StringIO(), width=width)
        print_panels(table, console)
        text = console.file.getvalue()
        assert max(map(len, text.splitlines())) <= width
        assert "sgd, NOT PRIVATE" in text


def test_an_axis_that_does_not_exist_is_refused(fedlsg):
    assert make_view(None, None) == View()
    status, _, err = fedlsg("report", "x", "--axis", "byte")
    assert status == 1
    assert "unknown --axis 'byte', expected one of epsilon, bytes; did you mean 'bytes'?" in err
    assert "expected --link as one of" in fedlsg("compare", "digits", "--link", "dsl")[2]


def test_report_along_bytes_of_runs_that_exist(fedlsg, small, tmp_path):
    shutil.copytree(small.path, tmp_path / "other")
    reconfigure(Run(tmp_path / "other"), **{"clip-norm": 0.25})
    shutil.copytree(small.path, tmp_path / "old")
    reconfigure(Run(tmp_path / "old"), **{"clip-norm": 0.125})
    (tmp_path / "old" / "bytes.csv").unlink()  # a run of a version that did not count messages
    arguments = [str(small.path), "other", "old", "--axis", "bytes", "--link", "10/50/50", "--out", "there"]
    status, out, err = fedlsg("report", *arguments, width=120)
    assert (status, err) == (0, "")
    seconds = (
        "Transfer: seconds that the messages of a run would take on 10/50/50 (10 Mbit/s up, 50 Mbit/s down, 50 ms)"
    )
    assert seconds in " ".join(out.split())
    assert "epsilon 0.22 at delta 1e-05" in out
    assert (tmp_path / "there" / "plots" / "accuracy-total-bytes.png").exists()
    assert "NOT PRIVATE" in (tmp_path / "there" / "bytes.md").read_text()
    results = (tmp_path / "there" / "results.csv").read_text()
    rows = {row["name"]: row for row in csv.DictReader(results.splitlines())}
    seconds = transfer_seconds(read_lines(small.directory.messages), LINKS["broadband"])
    assert float(rows["small"]["transfer_seconds"]) == pytest.approx(seconds)
    assert rows["old"]["transfer_seconds"] == ""


def test_report_of_one_run_on_a_link(fedlsg, small, tmp_path):
    assert fedlsg("report", str(small.path), "--out", "there")[0] == 0
    page_of_all = (tmp_path / "there" / "report.html").read_text()
    assert all(link.short in page_of_all for link in LINKS.values())
    assert fedlsg("report", str(small.path), "--link", "1/2/3", "--out", "there")[0] == 0
    assert "on 1/2/3 (1 Mbit/s up, 2 Mbit/s down, 3 ms)" in (tmp_path / "there" / "report.html").read_text()


def test_compare_along_bytes(fedlsg, small, tmp_path, monkeypatch):
    """With cells that a run before this one left."""

    def ran_before(cells, folder, **_):
        for cell in cells:
            shutil.copytree(small.path, folder.run(cell).path)

    monkeypatch.setattr("simulations.compare.command.run_cells", ran_before)
    arguments = ["--methods", "lsg", "--axis", "bytes", "--link", "mobile", "--out", "there"]
    status, out, _ = fedlsg("compare", "digits", *arguments, width=120)
    assert status == 0
    assert "epsilon 0.22 at delta 1e-05" in out
    assert f"would take on {LINKS['mobile']}" in " ".join(out.split())
    assert (tmp_path / "there" / "plots" / "accuracy-total-bytes.png").exists()
    assert (tmp_path / "there" / "bytes.md").read_text().startswith("## epsilon 0.22 at delta 1e-05")
