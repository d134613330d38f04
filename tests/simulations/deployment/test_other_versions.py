"""Nodes of a deployment that have another fedlsg than the server are named, with what to do, before
anything is spent: real processes.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from benchmarks.flower.deployment import node_config
from benchmarks.flower.flower_app import free_port, private_flower, write_app
from tests.places import REPOSITORY
from tests.simulations.support.runs import plan_at

pytestmark = [pytest.mark.slow, pytest.mark.ray]  # the server asks for two minutes


def copied(folder: Path, *, version: str | None = None) -> Path:
    """A folder with another fedlsg: of another version, or of this one with another file."""
    shutil.copytree(
        REPOSITORY / "fedlsg", folder / "fedlsg", ignore=shutil.ignore_patterns("__pycache__")
    )
    project = (REPOSITORY / "pyproject.toml").read_text()
    if version is None:
        with (folder / "fedlsg" / "locks.py").open("a") as file:
            file.write("# one more line\n")
    else:
        project = re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', project)
    (folder / "pyproject.toml").write_text(project)
    return folder


def test_the_server_names_each_node_of_another_version_and_what_to_do(tmp_path):
    paths = [REPOSITORY, copied(tmp_path / "newer", version="9.9.0"), copied(tmp_path / "changed")]
    plan, _ = plan_at(tmp_path / "run", engine="flower", clients=3, reproducible=False)
    app = write_app(tmp_path / "app", plan)
    with private_flower(tmp_path / "flower") as flower:
        for index, path in enumerate(paths):
            flower.env["PYTHONPATH"] = os.fspath(path)
            flower.start(
                *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{flower.port}"),
                *("--port", str(free_port()), "--node-config"),
                node_config(index, len(paths), tmp_path, trust="client"),
            )
        flower.env["PYTHONPATH"] = os.fspath(REPOSITORY)
        assert flower.run(app) == "finished:failed"
        log = flower.log_file.read_text()
    last = [line for line in log.splitlines() if "fedlsg: error:" in line][-1]
    assert "no node replied as one of the clients [1, 2]" in last
    assert re.search(r"client 1 runs fedlsg 9\.9\.0 .*: install the same version", last)
    assert re.search(r"client 2 runs fedlsg .*: the versions are equal and the files differ", last)
    assert "client 0 runs" not in last
    assert not list(tmp_path.glob("node-*/ledger.jsonl")) or all(
        path.stat().st_size == 0 for path in tmp_path.glob("node-*/ledger.jsonl")
    ), "nothing is spent"
