"""A flipped bit anywhere in a run directory: resume refuses, says what it did, or ends as if
nothing had been.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.simulations.support.broken_runs import (
    KINDS,
    Broken,
    break_run,
    copy_run,
    resumed,
    same,
    state_of,
)
from tests.simulations.support.runs import Run

SAID = ("is damaged:", "changed since the last run:")
EXPECTED = (ValueError, OSError, RuntimeError)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Broken]:
    return {kind: break_run(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@dataclass(frozen=True, kw_only=True)
class Flip:
    """A bit, and what became of the run."""

    file: str
    place: int
    bit: int
    outcome: str
    text: str


def flip(broken: Broken, source: Path, to: Path, draw: np.random.Generator) -> Flip:
    """Flip one bit of one file of a copy, each file as likely as any other, and resume it."""
    run = copy_run(source, to)
    files = sorted(p for p in run.path.rglob("*") if p.is_file() and p.stat().st_size)
    file = files[draw.integers(len(files))]
    content = bytearray(file.read_bytes())
    place, bit = int(draw.integers(len(content))), int(draw.integers(8))
    content[place] ^= 1 << bit
    file.write_bytes(bytes(content))
    name = str(file.relative_to(run.path))
    outcome, text = judge(broken, run, file)
    return Flip(file=name, place=place, bit=bit, outcome=outcome, text=text)


def judge(broken: Broken, run: Run, file: Path) -> tuple[str, str]:
    """ "refused" by name, "said", "same", or else "silent"; what was said must end in the same
    weights and ledgers.
    """
    try:
        printed = resumed(run)
    except EXPECTED as error:
        named = file.name in str(error) or "config.toml" in str(error)
        return ("refused" if named else "refused without a name"), str(error)
    now, wanted = state_of(run), state_of(broken.unbroken)
    said = any(words in printed for words in SAID)
    if "changed since the last run:" in printed:
        return "said", printed
    kept = {"server", "ledgers", "accuracy", "epsilon"} if said else wanted.keys()
    differs = [name for name in kept if not same(now[name], wanted[name])]
    if differs:
        return "silent", f"{differs} differ; printed: {printed}"
    return ("said" if said else "same"), printed


def campaign(broken: dict[str, Broken], to: Path, count: int, seed: int) -> list[Flip]:
    """Flips over all kinds of runs, two of three in one that was interrupted, the others in a
    finished one.
    """
    draw, found = np.random.default_rng(seed), []
    for number in range(count):
        one = broken[list(KINDS)[number % len(KINDS)]]
        finished = draw.integers(3) == 0
        found.append(
            flip(one, one.unbroken.path if finished else one.interrupted, to / "run", draw)
        )
    return found


@pytest.mark.slow
def test_the_interrupted_run_ends_as_the_unbroken_one(broken, tmp_path):
    """What all flips are compared with; and what they are compared in differs between kinds."""
    for one in broken.values():
        run = copy_run(one.interrupted, tmp_path / "run")
        assert "damaged" not in resumed(run)
        assert same(state_of(run), state_of(one.unbroken))
    first, second, *_ = (state_of(one.unbroken) for one in broken.values())
    assert not any(same(first[name], second[name]) for name in ("server", "ledgers", "rows"))


@pytest.mark.slow
def test_flipped_bits_are_never_silent(broken, tmp_path):
    found = campaign(broken, tmp_path, 24, seed=1)
    assert [flip for flip in found if flip.outcome not in ("refused", "said", "same")] == []
    assert {flip.outcome for flip in found} == {"refused", "said", "same"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        pytest.param(kind, damage, marks=[] if number in (0, 4, 8) else pytest.mark.slow)
        for number, (kind, damage) in enumerate(product(KINDS, ("flipped", "cut", "missing")))
    ],
)
def test_the_checkpoint_before_takes_over(kind, damage, broken, tmp_path):
    """It says so, on the terminal and in run.log, and the run ends as the unbroken one."""
    one = broken[kind]
    run = copy_run(one.interrupted, tmp_path / "run")
    path = run.directory.checkpoint
    content = path.read_bytes()
    path.write_bytes(
        content[:-9] + bytes([content[-9] ^ 4]) + content[-8:]
        if damage == "flipped"
        else content[:500]
    )
    if damage == "missing":
        path.unlink()
    printed = resumed(run)
    how = "missing" if damage == "missing" else "damaged"
    assert f"latest.pt is {how}: continuing from previous.pt, after round 1" in printed
    assert f"latest.pt is {how}: continuing from previous.pt, after round 1" in run.log
    now, wanted = state_of(run), state_of(one.unbroken)
    spent = [
        [(row.pop("epsilon_max"), row.pop("epsilon_median")) for row in each["rows"]]
        for each in (now, wanted)
    ]
    assert same(now, wanted)
    assert all(
        a >= b for more, less in zip(*spent, strict=True) for a, b in zip(more, less, strict=True)
    ), "round 2 again: what round 3 spent is spent"
    assert "damaged" not in resumed(run), "it is said once"
    assert not run.directory.previous.samefile(run.directory.checkpoint)
