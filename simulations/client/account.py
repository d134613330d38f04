"""A client's account, to which its training is charged: its ledger, its budget, and the folder of the run.

GivenAccount       a client of our engines: the driver has charged it (``given_account``)
SimulatedAccount   the driver's view of such a client; and a client in Flower's own simulation, with its own ledger
NodeAccount        a deployed client: one ledger of its own over all runs
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from fedlsg.privacy import Entry, Ledger
from fedlsg.privacy.run_ledger import ClientCharges
from fedlsg.state import RoundPlan
from simulations.client.given_account import GivenAccount
from simulations.client.node.conditions import check_mechanism
from simulations.client.node.folder import Budget, NodeFolder
from simulations.client.shuffled import batch_key
from simulations.grids.refusals import OverBudgetError, TermsError
from simulations.plan.base import Base
from simulations.rundir.last_payload import FeedbackBox, LastPayload
from simulations.rundir.rundir import RunDir
from simulations.settings.run import Resolved
from simulations.settings.settings import Settings


@dataclass(frozen=True)
class SimulatedAccount:
    """A simulated client in the directory of the run, under the run's own budget.

    ``ledger``: its part of the run's ledger, or a ledger of its own. ``name``: the run's name in the ledger, "" for a
    ledger of one run. A refused entry raises before it is charged.
    """

    run: RunDir
    ledger: ClientCharges | Ledger
    settings: Resolved
    name: str = ""

    @property
    def client(self) -> int:
        """The partition."""
        return self.ledger.client

    @property
    def path(self) -> Path:
        """The ledger file."""
        return self.ledger.path

    def of_round(self, round: int) -> tuple[Entry, ...]:
        """The entries of a round of this run."""
        return self.ledger.of_round(round)

    def next_attempt(self, round: int) -> int:
        """The attempt that the next entry of a round takes."""
        return self.ledger.next_attempt(round)

    def next_batch(self, entry: Entry) -> Entry:
        """The entry with the shuffled batches that it takes: see ``Ledger.next_batch``."""
        return self.ledger.next_batch(entry, repeat=self.settings.reproducible)

    def batch_key(self, entry: Entry) -> bytes:
        """The key of the orders of shuffled batches: see ``shuffled.batch_key``. A resumed run has the same rows."""
        return batch_key(self.run.own(self.client), entry, batch_size=self.settings.batch_size or 0)

    def check(self, entry: Entry) -> None:
        """Raise OverBudgetError if the entry would pass the budget, before anything is computed."""
        s = self.settings
        if not entry.private or s.epsilon is None or s.reproducible:
            return
        if self.ledger.would_exceed(entry, s.epsilon, s.delta):
            why = f"round {entry.round} would pass the privacy budget epsilon={s.epsilon} of this client"
            raise OverBudgetError(why)

    def charge(self, entry: Entry) -> None:
        """Charge the entry; when this returns, it is on disk."""
        if not self.is_charged(entry):
            self.ledger.charge(entry)

    def is_charged(self, entry: Entry) -> bool:
        """Whether an attempt needs no charge: a reproducible one draws the same bits again, the same release."""
        again = (replace(known, attempt=entry.attempt) == entry for known in self.of_round(entry.round))
        return self.settings.reproducible and any(again)

    def box(self, *, memory: bool) -> LastPayload | FeedbackBox:
        """Where the last payload is kept, and with ``memory`` that of error feedback."""
        return box_of(self.run, self.client, memory=memory)

    def keep_truth(self, round: int, rows: Sequence[Tensor]) -> None:
        """Record the rows of the batches, if the settings keep them for evaluating attacks."""
        if self.settings.record_updates:
            self.run.save_truth(round, self.client, torch.cat(list(rows)))


@dataclass(frozen=True)
class NodeAccount:
    """A deployed client's account in the run ``name``: one ledger over all runs, under its own budget and the run's.

    ``settings``: of the run, resolved. Methods as in ``SimulatedAccount``.
    """

    folder: NodeFolder
    settings: Resolved
    name: str

    @property
    def client(self) -> int:
        return self.folder.terms.partition

    @property
    def run(self) -> RunDir:
        return self.folder.run(self.name)

    @property
    def path(self) -> Path:
        return self.folder.path

    def of_round(self, round: int) -> tuple[Entry, ...]:
        return self.folder.ledger.of_round(round, self.name)

    def next_attempt(self, round: int) -> int:
        return self.folder.ledger.next_attempt(round, self.name)

    def next_batch(self, entry: Entry) -> Entry:
        return self.folder.ledger.next_batch(entry)

    def batch_key(self, entry: Entry) -> bytes:
        """As in ``SimulatedAccount``. Each message has settings of its own, and accept-changed-data other rows."""
        folder, size = self.run.own(self.client), self.settings.batch_size or 0
        return batch_key(folder, entry, batch_size=size, rows=self.folder.admitted())

    def check(self, entry: Entry) -> None:
        """Nothing: check and charge are one step, under the folder's lock."""

    def charge(self, entry: Entry) -> None:
        """Charge the entry if it is private, secret, and within every budget.

        Raises TermsError, OverBudgetError or LedgerError; nothing is charged then.
        """
        check_mechanism(entry.mechanism, self.settings.method)
        if entry.reproducible:
            raise TermsError("reproducible noise: a deployed client never draws its noise from a known seed")
        before = {e.num_examples for e in self.folder.ledger.entries if e.run == self.name}
        if before - {entry.num_examples}:
            raise TermsError(
                f"this client had another number of training rows earlier in the run {self.name}: N_k is fixed within "
                "a run; start a new one"
            )
        self.folder.charge(entry, self.budgets)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """What the client's terms allow over all runs, and what the run's settings allow over this one."""
        s, terms = self.settings, self.folder.terms
        own = Budget(epsilon=terms.epsilon_max, delta=terms.delta_max)
        if s.epsilon is None:
            return (own,)
        return own, Budget(epsilon=s.epsilon, delta=s.delta, run=self.name)

    def box(self, *, memory: bool) -> LastPayload | FeedbackBox:
        """As in ``SimulatedAccount``."""
        return box_of(self.run, self.client, memory=memory)

    def keep_truth(self, round: int, rows: Sequence[Tensor]) -> None:
        """Nothing: a deployed client writes no private row."""


