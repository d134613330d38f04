"""The Flower ClientApp: two messages, ``query`` (identity) and ``train`` (one round).

A client always replies: a silent one would delay the round. Its reply is a payload, a refusal or
one constant text. The text of a refusal (a ``RefusalError``, or an error of the ledger or of the
code) names settings, terms, files and public data. Even the type of any other error may reveal
private data: memory that ran out reveals the size of a batch, an index error a label. The client's
log has the whole error. In a simulation, a full disk is reported as well: it is the run's disk.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from logging import WARNING
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.logger import log

from fedlsg.privacy import Ledger, LedgerError
from fedlsg.rows import LostWorkerError
from fedlsg.simulations.client.deployed import Deployed
from fedlsg.simulations.client.node.folder import NodeFolder
from fedlsg.simulations.client.node.node_config import read_terms
from fedlsg.simulations.client.node.other_replies import book_of, kinds_of, other_reply
from fedlsg.simulations.client.node.refusals import RefusalError, SettingsError, log_failure
from fedlsg.simulations.client.process_state import process
from fedlsg.simulations.client.secure_sum import answer_stage
from fedlsg.simulations.client.train import answer
from fedlsg.simulations.client.virtual import SHARED, in_simulation
from fedlsg.simulations.settings.settings import Settings, code_in
from fedlsg.simulations.settings.with_preset import from_run_config, unfolded
from fedlsg.simulations.storage.atomic_files import cause_of
from fedlsg.strategies.protocol.proofs import OtherCodeError, check_same_code
from fedlsg.strategies.protocol.stages import asks_for_values
from fedlsg.strategies.protocol.wire import (
    DISK_FULL,
    FAILED,
    IN_RUN_LOG,
    NO_REASON,
    failure,
    identity,
    stage_of,
    update,
)
from fedlsg.user_code import permit
from fedlsg.user_code.failure import without_exit

OURS = ("query", "query.default", "train", "train.default")
"""The types of the two messages, under both names that Flower has for them."""
Read = Callable[[Message, Context], Settings]
"""Reads a run's settings from a message or its context. Raises SettingsError without settings."""


