"""``fedlsg runs``: what a list says of each run, and that foreign folders can neither stop it nor speak through it."""

import shutil
from pathlib import Path

import pytest

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


def test_a_changed_run_is_not_compared(folder, fedlsg):
    (folder / "done" / "rounds.csv").write_text((folder / "done" / "rounds.csv").read_text().replace("1", "2", 1))
    status, _, err = fedlsg("runs", str(folder), "--compare", "done", "half")
    assert (status, "changed since the run" in err) == (1, True)
