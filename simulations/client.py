"""One client's part of a round: derive the frame, train privately, charge the ledger, pack.

Order, which the privacy claim rests on: the batch is drawn and clipped, the ledger is charged and fsynced, noise is
drawn, the payload is stored, and only then does anything leave. A payload that was stored is sent again for free. (One
without noise is not stored: nothing is claimed of it, and it may be made anew.)
"""

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from flwr.app import RecordDict
from torch import Tensor, nn
from torch.nn import functional as F

from fedlsg.adapters import frozen_bases
from fedlsg.carriers import carried_parameters, find_classifier
from fedlsg.frame import Frame
from fedlsg.ledger import Entry, Ledger, LedgerError
from fedlsg.method import LocalTraining, client_step, initial_needed, make_frame
from fedlsg.privatize import Mechanism
from fedlsg.randomness import SecretStream, public_generator, reproducible_stream, secret_stream
from fedlsg.snip import pruning_mechanism, saliency_frame, saliency_scale
from fedlsg.supported import Checked, check, trainable
from simulations import freed_memory
from simulations.batches import batches, groups
from simulations.plan import Base, prepare
from simulations.replica import Replica
from simulations.rundir import RunDir, own_directory
from simulations.sending import open_box, send
from simulations.settings import Settings
from strategies.state import load_weights
from strategies.strategy import ClientTerms
from strategies.wire import Announcement, flat_bytes, read_frame, read_kept, read_round, read_weights


class FrameDiffersError(RuntimeError):
    """This machine derives another frame than the server; it must be sent. Nothing was trained or charged."""


class OverBudgetError(RuntimeError):
    """The next round would pass this client's privacy budget. Nothing was trained or charged."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded:
    """What is the same for all clients of a round: its weights as they came, their digest, the frame, and the model's
    parameters as they were checked against it.
    """

    weights: bytes
    digest: bytes
    version: tuple[int, int, bytes]
    frame: Frame
    parameters: Checked


@dataclass(kw_only=True, eq=False)
class Process:
    """What one process keeps between messages: public data structures only, no client's state.

    ``model`` holds the weights of ``loaded``: whoever trains it puts them back.
    """

    base: Base
    model: nn.Module
    initial: dict[str, Tensor]
    carried: tuple[str, ...]
    classifier: str
    loaded: Loaded | None = None
    replica: Replica | None = None

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trainable parameters as they are now, by name."""
        return {name: p.detach() for name, p in trainable(self.model).items()}


_SERVED: list[Base] = []


@contextmanager
def serving(base: Base) -> Iterator[None]:
    """Clients of this process take ``base`` instead of preparing their own: audits train on examples of their own."""
    process.cache_clear()
    _SERVED.append(base)
    try:
        yield
    finally:
        _SERVED.pop()
        process.cache_clear()


@lru_cache(maxsize=2)
def process(settings: Settings) -> Process:
    """Data, initial model and W_0, built once a process."""
    torch.set_num_threads(settings.threads)
    freed_memory.keep()
    base = _SERVED[-1] if _SERVED else prepare(settings)
    model = base.build_model()
    carried = carried_parameters(model, base.method.carrier, classifier=base.workload.classifier)
    needed = initial_needed(base.method, trainable(model), carried)
    initial = {name: trainable(model)[name].detach().clone() for name in needed}
    initial |= frozen_bases(model)
    return Process(
        base=base,
        model=model,
        initial=initial,
        carried=carried,
        classifier=find_classifier(model, base.workload.classifier),
        replica=Replica(base=base, model=model, initial=initial) if base.settings.downlink == "sparse" else None,
    )


def answer(settings: Settings, partition: int, content: RecordDict, *, shared: bool = False) -> bytes:
    """The payload that ``partition`` sends for an announcement; ``shared`` clients of a process share its replica.

    Raises FrameDiffersError, ReplicaMissingError, ReplicaDiffersError, OverBudgetError, or whatever training raised.
    """
    here = process(settings)
    announced = read_round(content)
    run = own_directory(settings, announced.run_dir)
    digest = None
    if here.replica is not None:
        digest = here.replica.follow(content, announced, run, partition, shared=shared)
    loaded = _load(here, announced, content, digest)
    ledger = Ledger(run.ledger(partition), client=partition)
    outbox = open_box(here.base, run, partition)
    question = hashlib.sha256(loaded.digest + announced.frame_digest).hexdigest()
    question = f"{announced.round}/{announced.updates}/{here.base.settings.codec}/{question}"
    stored = outbox.find(question)
    if stored is not None:
        if not any(entry.round == announced.round for entry in ledger.entries):
            raise LedgerError(f"{ledger.path} lost the entry of round {announced.round}, whose payload is stored")
        return stored
    values = _train(here, run, ledger, announced, loaded)
    dither = here.base.dither(partition, *_training(here.base, announced, partition))
    return send(values, loaded.frame, here.base, announced, dither, outbox, question)


def _load(here: Process, announced: Announcement, content: RecordDict, followed: bytes | None) -> Loaded:
    """The model's weights and the frame, made by the first client of a process in a round and used by the others.

    Guarantee: what is used again was made from the very same bytes; or, where a replica ``followed``, their digest.
    """
    sent = flat_bytes(content) if followed is None else followed
    version = (announced.round, announced.updates, announced.frame_digest)
    known, here.loaded = here.loaded, None  # an error on the way leaves nothing that looks loaded
    if followed is not None and (known is None or known.weights != followed):
        digest = followed
    elif known is None or known.weights != sent:
        load_weights(here.model, read_weights(content))
        digest = hashlib.sha256(sent).digest()
    elif known.version == version:
        here.loaded = known  # the digest covers the kept positions and the carriers, too
        return known
    else:
        digest = known.digest
    frame = _frame(here, announced, content)
    parameters = check(here.model, frame)
    here.loaded = Loaded(weights=sent, digest=digest, version=version, frame=frame, parameters=parameters)
    return here.loaded


