"""A process that resumes a run and may kill itself on the way. Forked from one that has imported
everything already.
"""

import os
import signal
import sys
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

CONTEXT = get_context("forkserver")
WATCHED = {"open", "os.rename", "os.remove", "os.truncate", "os.link", "os.mkdir"}


def start(run: Path, kill_at: int = 0) -> BaseProcess:
    """Resume a run; kill -9 before the ``kill_at``-th operation on its files, 0 for never.

    It ends with status 0, -9 or, where resume refused, 1; the number of operations, or the refusal,
    is in ``said``.
    """
    CONTEXT.set_forkserver_preload(
        [
            "fedlsg.simulations.run.commands",
            "fedlsg.simulations.engines.local",
            "fedlsg.simulations.report.page_of_run.run_page",
        ]
    )
    process = CONTEXT.Process(target=_resume, args=(str(run), kill_at))
    process.start()
    return process


def said(run: Path) -> str:
    """Last words of the process, which are next to the run."""
    return run.with_name(f"{run.name}.said").read_text()


def _resume(run: str, kill_at: int) -> None:
    from rich.console import Console

    import fedlsg.simulations.report.page_of_run.run_page
    from fedlsg.simulations.run.commands import resume_command

    count = 0

    def die(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event not in WATCHED:
            return
        paths = [os.fsdecode(a) for a in arguments if isinstance(a, str | bytes | os.PathLike)]
        if any(path.startswith(run + os.sep) for path in paths):
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(die)
    fedlsg.simulations.report.page_of_run.run_page.write_run_page = lambda run: None
    words = Path(f"{run}.said")
    try:
        with open(os.devnull, "w") as nowhere:
            resume_command(run, Console(file=nowhere))
    except (ValueError, OSError, RuntimeError) as error:
        words.write_text(str(error))
        sys.exit(1)
    words.write_text(str(count))
