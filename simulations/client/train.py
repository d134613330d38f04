"""One client's part of a round: derive the frame, charge the ledger, train privately, pack.

Order, which the privacy claim rests on: the ledger is charged and fsynced, the batch is drawn and clipped, noise is
drawn, the payload is stored, and only then does anything leave. A payload that was stored is sent again for free. (One
without noise is not stored: nothing is claimed of it, and it may be made anew.)
"""

import hashlib
import secrets

import torch
from flwr.app import RecordDict
from torch import Tensor
from torch.nn import functional as F

from fedlsg.frame import Frame
from fedlsg.masks import pruning_mechanism, saliency_scale
from fedlsg.method import LocalTraining, client_step
from fedlsg.privacy import Entry, LedgerError, Mechanism
from fedlsg.randomness import SecretStream, public_generator, reproducible_stream, secret_stream
from simulations.client.account import Account, SimulatedAccount, own_directory
from simulations.client.batches import batches, groups
from simulations.client.model import Loaded, Process, load, process, serving
from simulations.client.sending import open_box, send
from simulations.plan.plan import Base
from simulations.settings.settings import Settings
from strategies.federation.wire import Announcement, read_round
from strategies.strategy import ClientTerms

__all__ = ["answer", "answer_in", "process", "serving"]


def answer(settings: Settings, partition: int, content: RecordDict, *, shared: bool = False) -> bytes:
    """The payload that a simulated ``partition`` sends for an announcement.

    ``shared`` clients of a process share its replica. Raises as ``answer_in`` does.
    """
    here = process(settings)
    account = SimulatedAccount(own_directory(settings, read_round(content).run_dir), partition, here.base.settings)
    return answer_in(here, account, content, shared=shared)


def answer_in(here: Process, account: Account, content: RecordDict, *, shared: bool = False) -> bytes:
    """The payload for an announcement, charged to an account.

    Raises FrameDiffersError, ReplicaMissingError, ReplicaDiffersError, OverBudgetError, LedgerError, or whatever
    training raised.
    """
    announced, run, partition = read_round(content), account.run, account.client
    digest = None
    if here.replica is not None:
        digest = here.replica.follow(content, announced, run, partition, shared=shared)
    loaded = load(here, announced, content, digest)
    outbox = open_box(here.base, run, partition)
    question = hashlib.sha256(loaded.digest + announced.frame_digest).hexdigest()
    question = f"{announced.round}/{announced.updates}/{here.base.settings.codec}/{question}"
    stored = outbox.find(question)
    if stored is not None:
        if not account.of_round(announced.round):
            raise LedgerError(f"{account.path} lost the entry of round {announced.round}, whose payload is stored")
        return stored
    values = _train(here, account, announced, loaded)
    dither = here.base.dither(partition, *_training(here.base, announced, partition))
    return send(values, loaded.frame, here.base, announced, dither, outbox, question)


def _train(here: Process, account: Account, announced: Announcement, loaded: Loaded) -> Tensor:
    base, s, partition, frame = here.base, here.base.settings, account.client, loaded.frame
    pruning = announced.round == 0
    terms = _terms(base, announced, partition)
    mechanism, local = _training(base, announced, partition)
    entry = _entry(s, mechanism, terms, local.steps, announced.round, account, frame)
    account.check(entry)
    drawn: list[Tensor] = []

    with torch.random.fork_rng(devices=[] if s.device == "cpu" else None):
        # Dropout, where a model has it, draws from torch's own generator, by place in the batch. One example less moves
        # the others to other places. That is harmless as long as the draws are secret: masks are independent of
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
            charge=lambda: account.charge(entry),
            groups=groups(base, partition),
            scale=saliency_scale(here.weights, frame) if pruning else None,
            checked=loaded.parameters,
        )
    account.keep_truth(announced.round, drawn)
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
        return terms.mechanism(pruning_mechanism(base.method.mechanism, base.method.prune)), local.single()
    return terms.mechanism(base.method.mechanism), local


def _stream(base: Base, purpose: str, partition: int, round: int) -> SecretStream:
    s = base.settings
    return reproducible_stream(s.seed, *base.stream, purpose, partition, round) if s.reproducible else secret_stream()


def _entry(
    s: Settings, mechanism: Mechanism, terms: ClientTerms, steps: int, round: int, account: Account, frame: Frame
) -> Entry:
    return Entry(
        client=account.client,
        round=round,
        attempt=account.next_attempt(round),
        steps=steps,
        sample_rate=terms.sample_rate,
        noise_multiplier=mechanism.effective_noise_multiplier(len(frame.blocks)),
        clip_norm=mechanism.clip_norm,
        num_examples=terms.num_examples,
        mechanism=mechanism.kind,
        reproducible=s.reproducible,
        run=account.name,
    )
