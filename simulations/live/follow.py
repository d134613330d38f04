"""``--open``: a small process serves the page of a run while it is going on, and ends with it.

It is a process, not a thread, so that nothing that happens to the page, or that a browser does, happens to the run. It
knows the end of the run from its stdin, which ends with this process, however that ends. Its arguments are the folder
of the run: the token is made there, and only a file of the owner's has it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from rich.console import Console

from simulations.live import ENTRY, LAST_SECONDS, has_browser
from simulations.report.terminal import print_line, print_whole

START_SECONDS = 20.0


@contextmanager
def following(folder: Path, console: Console) -> Iterator[None]:
    """Serve the page of a run while the block runs, in a browser if there is one. If it cannot, the run goes on."""
    opens = has_browser()
    (folder / ENTRY).unlink(missing_ok=True)  # of a run that was killed
    command = [sys.executable, "-P", "-m", "simulations.live", str(folder), "open" if opens else "wait"]
    places = os.pathsep.join(place for place in sys.path if place)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, env=os.environ | {"PYTHONPATH": places},
        )  # fmt: skip
    except OSError as error:
        print_line(f"no page follows the run: {error}", console, "yellow")
        yield
        return
    try:
        _announce(process, folder, console, opens)
        yield
    finally:
        _end(process)
        (folder / ENTRY).unlink(missing_ok=True)


def _announce(process: subprocess.Popen[bytes], folder: Path, console: Console, opens: bool) -> None:
    entry, until = folder / ENTRY, monotonic() + START_SECONDS
    while not entry.exists() and process.poll() is None and monotonic() < until:
        sleep(0.02)
    if not entry.exists():
        process.kill()
        assert process.stdout is not None
        why = process.stdout.read().decode(errors="replace").strip() or "its server did not start"
        print_line(f"no page follows the run: {why}", console, "yellow")
    elif opens:
        print_whole(f"live page  {entry}", console)
    else:
        print_whole(f"live page  {entry} (no browser was found: open this file in one of this machine)", console)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Tell it that the run is over, and wait until a browser that follows has the last state."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):
            pipe.close()
    try:
        process.wait(4 * LAST_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
