"""Ranges of ``--search``: what they mean, which method gets them, what is refused."""

import pytest

from simulations.compare.cells.grid import Entry
from simulations.compare.search.space import Choices, Span, make_spaces, read_spec


def spaces(text: str, *methods: str, **given: object):
    entries = [Entry(label=method, method=method) for method in methods]
    return make_spaces(read_spec([text]), entries, {method: given for method in methods})


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learning_rate=1", "a search needs two values at least; fix one with -c learning_rate=1"),
        ("learning_rate=2..1", "expected a range from a lower to a higher number, got 2..1"),
        ("weight_decay=log:0..0.9", "a logarithmic range starts above 0"),
        ("learning_rate=int:1..4", "learning_rate: it is no integer"),
        ("learning_rate=log:1,2", "expected a range such as 1..16 after log:"),
        ("rounds=0..4", "expected rounds=0 >= 1"),
        ("learning_rate=a..b", "expected a number"),
        ("learning_rat=1..2", "unknown setting of dpsgd, lsg to vary 'learning_rat'; did you mean 'learning_rate'"),
        ("probes=1,2", "unknown setting of dpsgd, lsg to vary 'probes'"),
        ("rgp.rank=1,2", "unknown method of this search 'rgp'"),
        ("noise_multiplier=1..2", "it changes what is measured or how private it is, give it with -c"),
        ("rounds=1..2; rounds=3,4", "--search gives rounds twice"),
        ("rounds", "cannot read the search rounds: No such file"),
        ("rounds=2,3; rank", "expected NAME=RANGE or NAME=A,B,C in --search, got 'rank'"),
        ("momentum=0.1,0.2", "momentum is varied by --search: leave -c momentum=... out for dpsgd"),
    ],
)
def test_what_is_refused(text, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        spaces(text, "dpsgd", "lsg", momentum=0.5)  # given with -c
