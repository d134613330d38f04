"""The privacy budget of an own loop: its terms, the noise that its steps need, and its ledger.

The ledger holds the charges of all runs on the same data. A second loop that goes on from the
weights of the first with a temporary ledger of its own would leave out the charges of the first: it
is refused. A loop with new weights on the same rows gives a warning, and ``epsilon_of_data`` adds
both up.
"""

import math
import os
import secrets
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlsg.accounting import (
    AccountingError,
    Event,
    calibrate_noise_multiplier,
    check_delta,
    compose,
)
from fedlsg.accounting.checks import checked_epsilon
from fedlsg.config import check_real
from fedlsg.config.units import EXAMPLE, Unit
from fedlsg.method import Method
from fedlsg.privacy import (
    GENESIS,
    BudgetError,
    Entry,
    Ledger,
    LedgerError,
    check_extends,
    check_sample_rate,
    load,
)
from fedlsg.privacy.data_record import DataRun
from fedlsg.privacy.trained_weights import Writer
from fedlsg.state import ClientTerms, RoundPlan


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The public terms of a run on one data set: its size, its steps, and its budget or noise.

    num_examples: N, the number of units.
    sample_rate: q, the probability of a unit to join a step.
    steps: T.
    epsilon: the budget; None if the noise is given, or under a mechanism without epsilon.
    noise_multiplier: noise over clip norm; None if it follows from epsilon.
    delta: that of epsilon; None under a mechanism without epsilon.
    unit: what epsilon protects.
    """

    num_examples: int
    sample_rate: float
    steps: int
    epsilon: float | None
    noise_multiplier: float | None
    delta: float | None
    unit: Unit = EXAMPLE

    @property
    def budget(self) -> tuple[float, float] | None:
        """(epsilon, delta) that the ledger may reach; None without both."""
        return None if self.epsilon is None or self.delta is None else (self.epsilon, self.delta)

    def terms(self, noise_multiplier: float, pruning: float) -> ClientTerms:
        """The terms of a client at these noise multipliers of training and of a pruning round."""
        return ClientTerms(
            num_examples=self.num_examples,
            sample_rate=self.sample_rate,
            noise_multiplier=noise_multiplier,
            prune_noise_multiplier=pruning,
        )

    def event(self, noise_multiplier: float) -> Event:
        """The event of all steps at an effective noise multiplier: noise over sensitivity."""
        return Event(
            sample_rate=self.sample_rate, noise_multiplier=noise_multiplier, steps=self.steps
        )


def check_spending(method: Method, spending: Spending) -> None:
    """Raise ValueError for terms that do not fit the method, and for methods that need clients."""
    if type(spending.num_examples) is not int or spending.num_examples < 1:
        raise ValueError(
            f"expected num_examples={spending.num_examples!r} to be an integer >= 1: the size of "
            "the data set"
        )
    if type(spending.steps) is not int or spending.steps < 1:
        raise ValueError(
            f"expected steps={spending.steps!r} to be an integer >= 1: noise and schedules are for "
            "so many steps"
        )
    numbers = {
        "sample_rate": spending.sample_rate,
        "epsilon": spending.epsilon,
        "delta": spending.delta,
        "noise_multiplier": spending.noise_multiplier,
    }
    check_real(**{name: value for name, value in numbers.items() if value is not None})
    if spending.epsilon is not None:
        checked_epsilon(spending.epsilon)
    check_sample_rate(spending.sample_rate)
    if method.compression.error_feedback:
        raise ValueError(
            f"method {method.name!r} keeps back what a message leaves out, and an own loop sends "
            "no messages: use 'sgd'"
        )
    if (share := method.mechanism.noise_share) != 1:
        raise ValueError(f"noise_share={share} shares noise with other clients: there are none")
    if colluders := method.mechanism.colluders:
        raise ValueError(f"colluders={colluders} shares noise with other clients: there are none")
    check_noise(method, spending)


def check_noise(method: Method, spending: Spending) -> None:
    """Raise ValueError unless epsilon, delta and noise_multiplier fit the method's mechanism."""
    kind, private = method.mechanism.kind, method.mechanism.private
    if not private and spending.epsilon is not None:
        raise ValueError(
            f"mechanism {kind!r} of method {method.name!r} has no epsilon: leave out "
            f"epsilon={spending.epsilon}"
        )
    if not method.mechanism.adds_noise and spending.noise_multiplier is not None:
        raise ValueError(
            f"mechanism {kind!r} adds no noise: leave out "
            f"noise_multiplier={spending.noise_multiplier}"
        )
    if (
        method.mechanism.adds_noise
        and spending.noise_multiplier is None
        and (not private or spending.epsilon is None)
    ):
        raise ValueError(f"expected {'epsilon and delta, or ' if private else ''}noise_multiplier")
    if spending.unit.persons and not method.mechanism.clips:
        raise ValueError(f"groups= clips persons, and mechanism={kind!r} does not: leave it out")
    if private:
        if spending.delta is None:
            unit = spending.unit
            counted = f"the persons of {unit.name!r}" if unit.persons else "num_examples"
            raise ValueError(
                f"expected a delta below 1 / {counted} = {1 / spending.num_examples:.3g}, such as "
                "1e-5"
            )
        check_delta(spending.delta, spending.num_examples)


