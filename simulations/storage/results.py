"""A run directory as one row of ``results.csv``: a run that is finished, interrupted or failed.

Runs of before version 0.1 may have counted a client's own noise as protection against that client.
With trust=secure and colluders=0, or with trust=aggregate, each client added 1 / sqrt(m) of the
noise, m the fewest clients of a sum. Their epsilon holds for a reader outside of the sum. A client
of the sum does not know m - 1 shares. They are refused.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlsg import bounded, strategies
from fedlsg.config.mechanisms import is_silent
from fedlsg.simulations.storage.atomic_files import Record
from fedlsg.simulations.storage.journal import Link, read_lines, transfer_seconds
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.start_record import read_start
from fedlsg.simulations.workloads.base.split import Chance

Summary = Mapping[str, Any]
"""What summary.json holds, by name; or settings by their names."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run.

    name: of its directory.
    label: its method, or the name that a grid gives a variant of one.
    status: "done", "interrupted", "failed" or "not run"; only what is done enters a mean.
    settings: by field name; resolved if the run began, else as they were given.
    summary: summary.json; empty until the run is done.
    rows: finished rounds.
    group: equal for runs that differ in their seed only.
    detail: an explanation of the label, if it needs one.
    varied: the settings that its comparison varies, with their values.
    transfer: seconds that its messages would take on the link ``link``, if one was given and the
        run counted messages.
    start: start.json; empty for a run without it.
    code: names the code of a user's own that made it; empty where all of it is fedlsg's.
    """

    name: str
    label: str
    status: str
    reason: str = ""
    settings: Summary
    summary: Summary
    rows: tuple[Row, ...] = ()
    group: tuple[Any, ...] = ()
    detail: str = ""
    varied: tuple[tuple[str, Any], ...] = ()
    link: str = ""
    transfer: float | None = None
    start: Summary = field(default_factory=dict)
    code: str = ""

    @property
    def method(self) -> str:
        return str(self.settings.get("method", "lsg"))

    @property
    def done(self) -> bool:
        return self.status == "done"

    @property
    def private(self) -> bool:
        """Whether the run itself says so; a run that is not done claims no privacy."""
        return bool(self.summary.get("private", False))

    @property
    def deployed(self) -> bool:
        """Whether it is a run of a deployment, whose config.toml names its own folder."""
        return self.settings.get("engine") == "flower" and bool(self.settings.get("run_dir"))

    @property
    def held_out(self) -> bool:
        """Whether its accuracies are of held-out training rows instead of public rows."""
        return self.settings.get("holdout") is not None and self.settings.get("public_rows") is None

    @property
    def noisy(self) -> bool:
        """Whether the run was to add noise, so that its epsilon target means something."""
        default = (
            strategies.default_mechanism(self.method) if self.method in strategies.names() else "dp"
        )
        return not is_silent(self.settings.get("mechanism", default))

    @property
    def epsilon_target(self) -> float | None:
        return self.settings.get("epsilon") if self.noisy else None

    @property
    def epsilon_max(self) -> float | None:
        """From the ledgers; infinite if the run claims no privacy."""
        if self.summary:
            return float(self.summary["epsilon_max"])
        return self.rows[-1].epsilon_max if self.rows else None

    @property
    def epsilon_outside(self) -> float | None:
        """Against a reader of the weights alone; None for unfinished runs, and where it is not on
        record.
        """
        epsilon = self.summary.get("epsilon_by_reader", {}).get("outside")
        return None if epsilon is None else float(epsilon)

    @property
    def accuracy(self) -> float | None:
        """On the public test split: the final accuracy, or the last one so far; None without
        classes.
        """
        if self.summary:
            accuracy = self.summary["accuracy"]
            return None if accuracy is None else float(accuracy)
        return next((row.accuracy for row in reversed(self.rows) if row.accuracy is not None), None)

    @property
    def chance(self) -> Chance | None:
        """None for a run that is not done, and where accuracy has no guess."""
        chance = self.summary.get("chance")
        return None if chance is None else Chance(**chance)

    @property
    def messages(self) -> int:
        """Payloads that arrived: client-rounds."""
        return sum(row.uplink_messages for row in self.rows)

    @property
    def saved(self) -> float | None:
        """Bytes of dense updates divided by the bytes that were sent."""
        up = self.summary.get("uplink_bytes", 0)  # a trusted server keeps them to itself
        return self.summary["uplink_bytes_dense"] / up if up else None

    def as_row(self) -> Record:
        """The run's line of results.csv; None for a cell without a value."""
        summary, settings = self.summary, self.settings
        copied = (
            "delta",
            "noise_multiplier",
            "loss",
            "uplink_bytes",
            "downlink_bytes",
            "uplink_bytes_dense",
            "downlink_bytes_dense",
            "wall_seconds",
        )
        columns = {
            name: settings.get(name) for name in ("workload", "model", "rank", "sparsity", "seed")
        }
        columns |= {name: value for name, value in self.varied if name not in copied}
        return {
            "name": self.name,
            "label": self.label,
            "method": self.method,
            **columns,
            "epsilon_target": self.epsilon_target,
            "epsilon_max": self.epsilon_max,
            "epsilon_outside": self.epsilon_outside,
            "private": self.private if self.done else None,
            "rounds": len(self.rows),
            "accuracy": self.accuracy,
            **{name: summary.get(name) for name in copied},
            "uplink_messages": self.messages,
            "saved_ratio": self.saved,
            "transfer_seconds": self.transfer,
            "status": self.status,
            "reason": self.reason,
        }


