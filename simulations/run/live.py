"""``--open``: a small process serves the page of a run while the run trains, and ends with it.

It is a process, not a thread, so that no error of the page or of a browser can harm the run. It
notices the end of the run by the end of its stdin, however the run ends. Its argument is only the
folder of the run: it makes the token itself, which is in one file, for the owner only.
``following`` runs in the process of the run, ``main`` in the other one. Functions that print are
imported where they are used: the page must not wait for torch.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

from rich.console import Console

from fedlsg.simulations.report.pages.template import LIVE_ENTRY
from fedlsg.simulations.run.live_page import (
    ENTRY,
    LAST_SECONDS,
    LivePage,
    LiveServer,
    has_browser,
    open_file,
)
from fedlsg.simulations.storage.atomic_files import write_atomically

START_SECONDS = 20.0
"""Longest wait for the page."""
RECENT = 20.0
"""Seconds since its last request, or its start, in which a browser is taken to follow."""


@contextmanager
def following(folder: Path, console: Console) -> Iterator[None]:
    """Serve the page of a run in the block, in a browser if there is one; only print errors."""
    from fedlsg.simulations.report.terminals.terminal import print_line

    opens = has_browser()
    (folder / ENTRY).unlink(missing_ok=True)  # of a run that was killed
    command = [
        sys.executable,
        "-P",
        "-m",
        "fedlsg.simulations.run.live",
        str(folder),
        "open" if opens else "wait",
    ]
    folders = os.pathsep.join(filter(None, sys.path))
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": folders},
        )
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


def _announce(
    process: subprocess.Popen[bytes], folder: Path, console: Console, opens: bool
) -> None:
    """Wait for the page, and print where it is, or why there is none."""
    from fedlsg.simulations.report.terminals.terminal import print_line, print_whole

    entry = folder / ENTRY
    until = monotonic() + START_SECONDS
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
        print_whole(
            f"live page  {entry} (no browser was found: open this file in one of this machine)",
            console,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Tell the process that the run is over, and wait until a browser has the last state."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):
            pipe.close()
    try:
        process.wait(4 * LAST_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def write_entry(path: Path, url: str) -> None:
    """Write the file that leads the owner's browser to the page.

    Raises PermissionError if others could read it.
    """
    write_atomically(path, LIVE_ENTRY.format(url=url).encode(), durable=False, private=True)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        path.unlink()
        raise PermissionError(f"others could read {path}: its disk has no modes of files")


def main(folder: Path, opens: bool) -> None:
    """Serve the page until stdin ends; if that is impossible, print the reason on stdout.

    opens: whether to start a browser.
    """
    parent = os.getppid()
    entry = folder / ENTRY
    page = LivePage(folder)
    try:
        server = LiveServer(page)
        write_entry(entry, server.url)
    except OSError as error:
        print(error, flush=True)
        sys.exit(1)
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):  # keep a browser's output out of the terminal of the run
        os.dup2(silent, descriptor)
    began = monotonic()
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    ended = Thread(target=_wait_for_end, daemon=True)
    ended.start()
    if opens:
        Thread(target=open_file, args=(entry,), daemon=True).start()
    imports = Thread(target=page.prepare, daemon=True)
    imports.start()
    while ended.is_alive() and os.getppid() == parent:
        if not imports.is_alive():
            page.refresh()
        ended.join(0.3)
    last_sign = max(server.asked, began) if opens else server.asked
    if monotonic() - last_sign < RECENT:
        imports.join()
        page.finish()
        until = monotonic() + LAST_SECONDS
        while not page.delivered and monotonic() < until:
            sleep(0.05)
        sleep(0.3)  # until its last bytes are sent
    entry.unlink(missing_ok=True)
    os._exit(0)  # threads may still wait for a browser


def _wait_for_end() -> None:
    """Wait until stdin ends."""
    with suppress(OSError):
        while os.read(0, 1):
            pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "open")