def terms_of(
    method: Method, spending: Spending, *, blocks: int, spent: tuple[Event, ...]
) -> ClientTerms:
    """The terms with the noise multipliers of training and of a pruning round.

    blocks: of the frame.
    spent: events of earlier runs in the ledger.

    Guarantee, if an epsilon and no multiplier is given: all steps, the pruning round and ``spent``
    are within it together. Raises BudgetError if nothing is left, AccountingError if no noise
    reaches it.
    """
    mechanism = method.mechanism
    if not mechanism.adds_noise:
        return spending.terms(0.0, 0.0)
    # noise over clip norm = ratio x (noise over sensitivity), which accountants take
    ratio = mechanism.sensitivity(blocks) / mechanism.clip_norm if mechanism.clips else 1.0
    if spending.noise_multiplier is not None:
        sigma = spending.noise_multiplier
        events = (spending.event(sigma / ratio),)
        if mechanism.private:
            check_certified(events, spending.delta)
        return spending.terms(sigma, pruning_noise(method, spending, events))
    assert spending.epsilon is not None
    assert spending.delta is not None
    check_left(spent, spending.epsilon, spending.delta)
    pruning = pruning_noise(method, spending, ())
    others = spent
    if pruning:
        others = (*spent, Event(sample_rate=1.0, noise_multiplier=pruning, steps=1))
    effective = calibrate_noise_multiplier(
        epsilon=spending.epsilon,
        delta=spending.delta,
        sample_rate=spending.sample_rate,
        steps=spending.steps,
        besides=others,
    )
    return spending.terms(effective * ratio, pruning)


def pruning_noise(method: Method, spending: Spending, training: tuple[Event, ...]) -> float:
    """The noise multiplier of the pruning round; 0 without one.

    The round has its share of the epsilon, or of the epsilon of ``training`` if the noise is given.
    """
    if not method.prune.reads_data:
        return 0.0
    if not method.mechanism.private:
        return spending.noise_multiplier or 0.0
    assert spending.delta is not None
    epsilon = spending.epsilon
    if epsilon is None:
        epsilon = compose(training, delta=spending.delta).upper
    share = method.prune.epsilon_share * epsilon
    return calibrate_noise_multiplier(epsilon=share, delta=spending.delta, sample_rate=1.0, steps=1)


def check_left(spent: tuple[Event, ...], epsilon: float, delta: float) -> None:
    """Raise BudgetError if the earlier entries of the ledger have spent the whole epsilon."""
    before = compose(spent, delta=delta).upper if spent else 0.0
    if before >= epsilon:
        raise BudgetError(
            f"the ledger has spent epsilon {before:.4g} of {epsilon=:g} already: nothing is left "
            "to train"
        )