def _derived(here: Process, announced: Announcement, content: RecordDict) -> Frame:
    weights = here.weights
    if announced.round == 0:
        if not here.base.method.prune.reads_data:
            raise ValueError("the server asks for a pruning round, which this run's settings do not have")
        return saliency_frame(weights)
    if here.replica is not None and here.replica.known is not None:
        return here.replica.frame(announced.round)
    ranked = here.base.method.mask.ranking == "gradients"
    return make_frame(
        here.base.method,
        weights,
        here.initial,
        carried=here.carried,
        round=announced.round,
        updates=announced.updates,
        schedule=here.base.schedule,
        seed=here.base.settings.seed,
        classifier=here.classifier,
        kept=read_kept(content, sum(W.numel() for W in weights.values())) if ranked else None,
    )


def _frame(here: Process, announced: Announcement, content: RecordDict) -> Frame:
    frame = _derived(here, announced, content)
    if frame.digest != announced.frame_digest:
        sent = read_frame(content, frame)
        if sent is None or sent.digest != announced.frame_digest:
            raise FrameDiffersError("the frame derived here has another digest than the announced one")
        return sent
    return frame


def _train(here: Process, run: RunDir, ledger: Ledger, announced: Announcement, loaded: Loaded) -> Tensor:
    base, s, partition, frame = here.base, here.base.settings, ledger.client, loaded.frame
    pruning = announced.round == 0
    terms = _terms(base, announced, partition)
    mechanism, local = _training(base, announced, partition)
    entry = _entry(s, mechanism, terms, local.steps, announced.round, ledger, frame)
    _check_budget(s, mechanism, ledger, entry)
    drawn: list[Tensor] = []

    def charge() -> None:
        # A reproducible attempt draws the same bits again: the same release, charged once.
        if not (s.reproducible and any(replace(e, attempt=entry.attempt) == entry for e in ledger.entries)):
            ledger.charge(entry)

    with torch.random.fork_rng(devices=[] if s.device == "cpu" else None):
        # Dropout, where a model has it, draws from torch's own generator, by place in the batch. One example less moves
        # the others to other places. That is harmless as long as nobody can repeat the draws: masks are independent of
        # each other, so the release is distributed as if every example had drawn its own in advance. Given those masks
        # one example moves the sum by C at most, and what holds for all of them holds for their mixture.
        # In the test mode the draws are the same on every engine (and a run is NOT PRIVATE).
        repeatable = public_generator(s.seed, "dropout", partition, announced.round).initial_seed()
        seed = torch.default_generator.manual_seed if s.device == "cpu" else torch.manual_seed  # the latter asks around
        seed(repeatable if s.reproducible else secrets.randbits(63))
        values = client_step(
            here.model,
            batches(base, partition, announced.round, drawn),
            lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
            frame=frame,
            mechanism=mechanism,
            local=local,
            num_examples=terms.num_examples,
            sampler=_stream(base, "sampler", partition, announced.round),
            noise=_stream(base, "noise", partition, announced.round),
            charge=charge,
            groups=groups(base, partition),
            scale=saliency_scale(here.weights, frame) if pruning else None,
            checked=loaded.parameters,
        )
    if s.record_updates:
        run.save_truth(announced.round, partition, torch.cat(drawn))
    return values


def _terms(base: Base, announced: Announcement, partition: int) -> ClientTerms:
    return ClientTerms(
        num_examples=len(base.parts[partition]),
        sample_rate=announced.sample_rate,
        noise_multiplier=announced.noise_multiplier,
    )


def _training(base: Base, announced: Announcement, partition: int) -> tuple[Mechanism, LocalTraining]:
    """Mechanism and local training of a round, at the rate and noise that were announced."""
    terms = _terms(base, announced, partition)
    local = base.local.at_rate(announced.sample_rate)
    if announced.round == 0:
        return terms.mechanism(pruning_mechanism(base.method)), local.single()
    return terms.mechanism(base.method.mechanism), local


def _stream(base: Base, purpose: str, partition: int, round: int) -> SecretStream:
    s = base.settings
    return reproducible_stream(s.seed, *base.stream, purpose, partition, round) if s.reproducible else secret_stream()


def _entry(
    s: Settings, mechanism: Mechanism, terms: ClientTerms, steps: int, round: int, ledger: Ledger, frame: Frame
) -> Entry:
    return Entry(
        client=ledger.client,
        round=round,
        attempt=ledger.next_attempt(round),
        steps=steps,
        sample_rate=terms.sample_rate,
        noise_multiplier=mechanism.effective_noise_multiplier(len(frame.blocks)),
        clip_norm=mechanism.clip_norm,
        num_examples=terms.num_examples,
        mechanism=mechanism.kind,
        reproducible=s.reproducible,
    )


def _check_budget(s: Settings, mechanism: Mechanism, ledger: Ledger, entry: Entry) -> None:
    if not mechanism.private or s.epsilon is None or s.reproducible:
        return
    assert s.delta is not None
    if ledger.would_exceed(entry, s.epsilon, s.delta):
        raise OverBudgetError(f"round {entry.round} would pass the privacy budget epsilon={s.epsilon} of this client")
