"""docs/methods.md lists every recipe with its real parameters and defaults, and its variants build."""

import re
from inspect import signature

import pytest

import strategies
from strategies import _build, names, recipe
from tests.places import REPOSITORY

PAGE = (REPOSITORY / "docs" / "methods.md").read_text()
ROWS = {cells[1].strip("` "): cells for line in PAGE.splitlines() if len(cells := line.split("|")) == 9}
VARIANTS = [line.split("|")[3] for line in PAGE.splitlines() if len(line.split("|")) == 5]


def parameters(name: str) -> list[str]:
    """``name=default`` of what a recipe's own function takes, in its order."""
    taken = signature(_build(name)).parameters.values()
    return [f"{p.name}={p.default}" for p in taken if p.name in strategies.own_settings(name)]


def listed(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_recipe_has_its_row():
    rows = set(ROWS) - {"recipe", "---"}
    missing, gone = set(names()) - rows, rows - set(names())
    assert not missing, (
        f"write a row of docs/methods.md for {missing}: in the first table, with parameters and defaults"
    )
    assert not gone, f"docs/methods.md has rows of {gone}, which are no recipes"


@pytest.mark.parametrize("name", sorted(ROWS.keys() & set(names())))
def test_parameters_are_those_of_the_recipe(name):
    assert listed(ROWS[name][5]) == parameters(name)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "=" in v])
def test_variants_build(variant):
    """Each ``key=value`` of a variant is taken by a recipe that has it, with a value that is allowed there."""
    words = listed(variant)
    method = next((word for word in words if word in names()), None)
    assert [word for word in words if "=" in word]
    for group in variant.split(";"):
        given = dict(word.split("=") for word in listed(group) if "=" in word)
        values = {key: value if key in TEXT else _number(value) for key, value in given.items()}
        takers = [method] if method else [n for n in names() if _takes(n, values)]
        assert takers, group
        recipe(takers[0], **values)


TEXT = ("importance", "direction", "estimator", "redraw", "ranking", "mechanism", "carrier", "drop", "prune")


def _number(word: str) -> float | bool:
    return word == "true" if word in ("true", "false") else float(word)


def _takes(name: str, values: dict[str, object]) -> bool:
    try:
        recipe(name, **values)
    except ValueError:
        return False
    return True
