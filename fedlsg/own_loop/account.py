"""The ledger of an own loop: what its steps and those of earlier runs on the same data have spent together."""

import math
import os
import secrets
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from fedlsg.accounting import Event, compose
from fedlsg.privacy import GENESIS, BudgetError, Entry, Ledger, LedgerError, check_extends
from fedlsg.state import RoundPlan

CLIENT = 0
"""The client of the ledger: an own loop is a federation of one."""


class Account:
    """One run's way to its ledger; ``run`` names the run in it. Without a path the ledger ends with this object.

    Raises LedgerError for a damaged ledger, another client's, or that of a data set of another size.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, num_examples: int) -> None:
        self.lasting = path is not None
        if path is None:
            folder = tempfile.mkdtemp(prefix="fedlsg-ledger-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            path = Path(folder) / "ledger.jsonl"
        self.ledger = Ledger(path, client=CLIENT)
        self.run = secrets.token_hex(8)
        if other := {entry.num_examples for entry in self.ledger.entries} - {num_examples}:
            raise LedgerError(
                f"{path}: its entries are of {other.pop()} examples, and {num_examples=}: give each data set its own "
                "ledger"
            )

    def spent(self) -> tuple[Event, ...]:
        """The entries of all runs as events."""
        return self.ledger.events()

    def entry(self, plan: RoundPlan, num_examples: int, *, reproducible: bool) -> Entry:
        """The entry of the next attempt at a round."""
        attempt = self.ledger.next_attempt(plan.round, self.run)
        return Entry(
            client=CLIENT, attempt=attempt, round=plan.round, run=self.run, reproducible=reproducible,
            **plan.charge(num_examples),
        )  # fmt: skip

    def charge(self, entry: Entry, within: tuple[float, float] | None) -> None:
        """Charge an entry; when this returns, it is on disk. Raises BudgetError or LedgerError; nothing is charged."""
        self.ledger.charge(entry, within=within if entry.mechanism == "dp" else None)

    def check(self, entry: Entry, within: tuple[float, float] | None) -> None:
        """Raise BudgetError, as ``charge`` would, before a batch function is called at all. Nothing is charged."""
        if within is not None and entry.mechanism == "dp" and self.ledger.would_exceed(entry, *within):
            raise BudgetError(
                f"this step would pass the privacy budget epsilon={within[0]:g} at delta={within[1]:g}, with the "
                f"{len(self.ledger.entries)} entries of {self.ledger.path}: no batch was drawn"
            )

    def epsilon(self, delta: float | None) -> float:
        """Epsilon at ``delta`` of all entries of the ledger together, of all runs; 0 without any.

        ``math.inf`` if an entry is not of mechanism "dp", or if its noise came from a known seed.
        """
        entries = self.ledger.entries
        if any(entry.mechanism != "dp" or entry.reproducible for entry in entries):
            return math.inf
        if not entries:
            return 0.0
        if delta is None:
            raise ValueError("expected a delta: the ledger has private steps")
        return compose(self.ledger.events(), delta=delta).upper

    def state_dict(self) -> dict[str, Any]:
        """Which run this is, and the entries that its ledger has."""
        entries, head = self.ledger.snapshot()
        return {"run": self.run, "entries": entries, "head": head if entries else GENESIS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the run of a state. Raises LedgerError unless the ledger begins with the entries that it saw."""
        count = int(state["entries"])
        if count and not self.lasting and not self.ledger.entries:
            raise LedgerError(
                f"the state has {count} charged steps, and this object a new ledger in memory: to resume in another "
                "process, give the same ledger=PATH before and after"
            )
        if count:
            check_extends(self.ledger.path, CLIENT, count, state["head"])
        self.run = str(state["run"])
