"""Whole updates in a secure sum of a user's Flower app: the client's stages, the server's round.

A client adds its share of the noise on a grid and masks the result (``fedlsg.secure_sum``): the
server learns only the sum. A client's number in the protocol follows from its node id, which both
sides know from Flower and not from a message.
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
    """The answer to a stage without values. Raises SecureSumRefusedError for a forbidden stage."""
    stage = stage_in(content)
    number = number_of(context.node_id)
    return answer(stage, lambda: _attempt(stage, terms), number, context.state, secret_root)


def masked_update(content: RecordDict, here: Round, context: Context, train: Train) -> bytes:
    """The masked values of a round; ``train`` charges the ledger and returns noisy integers.

    An attempt that was answered gets the same answer, and nothing is charged. Raises
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
    """The attempt. Its keys depend on the terms of all rounds: only equal terms give a sum.

    The noise of a sum comes from all of its clients. A client that was told a smaller clip, or less
    noise, would add less than the ledgers of the others count on.
    """
    common_terms = json.dumps(asdict(replace(terms, round=0, digest="")), sort_keys=True)
    stage = replace(stage, run=hashlib.sha256(stage.run + common_terms.encode()).digest())
    try:
        return stage.terms(terms.sums(len(stage.clients)))
    except ValueError as error:
        raise SecureSumError(str(error)) from None


class SecureRound:
    """The server's side of one attempt; its methods are called in their order."""

    def __init__(self, grid: Grid, here: Round, run: bytes, messages: Iterable[Message]) -> None:
        """A secure sum of the clients that get these messages.

        run: 32 random bytes of the run.
        """
        self._grid, self._here = grid, here
        # messages of training by the client's number
        self._messages: dict[int, Message] = {}
        for message in messages:
            node = message.metadata.dst_node_id
            number = number_of(node)
            if number in self._messages:
                log(WARNING, "node %s is left out: its number %d is another's", node, number)
            else:
                self._messages[number] = message
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
        """Exchange keys and shares; returns the messages of training for the remaining clients."""
        deliveries = open_sum(self._server, self._ask, self._nodes)
        if isinstance(deliveries, GivenUp):
            self._explain(deliveries)
            return []
        for number, delivery in deliveries.items():
            stage = replace(self._stage, name=MASKED, message=delivery)
            write_stage(self._messages[number].content, stage)
        return [self._messages[number] for number in deliveries]

    def mean(self, values: dict[int, bytes]) -> Float64[Tensor, " kept"] | None:
        """The noisy mean of the survivors' updates; None if the round is given up.

        ``values``: masked values, by node.
        """
        masked_values = {number_of(node): message for node, message in values.items()}
        outcome = close_sum(self._server, self._ask, masked_values)
        self._explain(outcome)
        if isinstance(outcome, GivenUp):
            return None
        integers = torch.from_numpy(outcome.values.astype("int64"))
        terms = self._here.terms
        total = self._release.decode(integers, seed=terms.seed, round=terms.round)
        self._survivors = len(outcome.survivors)
        return total / self._survivors

    def keep(self, folder: Path, mean: Tensor) -> None:
        """Record the sum of the survivors, whose ``mean`` was returned before."""
        save_whole(
            folder,
            self._here.terms.round,
            "sum",
            total=mean * self._survivors,
            noise_std=self._release.noise_std(self._survivors),
            clients=float(self._survivors),
        )

    def _ask(self, name: str, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send a stage with a message for each client; returns their answers, by number."""
        requests = []
        for number, text in messages.items():
            content = RecordDict({KEY: self._here.terms.record()})
            write_stage(content, replace(self._stage, name=name, message=text))
            requests.append(Message(content, self._nodes[number], MessageType.TRAIN))
        replies = list(self._grid.send_and_receive(requests))
        refuse_without_mod(replies)
        answers = {}
        for reply in replies:
            payload = payload_of(reply)
            if payload is not None:
                answers[number_of(reply.metadata.src_node_id)] = payload
        return answers

    def _explain(self, outcome: object) -> None:
        """Log the clients that were left out, and a round that was given up."""
        for number, why in self._server.refused.items():
            log(WARNING, "node %s is left out of the secure sum: %s", self._nodes.get(number), why)
        if isinstance(outcome, GivenUp):
            log(WARNING, "round %d: %s", self._here.terms.round, outcome)


def refuse_without_mod(replies: Iterable[Message]) -> None:
    """Raise RuntimeError if no reply of a round comes from a client with fedlsg's mod.

    With the mod a client replies with a payload, or with an error of fedlsg: the app's exceptions
    do not leave it.
    """
    replies = list(replies)
    if not replies or not all(_lacks_mod(reply) for reply in replies):
        return
    unused = ""
    if not all(reply.has_error() for reply in replies):
        unused = "; what they sent had no noise and was not used"
    raise RuntimeError(
        f"no client has fedlsg's mod{unused}. client_app.py needs "
        "app = ClientApp(mods=[fedlsg.flower.private_update(...)]), or, for unit='example', "
        "ClientApp(mods=[fedlsg.flower.PrivateNode(...)]) and fedlsg.flower.reply(step, msg, "
        "model=...); the mod comes first in mods"
    )


def _lacks_mod(reply: Message) -> bool:
    """Whether a reply is not one of fedlsg's mod."""
    if reply.has_error():
        return reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return KEY not in reply.content.config_records


def payload_of(reply: Message) -> bytes | None:
    """The payload of a reply; None, with a line in the log, if it has none."""
    record = None if reply.has_error() else reply.content.config_records.get(KEY)
    payload = None if record is None else record.get(PAYLOAD)
    if isinstance(payload, bytes):
        return payload
    why = reply.error.reason if reply.has_error() else "its reply has no payload"
    log(WARNING, "node %s: %s", reply.metadata.src_node_id, str(why)[:300])
    return None


def new_run() -> bytes:
    """A random name of a run, which no other run has."""
    return secrets.token_bytes(32)
