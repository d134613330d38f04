"""Machines of a federation on this one: each has its own HOME, temporary folder and working
directory, and shares none.

A machine keeps its environment and its working directory from one command to the next, as a
terminal does. ``scp`` between machines copies between their homes: what a real federation sends
over the network.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.flower import flower_processes as processes

PATIENCE = 240.0
"""Seconds that a command, or a line in a log, may take on a machine with much to do."""

SCP = """#!/usr/bin/env bash
# scp FILE HOST:PATH between machines of this test: HOST's home is next to ours.
set -eu
cp "$1" "{root}/${{2%%:*}}/home/${{2#*:}}"
"""

LEFT_OUT = ("FEDLSG_", "FLWR_", "RAY_", "XDG_", "PYTHON", "TMPDIR")
"""Beginnings of the names of this process's variables that a machine does not inherit."""


class CommandError(AssertionError):
    """A command ended with another status than 0. The text has its output."""


@dataclass(kw_only=True)
class Machine:
    """One machine. ``ports`` replaces the ports that a document names by free ones."""

    root: Path
    name: str
    ports: Mapping[str, int]
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.root / self.name

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def run(self, text: str) -> str:
        """Run commands to their end; returns what they printed. Raises CommandError with it."""
        command = ["bash", "-e", "-o", "pipefail", "-c", self._script(text, keep=True)]
        done = subprocess.run(
            command,
            env=self._environment(),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
        )
        if done.returncode:
            raise CommandError(
                f"{self.name}: status {done.returncode} of\n{text}\n{done.stdout}\n{done.stderr}"
            )
        return done.stdout + done.stderr

    def start(self, text: str, terminal: str = "log") -> "subprocess.Popen[bytes]":
        """Start commands that run on; what they print is appended to the file ``terminal`` of the
        machine's folder.
        """
        command = ["bash", "-e", "-c", self._script(text, keep=False)]
        with (self.folder / terminal).open("ab") as log:
            process = subprocess.Popen(
                command,
                env=self._environment(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def start_until(self, text: str, ready: str, refused: str) -> None:
        """Start commands until their log says ``ready``, again each time that they end and said
        ``refused``.
        """
        deadline = time.monotonic() + PATIENCE
        while not self._started(text, ready, refused):
            assert time.monotonic() < deadline, (
                f"{self.name} was refused for {PATIENCE:g} s: {refused}"
            )

    def _started(self, text: str, ready: str, refused: str) -> bool:
        seen = len(self.log)
        process = self.start(text)
        wait_until(
            lambda: ready in self.log[seen:] or process.poll() is not None,
            lambda: f"{ready!r} in the log of {self.name}:\n{self.log[seen:]}",
        )
        if ready in self.log[seen:]:
            return True
        assert refused in self.log[seen:], self.log[seen:]
        return False

    @property
    def log(self) -> str:
        """What the commands that run on have printed."""
        return self._log.read_text() if self._log.exists() else ""

    def processes(self, program: str) -> list[int]:
        """Ids of this machine's processes of a program."""
        found = []
        for pid in processes.carrying(self.home / ".flwr"):
            with suppress(*processes.GONE):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if any(Path(word.decode()).name == program for word in words[:2]):
                    found.append(pid)
        return found

    def all_processes(self) -> list[int]:
        """Ids of everything that runs on this machine."""
        return sorted(processes.carrying(self.home / ".flwr"))

    def signal(self, number: signal.Signals, program: str | None = None) -> int:
        """Send a signal to the processes of a program, or to all; returns how many there were."""
        pids = self.all_processes() if program is None else self.processes(program)
        for pid in pids:
            with suppress(*processes.GONE):
                os.kill(pid, number)
        return len(pids)

    def kill(self, program: str) -> None:
        """kill -9, as a loss of power would; it reports to nobody."""
        pids = self.processes(program)
        assert pids, f"{program} does not run on {self.name}"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: not self.processes(program), lambda: f"the end of {program} on {self.name}"
        )

    def end(self) -> None:
        """End every process of this machine."""
        processes.end_all(self.home / ".flwr", self.started)

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _script(self, text: str, *, keep: bool) -> str:
        text = re.sub(r"\b\d+\b", lambda number: str(self.ports.get(number[0], number[0])), text)
        state = self.folder / "state"
        after = f'{{ export -p; printf "cd %q\\n" "$PWD"; }} > {state}' if keep else ""
        return f"[ ! -e {state} ] || . {state}\n{text}\n{after}\n"

    def _environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(LEFT_OUT)}
        path = [
            str(self.root / "bin"),
            str(Path(sys.executable).parent),
            os.environ.get("PATH", os.defpath),
        ]
        return {
            **inherited,
            "HOME": str(self.home),
            "TMPDIR": str(self.folder / "tmp"),
            # where Flower looks anyway; it names this machine's processes
            "FLWR_HOME": str(self.home / ".flwr"),
            "PATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "FLWR_LOG_LEVEL": "INFO",
        }


@contextmanager
def machines(root: Path, *names: str, ports: Mapping[str, int]) -> Iterator[dict[str, Machine]]:
    """New machines by their names; on leaving, none of their processes is left."""
    (root / "bin").mkdir(parents=True)
    scp = root / "bin" / "scp"
    scp.write_text(SCP.format(root=root))
    scp.chmod(0o755)
    with ExitStack() as stack:
        made = {}
        for name in names:
            made[name] = Machine(root=root, name=name, ports=ports)
            for part in ("home", "tmp"):
                (made[name].folder / part).mkdir(parents=True)
            stack.callback(made[name].end)
        yield made


def wait_until(
    ready: Callable[[], bool], what: Callable[[], str], seconds: float = PATIENCE
) -> None:
    """Wait for a condition. Raises AssertionError that says for ``what``."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what()}"
        time.sleep(0.1)
