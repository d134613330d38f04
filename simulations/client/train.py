"""One client's round: derive the frame, charge the ledger, train privately, pack, store, send.

The privacy claim rests on this order. The ledger is charged and fsynced (on our engines by the
driver, before it asks anybody). The batch is drawn and clipped, noise is drawn, the payload is
stored, and only then does anything leave. A stored payload is sent again without a charge. (A
payload without noise is not stored: it has no privacy claim, and can be computed again.)

Personal parameters are a client's own displacement from the public initial ones. It is kept in the
client's own folder, in one file with the payload of the round (``FeedbackBox``): both change, or
neither. So a payload that is sent again moves nothing twice, and a resumed run continues bit for
bit.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
    """The payload that a simulated client sends for an announcement.

    partition: the client.
    content: of the server's message.
    state: of the client's Flower Context, which may have its account.
    shared: whether the clients of this process share one replica.

    Raises as ``answer_in``.
    """
    here = process(settings)
    account: ClientAccount | None = given_account(here, settings, content, state)
    if account is None:
        run = own_directory(settings, read_round(content).run_dir)
        ledger = Ledger(run.ledger(partition), client=partition)
        account = SimulatedAccount(run, ledger, here.base.settings)
    return answer_in(here, account, content, state, shared=shared)


def given_account(
    here: Process, settings: Settings, content: RecordDict, state: RecordDict
) -> GivenAccount | None:
    """The account of a client that the driver has charged; None if it keeps its own ledger."""
    record = config_in(state, RECORD)
    if record is None:
        return None
    run = own_directory(settings, read_round(content).run_dir) if record["here"] else HISTORY
    return GivenAccount(record, run, here.base.settings.record_updates)


def answer_in(
    here: Process,
    account: ClientAccount,
    content: RecordDict,
    state: RecordDict,
    *,
    shared: bool = False,
) -> bytes:
    """The payload for an announcement, charged to an account.

    ``state``: of the client's own Flower Context.

    Raises FrameDiffersError, ReplicaMissingError, ReplicaDiffersError, OverBudgetError,
    LedgerError, SecureSumRefusedError, ChangedModelError, or any error of training.
    """
    if (stage_of(content) is None) != (here.base.sums is None):
        asked_stage(here.base, content)  # it raises SecureSumRefusedError
    announced, partition = read_round(content), account.client
    loaded = follow(here, account, announced, content, shared=shared)
    box = account.box(memory=remembers(here.base))
    request_id = request_id_of(announced, here.base.settings.codec, loaded.digest)
    stored = stored_payload(account, box, request_id, announced.round)
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
        return _personal_round(here, plan, announced, box, request_id, train)
    dither = here.base.uplink.dither(partition, plan)
    return pack_and_store(train(), plan.frame, here.base, announced, dither, box, request_id)


def follow(
    here: Process,
    account: ClientAccount,
    announced: Announcement,
    content: RecordDict,
    *,
    shared: bool,
) -> Loaded:
    """Bring the process's model to the announced weights, and derive the frame.

    Raises as ``answer_in``.
    """
    run, client = account.run, account.client
    check_level(here.base, announced.isolation)
    check_features(here.base, announced.features)
    digest = None
    if here.replica is not None:
        digest = here.replica.follow(content, announced, run, client, shared=shared)
    return load(here, announced, content, digest, run, client, shared=shared)


def _personal_round(
    here: Process,
    plan: RoundPlan,
    announced: Announcement,
    box: Box,
    request_id: str,
    train: Callable[[], Tensor],
) -> bytes:
    """The payload of a round with personal parameters; both are stored together."""
    assert not isinstance(box, LastPayload)
    base, frame, client = here.base, plan.frame, box.client
    before = box.memory(plan.round, personal_size(frame))
    with own_parameters(here.state.model, frame.personal, before):
        values = train()
    payload = pack_values(
        encode(values, frame), frame, base, announced, base.uplink.dither(client, plan), box.last
    )
    after = next_displacement(before, values, frame, base, plan.local)
    return box.store(request_id, payload, after, round=plan.round)


def remembers(base: Base) -> bool:
    """Whether clients have a memory from round to round: error feedback, or personal parameters."""
    return base.uplink.keeps_memory or bool(base.method.personal)


def memory_size(frame: Frame) -> int:
    """The number of values in a client's memory, see ``remembers``."""
    return personal_size(frame) if frame.personal else frame.kept


@contextmanager
def own_parameters(
    model: nn.Module, names: Sequence[str], displacement: Float[Tensor, " size"]
) -> Iterator[nn.Module]:
    """Give the model a client's personal parameters in the block, then the announced ones again."""
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


def next_displacement(
    displacement: Float[Tensor, " size"],
    values: Float[Tensor, " kept"],
    frame: Frame,
    base: Base,
    local: LocalTraining,
) -> Float[Tensor, " size"]:
    """The personal displacement after a round: one step of SGD by the client's own noisy values.

    d' = d - eta s g / (q_k N_k), with eta the personal learning rate, s what the schedule leaves of
    a learning rate in this round, g the personal part of ``values``.

    values: released by the mechanism, clipped with the shared part and noisy; nothing else of the
    data is read.
    local: the training of this round; its ``batch`` is q_k N_k.
    """
    schedule = local.learning_rate / base.local.learning_rate
    personal_rate = base.settings.personal_learning_rate
    if personal_rate is None:
        personal_rate = base.local.learning_rate
    rate = personal_rate * schedule / local.batch
    return displacement - rate * personal_gradient(values, frame)


