"""The accounts of all simulated clients, which the driver keeps on the engines local and ray.

Order, which the privacy claim rests on: the charges of all clients that a delivery asks are in the
run's ledger, on disk, with one record and one sync, before any of them is asked. Each gets its
entry with its message, and can draw once for it. When it is back, its payload is stored; a client
that says that it drew nothing, or was never asked, has a void charge. What is lost with a worker,
late, or cut off by an interruption stays charged.
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
    encoded,
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
    question_of,
    remembers,
    stored_payload,
)
from fedlsg.simulations.client.virtual import FIRST_NODE, give_id
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.storage.feedback_box import FeedbackBox
from fedlsg.simulations.storage.last_payload import LastPayload
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.state import RoundPlan
from fedlsg.strategies.protocol.downlink import read_reference
from fedlsg.strategies.protocol.stages import MASKED
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
    """The state of a client's Context, as the driver sends it. ``here``: client and driver are one
    process.
    """
    record = ConfigRecord({"entry": encoded(entry), "charged": False, "here": here})
    kept = {
        "last": last,
        "batches": batches,
        "memory": None if memory is None else bytes_of(memory, "<f8"),
    }
    record.update({name: value for name, value in kept.items() if value is not None})
    return RecordDict({RECORD: record})


@dataclass(frozen=True, kw_only=True)
class Returned:
    """What the state says when it is back; ``charged``: the attempt was used, or nobody knows.

    ``rows`` and ``memory`` are secrets of the client.
    """

    charged: bool
    rows: Int64[Tensor, " n"] | None
    memory: Float[Tensor, " size"] | None


def read_returned(state: RecordDict) -> Returned:
    """The driver's reading of a state."""
    record = config_in(state, RECORD)
    if record is None:
        return Returned(charged=True, rows=None, memory=None)
    rows, memory = array_in(record, "rows", "<i8"), array_in(record, "memory", "<f8")
    return Returned(charged=record["charged"] is not False, rows=rows, memory=memory)


def checked_answers(answers: Sequence[Answer], tasks: Pile) -> Sequence[Answer]:
    """What a worker says that its clients answered, one for each task. Raises TypeError, ValueError
    or KeyError for anything else.
    """
    if len(answers) != len(tasks):
        raise ValueError(f"{len(answers)} answers to {len(tasks)} messages")
    for reply, state in answers:
        if not isinstance(reply, Message | None) or not isinstance(state, RecordDict):
            raise TypeError("expected a message, or none, and a state")
        read_returned(state)
    return answers


def own_reply(reply: Message | None, message: Message) -> Message | None:
    """The reply, unless it is to another message: a worker speaks for no client but those that it
    was asked for.
    """
    if reply is None or is_reply_to(reply, message.metadata.message_id, message):
        return reply
    log(
        WARNING,
        "client %d: its reply is to another message, and is not used",
        message.metadata.dst_node_id - FIRST_NODE,
    )
    return None


