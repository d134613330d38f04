"""Limits that a node's owner sets for every ``Ledger``, whatever code charges it.

An app by another author decides how it trains. Its charges are made by ``Ledger.charge``, which
checks these limits before a batch is drawn.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from fedlsg.privacy.ledger_entry import BudgetError, Entry

WouldExceed = Callable[[Entry, float, float], bool]
"""Whether a ledger with one more entry would pass an epsilon at a delta."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a ledger.

    budgets: pairs (epsilon, delta); all entries together must keep each of them.
    least_noise_multiplier: of each entry; 0 sets no limit.
    """

    budgets: tuple[tuple[float, float], ...]
    least_noise_multiplier: float = 0.0

    def refusal(self, entry: Entry, would_exceed: WouldExceed) -> str | None:
        """Why a ledger may not have this entry; None if it may.

        The text shows the limits, and nothing that other entries spent.
        """
        if entry.noise_multiplier < self.least_noise_multiplier:
            return (
                f"the noise multiplier is {entry.noise_multiplier:g}, and the least that this "
                f"client accepts is {self.least_noise_multiplier:g}. More rounds, or a smaller "
                "epsilon of the server, need more noise in each; or the owner accepts less "
                "(least_noise_multiplier, noise-multiplier-min)"
            )
        for epsilon, delta in self.budgets:
            if would_exceed(entry, epsilon, delta):
                return (
                    f"this round or step would pass epsilon={epsilon:g} at delta={delta:g}, what "
                    "the data of this client may spend over all entries of its ledger"
                )
        return None


class Held:
    """Limits that hold now.

    limits: the limits.
    refused: the reason of the last refusal; None if the last entry was accepted.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.refused: str | None = None


_NOW: ContextVar[Held | None] = ContextVar("limits", default=None)
_ALL: list[Held] = []
"""What holds anywhere in this process. A thread that code of the app has started has no limits of
its own, and keeps to all of these.
"""


_OF_LEDGERS: dict[Path, Held] = {}
"""The last limits of each ledger that has its own. They hold after the context, too: a thread that
code of the app has left running goes on.
"""


@contextmanager
def held_to(limits: Limits, ledger: Path | None = None) -> Iterator[Held]:
    """A context in which ledgers refuse entries beyond ``limits``, by a BudgetError before the
    charge.

    ledger: the one whose entries keep to them from now on, in this process; None for none.
    """
    token = _NOW.set(held := Held(limits))
    if ledger is not None:
        _OF_LEDGERS[ledger.resolve()] = held
    _ALL.append(held)
    try:
        yield held
    finally:
        _ALL.remove(held)
        _NOW.reset(token)


def _held_now() -> list[Held]:
    held = _NOW.get()
    return [*_ALL] if held is None else [held]


def budgets_now() -> tuple[tuple[float, float], ...]:
    """The budgets (epsilon, delta) that hold now; none without limits."""
    return tuple(budget for held in _held_now() for budget in held.limits.budgets)


def check_limits(entry: Entry, would_exceed: WouldExceed, ledger: Path) -> None:
    """Raise BudgetError for an entry beyond the limits that hold now, or those of its ledger;
    nothing is charged then.
    """
    of_ledger = _OF_LEDGERS.get(ledger.resolve())
    for held in dict.fromkeys([*_held_now(), *filter(None, [of_ledger])]):
        held.refused = held.limits.refusal(entry, would_exceed)
        if held.refused is not None:
            raise BudgetError(held.refused)
