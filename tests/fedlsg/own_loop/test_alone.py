"""Rows that user code makes: refused where it keeps a state, or means something else for many
positions.
"""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, StackDataset, Subset, TensorDataset

from fedlsg.rows import OneByOne
from fedlsg.strategies.own_loop import function_checks
from fedlsg.strategies.own_loop.examples import synthetic
from fedlsg.strategies.own_loop.function_checks import check_batches, same_function
from fedlsg.strategies.own_loop.user_inputs import batches_of, of_function
from tests.fedlsg.support.batch_zoo import (
    HONEST_BATCHES,
    MIXING_BATCHES,
    ROWS,
    X,
    Y,
    draw_by_numpy,
    draw_by_python,
)

CPU = torch.device("cpu")
DRAWS = {"torch": torch.rand, "numpy": draw_by_numpy, "python": draw_by_python}
SEEN = (
    "mean",
    "standardised",
    "standardised next to a unix time",
    "largest",
    "earlier ones",
    "less the first",
    "sorted columns",
    "softmax",
    "size of the batch",
    "order by size",
    "some rows dropped",
    "rows twice",
    "targets of the batch",
    "memory",
    "own positions",
    "longest text",
)
"""Functions of which it can be seen that one position gives something else than they mean."""
PADS = ("padded", "padded at the start")
OF_CHANCE = (
    "noise by torch",
    "noise by numpy",
    "noise by python",
    "two draws",
    "draws one by one",
    "a coin of each",
    "one draw for all",
    "own seeds",
)


def one_by_one(function, **more):
    return of_function(function, device=CPU, **more)


def apart(function, *, moved):
    """Rows of the positions 1 to 5 made by a step, with more rows in the data's batch and with
    fewer.
    """
    rows = one_by_one(function)
    positions = torch.arange(1, 6) if moved else torch.arange(6)
    return [
        row
        for place, row in zip(positions.tolist(), rows.rows(positions, bytes(16)), strict=True)
        if place
    ]


@pytest.mark.parametrize("case", MIXING_BATCHES)
def test_what_is_made_of_a_row_depends_on_no_other_row(case):
    """By construction, whether a check sees something or not; under the same draws for both
    batches.
    """
    if case in ("memory", "earlier ones"):
        return  # a state between calls is the check's
    one, other = (apart(MIXING_BATCHES[case](), moved=moved) for moved in (True, False))
    assert all(map(function_checks.same_row, one, other))


def test_a_batch_of_many_positions_would_mix(monkeypatch):
    """Negative control: the same comparison of rows that are made together."""
    whole = MIXING_BATCHES["mean"]()
    one, other = whole(torch.arange(1, 6))[0], whole(torch.arange(6))[0][1:]
    assert not torch.equal(one, other)


@pytest.mark.parametrize("case", SEEN)
def test_a_function_that_means_something_else_is_refused(case):
    with pytest.raises(ValueError, match=r"mixes examples|one row of inputs and targets"):
        check_batches(one_by_one(MIXING_BATCHES[case](), own_lengths=False), ROWS, "cpu")


@pytest.mark.parametrize("case", [case for case in HONEST_BATCHES if case not in PADS])
def test_a_function_that_makes_each_example_alone_passes(case):
    check_batches(one_by_one(HONEST_BATCHES[case], own_lengths=False), ROWS, "cpu")


@pytest.mark.parametrize("case", PADS)
def test_padding_to_the_longest_is_refused_with_the_line_that_works(case):
    with pytest.raises(
        ValueError, match=r"longest row of the batch.*step\.step\(step\.batches\(function\)\)"
    ):
        check_batches(one_by_one(HONEST_BATCHES[case], own_lengths=False), ROWS, "cpu")
    check_batches(one_by_one(HONEST_BATCHES[case]), ROWS, "cpu")


@pytest.mark.parametrize("case", MIXING_BATCHES)
def test_batched_functions_that_mix_are_refused(case):
    with pytest.raises(
        ValueError, match=r"batched=True: .* mixes examples|one row of inputs and targets"
    ):
        check_batches(one_by_one(MIXING_BATCHES[case](), batched=True), ROWS, "cpu")