def check_certified(events: tuple[Event, ...], delta: float | None) -> None:
    """Raise AccountingError, a ValueError, unless an accountant certifies a finite epsilon."""
    assert delta is not None
    try:
        compose(events, delta=delta, accountants=("pld",))  # the fastest
    except AccountingError:
        compose(events, delta=delta)


CLIENT = 0
"""The client of public streams, and of a ledger that names none yet: an own loop is alone."""
SAME_LEDGER = "give both the same ledger=PATH, one file for each data set"
"""The remedy in messages about weights that another loop has trained."""


class LoopAccount:
    """One run and its ledger. Without a path the ledger is a temporary file.

    lasting: whether the ledger has a path of the user.
    ledger: an existing one continues under the client that it names.
    run: the name of the run in the ledger.
    writer: the record of the weights that the run trains.
    spends: the run in the record of its data.

    Raises LedgerError for a damaged ledger, or that of a data set of another size.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        num_examples: int,
        delta: float | None = None,
        private: bool = True,
        fresh_data: bool = False,
    ) -> None:
        if not isinstance(path, str | os.PathLike | None):
            raise ValueError(f"ledger={path!r}: expected the path of a file, or None")
        self.lasting = path is not None
        if path is None:
            folder = tempfile.mkdtemp(prefix="fedlsg-ledger-")
            path = Path(folder) / "ledger.jsonl"
        self.ledger = ledger = Ledger(path, client=max(CLIENT, load(Path(path), None)[0]))
        if not self.lasting:
            weakref.finalize(ledger, shutil.rmtree, folder, ignore_errors=True)
        self.run = secrets.token_hex(8)
        self.writer = Writer(ledger=ledger if self.lasting else None, fresh_data=fresh_data)
        self.spends = DataRun(
            ledger=str(Path(path).resolve()),
            charged=lambda: [ledger.entries],
            delta=delta,
            warns=private and not self.lasting,
        )
        if other := {entry.num_examples for entry in self.ledger.entries} - {num_examples}:
            raise LedgerError(
                f"{path}: its entries are of {other.pop()} examples, and {num_examples=}: give "
                "each data set its own ledger"
            )

    def entry(
        self, plan: RoundPlan, num_examples: int, *, reproducible: bool, batched: bool = False
    ) -> Entry:
        """The entry of the next attempt at a round."""
        return Entry(
            client=self.ledger.client,
            attempt=self.ledger.next_attempt(plan.round, self.run),
            round=plan.round,
            run=self.run,
            reproducible=reproducible,
            batched=batched,
            **plan.charge(num_examples),
        )

    def epsilon(self, delta: float | None) -> float:
        """Epsilon at ``delta`` of all entries of the ledger together, of all runs.

        0 without entries; ``math.inf`` if an entry has no epsilon, or noise from a known seed.
        """
        entries = self.ledger.entries
        if not all(entry.has_epsilon for entry in entries):
            return math.inf
        if not entries:
            return 0.0
        if delta is None:
            raise ValueError("expected a delta: the ledger has private steps")
        return compose(self.ledger.events(), delta=delta).upper

    def state_dict(self) -> dict[str, Any]:
        """The run's name, and the number and head of the ledger's entries."""
        entries, head = self.ledger.snapshot()
        return {"run": self.run, "entries": entries, "head": head if entries else GENESIS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the run of a state.

        Raises LedgerError unless the ledger begins with the entries of the state.
        """
        count = int(state["entries"])
        if count and not self.lasting and not self.ledger.entries:
            raise LedgerError(
                f"the state has {count} charged steps, and this object a new ledger in memory: to "
                "resume in another process, give the same ledger=PATH before and after"
            )
        if count:
            check_extends(self.ledger.path, self.ledger.client, count, state["head"])
        self.run = str(state["run"])
