"""``fedlsg resume`` of a run of a deployment: it says how the run is continued, and changes nothing.

Real processes, and a SuperLink that is killed: tests/simulations/deployment/test_killed_superlink.py.
"""

import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from simulations.rundir.rundir import RunDir
from simulations.server.deployment import refuse_deployed_run
from simulations.settings.published import from_run_config
from tests.simulations.support.runs import stopped_after


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return stopped_after(1, tmp_path_factory.mktemp("runs") / "run").directory


def deployed(simulated: RunDir, path: Path) -> RunDir:
    """The run under the name that ledgers of deployed clients have for it, in a folder of another name."""
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
    assert f"flwr run APP FEDERATION --run-config {shlex.quote(str(run.config))} --stream" in " ".join(error.split())
    settings = from_run_config(parse_config_args([str(run.config)]))
    assert settings == run.read_config(), "Flower reads the file as the run does"


def test_the_command_for_a_folder_that_was_moved_names_where_it_is(simulated, tmp_path):
    """As for runs of before: their config.toml names no folder."""
    run = deployed(simulated, tmp_path / "moved")
    with pytest.raises(ValueError, match="is a run of a deployment") as said:
        refuse_deployed_run(run)
    (command,) = re.findall(r"continue with: (.*) && flwr run .*continue.toml --stream", str(said.value))
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    found = from_run_config(parse_config_args([str(tmp_path / "continue.toml")]))
    assert found == replace(run.read_config(), run_dir=str(run.path))
