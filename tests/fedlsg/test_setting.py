"""Settings and rules are read from declarations: names, types, ranges, conditions on what is
known.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from fedlsg.config import REQUIRED, Setting, check_declared, declared, unknown
from fedlsg.config.foreign import NOT_NEEDED, OUR_NAMES
from fedlsg.config.rules import Rule, check_rules, example, holds, idle_unless, needs, spell

Share = Annotated[
    float, Setting("A share.", at_least=0, below=1, why="it is a share", aliases=("s",))
]


def method(
    *,
    rank: Annotated[int, Setting("Rank r of the carriers.", at_least=1)] = 4,
    share: Share = 0.5,
    rate: Annotated[
        float | None, Setting("A rate.", above=0, below=math.inf, aliases=("lr",))
    ] = None,
    other: Share | None = None,
    residual: bool = True,
    direction: Literal["top", "bottom"] = "top",
    path: str,
    mechanism: object = None,
) -> None:
    """A callable with a parameter of every kind."""


@dataclass(frozen=True, kw_only=True)
class Part:
    kind: Literal["a", "b"] = "a"
    rate: Annotated[float, Setting("A rate.", above=0, at_most=1, name="part_rate")] = 0.5
    free: int = 0


FOUND = declared(method, without=("mechanism",))


def test_what_a_callable_declares():
    assert list(FOUND) == ["rank", "share", "rate", "other", "residual", "direction", "path"]
    rank, share, rate, other, residual, direction, path = FOUND.values()
    assert (rank.kind, rank.default, rank.setting.meaning) == (int, 4, "Rank r of the carriers.")
    assert (rate.kind, rate.optional, rate.default) == (float, True, None)
    assert (other.kind, other.optional, other.setting) == (float, True, share.setting)
    assert (residual.kind, residual.range) == (bool, "true or false")
    assert (direction.kind, direction.choices, direction.range) == (
        str,
        ("top", "bottom"),
        "top or bottom",
    )
    assert (path.default, path.range, path.optional) == (REQUIRED, "", False)
    assert [one.range for one in (rank, share, rate)] == ["x >= 1", "0 <= x < 1", "0 < x < inf"]


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("rank", "8", 8),
        ("rank", 8.0, 8),
        ("share", "0", 0.0),
        ("rate", "1e-3", 1e-3),
        ("rate", None, None),
        ("residual", "No", False),
        ("residual", "1", True),
        ("direction", "bottom", "bottom"),
        ("path", 3, "3"),
    ],
)
def test_values_are_parsed(name, raw, value):
    parsed = FOUND[name].parse(raw)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("rank", "0", "expected rank=0 >= 1"),
        ("rank", "many", r"expected a number \(int\) for rank, got 'many'"),
        ("rank", 2.5, r"expected a number \(int\) for rank, got 2.5"),
        ("rank", True, r"expected a number \(int\) for rank, got True"),
        ("rank", math.inf, r"expected a number \(int\) for rank, got inf"),
        ("share", "1", "expected 0 <= share=1.0 < 1: it is a share"),
        ("share", "nan", "expected 0 <= share=nan < 1: it is a share"),
        ("share", None, r"expected a number \(float\) for share, got None"),
        ("rate", "inf", "expected 0 < rate=inf < inf"),
        ("other", "-1", "expected 0 <= other=-1.0 < 1: it is a share"),
        ("residual", "maybe", "expected true or false for residual, got 'maybe'"),
        ("direction", "up", r"expected direction in \('top', 'bottom'\), got 'up'"),
    ],
)
def test_errors_name_setting_value_and_range(name, raw, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        FOUND[name].parse(raw)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "c"}, r"expected kind in \('a', 'b'\), got 'c'"),
        ({"rate": 0.0}, "expected 0 < part_rate=0.0 <= 1"),
        ({"rate": math.nan}, "expected 0 < part_rate=nan <= 1"),
    ],
)
def test_an_instance_is_checked_against_its_declarations(wrong, message):
    check_declared(Part(free=-1))
    with pytest.raises(ValueError, match=message):
        check_declared(Part(**wrong))


FACTS = {
    "trust": "secure",
    "steps": 2,
    "most": 3,
    "personal": None,
    "share": 0.0,
    "flag": True,
    "rate": 0.5,
}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("flag", True),
        ("not flag", False),
        ("personal", False),
        ("not personal", True),
        ("share", False),
        ("trust=secure|server", True),
        ("trust!=secure", False),
        ("trust=client", False),
        ("flag=true", True),
        ("steps>1", True),
        ("steps>2", False),
        ("steps>=2", True),
        ("steps<most", True),
        ("steps<=1", False),
        ("personal>1", None),
        ("unknown", None),
        ("not unknown", None),
        ("unknown=1", None),
        ("steps<unknown", None),
        ("flag and unknown", None),
        ("personal and unknown", False),
        ("flag or unknown", True),
        ("personal or unknown", None),
        ("personal or flag and steps>1", True),
    ],
)
def test_what_is_not_known_is_neither_true_nor_false(condition, expected):
    assert holds(condition, FACTS) is expected


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            Rule(of="rate", needs="steps>3", why="raise steps"),
            "rate=0.5 needs steps > 3, got steps=2: raise steps",
        ),
        (
            Rule(of="trust=secure and flag", needs="not rate", why="x"),
            "trust=secure does not go with rate=0.5: x",
        ),
        (
            Rule(of="flag", needs="trust=a|b", why="x"),
            "flag=true needs trust=a or b, got trust=secure: x",
        ),
        (
            Rule(of="steps", needs="trust!=secure"),
            "steps=2 does not go with trust=secure: leave one of them out",
        ),
        (
            Rule(of="rate", needs="personal", why="{trust!r} {steps}"),
            "rate=0.5 needs personal: 'secure' 2",
        ),
        (
            Rule(of="flag", needs="not trust"),
            "flag=true does not go with a sum (secure): leave one of them out",
        ),
    ],
)
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
    assert (
        spell("steps>1 or not personal", {"personal": "own parts"}) == "steps > 1 or no own parts"
    )


def test_names_of_other_libraries_are_named_in_our_words():
    known = {"clip_norm": FOUND["rank"], "microbatch_size": FOUND["rank"]}
    for name, said in (
        ("max_grad_norm", "it is 'clip_norm' here"),
        ("L2-norm-clip", "it is 'clip_norm' here"),
        ("max_physical_batch_size", "it is 'microbatch_size' here"),
        ("target_epsilon", "fedlsg calls it epsilon, an argument of PrivateStep and simulate"),
        ("secure_mode", "leave it out: noise is drawn from a cryptographic generator"),
        ("clip_nrm", "did you mean 'clip_norm'?"),
    ):
        assert str(unknown("setting", name, known)) == f"unknown setting {name!r}; {said}"


def test_an_alias_of_a_declaration_comes_first():
    assert str(unknown("setting", "lr", FOUND)).endswith("did you mean 'rate'?")


def test_the_two_tables_of_other_names_are_apart():
    assert not OUR_NAMES.keys() & NOT_NEEDED.keys()
