"""Limits that a node's owner sets: every ``Ledger`` keeps to them, whatever code charges it.

An app of somebody else decides how it trains. Its charges pass through ``Ledger.charge``, so limits
that hold there hold for all of them, and before a batch is drawn.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from fedlsg.privacy.ledger_entry import BudgetError, Entry

WouldExceed = Callable[[Entry, float, float], bool]
"""Whether a ledger with one more entry would pass an epsilon at a delta."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """``budgets``: pairs (epsilon, delta), each of which all entries of a ledger keep within.

    ``least_noise_multiplier``: of each entry; 0 sets no limit.
    """

    budgets: tuple[tuple[float, float], ...]
    least_noise_multiplier: float = 0.0

    def refusal(self, entry: Entry, would_exceed: WouldExceed) -> str | None:
        """Why a ledger may not have this entry; None where it may. The text has limits alone."""
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
    """Limits that hold now, and the last refusal under them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.refused: str | None = None


_NOW: ContextVar[Held | None] = ContextVar("limits", default=None)
_ALL: list[Held] = []
"""What holds anywhere in this process. A thread that code of the app has started has no limits of
its own, and keeps to all of these.
"""


@contextmanager
def held_to(limits: Limits) -> Iterator[Held]:
    """Inside, no ledger takes an entry beyond ``limits``, nor in threads that begin there. It
    raises BudgetError before a charge.
    """
    token = _NOW.set(held := Held(limits))
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


def check_limits(entry: Entry, would_exceed: WouldExceed) -> None:
    """Raise BudgetError for an entry beyond the limits that hold now; nothing is charged then."""
    for held in _held_now():
        held.refused = held.limits.refusal(entry, would_exceed)
        if held.refused is not None:
            raise BudgetError(held.refused)
