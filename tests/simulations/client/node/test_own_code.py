"""A deployed client runs no code that a server names: neither a file, nor a module, nor what its process has loaded."""

import sys

import pytest

from fedlsg import user_code
from tests.simulations.support.deployed import Server, refusal, terms
from tests.simulations.support.own import MINE, write


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A file on the client's machine, and on its path, that leaves a mark where it runs."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write(tmp_path / "evil.py", f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n" + MINE)
    yield path
    sys.modules.pop("evil", None)


NAMES = ["{file}:{what}", "evil:{what}", "os:system", "{file}", "simulations.workloads.images.digits:load"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("setting", "what"), [("workload", "workload"), ("method", "recipe")])
def test_code_that_a_run_config_names_is_refused_and_does_not_run(setting, what, name, evil, tmp_path):
    node = terms(tmp_path / "node")
    server = Server.start(node, tmp_path / "copy")
    server.config[setting] = name.format(file=evil, what=what)
    for reply in (server.query(), server.train()):
        assert "names code, and this process runs none that a setting names" in refusal(reply)
    assert not (tmp_path / "ran").exists()
    assert "evil" not in sys.modules
    assert not [path for path in (tmp_path / "node").rglob("*.jsonl") if path.stat().st_size], "nothing was spent"


def test_negative_control_where_code_is_allowed_it_runs(evil, tmp_path):
    user_code.permit(f"{evil}:workload")
    user_code.load(f"{evil}:workload", "workload")
    assert (tmp_path / "ran").exists()
