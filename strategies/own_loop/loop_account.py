"""What an own loop may spend: its terms, how much noise its steps need, and its ledger.

The ledger holds what the steps and those of earlier runs on the same data have spent together. A
second loop that goes on from the weights of the first with a temporary ledger of its own would
leave out what the first has spent, and is refused. One with new weights on the same rows is warned
of, and ``epsilon_of_data`` adds both up.
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
from fedlsg.accounting.events import checked_epsilon
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
    """The public terms of a run on one data set: N, q, T, and what it may spend or how much noise
    it adds.

    ``unit``: what epsilon protects; N counts these.
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
        """(epsilon, delta) that the ledger may reach, or None without an epsilon, as under no
        private mechanism.
        """
        return None if self.epsilon is None or self.delta is None else (self.epsilon, self.delta)

    def terms(self, noise_multiplier: float, pruning: float) -> ClientTerms:
        """The same as the terms of a client, at these noise multipliers of training and of a
        pruning round.
        """
        return ClientTerms(
            num_examples=self.num_examples,
            sample_rate=self.sample_rate,
            noise_multiplier=noise_multiplier,
            prune_noise_multiplier=pruning,
        )

    def event(self, noise_multiplier: float) -> Event:
        """All steps at an effective noise multiplier."""
        return Event(
            sample_rate=self.sample_rate, noise_multiplier=noise_multiplier, steps=self.steps
        )


def check_spending(method: Method, s: Spending) -> None:
    """Raise ValueError for terms that do not fit the method, and for methods that make no sense
    without a server.
    """
    if type(s.num_examples) is not int or s.num_examples < 1:
        raise ValueError(
            f"expected num_examples={s.num_examples!r} to be an integer >= 1: the size of the data "
            "set"
        )
    if type(s.steps) is not int or s.steps < 1:
        raise ValueError(
            f"expected steps={s.steps!r} to be an integer >= 1: noise and schedules are for so "
            "many steps"
        )
    terms = {
        "sample_rate": s.sample_rate,
        "epsilon": s.epsilon,
        "delta": s.delta,
        "noise_multiplier": s.noise_multiplier,
    }
    check_real(**{name: value for name, value in terms.items() if value is not None})
    if s.epsilon is not None:
        checked_epsilon(s.epsilon)
    check_sample_rate(s.sample_rate)
    if method.compression.error_feedback:
        raise ValueError(
            f"method {method.name!r} keeps back what a message leaves out, and an own loop sends "
            "no messages: use 'sgd'"
        )
    for name, alone in (("noise_share", 1), ("colluders", 0)):
        if (given := getattr(method.mechanism, name)) != alone:
            raise ValueError(f"{name}={given} shares noise with other clients: there are none")
    kind, private = method.mechanism.kind, method.mechanism.private
    if not private and s.epsilon is not None:
        raise ValueError(
            f"mechanism {kind!r} of method {method.name!r} has no epsilon: leave out "
            f"epsilon={s.epsilon}"
        )
    if not method.mechanism.adds_noise and s.noise_multiplier is not None:
        raise ValueError(
            f"mechanism {kind!r} adds no noise: leave out noise_multiplier={s.noise_multiplier}"
        )
    if (
        method.mechanism.adds_noise
        and s.noise_multiplier is None
        and (not private or s.epsilon is None)
    ):
        raise ValueError(f"expected {'epsilon and delta, or ' if private else ''}noise_multiplier")
    if s.unit.persons and not method.mechanism.clips:
        raise ValueError(f"groups= clips persons, and mechanism={kind!r} does not: leave it out")
    if private:
        if s.delta is None:
            counted = f"the persons of {s.unit.name!r}" if s.unit.persons else "num_examples"
            raise ValueError(
                f"expected a delta below 1 / {counted} = {1 / s.num_examples:.3g}, such as 1e-5"
            )
        check_delta(s.delta, s.num_examples)


def terms_of(method: Method, s: Spending, *, blocks: int, spent: tuple[Event, ...]) -> ClientTerms:
    """The noise multipliers of training and of a pruning round; ``spent``: what the ledger has of
    earlier runs.

    Guarantee, if an epsilon and no multiplier is given: all ``steps``, the pruning round and what
    was ``spent`` are within it together. Raises BudgetError if nothing is left, AccountingError if
    no noise reaches it.
    """
    mechanism = method.mechanism
    if not mechanism.adds_noise:
        return s.terms(0.0, 0.0)
    ratio = mechanism.sensitivity(blocks) / mechanism.clip_norm if mechanism.clips else 1.0
    if s.noise_multiplier is not None:
        sigma = s.noise_multiplier
        events = (s.event(sigma / ratio),)
        if mechanism.private:
            certified(events, s.delta)
        return s.terms(sigma, _pruning(method, s, events))
    assert s.epsilon is not None
    assert s.delta is not None
    check_left(spent, s.epsilon, s.delta)
    pruning = _pruning(method, s, ())
    others = (
        (*spent, Event(sample_rate=1.0, noise_multiplier=pruning, steps=1)) if pruning else spent
    )
    effective = calibrate_noise_multiplier(
        epsilon=s.epsilon, delta=s.delta, sample_rate=s.sample_rate, steps=s.steps, besides=others
    )
    return s.terms(effective * ratio, pruning)


def _pruning(method: Method, s: Spending, training: tuple[Event, ...]) -> float:
    """Noise multiplier of the pruning round, 0 without one: its share of the epsilon, or of that of
    ``training``.
    """
    if not method.prune.reads_data:
        return 0.0
    if not method.mechanism.private:
        return s.noise_multiplier or 0.0
    assert s.delta is not None
    whole = compose(training, delta=s.delta).upper if s.epsilon is None else s.epsilon
    share = method.prune.epsilon_share * whole
    return calibrate_noise_multiplier(epsilon=share, delta=s.delta, sample_rate=1.0, steps=1)


def check_left(spent: tuple[Event, ...], epsilon: float, delta: float) -> None:
    """Raise BudgetError if the earlier entries of the ledger have spent the whole epsilon."""
    before = compose(spent, delta=delta).upper if spent else 0.0
    if before >= epsilon:
        raise BudgetError(
            f"the ledger has spent epsilon {before:.4g} of {epsilon=:g} already: nothing is left "
            "to train"
        )


def certified(events: tuple[Event, ...], delta: float | None) -> None:
    """Raise AccountingError, a ValueError, unless an accountant certifies a finite epsilon; the
    cheaper goes first.
    """
    assert delta is not None
    try:
        compose(events, delta=delta, accountants=("pld",))
    except AccountingError:
        compose(events, delta=delta)


CLIENT = 0
"""The client of public streams, and of a ledger that names none yet: an own loop is alone."""


WAY = "give both the same ledger=PATH, one file for each data set"
"""How a loop may go on from weights that another one has trained."""


class LoopAccount:
    """One run's way to its ledger; ``run`` names the run in it. Without a path the ledger is a
    temporary file.

    ``writer``: of the weights that the run trains. ``spends``: the run in the record of its data.
    A ledger that exists goes on as that of the client that it names.
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
        self.writer = Writer(lasting=self.lasting, fresh_data=fresh_data)
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
        """Epsilon at ``delta`` of all entries of the ledger together, of all runs; 0 without any.

        ``math.inf`` if an entry has no epsilon, or if its noise came from a known seed.
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
        """Which run this is, and the entries that its ledger has."""
        entries, head = self.ledger.snapshot()
        return {"run": self.run, "entries": entries, "head": head if entries else GENESIS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the run of a state. Raises LedgerError unless the ledger begins with the entries
        that it saw.
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
