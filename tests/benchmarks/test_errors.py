"""The table of mistakes: each has a grade, and a message of other words has none."""

import pytest

from benchmarks.errors import GRADES, MISTAKES, grade_of, message_of, rows, short


def test_each_mistake_has_a_grade_and_no_grade_is_below_b_plus():
    assert [one.name for one in MISTAKES] == list(GRADES)
    assert {grade for grade, _ in GRADES.values()} <= {"A", "B+"}


def test_a_grade_goes_with_its_words_alone():
    one = next(one for one in MISTAKES if one.name == "fedlsg train")
    assert grade_of(one, "No such command 'train'; did you mean fedlsg run?") == "A"
    assert grade_of(one, "No such command 'train'") == "?"
    (_, _, row) = rows([(one, ("a | b <c>", 0))])
    assert row == "| ? | fedlsg train<br>`fedlsg train digits` | a \\| b &lt;c> |"
    assert short("fedlsg.privacy.ledger_entry.BudgetError: x") == "BudgetError: x"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["labels from 1", "wrong width", "fedlsg train"])
def test_a_mistake_is_made_as_a_user_makes_it(name):
    one = next(one for one in MISTAKES if one.name == name)
    message, frames = message_of(one)
    assert grade_of(one, message) == "A"
    assert frames == (0 if one.in_shell else 1)
