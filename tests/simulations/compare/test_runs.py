"""``fedlsg runs`` and the sentences of a comparison: what is said of runs, and what is not supported."""

import shutil
from pathlib import Path

import pytest

from simulations.compare.headline import sentences
from simulations.compare.lines import lines
from simulations.rundir.results import Result
from tests.simulations.support.compare_cases import result

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


def runs(method: str, *accuracies: float, **more: object) -> list[Result]:
    return [result(accuracy, method=method, seed=seed, **more) for seed, accuracy in enumerate(accuracies)]  # type: ignore[arg-type]


def said(*groups: list[Result]) -> list[str]:
    return sentences(lines([run for group in groups for run in group]))


def test_a_clear_lead_and_an_unclear_one():
    clear = said(runs("dpsgd", 0.90, 0.91, 0.92), runs("lsg", 0.80, 0.81, 0.82))[0]
    assert clear.startswith("At epsilon 3, dpsgd has the highest mean accuracy, 91.0 ± 1.0 %, with 4.0x fewer uplink")
    assert "lead" not in clear
    unclear = said(runs("dpsgd", 0.80, 0.95, 0.90), runs("lsg", 0.90, 0.80, 0.92))[0]
    assert "(its lead over lsg is within 2 standard errors)" in unclear
    assert "(one seed in common with lsg, so the lead may be chance)" in said(runs("dpsgd", 0.9), runs("lsg", 0.8))[0]


def test_what_is_not_supported_is_not_said():
    assert said(runs("lsg", 0.10, 0.11)) == ["At epsilon 3 no method is better than guessing."]
    assert said(runs("sgd", 0.97, epsilon=None)) == ["No run is private: sgd, 97.0 %."]
    assert said([result(None)]) == ["No run is finished."]
    seeded = said([result(0.9, private=False), result(0.91, seed=1, private=False)])
    assert seeded == ["No run is private: lsg, 90.5 ± 0.7 %."]
