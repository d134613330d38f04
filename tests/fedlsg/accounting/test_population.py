"""Epsilon of many clients: never below anyone's own, exact where it is said to be, and from few
questions.
"""

import statistics
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.accounting import population
from fedlsg.accounting.certified import compose, upper_or_inf
from fedlsg.accounting.events import Event, canonical
from fedlsg.accounting.population import displayed, front, grid_down, grid_up, move_to_grid, spread
from fedlsg.privacy.ledger import Entry, Ledger

DELTA = 1e-5
positive = st.floats(1e-6, 1e6)
levels = st.sampled_from(population.LEVELS)


@pytest.fixture
def few_are_exact(monkeypatch):
    """A dozen clients are many, so that a test need not ask the accountants two dozen times."""
    monkeypatch.setattr(population, "MAX_EXACT_CLIENTS", 8)


def client(q, sigma, steps, *others):
    return canonical([Event(sample_rate=q, noise_multiplier=sigma, steps=steps), *others])


def unequal(count, *, own_noise=False):
    """Clients whose rates, step counts and, where asked, noise all differ, without any two
    alike.
    """
    qs = [0.01 * 1.11**i for i in range(count)]
    return [
        client(q, 2 * (q / 0.02) ** 0.8 if own_noise else 1.5, 10 + 7 * i % 40)
        for i, q in enumerate(qs)
    ]


@given(value=positive, level=levels)
def test_the_grid_moves_by_less_than_one_point_and_never_the_wrong_way(value, level):
    assert value <= grid_up(value, level) < value * 2 ** (1 / level) * (1 + 1e-12)
    assert value >= grid_down(value, level) > value / 2 ** (1 / level) * (1 - 1e-12)


@given(q=st.floats(1e-4, 1), sigma=st.floats(0.3, 20), steps=st.integers(1, 10**4), level=levels)
@settings(max_examples=50, deadline=None)
def test_moved_events_lose_at_least_as_much(q, sigma, steps, level):
    (event,) = (
        move_to_grid(client(q, sigma, steps), level)
        if q < 1
        else [Event(sample_rate=1, noise_multiplier=1, steps=1)]
    )
    if q < 1:
        assert event.sample_rate >= q
        assert event.sample_rate == 1 or (event.noise_multiplier <= sigma and event.steps >= steps)


def test_a_few_clients_are_exact():
    clients = [client(0.02, 1.5, steps) for steps in (3, 50, 50, 7)] + [()]
    each = [compose(events, delta=DELTA).upper for events in clients]
    found = spread(clients, delta=DELTA)
    assert (found.largest, found.median, found.worst) == (max(each), statistics.median(each), 1)
    assert each[-1] == 0.0


@pytest.mark.usefixtures("few_are_exact")
@pytest.mark.parametrize("own_noise", [False, True])
def test_many_clients_are_bounded_closely_from_above(own_noise):
    clients = unequal(12, own_noise=own_noise)
    cheap = [upper_or_inf(events, DELTA, ("pld",)) for events in clients]
    found = spread(clients, delta=DELTA, accountants=("pld",))
    assert found.largest == pytest.approx(max(cheap), rel=1e-9)
    assert cheap[found.worst] == max(cheap)
    assert statistics.median_high(cheap) <= found.median <= 1.25 * statistics.median_high(cheap)
    both = spread(clients, delta=DELTA)
    assert both.largest >= compose(clients[both.worst], delta=DELTA).upper


def test_rounding_down_is_caught(monkeypatch):
    """Negative control: with the grid turned round, the bound of a crowded front falls below the
    truth.
    """
    clients = [client(q, 2 * (q / 0.02) ** 0.5, 30) for q in (0.01 * 1.18**i for i in range(12))]
    largest = max(upper_or_inf(events, DELTA, ("pld",)) for events in clients)
    for limit in ("MAX_EXACT_CLIENTS", "MAX_FRONT_CLIENTS"):
        monkeypatch.setattr(population, limit, 8)  # a dozen crowd the front
    monkeypatch.setattr(population, "MAX_QUESTIONS", 1)  # a cell's bound is taken as it is
    assert spread(clients, delta=DELTA, accountants=("pld",)).largest >= largest
    up, down = grid_up, grid_down
    monkeypatch.setattr(population, "grid_up", down)
    monkeypatch.setattr(population, "grid_down", up)
    members = front(clients)
    assert max(upper_or_inf(move_to_grid(e, 2), DELTA, ("pld",)) for e in members) < largest


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=30
    )
)
def test_the_front_covers_everyone_and_holds_no_one_in_vain(numbers):
    clients = [client(q / 10, float(sigma), steps) for q, sigma, steps in numbers]
    members = front(clients)

    def covers(a, b):
        return all(
            x.sample_rate >= y.sample_rate
            and x.noise_multiplier <= y.noise_multiplier
            and x.steps >= y.steps
            for x, y in zip(a, b, strict=True)
        )

    assert set(members) <= set(clients)
    assert all(any(covers(member, events) for member in members) for events in clients)
    assert not any(covers(a, b) for a in members for b in members if a != b)


def test_a_budget_holds_to_the_step_whether_settings_are_few_or_many(tmp_path, monkeypatch):
    entry = {"client": 0, "attempt": 0, "clip_norm": 1.0, "num_examples": 50, "mechanism": "dp"}
    entry |= {"sample_rate": 0.021, "noise_multiplier": 1.07}
    allowed = []
    for exact in (16, 0):
        monkeypatch.setattr(population, "MAX_EXACT_CLIENTS", exact)
        ledger = Ledger(tmp_path / f"{exact}.jsonl", client=0)
        steps = (270, 285, 300, 315)
        allowed.append(
            [
                n
                for n in steps
                if not ledger.would_exceed(Entry(round=1, steps=n, **entry), 2.0, DELTA)
            ]
        )
    assert allowed == [[270, 285]] * 2, "295 steps lose 2.0"


@pytest.mark.parametrize("number", [1, 2, 5, 30, 31])
def test_equal_clients_may_be_counted(number):
    """Largest and median of distinct histories with their counts are those of all clients, few and
    many.
    """
    clients = [client(0.1 * (1 + i % 3), 2.0, 1 + i * i % 7) for i in range(number)]
    different = list(dict.fromkeys(clients))
    counts = [clients.count(one) for one in different]
    for compute in (displayed, partial(spread, accountants=("pld",))):
        whole = compute(clients, delta=DELTA)
        counted = compute(different, delta=DELTA, counts=counts)
        assert (whole.largest, whole.median) == (counted.largest, counted.median)
        assert clients[whole.worst] == different[counted.worst]
    if len(different) > 2:
        assert (
            displayed(different, delta=DELTA, counts=[1] * (len(different) - 1) + [99]).median
            != whole.median
        )
