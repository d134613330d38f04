"""Watch a command and all its descendants from outside, through /proc (Linux only).

Nothing is injected. Every ``INTERVAL`` the watcher lists the processes and reads the CPU time of each. Orphans stay
visible because the watcher becomes their parent (PR_SET_CHILD_SUBREAPER). CPU time after the last look at a process is
missing, so the sums are too low by up to one interval for each process.
"""

import ctypes
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

INTERVAL = 0.05
TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36


@dataclass(kw_only=True)
class Seen:
    """One process: times are seconds since the command was started, cpu its own seconds without its children's."""

    pid: int
    command: str
    started: float
    last: float
    cpu: float
    mapped: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A finished command: its start (wall clock), seconds until it ended, its status, and all its processes.

    ``course``: (seconds since it began, CPU seconds of all processes so far) at every look.
    """

    began: float
    wall: float
    status: int
    processes: tuple[Seen, ...]
    course: tuple[tuple[float, float], ...]

    @property
    def cpu(self) -> float:
        """CPU seconds of the whole tree."""
        return sum(process.cpu for process in self.processes)

    def cpu_by(self, moment: float) -> float:
        """CPU seconds that the tree had used by then, as of the last look before."""
        return max((cpu for at, cpu in self.course if at <= moment), default=0.0)


def watch(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    libraries: Sequence[str] = (),
    look: Callable[[float], Any] = lambda now: None,
    output: int | IO[bytes] = subprocess.DEVNULL,
) -> Watched:
    """Run a command to its end. ``look(now)`` is called at every look, with the wall clock's seconds.

    ``libraries`` are parts of file names: when a process has one mapped into its memory is noted in ``Seen.mapped``.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    booted = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    begin = time.time()
    process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
    seen: dict[tuple[int, int], Seen] = {}
    course = []
    while process.poll() is None:
        now = time.time()
        for stat in _descendants(process.pid):
            key = (stat.pid, stat.started)
            if key not in seen:
                at = max(booted + stat.started / TICKS - begin, 0.0)
                seen[key] = Seen(pid=stat.pid, command="", started=at, last=0.0, cpu=0.0)
            one = seen[key]
            one.cpu, one.last = max(one.cpu, stat.cpu), now - begin
            one.command = _command(stat.pid) or one.command
            _note_libraries(one, libraries, now - begin)
        course.append((now - begin, sum(one.cpu for one in seen.values())))
        look(now)
        time.sleep(max(INTERVAL - (time.time() - now), 0.0))
    wall = time.time() - begin
    look(time.time())
    _reap()
    return Watched(
        began=begin, wall=wall, status=process.returncode, processes=tuple(seen.values()), course=tuple(course)
    )


@dataclass(frozen=True)
class _Stat:
    pid: int
    parent: int
    started: int
    cpu: float


def _descendants(root: int) -> list[_Stat]:
    """The command, what descends from it, and orphans, whose parent we are."""
    stats = _stats()
    children: dict[int, list[_Stat]] = {}
    for stat in stats:
        children.setdefault(stat.parent, []).append(stat)
    found: list[_Stat] = []
    waiting = list(children.get(os.getpid(), ()))
    while waiting:
        stat = waiting.pop()
        found.append(stat)
        waiting += children.get(stat.pid, ())
    return found


def _stats() -> list[_Stat]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
                cpu = (int(fields[11]) + int(fields[12])) / TICKS
                if fields[0] not in "ZX":
                    found.append(_Stat(int(name), int(fields[1]), int(fields[19]), cpu))
    return found


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def _note_libraries(process: Seen, libraries: Sequence[str], now: float) -> None:
    missing = [library for library in libraries if library not in process.mapped]
    if not missing or ("python" not in process.command and "ray::" not in process.command):
        return
    with suppress(OSError):
        text = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
        process.mapped.update({library: now for library in missing if library in text})


def _reap() -> None:
    """Orphans that have ended and became ours."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
