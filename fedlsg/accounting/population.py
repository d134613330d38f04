"""Upper bounds of the largest and the median epsilon of very many clients, from few calls of the
accountants.

Epsilon rises with q and with the number of steps T, and falls with sigma. A client covers another
one if it has no smaller q and T, and no larger sigma: its epsilon is then an upper bound for both.
Only the *front* of a set is computed: the clients that no other one covers. The largest epsilon is
that of the front of all. The median is bounded by the front of any half of the clients; a better
choice of the half gives a closer bound.

Where clients have a Lambda (``Event.log_ratio``), the largest one counts for all of them.

A front is large where larger q come with larger sigma. Then its members are put into cells of a
grid, 2^(k/n) for integers k, n points an octave. q and T move up to the next point and sigma moves
down, which can only raise epsilon. The cell with the largest bound is divided, along the finer
grids of `LEVELS`, until it is a single client's own numbers.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedlsg.accounting.certified import ACCOUNTANTS, SMALLEST_NOISE, upper_or_inf
from fedlsg.accounting.events import (
    AccountingError,
    Event,
    add_log_ratio,
    canonical,
    grid_down,
    grid_up,
    smaller_delta,
    split_log_ratio,
)

Events = tuple[Event, ...]

MAX_EXACT_CLIENTS = 16
"""Different clients of which each is computed and witnessed: half a second each."""
MAX_FRONT_CLIENTS = 32
"""Clients of a front of which each is computed by the quick accountant: 0.05 s each."""
MAX_QUESTIONS = 80
"""Calls after which a cell's bound is accepted."""
SAMPLED_CLIENTS = 9
"""Clients whose epsilon is computed to guess the lower half of all."""
LEVELS = (2, 4, 8, 16, 32, 64, 128)
"""Points an octave of the grids, from coarse to fine."""
OWN_DEPTH = len(LEVELS)
"""Depth of a cell without a grid: a client's own numbers."""
DISPLAYED = 8
"""Points an octave of the grid of `displayed`."""
QUICK_ACCOUNTANTS = ("pld",)
UNBOUNDED = (Event(sample_rate=0.5, noise_multiplier=SMALLEST_NOISE / 2, steps=1),)
"""Events of which no accountant certifies a finite epsilon, nor of those that cover them."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Upper bounds of the clients' largest and median epsilon.

    largest, median: epsilon; infinite if none is certified.
    worst: the position of a client with the largest epsilon.
    """

    largest: float
    median: float
    worst: int


def displayed(
    population: Sequence[Sequence[Event]], *, delta: float, counts: Sequence[int] | None = None
) -> Spread:
    """`spread` for a running display, by the quick accountant.

    Beyond `MAX_EXACT_CLIENTS` different clients it is on a grid of q and T.

    Later rounds then find cached results of earlier ones. Differs from `spread` upwards only: q, T
    and Lambda rise by less than a tenth. ``counts``: how many clients have each of the events; one
    by default.
    """
    merged, log_ratio = _merged(population)
    if len(set(merged)) > MAX_EXACT_CLIENTS:
        merged = [move_to_grid(events, DISPLAYED, sigma=False) for events in merged]
        log_ratio = ratio_up(log_ratio, DISPLAYED)
    return _raised_spread(merged, log_ratio, delta, QUICK_ACCOUNTANTS, counts)


def spread(
    population: Sequence[Sequence[Event]],
    *,
    delta: float,
    accountants: Sequence[str] = ACCOUNTANTS,
    counts: Sequence[int] | None = None,
) -> Spread:
    """Largest and median epsilon at ``delta`` over clients, given by their events; infinite if none
    is certified.

    Guarantee: neither is below what one of the ``accountants`` certifies of the client in question.
    Up to `MAX_EXACT_CLIENTS` different clients both are exactly those of `compose`. Beyond that the
    largest is exact unless `MAX_QUESTIONS` did not suffice; the median is an upper bound, which can
    be half too large (docs/performance.md). If the clients' Lambdas differ, each counts as the
    largest one: both are upper bounds, and ``worst`` is the worst at one Lambda. Both are infinite
    if that Lambda is too large for delta. ``counts``: as in ``displayed``.
    """
    merged, log_ratio = _merged(population)
    return _raised_spread(merged, log_ratio, delta, accountants, counts)