@pytest.mark.parametrize("case", [case for case in HONEST_BATCHES if case != "products"])
def test_batched_functions_are_equal_bit_for_bit_or_refused(case):
    batch = one_by_one(HONEST_BATCHES[case], batched=True)
    if case not in (*OF_CHANCE, *PADS):
        check_batches(batch, ROWS, "cpu")
        return
    with pytest.raises(ValueError, match=r"without batched, makes one row at a time"):
        check_batches(batch, ROWS, "cpu")


@pytest.mark.parametrize(
    "case", [case for case in MIXING_BATCHES if case not in ("some rows dropped", "longest text")]
)
def test_every_mixing_function_is_accepted_without_the_comparison(case, monkeypatch):
    """Negative control."""
    monkeypatch.setattr(function_checks, "same_row", lambda one, two: True)
    check_batches(one_by_one(MIXING_BATCHES[case](), batched=True), ROWS, "cpu")
    check_batches(one_by_one(MIXING_BATCHES[case](), own_lengths=False), ROWS, "cpu")


def test_the_fast_ways_are_named_once(caplog):
    check_batches(one_by_one(lambda rows: (X[rows], Y[rows])), ROWS, "cpu")
    assert "step.batches(function, batched=True)" in caplog.text
    assert "step.batches((inputs, targets))" in caplog.text
    check_batches(one_by_one(lambda row: (X[int(row)][None], Y[row])), ROWS, "cpu")
    check_batches(one_by_one(lambda row: (X[row[:1]], Y[row[:1]]), own_lengths=False), ROWS, "cpu")
    assert len(caplog.records) == 1


class Items(Dataset):
    """Items one by one, changed."""

    def __init__(self, change=lambda x: x) -> None:
        self.change, self.seen = change, 0.0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, place):
        return self.change(X[place : place + 1])[0], Y[place]


class Remembering(Items):
    """Subtracts a part of what it has given before."""

    def __getitem__(self, place):
        self.seen = 0.9 * self.seen + float(X[place, 1])
        return X[place] - self.seen, Y[place]


class Drawing(Items):
    """Returns an item that it draws, whichever is demanded."""

    def __getitem__(self, place):
        return super().__getitem__(random.randrange(ROWS))


class AtOnce(Items):
    """A batch at once, less its mean."""

    def __getitems__(self, places):
        return list(zip(X[places] - X[places].mean(0), Y[places], strict=True))


class OnlyAtOnce(Dataset):
    """Reads many positions in one call, and no other way."""

    def __len__(self) -> int:
        return ROWS

    def __getitems__(self, places):
        return list(zip(X[places] - X[places].mean(0), Y[places], strict=True))


def of(data):
    return batches_of(data, num_examples=ROWS, device=CPU)


@pytest.mark.parametrize("draw", DRAWS)
def test_a_data_set_with_random_changes_passes(draw):
    check_batches(of(Items(lambda x: x + DRAWS[draw](1).unsqueeze(1))), ROWS, "cpu")


def test_a_data_set_with_a_generator_of_its_own_passes_because_it_is_seeded():
    generator = np.random.default_rng(0)
    data = of(Items(lambda x: x[:, 1:] + float(generator.random())))
    check_batches(data, ROWS, "cpu")
    assert not torch.equal(data(torch.arange(3))[0], of(data.source)(torch.arange(3))[0])


NAMED = np.random.default_rng(0)


def test_a_data_set_that_names_a_global_generator_passes_because_it_is_seeded():
    data = of(Items(lambda x: x[:, 1:] + float(NAMED.random())))
    check_batches(data, ROWS, "cpu")


def test_a_data_set_with_a_memory_is_refused(monkeypatch):
    cases = [Remembering()]
    for data in cases:
        with pytest.raises(ValueError, match="it has a memory, or a random generator of its own"):
            check_batches(of(data), ROWS, "cpu")
    monkeypatch.setattr(function_checks, "same_row", lambda one, two: True)  # negative control
    for data in cases:
        check_batches(of(data), ROWS, "cpu")


