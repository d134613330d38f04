"""Which processes belong to a run, and ending them; without Ray."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.flower import flower_processes as processes
from benchmarks.flower.flower_processes import Process, of_run

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def started(program: str, *args: str, **environment: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A process in a session of its own, and the ids that it printed."""
    env = {**os.environ, **environment}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *args], env=env, start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, [int(word) for word in process.stdout.readline().split()]


def process(pid: int, parent: int = 1, session: int = 1, started: int = 0) -> Process:
    return Process(pid=pid, started=started, parent=parent, session=session)


INIT = process(1, parent=0)


@given(st.data())
def test_members_are_closed_under_descent_and_only_grow(data):
    size = data.draw(st.integers(1, 12))
    pids = range(2, 2 + size)
    everyone = [INIT]
    for pid in pids:
        above = data.draw(st.sampled_from(everyone))
        session = pid if data.draw(st.booleans()) else above.session
        everyone.append(process(pid, parent=above.pid, session=session))
    marked = data.draw(st.sets(st.sampled_from(list(pids))))
    members = of_run(everyone, marked, set())
    ids = {member.pid for member in members}
    assert marked <= ids
    assert INIT not in members
    assert all(p in members for p in everyone if p.parent in ids or (p.session in ids and p.pid not in (1, p.session)))
    orphaned = [p._replace(parent=1) for p in everyone if p not in members or data.draw(st.booleans())]
    assert {p.pid for p in of_run(orphaned, set(), members)} >= ids & {p.pid for p in orphaned}


@linux
def test_the_sweep_takes_the_detached_and_the_stubborn_but_no_stranger(tmp_path):
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    )

    def sleeper(home: str) -> subprocess.Popen[str]:
        env = {**os.environ, "FLWR_HOME": home}
        command = [sys.executable, "-c", stubborn]
        process = subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        return process

    ours, stranger = sleeper(str(tmp_path)), sleeper(f"{tmp_path}-of-another-run")
    try:
        assert processes.carrying(tmp_path) == {ours.pid}
        ThreadPoolExecutor(1).submit(ours.wait)  # a zombie carries nothing, but an unread one would be waited for
        processes.end_all(tmp_path, [])
        assert ours.wait(timeout=5) == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        for process in (ours, stranger):
            process.kill()
            process.communicate()
