"""One client's part of a round: derive the frame, train privately, charge the ledger, pack.

Order, which the privacy claim rests on: the batch is drawn and clipped, the ledger is charged and fsynced, noise is
drawn, the payload is stored, and only then does anything leave. A payload that was stored is sent again for free.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import RecordDict
from torch import Tensor, nn
from torch.nn import functional as F

from fedlsg.carriers import carried_parameters
from fedlsg.frame import Frame
from fedlsg.ledger import Entry, Ledger, LedgerError
from fedlsg.method import client_step, make_frame
from fedlsg.payload import pack
from fedlsg.persample import trainable
from fedlsg.privatize import Mechanism
from fedlsg.randomness import SecretStream, public_generator, reproducible_stream, secret_stream
from simulations.outbox import Outbox
from simulations.plan import Base, prepare
from simulations.rundir import RunDir
from simulations.settings import Settings
from strategies.state import load_weights
from strategies.strategy import ClientTerms
from strategies.wire import Announcement, read_announcement, read_frame


class FrameDiffersError(RuntimeError):
    """This machine derives another frame than the server; it must be sent. Nothing was trained or charged."""


class OverBudgetError(RuntimeError):
    """The next round would pass this client's privacy budget. Nothing was trained or charged."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Process:
    """What one process keeps between messages: public data structures only, no client's state."""

    base: Base
    model: nn.Module
    initial: dict[str, Tensor]
    carried: tuple[str, ...]


@lru_cache(maxsize=2)
def process(settings: Settings) -> Process:
    """Data, initial model and W_0, built once a process."""
    torch.set_num_threads(settings.threads)
    base = prepare(settings)
    model = base.build_model()
    carried = carried_parameters(model, base.method.carrier, classifier=base.workload.classifier)
    initial = {name: p.detach().clone() for name, p in trainable(model).items() if name in carried}
    return Process(base=base, model=model, initial=initial, carried=carried)


def answer(settings: Settings, partition: int, content: RecordDict) -> bytes:
    """The payload that ``partition`` sends for an announcement.

    Raises FrameDiffersError, OverBudgetError, or whatever training raised.
    """
    here = process(settings)
    weights, announced = read_announcement(content)
    load_weights(here.model, weights)
    frame = _frame(here, announced, content)
    run = run_directory(settings, announced)
    ledger = Ledger(run.ledger(partition), client=partition)
    outbox = Outbox(run.outbox(partition))
    question = hashlib.sha256(weights.numpy().tobytes() + announced.frame_digest).hexdigest()
    question = f"{announced.round}/{announced.updates}/{here.base.settings.codec}/{question}"
    stored = outbox.find(question)
    if stored is not None:
        if not any(entry.round == announced.round for entry in ledger.entries):
            raise LedgerError(f"{ledger.path} lost the entry of round {announced.round}, whose payload is stored")
        return stored
    values = _train(here, run, ledger, announced, frame)
    payload = pack(
        values,
        frame.indices,
        size=frame.size,
        round=announced.round,
        digest=announced.frame_digest,
        codec=here.base.settings.codec,
        index_mode=here.base.settings.indices,
    )
    outbox.store(question, payload)
    return payload


def _frame(here: Process, announced: Announcement, content: RecordDict) -> Frame:
    frame = make_frame(
        here.base.method,
        {name: p.detach() for name, p in trainable(here.model).items()},
        here.initial,
        carried=here.carried,
        round=announced.round,
        updates=announced.updates,
        schedule=here.base.schedule,
        seed=here.base.settings.seed,
    )
    if frame.digest != announced.frame_digest:
        sent = read_frame(content, frame)
        if sent is None or sent.digest != announced.frame_digest:
            raise FrameDiffersError("the frame derived here has another digest than the announced one")
        return sent
    return frame


def run_directory(settings: Settings, announced: Announcement) -> RunDir:
    """Where this client keeps its ledger: its own setting, else the first place that it was told.

    A server that names another place later would hand out a fresh budget: ValueError.
    """
    own = _DIRECTORIES.setdefault(settings, settings.run_dir or announced.run_dir)
    if Path(own).resolve() != Path(announced.run_dir).resolve():
        raise ValueError(f"the server names the run directory {announced.run_dir}, this client's ledger lies in {own}")
    return RunDir(Path(own).resolve())


_DIRECTORIES: dict[Settings, str] = {}


def _train(here: Process, run: RunDir, ledger: Ledger, announced: Announcement, frame: Frame) -> Tensor:
    base, s, partition = here.base, here.base.settings, ledger.client
    terms = ClientTerms(
        num_examples=base.sizes[partition],
        sample_rate=announced.sample_rate,
        noise_multiplier=announced.noise_multiplier,
    )
    mechanism = terms.mechanism(base.method.mechanism)
    entry = _entry(base, mechanism, terms, partition, announced.round, ledger, frame)
    _check_budget(s, mechanism, ledger, entry)
    drawn: list[Tensor] = []

    def batch(positions: Tensor) -> tuple[Tensor, Tensor]:
        rows = base.parts[partition][positions]
        drawn.append(rows)
        inputs, targets = base.workload.train.batch(rows)
        return inputs.to(s.device), targets.to(s.device)

    def charge() -> None:
        # A reproducible attempt draws the same bits again: the same release, charged once.
        if not (s.reproducible and any(replace(e, attempt=entry.attempt) == entry for e in ledger.entries)):
            ledger.charge(entry)

    with torch.random.fork_rng(devices=[] if s.device == "cpu" else None):
        # Dropout, where a model has it, draws from torch's own generator: the same on every engine.
        torch.manual_seed(public_generator(s.seed, "dropout", partition, announced.round).initial_seed())
        values = client_step(
            here.model,
            batch,
            lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
            frame=frame,
            mechanism=mechanism,
            local=base.local.at_rate(announced.sample_rate),
            num_examples=terms.num_examples,
            sampler=_stream(s, "sampler", partition, announced.round),
            noise=_stream(s, "noise", partition, announced.round),
            charge=charge,
        )
    if s.record_updates:
        run.save_truth(announced.round, partition, torch.cat(drawn))
    return values


def _stream(s: Settings, purpose: str, partition: int, round: int) -> SecretStream:
    return reproducible_stream(s.seed, purpose, partition, round) if s.reproducible else secret_stream()


def _entry(
    base: Base, mechanism: Mechanism, terms: ClientTerms, partition: int, round: int, ledger: Ledger, frame: Frame
) -> Entry:
    return Entry(
        client=partition,
        round=round,
        attempt=ledger.next_attempt(round),
        steps=base.local.steps,
        sample_rate=terms.sample_rate,
        noise_multiplier=mechanism.effective_noise_multiplier(len(frame.blocks)),
        clip_norm=mechanism.clip_norm,
        num_examples=terms.num_examples,
        mechanism=mechanism.kind,
        reproducible=base.settings.reproducible,
    )


def _check_budget(s: Settings, mechanism: Mechanism, ledger: Ledger, entry: Entry) -> None:
    if not mechanism.private or s.epsilon is None or s.reproducible:
        return
    assert s.delta is not None
    if ledger.would_exceed(entry, s.epsilon, s.delta):
        raise OverBudgetError(f"round {entry.round} would pass the privacy budget epsilon={s.epsilon} of this client")
