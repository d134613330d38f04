"""One client's round: derive the frame, charge the ledger, train privately, pack, store, and only
then send.

Order, which the privacy claim rests on: the ledger is charged and fsynced (on our engines by the
driver, before it asks anybody), the batch is drawn and clipped, noise is drawn, the payload is
stored, and only then does anything leave. A stored payload is sent again for free. (A payload
without noise is not stored: it has no privacy claim, and can be computed again.)

Personal parameters are a client's own displacement from the public initial ones. It is kept in the
client's own folder, in one file with the payload of the round (``FeedbackBox``): both change, or
neither. So a payload that is sent again moves nothing twice, and a resumed run continues bit for
bit.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from flwr.app import RecordDict
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.carriers.personal import personal_gradient, personal_size, personal_weights
from fedlsg.carriers.powersgd import decode, encode
from fedlsg.frame import Frame
from fedlsg.gradients import Checked, trainable
from fedlsg.method import LocalTraining, client_step, largest
from fedlsg.payload import Dither, pack, unpack
from fedlsg.privacy import Ledger, LedgerError
from fedlsg.simulations.client.ahead import AHEAD
from fedlsg.simulations.client.client_account import (
    RECORD,
    Box,
    ClientAccount,
    GivenAccount,
    SimulatedAccount,
    entry_of,
    own_directory,
    takes_part_in_secret,
)
from fedlsg.simulations.client.drawing import batches, draws, groups, sampler_of, stream_of
from fedlsg.simulations.client.node.conditions import check_features, check_level
from fedlsg.simulations.client.process_state import HISTORY, Loaded, Process, load, process
from fedlsg.simulations.client.secure_sum import asked_stage, masked_values
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.storage.last_payload import LastPayload
from fedlsg.state import ClientTerms, Phase, RoundPlan
from fedlsg.strategies.protocol.wire import Announcement, config_in, read_round, stage_of
from fedlsg.training.client_level import client_update
from fedlsg.training.client_round import AddNoise


def answer(
    settings: Settings,
    partition: int,
    content: RecordDict,
    state: RecordDict,
    *,
    shared: bool = False,
) -> bytes:
    """The payload that a simulated ``partition`` sends for an announcement.

    ``state``: of its Flower Context, which may have its account. ``shared`` clients of a process
    share its replica.
    Raises as ``answer_in`` does.
    """
    here = process(settings)
    account: ClientAccount | None = given_account(here, settings, content, state)
    if account is None:
        run = own_directory(settings, read_round(content).run_dir)
        account = SimulatedAccount(
            run, Ledger(run.ledger(partition), client=partition), here.base.settings
        )
    return answer_in(here, account, content, state, shared=shared)


def given_account(
    here: Process, settings: Settings, content: RecordDict, state: RecordDict
) -> GivenAccount | None:
    """The account of a client that the driver has charged; None for one that has a ledger of its
    own.
    """
    given = config_in(state, RECORD)
    if given is None:
        return None
    run = own_directory(settings, read_round(content).run_dir) if given["here"] else HISTORY
    return GivenAccount(given, run, here.base.settings.record_updates)


def answer_in(
    here: Process,
    account: ClientAccount,
    content: RecordDict,
    state: RecordDict,
    *,
    shared: bool = False,
) -> bytes:
    """The payload for an announcement, charged to an account. ``state``: of the client's own Flower
    Context.

    Raises FrameDiffersError, ReplicaMissingError, ReplicaDiffersError, OverBudgetError,
    LedgerError, SecureSumRefusedError, ChangedModelError, or whatever training raised.
    """
    if (stage_of(content) is None) != (here.base.sums is None):
        asked_stage(here.base, content)  # it is refused
    announced, partition = read_round(content), account.client
    loaded = follow(here, account, announced, content, shared=shared)
    box = account.box(memory=remembers(here.base))
    question = question_of(announced, here.base.settings.codec, loaded.digest)
    stored = stored_payload(account, box, question, announced.round)
    if stored is not None:
        return stored
    terms = own_terms(announced, here.base.rows.size_of(partition))
    plan = loaded.plan.for_client(terms)
    train = partial(
        train_round, here, account, plan, terms.num_examples, loaded.parameters, loaded=loaded
    )
    if plan.sums is not None:
        return masked_values(here.base, plan, partition, content, state, train)
    if plan.frame.personal:
        return _personal_round(here, plan, announced, box, question, train)
    values = train()
    return send(
        values,
        plan.frame,
        here.base,
        announced,
        here.base.uplink.dither(partition, plan),
        box,
        question,
    )


def follow(
    here: Process,
    account: ClientAccount,
    announced: Announcement,
    content: RecordDict,
    *,
    shared: bool,
) -> Loaded:
    """Bring the process's model to the announced weights, and derive the frame. Raises as
    ``answer_in``.
    """
    run, client, digest = account.run, account.client, None
    check_level(here.base, announced.isolation)
    check_features(here.base, announced.features)
    if here.replica is not None:
        digest = here.replica.follow(content, announced, run, client, shared=shared)
    return load(here, announced, content, digest, run, client, shared=shared)


def _personal_round(
    here: Process,
    plan: RoundPlan,
    announced: Announcement,
    box: Box,
    question: str,
    train: Callable[[], Tensor],
) -> bytes:
    """The payload of a round with personal parameters, which is stored with what they became."""
    assert not isinstance(box, LastPayload)
    base, frame, client = here.base, plan.frame, box.client
    before = box.memory(plan.round, personal_size(frame))
    with own_parameters(here.state.model, frame.personal, before):
        values = train()
    payload = pack_values(
        encode(values, frame), frame, base, announced, base.uplink.dither(client, plan), box.last
    )
    after = moved(before, values, frame, base, plan.local)
    return box.store(question, payload, after, round=plan.round)


def remembers(base: Base) -> bool:
    """Whether clients keep something from round to round: the memory of error feedback, or personal
    parameters.
    """
    return base.uplink.keeps_memory or bool(base.method.personal)


def memory_size(frame: Frame) -> int:
    """How many numbers a client that ``remembers`` keeps."""
    return personal_size(frame) if frame.personal else frame.kept


@contextmanager
def own_parameters(
    model: nn.Module, names: Sequence[str], displacement: Float[Tensor, " size"]
) -> Iterator[nn.Module]:
    """Inside, the model has a client's personal parameters; after it, the announced ones, bit for
    bit.
    """
    parameters = trainable(model)
    announced = {name: parameters[name].detach().clone() for name in names}
    try:
        _write(parameters, personal_weights(announced, names, displacement))
        yield model
    finally:
        _write(parameters, announced)


@torch.no_grad()
def _write(parameters: dict[str, nn.Parameter], values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        parameters[name].copy_(value)


def moved(
    displacement: Float[Tensor, " size"],
    values: Float[Tensor, " kept"],
    frame: Frame,
    base: Base,
    local: LocalTraining,
) -> Float[Tensor, " size"]:
    """The displacement after a round: a step of SGD by the client's own noisy values, over its own
    q_k N_k; its rate follows the schedule, too.

    ``values``: what the mechanism released, clipped with the shared part and noisy; nothing else of
    the data is read.
    """
    falling = local.learning_rate / base.local.learning_rate
    given = base.settings.personal_learning_rate
    rate = (base.local.learning_rate if given is None else given) * falling / local.batch
    return displacement - rate * personal_gradient(values, frame)


def question_of(announced: Announcement, codec: str, weights: bytes) -> str:
    """What a payload answers: a round, a codec, and a digest of weights and frame."""
    digest = hashlib.sha256(weights + announced.frame_digest).hexdigest()
    return f"{announced.round}/{announced.updates}/{codec}/{digest}"


def stored_payload(account: ClientAccount, box: Box, question: str, round: int) -> bytes | None:
    """The payload that answers a question, if it is stored. Raises LedgerError if nobody was
    charged for it.
    """
    stored = box.find(question)
    if stored is not None and not account.of_round(round):
        raise LedgerError(
            f"{account.path} lost the entry of round {round}, whose payload is stored"
        )
    return stored


def own_terms(announced: Announcement, num_examples: int) -> ClientTerms:
    """A client's terms in an announcement."""
    q, sigma = announced.sample_rate, announced.noise_multiplier
    return ClientTerms(num_examples=num_examples, sample_rate=q, noise_multiplier=sigma)


