"""A run directory is put back to its checkpoint before a run continues, when every file that it
will read is checked.

A damaged file is refused by name, or made again; the checkpoint before replaces a damaged one. A
note says so. Of files that are not in ``READ`` only the digest is compared with the manifest:
run.log, TensorBoard's events, report.html, ledger.jsonl, updates/ and updates-truth/.
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
from fedlsg.simulations.storage.journal import Journal, verify
from fedlsg.simulations.storage.last_payload import FeedbackBox, LastPayload
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
"""Files of a run directory that ``fedlsg resume`` reads. Each has its own digest, or the checkpoint
has it; except ``config.toml`` and ``.lock``, see there."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The checkpoint to continue from, and what was repaired, a sentence each."""

    state: dict[str, Any]
    notes: tuple[str, ...]


def restore(run: RunDir) -> Restored:
    """Check the files of a run, then cut or replace what does not belong to the checkpoint; notes
    are also in run.log.

    Raises ValueError, naming the file, if a damaged file cannot be replaced; no file is changed
    then.
    """
    examined = examine(run)
    state, note = run.resume_point()
    settle(run, state)
    _check_complete(run, state["plan"]["settings"])
    notes = [*examined.notes, *([] if note is None else [note])]
    verify_extends(state["ledgers"], run.ledgers)
    ledger = run.charges
    for client in [*ledger.clients(), SERVER]:
        ledger.of(client).next_attempt(0)  # reads it: also ledgers that began after the checkpoint
    tables = ((run.rounds, state["rounds"]), (run.messages, state["messages"]))
    for path, mark in tables:
        verify(path, mark)
    run.read_sent()
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
    notes += [*_damaged_files(run), *examined.left(run, use="as it is")]
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
    """Raise DamagedError for a config.toml that lacks settings of the run: what is missing would
    become a default.

    What it has is compared with the checkpoint in ``check_unchanged``: some settings may change
    midway.
    """
    try:
        given = bounded.read_toml(run.config)
    except (OSError, ValueError):
        given = {}
    lost = sorted(name for name in settings if name not in given and name != "run-dir")
    if lost and run.config.exists():
        raise DamagedError(
            f"{run.config} lacks {len(lost)} settings that the run began with "
            f"({', '.join(lost[:3])}, ...): it was cut or edited; restore it from a copy. The "
            "checkpoint has the settings, and compares those that are there"
        )


def _damaged_files(run: RunDir) -> list[str]:
    """A note for each damaged file that the run can continue without."""
    outbox = [
        path
        for path in sorted(run.last_payload(0).parent.glob("client-*.bin"))
        if LastPayload(path).damaged
    ]
    notes = [
        f"{path} was cut off when the run ended: its payload is made again, as another attempt"
        for path in outbox
    ]
    steps = [
        path
        for path in sorted(run.steps.glob("step-*.bin"))
        if _is_damaged(partial(load_bytes, path))
    ]
    notes += [f"{path} is damaged: clients that need it are sent the whole model" for path in steps]
    return (
        [*notes, f"{run.summary} is damaged: it is written again"]
        if _is_damaged(run.read_summary)
        else notes
    )


def _is_damaged(read: Callable[[], object]) -> bool:
    """Whether a reader finds its file, and finds it damaged."""
    try:
        read()
    except FileNotFoundError:
        return False
    except ValueError:
        return True
    return False


def _go_back(run: RunDir, boxes: list[FeedbackBox], round: int) -> None:
    """Replace the last checkpoint by the one before, and keep it as damaged.pt; clients forget
    later rounds.

    Resending is free for clients whose stored payload is of the round after that checkpoint.
    """
    if run.checkpoint.exists():
        run.checkpoint.replace(run.checkpoint.with_name("damaged.pt"))
    write_atomically(run.checkpoint, run.previous.read_bytes())
    for box in boxes:
        box.forget_after(round + 1)


def _log(run: RunDir, text: str) -> None:
    make_file(run.log)
    with run.log.open("a") as file:
        file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S},000 WARNING {text}\n")
