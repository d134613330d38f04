"""The versions in this environment of all that requirements*.txt need, as constraints for pip.

Usage, in an environment in which .ci/run passes: python .ci/lock.py > requirements-lock.txt
"""

import platform
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# What the tests ran with: Python {python}, Linux, torch for CPUs. Made by `python .ci/lock.py`.
# Use it as constraints: pip install -c requirements-lock.txt -e '.[dev]'
# There are no hashes: torch has another file for each kind of processor and CUDA, and pip takes hashes for all or none.
# tests/test_lock.py checks that the versions satisfy requirements*.txt. Newer versions in those ranges are allowed."""


def main() -> None:
    """Print the file."""
    files = [
        file
        for file in sorted(ROOT.glob("requirements*.txt"))
        if file.name != "requirements-lock.txt"
    ]
    lines = (line.split("#")[0].strip() for file in files for line in file.read_text().splitlines())
    print(HEAD.format(python=platform.python_version()))
    for name, pin in sorted(closure([Requirement(line) for line in lines if line]).items()):
        print(f"{name}=={pin}")


def closure(wanted: list[Requirement]) -> dict[str, str]:
    """Versions of these packages and of all that they need here. Raises PackageNotFoundError for a
    missing one.
    """
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    while wanted:
        one = wanted.pop()
        name = canonicalize_name(one.name)
        found[name] = Version(version(name)).public  # without "+cpu"
        for extra in ("", *sorted(one.extras)):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for needed in map(Requirement, requires(name) or ()):
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    wanted.append(needed)
    return found


if __name__ == "__main__":
    try:
        main()
    except PackageNotFoundError as error:
        raise SystemExit(f"{error} is not installed: pip install -e '.[dev,hub,text]'") from None
