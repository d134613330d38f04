"""The largest and the median epsilon of very many clients, from few calls of the accountants; never
too low.

Epsilon rises with q and with the number of steps T, and falls with sigma. So an answer for one
client is an upper bound for every client with no larger q, no smaller sigma and no more steps. Of a
set of clients only the *front* is computed: those that no other client covers. The largest epsilon
is that of the front of all. The median is bounded by the front of any half of them; a better choice
of the half gives a closer bound.

Where clients have a Lambda (``Event.log_ratio``), the largest one counts for all of them.

A front is large where larger q come with larger sigma. Then its members are put into cells of a
grid, 2^(k/n) for integers k, n points an octave: q and T move up to the next and sigma down, which
can only raise epsilon. The cell with the largest bound is divided, along the finer grids of
`LEVELS`, until it is a single client's own.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
"""Results from which the lower half of the clients is guessed."""
LEVELS = (2, 4, 8, 16, 32, 64, 128)
OWN_DEPTH = len(LEVELS)  # the depth behind the finest grid: a client's own numbers
DISPLAYED = 8
QUICK_ACCOUNTANTS = ("pld",)
UNBOUNDED = (Event(sample_rate=0.5, noise_multiplier=SMALLEST_NOISE / 2, steps=1),)
"""Events of which no accountant certifies a finite epsilon, nor of those that cover them."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Upper bounds of the clients' largest and median epsilon; ``worst`` is the position of one
    with the largest.
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
    return [_canonical(plain) for plain, _ in parts], max(
        (log_ratio for _, log_ratio in parts), default=0.0
    )


def _canonical(events: Events) -> Events:
    """``canonical``; `UNBOUNDED` where that finds a loss beyond any float."""
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
    spread_of_all = _spread(
        merged, delta, accountants, [1] * len(merged) if counts is None else counts
    )
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
        each = [exact[events] for events in merged]
        largest = max(each)
        median = (_at(each, counts, half) + _at(each, counts, half - 1 + sum(counts) % 2)) / 2
        return Spread(largest=largest, median=median, worst=each.index(largest))
    largest, worst = _covering(different, delta, accountants)
    guessed = dict(zip(different, _guesses(different, delta), strict=True))
    middle = _at([guessed[events] for events in merged], counts, half)
    median, _ = _covering(
        [events for events in different if guessed[events] <= middle], delta, accountants
    )
    if median >= largest:  # the guess put the worst client into the lower half
        middle = _at(list(map(_spent, merged)), counts, half)
        median, _ = _covering(
            [events for events in different if _spent(events) <= middle], delta, accountants
        )
    return Spread(largest=largest, median=min(median, largest), worst=merged.index(worst))


def _at(values: Sequence[float], counts: Sequence[int], place: int) -> float:
    """The value at a place of the ordered list in which each one is as often as ``counts`` says."""
    below = 0
    for value, count in sorted(zip(values, counts, strict=True)):
        below += count
        if below > place:
            return value
    raise ValueError(f"expected a place below {below}, got {place}")


def _covering(
    clients: Sequence[Events], delta: float, accountants: Sequence[str]
) -> tuple[float, Events]:
    """An upper bound of the largest epsilon among ``clients``, and one whose it is, or nearly.

    The front in ever finer cells: the cell with the largest bound is divided until it is a client's
    own.
    """
    members = front(clients)
    depth, group = (0 if len(members) > MAX_FRONT_CLIENTS else OWN_DEPTH), members
    # the largest bound first: its negative, a number, depth
    waiting: list[tuple[float, int, int, list[Events]]] = []
    questions = 0
    while True:
        cells: dict[Events, list[Events]] = {}
        for events in group:
            cells.setdefault(
                events if depth == OWN_DEPTH else move_to_grid(events, LEVELS[depth]), []
            ).append(events)
        for cell, inside in cells.items():
            questions += 1
            heapq.heappush(
                waiting, (-upper_or_inf(cell, delta, QUICK_ACCOUNTANTS), questions, depth, inside)
            )
        bound, _, depth, group = heapq.heappop(waiting)
        if depth == OWN_DEPTH or questions >= MAX_QUESTIONS:
            return max(-bound, upper_or_inf(group[0], delta, accountants)), group[0]
        depth += 1


