"""The processes of a run of Flower on a SuperLink of its own: find and end every one (Linux).

A process belongs to the run if it has the run's FLWR_HOME, which all inherit, in /proc/PID/environ.
That alone is not enough: when Ray's two agents set their process title, it overwrites a part of
that file (Ray 2.55.1: 184 to 2485 of 2583 bytes, different in every run). So descendants of the
run's processes, and members of sessions that these lead, belong to it as well.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

GRACE_SECONDS = {
    signal.SIGTERM: 3.0,
    signal.SIGKILL: 10.0,
}  # for all to end; the kernel may be slow to end a killed one
QUIET_LOOKS = 10
GONE = (ProcessLookupError, FileNotFoundError, PermissionError, BrokenPipeError)


class Process(NamedTuple):
    """One living process. ``pid`` and ``started`` (clock ticks since boot) identify it for ever;
    the pid does not.
    """

    pid: int
    started: int
    parent: int
    session: int


def end_all(home: Path, children: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM, then after 3 s SIGKILL, to every process of the run in ``home`` until none is left.

    Guarantee (Linux): on return no process of the run lives, unless one survived SIGKILL for 10 s.
    To the run belongs each process that has ``home`` in its environment, is in ``children``,
    descends from a process of the run, or is in a session that one leads.
    Differs elsewhere: only ``children`` are seen; Flower's other processes watch their parents,
    Ray's their driver.
    """
    known: set[Process] = set()
    for signal_number in GRACE_SECONDS:
        deadline = time.monotonic() + GRACE_SECONDS[signal_number]
        signalled: set[int] = set()
        quiet = 0  # looks in a row without a process: one look misses a process during its exec
        while quiet < QUIET_LOOKS and time.monotonic() < deadline:
            running = {child.pid for child in children if child.poll() is None}
            members = of_run(living(), carrying(home) | running, known)
            known |= members
            pids = running | {member.pid for member in members} - {os.getpid()}
            quiet = 0 if pids else quiet + 1
            for pid in pids - signalled:
                with suppress(*GONE):
                    os.kill(pid, signal_number)
            signalled |= pids
            time.sleep(0.02)
        if quiet == QUIET_LOOKS:
            break


def carrying(home: Path) -> set[int]:
    """Ids of the processes whose environment names this FLWR_HOME, as far as /proc shows it (Linux
    only).
    """
    mark = f"FLWR_HOME={home}".encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(*GONE):
            if mark in entry.read_bytes().split(b"\0"):
                found.add(int(entry.parent.name))
    return found


def living() -> list[Process]:
    """Every process of the machine that is not a zombie; empty where there is no /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(*GONE):
            # pid (name) state parent group session ... started is the 20th after the name, which
            # may hold anything
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                found.append(
                    Process(int(entry.parent.name), int(fields[19]), int(fields[1]), int(fields[3]))
                )
    return found


def of_run(processes: Iterable[Process], marked: set[int], known: set[Process]) -> set[Process]:
    """Those of ``processes`` that belong to a run: ``marked`` or ``known``, their descendants, and
    members of sessions that one of these leads or led.

    A session with another leader is not the run's: it is the terminal of a user who set FLWR_HOME
    by hand.
    """
    by_pid = {process.pid: process for process in processes}
    named = {(process.pid, process.started) for process in known}
    members = {p for p in by_pid.values() if p.pid in marked or (p.pid, p.started) in named}
    grown = -1
    while grown != len(members):
        grown = len(members)
        pids = {member.pid for member in members}
        led = {
            p.session
            for p in members | known
            if p.session == p.pid and (p.pid in pids or p.pid not in by_pid)
        }
        members |= {p for p in by_pid.values() if p.parent in pids or p.session in led}
    return members
