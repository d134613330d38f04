"""A run whose Ray is lost, or that is killed, ends with our own line, which names the command that continues it."""

import os
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.places import REPOSITORY
from tests.simulations.engines.test_cluster import command_of, marked, short_tmp, wait_until
from tests.simulations.support.two_nodes import of_node, two_nodes

__all__ = ["short_tmp"]

SPEAK = """
import os, signal, sys
from rich.console import Console
from simulations.engines.watchers import last_word
with last_word("the last word", Console(quiet=sys.argv[1] == "quiet")):
    if sys.argv[1] != "alive":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("how", "said"), [("killed", "the last word\n"), ("alive", ""), ("quiet", "")])
def test_a_killed_process_has_a_last_word(how, said):
    done = subprocess.run(
        [sys.executable, "-P", "-c", SPEAK, how], env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == (0 if how == "alive" else -signal.SIGKILL)
    assert done.stdout == said


GCS, RAYLET, WORKER = "gcs/gcs_server", "raylet/raylet", "ray::Worker"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(("whose", "what"), [
    ("own", GCS), ("own", RAYLET), ("others", GCS), ("others", RAYLET), ("others", WORKER),
])  # fmt: skip
def test_a_lost_ray_ends_the_run_with_the_command_that_continues(whose, what, tmp_path, short_tmp):
    """Within 60 s, which Ray itself would need for a lost control service; a lost raylet may leave a driver waiting.

    A lost worker ends nothing.
    """
    mark, out = f"FEDLSG_TEST_MARK={uuid.uuid4().hex}", tmp_path / "run"
    env = {**os.environ, "TMPDIR": str(short_tmp), "PYTHONPATH": str(REPOSITORY), **dict([mark.split("=")])}
    env.pop("RAY_ADDRESS", None)
    options = ["--rounds", "20000", "-c", "clients=2", "--epsilon", "1000", "--out", str(out)]
    command = [sys.executable, "-P", "-m", "simulations", "run", *options]
    log = tmp_path / "printed"
    with ExitStack() as stack:
        if whose == "others":
            nodes = stack.enter_context(two_nodes(short_tmp, late=True))
            command += ["--ray-address", nodes.address]
        file = stack.enter_context(log.open("wb"))
        process = stack.enter_context(subprocess.Popen(command, env=env, cwd=tmp_path, stdout=file, stderr=file))
        wait_until(lambda: rounds_in(out) > 3, seconds=300)
        pids = marked(mark) if whose == "own" else of_node(nodes.first)
        pid = next(pid for pid in pids if what in command_of(pid).split("\0")[0])
        os.kill(pid, signal.SIGKILL)
        if what == WORKER:
            before = rounds_in(out)
            wait_until(lambda: rounds_in(out) > before + 2, seconds=120)
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=58) not in (0, None)
    wait_until(lambda: not marked(mark), seconds=30)
    printed = log.read_text()
    assert f"continue with: fedlsg resume {out}" in printed
    assert "Traceback" not in printed


def rounds_in(run: Path) -> int:
    return len((run / "rounds.csv").read_text().splitlines()) - 1 if (run / "rounds.csv").exists() else 0
