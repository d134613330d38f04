"""A process runs cells one after the other: an error, or its crash, costs one cell.

It lives on between cells, because importing torch and calibrating the noise takes longer than a
small run. It has a session of its own, so Ctrl-C on the terminal reaches only the parent, which
then interrupts it in order. If the parent dies, it interrupts itself. An interrupted cell stays
resumable.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from fedlsg.owner_only import make_file
from fedlsg.simulations.engines import ahead, signals
from fedlsg.simulations.settings.settings import permit_code
from fedlsg.user_code.failure import without_exit

if TYPE_CHECKING:
    from fedlsg.simulations.workloads import LoadedWorkload

PARTING_SECONDS = 30.0
"""Seconds that a process has to end by itself: a run on Ray ends its own within about ten."""
CONTEXT = get_context("spawn")
SAFE_PATH = "PYTHONSAFEPATH"
"""Processes that are started with it do not search the working directory for modules.

multiprocessing starts ``python -c``, which searches it until it has copied the path of this
process. Then a ``random.py`` of the user would end the worker.
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One cell to run: the paths of its run directory and its log, and its given settings."""

    path: str
    log: str
    given: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a cell ended.

    status: "done", "failed" or "interrupted"; "not run" for one that was not started.
    reason: of a failure, in one line.
    seconds: of the cell alone, without what the cells of its process share; None for a process that
        died.
    refused: whether the cell was not started because it does not belong to those before it. Then no
        other cell may run either.
    """

    status: str
    reason: str = ""
    seconds: float | None = None
    refused: bool = False


class Shared:
    """What the cells of a process share: its imports, what torch and accountants do once, and data.

    Code of a user's own is called for every cell: what its data and losses remember is not known.

    key: ``data_key`` of the last cell.
    data: its data; None for data of a user's own, and if they cannot be loaded.
    """

    def __init__(self) -> None:
        self.key: tuple[str, ...] = ()
        self.data: LoadedWorkload | None = None

    def prepare(self, given: Mapping[str, Any]) -> None:
        """Do what the last cells have not done yet, before the seconds of a cell count.

        A failure here is reported by the cell itself.
        """
        from fedlsg.simulations import workloads
        from fedlsg.simulations.planning.base.prepare import data_key
        from fedlsg.simulations.run.commands import settings_of
        from fedlsg.simulations.server.ready import ready_plan

        with suppress(Exception), without_exit():
            settings = settings_of(given)
            if (key := data_key(settings)) == self.key:
                return
            self.key, self.data = key, None
            data = ready_plan(settings).workload
            self.data = data if workloads.own(settings.workload) is None else None


class Worker:
    """The parent's end of one process.

    ``submit`` a job, wait until ``channel`` can be read, and take the ``outcome``.
    """

    def __init__(self) -> None:
        signals.allow(2 * PARTING_SECONDS)
        self.channel, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=serve, args=(theirs,))
        with environment(SAFE_PATH, "1"), without_main():
            self.process.start()
        theirs.close()

    def submit(self, job: Job) -> None:
        """Start a cell; if the process has died, ``outcome`` says so."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(job)

    def outcome(self) -> Outcome:
        """How the submitted cell ended; if the process ended, the cell failed."""
        try:
            result: Outcome = self.channel.recv()
            return result
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode or 0
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
            return Outcome(status="failed", reason=f"its process ended with {how}; out of memory?")

    @property
    def alive(self) -> bool:
        """Whether it can take another cell."""
        return self.process.is_alive()

    def interrupt(self) -> None:
        """Ask the running cell to stop where it can be resumed."""
        pid = self.process.pid
        if self.process.is_alive() and pid is not None:
            os.kill(pid, signal.SIGINT)

    def close(self) -> None:
        """End the process: in order, or by force if it does not react."""
        # an idle one reads the end of its work; a busy one finds out after its cell
        self.channel.close()
        self.process.join(PARTING_SECONDS)
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(PARTING_SECONDS)
        self.process.close()


class Here:
    """Runs cells in this process, in place of ``Worker``, for objects of this process.

    ``submit`` returns when the cell has ended. What cells spend on rows of this process is on its
    record.
    """

    alive = True

    def __init__(self) -> None:
        self.channel, self._ended = CONTEXT.Pipe()
        self._ray, self._shared = ExitStack(), Shared()

    def submit(self, job: Job) -> None:
        """Run a cell. An interruption ends the cell, which can be resumed, and the grid."""
        self._ended.send(run_cell(job, self._ray, self._shared, recorded=True))

    def outcome(self) -> Outcome:
        """How the cell ended. Raises KeyboardInterrupt for one that was interrupted."""
        outcome: Outcome = self.channel.recv()
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        return outcome

    def interrupt(self) -> None:
        """No cell is running."""

    def close(self) -> None:
        """End what the cells shared."""
        self.channel.close()
        self._ended.close()
        self._ray.close()


@contextmanager
def without_main() -> Iterator[None]:
    """Processes that are started inside do not run the script of this process again.

    A cell needs nothing of it, and a script without a guard would start another comparison.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Processes that are started inside have this variable."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def serve(channel: "connection.Connection[Any, Any]") -> None:
    """Run jobs in the child until the parent closes the channel.

    An interruption ends the cell, and this process.
    """
    os.setsid()
    # a background shell's children inherit it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()
    try:
        with ExitStack() as ray:
            shared = Shared()
            while True:
                channel.send(run_cell(channel.recv(), ray, shared))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return


