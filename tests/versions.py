"""The oldest and the newest versions that fedlsg takes, each in an environment of its own; a
program prints a table.

    python -m tests.versions [oldest|newest ...] [--torch 2.13.0] [--keep FOLDER]

It installs packages (2 to 6 GB with a CUDA build of torch), and runs a few things in each
environment: a run on both engines, ``flwr run`` on Flower's simulation, and a private loop. The
exit status is 1 where one of them fails.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedlsg.config import summary_of
from tests.places import REPOSITORY

SETS: Mapping[str, tuple[str, ...]] = {
    "oldest": ("flwr==1.41.0", "ray==2.55.0", "torch==2.6.0"),
    "newest": ("flwr==1.42.0", "ray==2.60.0", "torch==2.15.0"),
}
"""What is pinned; requirements.txt allows all between. Newer ones may be tried: its ranges are not
asked of these.
"""
TOOLS = (
    "pytest>=8.3",
    "hypothesis>=6.100",
    "beartype>=0.18",
    "dp-accounting>=0.6",
    "scikit-learn>=1.5",
)
RUN = (
    "-m",
    "fedlsg",
    "run",
    "digits",
    "--rounds",
    "2",
    "--clients",
    "2",
    "--noise-multiplier",
    "2",
)
TEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
CHECKS: Mapping[str, tuple[str, ...]] = {
    "engine local": (*RUN, "--engine", "local", "--out", "{folder}/local"),
    "engine ray": (*RUN, "--engine", "ray", "--out", "{folder}/ray"),
    "flwr run": (
        *TEST,
        "tests/simulations/engines/test_flower.py::test_flower_s_simulation_runs_as_the_local_engine",
    ),
    "PrivateStep": (*TEST, "tests/examples/test_own_loop.py"),
    "per-example gradients": (
        *TEST,
        "-m",
        "not gpu",
        "tests/fedlsg/gradients/calls/test_layers.py",
    ),
}
SECONDS = 1800


def pins_of(name: str, torch: str | None) -> tuple[str, ...]:
    """The versions of a set, with another torch where one is named."""
    return tuple(
        f"torch=={torch}" if torch and pin.startswith("torch==") else pin for pin in SETS[name]
    )


def install(folder: Path, pins: Sequence[str]) -> Path:
    """The Python of a new environment with fedlsg from this repository. Raises
    CalledProcessError.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    listed = [line.strip() for line in (REPOSITORY / "requirements.txt").read_text().splitlines()]
    pinned = {pin.partition("==")[0] for pin in pins}
    others = [
        line
        for line in listed
        if line and line[0] != "#" and re.split(r"[\[<>=]", line)[0] not in pinned
    ]
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *pins, *others, *TOOLS], check=True)
    subprocess.run([*pip, "--no-deps", "-e", str(REPOSITORY)], check=True)
    return python


def check(python: Path, folder: Path) -> dict[str, str]:
    """What became of each check: "works", or the last line that it printed."""
    found = {}
    for name, words in CHECKS.items():
        command = [str(python), *(word.format(folder=folder) for word in words)]
        try:
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            (folder / f"{name}.log").write_text(done.stdout + done.stderr)
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            found[name] = "works" if done.returncode == 0 else f"fails: {last}"
        except subprocess.TimeoutExpired:
            found[name] = f"fails: not done after {SECONDS} s"
        print(f"  {name}: {found[name]}", file=sys.stderr, flush=True)
    return found


def table(results: Mapping[str, Mapping[str, str]]) -> str:
    """In Markdown."""
    lines = [f"| versions | {' | '.join(CHECKS)} |", f"|---|{'---|' * len(CHECKS)}"]
    lines += [
        f"| {pins} | {' | '.join(found.get(name, '-') for name in CHECKS)} |"
        for pins, found in results.items()
    ]
    return "\n".join(lines)


def main() -> int:
    """Try the sets that are named, by default all; returns the exit status."""
    parser = argparse.ArgumentParser(description=summary_of(__doc__))
    parser.add_argument("sets", nargs="*", help=f"of {', '.join(SETS)}; default all")
    parser.add_argument(
        "--torch", help="another torch for all sets, as 2.13.0, of which there may be a small build"
    )
    parser.add_argument(
        "--keep", type=Path, help="folder for the environments; one that is there is used as it is"
    )
    given = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="fedlsg-versions-") as temporary:
        for name in given.sets or SETS:
            pins, place = pins_of(name, given.torch), (given.keep or Path(temporary)) / name
            print(f"{name}: {' '.join(pins)}", file=sys.stderr, flush=True)
            python = place / "bin" / "python" if place.exists() else install(place, pins)
            folder = Path(tempfile.mkdtemp(dir=temporary))
            results[", ".join(pin.replace("==", " ") for pin in pins)] = check(python, folder)
    print(table(results))
    return int(any(one != "works" for found in results.values() for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