def request_id_of(announced: Announcement, codec: str, weights: bytes) -> str:
    """The id of a request: its round, the codec, and a digest of weights and frame."""
    digest = hashlib.sha256(weights + announced.frame_digest).hexdigest()
    return f"{announced.round}/{announced.updates}/{codec}/{digest}"


def stored_payload(account: ClientAccount, box: Box, request_id: str, round: int) -> bytes | None:
    """The stored payload for a request, or None. Raises LedgerError if it has no charge."""
    stored = box.find(request_id)
    if stored is not None and not account.of_round(round):
        raise LedgerError(
            f"{account.path} lost the entry of round {round}, whose payload is stored"
        )
    return stored


def own_terms(announced: Announcement, num_examples: int) -> ClientTerms:
    """The terms of the client that an announcement is for."""
    return ClientTerms(
        num_examples=num_examples,
        sample_rate=announced.sample_rate,
        noise_multiplier=announced.noise_multiplier,
    )


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
    """The noisy values of a round; the entry is charged before its batch is drawn.

    checked: the model's parameters, checked against the frame.
    add: adds the noise in place of the mechanism, for secure sums.
    loaded: the weights and the frame; None in a rehearsal, which has no batches drawn ahead.
    """
    base, partition, round = here.base, account.client, plan.round
    secret = takes_part_in_secret(base)
    entry = entry_of(account, plan, num_examples, reproducible=base.settings.reproducible)
    account.check(entry)
    used_rows: list[Tensor] = []
    drawn = None if loaded is None else AHEAD.take(account, entry, loaded)
    if drawn is not None and base.settings.record_updates:
        used_rows.append(base.parts[partition][drawn.positions])
    with ExitStack() as stack:
        if drawn is None or drawn.total is None:  # else the model has run before
            stack.enter_context(here.passing())
            stack.enter_context(draws(base, partition, round))
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
            persons=base.rows.persons_of(partition),
        )
    if not secret:
        account.keep_truth(round, used_rows)
    return values


def pack_and_store(
    values: Tensor,
    frame: Frame,
    base: Base,
    announced: Announcement,
    dither: Dither,
    box: Box,
    request_id: str,
) -> bytes:
    """The payload of a round's values; with noise or memory it is stored for its request.

    Under error feedback with memory m: the payload encodes values + m, the server receives r, and
    the new memory is values + m - r.
    """
    if not base.uplink.keeps_memory:
        payload = pack_values(encode(values, frame), frame, base, announced, dither, box.last)
        # of a ``GivenAccount``, the driver stores the payload
        if isinstance(box, LastPayload) and keeps_payload(base):
            box.store(request_id, payload)
        return payload
    # the plan refused it; checked again at the point of use
    if not base.method.mechanism.of_kind.plain:
        raise ValueError(
            f"error feedback under mechanism {base.method.mechanism.kind!r} would leak: not sent"
        )
    assert not isinstance(box, LastPayload)
    due = values.detach().cpu().double() + box.memory(announced.round, frame.kept)
    payload = pack_values(encode(due, frame), frame, base, announced, dither, box.last)
    expected = base.uplink.expected(frame, round=announced.round, dither=dither)
    received = decode(unpack(payload, expected), frame)
    return box.store(request_id, payload, due - received.double(), round=announced.round)


def keeps_payload(base: Base) -> bool:
    """Whether a payload is stored before it leaves: training again would be a new charge.

    A payload without noise is stored only if the next one refers to its indices. Masked values
    belong to one attempt at a sum, and are kept with its secrets. An update for a server that adds
    the noise is not stored.
    """
    if base.unit.at_server:
        return False
    return base.sums is None and (base.method.mechanism.adds_noise or base.uplink.explicit)


def keeps_one_round(base: Base) -> bool:
    """Whether a stored payload is needed for one round only: later ones do not refer to it."""
    return not base.uplink.explicit


def pack_values(
    values: Tensor,
    frame: Frame,
    base: Base,
    announced: Announcement,
    dither: Dither,
    last: Callable[[], bytes | None],
) -> bytes:
    """A payload of the values; with compression, of the largest ones only.

    ``last``: reads the client's last payload, to which explicit indices refer.
    """
    wire, uplink = frame.wire, base.uplink
    positions = wire.indices
    most = base.method.compression.most(wire.size)
    if most is not None:
        positions = largest(values, most)
        values = values[positions]
    return pack(
        values,
        positions,
        size=wire.size,
        round=announced.round,
        digest=announced.frame_digest,
        codec=uplink.codec,
        index_mode=uplink.index_mode,
        blocks=wire.blocks,
        dither=dither,
        earlier=last() if uplink.explicit else None,
    )
