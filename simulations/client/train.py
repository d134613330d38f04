"""One client's part of a round: derive the frame, charge the ledger, train privately, pack.

Order, which the privacy claim rests on: the ledger is charged and fsynced, the batch is drawn and clipped, noise is
drawn, the payload is stored, and only then does anything leave. A stored payload is sent again for free. (A
payload without noise is not stored: it has no privacy claim, and can be computed again.)
"""

import hashlib
import secrets

import torch
from flwr.app import RecordDict
from torch import Tensor
from torch.nn import functional as F

from fedlsg.gradients import Checked
from fedlsg.method import client_step
from fedlsg.privacy import Entry, LedgerError
from fedlsg.randomness import SecretStream, public_generator, reproducible_stream, secret_stream
from fedlsg.state import ClientTerms, RoundPlan
from simulations.client.account import Account, SimulatedAccount, own_directory
from simulations.client.batches import batches, groups
from simulations.client.model import Process, load, process, serving
from simulations.client.sending import open_box, send
from simulations.plan.plan import Base
from simulations.settings.settings import Settings
from strategies.federation.wire import read_round

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
    terms = ClientTerms(
        num_examples=len(here.base.parts[partition]),
        sample_rate=announced.sample_rate,
        noise_multiplier=announced.noise_multiplier,
    )
    plan = loaded.plan.for_client(terms)
    values = _train(here, account, plan, terms.num_examples, loaded.parameters)
    return send(values, plan.frame, here.base, announced, here.base.dither(partition, plan), outbox, question)


def _train(here: Process, account: Account, plan: RoundPlan, num_examples: int, checked: Checked) -> Tensor:
    base, s, partition, round = here.base, here.base.settings, account.client, plan.round
    entry = _entry(s, plan, num_examples, account)
    account.check(entry)
    drawn: list[Tensor] = []

    with torch.random.fork_rng(devices=[] if s.device == "cpu" else None):
        # Dropout, if a model has it, draws from torch's own generator, by place in the batch. One example less moves
        # the others to other places. That is harmless while the draws are secret: masks are independent of each
        # other, so the release has the same distribution as if every example had drawn its mask in advance. Given
        # those masks, one example moves the sum by C at most, and this also holds for their mixture.
        # In the test mode the draws are the same on every engine (and a run is NOT PRIVATE).
        repeatable = public_generator(s.seed, "dropout", partition, round).initial_seed()
        seed = torch.default_generator.manual_seed if s.device == "cpu" else torch.manual_seed  # or GPUs too
        seed(repeatable if s.reproducible else secrets.randbits(63))
        values = client_step(
            here.state.model,
            batches(base, partition, round, drawn),
            lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
            frame=plan.frame,
            mechanism=plan.mechanism,
            local=plan.local,
            num_examples=num_examples,
            sampler=_stream(base, "sampler", partition, round),
            noise=_stream(base, "noise", partition, round),
            charge=lambda: account.charge(entry),
            groups=groups(base, partition),
            scale=plan.scale(here.state.parameters),
            checked=checked,
        )
    account.keep_truth(round, drawn)
    return values


def _stream(base: Base, purpose: str, partition: int, round: int) -> SecretStream:
    s = base.settings
    return reproducible_stream(s.seed, *base.stream, purpose, partition, round) if s.reproducible else secret_stream()


def _entry(s: Settings, plan: RoundPlan, num_examples: int, account: Account) -> Entry:
    return Entry(
        client=account.client,
        round=plan.round,
        attempt=account.next_attempt(plan.round),
        reproducible=s.reproducible,
        run=account.name,
        **plan.charge(num_examples),
    )
