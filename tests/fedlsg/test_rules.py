"""Conditions on facts, of which some are not known, and what a broken rule says."""

import pytest

from fedlsg.rules import Rule, check_rules, example, holds, idle_unless, needs, spell

FACTS = {"trust": "secure", "steps": 2, "most": 3, "personal": None, "share": 0.0, "flag": True, "rate": 0.5}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("flag", True), ("not flag", False), ("personal", False), ("not personal", True), ("share", False),
        ("trust=secure|server", True), ("trust!=secure", False), ("trust=client", False), ("flag=true", True),
        ("steps>1", True), ("steps>2", False), ("steps>=2", True), ("steps<most", True), ("steps<=1", False),
        ("personal>1", None), ("unknown", None), ("not unknown", None), ("unknown=1", None), ("steps<unknown", None),
        ("flag and unknown", None), ("personal and unknown", False), ("flag or unknown", True),
        ("personal or unknown", None), ("personal or flag and steps>1", True),
    ],
)  # fmt: skip
def test_what_is_not_known_is_neither_true_nor_false(condition, expected):
    assert holds(condition, FACTS) is expected


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Rule(of="rate", needs="steps>3", why="raise steps"), "rate=0.5 needs steps > 3, got steps=2: raise steps"),
        (Rule(of="trust=secure and flag", needs="not rate", why="x"), "trust=secure does not go with rate=0.5: x"),
        (Rule(of="flag", needs="trust=a|b", why="x"), "flag=true needs trust=a or b, got trust=secure: x"),
        (Rule(of="steps", needs="trust!=secure"), "steps=2 does not go with trust=secure: leave one of them out"),
        (Rule(of="rate", needs="personal", why="{trust!r} {steps}"), "rate=0.5 needs personal: 'secure' 2"),
        (Rule(of="flag", needs="not trust"), "flag=true does not go with a sum (secure): leave one of them out"),
    ],
)  # fmt: skip
def test_a_broken_rule_says_what_was_expected_and_found(rule, said):
    words = {"trust": "a sum ({trust})"} if rule.needs == "not trust" else {}
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole message is compared
        check_rules([rule], FACTS, words)
    assert str(refused.value) == said


def test_what_is_kept_unknown_or_only_idle_is_not_refused():
    kept = [needs("flag", of="rate"), needs("unknown", of="rate"), needs("x", of="personal")]
    check_rules([*kept, needs("flag", of="unknown"), idle_unless("personal", of="rate")], FACTS, {})
    assert idle_unless("personal", of="rate").broken(FACTS)


def test_an_example_makes_its_condition_true():
    for condition in ("trust=server|secure and unit=client", "personal", "not personal", "steps>2"):
        assert holds(condition, example(condition)) is True
    assert spell("steps>1 or not personal", {"personal": "own parts"}) == "steps > 1 or no own parts"
