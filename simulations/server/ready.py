"""What is checked before a run begins, and before it continues: nobody was charged, and nothing is
written, until then.

A plan may be charged for when the initial model was measured, and one round has run on public rows.

A run directory is put back to its checkpoint when every file that it will read is checked. A
damaged file is refused by name, or made again; the checkpoint before replaces a damaged one. A note
says so. Of files that are not in ``READ`` only the digest is compared with the manifest: run.log,
TensorBoard's events, report.html, ledger.jsonl, updates/ and updates-truth/.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import torch
from torch import nn

from fedlsg import bounded
from fedlsg.owner_only import make_file
from fedlsg.privacy import SERVER, verify_extends
from fedlsg.randomness import own_draws
from fedlsg.simulations import workloads
from fedlsg.simulations.client.rehearsal import rehearse
from fedlsg.simulations.planning.client_noise import NO_NOISE, Noise
from fedlsg.simulations.planning.continuity import settle
from fedlsg.simulations.planning.plan import Plan, Spent, make_plan
from fedlsg.simulations.planning.run_base import Base
from fedlsg.simulations.planning.warm_start import before_start
from fedlsg.simulations.server.callbacks import Callback
from fedlsg.simulations.server.evaluate import evaluate, has_one_number, score, scores_of
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.storage.atomic_files import DamagedError, load_bytes, write_atomically
from fedlsg.simulations.storage.examined import RESUMED, SETTINGS, examine
from fedlsg.simulations.storage.journal import Journal, verify
from fedlsg.simulations.storage.last_payload import FeedbackBox, LastPayload
from fedlsg.simulations.storage.manifest import reopen
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads import LoadedWorkload, Progress, Split, silent, to_device
from fedlsg.state import different_terms
from fedlsg.strategies.own_loop.row_checks import model_outputs
from fedlsg.tensors import spaced
from fedlsg.user_code.objects import restored


def ready_plan(
    settings: Settings,
    *,
    progress: Progress = silent,
    declared: Sequence[int] | None = None,
    given: Collection[str] = (),
    loaded: LoadedWorkload | None = None,
    callbacks: Sequence[Callback] = (),
    spent: Spent | None = None,
    noise: Noise = NO_NOISE,
    began: float | None = None,
) -> Plan:
    """``make_plan``, and what is checked on it: nobody was charged, and nothing is written.

    ``began``: as in ``Plan``; by default now.
    Raises ValueError as ``make_plan``, ``check_evaluation``, ``rehearse`` and the ``on_plan`` of
    ``callbacks``.
    """
    began = time.monotonic() if began is None else began
    if spent is None and settings.start_from is not None:
        spent = before_start
    plan = make_plan(
        settings,
        progress=progress,
        declared=declared,
        given=given,
        loaded=loaded,
        spent=spent,
        noise=noise,
    )
    for callback in callbacks:
        callback.on_plan(plan.workload.directions)
    progress("a round on public rows")
    rehearse(plan, max(different_terms(plan.terms), key=lambda terms: terms.num_examples))
    if workloads.own(plan.settings.workload) is not None:
        progress("measuring the initial model")
        plan = replace(plan, notes=check_evaluation(plan))
    return replace(plan, began=began)


@torch.no_grad()
def check_evaluation(base: Base) -> tuple[str, ...]:
    """Measure the initial model on the whole test split, as after each round; returns a note for
    each metric that is no finite number. Raises ValueError, naming the row.

    All that an evaluation needs is found before round 1: rows that the model cannot take, a loss
    that is not finite, metrics that fail, fewer outputs than classes.
    """
    workload, model = base.workload, base.initial.model()
    own = workloads.own(base.settings.workload)
    with restored(workload.loss, dict(workload.metrics)), own_draws(base.device):
        for name, split in workload.tests.items():
            try:
                found = evaluate(
                    model, split, loss=workload.loss, classes=False, device=base.device
                ).loss
                failure = None if math.isfinite(found) else f"its loss is {found}"
            except Exception as error:
                failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if failure is not None:
                raise ValueError(
                    f"the initial model cannot be measured on {name}{_where(model, split, base)}: "
                    f"{failure}"
                )
            _check_outputs(model, split, base, None if own is None else own.num_classes)
        measured = score(model, workload, device=base.device).metrics
    return tuple(
        f"metric {name!r} of the initial model is {value}: rounds in which it is no finite number "
        "are no improvement for early-stopping, and best-model keeps none of them"
        for name, value in measured.items()
        if not math.isfinite(value)
    )


def _where(model: nn.Module, split: Split, base: Base) -> str:
    """ " row N", the first that fails alone; empty if none does."""
    for row in range(len(split)):
        try:
            one = split.pick(torch.tensor([row]))
            found = evaluate(model, one, loss=base.workload.loss, classes=False, device=base.device)
        except Exception:
            return f" row {row}"
        if not math.isfinite(found.loss):
            return f" row {row}"
    return ""


def _check_outputs(model: nn.Module, split: Split, base: Base, given: int | None) -> None:
    """Raise ValueError for outputs from which no class follows.

    They are (B, K) with as many numbers as classes, or more where K was not given; or one number
    for two classes.
    """
    classes = base.workload.num_classes
    if classes is None:
        return
    inputs = to_device(split.batch(spaced(len(split), 2))[0], base.device)
    outputs = scores_of(model_outputs(model.eval(), inputs))
    if outputs.ndim != 2 and not has_one_number(outputs):
        raise ValueError(
            f"the model gives outputs of shape {(*outputs.shape[1:],)} for each example, and "
            "accuracy needs one score for each class: give the model outputs (examples, classes), "
            "first where it returns several"
        )
    found = outputs[0].numel()
    enough = classes <= 2 if found == 1 else found >= classes
    if not enough or (given is not None and found != given and not (found == 1 and given == 2)):
        source = "num_classes" if given is not None else "the largest target of test is one less"
        raise ValueError(
            f"the model gives {found} number{'s' * (found > 1)} for each example, and there are "
            f"{classes} classes ({source}): "
            "give the model as many outputs as classes, or targets that are no classes as floats"
        )


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
    found = examine(run)
    state, note = run.resume_point()
    settle(run, state)
    _check_complete(run, state["plan"]["settings"])
    notes = [*found.notes, *([] if note is None else [note])]
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
    found.refuse(run, RESUMED)
    if found.changed.pop(SETTINGS, None):
        notes.append(
            f"{run.config} changed since the run: its settings are compared with those of the "
            "checkpoint"
        )
    notes += [*_damaged_files(run), *found.left(run, use="as it is")]
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
    notes = [f"{path} is damaged: its payload is made again, as another attempt" for path in outbox]
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
