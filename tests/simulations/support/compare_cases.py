"""Made-up results with numbers that can be checked by hand, and workers that run nothing."""

from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from fedlsg.simulations.compare.grid.cell_worker import Job, Outcome
from fedlsg.simulations.compare.grid.cells import Grid
from fedlsg.simulations.compare.grid.grid_file import from_toml
from fedlsg.simulations.storage.results import Result
from fedlsg.simulations.storage.round_tables import Row

CHANCE = {"num_classes": 10, "majority_share": 0.1, "test_examples": 400.0}


def row(round: int, accuracy: float | None, **changes: Any) -> Row:
    values = dict.fromkeys(Row.__dataclass_fields__, 0) | {
        "only": None,
        "simulated": None,
        "times": None,
        "round": round,
        "accuracy": accuracy,
        "loss": 1.0,
        "epsilon_max": 1.0,
        "epsilon_median": 1.0,
        "uplink_bytes": 500,
        "uplink_messages": 5,
        "asked": "0 1",
        "answered": "0 1",
        "rejected": "",
        "reasons": "",
        "metrics": {},
    }
    return Row(**(values | changes))


def result(
    accuracy: float | None,
    *,
    method: str = "lsg",
    seed: int = 0,
    epsilon: float | None = 3.0,
    **more: Any,
) -> Result:
    """A run of two rounds, ten payloads of 100 bytes; dense ones have 400. ``accuracy=None`` is one
    that failed.
    """
    private = more.pop("private", epsilon is not None)
    label = more.pop("label", method)
    settings = {
        "workload": "digits",
        "model": "mlp",
        "method": method,
        "seed": seed,
        "epsilon": epsilon,
        "rounds": 2,
        "mechanism": "none" if epsilon is None else "dp",
        "delta": 1e-5,
    } | more.pop("settings", {})
    summary = {
        "workload": "digits",
        "model": "mlp",
        "accuracy": accuracy,
        "loss": 0.5,
        "private": private,
        "epsilon_max": "inf" if epsilon is None else epsilon - 0.001 * (seed + 1),
        "delta": 1e-5,
        "uplink_bytes": 1000,
        "downlink_bytes": 4000,
        "uplink_bytes_dense": 4000,
        "downlink_bytes_dense": 4000,
        "wall_seconds": 10.0 + seed,
        "seconds": {"training": 4.0 + seed},
        "chance": CHANCE,
        "clients": 5,
        "rounds": 2,
        "engine": "local",
        "device": "cpu",
        "noise_multiplier": 2.0,
        "versions": {"torch": "2.13.0"},
        "trust": "client",
        "reproducible": False,
        "epsilon_median": 1.0,
        "hardware": {"processor": "Some CPU", "cores": 2},
    }
    failed = accuracy is None
    return Result(
        name=f"{label}-seed{seed}",
        label=label,
        status="failed" if failed else "done",
        reason=more.pop("reason", "rank too big" if failed else ""),
        settings=settings,
        summary={} if failed else summary,
        rows=() if failed else (row(1, accuracy / 2), row(2, accuracy)),
        group=(label, epsilon, settings.get("rank"), settings.get("sparsity")),
    )


def grid(**keys: Any) -> Grid:
    return from_toml({"workload": "digits", "methods": {"lsg": {}, "sgd": {}}} | keys)


class FakeWorker:
    """Ends a cell at once, as ``outcomes`` says by the job's directory; never starts a process."""

    alive = True

    def __init__(self, outcomes: Callable[[Job], Outcome | None], log: list[str]) -> None:
        self.outcomes, self.log = outcomes, log
        self.channel, self.theirs = Pipe()

    def submit(self, job: Job) -> None:
        self.log.append(f"start {Path(job.path).name}")
        outcome = self.outcomes(job)
        if outcome is not None:  # else it runs until it is interrupted
            self.theirs.send(outcome)

    def outcome(self) -> Outcome:
        received: Outcome = self.channel.recv()
        return received

    def interrupt(self) -> None:
        self.log.append("interrupt")
        self.theirs.send(Outcome(status="interrupted"))

    def close(self) -> None:
        self.log.append("close")
        self.channel.close()
        self.theirs.close()


def fake(outcomes: Callable[[Job], Outcome | None]) -> tuple[Callable[[], FakeWorker], list[str]]:
    """(factory for ``new_worker``, what the workers were asked)."""
    log: list[str] = []
    return lambda: FakeWorker(outcomes, log), log
