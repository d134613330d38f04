"""Which processes belong to a run, and ending them; without Ray."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import flower_processes as processes
from benchmarks.flower_processes import Process, of_run

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
# A family that loses the mark: the leader carries it; the child, its own leader, and the orphan carry nothing.
FAMILY = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
child = subprocess.Popen(sleep, env={}, start_new_session=True)
start = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid)"
middle = [sys.executable, "-c", start, *sleep]
orphan = subprocess.run(middle, env={}, stdout=subprocess.PIPE, text=True).stdout.strip()
print(child.pid, orphan, flush=True)
time.sleep(60)
"""
LOOKING_ON = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
print(subprocess.Popen(sleep, env={**os.environ, "FLWR_HOME": sys.argv[1]}).pid, flush=True)
time.sleep(60)
"""


def started(program: str, *args: str, **environment: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A process in a session of its own, and the ids that it printed."""
    env = {**os.environ, **environment}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *args], env=env, start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, [int(word) for word in process.stdout.readline().split()]


def lives(pid: int) -> bool:
    """False too for the dead whose parent has not read their status (Z)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@linux
def test_the_sweep_takes_who_lost_the_mark(tmp_path):
    leader, pids = started(FAMILY, FLWR_HOME=str(tmp_path))
    try:
        assert processes.carrying(tmp_path) == {leader.pid}  # the mark alone would miss two
        assert [lives(pid) for pid in pids] == [True, True]
        processes.end_all(tmp_path, [leader])  # type: ignore[list-item]
        assert [lives(pid) for pid in pids] == [False, False]
    finally:
        for pid in [leader.pid, *pids]:
            if lives(pid):
                os.kill(pid, signal.SIGKILL)
        leader.communicate()


@linux
def test_a_terminal_in_which_one_process_is_of_the_run_survives(tmp_path):
    terminal, (inside,) = started(LOOKING_ON, str(tmp_path))
    try:
        processes.end_all(tmp_path, [])
        assert not lives(inside)
        assert terminal.poll() is None
    finally:
        terminal.kill()
        terminal.communicate()


def process(pid: int, parent: int = 1, session: int = 1, started: int = 0) -> Process:
    return Process(pid=pid, started=started, parent=parent, session=session)


INIT = process(1, parent=0)


def test_members_by_hand():
    leader, child, sibling = process(5, session=5), process(6, parent=5, session=5), process(7, session=5)
    other = process(8, session=8)
    everyone = [INIT, leader, child, sibling, other]
    assert of_run(everyone, {5}, set()) == {leader, child, sibling}
    assert of_run(everyone, {6}, set()) == {child}  # neither its parent nor the session of another leader
    assert of_run(everyone, set(), set()) == set()
    assert of_run([INIT, sibling, other], set(), {leader}) == {sibling}  # the leader has ended
    again = process(5, session=5, started=99)
    assert of_run([INIT, again, process(9, session=5)], set(), {leader}) == set()  # its id is another's now


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
