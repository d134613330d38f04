"""Signals at every phase of a run: exit code, words, seconds, and what is left.

    python -m benchmarks.signals                       # every cell; Markdown on stdout
    python -m benchmarks.signals --engines local --signals TERM --phases plan round

A cell starts ``fedlsg run`` (or ``resume``) as a user does: a process of its own, on a terminal. It
waits until the phase is there, sends one signal, and looks until nothing of the run lives. Under
``flower`` the run is ``flwr run`` on Flower's own simulation, and the signal goes to the process
that runs it. Linux only.
"""

import argparse
import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

from benchmarks.flower.flower_app import CLIENT_APP, SERVER_APP, private_flower, write_project
from benchmarks.flower.flower_processes import carrying, end_all, living, of_run

CODES = {"INT": 130, "TERM": 143, "HUP": 129, "INT, INT": 130}
GCS = "GCS killed"
"""In place of a signal: Ray's control service is killed, of which the run learns by itself."""
PHASES = (
    "import",
    "plan",
    "Ray's start",
    "before round 1",
    "round",
    "report",
    "resume",
)
ENGINES = ("local", "ray", "flower")
OF_FLOWER = ("before round 1", "round", "report", "resume")
"""Before these no code of fedlsg runs in the process of Flower's simulation."""
MOST = {"local": 5.0, "ray": 10.0, "flower": 10.0}
"""Seconds within which everything has ended."""
GCS_SECONDS = 60.0
PATIENCE = 120.0
"""Seconds to wait for a phase; half of them for an end."""
SHORT, LONG = 3, 100_000
SETTINGS = {"clients": 2, "noise-multiplier": 2.0, "sample-rate": 0.05}
STILL = 1000
"""In place of the status of a run that goes on."""
CTRL_C = b"\x03"
APART = 0.3
"""Seconds between two signals."""
PLANNING = ("loading data", "dealing rows", "calibrating the noise")
"""Words that a terminal shows while a plan is made."""
HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One place of the matrix."""

    engine: str
    phase: str
    signal: str

    @property
    def rounds(self) -> int:
        """Few where their end is waited for."""
        return SHORT if self.phase == "report" else LONG


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ended. ``seconds``: from the signal until no process of it lived.

    ``status``: of the user's process; None where that is Flower's; STILL where it goes on.
    ``folder``: whether there was a run that can be continued.
    """

    status: int | None
    seconds: float
    printed: str
    folder: bool
    left: tuple[str, ...] = ()
    sane: bool = True

    def faults(self, cell: Cell) -> list[str]:
        """What is not as it should be, in words."""
        if cell.signal == GCS:
            finished = self.status == 0 and cell.phase == "report"
            wrong = {
                # a report needs no Ray
                f"status {self.status}": self.status in (STILL, 0) and not finished,
                "no command": self.folder and not finished and "fedlsg resume" not in self.printed,
                f"{self.seconds:.1f} s": self.seconds > GCS_SECONDS,
                f"left: {', '.join(self.left)}": bool(self.left),
            }
            return [words for words, is_so in wrong.items() if is_so]
        wrong = {
            f"status {self.status}": self.status not in (None, CODES[cell.signal]),
            "no word": "interrupted" not in self.printed,
            "no command": self.folder and "fedlsg resume" not in self.printed,
            f"{self.seconds:.1f} s": self.seconds > MOST[cell.engine],
            f"left: {', '.join(self.left)}": bool(self.left),
            "trace": "Traceback" in self.printed or "*** SIG" in self.printed,
            "terminal": not self.sane,
        }
        return [words for words, is_so in wrong.items() if is_so]


class Run:
    """A command on a terminal of its own; ``home`` marks its processes."""

    def __init__(self, arguments: Sequence[str], home: Path, folder: Path) -> None:
        self.home, self._output = home, bytearray()
        self._master, self._slave = pty.openpty()
        self._modes = termios.tcgetattr(self._slave)
        environment = {**os.environ, "FLWR_HOME": str(home), "TMPDIR": str(home), "TERM": "xterm"}
        environment.pop("RAY_ADDRESS", None)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedlsg", *arguments],
            env=environment,
            cwd=folder,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=lead,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(OSError):
            while data := os.read(self._master, 65536):
                self._output += data

    @property
    def printed(self) -> str:
        """All that was printed so far."""
        return self._output.decode(errors="replace")

    def send(self, name: str) -> None:
        """Ctrl-C goes to all processes of the terminal, another signal to the command alone."""
        if name == GCS:
            for pid, command in family(self.home).items():
                if "gcs_server" in command:
                    os.kill(pid, signal.SIGKILL)
        elif name.startswith("INT"):
            os.write(self._master, CTRL_C)
        else:
            self.process.send_signal(signal.Signals[f"SIG{name}"])

    def is_sane(self) -> bool:
        """Whether the terminal has its modes, and its cursor."""
        cursor = self._output.rfind(SHOW) >= self._output.rfind(HIDE)
        return cursor and termios.tcgetattr(self._slave) == self._modes

    def close(self) -> None:
        """Leave no process and no descriptor."""
        end_all(self.home, [])
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        os.close(self._slave)
        os.close(self._master)


