"""Before a run continues: check every file that it will read, and go back to its checkpoint.

A damaged file is refused by name, or made again; the checkpoint before replaces a damaged one. A
note reports it. Files that are not in ``READ`` are only compared with the manifest: run.log,
TensorBoard's events, report.html, ledger.jsonl, updates/ and updates-truth/.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from fedlsg import bounded
from fedlsg.owner_only import make_file
from fedlsg.privacy import SERVER, verify_extends
from fedlsg.simulations.planning.earlier_runs.continuity import settle
from fedlsg.simulations.storage.atomic_files import DamagedError, load_bytes, write_atomically
from fedlsg.simulations.storage.examined import RESUMED, SETTINGS, examine
from fedlsg.simulations.storage.feedback_box import FeedbackBox
from fedlsg.simulations.storage.journal import Journal, verify
from fedlsg.simulations.storage.last_payload import LastPayload
from fedlsg.simulations.storage.manifest import reopen
from fedlsg.simulations.storage.run_directory import RunDir

READ = (
    "config.toml",  # compared with the settings in the checkpoint (check_unchanged)
    "checkpoint/latest.pt",
    "checkpoint/previous.pt",
    "checkpoint/sent.json",
    "checkpoint/outbox/client-*.bin",
    "ledger/run.jsonl",
    "ledger/client-*.jsonl",
    "ledger/server.jsonl",
    "rounds.csv",  # the checkpoint has the digest of both tables
    "bytes.csv",
    "downlink/step-*.bin",
    "downlink/basis-*.bin",  # a client without it is sent it
    "replicas/client-*.bin",
    "replicas/basis-*.bin",
    "clients/training-data.json",
    "clients/client-*/feedback-*.bin",
    "summary.json",
    ".lock",  # the id of the process that uses the directory; no run depends on it
)
"""Files of a run directory that ``fedlsg resume`` reads.

Each has a digest of its own, or the checkpoint has it; except ``config.toml`` and ``.lock``."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A run directory that is ready to continue.

    state: the content of the checkpoint.
    notes: what was repaired or could not be checked, a sentence each.
    """

    state: dict[str, Any]
    notes: tuple[str, ...]


def restore(run: RunDir) -> Restored:
    """Check the files of a run, then cut or replace what does not belong to the checkpoint.

    Notes are written to run.log, too. Raises ValueError, naming the file, if a damaged file cannot
    be replaced; no file is changed then.
    """
    examined = examine(run)
    state, note = run.resume_point()
    settle(run, state)
    _check_complete(run, state["plan"]["settings"])
    notes = [*examined.notes, *([] if note is None else [note])]
    verify_extends(state["ledgers"], run.ledgers)
    ledger = run.charges
    for client in [*ledger.clients(), SERVER]:
        ledger.of(client).next_attempt(0)  # reads the ledger, and raises LedgerError for damage
    tables = ((run.rounds, state["rounds"]), (run.messages, state["messages"]))
    for path, mark in tables:
        verify(path, mark)
    run.read_sent()  # raises DamagedError
    folders = sorted(run.own(0).parent.glob("client-*"))
    boxes = [FeedbackBox(folder, int(folder.name.rpartition("-")[2])) for folder in folders]
    for box in boxes:
        box.check()
    examined.refuse(run, RESUMED)
    if examined.changed.pop(SETTINGS, None):
        notes.append(
            f"{run.config} changed since the run: its settings are compared with those of the "
            "checkpoint"
        )
    notes += [*_damaged_files(run), *examined.unused_changes(run, where="as it is")]
    if note is not None:
        _go_back(run, boxes, int(state["server"]["round"]))
    if _is_damaged(run.read_summary):
        run.summary.unlink()
    round = int(state["server"]["round"])
    if round < state["plan"]["settings"]["rounds"] or not run.summary.exists():
        reopen(run, round, state)
    for path, mark in tables:  # before the engine starts: its display shows new rows
        Journal(path, "").cut(mark)
    for text in notes:
        _log(run, text)
    return Restored(state=state, notes=tuple(notes))


def _check_complete(run: RunDir, settings: Mapping[str, Any]) -> None:
    """Raise DamagedError for a config.toml that lacks settings of the run.

    A missing setting would become a default. The others are compared with the checkpoint in
    ``check_unchanged``: some may change midway.
    """
    try:
        config = bounded.read_toml(run.config)
    except (OSError, ValueError):
        config = {}
    missing = sorted(name for name in settings if name not in config and name != "run-dir")
    if missing and run.config.exists():
        raise DamagedError(
            f"{run.config} lacks {len(missing)} settings that the run began with "
            f"({', '.join(missing[:3])}, ...): it was cut or edited; restore it from a copy. Only "
            "the settings in it are compared with the checkpoint"
        )


def _damaged_files(run: RunDir) -> list[str]:
    """A note for each damaged file that the run can continue without."""
    notes = []
    for path in sorted(run.last_payload(0).parent.glob("client-*.bin")):
        if LastPayload(path).damaged:
            notes.append(
                f"{path} was cut off when the run ended: its payload is made again, as another "
                "attempt"
            )
    for path in sorted(run.steps.glob("step-*.bin")):
        if _is_damaged(partial(load_bytes, path)):
            notes.append(f"{path} is damaged: clients that need it are sent the whole model")
    if _is_damaged(run.read_summary):
        notes.append(f"{run.summary} is damaged: it is written again")
    return notes


def _is_damaged(read: Callable[[], object]) -> bool:
    """Whether a file exists and is damaged: its reader raises ValueError."""
    try:
        read()
    except FileNotFoundError:
        return False
    except ValueError:
        return True
    return False


def _go_back(run: RunDir, boxes: list[FeedbackBox], round: int) -> None:
    """Replace the last checkpoint by the one before it, of ``round``; keep it as damaged.pt.

    Clients keep the payload of the next round, which they can send again without a new charge.
    """
    if run.checkpoint.exists():
        run.checkpoint.replace(run.checkpoint.with_name("damaged.pt"))
    write_atomically(run.checkpoint, run.previous.read_bytes())
    for box in boxes:
        box.forget_after(round + 1)


def _log(run: RunDir, text: str) -> None:
    """Append a line to run.log, in the form of its other lines."""
    make_file(run.log)
    with run.log.open("a") as file:
        file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S},000 WARNING {text}\n")
