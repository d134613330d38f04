"""Settings are read from declarations: names, types, choices, ranges, and errors that name all of them."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from fedlsg.setting import REQUIRED, Setting, check_declared, declared

Share = Annotated[float, Setting("A share.", at_least=0, below=1, why="it is a share", aliases=("s",))]


def method(
    *,
    rank: Annotated[int, Setting("Rank r of the carriers.", at_least=1)] = 4,
    share: Share = 0.5,
    rate: Annotated[float | None, Setting("A rate.", above=0, below=math.inf, aliases=("lr",))] = None,
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
    assert (direction.kind, direction.choices, direction.range) == (str, ("top", "bottom"), "top or bottom")
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
