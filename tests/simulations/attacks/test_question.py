"""File names of pages: a page of another question is never written over."""

import json
from pathlib import Path

import pytest

from fedlsg.attacks.observation import ThreatModel
from fedlsg.simulations.attacks.question import KEY, file_stem, question_of
from fedlsg.simulations.attacks.target import Options

OPTIONS = {
    "batches": (1, 2),
    "examples": 3,
    "attacks": "dlg",
    "naive": False,
    "seconds": 0.1,
    "seed": 0,
}


def question(folder: Path, *, runs=(), threat=None, **changed):
    """As a command line asks it."""
    options = Options(**OPTIONS | changed)
    return question_of(runs, folder, threat or ThreatModel(), options, given={"rank": "2"})


def write(folder: Path, kind: str, asked) -> str:
    """The name that a page of this question gets."""
    stem = file_stem(folder, kind, asked)
    (folder / f"{stem}.json").write_text(json.dumps({KEY: dict(asked)}))
    return stem


def test_the_same_question_has_one_name_and_another_one_a_name_of_its_own(tmp_path):
    asked = [
        question(tmp_path),
        question(tmp_path, seconds=9.0),
        question(tmp_path, threat=ThreatModel(labels="unknown")),
        question(tmp_path, threat=ThreatModel(labels="unknown", examples="unknown")),
        question(tmp_path, naive=True),
        question(tmp_path, runs=[str(tmp_path / "other")]),
    ]
    names = ["attack", *(f"attack-{number}" for number in range(2, len(asked) + 1))]
    assert [write(tmp_path, "attack", one) for one in asked] == names
    assert [write(tmp_path, "attack", one) for one in asked] == names
    assert write(tmp_path, "before-after", asked[0]) == "before-after"


def test_a_run_that_has_its_page_itself_may_move_and_the_device_changes_nothing(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    assert write(first, "attack", question(first, runs=[str(first)])) == "attack"
    first.rename(second)
    moved = question(second, runs=[str(second)], device="cuda")
    assert file_stem(second, "attack", moved) == "attack"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"question": 1}'])
def test_files_that_are_damaged_or_of_others_are_left_alone(content, tmp_path):
    (tmp_path / "attack.json").write_text(content)
    (tmp_path / "attack-2.html").write_text("a page without its numbers")
    assert file_stem(tmp_path, "attack", question(tmp_path)) == "attack-3"
