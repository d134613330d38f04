"""``fedlsg.flower.private_update``: whole updates of any ClientApp, made private before they leave.

The privacy claim rests on this order: the client's ledger is charged and on disk; the app trains;
its update is projected and masked, clipped as a whole, made noisy and packed; only then does
anything leave.
"""

import math
from collections.abc import Callable
from functools import cache
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.logger import log
from torch import Tensor, nn

from fedlsg.config.foreign import explain_other_names
from fedlsg.config.units import CLIENT
from fedlsg.payload import find_codec
from fedlsg.privacy import BudgetError, Entry, Ledger, add_noise
from fedlsg.privacy.limits import Limits, held_to
from fedlsg.randomness import secret_stream
from fedlsg.simulations.client.client_app import is_simulated, refusal
from fedlsg.simulations.client.node.other_replies import (
    WITHOUT_NOISE,
    answer_of,
    book_of,
    kinds_of,
    other_reply,
)
from fedlsg.simulations.client.node.refusals import OverBudgetError, SettingsError
from fedlsg.simulations.flower_apps.app_code import AppCode
from fedlsg.simulations.flower_apps.client import note_other_torch
from fedlsg.simulations.flower_apps.hiding_noise import pull_of, why_hidden
from fedlsg.simulations.flower_apps.node_terms import checked_limits, ledger_on, limits_on
from fedlsg.simulations.flower_apps.secure_update import answer_stage, masked_update
from fedlsg.simulations.flower_apps.whole_update import (
    KEY,
    OURS,
    PAYLOAD,
    Round,
    RoundTerms,
    Trust,
    check_door,
    check_trust,
    check_whole,
    clients_of,
    folder_of,
    for_app,
    read_terms,
    to_cpu,
)
from fedlsg.simulations.storage.updates import save_whole
from fedlsg.strategies.protocol.stages import asks_for_values
from fedlsg.strategies.protocol.wire import NO_REASON, stage_of
from fedlsg.training.client_level import clipped_update
from fedlsg.training.client_round import AddNoise
from fedlsg.user_code.failure import without_exit
from fedlsg.user_code.short_traceback import short_traceback

NUM_EXAMPLES = "num-examples"
"""The key by which Flower's strategies weigh replies by default."""
FAR_BELOW, FAR_ABOVE = 2.0, 1000.0
"""Factors below and above the clip norm from which the norm of an update is commented."""
WARNED = "fedlsg.diverged"
"""The record in a client's state after it was warned."""
Numbers = dict[str, int | float | list[int] | list[float]]
"""Public numbers of a reply by name."""


