"""When Ray is lost in the middle of a run: its own error, and a last word for a process that can say nothing more.

Ray can end its driver without a word, and without Python, when the raylet of the driver's machine is gone. So a small
process, this module as a script, waits for the end of a pipe that only the driver holds, and prints what it was given.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

SAID = b"\0"
"""Ends what is sent to the small process if it need not be printed."""


class RayLostError(RuntimeError):
    """Ray is gone, and this process can still say so."""


@contextmanager
def last_word(words: str, console: "Console") -> Iterator[None]:
    """If this process is killed inside, ``words`` are printed where ``console`` prints."""
    if console.quiet:
        yield
        return
    command = [sys.executable, "-I", "-S", __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=_file(console), start_new_session=True) as process:
        assert process.stdin is not None
        process.stdin.write(words.encode())
        process.stdin.flush()
        try:
            yield
        finally:
            with suppress(BrokenPipeError):
                process.stdin.write(SAID)
                process.stdin.flush()


def _file(console: "Console") -> int | None:
    """None, which means our stderr, for a console without a file of the system."""
    with suppress(OSError, ValueError, AttributeError):
        return console.file.fileno()
    return None


def main() -> None:
    """Print to stderr what came from stdin, unless its end says that it is not needed."""
    words = sys.stdin.buffer.read()
    if not words.endswith(SAID):
        sys.stderr.buffer.write(words + b"\n")


if __name__ == "__main__":
    main()