def lead() -> None:
    """In the child: a terminal of its own, and signals as a login has them, also below nohup."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def family(home: Path) -> dict[int, str]:
    """Living processes of a run, with their commands."""
    members = of_run(living(), carrying(home), set())
    found = {}
    for pid in {member.pid for member in members} - {os.getpid()}:
        with suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return found


def rows(run: Path) -> int:
    """Finished rounds."""
    with suppress(OSError):
        return len((run / "rounds.csv").read_text().splitlines()) - 1
    return 0


def wait(
    ready: Callable[[], bool], alive: Callable[[], bool], *, seconds: float = PATIENCE
) -> None:
    """Wait for a phase. Raises RuntimeError if the run has ended before, or time is over."""
    deadline = time.monotonic() + seconds
    while not ready():
        if not alive() or time.monotonic() > deadline:
            raise RuntimeError("the phase did not come")
        time.sleep(0.002)


def is_there(phase: str, run: Run, folder: Path) -> bool:
    """Whether a phase has begun, as it is seen from outside."""
    if phase == "import":
        return "libtorch_cpu" in Path(f"/proc/{run.process.pid}/maps").read_text()
    if phase == "Ray's start":
        return any("gcs_server" in command for command in family(run.home).values())
    if phase in ("plan", "resume"):
        # what comes first may be over before the terminal shows it
        return any(words in run.printed for words in PLANNING)
    if phase == "before round 1":
        return "the first round has not ended yet" in run.printed
    return rows(folder) >= (SHORT if phase == "report" else 2)


@contextmanager
def short_home() -> Iterator[Path]:
    """A temporary folder whose name is short enough for Ray's sockets."""
    home = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def options(cell: Cell, engine: str) -> list[str]:
    """Options of ``fedlsg run`` for a cell."""
    given = {**SETTINGS, "rounds": cell.rounds, "engine": engine}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def end(cell: Cell, begun: Path | None = None) -> Ending:
    """Run one cell. ``begun``: an interrupted run of the engine, which ``resume`` continues."""
    if cell.engine == "flower" and cell.phase != "resume":
        return end_flower(cell)
    with short_home() as home, tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        arguments = ["run", *options(cell, cell.engine), "--out", str(out)]
        if cell.phase == "resume":
            assert begun is not None
            shutil.copytree(begun, out)
            arguments = ["resume", str(out)]
        run = Run(arguments, home, Path(folder))
        try:
            wait(lambda: is_there(cell.phase, run, out), lambda: run.process.poll() is None)
            run.send(cell.signal)
            sent = time.monotonic()
            if cell.signal == "INT, INT":
                time.sleep(APART)
                run.send(cell.signal)
            status = None
            with suppress(subprocess.TimeoutExpired):
                status = run.process.wait(PATIENCE / 2)
            ended = time.monotonic()
            while (alive := family(home)) and time.monotonic() - ended < MOST[cell.engine]:
                time.sleep(0.05)
            seconds = time.monotonic() - sent
            time.sleep(0.1)  # for the last of what was printed
            return Ending(
                status=STILL if status is None else status,
                seconds=seconds,
                printed=run.printed,
                folder=(out / "config.toml").exists(),
                left=(*(first(command) for command in alive.values()), *files_left(home, out)),
                sane=run.is_sane(),
            )
        finally:
            run.close()


def first(command: str) -> str:
    """The program of a command."""
    return Path(command.split("\0")[0]).name


def files_left(home: Path, out: Path) -> list[str]:
    """Temporary files. torch makes an empty cache folder for each user wherever it is imported."""
    temporary = [path.name for path in home.iterdir() if not path.name.startswith("torchinductor_")]
    return temporary + [path.name for path in out.rglob("*.tmp*")]