@short_traceback
@explain_other_names
def private_update(
    model: Callable[[], nn.Module],
    *,
    epsilon: float,
    delta: float,
    ledger: str | Path | None = None,
    trust: Trust = "client",
    colluders: int = 1,
    weighted_by_key: str = NUM_EXAMPLES,
    record: str | Path | None = None,
    least_noise_multiplier: float = 0.0,
    replies_without_noise: str = "",
) -> Mod:
    """A mod that makes each update of a ClientApp private, small and accounted.

        private = fedlsg.flower.private_update(Net, epsilon=8.0, delta=1e-5, ledger="~/ledgers")
        app = ClientApp(mods=[private])

    The app's own code stays. The unit is this client with all of its data: its whole update is
    projected on the round's frame, clipped to the clip norm of the server's
    ``fedlsg.flower.PrivateUpdates``, and gets all of the noise here, in secret. No server is
    trusted. trust="secure" accepts one that adds updates up without seeing one: this client then
    adds its share of the noise, and at least ``colluders`` clients may read together.
    ``@app.train`` gets W_t as its one ArrayRecord and returns one of these names, as Flower's
    templates do.
    model: builds the app's model, the same on both sides. epsilon, delta: what this client's data
    may spend, over all entries of its ledger. ledger: an absolute folder that lasts; a deployed
    node may have it as ``ledger-dir`` in its node config. Simulated clients have one file for each
    run there, since no person's data are behind them.
    record: a new folder in which simulated clients keep what ``fedlsg attack FOLDER`` needs:
    SECRET, their updates without noise. A server with trust="secure" needs
    ``PrivateUpdates(record=...)``, the same folder.
    least_noise_multiplier: a round with less noise is refused. Keys of the node config make both
    limits stricter: ``epsilon-max`` with ``delta-max``, and ``noise-multiplier-min``.
    replies_without_noise: "evaluate", "query" or both: replies that may leave as the app made
    them, where the key ``replies-without-noise`` of the node config does not say otherwise. No
    epsilon covers them. They are counted in a ledger next to the client's, and with epsilon.
    Put it first in ``mods``: what a mod before it adds to a reply leaves without noise.

    Guarantee: a reply of @app.train, of any name, has the noisy payload, weight 1, epsilon and the
    number of replies without noise, nothing else: metrics of training stay here, and errors of the
    app leave as one constant text. Every other message is refused unless the owner allows it.
    So is training by the code of another folder than the app's, which a local SuperLink of another
    app may have imported.
    Adjacency is zero-out: an update of zeros in place of this client's; that it takes part is seen.
    The ledger is charged before the app trains, also for a round that fails later.
    Not covered: that the app failed; under trust="secure", a server that invents more than
    ``colluders`` clients.
    Raises ValueError for an epsilon or delta that is out of range, and a relative ledger or record.
    """
    note_other_torch()
    limits = checked_limits(epsilon, delta, least_noise_multiplier)
    others = kinds_of(replies_without_noise)
    check_door(model, epsilon, delta, trust)
    check_whole(colluders=(colluders, 1))
    if not isinstance(weighted_by_key, str) or not weighted_by_key:
        raise ValueError(
            f"expected {weighted_by_key=!r} to be the key by which the strategy weighs replies, a "
            "text"
        )
    record_folder = folder_of(record, "record")
    ledger_folder = folder_of(ledger, "ledger")
    code = AppCode.of_caller()

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            with without_exit():
                if not asks_for_update(message):
                    return other_reply(message, context, call_next, others, lambda: _book(context))
                return _private_reply(message, context, call_next)
        except Exception as error:
            return refusal(error, message, on_run_disk=False, reason=NO_REASON)

    def _book(context: Context) -> Ledger:
        return book_of(*ledger_on(context, ledger_folder, "private_update"))

    def _private_reply(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if code is not None:
            code.check()
        terms = read_terms(message.content)
        check_trust(terms, trust, colluders)
        if not asks_for_values(stage_of(message.content)):
            return answer(message, answer_stage(message.content, terms, context), {})
        here = round_of(model, message.content, terms)
        client, path = ledger_on(context, ledger_folder, "private_update")
        own_ledger, allowed = Ledger(path, client=client), limits_on(context, limits)
        updates: list[Tensor] = []  # the clipped update; none if a stored answer is sent again

        def train(add: AddNoise) -> Tensor:
            _charge(own_ledger, here, context, allowed, len(clients_of(message.content)))
            values = _update_of(answer_of(call_next, for_app(message), context), here)
            mechanism = here.method.mechanism
            clipped = clipped_update(
                values, frame=here.frame, mechanism=mechanism, expected_batch=1.0
            )
            norm = float(values.double().norm())  # in float64, as in the clip
            _log_norm(norm, mechanism.clip_norm, context, client, terms.round)
            if is_simulated(context):
                _warn_of_hiding_noise(norm, here, message.content, context, path)
            updates.append(clipped)
            return add(clipped, mechanism, secret_stream())

        node = message.metadata.dst_node_id
        if terms.trust == "secure":
            payload = masked_update(message.content, here, context, train)
        else:
            payload = here.pack(train(add_noise).float(), node)
        if record_folder is not None and updates and is_simulated(context):
            sent = {} if terms.trust == "secure" else {"payload": here.unpack(payload, node)}
            noise_std = find_codec(terms.codec).received_noise(here.method.mechanism.noise_std)
            save_whole(
                record_folder,
                terms.round,
                f"client-{client:06d}",
                update=updates[0],
                noise_std=noise_std,
                **sent,
            )
        numbers: Numbers = {
            weighted_by_key: 1,
            "epsilon": float(getattr(own_ledger.epsilon(delta), "upper", float("inf"))),
            WITHOUT_NOISE: len(book_of(client, path).entries),
        }
        return answer(message, payload, numbers)

    return mod


def _log_norm(norm: float, clip_norm: float, context: Context, client: int, round: int) -> None:
    """Log the norm of an update; warn once for a client whose training diverges."""
    advice = clip_advice(norm, clip_norm) if is_simulated(context) else ""
    log(INFO, "norm of the update: %.3g, clip norm %g%s", norm, clip_norm, advice)
    warning = divergence(norm, clip_norm)
    if warning is not None and WARNED not in context.state:
        context.state[WARNED] = ConfigRecord({"round": round})
        log(WARNING, "fedlsg: client %d, round %d: %s", client, round, warning)


@cache  # for a process: clients of a simulation share one
def _warned() -> set[tuple[int, Path]]:
    """Runs, with the folder of their ledgers, whose noise was warned of."""
    return set()


def _warn_of_hiding_noise(
    norm: float, here: Round, content: RecordDict, context: Context, ledger: Path
) -> None:
    """Warn, once for a run and process, that noise hides updates far below the clip norm.

    The server has warned before the first round where noise hides those of the clip norm.
    """
    mechanism, clients = here.method.mechanism, clients_of(content)
    run = int(context.run_id), ledger.parent
    if run in _warned() or not 0 < norm < mechanism.clip_norm / FAR_BELOW:
        return
    count = len(clients) or int(context.node_config.get("num-partitions", 1))
    pull = pull_of(
        mechanism.noise_multiplier,
        clients=count,
        rounds=here.terms.rounds,
        secure=bool(clients),
        share=norm / mechanism.clip_norm,
    )
    if reason := why_hidden(pull, here.frame.kept):
        _warned().add(run)
        log(
            WARNING,
            "fedlsg: noise is likely to hide the updates of %d clients, whose norm is about %.2g "
            "at clip_norm=%g: %s. Try PrivateUpdates(clip_norm=%.2g), or a larger learning rate in "
            "@app.train",
            count,
            norm,
            mechanism.clip_norm,
            reason,
            norm,
        )


def clip_advice(norm: float, clip_norm: float) -> str:
    """Advice for an update far below the clip norm, to which noise is proportional; else ""."""
    if not 0 < norm < clip_norm / FAR_BELOW:
        return ""
    return (
        f": noise is {clip_norm / norm:.2g} times what a clip norm of this size needs; try "
        f"PrivateUpdates(clip_norm={norm:.2g})"
    )


def divergence(norm: float, clip_norm: float) -> str | None:
    """A warning for an update that is not finite, or far above the clip norm; else None."""
    if not math.isfinite(norm):
        warning = (
            f"the app's training diverged: the norm of its update is {norm:g}. An update of zeros "
            "was sent in its place, with the usual noise: the round is charged, and this client "
            "adds nothing to the model but noise"
        )
    elif norm > FAR_ABOVE * clip_norm:
        warning = (
            f"the norm of the update is {norm / clip_norm:.2g} times the clip norm: the app's "
            "training is about to diverge, or clip_norm is far too small. The update was sent "
            f"scaled to {clip_norm:g}, with the usual noise"
        )
    else:
        return None
    return f"{warning}. Take a smaller learning rate in @app.train (said once for each client)"


def round_of(model: Callable[[], nn.Module], content: RecordDict, terms: RoundTerms) -> Round:
    """The round of a message. Raises SettingsError for another model or frame than the server's."""
    records = [record for name, record in content.array_records.items() if name not in OURS]
    if len(records) != 1:
        raise SettingsError(f"expected one ArrayRecord, the weights, and got {len(records)}")
    try:
        here = Round.of(model, records[0], terms)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if here.frame.digest.hex() != terms.digest:
        raise SettingsError(
            "this client derives another frame than the server: both need one model, one version "
            "of fedlsg, one kind of processor"
        )
    return here


def _charge(ledger: Ledger, here: Round, context: Context, limits: Limits, clients: int) -> None:
    """Charge one round; ``clients``: of its secure sum, 0 without one.

    Raises OverBudgetError or SettingsError; nothing is charged then.
    """
    mechanism, run = here.method.mechanism, str(context.run_id)
    if not mechanism.private:
        raise SettingsError(
            f"the server asks for mechanism {mechanism.kind!r}, which has no epsilon: refused"
        )
    of_sum: dict[str, Any] = {}
    if here.terms.trust == "secure":
        of_sum = {
            "min_survivors": here.terms.min_survivors,
            "colluders": here.terms.colluders,
            "log_ratio": here.release(clients).log_ratio,
        }
    entry = Entry(
        client=ledger.client,
        round=here.terms.round,
        attempt=ledger.next_attempt(here.terms.round, run),
        steps=1,
        sample_rate=1.0,
        noise_multiplier=mechanism.effective_noise_multiplier(len(here.frame.blocks)),
        clip_norm=mechanism.clip_norm,
        num_examples=1,
        mechanism=mechanism.kind,
        run=run,
        unit=CLIENT.name,
        **of_sum,
    )
    with held_to(limits) as held:
        try:
            ledger.charge(entry)
        except BudgetError:
            raise OverBudgetError(str(held.refused)) from None


def _update_of(answer: Message, here: Round) -> Tensor:
    """The values of the app's update. Raises RuntimeError for a reply without an update."""
    if answer.has_error() or len(answer.content.array_records) != 1:
        raise RuntimeError("the app's @app.train gave no reply with one ArrayRecord")
    (after,) = answer.content.array_records.values()
    return here.values(to_cpu(after.to_torch_state_dict()))


def asks_for_update(message: Message) -> bool:
    """Whether a message is for @app.train, of any name."""
    return message.metadata.message_type.partition(".")[0] == MessageType.TRAIN


def answer(message: Message, payload: bytes, numbers: Numbers) -> Message:
    """A reply with a payload and public numbers."""
    content = RecordDict({KEY: ConfigRecord({PAYLOAD: payload})})
    if numbers:
        content["metrics"] = MetricRecord(numbers)
    return Message(content, reply_to=message)
