"""What ends a run before its last round."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedlsg.gradients import trainable
from fedlsg.state import ServerState
from strategies.federation.report import RoundReport

EMPTY_ROUNDS_ALLOWED = 3


class BudgetSpentError(RuntimeError):
    """No client can train again within its privacy budget: a regular end of a run, before its last round."""


class DivergedError(RuntimeError):
    """Weights, optimizer state or loss are not finite; the text names the round and which of them."""


class Patience:
    """Counts rounds and attempts in a row without an update."""

    def __init__(self) -> None:
        self.empty = 0

    def count(self, report: RoundReport, *, updated: bool) -> None:
        """Raises BudgetSpentError where every client refuses to pass its budget, RuntimeError after three in a row."""
        if report.budget_spent:
            raise BudgetSpentError(f"the privacy budget of every client was spent before round {report.round}")
        self.empty = 0 if updated else self.empty + 1
        if self.empty >= EMPTY_ROUNDS_ALLOWED:
            raise RuntimeError(f"no valid update in {EMPTY_ROUNDS_ALLOWED} rounds in a row: client {report.reasons}")


@contextmanager
def finite(state: ServerState, round: int) -> Iterator[None]:
    """Raise DivergedError if the update inside overflows, or leaves weights or optimizer state that are not finite."""
    try:
        yield
    except (RuntimeError, OverflowError) as error:  # torch: "value cannot be converted to type float without overflow"
        if "overflow" not in str(error):
            raise
        raise DivergedError(f"round {round} left an update that overflows ({error})") from error
    _check_finite(state, round)


def _check_finite(state: ServerState, round: int) -> None:
    for name, p in trainable(state.model).items():
        kept = [value for value in state.optimizer.state.get(p, {}).values() if hasattr(value, "isfinite")]
        if not bool(p.isfinite().all()):
            raise DivergedError(f"round {round} left weights that are not finite ({name})")
        if not all(bool(value.isfinite().all()) for value in kept):
            raise DivergedError(f"round {round} left the optimizer with numbers that are not finite ({name})")