def read_run(
    path: Path, *, status: str | None = None, reason: str = "", link: Link | None = None
) -> Result:
    """The result of a run directory; without a summary it is "interrupted" unless ``status`` says
    otherwise.

    A run that diverged is "failed".

    Raises ValueError, naming the path, for a folder that is not a run directory or holds a damaged
    file.
    """
    run = RunDir.open(str(path))
    settings = run.read_values()
    try:
        rows = tuple(Row.parse(row) for row in run.read_rounds())
    except (KeyError, ValueError, TypeError):
        raise ValueError(
            f"{run.rounds} is damaged, or of another version: restore it from a copy"
        ) from None
    summary = _read_summary(run)
    refuse_own_noise(run, settings)
    ended = "failed" if summary.get("diverged") else "done"
    return Result(
        name=path.name,
        label=str(settings["method"]),
        status=ended if summary else status or "interrupted",
        reason=str(summary.get("stopped") or "") if summary else reason,
        settings=settings,
        summary=summary,
        rows=rows,
        link="" if link is None else str(link),
        transfer=transfer_seconds(read_lines(run.messages), link)
        if link and run.messages.exists()
        else None,
        start=read_start(run),
    )


CLIENTS = {
    "client": int,
    "name": str,
    "examples": int,
    "persons": int,
    "epsilon": float,
    "planned": float,
    "delta": float,
    "left": float,
    "weight": float,
    "test_rows": int,
    "accuracy": float,
    "loss": float,
}
"""Columns of clients.csv; not every run has each."""


def read_clients(run: RunDir) -> list[Record]:
    """The rows of clients.csv, None for empty cells; none in a run without it, or for a reader who
    may not open it. Raises ValueError for another file.
    """
    try:
        lines = list(
            csv.DictReader(io.StringIO(bounded.read_text(run.clients, bounded.LONGEST_TABLE)))
        )
        return [
            {
                name: (bounded.whole if CLIENTS[name] is int else CLIENTS[name])(text)
                if text
                else None
                for name, text in line.items()
            }
            for line in lines
        ]
    except (FileNotFoundError, PermissionError):
        return []
    except (KeyError, ValueError, TypeError):
        raise ValueError(f"{run.clients} is damaged: restore it from a copy") from None


def _read_summary(run: RunDir) -> Record:
    try:
        return run.read_summary()
    except FileNotFoundError:
        return {}


def results_csv(results: Iterable[Result]) -> str:
    """A header and one line for each run; cells without a value are empty."""
    return as_csv([result.as_row() for result in results], otherwise="name")


def as_csv(rows: Sequence[Mapping[str, Any]], *, otherwise: str) -> str:
    """A header and one line for each row; ``otherwise`` is the only column where there is no row.

    Columns are those of the longest row, then what other rows have in addition.
    """
    text = io.StringIO(newline="")
    longest = max(rows, key=len, default={otherwise: None})
    columns = list(dict.fromkeys(name for row in (longest, *rows) for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def refuse_own_noise(run: RunDir, settings: Summary | None = None) -> None:
    """Raise ValueError for a run that counts a client's own noise; ``settings``: those of its
    config.toml if left out.

    What it promised is false, and a mechanism of today has other shares of the noise.
    """
    if _counts_own_noise(run, run.read_values() if settings is None else settings):
        raise ValueError(
            f"{run.path} is of before version 0.1, which counted each client's own noise as "
            "protection against that client: its epsilon is too small against every client, and no "
            "command shows, continues, attacks or audits it. Start a new run; what it spent is in "
            "its ledgers"
        )


def _counts_own_noise(run: RunDir, settings: Summary) -> bool:
    trust, survivors = settings.get("trust"), int(settings.get("min_survivors") or 1)
    if survivors < 2 or trust not in ("secure", "aggregate"):
        return False
    if trust == "secure":
        return not settings.get("colluders")
    charges = run.charges
    entries = [entry for client in charges.clients() for entry in charges.of(client).entries]
    # its ledgers are gone; else a damaged summary is no reason to stop here
    if not entries and run.summary.exists():
        return "epsilon_by_reader" not in run.read_summary()
    return any(entry.private and not entry.min_survivors for entry in entries)