def train_round(
    here: Process,
    account: ClientAccount,
    plan: RoundPlan,
    num_examples: int,
    checked: Checked,
    add: AddNoise | None = None,
    *,
    loaded: Loaded | None = None,
) -> Tensor:
    """The noisy values of a round. ``loaded``: the weights and the frame; without it no batch was
    drawn ahead.
    """
    base, s, partition, round = here.base, here.base.settings, account.client, plan.round
    secret = takes_part_in_secret(base)
    entry = entry_of(account, plan, num_examples, reproducible=s.reproducible)
    account.check(entry)
    used_rows: list[Tensor] = []
    drawn = None if loaded is None else AHEAD.take(account, entry, loaded)
    if drawn is not None and s.record_updates:
        used_rows.append(base.parts[partition][drawn.positions])
    summed = drawn is not None and drawn.total is not None
    with (
        nullcontext() if summed else here.passing(),
        nullcontext() if summed else draws(base, partition, round),
    ):
        persons = base.rows.persons_of(partition)
        compute = client_step if plan.releases_examples else client_update
        values = compute(
            here.state.model,
            batches(base, partition, round, [] if drawn else used_rows),
            base.workload.loss,
            frame=plan.frame,
            mechanism=plan.mechanism,
            local=plan.local,
            num_examples=num_examples,
            sampler=drawn or sampler_of(base, account, entry),
            noise=stream_of(base, "noise", partition, round),
            charge=(lambda: None) if secret or drawn else lambda: account.charge(entry),
            groups=groups(base, partition),
            scale=plan.scale(here.state.parameters) if plan.phase is Phase.PRUNING else None,
            checked=checked,
            add=add,
            persons=persons,
        )
    if not secret:
        account.keep_truth(round, used_rows)
    return values