def make_app(read: Read, replies_without_noise: str = "") -> ClientApp:
    """A ClientApp with the two messages; ``read`` finds the settings of a run.

    Other handlers may be added. Their replies stay on the node unless its owner allows them
    (``other_replies``). Raises ValueError for unknown kinds of ``replies_without_noise``.
    """
    others = kinds_of(replies_without_noise)

    def only_ours(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type in OURS:
            return call_next(message, context)
        book = None if is_simulated(context) else partial(_other_book, context)
        try:
            with without_exit():
                return other_reply(message, context, call_next, others, book)
        except Exception as error:
            return refusal(error, message, on_run_disk=False, reason=NO_REASON)

    app = ClientApp(mods=[only_ours])

    @app.query()
    def query(message: Message, context: Context) -> Message:
        """This client's partition and number of examples; refused if the server runs other code."""
        return _reply(message, context, lambda: _identity(message, context, read))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """One round's payload."""
        return _reply(
            message,
            context,
            lambda: _update(message, context, read),
            on_run_disk=is_simulated(context),
        )

    return app


def _other_book(context: Context) -> Ledger:
    """The ledger of a deployed client's replies without noise."""
    terms = read_terms(context.node_config)
    return book_of(terms.partition, NodeFolder.open(terms).path)


def is_simulated(context: Context) -> bool:
    """Whether this client is simulated, by our engines or by Flower's own.

    Otherwise it is a SuperNode with a machine of its own.
    """
    return SHARED in context.node_config or in_simulation()


def simulated_settings(run_config: Mapping[str, Any], partitions: int) -> Settings:
    """The settings of simulated clients. Raises SettingsError as ``run_settings``."""
    return with_clients(run_settings(run_config), partitions)


def with_clients(settings: Settings, partitions: int) -> Settings:
    """The settings with a number of clients: that of the partitions, if none is set."""
    return settings if settings.clients is not None else replace(settings, clients=partitions)


def run_settings(run_config: Mapping[str, Any]) -> Settings:
    """The settings of a run config. Raises SettingsError for an invalid config."""
    try:
        return _settings(_items(run_config))
    except ValueError as error:
        raise SettingsError(str(error)) from None


class _Items(tuple[tuple[str, Any], ...]):
    """The items of a run config, whose hash is computed once for all clients of a run."""

    def __hash__(self) -> int:
        if "cached_hash" not in self.__dict__:
            self.cached_hash = super().__hash__()
        return self.cached_hash


_LAST: list[tuple[dict[str, Any], _Items]] = []
"""The last run config and its items; empty before the first."""


def _items(run_config: Mapping[str, Any]) -> _Items:
    """The sorted items of a run config; those of the last one are not sorted again."""
    last, items = _LAST[0] if _LAST else ({}, _Items())
    if last != run_config:
        items = _Items(sorted(run_config.items()))
        _LAST[:] = [(dict(run_config), items)]  # another thread's run may replace it at once
    return items


@lru_cache(maxsize=4)  # they follow from the config alone
def _settings(config: _Items) -> Settings:
    return from_run_config(dict(config))


def _read_run_config(message: Message, context: Context) -> Settings:
    """The settings in the run config of a context."""
    if is_simulated(context):  # the code runs on the machine of the user who named it
        permit(*_code_in(_items(context.run_config), os.getcwd()))
    return run_settings(context.run_config)


@lru_cache(maxsize=4)  # they follow from the config and the folder alone
def _code_in(config: _Items, folder: str) -> tuple[str, ...]:
    """Names of code in a run config, absolute in a working directory; none in an invalid config."""
    with suppress(ValueError):
        return tuple(chain.from_iterable(code_in(unfolded(dict(config))).values()))
    return ()


def read_simulated(message: Message, context: Context, read: Read) -> tuple[Settings, int]:
    """Settings and partition of a simulated client; every node is a client if no number is set."""
    settings = with_clients(read(message, context), int(context.node_config["num-partitions"]))
    return settings, int(context.node_config["partition-id"])


def _identity(message: Message, context: Context, read: Read) -> RecordDict:
    """The reply to ``query``."""
    check_same_code(
        message.content,
        "the server",
        receiver=f"client {context.node_config.get('partition-id', '')}".strip(),
        local=is_simulated(context),
    )
    if not is_simulated(context):
        return Deployed.of(context.node_config, read(message, context)).identity()
    settings, partition = read_simulated(message, context, read)
    base = process(settings).base
    return identity(partition, base.rows.size_of(partition) if partition < len(base.parts) else 0)


def _update(message: Message, context: Context, read: Read) -> RecordDict:
    """The reply to ``train``."""
    content, state = message.content, context.state
    if not is_simulated(context):
        return Deployed.of(context.node_config, read(message, context)).update(content, state)
    settings, partition = read_simulated(message, context, read)
    if not asks_for_values(stage_of(content)):
        payload = answer_stage(process(settings).base, partition, content, state)
    else:
        payload = answer(settings, partition, content, state, shared=True)
    return update(payload, partition)


def _reply(
    message: Message,
    context: Context,
    content: Callable[[], RecordDict],
    *,
    on_run_disk: bool = False,
) -> Message:
    """A message with ``content()``, or a refusal if that fails.

    ``on_run_disk``: the client writes to the disk of the run, which stops if that is full.
    """
    try:
        with without_exit():
            return Message(content(), reply_to=message)
    except Exception as error:
        reason = IN_RUN_LOG if SHARED in context.node_config else NO_REASON
        return refusal(error, message, on_run_disk=on_run_disk, reason=reason)


def refusal(
    error: Exception, message: Message, *, on_run_disk: bool, reason: str = IN_RUN_LOG
) -> Message:
    """The reply for the current exception: its text if that may leave the client, else ``reason``.

    ``on_run_disk``: as in ``_reply``.
    """
    disk_full = cause_of(error) if on_run_disk else None
    if disk_full is not None:
        log_failure()
        return failure(f"{disk_full.filename}", DISK_FULL, message)
    if isinstance(error, (RefusalError, LedgerError, OtherCodeError)):
        log(WARNING, "refused: %s", error)
        code = error.code if isinstance(error, RefusalError) else FAILED
        return failure(str(error), code, message)
    log_failure()
    if on_run_disk and isinstance(error, LostWorkerError):
        reason = str(error)
    return failure(reason, FAILED, message)


app = make_app(_read_run_config)
