"""The accounts of all simulated clients, which the driver keeps for workers that write no file.

Order, which the privacy claim rests on: before a pile of tasks leaves for a worker, the charges of its clients are in
the run's journal, on disk, with one sync. When it is back, those who trained are charged in their ledgers, those who
did not are void in the journal, and payloads are stored. What is lost with a worker stays charged.
"""

import hashlib
from collections.abc import Sequence

from flwr.app import ConfigRecord, Message, RecordDict

from fedlsg.privacy import Entry
from fedlsg.state import RoundPlan
from simulations.client.account import SimulatedAccount, entry_of, takes_part_in_secret
from simulations.client.app import refusal
from simulations.client.personal import memory_size, remembers
from simulations.client.remote_account import Returned, give, read_returned
from simulations.client.secure_sum import RECORD as SECRETS
from simulations.client.train import keeps_payload, own_terms, question_of, stored_payload
from simulations.grids.piles import Answer, Pile, Task
from simulations.grids.virtual import give_id
from simulations.plan.plan import Plan
from simulations.rundir.feedback_box import FeedbackBox
from simulations.rundir.outbox import Outbox
from simulations.rundir.rundir import RunDir
from strategies.federation.replica_wire import read_reference
from strategies.federation.secure_sum.wire import MASKED, stage_of
from strategies.federation.wire import flat_bytes, read_round, read_update, update

JOURNAL_BYTES = 2**24
"""A longer journal is settled between two rounds: it would have to be read at the end, and after a crash."""


class Accounts:
    """Ledgers, stored payloads and recorded batches of the clients of a run, in its directory."""

    def __init__(self, plan: Plan, run: RunDir) -> None:
        self._plan, self._run, self._journal = plan, run, run.journal
        self._round: RoundPlan | None = None
        self._accounts: dict[int, SimulatedAccount] = {}
        self._asked: dict[str, tuple[SimulatedAccount, Entry, str]] = {}
        self._secrets: dict[int, ConfigRecord] = {}
        """What clients keep between the stages of a secure sum. It is theirs: the driver is none of the server."""
        self._weights: tuple[bytes, bytes] = b"", b""

    def expect(self, plan: RoundPlan) -> None:
        """The messages that follow are of this round; nobody is at work now."""
        self._round = plan
        self._asked.clear()
        if self._journal.size > JOURNAL_BYTES:
            self._settle()

    def task(self, message: Message, client: int, work: float) -> Task | Message:
        """The task for a client, or its reply where it needs not, or must not, train."""
        try:
            return self._task(message, client, work)
        except Exception as error:
            return give_id(refusal(error, message, on_run_disk=True))

    def begin(self, pile: Pile) -> None:
        """Put the charges of a pile on disk. Raises LedgerError if they cannot be: nobody may train then."""
        entries = [entry for account, entry, _ in self._of(pile) if not account.is_charged(entry)]
        if entries:
            self._journal.begin(entries)

    def settle(self, pile: Pile, answers: Sequence[Answer]) -> list[Message]:
        """Charge those who trained, store their payloads and batches; the others' charges are void.

        Returns the replies; an error for a client whose payload cannot be stored.
        """
        void, replies = list[Entry](), list[Message | None]()
        for task, (reply, state) in zip(pile, answers, strict=True):
            known = self._asked.pop(task.message.metadata.message_id, None)
            if SECRETS in state.config_records:
                self._secrets[task.message.metadata.dst_node_id] = state.config_records[SECRETS]
            if known is not None:
                account, entry, question = known
                returned = read_returned(state)
                if returned.charged:
                    account.charge(entry, sync=False)
                    reply = self._store(account, entry, question, task.message, reply, returned)
                else:
                    void.append(entry)
            replies.append(reply)
        if void:
            self._journal.void(void)
        return [reply for reply in replies if reply is not None]

    def keep(self, pile: Pile) -> None:
        """Charge everybody of a pile that did not come back: nobody knows who trained."""
        for account, entry, _ in self._of(pile):
            account.charge(entry, sync=False)
        for task in pile:
            self._asked.pop(task.message.metadata.message_id, None)

    def end(self) -> None:
        """Bring all charges to the ledgers, on disk; also those of piles that are not back."""
        self._settle()

    def _settle(self) -> None:
        self._journal.settle(lambda client: self._account(client).ledger)

    def _task(self, message: Message, client: int, work: float) -> Task | Message:
        assert self._round is not None
        kept = self._secrets.get(message.metadata.dst_node_id)
        secrets = RecordDict({} if kept is None else {SECRETS: kept})
        if stage_of(message.content) not in (None, MASKED):
            return Task(message, secrets)
        base, announced = self._plan, read_round(message.content)
        account = self._account(client)
        box = account.box(memory=remembers(base))
        question = question_of(announced, base.settings.codec, self._digest(message.content))
        stored = stored_payload(account, box, question, announced.round)
        if stored is not None:
            return give_id(Message(update(stored, client), reply_to=message))
        terms = own_terms(announced, len(base.parts[client]))
        plan = self._round.for_client(terms)
        entry = entry_of(account, plan, terms.num_examples, reproducible=base.settings.reproducible)
        account.check(entry)
        state = give(
            entry,
            last=box.last() if base.index_mode == "explicit" else None,
            memory=box.memory(announced.round, memory_size(plan.frame)) if isinstance(box, FeedbackBox) else None,
            batches=account.batch_key(entry) if entry.batches and not entry.reproducible else None,
        )
        if not takes_part_in_secret(base):
            self._asked[message.metadata.message_id] = account, entry, question
        for name, record in secrets.config_records.items():
            state[name] = record
        return Task(message, state, work)

    def _store(
        self,
        account: SimulatedAccount,
        entry: Entry,
        question: str,
        message: Message,
        reply: Message | None,
        returned: Returned,
    ) -> Message | None:
        """Store what is sent again for free after an interruption, and what attacks are compared with."""
        try:
            if returned.rows is not None:
                account.keep_truth(entry.round, [returned.rows])
            try:
                payload = b"" if reply is None or reply.has_error() else read_update(reply.content)
            except ValueError:  # the server rejects it by name
                payload = b""
            if not payload:
                return reply
            box = account.box(memory=returned.memory is not None)
            if isinstance(box, FeedbackBox) and returned.memory is not None:
                box.store(question, payload, returned.memory, round=entry.round)
            elif isinstance(box, Outbox) and keeps_payload(self._plan):
                box.store(question, payload)
            return reply
        except Exception as error:
            return give_id(refusal(error, message, on_run_disk=True))

    def _account(self, client: int) -> SimulatedAccount:
        if client not in self._accounts:
            self._accounts[client] = SimulatedAccount(self._run, client, self._plan.settings)
        return self._accounts[client]

    def _of(self, pile: Pile) -> list[tuple[SimulatedAccount, Entry, str]]:
        names = (task.message.metadata.message_id for task in pile)
        return [self._asked[name] for name in names if name in self._asked]

    def _digest(self, content: RecordDict) -> bytes:
        """Of the announced weights, as the client computes it; computed once for the weights that clients share."""
        reference = read_reference(content)
        if reference is not None:
            return reference.digest
        weights = flat_bytes(content)
        if weights is not self._weights[0]:
            self._weights = weights, hashlib.sha256(weights).digest()
        return self._weights[1]