def run_cell(job: Job, ray: ExitStack, shared: Shared, *, recorded: bool = False) -> Outcome:
    """Run or resume one cell, as ``fedlsg run`` or ``fedlsg resume`` does; it prints to its log.

    ray: keeps Ray, with its workers, for the next cell of this process.
    shared: is prepared first.
    recorded: as in ``run_command``.
    Guarantee: raises nothing but SystemExit; any failure is the outcome's one-line reason.
    """
    log = Path(job.log)
    log.parent.mkdir(parents=True, exist_ok=True)
    make_file(log)  # a traceback may quote data
    began = time.monotonic()
    with log.open("a") as file:
        try:
            ray.enter_context(ahead(job.given["engine"], several=True))
            permit_code(job.given)  # what the command line of the parent named
            shared.prepare(job.given)
            began = time.monotonic()
            with without_exit():
                _run(job, file, shared.data, recorded=recorded)
        except KeyboardInterrupt:
            return Outcome(status="interrupted", seconds=time.monotonic() - began)
        except Exception as error:
            from fedlsg.simulations.compare.grid.same_contents import OtherContentsError

            traceback.print_exc(file=file)
            is_expected = isinstance(error, ValueError | OSError | ImportError | RuntimeError)
            text = str(error) if is_expected else ""
            text = text or f"{type(error).__name__}: {error}"
            return Outcome(
                status="failed",
                reason=" ".join(text.split()),
                seconds=time.monotonic() - began,
                refused=isinstance(error, OtherContentsError),
            )
    return Outcome(status="done", seconds=time.monotonic() - began)


def _run(
    job: Job, log: IO[str], loaded: "LoadedWorkload | None", *, recorded: bool = False
) -> None:
    """Run the cell, or resume it if it has begun; ``log``: what it prints goes there."""
    from rich.console import Console

    from fedlsg.simulations.compare.grid.same_contents import check_same_contents
    from fedlsg.simulations.run.commands import resume_command, run_command
    from fedlsg.simulations.storage.examined import SETTINGS, open_run
    from fedlsg.simulations.storage.manifest import accept
    from fedlsg.simulations.storage.run_directory import RunDir

    console = Console(file=log, width=120, force_terminal=False, color_system=None)
    directory = RunDir(Path(job.path))
    if not directory.config.exists():
        check = partial(check_same_contents, directory.path.parent)
        run_command(job.given, job.path, console, loaded=loaded, recorded=recorded, check=check)
        return
    open_run(directory.path, (SETTINGS,), console.print)  # checked before it is written anew
    directory.write_config(replace(directory.read_config(), **_movable(job.given)))
    accept(directory, [SETTINGS], closed=False)
    resume_command(job.path, console, job.given, recorded=recorded)


def _movable(given: dict[str, Any]) -> dict[str, Any]:
    """The settings among ``given`` that a resumed run may change."""
    from fedlsg.simulations.planning.earlier_runs.continuity import HARMLESS
    from fedlsg.simulations.settings.settings import parse

    return {name: value for name, value in parse(given).items() if name in HARMLESS}


def _follow(sentinel: int) -> None:
    """Interrupt this process when its parent has ended, however it ended."""
    connection.wait([sentinel])
    os.kill(os.getpid(), signal.SIGINT)
