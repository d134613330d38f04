"""A client's account, to which its training is charged: its ledger, its budget, and the folder of the run.

A simulated client's account is its ledger in the run's directory; a deployed client has ``node.account``.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fedlsg.privacy import Entry, Ledger
from simulations.grids.refusals import OverBudgetError
from simulations.rundir.rundir import RunDir
from simulations.settings.run import Resolved
from simulations.settings.settings import Settings


class Account(Protocol):
    """A client's ledger in a run. A refused entry raises before it is charged."""

    @property
    def client(self) -> int:
        """The client's number."""

    @property
    def name(self) -> str:
        """The run's name in the ledger, "" for a ledger of one run."""

    @property
    def run(self) -> RunDir:
        """Where the client keeps its payloads and its replica."""

    @property
    def path(self) -> Path:
        """The ledger file."""

    def of_round(self, round: int) -> tuple[Entry, ...]:
        """The entries of a round of this run."""

    def next_attempt(self, round: int) -> int:
        """The attempt that the next entry of a round takes."""

    def check(self, entry: Entry) -> None:
        """Raise OverBudgetError if the entry would pass the budget, before anything is computed."""

    def charge(self, entry: Entry) -> None:
        """Check the budget and charge the entry; when this returns, the entry is on disk."""

    def keep_truth(self, round: int, drawn: Sequence[Tensor]) -> None:
        """Record the rows of the batches, if a simulation keeps them for evaluating attacks."""


@dataclass(frozen=True)
class SimulatedAccount:
    """A client's ledger in the directory of the run, under the run's own budget."""

    run: RunDir
    client: int
    settings: Resolved
    name: str = ""

    @property
    def path(self) -> Path:
        return self.run.ledger(self.client)

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(self.path, client=self.client)

    def of_round(self, round: int) -> tuple[Entry, ...]:
        return self._ledger.of_round(round)

    def next_attempt(self, round: int) -> int:
        return self._ledger.next_attempt(round)

    def check(self, entry: Entry) -> None:
        s = self.settings
        if entry.mechanism != "dp" or s.epsilon is None or s.reproducible:
            return
        if self._ledger.would_exceed(entry, s.epsilon, s.delta):
            why = f"round {entry.round} would pass the privacy budget epsilon={s.epsilon} of this client"
            raise OverBudgetError(why)

    def charge(self, entry: Entry) -> None:
        # A reproducible attempt draws the same bits again: the same release, charged once.
        again = (replace(known, attempt=entry.attempt) == entry for known in self._ledger.entries)
        if not (self.settings.reproducible and any(again)):
            self._ledger.charge(entry)

    def keep_truth(self, round: int, drawn: Sequence[Tensor]) -> None:
        if self.settings.record_updates:
            self.run.save_truth(round, self.client, torch.cat(list(drawn)))


_DIRECTORIES: dict[Settings, str] = {}


def own_directory(settings: Settings, announced: str) -> RunDir:
    """Where a simulated client keeps its ledger: its own setting, else the first place that was ``announced``.

    Raises ValueError if the server names another place later: the client would have its budget once more.
    """
    own = _DIRECTORIES.setdefault(settings, settings.run_dir or announced)
    path = _resolved(own, os.getcwd())
    if path != _resolved(announced, os.getcwd()):
        raise ValueError(f"the server names the run directory {announced}, this client's ledger is in {own}")
    return RunDir(path)


@lru_cache(maxsize=16)
def _resolved(path: str, working_directory: str) -> Path:
    """Cached: without, it takes a hundredth of a small round."""
    return Path(working_directory, path).resolve()
