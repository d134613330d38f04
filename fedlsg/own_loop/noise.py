"""How much noise the steps need: from an epsilon, or as given; and what is refused before anything is drawn."""

from dataclasses import dataclass

from fedlsg.accounting import AccountingError, Event, calibrate_noise_multiplier, check_delta, compose
from fedlsg.method import Method
from fedlsg.privacy import BudgetError, check_sample_rate
from fedlsg.state import ClientTerms


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The public terms of a run on one data set: N, q, T, and what it may spend or how much noise it adds."""

    num_examples: int
    sample_rate: float
    steps: int
    epsilon: float | None
    noise_multiplier: float | None
    delta: float | None

    @property
    def budget(self) -> tuple[float, float] | None:
        """(epsilon, delta) that the ledger may reach, or None without an epsilon."""
        return None if self.epsilon is None or self.delta is None else (self.epsilon, self.delta)

    def terms(self, noise_multiplier: float, pruning: float) -> ClientTerms:
        """The same as the terms of a client, at these noise multipliers of training and of a pruning round."""
        return ClientTerms(
            num_examples=self.num_examples,
            sample_rate=self.sample_rate,
            noise_multiplier=noise_multiplier,
            prune_noise_multiplier=pruning,
        )

    def event(self, noise_multiplier: float) -> Event:
        """All steps at an effective noise multiplier."""
        return Event(sample_rate=self.sample_rate, noise_multiplier=noise_multiplier, steps=self.steps)


def check_spending(method: Method, s: Spending) -> None:
    """Raise ValueError for terms that do not fit the method, and for methods that make no sense without a server."""
    if type(s.num_examples) is not int or s.num_examples < 1:
        raise ValueError(f"expected num_examples={s.num_examples!r} to be an integer >= 1: the size of the data set")
    if type(s.steps) is not int or s.steps < 1:
        raise ValueError(f"expected steps={s.steps!r} to be an integer >= 1: noise and schedules are for so many steps")
    check_sample_rate(s.sample_rate)
    if method.compression.error_feedback:
        raise ValueError(
            f"method {method.name!r} keeps back what a message leaves out, and an own loop sends no messages: use 'sgd'"
        )
    for name, alone in (("noise_share", 1), ("colluders", 0)):
        if (given := getattr(method.mechanism, name)) != alone:
            raise ValueError(f"{name}={given} shares noise with other clients: there are none")
    kind = method.mechanism.kind
    if kind != "dp" and s.epsilon is not None:
        raise ValueError(f"mechanism {kind!r} of method {method.name!r} has no epsilon: leave out epsilon={s.epsilon}")
    if not method.mechanism.adds_noise and s.noise_multiplier is not None:
        raise ValueError(f"mechanism {kind!r} adds no noise: leave out noise_multiplier={s.noise_multiplier}")
    if method.mechanism.adds_noise and s.noise_multiplier is None and (kind != "dp" or s.epsilon is None):
        raise ValueError(f"expected {'epsilon and delta, or ' if kind == 'dp' else ''}noise_multiplier")
    if kind == "dp":
        if s.delta is None:
            raise ValueError(f"expected a delta below 1 / num_examples = {1 / s.num_examples:.3g}, such as 1e-5")
        check_delta(s.delta, s.num_examples)


def terms_of(method: Method, s: Spending, *, blocks: int, spent: tuple[Event, ...]) -> ClientTerms:
    """The noise multipliers of training and of a pruning round; ``spent``: what the ledger has of earlier runs.

    Guarantee, if an epsilon and no multiplier is given: all ``steps``, the pruning round and what was ``spent`` are
    within it together. Raises BudgetError if nothing is left, AccountingError if no noise reaches it.
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
    others = (*spent, Event(sample_rate=1.0, noise_multiplier=pruning, steps=1)) if pruning else spent
    effective = calibrate_noise_multiplier(
        epsilon=s.epsilon, delta=s.delta, sample_rate=s.sample_rate, steps=s.steps, besides=others
    )
    return s.terms(effective * ratio, pruning)


def _pruning(method: Method, s: Spending, training: tuple[Event, ...]) -> float:
    """Noise multiplier of the pruning round, 0 without one: its share of the epsilon, or of that of ``training``."""
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
            f"the ledger has spent epsilon {before:.4g} of {epsilon=:g} already: nothing is left to train"
        )


def certified(events: tuple[Event, ...], delta: float | None) -> None:
    """Raise AccountingError, a ValueError, unless an accountant certifies a finite epsilon; the cheaper goes first."""
    assert delta is not None
    try:
        compose(events, delta=delta, accountants=("pld",))
    except AccountingError:
        compose(events, delta=delta)
