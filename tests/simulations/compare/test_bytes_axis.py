"""Accuracy against all bytes: which lines share a panel, numbers by hand, the figure, the page, the commands."""

import csv
import shutil

import pytest

from simulations.compare.bytes_axis import SAME, panels
from simulations.compare.lines import lines
from simulations.compare.plots import pareto
from simulations.rundir.journal import LINKS, read_lines, transfer_seconds
from tests.simulations.support.compare_cases import result
from tests.simulations.support.runs import Run, reconfigure


def shown(results):
    return [(panel.title, [line.name for line in panel.lines]) for panel in panels(lines(results))]


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


def test_the_front_holds_what_nothing_beats():
    """By hand: 300 bytes for 80 is beaten by 200 for 85; the most accurate one stays, though it is expensive."""
    points = [(100.0, 70.0), (200.0, 85.0), (300.0, 80.0), (900.0, 90.0), (200.0, 60.0)]
    assert pareto(points) == [(100.0, 70.0), (200.0, 85.0), (900.0, 90.0)]
    assert pareto([(1.0, 0.5), (2.0, 0.7), (3.0, 0.2)], least=True) == [(1.0, 0.5), (3.0, 0.2)]


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
