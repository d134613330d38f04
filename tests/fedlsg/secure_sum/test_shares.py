"""Shamir's sharing: round trips, an oracle that solves linear equations, and what h - 1 shares say: nothing."""

from collections import Counter
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.secure_sum import SecureSumError, keys
from fedlsg.secure_sum.keys import PRIME, combine, split

numbers = st.integers(0, PRIME - 1)


def as_bytes(number: int) -> bytes:
    return number.to_bytes(32, "big")


def solved(given: dict[int, int], prime: int) -> list[int]:
    """Oracle: the coefficients of the polynomial through these points, by elimination."""
    rows = [[pow(x, power, prime) for power in range(len(given))] + [y] for x, y in given.items()]
    for at in range(len(rows)):
        pivot = next(row for row in rows[at:] if row[at])
        rows.remove(pivot)
        rows.insert(at, [value * pow(pivot[at], -1, prime) % prime for value in pivot])
        rows = [
            row if row is rows[at] else [(a - row[at] * b) % prime for a, b in zip(row, rows[at], strict=True)]
            for row in rows
        ]
    return [row[-1] for row in rows]


def test_shares_by_hand():
    assert split(as_bytes(5), [3, 2], [1, 2]) == {1: as_bytes(10), 2: as_bytes(19)}
    assert split(as_bytes(PRIME - 1), [1], [3]) == {3: as_bytes(2)}


@settings(max_examples=50)
@given(secret=numbers, coefficients=st.lists(numbers, max_size=5), extra=st.integers(0, 3))
def test_any_h_shares_give_the_secret(secret, coefficients, extra):
    threshold = len(coefficients) + 1
    made = split(as_bytes(secret), coefficients, range(1, threshold + extra + 1))
    for points in combinations(made, threshold):
        chosen = {x: made[x] for x in points}
        assert combine(chosen, threshold) == as_bytes(secret)
        assert solved({x: int.from_bytes(y, "big") for x, y in chosen.items()}, PRIME) == [secret, *coefficients]
    assert combine(made, threshold) == as_bytes(secret)


@settings(max_examples=30)
@given(secret=numbers, other=numbers, coefficients=st.lists(numbers, min_size=1, max_size=5))
def test_h_less_one_shares_fit_every_secret(secret, other, coefficients):
    """For any other secret there is exactly one polynomial through the same h - 1 shares."""
    threshold = len(coefficients) + 1
    made = split(as_bytes(secret), coefficients, range(1, threshold))
    through = {0: other, **{x: int.from_bytes(y, "big") for x, y in made.items()}}
    polynomial = solved(through, PRIME)
    assert split(as_bytes(other), polynomial[1:], range(1, threshold)) == made


def test_h_less_one_shares_are_uniform_whatever_the_secret(monkeypatch: pytest.MonkeyPatch):
    """All polynomials over a field of 7: any two of three shares have one distribution for all secrets; h do not."""
    monkeypatch.setattr(keys, "PRIME", 7)

    def views(secret: int, points: tuple[int, ...]) -> Counter[tuple[bytes, ...]]:
        made = (split(as_bytes(secret), list(c), points) for c in product(range(7), repeat=2))
        return Counter(tuple(one.values()) for one in made)

    for points in combinations(range(1, 7), 2):
        assert set(views(0, points).values()) == {1}
        assert all(views(secret, points) == views(0, points) for secret in range(7))
    assert views(1, (1, 2, 3)) != views(0, (1, 2, 3))  # negative control


@pytest.mark.parametrize(
    "spoil", [lambda s: s.pop(2), lambda s: s.update({2: as_bytes(2**256 - 1)}), lambda s: s.update({2: b"short"})]
)
def test_too_few_or_malformed_shares_are_refused(spoil):
    made = split(as_bytes(5), [3, 2], [1, 2, 3])
    spoil(made)
    with pytest.raises(SecureSumError, match="share"):
        combine(made, 3)


@pytest.mark.parametrize(
    ("secret", "coefficients", "points"),
    [(bytes(31), [1], [1]), (as_bytes(PRIME), [1], [1]), (bytes(32), [PRIME], [1]), (bytes(32), [-1], [1]),
     (bytes(32), [1], [0]), (bytes(32), [1], [PRIME])],
)  # fmt: skip
def test_what_cannot_be_shared_is_refused(secret, coefficients, points):
    """A share at point 0 would be the secret."""
    with pytest.raises(ValueError, match="expected"):
        split(secret, coefficients, points)
