"""The benchmark of defaults: the oracle's search, scores that are kept, one small cell of the table and of a part."""

import json
from pathlib import Path

import pytest

from benchmarks.accuracy import default_oracle, defaults
from benchmarks.accuracy.default_oracle import BASE
from benchmarks.accuracy.default_runs import Scores, as_cell
from benchmarks.accuracy.default_tasks import HELD_OUT, KNOWN

WINE = as_cell("wine", "1:8")


def test_no_task_is_known_and_held_out_at_once() -> None:
    assert len(HELD_OUT) >= 5
    assert not KNOWN.keys() & HELD_OUT.keys()


@pytest.mark.slow
def test_one_cell_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_oracle, "BASE", {**BASE, "rounds": 2})
    monkeypatch.setattr(default_oracle, "FARTHEST", 0)
    monkeypatch.setattr(default_oracle, "_neighbours", lambda best: [best])
    scores = Scores(tmp_path / "scores.jsonl")
    lines = defaults.table(scores, [WINE], range(1), "dpsgd")
    task, clients, epsilon, rule_score, before, oracle, gap = (text.strip() for text in lines[1].split("|")[1:8])
    assert (task, clients, epsilon) == ("wine", "1", "8")
    assert float(gap) == pytest.approx(float(oracle) - float(rule_score), abs=0.11)
    assert float(rule_score) > float(before)
    assert lines[-1].startswith("all: 1 cells, mean gap")
    tuning = {row["seed"] for row in map(json.loads, (tmp_path / "scores.jsonl").read_text().splitlines())}
    assert tuning == {default_oracle.FIRST, default_oracle.SECOND, 0}
