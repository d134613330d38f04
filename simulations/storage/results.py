"""The result of a run directory, finished, interrupted or failed; a row of ``results.csv``.

Runs of before version 0.1 are refused if they counted a client's own noise as protection against
that client. With trust=secure and colluders=0, or with trust=aggregate, each client added
1 / sqrt(m) of the noise; m is the minimum number of clients in a sum. Such an epsilon holds for a
reader outside of the sum. A client of the sum knows its own share, so only m - 1 shares protect
others from it.
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
from fedlsg.simulations.storage.messages.byte_lines import read_lines
from fedlsg.simulations.storage.messages.links import Link, transfer_seconds
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.start_record import read_start
from fedlsg.simulations.workloads.base.split import Chance

Summary = Mapping[str, Any]
"""The entries of summary.json by name; or settings by their names."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run.

    name: of its directory.
    label: its method, or the name that a grid gives a variant of one.
    status: "done", "interrupted", "failed" or "not run"; only runs that are done enter a mean.
    reason: why it stopped early or failed; empty otherwise.
    settings: by field name; resolved if the run began, else as they were given.
    summary: summary.json; empty until the run is done.
    rows: finished rounds.
    group: equal for runs that differ only in their seed.
    detail: an explanation of the label, if it needs one.
    varied: the settings that its comparison varies, with their values.
    link: the link for ``transfer``; empty without one.
    transfer: seconds that its messages would take on ``link``; None without a link, or if the run
        did not count messages.
    start: start.json; empty for a run without it.
    code: names of a user's own code in the run; empty if all code is fedlsg's.
    versions: "version 1", "version 2" of its contents, such as training_rows, where compared runs
        of equal settings were made from different ones.
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
    versions: Summary = field(default_factory=dict)

    @property
    def method(self) -> str:
        return str(self.settings.get("method", "lsg"))

    @property
    def done(self) -> bool:
        return self.status == "done"

    @property
    def private(self) -> bool:
        """Whether its summary claims privacy; a run that is not done claims none."""
        return bool(self.summary.get("private", False))

    @property
    def deployed(self) -> bool:
        """Whether it is a run of a deployment: its config.toml names its own folder."""
        return self.settings.get("engine") == "flower" and bool(self.settings.get("run_dir"))

    @property
    def held_out(self) -> bool:
        """Whether its accuracies are of held-out training rows instead of public rows."""
        return self.settings.get("holdout") is not None and self.settings.get("public_rows") is None

    @property
    def noisy(self) -> bool:
        """Whether the run was to add noise, so that its epsilon target means something."""
        known = self.method in strategies.names()
        default = strategies.default_mechanism(self.method) if known else "dp"
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
        """Against a reader of the weights alone; None if the summary does not have it."""
        epsilon = self.summary.get("epsilon_by_reader", {}).get("outside")
        return None if epsilon is None else float(epsilon)

    @property
    def accuracy(self) -> float | None:
        """On the public test split: final, or the last one so far; None without classes."""
        if self.summary:
            accuracy = self.summary["accuracy"]
            return None if accuracy is None else float(accuracy)
        return next((row.accuracy for row in reversed(self.rows) if row.accuracy is not None), None)

    @property
    def chance(self) -> Chance | None:
        """The accuracy of guessing; None for a run that is not done, or without classes."""
        chance = self.summary.get("chance")
        return None if chance is None else Chance(**chance)

    @property
    def messages(self) -> int:
        """Number of payloads that arrived, over all clients and rounds."""
        return sum(row.uplink_messages for row in self.rows)

    @property
    def saved(self) -> float | None:
        """Bytes of dense updates divided by the bytes that were sent up; None if not released."""
        uplink_bytes = self.summary.get("uplink_bytes", 0)  # trust=server does not release them
        return self.summary["uplink_bytes_dense"] / uplink_bytes if uplink_bytes else None

    def as_row(self) -> Record:
        """The run's line of results.csv by column; None for an empty cell."""
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
    """The result of a run directory.

    A run with a summary is "done", or "failed" if it diverged.

    status, reason: of a run without a summary; it is "interrupted" if they are left out.

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
    if summary:
        status = "failed" if summary.get("diverged") else "done"
        reason = str(summary.get("stopped") or "")
    transfer = None
    if link and run.messages.exists():
        transfer = transfer_seconds(read_lines(run.messages), link)
    return Result(
        name=path.name,
        label=str(settings["method"]),
        status=status or "interrupted",
        reason=reason,
        settings=settings,
        summary=summary,
        rows=rows,
        link="" if link is None else str(link),
        transfer=transfer,
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
"""Types of the columns of clients.csv; not every run has each column."""


def read_clients(run: RunDir) -> list[Record]:
    """The rows of clients.csv, None for empty cells.

    No rows in a run without the file, or for a reader who may not open it. Raises ValueError for
    another file.
    """
    try:
        text = bounded.read_text(run.clients, bounded.LONGEST_TABLE)
        return [
            {name: _parse_cell(name, cell) for name, cell in line.items()}
            for line in csv.DictReader(io.StringIO(text))
        ]
    except (FileNotFoundError, PermissionError):
        return []
    except (KeyError, ValueError, TypeError):
        raise ValueError(f"{run.clients} is damaged: restore it from a copy") from None


def _parse_cell(column: str, text: str) -> Any:
    """A cell of clients.csv; KeyError for an unknown column."""
    kind = CLIENTS[column]
    if not text:
        return None
    return bounded.whole(text) if kind is int else kind(text)


def _read_summary(run: RunDir) -> Record:
    try:
        return run.read_summary()
    except FileNotFoundError:
        return {}


def results_csv(results: Iterable[Result]) -> str:
    """A header and one line for each run; cells without a value are empty."""
    return as_csv([result.as_row() for result in results], otherwise="name")


def as_csv(rows: Sequence[Mapping[str, Any]], *, otherwise: str) -> str:
    """A header and one line for each row; without rows the header is ``otherwise``.

    Columns are those of the longest row, then those that only other rows have.
    """
    text = io.StringIO(newline="")
    longest = max(rows, key=len, default={otherwise: None})
    columns = list(dict.fromkeys(name for row in (longest, *rows) for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def refuse_own_noise(run: RunDir, settings: Summary | None = None) -> None:
    """Raise ValueError for a run that counts a client's own noise; its epsilon is too small.

    ``settings``: of its config.toml, which is read if they are left out.
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
    # the summary is read only if the ledgers are gone: a damaged one is reported elsewhere
    if not entries and run.summary.exists():
        return "epsilon_by_reader" not in run.read_summary()
    return any(entry.private and not entry.min_survivors for entry in entries)
