"""``fedlsg runs``: what a list says of each run, and that foreign folders can neither stop it nor speak through it."""

import json
import os
import shutil
from pathlib import Path

import pytest

from simulations.exports.runs import in_order, listed, printable, read_all
from simulations.rundir.journal import EVENTS
from simulations.rundir.lock import exclusive
from simulations.rundir.rundir import RunDir

EVIL = "<img src=x onerror=alert(1)>\x1b[31m\u202e"


@pytest.fixture
def folder(small, stopped, tmp_path: Path) -> Path:
    """A finished run, an interrupted one, one of a comparison, a damaged one, and names that want to be obeyed."""
    place = tmp_path / "runs"
    shutil.copytree(small.path, place / "done")
    shutil.copytree(stopped.path, place / "half")
    shutil.copytree(small.path, place / "grid" / "cells" / "lsg-seed0")
    shutil.copytree(small.path, place / "broken")
    (place / "broken" / "summary.json").write_text("{")
    shutil.copytree(small.path, place / EVIL)
    (place / "no run").mkdir()
    return place


def test_the_list(folder, fedlsg):
    status, out, err = fedlsg("runs", str(folder), "--sort", "run", width=160)
    assert (status, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "finished" in lines["done"]
    assert "interrupted" in lines["half"]
    assert "so far" not in lines["half"]  # a reproducible run claims none
    assert lines["done"].count("NOT PRIVATE") == 1
    assert "grid/lsg-seed0" in lines
    assert "left out: broken: " in out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert r"\x1b[31m\x202e" in out


def test_for_programs(folder, fedlsg):
    status, out, err = fedlsg("runs", str(folder), "--json")
    rows = {row["run"]: row for row in json.loads(out)}
    assert (status, rows.keys()) == (0, {"done", "half", "grid/lsg-seed0", EVIL})
    assert "left out: broken" in err
    summary = json.loads((folder / "done" / "summary.json").read_text())
    assert rows["done"]["accuracy"] == summary["accuracy"]
    assert rows["done"]["bytes"] == summary["uplink_bytes"] + summary["downlink_bytes"]
    assert rows["done"]["path"] == str(folder / "done")


def test_a_run_that_is_going_on(stopped):
    assert listed(stopped.path, "a").state == "interrupted"
    with exclusive(RunDir(stopped.path)):
        assert listed(stopped.path, "a").state == "running"
    assert listed(stopped.path, "a").state == "interrupted"


def test_a_copy_began_when_its_run_did(stopped, tmp_path):
    """By its first event; by the time of its settings where there are no events, or none with a time."""
    copy = Path(shutil.copytree(stopped.path, tmp_path / "copy"))
    os.utime(copy / "config.toml", (9.0, 9.0))
    assert listed(copy, "a").began == pytest.approx((stopped.path / "config.toml").stat().st_mtime, abs=300)
    (copy / EVENTS).write_bytes(b"short")
    assert listed(copy, "a").began == 9.0


def test_orders(folder):
    runs = read_all(folder, lambda line: None)
    assert [run.name for run in in_order(runs, "run")][:2] == [EVIL, "done"]
    assert in_order(runs, "run", reverse=True)[0].name == "half"
    assert in_order(runs, "accuracy")[-1].name == "half"
    assert in_order(runs, "time")[-1].result.done is False  # no value: last
    with pytest.raises(ValueError, match=r"unknown sort 'acuracy'.*did you mean 'accuracy'"):
        in_order(runs, "acuracy")


def test_side_by_side(folder, fedlsg):
    status, out, err = fedlsg("runs", str(folder), "--compare", "done", "half", "lsg-seed0", "--sort", "run")
    assert (status, err) == (0, "")
    assert out.splitlines()[0].split() == ["done", "half", "lsg-seed0"]
    assert "left out" not in out  # only the chosen ones are read
    status, _, err = fedlsg("runs", str(folder), "--compare", "done", "nothing")
    assert (status, "unknown run 'nothing'" in err) == (1, True)


def test_a_changed_run_is_not_compared(folder, fedlsg):
    (folder / "done" / "rounds.csv").write_text((folder / "done" / "rounds.csv").read_text().replace("1", "2", 1))
    status, _, err = fedlsg("runs", str(folder), "--compare", "done", "half")
    assert (status, "changed since the run" in err) == (1, True)


def test_the_page(folder, fedlsg, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    status, out, _ = fedlsg("runs", str(folder), "--html", "list.html", "--compare", "half", "done")
    assert (status, "page  list.html" in out) == (0, True)
    text = Path("list.html").read_text()
    assert "&lt;img src=x onerror" in text
    assert "<img" not in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_an_empty_folder(fedlsg, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no runs in empty: start one with fedlsg run" in fedlsg("runs", "empty")[1]
    status, _, err = fedlsg("runs")
    assert (status, "runs is no folder" in err) == (1, True)


def test_negative_control_without_codes_the_name_is_obeyed():
    assert "\x1b" in EVIL
    assert printable(EVIL) == r"<img src=x onerror=alert(1)>\x1b[31m\x202e"
