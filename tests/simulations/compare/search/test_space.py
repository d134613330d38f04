"""Ranges of ``--search``: what they mean, which method gets them, what is refused."""

import pytest

from fedlsg.simulations.compare.search.space import Choices, Span


@pytest.mark.parametrize(
    ("dimension", "value", "side"),
    [
        (Span(name="x", low=0.1, high=10, log=True), 0.11, "lowest"),
        (Span(name="x", low=0.1, high=10, log=True), 1.0, None),
        (Span(name="x", low=0.1, high=10, log=True), 8.0, "highest"),
        (Span(name="x", low=0.1, high=10), 0.5, "lowest"),  # of a linear scale
        (Span(name="x", low=2, high=200, whole=True), 3, None),
        (Span(name="x", low=2, high=200, whole=True), 200, "highest"),
        (Choices(name="x", values=(0.5, 1, 2)), 2, "highest"),
        (Choices(name="x", values=(0.5, 1, 2)), 1, None),
        (Choices(name="x", values=("a", "b")), "a", None),
    ],
)
def test_the_edges_of_a_range(dimension, value, side):
    assert dimension.side(value) == side