def _merged(population: Sequence[Sequence[Event]]) -> tuple[list[Events], float]:
    """The clients' events without Lambda, and the largest Lambda of a client."""
    parts = [split_log_ratio(events) for events in population]
    largest_ratio = max((log_ratio for _, log_ratio in parts), default=0.0)
    return [_canonical(plain) for plain, _ in parts], largest_ratio


def _canonical(events: Events) -> Events:
    """``canonical(events)``, or `UNBOUNDED` if it refuses them."""
    try:
        return canonical(events)
    except AccountingError:
        return UNBOUNDED


def _raised_spread(
    merged: Sequence[Events],
    log_ratio: float,
    delta: float,
    accountants: Sequence[str],
    counts: Sequence[int] | None,
) -> Spread:
    """Spread of clients that all have one Lambda, charged as in ``compose``."""
    try:
        delta = smaller_delta(delta, log_ratio)
    except AccountingError:
        return Spread(largest=math.inf, median=math.inf, worst=0)
    counts = [1] * len(merged) if counts is None else counts
    spread_of_all = _spread(merged, delta, accountants, counts)
    largest = add_log_ratio(spread_of_all.largest, log_ratio)
    median = add_log_ratio(spread_of_all.median, log_ratio)
    return Spread(largest=largest, median=median, worst=spread_of_all.worst)


def _spread(
    merged: Sequence[Events], delta: float, accountants: Sequence[str], counts: Sequence[int]
) -> Spread:
    """Spread of clients without Lambda."""
    half = sum(counts) // 2
    different = sorted(set(merged), key=_spent)
    if len(different) <= MAX_EXACT_CLIENTS:
        exact = {events: upper_or_inf(events, delta, accountants) for events in different}
        epsilons = [exact[events] for events in merged]
        largest = max(epsilons)
        lower_place = half - 1 + sum(counts) % 2
        lower_median = _value_at(epsilons, counts, lower_place)
        median = (_value_at(epsilons, counts, half) + lower_median) / 2
        return Spread(largest=largest, median=median, worst=epsilons.index(largest))
    largest, worst = _bound_of_largest(different, delta, accountants)
    guesses = dict(zip(different, _guesses(different, delta), strict=True))
    middle = _value_at([guesses[events] for events in merged], counts, half)
    lower_half = [events for events in different if guesses[events] <= middle]
    median, _ = _bound_of_largest(lower_half, delta, accountants)
    if median >= largest:  # the guess put the worst client into the lower half
        middle = _value_at(list(map(_spent, merged)), counts, half)
        lower_half = [events for events in different if _spent(events) <= middle]
        median, _ = _bound_of_largest(lower_half, delta, accountants)
    return Spread(largest=largest, median=min(median, largest), worst=merged.index(worst))


def _value_at(values: Sequence[float], counts: Sequence[int], place: int) -> float:
    """The value at a place, from 0, of the sorted list in which value i occurs ``counts[i]``
    times.
    """
    below = 0
    for value, count in sorted(zip(values, counts, strict=True)):
        below += count
        if below > place:
            return value
    raise ValueError(f"expected a place below {below}, got {place}")


def _bound_of_largest(
    clients: Sequence[Events], delta: float, accountants: Sequence[str]
) -> tuple[float, Events]:
    """An upper bound of the largest epsilon among ``clients``, and a client with about that
    epsilon.

    The front in ever finer cells: the cell with the largest bound is divided until it is a single
    client's own numbers.
    """
    members = front(clients)
    depth, group = (0 if len(members) > MAX_FRONT_CLIENTS else OWN_DEPTH), members
    # (-bound, number, depth, members) of cells: a heap gives the smallest first; the number, new
    # for each cell, decides between equal bounds
    heap: list[tuple[float, int, int, list[Events]]] = []
    questions = 0
    while True:
        cells: dict[Events, list[Events]] = {}
        for events in group:
            cell = events if depth == OWN_DEPTH else move_to_grid(events, LEVELS[depth])
            cells.setdefault(cell, []).append(events)
        for cell, inside in cells.items():
            questions += 1
            bound = upper_or_inf(cell, delta, QUICK_ACCOUNTANTS)
            heapq.heappush(heap, (-bound, questions, depth, inside))
        negative, _, depth, group = heapq.heappop(heap)
        if depth == OWN_DEPTH or questions >= MAX_QUESTIONS:
            return max(-negative, upper_or_inf(group[0], delta, accountants)), group[0]
        depth += 1


