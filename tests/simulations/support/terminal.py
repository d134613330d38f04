"""A command on a pseudo-terminal whose screen is read as a person sees it (pyte draws it)."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

from tests.places import REPOSITORY

ROWS = 40
PATIENCE = 90.0


class Terminal:
    """``fedlsg`` with these arguments on a terminal of so many columns."""

    def __init__(self, arguments: list[str], cwd: Path, *, columns: int = 80, **env: str) -> None:
        self.master, self.slave = pty.openpty()
        self.screen = pyte.Screen(columns, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.resize(columns)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedlsg", *arguments],
            cwd=cwd,
            env=environment(env),
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            preexec_fn=self._lead,
        )

    def _lead(self) -> None:
        """In the child: a session of its own with this terminal, so that Ctrl-C arrives as a
        signal.
        """
        os.setsid()
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def resize(self, columns: int) -> None:
        """Another width, as if the user had dragged the window."""
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        self.screen.resize(ROWS, columns)

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.write(self.master, b"\x03")

    @property
    def lines(self) -> list[str]:
        """What is on the screen."""
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def until(self, seen: Callable[[list[str]], bool]) -> list[str]:
        """Read until the screen is as wanted; its lines. Raises AssertionError, with the screen, if
        it never is.
        """
        end = time.monotonic() + PATIENCE
        while not seen(self.lines):
            assert time.monotonic() < end, "\n".join(self.lines)
            self._read()
        return self.lines

    def status(self) -> int:
        """Read to the end of the command; its exit status."""
        end = time.monotonic() + PATIENCE
        while self._read() or self.process.poll() is None:
            assert time.monotonic() < end, "\n".join(self.lines)
        return self.process.returncode

    def close(self) -> None:
        """Leave no process and no descriptor."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def _read(self) -> bool:
        if not select.select([self.master], [], [], 0.05)[0]:
            return False
        data = os.read(self.master, 65536)
        self.raw += data
        self.stream.feed(data)
        return True


def environment(changes: dict[str, str]) -> dict[str, str]:
    """Of a user's terminal, whatever the tests run in."""
    widths = (
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "FORCE_COLOR",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
        "CI",
    )
    kept = {name: value for name, value in os.environ.items() if name not in widths}
    return {**kept, "TERM": "xterm-256color", "PYTHONPATH": str(REPOSITORY), **changes}
