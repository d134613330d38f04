"""Whether the files of a run are those that it wrote: what every command asks before it reads a run
directory.

A file that a command reads, and that changed, is refused by name. A change that does not matter to
the command is said. The manifest finds damage and edits by mistake, not forgery. Where there is no
manifest, one line says that nothing was checked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedlsg.privacy import RUN, LedgerError, check_extends, read_entries, verify_extends
from fedlsg.simulations.storage.atomic_files import DamagedError, Record, is_whole, unseal
from fedlsg.simulations.storage.journal import Mark, verify
from fedlsg.simulations.storage.last_payload import FeedbackBox, LastPayload
from fedlsg.simulations.storage.manifest import OTHERWISE, digest, is_mark, listed_files, parts_of
from fedlsg.simulations.storage.run_directory import RunDir

Say = Callable[[str], object]
"""Shows a line to the user."""
SETTINGS = "config.toml"
RESULTS = (SETTINGS, "rounds.csv", "bytes.csv", "summary.json", "ledger/*")
"""What a report, a comparison and ``load_run`` read."""
MODEL = (SETTINGS, "summary.json", "model.safetensors", "config.json")
STATE = (*RESULTS, "checkpoint/latest.pt")
"""What commands read that compute with the model of a run."""
LISTS = ("manifest.jsonl", "clients/manifest.jsonl")
RECORD = (*STATE, *LISTS, "updates/*", "updates-truth/*", "downlink/*")
"""What commands read that look at recorded payloads."""
RESUMED = (
    *LISTS,
    "ledger/*",
    "rounds.csv",
    "bytes.csv",
    "clients/training-data.json",
    "clients/client-*",
)
"""What ``fedlsg resume`` cannot go on without. It makes others again, or compares them with the
checkpoint.
"""
OUTBOX = "checkpoint/outbox/"
"""Payloads that are written over in each round: an interruption tears one, and the run that is
resumed says that it makes it again.
"""
RUN_LEDGER = f"ledger/{RUN}.jsonl"
MAY_GROW = ("run.log", "ledger/")
"""A longer one is no sign of anything."""


@dataclass(frozen=True)
class Examined:
    """``changed``: how each changed file differs from what the run wrote. ``notes``: what could not
    be checked.
    """

    changed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def refuse(self, run: RunDir, reads: Sequence[str]) -> None:
        """Raise DamagedError, naming them, if files that are read have changed."""
        wrong = {
            name: why
            for name, why in self.changed.items()
            if any(fnmatchcase(name, pattern) for pattern in reads)
        }
        if wrong:
            hint = f"; after a change of your own in {SETTINGS}, fedlsg resume compares it" * (
                SETTINGS in wrong
            )
            raise DamagedError(
                f"changed since the run: {words(run, wrong)}. Restore it from a copy, or run it "
                f"again{hint}"
            )

    def left(self, run: RunDir, *, use: str) -> list[str]:
        """A line for the changed files, which nothing relies on: they are not used ``use``."""
        changed = {name: why for name, why in self.changed.items() if not name.startswith(OUTBOX)}
        return (
            [f"changed since the run, and not used {use}: {words(run, changed)}"] if changed else []
        )


def open_run(path: str | Path, reads: Sequence[str], say: Say) -> RunDir:
    """A run directory whose files that match ``reads`` are those that the run wrote; other changes
    are said.

    Raises ValueError for a folder without a run; DamagedError, which names every changed file that
    is read.
    """
    run = RunDir.open(str(path))
    examined = examine(run)
    examined.refuse(run, reads)
    for line in (*examined.notes, *examined.left(run, use="here")):
        say(line)
    return run


def words(run: RunDir, changed: Mapping[str, str]) -> str:
    """Files with what happened to each; of many the first."""
    shown = [f"{run.path / name} ({why})" for name, why in list(changed.items())[:SHOWN]]
    more = len(changed) - len(shown)
    return ", ".join([*shown, f"and {more} more"] if more else shown)


SHOWN = 5


def examine(run: RunDir) -> Examined:
    """Compare every file with the manifest. Raises DamagedError if the manifest itself is damaged.

    Reads every file of the run once. A process that still writes the run does not disturb it.
    """
    public, secret = parts_of(run)
    examined = Examined()
    if not public.path.exists() and not run.config.exists():
        return examined  # no run: its reader says so
    if not public.path.exists():
        examined.notes.append(
            f"{public.path} is missing; whether files changed since the run was not checked"
        )
        return examined
    for part in (public, secret):
        try:
            record = unseal(part.path, otherwise=OTHERWISE)
            size = record["list"]["bytes"]
            try:
                verify(part.list.path, record["list"])
                listed = listed_files(part.list.path, size)
                if record["closed"] and size and part.list.path.stat().st_size > size:
                    raise DamagedError
            except DamagedError:
                listed = {}
                examined.changed[part.list.path.relative_to(run.path).as_posix()] = (
                    "so the files that it lists unchecked"
                )
            _compare(run, record, listed, examined)
        except (FileNotFoundError, PermissionError) as error:
            how = "is missing" if isinstance(error, FileNotFoundError) else "is another user's"
            examined.notes.append(f"{part.path} {how}; files that are not public were not checked")
    return examined


def _compare(run: RunDir, record: Record, listed: Record, found: Examined) -> None:
    claims: Record = {
        **listed,
        **dict.fromkeys(record["own"]),
        **record["files"],
        **record["final"],
    }
    for name, claim in claims.items():
        if (
            why := _digest_differs(run.path / name, claim)
            if is_mark(claim)
            else _own_differs(run, name, claim)
        ):
            found.changed[name] = why
        elif isinstance(claim, list) and _has_torn_line(run, name):
            found.notes.append(
                f"{run.path / name} has a line that is no charge, as a crash leaves one: it does "
                "not count"
            )
    for name, mark in record["grows"].items():
        path = run.path / name
        try:
            verify(path, mark)
        except DamagedError:
            found.changed[name] = _how(path, mark)
            continue
        if path.exists() and path.stat().st_size > mark["bytes"] and not name.startswith(MAY_GROW):
            if record["closed"]:
                found.changed[name] = "longer than at the end of the run"
            else:
                found.notes.append(
                    f"{path} has more than the last checkpoint knows: fedlsg resume cuts it there"
                )


def _has_torn_line(run: RunDir, name: str) -> bool:
    path = run.path / name
    if name == RUN_LEDGER:
        return path.stat().st_size > run.charges.read().size
    return len([line for line in path.read_bytes().split(b"\n") if line]) > 1 + len(
        read_entries(path)
    )


def _digest_differs(path: Path, mark: Mark) -> str | None:
    try:
        return None if digest(path) == mark else _how(path, mark)
    except PermissionError:
        return None  # a reader of another user's run
    except OSError:
        return "missing"


def _how(path: Path, mark: Mark) -> str:
    if not path.exists():
        return "missing"
    size = path.stat().st_size
    return "edited" if size == mark["bytes"] else f"{size} bytes, it had {mark['bytes']}"


def _own_differs(run: RunDir, name: str, said: Any) -> str | None:
    """Of a file with a digest of its own: damaged, or missing."""
    path = run.path / name
    try:
        if "*" in name:
            if not any(path.parent.glob(path.name)):
                return "missing"
            FeedbackBox(path.parent, int(path.parent.name.rpartition("-")[2])).check()
        elif not path.exists():
            return "missing"
        elif name == RUN_LEDGER:
            verify_extends({RUN: said}, run.ledgers)
        elif name.startswith("ledger/"):
            client = -1 if path.stem == "server" else int(path.stem.rpartition("-")[2])
            check_extends(path, client, *said)
            read_entries(path)
        elif name.startswith(OUTBOX):
            return "damaged" if LastPayload(path).damaged else None
        elif path.suffix == ".pt":
            return None if is_whole(path.read_bytes()) else "damaged"
        else:
            unseal(path, otherwise="")
    except PermissionError:
        return None
    except (LedgerError, ValueError):
        return "damaged"
    return None
