"""restore.READ is the list of what ``fedlsg resume`` reads of an old run directory, no more and no
less.

Next to it, the manifest has, and compares, the digest of every file: it is left out here.

Real processes, and a SuperLink that is killed:
tests/simulations/deployment/test_killed_superlink.py.
"""

import os
import shlex
import shutil
import sys
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from fedlsg.simulations.server import recorder, restore
from fedlsg.simulations.server.restore import READ
from fedlsg.simulations.settings.with_preset import from_run_config
from fedlsg.simulations.storage.examined import Examined
from fedlsg.simulations.storage.manifest import Manifest
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.broken_runs import (
    KINDS,
    break_run,
    copy_run,
    leave_old_ledgers,
    resumed,
)
from tests.simulations.support.runs import pages, stopped_after


class NoManifest(Manifest):
    """Notes nothing, and reads nothing."""

    def load(self) -> None: ...

    def checkpoint(self, *_: object) -> None: ...

    def close(self, *_: object) -> None: ...


WITHOUT_A_DEPLOYMENT = {"replicas/client-*.bin", "replicas/basis-*.bin"}
"""Only clients on machines of their own keep replicas, or carriers of probes."""


def watch(folder: Path, there: set[str]) -> set[str]:
    """A set that gets each of these files when this process opens it for reading, until ``there``
    is empty.
    """
    seen: set[str] = set()

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if there and event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.relpath(os.path.abspath(os.fsdecode(arguments[0])), folder)
            if (
                path in there
                and (arguments[2] & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)) != os.O_WRONLY
            ):
                seen.add(path)

    sys.addaudithook(note)
    return seen


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[set[str], set[str]]]:
    """By run: the files that were there, and those of them that were opened for reading when it was
    resumed.
    """
    folder, kept = tmp_path_factory.mktemp("watched"), tmp_path_factory.mktemp("kept")
    runs = []
    for kind in KINDS:
        with pages(written=True):
            broken = break_run(kept / kind, kind)
        runs.append(copy_run(broken.unbroken.path, folder / f"finished-{kind}"))
        runs.append(copy_run(broken.interrupted, folder / f"interrupted-{kind}"))
        runs[-1].directory.checkpoint.write_bytes(b"damaged")
        leave_old_ledgers(runs[-1])
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    found = {
        run.path.name: {p.partition("/")[2] for p in there if p.startswith(f"{run.path.name}/")}
        for run in runs
    }
    seen = watch(folder, there)
    with pages(written=True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore, "examine", lambda run: Examined())
        patch.setattr(restore, "reopen", lambda *_: None)
        patch.setattr(recorder, "accept", lambda *_, **__: None)
        patch.setattr(recorder, "Manifest", NoManifest)
        for run in runs:
            resumed(run)
    there.clear()  # an audit hook stays for the life of the process
    names = {
        name: {p.partition("/")[2] for p in seen if p.startswith(f"{name}/")} for name in found
    }
    return {name: (found[name], names[name]) for name in found}


@pytest.mark.slow
def test_nothing_else_is_opened(opened):
    for run, (_, seen) in opened.items():
        assert [
            path for path in seen if not any(fnmatch(path, pattern) for pattern in READ)
        ] == [], run
        assert "checkpoint/latest.pt" in seen


@pytest.mark.slow
def test_the_list_names_nothing_that_is_not_opened(opened):
    seen = set().union(*(seen for _, seen in opened.values()))
    assert {
        pattern for pattern in READ if not any(fnmatch(p, pattern) for p in seen)
    } == WITHOUT_A_DEPLOYMENT


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return stopped_after(1, tmp_path_factory.mktemp("runs") / "run").directory


def deployed(simulated: RunDir, path: Path) -> RunDir:
    """The run under the name that ledgers of deployed clients have for it, in a folder of another
    name.
    """
    shutil.copytree(simulated.path, path)
    run = RunDir(path)
    run.save_checkpoint(run.load_checkpoint() | {"name": "00ff"})
    return run


def files(run: RunDir) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_resume_prints_the_command_and_changes_nothing(simulated, tmp_path, fedlsg):
    run = deployed(simulated, tmp_path / "a run")
    run.write_config(replace(run.read_config(), run_dir=str(run.path)))
    before = files(run)
    status, _, error = fedlsg("resume", str(run.path))
    assert (status, files(run)) == (1, before)
    assert (
        f"flwr run APP FEDERATION --run-config {shlex.quote(str(run.config))} --stream"
        in " ".join(error.split())
    )
    settings = from_run_config(parse_config_args([str(run.config)]))
    assert settings == run.read_config(), "Flower reads the file as the run does"


def test_a_deployment_is_known_before_its_first_checkpoint(simulated, tmp_path, fedlsg):
    """Nobody was charged yet, and without this the run would be simulated, on the server's own
    data, in the folder of the deployment.
    """
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    settings = replace(simulated.read_config(), engine="flower", run_dir=str(run.path))
    run.write_config(settings)
    before = files(run)
    status, _, error = fedlsg("resume", str(run.path))
    assert (status, files(run)) == (1, before)
    assert "is a run of a deployment" in " ".join(error.split())