def send(
    values: Tensor,
    frame: Frame,
    base: Base,
    announced: Announcement,
    dither: Dither,
    box: Box,
    question: str,
) -> bytes:
    """The payload of a round's values; with noise or memory it is stored first, under its
    question.
    """
    if not base.uplink.keeps_memory:
        payload = pack_values(encode(values, frame), frame, base, announced, dither, box.last)
        # else the driver of the simulation stores it
        if isinstance(box, LastPayload) and keeps_payload(base):
            box.store(question, payload)
        return payload
    # the plan refused it; checked again at the point of use
    if not base.method.mechanism.of_kind.plain:
        raise ValueError(
            f"error feedback under mechanism {base.method.mechanism.kind!r} would leak: not sent"
        )
    assert not isinstance(box, LastPayload)
    due = values.detach().cpu().double() + box.memory(announced.round, frame.kept)
    payload = pack_values(encode(due, frame), frame, base, announced, dither, box.last)
    wanted = base.uplink.expected(frame, round=announced.round, dither=dither)
    received = decode(unpack(payload, wanted), frame)
    return box.store(question, payload, due - received.double(), round=announced.round)


def keeps_payload(base: Base) -> bool:
    """Whether a payload is stored before it leaves: without noise, resending costs nothing, and
    training does not.

    Masked values belong to one attempt at a sum, and are kept with its secrets. An update for a
    server that adds the noise has none, and is kept nowhere.
    """
    if base.unit.at_server:
        return False
    return base.sums is None and (base.method.mechanism.adds_noise or base.uplink.explicit)


def keeps_one_round(base: Base) -> bool:
    """Whether a stored payload only answers its own request: explicit indices also say which were
    sent last.
    """
    return not base.uplink.explicit


def pack_values(
    values: Tensor,
    frame: Frame,
    base: Base,
    announced: Announcement,
    dither: Dither,
    last: Callable[[], bytes | None],
) -> bytes:
    """A payload of the values; with compression, of the largest ones only."""
    where, uplink = frame.wire, base.uplink
    positions = where.indices
    most = base.method.compression.most(where.size)
    if most is not None:
        positions = largest(values, most)
        values = values[positions]
    return pack(
        values,
        positions,
        size=where.size,
        round=announced.round,
        digest=announced.frame_digest,
        codec=uplink.codec,
        index_mode=uplink.index_mode,
        blocks=where.blocks,
        dither=dither,
        earlier=last() if uplink.explicit else None,
    )