Account = SimulatedAccount | NodeAccount | GivenAccount


def box_of(run: RunDir, client: int, *, memory: bool) -> LastPayload | FeedbackBox:
    """What keeps a client's last payload in the directory of a run."""
    return FeedbackBox(run.own(client), client) if memory else LastPayload(run.last_payload(client))


def entry_of(account: Account, plan: RoundPlan, num_examples: int, *, reproducible: bool) -> Entry:
    """The next entry of a client that takes part in a round; ``plan`` has its own rate and noise."""
    entry = Entry(
        client=account.client,
        round=plan.round,
        attempt=account.next_attempt(plan.round),
        reproducible=reproducible,
        run=account.name,
        **plan.charge(num_examples),
    )
    return account.next_batch(entry)


def takes_part_in_secret(base: Base) -> bool:
    """Whether no file may tell that a client took part: the server's ledger is charged then, for all of them."""
    return base.draws_in_secret


_DIRECTORIES: dict[Settings, str] = {}


def own_directory(settings: Settings, announced: str) -> RunDir:
    """Where a simulated client keeps its ledger: its own setting, else the first place that was ``announced``.

    Raises ValueError if the server names another place later: the client would have its budget once more.
    """
    own = _DIRECTORIES.setdefault(settings, settings.run_dir or announced)
    path = _resolve(own, os.getcwd())
    if path != _resolve(announced, os.getcwd()):
        raise ValueError(f"the server names the run directory {announced}, this client's ledger is in {own}")
    return RunDir(path)


@lru_cache(maxsize=16)
def _resolve(path: str, working_directory: str) -> Path:
    """Cached: without, it takes a hundredth of a small round."""
    return Path(working_directory, path).resolve()
