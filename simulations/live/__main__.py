"""The process next to a run: serve its page until the run's process is gone, and its browser has the last state."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

from simulations.live import ENTRY, LAST_SECONDS, LivePage, LiveServer, open_file
from simulations.report.template import LIVE_ENTRY
from simulations.rundir.files import write_atomically

RECENT = 20.0
"""A browser that asked, or was started, so many seconds ago is still there."""


def write_entry(path: Path, url: str) -> None:
    """The file that leads the owner's browser to the page. Raises PermissionError where others could read it."""
    write_atomically(path, LIVE_ENTRY.format(url=url).encode(), durable=False, private=True)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        path.unlink()
        raise PermissionError(f"others could read {path}: its disk has no modes of files")


def main(folder: Path, opens: bool) -> None:
    """Serve until stdin ends. Says one line of why it cannot, on stdout, and nothing else."""
    parent, entry = os.getppid(), folder / ENTRY
    page = LivePage(folder)
    try:
        server = LiveServer(page)
        write_entry(entry, server.url)
    except OSError as error:
        print(error, flush=True)
        sys.exit(1)
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):  # what a browser says is not for the terminal of the run
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
    if monotonic() - max(server.asked, began if opens else server.asked) < RECENT:
        imports.join()
        page.finish()
        until = monotonic() + LAST_SECONDS
        while not page.delivered and monotonic() < until:
            sleep(0.05)
        sleep(0.3)  # for its last bytes
    entry.unlink(missing_ok=True)
    os._exit(0)  # threads may still wait for a browser


def _wait_for_end() -> None:
    with suppress(OSError):
        while os.read(0, 1):
            pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "open")
