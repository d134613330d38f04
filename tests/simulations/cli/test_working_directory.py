"""Which code runs does not depend on the working directory: real runs inside folders that hold
other code.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor

from tests.places import REPOSITORY
from tests.simulations.support.runs import SMALL, Run, run_local

PACKAGES = ("fedlsg", "simulations", "strategies")
HOSTILE = "raise SystemExit('code of the working directory was imported: ' + __file__)\n"
NO_NOISE = "\n\ndef add_noise(total, mechanism, noise):\n    return total\n"


def clone_without_noise(folder: Path) -> Path:
    """Another clone of this repository, whose clients add no noise."""
    for name in PACKAGES:
        shutil.copytree(
            REPOSITORY / name,
            folder / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    mechanism = folder / "fedlsg" / "privacy" / "mechanism.py"
    assert "\ndef add_noise(" in mechanism.read_text(), "the function that is replaced"
    mechanism.write_text(mechanism.read_text() + NO_NOISE)
    return folder


def hostile(folder: Path) -> Path:
    """A user's folder with packages and modules that happen to be called like ours and others'."""
    for name in (*PACKAGES, "flwr"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(HOSTILE)
    for name in ("torch", "numpy", "random", "pickle"):
        (folder / f"{name}.py").write_text(HOSTILE)
    return folder


def command_in(folder: Path) -> list[str]:
    """``fedlsg`` as it is installed: a script in another folder than the working directory."""
    folder.mkdir()
    script = folder / "fedlsg"
    script.write_text(
        "from fedlsg.simulations.cli.command_line import main\nif __name__ == '__main__':\n    main()\n"
    )
    return [sys.executable, str(script)]


def environment(path: Path | None) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**env, "OMP_NUM_THREADS": "1", **({"PYTHONPATH": str(path)} if path else {})}


def weights_of_run(
    command: list[str], inside: Path, out: Path, *, path: Path | None = None, engine: str = "ray"
) -> Tensor:
    """Final weights of the small run for one round, started in a folder."""
    settings = {**SMALL, "engine": engine, "rounds": 1}
    pairs = [
        word for key, value in settings.items() for word in ("-c", f"{key}={str(value).lower()}")
    ]
    command = [*command, "run", "digits", *pairs, "--out", str(out)]
    done = subprocess.run(
        command, cwd=inside, env=environment(path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Run(out).weights


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    "make", [hostile, pytest.param(clone_without_noise, marks=pytest.mark.slow)]
)
def test_workers_import_what_the_driver_imported(make, tmp_path):
    weights = weights_of_run(
        command_in(tmp_path / "bin"), make(tmp_path / "here"), tmp_path / "run", path=REPOSITORY
    )
    assert weights.equal(run_local(tmp_path / "local", rounds=1).weights)


@pytest.mark.slow
@pytest.mark.ray
def test_a_clone_that_is_run_as_a_module_is_what_runs_everywhere(tmp_path):
    """Driver, server and workers are all the clone's, wherever another version is installed."""
    clone, command = clone_without_noise(tmp_path / "here"), [sys.executable, "-m", "fedlsg"]
    weights = weights_of_run(command, clone, tmp_path / "run")
    assert weights.equal(weights_of_run(command, clone, tmp_path / "local", engine="local"))
    assert not weights.equal(run_local(tmp_path / "installed", rounds=1).weights)


@pytest.mark.slow
def test_the_worker_of_a_comparison_imports_nothing_of_the_working_directory(tmp_path):
    command = [
        *command_in(tmp_path / "bin"),
        "compare",
        "digits",
        "--methods",
        "sgd",
        "-c",
        "rounds=1",
    ]
    command += ["--out", str(tmp_path / "out")]
    inside, env = hostile(tmp_path / "here"), environment(REPOSITORY)
    done = subprocess.run(command, cwd=inside, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "out" / "cells").glob("*/summary.json"))) == 1
