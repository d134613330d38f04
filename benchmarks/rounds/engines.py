"""Interleaved rounds of engines and of other frameworks: CPU seconds of all their processes, and
wall seconds.

    python -m benchmarks.rounds.engines --json FILE [--model lenet] [--method sgd] [--engines bare
    local ray fedavg pfl]

Every arm is its own process tree, and all are alive at once. Only one arm runs a round at a time;
the others wait at their ``Gate``. So the arms take rounds alternately on the same machine. CPU time
of a waiting arm (Ray's daemons) is not counted. With ``--block 8`` an arm takes eight rounds in its
turn. ``bare`` is the job in plain PyTorch. ``fedavg`` is Flower's own FedAvg, ``pfl`` is
pfl-research: both without privacy, so compare them with ``sgd``. ``alone`` is ``local`` without
passes that clients share, ``opacus`` a loop over clients with Opacus' hooks: compare with
``dpsgd``. ``pfl-dp`` and ``fedavg-dp`` protect a client, not an example: one clip of its whole
update, and noise on that. JOB="100 20 100 20" in the environment is the job of 100 clients with 20
images each, of which all take part (``jobs``).
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.flower.flower_processes import Process, living, of_run
from benchmarks.pairs import parser, summary, table, write
from benchmarks.rounds.gate import FOLDER, POLL_SECONDS, Gate
from benchmarks.rounds.jobs import COHORT

START_SECONDS, ROUND_SECONDS = 300.0, 300.0


class Tree:
    """The descendants of a process, Ray's and Flower's servers too, also those whose parent is gone
    (Linux).

    They are remembered from one look to the next.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self._known: set[Process] = set()
        self._seconds: dict[Process, float] = {}

    def cpu_seconds(self) -> float:
        """User and system seconds of all of them so far; of one that has ended, as they were at the
        last look.
        """
        alive = of_run(living(), {self.root}, self._known)
        self._known |= alive
        for process in alive:
            with suppress(OSError):
                self._seconds[process] = time.clock_gettime(_clock_of(process.pid))
        return sum(self._seconds.values())


def _clock_of(pid: int) -> int:
    """The CPU clock of a process, as clock_getcpuclockid(3) makes it: to the nanosecond, where
    /proc counts ticks.
    """
    return (~pid << 3) | 2


class Arm:
    """One engine's processes, which wait before a round."""

    def __init__(self, engine: str, model: str, method: str, rounds: int, folder: Path) -> None:
        folder.mkdir()
        self.name, self.gate, self.log = engine, Gate(folder), (folder / "log").open("wb")
        command = [
            sys.executable,
            "-m",
            "benchmarks.rounds.job_run",
            engine,
            model,
            method,
            str(rounds),
        ]
        environment = {
            **os.environ,
            FOLDER: str(folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.getcwd() + os.pathsep + os.environ.get("PYTHONPATH", ""),
        }
        self.process = subprocess.Popen(
            command, env=environment, stdout=self.log, stderr=subprocess.STDOUT
        )
        self.tree = Tree(self.process.pid)

    def arrive(self, round: int, seconds: float) -> None:
        """Wait until the next round is ``round``. Raises RuntimeError with the log if the process
        has ended.
        """
        deadline = time.monotonic() + seconds
        while not self.gate.has_arrived(round):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.name} did not come to round {round}: "
                    f"{Path(self.log.name).read_text()[-2000:]}"
                )
            time.sleep(POLL_SECONDS)

    def rounds(self, first: int, count: int) -> tuple[float, float]:
        """CPU and wall seconds of each of so many rounds."""
        cpu, wall = self.tree.cpu_seconds(), time.perf_counter()
        for number in range(first, first + count):
            self.gate.let_through(number)
            self.arrive(number + 1, ROUND_SECONDS)
        wall = time.perf_counter() - wall
        return (self.tree.cpu_seconds() - cpu) / count, wall / count

    def end(self) -> None:
        """Stop the processes: SIGINT first, so that Flower ends cleanly."""
        self.process.send_signal(2)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def measure(
    engines: list[str], model: str, method: str, *, pairs: int, warmup: int, block: int
) -> dict[str, dict[str, list[float]]]:
    """CPU and wall seconds of a round in every turn after the warm-up, by engine."""
    seconds: dict[str, dict[str, list[float]]] = {
        clock: {name: [] for name in engines} for clock in ("cpu", "wall")
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engines-")))
        arms = []
        for name in engines:  # one after the other: they would slow each other's start
            arm = Arm(name, model, method, (warmup + pairs) * block + 3, folder / name)
            stack.callback(arm.end)
            arm.arrive(2, START_SECONDS)
            arms.append(arm)
        for turn in range(warmup + pairs):
            start = turn % len(arms)
            for arm in arms[start:] + arms[:start]:
                cpu, wall = arm.rounds(turn * block + 2, block)
                if turn >= warmup:
                    seconds["cpu"][arm.name].append(cpu)
                    seconds["wall"][arm.name].append(wall)
    return seconds


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--model", default="lenet")
    options.add_argument("--method", default="sgd")
    options.add_argument("--engines", nargs="+", default=["bare", "local", "ray", "fedavg", "pfl"])
    options.add_argument(
        "--block", type=int, default=1, help="rounds that an arm takes in its turn"
    )
    given = options.parse_args()
    seconds = measure(
        given.engines,
        given.model,
        given.method,
        pairs=given.pairs,
        warmup=given.warmup,
        block=given.block,
    )
    found = summary(seconds, given.engines)
    print(table(found, given.engines[0], unit="CPU s"))
    first = seconds["cpu"][given.engines[0]]
    for name in given.engines[1:]:
        over = sorted((a - b) / COHORT for a, b in zip(seconds["cpu"][name], first, strict=True))
        print(
            f"{name}: {1000 * over[len(over) // 2]:.1f} ms of CPU a client over {given.engines[0]}"
        )
    write(given.json, {"model": given.model, "method": given.method, "engines": found})


if __name__ == "__main__":
    main()
