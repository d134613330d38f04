"""requirements-lock.txt names every direct dependency, at a version that requirements*.txt
allow.
"""

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.places import REPOSITORY
from tests.versions import SETS

LOCK = REPOSITORY / "requirements-lock.txt"
FILES = sorted(file for file in REPOSITORY.glob("requirements*.txt") if file != LOCK)


def requirements_of(file: Path) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in file.read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def pins() -> dict[str, str]:
    """The versions of the lock file; each line is one exact version."""
    found = {}
    for one in requirements_of(LOCK):
        (exact,) = one.specifier
        assert exact.operator == "==", one
        found[canonicalize_name(one.name)] = exact.version
    return found


def wrong(wanted: list[Requirement], locked: dict[str, str]) -> list[str]:
    """Requirements that the locked versions lack or do not satisfy."""
    return [
        str(one)
        for one in wanted
        if (pin := locked.get(canonicalize_name(one.name))) is None
        or not one.specifier.contains(pin)
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_direct_dependency_is_locked_within_its_range(file):
    assert wrong(requirements_of(file), pins()) == []


def test_versions_that_are_tried_are_the_ends_of_the_ranges():
    own = {
        canonicalize_name(one.name): one for one in requirements_of(REPOSITORY / "requirements.txt")
    }
    for pins_of_set in SETS.values():
        tried = dict(pin.split("==") for pin in pins_of_set)
        assert wrong([own[name] for name in tried], tried) == []
