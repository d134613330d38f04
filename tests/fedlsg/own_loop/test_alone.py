"""Batch functions and data sets of users: in the order of the positions; those that mix examples are refused."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, StackDataset, Subset, TensorDataset

from strategies.own_loop import alone
from strategies.own_loop.alone import check_batches
from strategies.own_loop.examples import synthetic
from strategies.own_loop.user_inputs import batches_of
from tests.fedlsg.support.batch_zoo import HONEST_BATCHES, MIXING_BATCHES, ROWS, X, Y, draw_by_numpy, draw_by_python

CPU = torch.device("cpu")
DRAWS = {"torch": torch.rand, "numpy": draw_by_numpy, "python": draw_by_python}


@pytest.mark.parametrize("case", MIXING_BATCHES)
def test_a_batch_function_that_mixes_is_refused(case):
    with pytest.raises(ValueError, match=r"mixes examples|seeds \w+'s generator itself|one row of inputs and targets"):
        check_batches(MIXING_BATCHES[case](), ROWS, "cpu")


@pytest.mark.parametrize("case", HONEST_BATCHES)
def test_a_batch_function_that_makes_each_example_alone_passes(case):
    check_batches(HONEST_BATCHES[case], ROWS, "cpu")


@pytest.mark.parametrize("case", MIXING_BATCHES)
def test_every_mixing_function_is_accepted_without_the_comparison(case, monkeypatch):
    """Negative control: nothing but the comparison, the guard and the test of seeds finds them."""
    monkeypatch.setattr(alone, "row_differs", lambda one, two: [])
    if case not in ("some rows dropped", "own positions"):
        check_batches(MIXING_BATCHES[case](), ROWS, "cpu")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_data_sets_of_any_size(size):
    x = torch.arange(float(size)).unsqueeze(1)
    check_batches(lambda rows: (x[rows], x[rows]), size, "cpu")
    if size > 1:
        with pytest.raises(ValueError, match="mixes examples"):
            check_batches(lambda rows: (x[rows] - x[rows].mean(0), x[rows]), size, "cpu")


def test_one_outlier_among_equal_rows_is_found_in_a_small_data_set():
    x = torch.ones(60, 2)
    x[17] = 500
    with pytest.raises(ValueError, match="mixes examples"):
        check_batches(lambda rows: (x[rows] - x[rows].mean(0), Y[rows]), 60, "cpu")


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
    """A batch at once, less its mean if ``mixed``."""

    def __init__(self, *, mixed: bool) -> None:
        super().__init__()
        self.mixed = mixed

    def __getitems__(self, places):
        part = X[places]
        return list(zip(part - part.mean(0) * self.mixed, Y[places], strict=True))


def of(data):
    return batches_of(data, num_examples=ROWS, device=CPU)


@pytest.mark.parametrize("draw", DRAWS)
def test_a_data_set_with_random_changes_passes(draw):
    check_batches(of(Items(lambda x: x + DRAWS[draw](1).unsqueeze(1))), ROWS, "cpu")


def test_data_sets_that_mix_are_refused():
    for data in (Remembering(), AtOnce(mixed=True), Items(MIXING_BATCHES_OF_ROWS["own generator"])):
        with pytest.raises(ValueError, match="mixes examples"):
            check_batches(of(data), ROWS, "cpu")
    check_batches(of(AtOnce(mixed=False)), ROWS, "cpu")


def test_a_data_set_that_returns_a_random_item_is_refused(monkeypatch):
    data = Drawing()
    with pytest.raises(ValueError, match="mixes examples: it gives one row for several positions"):
        check_batches(of(data), ROWS, "cpu")
    monkeypatch.setattr(alone, "_check_positions", lambda *given: None)  # negative control
    check_batches(of(data), ROWS, "cpu")


GENERATOR = np.random.default_rng(0)
MIXING_BATCHES_OF_ROWS = {"own generator": lambda x: x[:, 1:] + float(GENERATOR.random())}


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


@pytest.mark.parametrize("data", [
    (XS, YS), (XS.numpy(), YS.numpy()), TensorDataset(XS, YS), Listed(), StackDataset(XS, YS),
    Subset(Listed(lambda i: (XS[i - 1], YS[i - 1])), [1, 2, 3, 4, 5, 0]), Listed(lambda i: (XS[i].numpy(),
    np.int64(i))),
])  # fmt: skip
def test_rows_of_the_positions_in_their_order(data):
    inputs, targets = batches_of(data, num_examples=6, device=CPU)(PICKED)
    assert torch.equal(inputs, XS[PICKED])
    assert torch.equal(targets, YS[PICKED])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(XS, YS, strict=True))


@pytest.mark.parametrize(("data", "message"), [
    (Stream(), "Stream has no length"), ([1], "has 1"), (TensorDataset(XS), "a TensorDataset of inputs and targets"),
    ((XS[:5], YS[:5]), "expected num_examples=6 examples, the data set has 5"), ((XS, YS[:5]), "share their first"),
])  # fmt: skip
def test_a_data_set_that_does_not_fit_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        batches_of(data, num_examples=6, device=CPU)


def test_made_up_rows_have_the_shape_and_nothing_of_the_values():
    for like in (XS, YS, {"x": XS, "m": YS > 2}):
        first, second = synthetic(like), synthetic(like if isinstance(like, dict) else like * 0)
        parts = zip(*(p.values() if isinstance(p, dict) else [p] for p in (like, first, second)), strict=True)
        for own, made, again in parts:
            assert made.dtype == own.dtype
            assert made.shape == (7, *own.shape[1:])
            assert torch.equal(made, again)
    assert synthetic(torch.zeros(2, 5, dtype=torch.int64))[:, 0].tolist() == [1] * 7
