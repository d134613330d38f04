"""The benchmark of defaults: the oracle's search, scores that are kept, one small cell of the table and of a part."""

import json
import math
from pathlib import Path

import pytest

from benchmarks import default_oracle, defaults
from benchmarks.default_oracle import ADAM, BASE, _climb, _neighbours
from benchmarks.default_parts import PARTS, Part, measure, rule
from benchmarks.default_pretrained import PRETRAINED
from benchmarks.default_runs import OLD, Cell, Scores, Values, as_cell
from benchmarks.default_tasks import HELD_OUT, KNOWN, TASKS

WINE = as_cell("wine", "1:8")


@pytest.mark.parametrize("best", [0.0011, 0.03, 2.0])
def test_the_walk_ends_at_a_rate_with_worse_ones_on_both_sides(best: float) -> None:
    def score(settings: Values) -> float:
        return -abs(math.log(settings["learning_rate"] / best))

    found = _climb(score, {**BASE, **ADAM})
    rates = sorted((settings["learning_rate"], value) for value, settings in found)
    place = max(range(len(rates)), key=lambda index: rates[index][1])
    assert 0 < place < len(rates) - 1
    assert best / 3**0.5 * 0.99 < rates[place][0] < best * 3**0.5 * 1.01


def test_a_neighbour_changes_the_clip_norm_and_keeps_the_length_of_steps() -> None:
    best = {**BASE, "optimizer": "sgd", "momentum": 0.0, "learning_rate": 2.0}
    for found in _neighbours(best):
        if found["clip_norm"] != best["clip_norm"]:
            assert found["learning_rate"] * found["clip_norm"] == pytest.approx(2.0, abs=0.3)
        else:
            assert found["learning_rate"] * found["rounds"] ** 0.5 == pytest.approx(2.0 * 20**0.5, rel=1e-3) or (
                found["rounds"] == 20
            )
        assert found["rounds"] * found["sample_rate"] == 20


def test_no_task_is_known_and_held_out_at_once() -> None:
    assert len(HELD_OUT) >= 5
    assert not KNOWN.keys() & HELD_OUT.keys()
    names = {cell.task for part in PARTS.values() for cell in part.cells}
    assert names <= {*TASKS, *PRETRAINED}


def test_a_score_is_measured_once_and_read_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    settings = {**OLD, "rounds": 1}
    first = Scores(path)(WINE, 0, settings)
    assert 0 <= first <= 100
    row = json.loads(path.read_text())
    path.write_text(json.dumps({**row, "score": 12.5}) + "\n")
    again = Scores(path)
    assert again(WINE, 0, settings) == 12.5
    assert again(Cell(task="wine", clients=1, epsilon=8.0), 0, dict(reversed(settings.items()))) == 12.5
    assert len(path.read_text().splitlines()) == 1


def test_after_a_change_of_the_rule_only_its_own_scores_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    cell = {"task": "wine", "clients": 1, "epsilon": 8.0}
    rows = [{"cell": cell, "seed": 0, "settings": settings, "score": 1.0} for settings in ({"method": "dpsgd"}, OLD)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(Scores(path).known) == 2
    assert Scores(path, again=True)(WINE, 0, OLD) == 1.0
    assert len(Scores(path, again=True).known) == 1


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


def test_a_part_has_a_row_for_each_cell_and_the_losses_of_each_arm(tmp_path: Path) -> None:
    part = Part(cells=(WINE,), bases={"dpsgd": {}}, arms={"2 rounds": rule(rounds=2), "1 round": {**OLD, "rounds": 1}})
    lines = measure(Scores(tmp_path / "scores.jsonl"), part, range(1))
    assert [line.split("|")[1].strip() for line in lines[1:]] == [
        "wine, K = 1, epsilon 8", "mean", "mean loss to the best",
    ]  # fmt: skip
    scores = [float(text) for text in lines[1].split("|")[2:4]]
    losses = [float(text) for text in lines[3].split("|")[2:4]]
    assert losses == pytest.approx([max(scores) - score for score in scores], abs=0.11)
