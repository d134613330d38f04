"""The accounts of all simulated clients, which the driver keeps on the engines local and ray.

The privacy claim rests on this order. The charges of all clients of a delivery are in the run's
ledger, on disk, with one record and one sync, before any of them is asked. Each client gets its
entry with its message, and can draw once for it. When its reply is back, its payload is stored. The
charge of a client that reports that it drew nothing, or that was never asked, becomes void. Clients
that are lost with a worker, late, or interrupted stay charged. If the server adds the noise, only
its own ledger is charged, and none here (``takes_part_in_secret``).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from logging import WARNING

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from jaxtyping import Float, Int64
from torch import Tensor

from fedlsg.privacy import Entry, RunLedger
from fedlsg.simulations.client.client_account import (
    RECORD,
    SimulatedAccount,
    array_in,
    bytes_of,
    encode,
    entry_of,
    forget_encoded,
    takes_part_in_secret,
)
from fedlsg.simulations.client.client_app import refusal
from fedlsg.simulations.client.piles import Answer, Pile, Task
from fedlsg.simulations.client.secure_sum import RECORD as SECRETS
from fedlsg.simulations.client.train import (
    keeps_one_round,
    keeps_payload,
    memory_size,
    own_terms,
    remembers,
    request_id_of,
    stored_payload,
)
from fedlsg.simulations.client.virtual import FIRST_NODE, give_id
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.storage.feedback_box import FeedbackBox
from fedlsg.simulations.storage.last_payload import LastPayload
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.state import RoundPlan
from fedlsg.strategies.protocol.downlink import read_reference
from fedlsg.strategies.protocol.stages import asks_for_values
from fedlsg.strategies.protocol.wire import (
    config_in,
    flat_bytes,
    is_reply_to,
    read_round,
    read_update,
    stage_of,
    update,
)


def give(
    entry: Entry,
    *,
    last: bytes | None,
    memory: Float[Tensor, " size"] | None,
    batches: bytes | None = None,
    here: bool = False,
) -> RecordDict:
    """The state of a client's Context, as the driver sends it.

    entry: the charge.
    last: the client's last payload; None if it is not needed.
    memory: of error feedback, or personal parameters; None without them.
    batches: the key of shuffled batches; None without them.
    here: whether client and driver are one process.
    """
    record = ConfigRecord({"entry": encode(entry), "charged": False, "here": here})
    optional = {
        "last": last,
        "batches": batches,
        "memory": None if memory is None else bytes_of(memory, "<f8"),
    }
    record.update({name: value for name, value in optional.items() if value is not None})
    return RecordDict({RECORD: record})


@dataclass(frozen=True, kw_only=True)
class Returned:
    """The content of a client's state when it is back; rows and memory are secrets of the client.

    charged: whether the attempt was used; True if nobody knows.
    rows: of its batches; None if they are not recorded.
    memory: the new one; None without memory.
    """

    charged: bool
    rows: Int64[Tensor, " n"] | None
    memory: Float[Tensor, " size"] | None


def read_returned(state: RecordDict) -> Returned:
    """Read a state that is back."""
    record = config_in(state, RECORD)
    if record is None:
        return Returned(charged=True, rows=None, memory=None)
    rows, memory = array_in(record, "rows", "<i8"), array_in(record, "memory", "<f8")
    return Returned(charged=record["charged"] is not False, rows=rows, memory=memory)


def checked_answers(answers: Sequence[Answer], tasks: Pile) -> Sequence[Answer]:
    """The answers of a worker's clients, one for each task.

    Raises TypeError, ValueError or KeyError for anything else.
    """
    if len(answers) != len(tasks):
        raise ValueError(f"{len(answers)} answers to {len(tasks)} messages")
    for reply, state in answers:
        if not isinstance(reply, Message | None) or not isinstance(state, RecordDict):
            raise TypeError("expected a message, or none, and a state")
        read_returned(state)
    return answers


def own_reply(reply: Message | None, message: Message) -> Message | None:
    """The reply, or None if it answers another message: a worker may only reply for its clients."""
    if reply is None or is_reply_to(reply, message.metadata.message_id, message):
        return reply
    log(
        WARNING,
        "client %d: its reply is to another message, and is not used",
        message.metadata.dst_node_id - FIRST_NODE,
    )
    return None


def payload_in(reply: Message | None) -> bytes:
    """The payload of a reply; empty without one, or if the server will reject it."""
    try:
        return b"" if reply is None or reply.has_error() else read_update(reply.content)
    except ValueError:
        return b""


class Accounts:
    """Ledgers, stored payloads and recorded batches of the clients of a run, in its directory."""

    def __init__(self, plan: Plan, run: RunDir, *, here: bool = False) -> None:
        """``here``: clients are called in this process, and find the run's files themselves."""
        self._plan, self._run, self._here = plan, run, here
        self._ledger = RunLedger(run.ledgers)
        # the plan of the current round; None before the first
        self._round: RoundPlan | None = None
        # by message id: account, charge and request id of the clients of this round
        self._asked: dict[str, tuple[SimulatedAccount, Entry, str]] = {}
        # ids of messages whose clients have not been asked yet
        self._waiting = set[str]()
        # by node: the client's secrets between the stages of a secure sum. They are the client's:
        # the driver is not part of the server.
        self._secrets: dict[int, ConfigRecord] = {}
        # the weights of the last message, and their digest
        self._weights: tuple[bytes, bytes] = b"", b""
        self._keeps = keeps_payload(plan)
        # by client: the request id of the payload that this process has stored
        self._stored: dict[int, str] = {}
        # by client: the round of its stored payload, if that may be deleted later
        self._rounds: dict[int, int] = {}

    def expect(self, plan: RoundPlan) -> None:
        """Begin a round, to which the next messages belong; no client is at work now."""
        self._round = plan
        forget_encoded()
        self._asked.clear()
        self._waiting.clear()
        # payloads of earlier rounds than the last are needed by no checkpoint
        old = [client for client, done in self._rounds.items() if done < plan.round - 1]
        for client in old:
            self._run.last_payload(client).unlink(missing_ok=True)
            del self._rounds[client]
            self._stored.pop(client, None)

    def ask(self, messages: Sequence[Message]) -> tuple[list[Task], list[Message]]:
        """Tasks for the clients that train, all of them charged, and replies of the others.

        A client does not train if its payload is stored, or if it must not. Raises LedgerError if
        the charges cannot be written: nobody may train then.
        """
        tasks, replies = list[Task](), list[Message]()
        for message in messages:
            task = self._task_or_refusal(message)
            tasks.append(task) if isinstance(task, Task) else replies.append(task)
        ids = [task.message.metadata.message_id for task in tasks]
        asked = [self._asked[name] for name in ids if name in self._asked]
        self._ledger.charge([entry for account, entry, _ in asked if not account.is_charged(entry)])
        self._waiting |= set(ids)
        return tasks, replies

    def settle(self, tasks: Pile, answers: Sequence[Answer]) -> list[Message]:
        """Store payloads and batches of clients that are back; void charges that were not used.

        Returns the replies; an error for a client whose payload cannot be stored, and no reply for
        one that answers another message. A client that sends a payload has drawn for it, whatever
        its state says.
        """
        void, replies = list[Entry](), list[Message]()
        for task, (received, state) in zip(tasks, answers, strict=True):
            reply = own_reply(received, task.message)
            asked = self._asked.pop(task.message.metadata.message_id, None)
            secrets = config_in(state, SECRETS)
            if secrets is not None:
                self._secrets[task.message.metadata.dst_node_id] = secrets
            if asked is not None:
                account, entry, request_id = asked
                returned = read_returned(state)
                # a payload that answers another message was drawn, too: charged, but not stored
                if returned.charged or payload_in(received):
                    reply = self._store(account, entry, request_id, task.message, reply, returned)
                else:
                    void.append(entry)
            if reply is not None:
                replies.append(reply)
        if void:
            self._ledger.void(void)
        return replies

    def leaves(self, tasks: Pile) -> None:
        """Note that these tasks are sent: their clients stay charged unless they drew nothing."""
        self._waiting -= {task.message.metadata.message_id for task in tasks}

    def keep(self, tasks: Pile) -> None:
        """Note that these clients are lost: they stay charged, since nobody knows who trained."""
        for task in tasks:
            self._asked.pop(task.message.metadata.message_id, None)

    def end(self) -> None:
        """Void the charges of clients that still wait: nobody else is asked."""
        ids = self._waiting & self._asked.keys()
        self._waiting = set()
        if ids:
            self._ledger.void([self._asked.pop(name)[1] for name in sorted(ids)])

    def _task_or_refusal(self, message: Message) -> Task | Message:
        """The task for a client, or a reply if it need not, or must not, train."""
        if message.metadata.message_type != MessageType.TRAIN:
            return Task(message)
        client = message.metadata.dst_node_id - FIRST_NODE
        try:
            return self._task(message, client)
        except Exception as error:
            return give_id(refusal(error, message, on_run_disk=True))

    def _task(self, message: Message, client: int) -> Task | Message:
        """The task for a client, with its charge, or its stored payload. Raises what refuses it."""
        assert self._round is not None
        secrets = self._secrets.get(message.metadata.dst_node_id)
        if not asks_for_values(stage_of(message.content)):
            return Task(message, RecordDict({} if secrets is None else {SECRETS: secrets}))
        base, announced = self._plan, read_round(message.content)
        account = SimulatedAccount(self._run, self._ledger.of(client), base.settings)
        box = account.box(memory=remembers(base))
        request_id = request_id_of(announced, base.settings.codec, self._digest(message.content))
        # a payload of this process answers another request: the file need not be read
        answers_other = self._stored.get(client, request_id) != request_id
        if (self._keeps or remembers(base)) and not answers_other:
            stored = stored_payload(account, box, request_id, announced.round)
            if stored is not None:
                return give_id(Message(update(stored, client), reply_to=message))
        terms = own_terms(announced, base.rows.size_of(client))
        plan = self._round.for_client(terms)
        entry = entry_of(account, plan, terms.num_examples, reproducible=base.settings.reproducible)
        account.check(entry)
        memory = None
        if isinstance(box, FeedbackBox):
            memory = box.memory(announced.round, memory_size(plan.frame))
        state = give(
            entry,
            last=box.last() if base.uplink.explicit else None,
            memory=memory,
            batches=account.batch_key(entry) if entry.batches and not entry.reproducible else None,
            here=self._here,
        )
        if not takes_part_in_secret(base):
            self._asked[message.metadata.message_id] = account, entry, request_id
        if secrets is not None:
            state[SECRETS] = secrets
        return Task(message, state, terms.num_examples)

    def _store(
        self,
        account: SimulatedAccount,
        entry: Entry,
        request_id: str,
        message: Message,
        reply: Message | None,
        returned: Returned,
    ) -> Message | None:
        """Store a client's payload, memory and rows; returns its reply, or an error."""
        client = account.client
        try:
            if returned.rows is not None:
                account.keep_truth(entry.round, [returned.rows])
            payload = payload_in(reply)
            if payload and returned.memory is not None:
                box = FeedbackBox(self._run.own(client), client)
                # returns this payload: the driver alone writes these boxes
                box.store(request_id, payload, returned.memory, round=entry.round)
            elif payload and self._keeps:
                self._stored.pop(client, None)  # in case that storing fails
                box_of_last = LastPayload(self._run.last_payload(client))
                box_of_last.store(request_id, payload, alone=True)
                self._stored[client] = request_id
                if keeps_one_round(self._plan):
                    self._rounds[client] = entry.round
            return reply
        except Exception as error:
            return give_id(refusal(error, message, on_run_disk=True))

    def _digest(self, content: RecordDict) -> bytes:
        """The digest of the announced weights; computed once for weights that clients share."""
        reference = read_reference(content)
        if reference is not None:
            return reference.digest
        weights = flat_bytes(content)
        if weights is not self._weights[0]:
            self._weights = weights, hashlib.sha256(weights).digest()
        return self._weights[1]
