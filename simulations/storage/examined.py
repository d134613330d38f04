"""The check of a run's files, before a command reads them: whether they are as the run wrote them.

A command refuses a changed file that it reads, by name. Other changes are reported in a line. The
manifest finds damage and edits by mistake, not forgery. Without a manifest one line says that
nothing was checked.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedlsg.privacy import RUN, SERVER, LedgerError, check_extends, read_entries, verify_extends
from fedlsg.simulations.storage.atomic_files import DamagedError, Record, is_whole, unseal
from fedlsg.simulations.storage.feedback_box import FeedbackBox
from fedlsg.simulations.storage.journal import Mark, verify
from fedlsg.simulations.storage.last_payload import LastPayload
from fedlsg.simulations.storage.manifest import (
    OTHERWISE,
    Part,
    digest,
    is_mark,
    listed_files,
    parts_of,
)
from fedlsg.simulations.storage.run_directory import RunDir

Say = Callable[[str], object]
"""Shows a line to the user."""
SETTINGS = "config.toml"
RESULTS = (SETTINGS, "rounds.csv", "bytes.csv", "summary.json", "ledger/*")
"""What a report, a comparison and ``load_run`` read."""
MODEL = (SETTINGS, "summary.json", "model.safetensors", "config.json")
"""What commands read that need only the final model."""
STATE = (*RESULTS, "checkpoint/latest.pt")
"""What commands read that compute with the state of a run."""
LISTS = ("manifest.jsonl", "clients/manifest.jsonl")
"""The lists of both manifests, a line for each round."""
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
"""Files that must not have changed for ``fedlsg resume``.