def test_a_data_set_that_returns_a_random_item_is_refused(monkeypatch):
    data = Drawing()
    with pytest.raises(ValueError, match="mixes examples: it gives one row for several positions"):
        check_batches(of(data), ROWS, "cpu")
    monkeypatch.setattr(
        function_checks, "_check_positions", lambda *given: None
    )  # negative control
    check_batches(of(data), ROWS, "cpu")


@pytest.mark.parametrize("kind", [AtOnce, OnlyAtOnce])
def test_a_whole_batch_is_never_read_at_once(kind):
    positions = torch.tensor([3, 4])
    inputs = of(kind())(positions)[0]
    assert torch.equal(inputs, X[positions] if kind is AtOnce else torch.zeros(2, 6))


def test_the_same_function_is_not_checked_again():
    make = lambda x: one_by_one(lambda rows: (x[rows], Y[rows]))  # noqa: E731
    assert same_function(make(X), make(X))
    assert not same_function(make(X), make(X.clone()))
    data = Items()
    assert same_function(of(data), of(data))
    assert not same_function(of(data), of(Items()))
    assert same_function(batches_of((X, Y), num_examples=ROWS, device=CPU), None)


def test_a_subset_of_tensors_is_indexed_and_not_made():
    data = Subset(Subset(TensorDataset(X, Y), list(range(ROWS - 1, -1, -1))), range(10, 20))
    batch = batches_of(data, num_examples=10, device=CPU)
    assert not isinstance(batch, OneByOne)
    assert torch.equal(batch(torch.tensor([0, 3]))[0], X[[ROWS - 11, ROWS - 14]])


def test_a_tensor_data_set_with_items_of_its_own_is_made():
    class Changed(TensorDataset):
        def __getitem__(self, place):
            x, y = super().__getitem__(place)
            return x + 1, y

    assert torch.equal(of(Changed(X, Y))(torch.tensor([5]))[0], X[5:6] + 1)


XS, YS = torch.arange(12.0).reshape(6, 2), torch.arange(6)
PICKED = torch.tensor([1, 4])


class Listed(Dataset):
    """Items one by one, as a user writes them."""

    def __init__(self, item=lambda i: (XS[i], int(YS[i]))) -> None:
        self.item = item

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i):
        return self.item(i)


@pytest.mark.parametrize(
    "data",
    [
        (XS, YS),
        (XS.numpy(), YS.numpy()),
        TensorDataset(XS, YS),
        Listed(),
        StackDataset(XS, YS),
        Subset(Listed(lambda i: (XS[i - 1], YS[i - 1])), [1, 2, 3, 4, 5, 0]),
        Listed(lambda i: (XS[i].numpy(), np.int64(i))),
    ],
)
def test_rows_of_the_positions_in_their_order(data):
    inputs, targets = batches_of(data, num_examples=6, device=CPU)(PICKED)
    assert torch.equal(inputs, XS[PICKED])
    assert torch.equal(targets, YS[PICKED])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(XS, YS, strict=True))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Stream(), "Stream has no length"),
        ([1], "has 1"),
        (TensorDataset(XS), "a TensorDataset of inputs and targets"),
        ((XS[:5], YS[:5]), "expected num_examples=6 examples, the data set has 5"),
        ((XS, YS[:5]), "share their first"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        batches_of(data, num_examples=6, device=CPU)


def test_made_up_rows_have_the_shape_and_nothing_of_the_values():
    for like in (XS, YS, {"x": XS, "m": YS > 2}):
        first, second = synthetic(like), synthetic(like if isinstance(like, dict) else like * 0)
        parts = zip(
            *(p.values() if isinstance(p, dict) else [p] for p in (like, first, second)),
            strict=True,
        )
        for own, made, again in parts:
            assert made.dtype == own.dtype
            assert made.shape == (7, *own.shape[1:])
            assert torch.equal(made, again)
    assert synthetic(torch.zeros(2, 5, dtype=torch.int64))[:, 0].tolist() == [1] * 7