def end_flower(cell: Cell) -> Ending:
    """A signal to the process of Flower's simulation, which Flower starts."""
    with tempfile.TemporaryDirectory() as folder:
        config = {**SETTINGS, "rounds": cell.rounds, "workload": "digits"}
        app = write_project(Path(folder) / "app", config, SERVER_APP, CLIENT_APP)
        with private_flower(
            Path(folder) / "flower", "--simulation", "--isolation", "subprocess"
        ) as flower:
            resources = "num-supernodes=2 client-resources-num-cpus=1 init-args-num-cpus=2"
            options = ("--federation-config", resources)
            flower.start("flwr", "run", str(app), "fedlsg", "--stream", *options)

            def out() -> Path:
                return next((flower.folder / "runs").glob("*"), flower.folder / "none")

            def seen() -> bool:
                if cell.phase == "before round 1":
                    return "run directory:" in flower.log_file.read_text()
                return rows(out()) >= (SHORT if cell.phase == "report" else 2)

            wait(seen, lambda: True)
            found = [pid for pid, text in family(flower.home).items() if "flwr-simulation" in text]
            if not found:
                raise RuntimeError("Flower's simulation has ended before the signal")
            pid = found[0]
            number = signal.Signals[f"SIG{cell.signal.split(',')[0]}"]
            os.kill(pid, number)
            sent = time.monotonic()
            if cell.signal == "INT, INT":
                time.sleep(APART)
                with suppress(OSError):
                    os.kill(pid, number)
            while (alive := of_simulation(pid, flower.home)) and time.monotonic() - sent < 30:
                time.sleep(0.05)
            seconds = time.monotonic() - sent
            with suppress(RuntimeError):  # Flower brings the last lines of the log
                wait(lambda: "interrupted" in flower.log_file.read_text(), lambda: True, seconds=10)
            return Ending(
                status=None,
                seconds=seconds,
                printed=flower.log_file.read_text(),
                folder=(out() / "config.toml").exists(),
                left=tuple(map(first, alive)),
            )


def of_simulation(pid: int, home: Path) -> list[str]:
    """Commands of what still runs of a simulation: its process, and Ray's."""
    ray = ("gcs_server", "raylet", "ray::")
    return [
        text
        for one, text in family(home).items()
        if one == pid or any(word in text for word in ray)
    ]


@contextmanager
def interrupted() -> Iterator[Callable[[str], Path]]:
    """A run that ``resume`` can continue, by engine: made once for each."""
    with tempfile.TemporaryDirectory() as folder:

        def begun(engine: str) -> Path:
            out = Path(folder) / engine
            if out.exists():
                return out
            with short_home() as home:
                cell = Cell(engine=engine, phase="round", signal="INT")
                run = Run(["run", *options(cell, "local"), "--out", str(out)], home, Path(folder))
                try:
                    wait(lambda: rows(out) >= 2, lambda: run.process.poll() is None)
                    run.send("INT")
                    run.process.wait(PATIENCE)
                finally:
                    run.close()
            config = out / "config.toml"
            config.write_text(config.read_text().replace('"local"', f'"{engine}"'))
            return out

        yield begun


def cells(engines: Sequence[str], phases: Sequence[str], signals: Sequence[str]) -> list[Cell]:
    """The matrix, without what an engine has not."""
    return [
        Cell(engine=engine, phase=phase, signal=name)
        for engine, phase, name in product(engines, phases, signals)
        if not (engine == "local" and phase == "Ray's start")
        and not (engine == "flower" and phase not in OF_FLOWER)
        and not (name == GCS and (engine != "ray" or phase in ("import", "plan", "resume")))
    ]


def line(cell: Cell, endings: Sequence[Ending | None]) -> str:
    """A row of the table: status, median of seconds, faults."""
    there = [ending for ending in endings if ending is not None]
    codes = sorted({"Flower's" if one.status is None else str(one.status) for one in there})
    seconds = f"{median(one.seconds for one in there):.1f}" if there else ""
    faults = sorted({fault for one in there for fault in one.faults(cell)})
    faults += ["the phase was missed"] * (len(there) < len(endings))
    return (
        f"| {cell.engine} | {cell.phase} | {cell.signal} | {', '.join(codes)} | {seconds} | "
        f"{'; '.join(faults) or 'none'} |"
    )


def main() -> None:
    """Print the table, a row as soon as it is known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engines", nargs="*", default=ENGINES, choices=ENGINES)
    parser.add_argument("--phases", nargs="*", default=PHASES, choices=PHASES)
    parser.add_argument("--signals", nargs="*", default=[*CODES, GCS], choices=[*CODES, GCS])
    parser.add_argument("--times", type=int, default=1, help="how often each cell is tried")
    parser.add_argument("--show", action="store_true", help="what a cell with a fault printed")
    given = parser.parse_args()
    print("| engine | phase | signal | status | seconds | faults |\n|---|---|---|---|---|---|")
    with interrupted() as begun:
        for cell in cells(given.engines, given.phases, given.signals):
            endings = list[Ending | None]()
            for _ in range(given.times):
                try:
                    endings.append(
                        end(cell, begun(cell.engine) if cell.phase == "resume" else None)
                    )
                except RuntimeError as error:
                    endings.append(None)
                    print(error, file=sys.stderr)
            print(line(cell, endings), flush=True)
            for ending in endings:
                if given.show and ending is not None and ending.faults(cell):
                    print(ending.printed[-1500:], file=sys.stderr)


if __name__ == "__main__":
    main()