def payload_in(reply: Message | None) -> bytes:
    """The payload of a reply; empty where there is none, and where the server rejects it by
    name.
    """
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
        self._round: RoundPlan | None = None
        self._asked: dict[str, tuple[SimulatedAccount, Entry, str]] = {}
        self._waiting = set[str]()
        """Messages whose clients have not been asked yet."""
        self._secrets: dict[int, ConfigRecord] = {}
        """What clients keep between the stages of a secure sum. It is theirs: the driver is not
        part of the server.
        """
        self._weights: tuple[bytes, bytes] = b"", b""
        self._keeps = keeps_payload(plan)
        self._stored: dict[int, str] = {}
        """What the payloads answer that this process stored: no other one writes them."""
        self._rounds: dict[int, int] = {}
        """The rounds of these payloads, where they may go."""

    def expect(self, plan: RoundPlan) -> None:
        """The messages that follow are of this round; nobody is at work now."""
        self._round = plan
        forget_encoded()
        self._asked.clear()
        self._waiting.clear()
        # Both checkpoints are later than a round before the last: nobody asks for its payloads.
        old = [client for client, done in self._rounds.items() if done < plan.round - 1]
        for client in old:
            self._run.last_payload(client).unlink(missing_ok=True)
            del self._rounds[client]
            self._stored.pop(client, None)

    def ask(self, messages: Sequence[Message]) -> tuple[list[Task], list[Message]]:
        """A task for each client that trains, all of them charged; and the replies of those who
        need not, or must not.

        Raises LedgerError if the charges cannot be written: nobody may train then.
        """
        tasks, replies = list[Task](), list[Message]()
        for message in messages:
            made = self._made(message)
            tasks.append(made) if isinstance(made, Task) else replies.append(made)
        names = [task.message.metadata.message_id for task in tasks]
        asked = [self._asked[name] for name in names if name in self._asked]
        self._ledger.charge([entry for account, entry, _ in asked if not account.is_charged(entry)])
        self._waiting |= set(names)
        return tasks, replies

    def settle(self, tasks: Pile, answers: Sequence[Answer]) -> list[Message]:
        """Store the payloads and batches of clients that are back; who drew nothing has a void
        charge.

        Returns the replies; an error for a client whose payload cannot be stored, and nothing for
        one whose reply is to another message. A client that sends a payload has drawn for it,
        whatever its state says.
        """
        void, replies = list[Entry](), list[Message | None]()
        for task, (given, state) in zip(tasks, answers, strict=True):
            name = task.message.metadata.message_id
            reply = own_reply(given, task.message)
            known = self._asked.pop(name, None)
            if (kept := config_in(state, SECRETS)) is not None:
                self._secrets[task.message.metadata.dst_node_id] = kept
            if known is not None:
                account, entry, question = known
                returned = read_returned(state)
                if returned.charged or payload_in(given):
                    reply = self._store(account, entry, question, task.message, reply, returned)
                else:
                    void.append(entry)
            replies.append(reply)
        if void:
            self._ledger.void(void)
        return [reply for reply in replies if reply is not None]

    def leaves(self, tasks: Pile) -> None:
        """The clients of these tasks are asked now: they stay charged unless they say that they
        drew nothing.
        """
        self._waiting -= {task.message.metadata.message_id for task in tasks}

    def keep(self, tasks: Pile) -> None:
        """The clients of these tasks did not come back: they stay charged, for nobody knows who
        trained.
        """
        for task in tasks:
            self._asked.pop(task.message.metadata.message_id, None)

    def end(self) -> None:
        """Nobody else is asked: clients that were not have void charges."""
        names, self._waiting = self._waiting & self._asked.keys(), set()
        if names:
            self._ledger.void([self._asked.pop(name)[1] for name in sorted(names)])

    def _made(self, message: Message) -> Task | Message:
        """The task for a client, or its reply where it needs not, or must not, train."""
        if message.metadata.message_type != MessageType.TRAIN:
            return Task(message)
        client = message.metadata.dst_node_id - FIRST_NODE
        try:
            return self._task(message, client)
        except Exception as error:
            return give_id(refusal(error, message, on_run_disk=True))

    def _task(self, message: Message, client: int) -> Task | Message:
        assert self._round is not None
        kept = self._secrets.get(message.metadata.dst_node_id)
        secrets = RecordDict({} if kept is None else {SECRETS: kept})
        if stage_of(message.content) not in (None, MASKED):
            return Task(message, secrets)
        base, announced = self._plan, read_round(message.content)
        account = SimulatedAccount(self._run, self._ledger.of(client), base.settings)
        box = account.box(memory=remembers(base))
        question = question_of(announced, base.settings.codec, self._digest(message.content))
        # else it cannot
        known = (self._keeps or remembers(base)) and self._stored.get(client, question) == question
        stored = stored_payload(account, box, question, announced.round) if known else None
        if stored is not None:
            return give_id(Message(update(stored, client), reply_to=message))
        terms = own_terms(announced, base.rows.size_of(client))
        plan = self._round.for_client(terms)
        entry = entry_of(account, plan, terms.num_examples, reproducible=base.settings.reproducible)
        account.check(entry)
        state = give(
            entry,
            last=box.last() if base.uplink.explicit else None,
            memory=box.memory(announced.round, memory_size(plan.frame))
            if isinstance(box, FeedbackBox)
            else None,
            batches=account.batch_key(entry) if entry.batches and not entry.reproducible else None,
            here=self._here,
        )
        if not takes_part_in_secret(base):
            self._asked[message.metadata.message_id] = account, entry, question
        if kept is not None:
            state[SECRETS] = kept
        return Task(message, state, terms.num_examples)

    def _store(
        self,
        account: SimulatedAccount,
        entry: Entry,
        question: str,
        message: Message,
        reply: Message | None,
        returned: Returned,
    ) -> Message | None:
        """Store what is sent again for free after an interruption, and what attacks are compared
        with.
        """
        try:
            if returned.rows is not None:
                account.keep_truth(entry.round, [returned.rows])
            if not (payload := payload_in(reply)):
                return reply
            if returned.memory is not None:
                box = FeedbackBox(self._run.own(account.client), account.client)
                box.store(question, payload, returned.memory, round=entry.round)
            elif self._keeps:
                self._stored.pop(account.client, None)
                LastPayload(self._run.last_payload(account.client)).store(
                    question, payload, alone=True
                )
                self._stored[account.client] = question
                if keeps_one_round(self._plan):
                    self._rounds[account.client] = entry.round
            return reply
        except Exception as error:
            return give_id(refusal(error, message, on_run_disk=True))

    def _digest(self, content: RecordDict) -> bytes:
        """Of the announced weights, as the client computes it; computed once for the weights that
        clients share.
        """
        reference = read_reference(content)
        if reference is not None:
            return reference.digest
        weights = flat_bytes(content)
        if weights is not self._weights[0]:
            self._weights = weights, hashlib.sha256(weights).digest()
        return self._weights[1]
