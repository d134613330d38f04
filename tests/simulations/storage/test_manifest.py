"""What changed since a run is found, by name, in every file of it; what a crash leaves is no
damage.
"""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from fedlsg.simulations.storage.atomic_files import DamagedError
from fedlsg.simulations.storage.declared import find
from fedlsg.simulations.storage.examined import RESULTS, examine, open_run
from fedlsg.simulations.storage.journal import Mark, verify
from fedlsg.simulations.storage.manifest import all_files
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.broken_runs import KINDS, copy_run, resumed
from tests.simulations.support.runs import Run, edit, run_local, stopped_after

DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "flipped": lambda path: path.write_bytes(
        bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]
    ),
    "removed": lambda path: path.unlink(),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"one more line\n"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished and an interrupted run that keep most kinds of files."""
    folder, steps = tmp_path_factory.mktemp("runs"), {**KINDS["steps"], "rounds": 3}
    return {
        "finished": run_local(folder / "finished", **steps).path,
        "interrupted": stopped_after(2, folder / "interrupted", **steps).path,
        "memory": stopped_after(2, folder / "memory", **{**KINDS["memory"], "rounds": 3}).path,
    }


@pytest.fixture
def copies(tmp_path: Path) -> Callable[[Path], Run]:
    return lambda original: copy_run(original, tmp_path / "run")


def is_said(run: Path, name: str) -> bool:
    """Whether an examination names the file, as changed or in a note, or refuses to go on because
    of it.
    """
    try:
        found = examine(RunDir(run))
    except DamagedError as error:
        return name in str(error)
    return (
        name in found.changed
        or any(name in note for note in found.notes)
        or _by_pattern(name, found.changed)
    )


def _by_pattern(name: str, changed: dict[str, str]) -> bool:
    return any(fnmatchcase(name, one) for one in changed)


@pytest.mark.parametrize("state", ["finished", "interrupted", "memory"])
def test_untouched_runs_are_whole(state, runs, copies):
    found = examine(copies(runs[state]).directory)
    assert (found.changed, found.notes) == ({}, [])


@pytest.mark.thinned(4)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("state", ["finished", "interrupted", "memory"])
def test_every_damage_of_every_file_is_said(state, damage, runs, copies):
    silent = []
    # the last of each kind
    kinds = {re.sub(r"-\d{6}", "", name): name for name in all_files(runs[state])}
    for name in kinds.values():
        run = copies(runs[state])
        declared = find(name)
        assert declared is not None
        tail = damage == "longer" and (name == "run.log" or name.endswith("manifest.jsonl"))
        removed_memory = damage == "removed" and "feedback-" in name  # the other one is there
        if name.endswith(".lock") or tail or removed_memory:
            continue
        DAMAGES[damage](run.path / name)
        if not is_said(run.path, name):
            silent.append(name)
    assert silent == []


def test_a_command_refuses_what_it_reads_and_says_the_rest(runs, copies):
    run, said = copies(runs["finished"]), list[str]()
    edit(run, rank=3)
    with pytest.raises(
        DamagedError, match=r"changed since the run: .*config\.toml .*fedlsg resume compares it"
    ):
        open_run(run.path, RESULTS, said.append)
    run = copies(runs["finished"])
    (run.path / "updates/round-000001/client-000000.bin").unlink()
    open_run(run.path, RESULTS, said.append)
    assert [
        line
        for line in said
        if "round-000001/client-000000.bin (missing)" in line and "not used here" in line
    ]


def test_a_growing_file_of_another_user_hides_no_other_change(runs, copies, monkeypatch):
    run, verified = copies(runs["finished"]), verify

    def refused(path: Path, mark: Mark) -> object:
        if path.name == "rounds.csv":
            raise PermissionError(path)
        return verified(path, mark)

    monkeypatch.setattr("fedlsg.simulations.storage.examined.verify", refused)
    assert examine(run.directory).notes == []
    for name in ("bytes.csv", "run.log"):
        DAMAGES["cut"](run.path / name)
    assert {"bytes.csv", "run.log"} <= examine(run.directory).changed.keys()


def test_a_change_that_resume_accepts_is_accepted_from_then_on(runs, copies):
    run = copies(runs["interrupted"])
    edit(run, threads=2)
    assert "config.toml" in examine(run.directory).changed
    printed = resumed(run)
    assert "threads = 2 (was 1)" in printed
    assert "config.toml changed since the run: its settings are compared" in printed
    assert examine(run.directory).changed == {}


def test_what_a_crash_leaves_is_no_damage(runs, copies):
    run = copies(runs["interrupted"])
    rows = run.directory.rounds.read_text()
    with run.directory.rounds.open("a") as file:
        file.write(rows.splitlines(keepends=True)[-1])
    with run.directory.charges.path.open("a") as file:
        file.write('{"charged": {"cli')
    found = examine(run.directory)
    assert found.changed == {}
    assert len([note for note in found.notes if "rounds.csv" in note or "no charge" in note]) == 2
    resumed(run)
    assert examine(run.directory).changed == {}
