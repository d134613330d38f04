"""Whole updates in a secure sum, inside of somebody's Flower app: the client's stages, and the
server's round.

A client adds its share of the noise on a grid, and masks it (``fedlsg.secure_sum``): the server
learns the sum alone. A client's number in the protocol follows from its node id, which both sides
know from Flower and not from a message.
"""

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from logging import WARNING
from pathlib import Path

import torch
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid
from jaxtyping import Float64
from torch import Tensor

from fedlsg.secure_sum import GivenUp, SecureSumError, Server, secret_root
from fedlsg.secure_sum import Terms as Attempt
from fedlsg.simulations.client.secure_sum import Train, answer, masked, stage_in
from fedlsg.simulations.flower_apps.whole_update import KEY, PAYLOAD, Round, RoundTerms
from fedlsg.simulations.storage.updates import save_whole
from fedlsg.strategies.protocol.stages import (
    KEYS,
    MASKED,
    Stage,
    close_sum,
    open_sum,
    write_stage,
)


def number_of(node: int) -> int:
    """A node's number in secure sums, below 2^32."""
    return int.from_bytes(hashlib.sha256(f"fedlsg client {node}".encode()).digest()[:4], "little")


def answer_stage(content: RecordDict, terms: RoundTerms, context: Context) -> bytes:
    """The answer to a stage without values. Raises SecureSumRefusedError for what the protocol
    forbids.
    """
    stage, me = stage_in(content), number_of(context.node_id)
    return answer(stage, lambda: _attempt(stage, terms), me, context.state, secret_root)


def masked_update(content: RecordDict, here: Round, context: Context, train: Train) -> bytes:
    """The masked values of a round; ``train`` charges the ledger and gives the integers that the
    noise leaves.

    An attempt that was answered gets that answer, and nothing is charged. Raises
    SecureSumRefusedError before a charge.
    """
    stage, terms = stage_in(content), here.terms
    return masked(
        stage,
        lambda: _attempt(stage, terms),
        number_of(context.node_id),
        context.state,
        here.release(len(stage.clients)),
        round=terms.round,
        seed=terms.seed,
        train=train,
    )


def _attempt(stage: Stage, terms: RoundTerms) -> Attempt:
    """The attempt, whose keys depend on the terms of all rounds: clients with others cannot be in
    one sum.

    The noise of a sum comes from all of its clients. One that was told a smaller clip, or less
    noise, would add less than the ledgers of the others count on.
    """
    agreed = json.dumps(asdict(replace(terms, round=0, digest="")), sort_keys=True)
    stage = replace(stage, run=hashlib.sha256(stage.run + agreed.encode()).digest())
    try:
        return stage.terms(terms.sums(len(stage.clients)))
    except ValueError as error:
        raise SecureSumError(str(error)) from None


class SecureRound:
    """The server's side of one attempt, in the order of its methods. ``run``: 32 bytes, new for
    each start.
    """

    def __init__(self, grid: Grid, here: Round, run: bytes, messages: Iterable[Message]) -> None:
        self._grid, self._here = grid, here
        self._messages: dict[int, Message] = {}
        for message in messages:
            if (
                self._messages.setdefault(
                    number := number_of(message.metadata.dst_node_id), message
                )
                is not message
            ):
                log(
                    WARNING,
                    "node %s is left out: its number %d is another's",
                    message.metadata.dst_node_id,
                    number,
                )
        self._nodes = {number: m.metadata.dst_node_id for number, m in self._messages.items()}
        release = here.release(len(self._messages))
        self._stage = Stage(
            name=KEYS,
            run=run,
            round=here.terms.round,
            attempt=0,
            clients=tuple(sorted(self._messages)),
            length=release.values,
            bits=release.grid.bits,
            noise=release.noise_std(1),
        )
        self._release = release
        self._server = Server(_attempt(self._stage, here.terms))

    def begin(self) -> list[Message]:
        """Keys and shares; then the messages of training for the clients that are still there."""
        sent = open_sum(self._server, self._ask, self._nodes)
        if isinstance(sent, GivenUp):
            self._explain(sent)
            return []
        for number, delivery in sent.items():
            write_stage(
                self._messages[number].content, replace(self._stage, name=MASKED, message=delivery)
            )
        return [self._messages[number] for number in sent]

    def mean(self, values: dict[int, bytes]) -> Float64[Tensor, " kept"] | None:
        """The mean of the survivors' updates, with its noise; None where the round is given up.

        ``values``: masked ones, by node.
        """
        sent = {number_of(node): message for node, message in values.items()}
        found = close_sum(self._server, self._ask, sent)
        self._explain(found)
        if isinstance(found, GivenUp):
            return None
        words = torch.from_numpy(found.values.astype("int64"))
        total = self._release.decode(
            words, seed=self._here.terms.seed, round=self._here.terms.round
        )
        self._survivors = len(found.survivors)
        return total / self._survivors

    def keep(self, folder: Path, mean: Tensor) -> None:
        """Record the sum that ``mean`` is of."""
        noise, count = self._release.noise_std(self._survivors), self._survivors
        save_whole(
            folder,
            self._here.terms.round,
            "sum",
            total=mean * count,
            noise_std=noise,
            clients=float(count),
        )

    def _ask(self, name: str, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        asked = []
        for number, text in messages.items():
            content = RecordDict({KEY: self._here.terms.record()})
            write_stage(content, replace(self._stage, name=name, message=text))
            asked.append(Message(content, self._nodes[number], MessageType.TRAIN))
        replies = list(self._grid.send_and_receive(asked))
        refuse_without_mod(replies)
        return {
            number_of(r.metadata.src_node_id): p
            for r in replies
            if (p := payload_of(r)) is not None
        }

    def _explain(self, outcome: object) -> None:
        for number, why in self._server.refused.items():
            log(WARNING, "node %s is left out of the secure sum: %s", self._nodes.get(number), why)
        if isinstance(outcome, GivenUp):
            log(WARNING, "round %d: %s", self._here.terms.round, outcome)


def refuse_without_mod(replies: Iterable[Message]) -> None:
    """Raise RuntimeError if no reply of a round comes from a client with fedlsg's mod.

    With it a client replies with a payload, or with an error of fedlsg: exceptions of the app stay
    inside.
    """
    replies = list(replies)
    if not replies or not all(_lacks_mod(reply) for reply in replies):
        return
    left = ""
    if not all(reply.has_error() for reply in replies):
        left = "; what they sent had no noise and was not used"
    raise RuntimeError(
        f"no client has fedlsg's mod{left}. client_app.py needs "
        "app = ClientApp(mods=[fedlsg.flower.private_update(...)]), or, for unit='example', "
        "ClientApp(mods=[fedlsg.flower.PrivateNode(...)]) and fedlsg.flower.reply(step, msg, "
        "model=...); the mod comes first in mods"
    )


def _lacks_mod(reply: Message) -> bool:
    if reply.has_error():
        return reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return KEY not in reply.content.config_records


def payload_of(reply: Message) -> bytes | None:
    """The payload of a reply; None, with a line in the log, of an error or of anything else."""
    record = None if reply.has_error() else reply.content.config_records.get(KEY)
    payload = None if record is None else record.get(PAYLOAD)
    if isinstance(payload, bytes):
        return payload
    why = reply.error.reason if reply.has_error() else "its reply has no payload"
    log(WARNING, "node %s: %s", reply.metadata.src_node_id, str(why)[:300])
    return None


def new_run() -> bytes:
    """A name that no other run has."""
    return secrets.token_bytes(32)