It makes other files again, or compares them with the checkpoint.
"""
OUTBOX = "checkpoint/outbox/"
"""Folder of payloads that each round overwrites. An interruption may damage one of them; a resumed
run reports that it makes it again.
"""
RUN_LEDGER = f"ledger/{RUN}.jsonl"
MAY_GROW = ("run.log", "ledger/")
"""Files that may be longer than in the manifest without being reported."""
SHOWN = 5
"""Changed files that a message names."""


@dataclass(frozen=True)
class Examined:
    """The result of a check.

    changed: how each file that differs does so, by its path in the run directory.
    notes: sentences about what could not be checked, or does not matter.
    """

    changed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def refuse(self, run: RunDir, reads: Sequence[str]) -> None:
        """Raise DamagedError, naming them, if files that are read have changed."""
        wrong = {
            name: difference
            for name, difference in self.changed.items()
            if any(fnmatchcase(name, pattern) for pattern in reads)
        }
        if wrong:
            hint = ""
            if SETTINGS in wrong:
                hint = f"; after a change of your own in {SETTINGS}, fedlsg resume compares it"
            raise DamagedError(
                f"changed since the run: {words(run, wrong)}. Restore it from a copy, or run it "
                f"again{hint}"
            )

    def unused_changes(self, run: RunDir, *, where: str) -> list[str]:
        """A line that names the changed files as not used ``where`` ("here"), if there are any."""
        changed = {
            name: difference
            for name, difference in self.changed.items()
            if not name.startswith(OUTBOX)
        }
        if not changed:
            return []
        return [f"changed since the run, and not used {where}: {words(run, changed)}"]


def open_run(path: str | Path, reads: Sequence[str], say: Say) -> RunDir:
    """Open a run directory after a check of its files; ``say`` reports changes that do not matter.

    Raises ValueError for a folder without a run; DamagedError, which names them, if files changed
    that match a pattern in ``reads``.
    """
    run = RunDir.open(str(path))
    examined = examine(run)
    examined.refuse(run, reads)
    for line in (*examined.notes, *examined.unused_changes(run, where="here")):
        say(line)
    return run


def words(run: RunDir, changed: Mapping[str, str]) -> str:
    """The first changed files, each with how it differs, and the number of the others."""
    shown = [f"{run.path / name} ({how})" for name, how in list(changed.items())[:SHOWN]]
    more = len(changed) - len(shown)
    return ", ".join([*shown, f"and {more} more"] if more else shown)


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
            listed = _read_list(run, part, record, examined)
        except (FileNotFoundError, PermissionError) as error:
            why = "is missing" if isinstance(error, FileNotFoundError) else "is another user's"
            examined.notes.append(f"{part.path} {why}; the files that it lists were not checked")
            continue
        _compare_files(run, record, listed, examined)
        _compare_growing(run, record, examined)
    return examined


def _read_list(run: RunDir, part: Part, record: Record, examined: Examined) -> Record:
    """The files in the list of a manifest; none, and a change, if the list is damaged."""
    size = record["list"]["bytes"]
    try:
        verify(part.list.path, record["list"])
        listed = listed_files(part.list.path, size)
        if record["closed"] and size and part.list.path.stat().st_size > size:
            raise DamagedError
    except DamagedError:
        name = part.list.path.relative_to(run.path).as_posix()
        examined.changed[name] = "damaged, so the files that it lists were not checked"
        return {}
    return listed


def _compare_files(run: RunDir, record: Record, listed: Record, examined: Examined) -> None:
    """Compare the files that do not grow, and the ledgers, with a manifest and its list.

    A claim about a file is its mark, or the end of a ledger (a list), or None if the file has a
    digest of its own. The last claim holds.
    """
    claims: Record = {
        **listed,
        **dict.fromkeys(record["own"]),
        **record["files"],
        **record["final"],
    }
    for name, claim in claims.items():
        if is_mark(claim):
            difference = _digest_differs(run.path / name, claim)
        else:
            difference = _own_differs(run, name, claim)
        if difference:
            examined.changed[name] = difference
        elif isinstance(claim, list) and _has_torn_line(run, name):
            examined.notes.append(
                f"{run.path / name} has a line that is no charge, as a crash leaves one: it does "
                "not count"
            )


def _compare_growing(run: RunDir, record: Record, examined: Examined) -> None:
    """Compare the files that grow, and that this user may read, up to their marks."""
    for name, mark in record["grows"].items():
        path = run.path / name
        try:
            verify(path, mark)
        except DamagedError:
            examined.changed[name] = _difference(path, mark)
            continue
        except PermissionError:
            continue
        if path.exists() and path.stat().st_size > mark["bytes"] and not name.startswith(MAY_GROW):
            if record["closed"]:
                examined.changed[name] = "longer than at the end of the run"
            else:
                examined.notes.append(
                    f"{path} has more than the last checkpoint knows: fedlsg resume cuts it there"
                )


def _has_torn_line(run: RunDir, name: str) -> bool:
    """Whether a ledger has a line that is no charge, as a crash leaves it."""
    path = run.path / name
    if not os.access(path, os.R_OK):
        return False
    if name == RUN_LEDGER:
        return path.stat().st_size > run.charges.read().size
    lines = [line for line in path.read_bytes().split(b"\n") if line]
    return len(lines) > 1 + len(read_entries(path))  # the first line is the header


def _digest_differs(path: Path, mark: Mark) -> str | None:
    """How a file differs from its digest; None if it does not, or this user may not read it."""
    try:
        return None if digest(path) == mark else _difference(path, mark)
    except PermissionError:
        return None
    except OSError:
        return "missing"


def _difference(path: Path, mark: Mark) -> str:
    """How a file differs from its mark, in words."""
    if not path.exists():
        return "missing"
    size = path.stat().st_size
    return "edited" if size == mark["bytes"] else f"{size} bytes, it had {mark['bytes']}"


def _own_differs(run: RunDir, name: str, claim: Any) -> str | None:
    """How a file with a digest of its own differs: "damaged" or "missing"; None if it does not, or
    this user may not read it.

    name: a path in the run directory, or a pattern for a client's payloads with memories.
    claim: the end of a ledger; None for other files.
    """
    path = run.path / name
    if not (any(path.parent.glob(path.name)) if "*" in name else path.exists()):
        return "missing"
    try:
        if "*" in name:
            FeedbackBox(path.parent, _client_of(path.parent.name)).check()
        elif name == RUN_LEDGER:
            verify_extends({RUN: claim}, run.ledgers)
        elif name.startswith("ledger/"):
            check_extends(path, SERVER if path.stem == "server" else _client_of(path.stem), *claim)
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


def _client_of(name: str) -> int:
    """The number of a client in the name of its file or folder, client-000001."""
    return int(name.rpartition("-")[2])
