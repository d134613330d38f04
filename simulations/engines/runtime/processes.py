"""The processes of one Flower run: start two of them, and end every one.

    us -> "superlink": flower-superlink -> flower-superexec -> flwr-simulation (ServerApp) -> Ray -> ClientApps
    us -> "client":    flwr run --stream, then flwr list

Both are this module, run as a script. They import Flower, a second each, then wait for ``tell``: until then nothing
listens or runs. All have sessions of their own, so the terminal's Ctrl-C reaches only us and the shutdown is ordered.
If we are killed, the pipe on the stdin of the two closes, and "superlink" ends the run's processes instead of us.

A process belongs to the run if it has the run's FLWR_HOME, which all inherit, in /proc/PID/environ. That alone is not
enough: when Ray's two agents set their process title, it overwrites a part of that file (Ray 2.55.1: 184 to 2485 of
2583 bytes, different in every run). So descendants of the run's processes, and members of sessions that these lead,
belong to it as well.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

GRACE_SECONDS = {
    signal.SIGTERM: 3.0,
    signal.SIGKILL: 10.0,
}  # for all to end; the kernel may be slow to end a killed one
QUIET_LOOKS = 10
GONE = (ProcessLookupError, FileNotFoundError, PermissionError, BrokenPipeError)


def start(role: str, *, env: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start this module in ``role``, its output going to ``log``. -P: this folder must not shadow other modules."""
    command = [sys.executable, "-P", __file__, role]
    return subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )


def tell(process: subprocess.Popen[bytes], **what: str) -> None:
    """Let a waiting process continue. ``what``: the values that its role needs, and ``log``, for its output."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(what).encode() + b"\n")
        process.stdin.flush()


class Process(NamedTuple):
    """One living process. ``pid`` and ``started`` (clock ticks since boot) identify it for ever; the pid does not."""

    pid: int
    started: int
    parent: int
    session: int


def end_all(home: Path, children: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM, then after 3 s SIGKILL, to every process of the run in ``home`` until none is left.

    Guarantee (Linux): on return no process of the run lives, unless one survived SIGKILL for 10 s. To the run belongs
    each process that has ``home`` in its environment, is in ``children``, descends from a process of the run, or is in
    a session that one leads.
    Differs elsewhere: only ``children`` are seen; Flower's other processes watch their parents, Ray's their driver.
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
    for child in children:
        if child.stdin is not None:
            with suppress(*GONE):
                child.stdin.close()


def carrying(home: Path) -> set[int]:
    """Ids of the processes whose environment names this FLWR_HOME, as far as /proc shows it (Linux only)."""
    mark = f"FLWR_HOME={home}".encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(*GONE):
            if mark in entry.read_bytes().split(b"\0"):
                found.add(int(entry.parent.name))
    return found


def living() -> list[Process]:
    """Every process of the machine that is no zombie; empty where there is no /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(*GONE):
            # pid (name) state parent group session ... started is the 20th after the name, which may hold anything
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                found.append(Process(int(entry.parent.name), int(fields[19]), int(fields[1]), int(fields[3])))
    return found


def of_run(processes: Iterable[Process], marked: set[int], known: set[Process]) -> set[Process]:
    """Those of ``processes`` that belong to a run: ``marked`` or ``known``, their descendants, and members of sessions
    that one of these leads or led.

    A session with another leader is not the run's: it is the terminal of a user who set FLWR_HOME by hand.
    """
    by_pid = {process.pid: process for process in processes}
    named = {(process.pid, process.started) for process in known}
    members = {p for p in by_pid.values() if p.pid in marked or (p.pid, p.started) in named}
    grown = -1
    while grown != len(members):
        grown = len(members)
        pids = {member.pid for member in members}
        led = {p.session for p in members | known if p.session == p.pid and (p.pid in pids or p.pid not in by_pid)}
        members |= {p for p in by_pid.values() if p.parent in pids or p.session in led}
    return members


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit inside, so that ``finally`` runs; one ignored (nohup) or handled stays so."""

    def leave(signal_number: int, _: object) -> None:
        raise SystemExit(128 + signal_number)

    fatal = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    with _handlers(dict.fromkeys(fatal, leave)):
        yield


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """A second Ctrl-C must not interrupt the teardown, which takes a few seconds."""
    with _handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)):
        yield


@contextmanager
def _handlers(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers in the main thread only
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _superlink() -> None:
    """Child: flower-superlink itself; it ends the run's processes if its parent dies."""

    def sweep() -> None:
        home = Path(os.environ["FLWR_HOME"])
        end_all(home, [])
        shutil.rmtree(home, ignore_errors=True)
        os._exit(1)

    from flwr.superlink.cli import flower_superlink

    if not (given := _wait_for_tell()):
        sweep()
    _when_parent_ends(sweep)
    options = ["--insecure", "--simulation", "--isolation", "subprocess", "--host", "127.0.0.1"]
    sys.argv = ["flower-superlink", *options, "--port", given["port"]]
    flower_superlink()


def _client() -> None:
    """Child: ``flwr run --stream`` (ends with the run, status 0 either way), then ``flwr list`` into ``listing``."""
    from flwr.cli.app import app  # what the `flwr` command calls; one import for the two commands

    if not (given := _wait_for_tell()):
        return
    _when_parent_ends(lambda: os._exit(1))
    _flwr(app, "run", given["app"], "fedlsg", "--stream", "--federation-config", given["federation"])
    sys.stdout.flush()
    with open(given["listing"], "w") as out:
        os.dup2(out.fileno(), sys.stdout.fileno())
    _flwr(app, "list", "fedlsg", "--format", "json")
    sys.stdout.flush()
    os._exit(0)  # the listing is written; a regular exit of the interpreter takes a third of a second


def _wait_for_tell() -> dict[str, str]:
    """The values of ``tell``; empty if the parent ended instead. From then on, output goes to the log.

    Read without a buffer: the next reader of the pipe must see its end.
    """
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(sys.stdin.fileno(), 1)):
            return {}
        line += byte
    given: dict[str, str] = json.loads(line)
    with open(given["log"], "ab") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    return given


def _flwr(app: Callable[..., Any], *args: str) -> None:
    try:
        app(list(args))
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _when_parent_ends(act: Callable[[], None]) -> None:
    """Call ``act`` when the pipe on our stdin closes, which the kernel does in every kind of death of the parent."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        act()

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    if sys.argv[1] == "superlink":
        _superlink()
    else:
        _client()
