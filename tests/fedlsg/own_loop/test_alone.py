"""Batch functions and data sets that mix examples are refused; honest ones, with random changes or not, pass."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from fedlsg.own_loop import alone, batches_of, check_batches
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


def test_items_whose_draws_depend_on_the_example_pass():
    check_batches(of(Items(lambda x: x + torch.rand(1 + int(x[0, 1] > 0))[:1])), ROWS, "cpu")


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