def front(clients: Sequence[Events]) -> list[Events]:
    """The clients that no other one covers, event by event.

    Only clients with as many events can cover each other. ``_spent`` orders them: a client comes
    after those that cover it.
    """
    kept: list[Events] = []
    for count in sorted({len(events) for events in clients} - {0}):
        group = sorted((e for e in set(clients) if len(e) == count), key=_spent, reverse=True)
        numbers = np.array([list(map(_losing_numbers, events)) for events in group])
        numbers = numbers.reshape(len(group), -1)
        chosen: list[int] = []
        for i, numbers_here in enumerate(numbers):
            if not (numbers[chosen] >= numbers_here).all(axis=1).any():
                chosen.append(i)
        kept += [group[i] for i in chosen]
    return kept or [()]


def _losing_numbers(event: Event) -> tuple[float, ...]:
    """Numbers of an event with which its privacy loss rises."""
    return event.sample_rate, -event.noise_multiplier, event.steps, event.log_ratio


def shared_rates(rates: Iterable[float], *, limit: int) -> list[float]:
    """Poisson rates moved up to the finest grid on which at most ``limit`` different ones are left.

    The coarsest grid of `LEVELS` may leave more.
    """
    rates = list(rates)
    raised = rates
    for level in reversed(LEVELS):
        if len(set(raised)) <= limit:
            break
        raised = [min(grid_up(q, level), 1.0) for q in rates]
    return raised


def ratio_up(log_ratio: float, level: int) -> float:
    """The next Lambda of the grid that is not lower; 0 stays 0.

    It is limited to 1e-300 .. 1e300, where powers of two are floats: no epsilon is certified above.
    """
    return grid_up(min(max(log_ratio, 1e-300), 1e300), level) if log_ratio else 0.0


def move_to_grid(events: Sequence[Event], level: int, *, sigma: bool = True) -> Events:
    """Events on a grid that lose at least as much privacy; noise multipliers stay unless ``sigma``.

    Raises ValueError for a Lambda.
    """
    moved = []
    for event in events:
        noise = event.noise_multiplier
        moved.append(
            Event(
                sample_rate=min(grid_up(event.sample_rate, level), 1.0),
                noise_multiplier=grid_down(noise, level) if sigma else noise,
                # not below the steps, which are an integer
                steps=math.floor(grid_up(event.steps, level)),
                log_ratio=event.log_ratio,
            )
        )
    return canonical(moved)


def _guesses(clients: Sequence[Events], delta: float) -> list[float]:
    """About each client's log epsilon: a linear function of log q, log sigma and log T of its first
    event.

    It is fitted to some clients in the middle of ``clients``, which are in the order of ``_spent``.
    A wrong guess makes the median's bound looser, never wrong.
    """
    rows = [_features(events) for events in clients]
    places = np.linspace(len(clients) / 4, 3 * len(clients) / 4, SAMPLED_CLIENTS)
    sampled = sorted({round(place) for place in places})
    bounds = [upper_or_inf(clients[i], delta, QUICK_ACCOUNTANTS) for i in sampled]
    logs = [math.log(min(max(bound, 1e-9), 1e9)) for bound in bounds]
    weights = np.linalg.lstsq(np.array([rows[i] for i in sampled]), np.array(logs), rcond=1e-9)[0]
    guesses = []
    for events, row in zip(clients, rows, strict=True):
        if not events:
            guesses.append(-math.inf)
        elif has_too_little_noise(events):
            guesses.append(math.inf)
        else:
            guesses.append(float(np.dot(row, weights)))
    return guesses


def has_too_little_noise(events: Events) -> bool:
    """Whether no accountant is asked about these events, as one has almost no noise."""
    return min(e.noise_multiplier for e in events) < SMALLEST_NOISE


def _features(events: Events) -> list[float]:
    """1, log q, log sigma and log T of the first event; zeros without an event."""
    if not events:
        return [1.0, 0.0, 0.0, 0.0]
    first = events[0]
    logs = map(math.log, (first.sample_rate, first.noise_multiplier, first.steps))
    return [1.0, *logs]


def _spent(events: Events) -> float:
    """The sum of T (q / sigma)^2, which orders clients about as epsilon does.

    It is no smaller for a client that covers another one.
    """
    total = []
    for event in events:
        ratio = event.sample_rate / event.noise_multiplier
        total.append(event.steps * ratio * ratio)
    return math.fsum(total)
