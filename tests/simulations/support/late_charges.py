"""A planted mistake: a driver that charges its clients when the first of them is back, and not
before it asks them.
"""

import pytest

from fedlsg.privacy import Entry, RunLedger
from fedlsg.simulations.engines.accounts import Accounts


def charge_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant it."""
    late: list[tuple[RunLedger, list[Entry]]] = []
    charge, settle = RunLedger.charge, Accounts.settle

    def planted(self: Accounts, tasks, answers):
        while late:
            charge(*late.pop())
        return settle(self, tasks, answers)

    monkeypatch.setattr(RunLedger, "charge", lambda self, entries: late.append((self, entries)))
    monkeypatch.setattr(Accounts, "settle", planted)