def front(clients: Sequence[Events]) -> list[Events]:
    """The clients that no other one covers: every client has one here that loses at least as much,
    event by event.
    """
    kept: list[Events] = []
    for count in sorted({len(events) for events in clients} - {0}):
        group = sorted((e for e in set(clients) if len(e) == count), key=_spent, reverse=True)
        numbers = np.array(
            [
                [(e.sample_rate, -e.noise_multiplier, e.steps, e.log_ratio) for e in events]
                for events in group
            ]
        )
        numbers = numbers.reshape(len(group), -1)
        chosen: list[int] = []
        for i, numbers_here in enumerate(numbers):
            if not (numbers[chosen] >= numbers_here).all(axis=1).any():
                chosen.append(i)
        kept += [group[i] for i in chosen]
    return kept or [()]


def shared_rates(rates: Iterable[float], *, limit: int) -> list[float]:
    """Every Poisson rate moved up, by as little as leaves at most ``limit`` different ones where
    possible.
    """
    rates = list(rates)
    raised = rates
    for level in reversed(LEVELS):
        if len(set(raised)) <= limit:
            break
        raised = [min(grid_up(q, level), 1.0) for q in rates]
    return raised


def ratio_up(log_ratio: float, level: int) -> float:
    """A Lambda on the grid that is not lower; 0 stays 0. Above 1e300 it is about 1e300: nothing is
    certified there.
    """
    return grid_up(min(max(log_ratio, 1e-300), 1e300), level) if log_ratio else 0.0


def move_to_grid(events: Sequence[Event], level: int, *, sigma: bool = True) -> Events:
    """Events on the grid, ``sigma`` too, that lose at least as much privacy. Raises ValueError for
    a Lambda.
    """
    return canonical(
        replace(
            event,
            sample_rate=min(grid_up(event.sample_rate, level), 1.0),
            noise_multiplier=grid_down(event.noise_multiplier, level)
            if sigma
            else event.noise_multiplier,
            steps=math.floor(grid_up(event.steps, level)),
        )
        for event in events
    )


def _guesses(clients: Sequence[Events], delta: float) -> list[float]:
    """About each client's log epsilon, linear in the logarithms of its mean q, sigma and T; clients
    ordered by loss.

    A wrong guess makes the median's bound looser, never wrong.
    """
    rows = [_features(events) for events in clients]
    sampled = sorted(
        {round(at) for at in np.linspace(len(clients) / 4, 3 * len(clients) / 4, SAMPLED_CLIENTS)}
    )
    bounds = [
        math.log(min(max(upper_or_inf(clients[i], delta, QUICK_ACCOUNTANTS), 1e-9), 1e9))
        for i in sampled
    ]
    weights = np.linalg.lstsq(np.array([rows[i] for i in sampled]), np.array(bounds), rcond=1e-9)[0]
    return [
        -math.inf
        if not clients[i]
        else math.inf
        if unbounded(clients[i])
        else float(np.dot(row, weights))
        for i, row in enumerate(rows)
    ]


def unbounded(events: Events) -> bool:
    """Whether no accountant is asked about these events: almost no noise."""
    return min(e.noise_multiplier for e in events) < SMALLEST_NOISE


def _features(events: Events) -> list[float]:
    parts = [
        [math.log(e.sample_rate), math.log(e.noise_multiplier), math.log(e.steps)]
        for e in events[:1]
    ]
    return [1.0, *(parts[0] if parts else [0.0] * 3)]


def _spent(events: Events) -> float:
    """About how epsilon orders clients: T (q / sigma)^2; where one client covers another, it is no
    smaller.
    """
    return math.fsum(
        e.steps * (ratio := e.sample_rate / e.noise_multiplier) * ratio for e in events
    )
