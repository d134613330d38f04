"""Hints on disk: a second search is a check, and an entry that is wrong in any way costs a search
and no epsilon.
"""

import json
import math

import pytest

from fedlsg.accounting import calibrate, compose, hints, max_steps
from fedlsg.accounting.events import Event

SETTING = {"epsilon": 2.0, "delta": 1e-5, "sample_rate": 0.2, "steps": 20}
OTHERS = {
    "epsilon": SETTING | {"epsilon": 3.0},
    "delta": SETTING | {"delta": 1e-4},
    "sample_rate": SETTING | {"sample_rate": 0.1},
    "steps": SETTING | {"steps": 10},
    "besides": SETTING | {"besides": (Event(sample_rate=1.0, noise_multiplier=9.0, steps=1),)},
    "log_ratio": SETTING | {"log_ratio": 0.1},
}


@pytest.fixture(autouse=True)
def entries(tmp_path, monkeypatch):
    """The folder of entries, empty, and caches of a new process."""
    monkeypatch.setenv("FEDLSG_HINTS", "on")
    monkeypatch.setenv("FEDLSG_CACHE", str(tmp_path))
    calibrate.forget()
    yield tmp_path / "accounting"
    calibrate.forget()


@pytest.fixture
def searches(monkeypatch):
    """The searches that took place."""
    made = []
    right = calibrate.smallest_sigma

    def counted(*arguments):
        made.append(right(*arguments))
        return made[-1]

    monkeypatch.setattr(calibrate, "smallest_sigma", counted)
    return made


def again(setting=SETTING) -> float:
    calibrate.forget()
    return calibrate.calibrate_each(
        [(setting["sample_rate"], setting["steps"])],
        **{name: value for name, value in setting.items() if name not in ("sample_rate", "steps")},
    ).popitem()[1]


def only(folder, word="sigma"):
    """The entry of a question that begins with a word."""
    (found,) = (
        path
        for path in folder.iterdir()
        if json.loads(json.loads(path.read_text())["question"])[0] == word
    )
    return found


def test_a_second_search_is_a_check_and_finds_the_same_bits(entries, searches):
    first = again()
    assert again() == first
    assert len(searches) == 1
    assert entries.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in entries.iterdir()} == {0o600}
    steps = {"epsilon": 2.0, "delta": 1e-5, "sample_rate": 0.2, "noise_multiplier": first}
    found = max_steps(**steps)
    calibrate.forget()
    assert max_steps(**steps) == found >= 20


@pytest.mark.parametrize("name", OTHERS)
def test_another_question_has_another_answer(name, searches):
    right = again(OTHERS[name])
    again()
    assert again(OTHERS[name]) == right
    assert len(searches) == 2


def planted(entries, **changes):
    """Change the entry, with a digest that is right."""
    path = only(entries)
    record = json.loads(path.read_text()) | changes
    record["sha256"] = hints._digest(json.dumps([record["question"], record["answer"]]))
    path.write_text(json.dumps(record))


@pytest.mark.parametrize("factor", [0.5, 0.999, 1.001, 2.0, -1.0, math.inf])
def test_a_stale_answer_is_refused_by_the_accountant(factor, entries, searches):
    """Less noise would be a wrong epsilon, more noise a needless loss: neither is the smallest
    sigma.
    """
    right = again()
    planted(entries, answer=[factor * right])
    assert again() == right
    assert len(searches) == 2
    assert again() == right
    assert len(searches) == 2  # the entry is repaired


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace("sigma", "gamma"),
        lambda text: text.replace('"answer": [', '"answer": [1'),
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_entry_is_refused(damage, entries, searches):
    right = again()
    path = only(entries)
    path.write_text(damage(path.read_text()))
    assert again() == right
    assert len(searches) == 2


@pytest.mark.parametrize("name", OTHERS)
def test_a_key_that_misses_its_inputs_is_caught(name, searches, monkeypatch):
    """All questions then have one entry: it has the answer to another one, and the accountant
    refuses it.
    """
    right, checked = again(OTHERS[name]), hints.checked
    monkeypatch.setattr(hints, "checked", lambda name, inputs, **how: checked(name, [], **how))
    again()
    assert again(OTHERS[name]) == right
    assert len(searches) == 3


def test_what_others_could_write_is_not_read(entries, searches):
    right = again()
    only(entries).chmod(0o666)
    assert again() == right
    entries.chmod(0o777)
    assert again() == right
    assert len(searches) == 3
    assert entries.stat().st_mode & 0o777 == 0o700  # closed again by the write


def test_a_witness_that_contradicts_is_never_a_hint(entries):
    """The reported bound is composed; a hint of the witness that it does not meet is asked for
    anew.
    """
    event = Event(sample_rate=0.2, noise_multiplier=2.0, steps=20)
    right = compose([event], delta=1e-5)
    path = only(entries, "witness")
    record = json.loads(path.read_text())
    for answer in ([9.0, 9.5, 10.0], [0.0, 0.0, 1e-3], [0.5], [2.0, 1.0, 3.0]):
        record["answer"] = answer
        record["sha256"] = hints._digest(json.dumps([record["question"], answer]))
        path.write_text(json.dumps(record))
        assert compose([event], delta=1e-5) == right
