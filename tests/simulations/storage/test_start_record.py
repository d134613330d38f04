"""start.json: what the user gave and what was said of it, what a run before had spent, in numbers
that the ledgers have too.
"""

import json
from pathlib import Path

import pytest

from fedlsg.simulations.report.page_of_run.run_page import run_page, started_words
from fedlsg.simulations.report.words import epsilon_words
from fedlsg.simulations.storage.results import read_run
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.own import TEST, TRAIN, quick


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with a learning rate, one that starts from it, and one from that."""
    base = tmp_path_factory.mktemp("started")
    more = {"reproducible": False, "noise_multiplier": None, "learning_rate": 0.1}
    first = quick(base / "first", epsilon=4, rounds=3, **more)
    second = quick(base / "second", epsilon=6, rounds=2, start_from=first, **more)
    third = quick(base / "third", epsilon=7, rounds=1, start_from=second, **more)
    return first, second, third


def start(run):
    return read_run(Path(run.directory)).start


def test_what_was_given_and_said_is_kept(runs):
    found = start(runs[0])
    assert {"epsilon", "rounds", "learning_rate"} <= set(found["given"])
    assert "seed" not in found["given"]
    assert "learning_rate=0.1 turns the rule off" in found["notes"][0]
    assert found["before"] == {}


def test_the_runs_before_are_counted_as_their_ledgers_have_them(runs):
    first, second, third = runs
    before = start(second)["before"]
    assert (before["run"], before["rounds"]) == ("first", 3)
    assert before["epsilon"] == pytest.approx(first.epsilon, rel=1e-6)
    assert before["epsilon"] < second.epsilon
    last = start(third)["before"]
    assert (last["run"], last["rounds"]) == ("second", 5)
    assert last["epsilon"] == pytest.approx(second.epsilon, rel=1e-6)


def test_the_page_says_what_is_included(runs):
    words = started_words(read_run(Path(runs[1].directory)))
    epsilon = epsilon_words(runs[0].epsilon)
    assert words.startswith(
        f"Trained further: started from first, after epsilon {epsilon} and 3 rounds. The epsilon "
        "here includes that"
    )
    page = run_page(read_run(Path(runs[1].directory)))
    assert words in page
    assert "planned for 2 rounds after the 3 of the run before" in page
    assert "learning_rate=0.1 turns the rule off" in page
    assert "Trained further" not in run_page(read_run(Path(runs[0].directory)))


def test_a_run_without_the_file_reads_as_before_and_a_changed_one_is_named(runs, tmp_path):
    path = RunDir(Path(runs[2].directory)).start
    text = path.read_text()
    path.write_text(json.dumps(json.loads(text) | {"given": {}}))
    with pytest.raises(ValueError, match=r"start\.json"):
        start(runs[2])
    path.unlink()
    assert start(runs[2]) == {}


@pytest.mark.parametrize("size", [1, 100])
def test_inputs_of_an_unusual_size_are_named_on_the_page(size, tmp_path):
    data = {"train": (size * TRAIN[0], TRAIN[1]), "test": (size * TEST[0], TEST[1])}
    run = quick(tmp_path, **data)
    said = any("give normalise=public" in note for note in start(run)["notes"])
    assert said is (size > 1)
