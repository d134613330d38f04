"""Processes that import Flower ahead of a run: none is left, whatever becomes of the run and of us."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulations import run
from simulations.engines import ahead, engine_of
from simulations.engines.runtime import home as flower_home
from simulations.engines.runtime import processes as flower_processes
from tests.places import REPOSITORY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def waited(gone) -> bool:
    deadline = time.monotonic() + 60
    while not gone() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(gone())


def test_a_plan_that_fails_leaves_neither_processes_nor_a_home():
    seen: list[flower_home.Processes] = []

    def plan() -> None:
        with ahead("flower"):
            seen.extend(flower_home._AHEAD)
            children = {child.pid for child in seen[0].children}
            assert waited(lambda: flower_processes.carrying(seen[0].home) == children)  # a look may miss an exec
            assert len(children) == 2
            raise ValueError("no such data")

    with pytest.raises(ValueError, match="no such data"):
        plan()
    (processes,) = seen
    assert not processes.home.exists()
    assert flower_processes.carrying(processes.home) == set()
    assert all(child.poll() is not None for child in processes.children)
    assert flower_home._AHEAD == []


def test_a_run_takes_what_imported_ahead_and_the_next_starts_its_own():
    with ahead("flower"):
        (first,) = flower_home._AHEAD
        with flower_home.ready() as taken:
            assert taken is first
            waits = taken.waiting["superlink"]
            assert taken.take("superlink") is waits
            assert taken.take("superlink") is not waits  # the second, after a port that was taken
        assert not first.home.exists()
        with flower_home.ready() as own:
            assert own is not first
        assert not own.home.exists()


def test_until_they_are_told_nothing_listens():
    with flower_home.importing() as processes:
        pids = [child.pid for child in processes.children]
        looks = [False] * 10
        assert waited(lambda: looks.append(all(map(idle, pids))) or all(looks[-10:]))  # ten looks in a row: they wait
        text = Path("/proc/net/tcp").read_text()
        listening = {line.split()[9] for line in text.splitlines()[1:] if line.split()[3] == "0A"}
        for pid in pids:
            sockets = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
            assert not {f"socket:[{inode}]" for inode in listening} & sockets


def idle(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_they_end_with_whoever_started_them(number):
    code = (
        "import time\nfrom simulations.engines.runtime import home\nfrom simulations.engines import ahead\n"
        "with ahead('flower'):\n    print(home._AHEAD[0].home, flush=True)\n    time.sleep(600)"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        home = Path(process.stdout.readline().strip())
        assert len(flower_processes.carrying(home)) >= 1
        process.send_signal(number)
    assert waited(lambda: not flower_processes.carrying(home))
    assert waited(lambda: not home.exists())


@pytest.mark.parametrize(("engine", "count"), [("flower", 1), ("local", 0)])
def test_a_run_that_is_resumed_imports_ahead_as_well(engine, count, fedlsg, tmp_path, monkeypatch):
    """While its plan is made."""
    seen: list[int] = []
    monkeypatch.setattr(run, "resume_command", lambda *_: seen.append(len(flower_home._AHEAD)))
    (tmp_path / "config.toml").write_text(f'engine = "{engine}"\n')
    assert fedlsg("resume", str(tmp_path))[0] == 0
    assert seen == [count]
    assert flower_home._AHEAD == []


@pytest.mark.parametrize("text", [None, b"", b"engine", b"\xff", b'[engine]\nname = "flower"\n'])
def test_a_run_directory_that_names_no_engine_starts_nothing(text, tmp_path):
    if text is not None:
        (tmp_path / "config.toml").write_bytes(text)
    with ahead(engine_of(str(tmp_path))):
        assert flower_home._AHEAD == []
    with ahead(engine_of(str(tmp_path / "config.toml"))):
        assert flower_home._AHEAD == []


def test_the_local_engine_starts_nothing():
    with ahead("local"):
        assert flower_home._AHEAD == []
