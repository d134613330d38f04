"""What a process has spent on the same rows: places of rows, and epsilons of several runs
together.
"""

import gc
import math
from argparse import Namespace
from dataclasses import dataclass
from itertools import count

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)

import fedlsg
from fedlsg.accounting import Event, compose
from fedlsg.privacy import Entry, data_record
from fedlsg.privacy.data_record import (
    DataRun,
    SpentTogetherWarning,
    epsilon_of_data,
    places_of,
    runs_on,
)

DELTA = 1e-5
NAMES = count()


def entry(**changes):
    given = {
        "client": 0,
        "round": 1,
        "attempt": 0,
        "steps": 10,
        "sample_rate": 0.1,
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "num_examples": 40,
        "mechanism": "dp",
    }
    return Entry(**given | changes)


def reads(data, *clients, rows=0, warns=False):
    """A run that has read ``data``, with these entries of its clients."""
    run = DataRun(
        ledger=f"run {next(NAMES)}",
        charged=lambda: clients or [[entry()]],
        delta=DELTA,
        warns=warns,
    )
    run.read(places_of(data, rows))
    return run


def exactly(*terms):
    """Epsilon of (q, sigma, steps)."""
    events = [
        Event(sample_rate=q, noise_multiplier=sigma, steps=steps) for q, sigma, steps in terms
    ]
    return compose(events, delta=DELTA).upper


class Own(Dataset):
    """A data set of a user's own, with a constant of a transform."""

    def __init__(self, x, mean=None):
        self.x, self.mean = x, mean

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        return self.x[at], 0


MANY = torch.randn(60, 3)


def function_of_positions(positions):
    """Rows of a global variable."""
    return MANY[positions], positions


X, Y = torch.randn(40, 3), torch.arange(40)
ARRAY = np.random.default_rng(0).normal(size=(40, 3))
FRAME = pd.DataFrame({"a": np.arange(40.0), "b": np.arange(40), "c": ["text"] * 40})
SETS = TensorDataset(X, Y)
OWN = Own(X)


@dataclass(slots=True)
class Slotted(Dataset):
    """A data set whose attributes are slots."""

    x: torch.Tensor

    def __len__(self):
        return 40


HOLDER = Namespace(frame=FRAME, many=MANY)
SERIES = torch.randn(2, 400)
ARROW = pa.table({"a": list(range(40))})


def by_a_helper(positions):
    """Rows of what another function names."""
    return helper(positions)


def helper(positions):
    return HOLDER.many[positions], positions


class OwnList(Dataset):
    """Rows of a list or a dict."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return self.rows[place]


ROWS = [(torch.randn(2), place) for place in range(40)]
TEXTS = {place: f"text {place}" for place in range(40)}
SAME = {
    "itself": ((X, Y), (X, Y)),
    "inputs with other targets": ((X, Y), (X, Y.clone())),
    "a dict": (({"x": X, "more": Y.clone()}, Y), (X, Y)),
    "a slice": ((X, Y), (X[30:], Y[30:])),
    "a view": ((X, Y), (X.view(20, 6), torch.zeros(20))),
    "columns": ((X[:, :1], Y.clone()), (X[:, 1:], Y.clone())),
    "memory shared with numpy": ((X, Y), (X.numpy(), Y.numpy())),
    "an array": ((ARRAY, ARRAY[:, 0]), (ARRAY[20:], ARRAY[20:, 0])),
    "memory shared with torch": ((ARRAY, 0), (torch.from_numpy(ARRAY), 0)),
    "a part of an array as a tensor": ((ARRAY, 0), (torch.from_numpy(ARRAY[20:]), 0)),
    "a TensorDataset": ((X, Y), TensorDataset(X, Y)),
    "a Subset": (SETS, Subset(SETS, [1, 2])),
    "a Subset of a Subset": (SETS, Subset(Subset(SETS, [1, 2]), [0])),
    "two parts": (random_split(SETS, [20, 20])[0], SETS),
    "a part of a ConcatDataset": (ConcatDataset([TensorDataset(MANY, MANY), SETS]), (X, Y)),
    "a small part of a ConcatDataset": (ConcatDataset([Own(torch.zeros(4000, 3)), SETS]), SETS),
    "a StackDataset": (StackDataset(OWN, SETS), OWN),
    "a Dataset of one's own": (OWN, Subset(OWN, [3])),
    "another Dataset of the same tensor": (Own(X), Own(X)),
    "a table": (FRAME, FRAME),
    "rows of a table": (FRAME, FRAME.iloc[10:]),
    "a table and its targets": (FRAME, (FRAME[:20], FRAME["b"][:20])),
    "a path": ("rows.csv", "./rows.csv"),
    "a new Dataset of one list of rows": (OwnList(ROWS), OwnList(ROWS)),
    "a new Dataset of one dict of texts": (OwnList(TEXTS), OwnList(TEXTS)),
    "a function of globals": (function_of_positions, (MANY, MANY)),
    "a function that names them inside": (
        lambda positions: torch.stack([MANY[i] for i in positions]),
        (MANY, 0),
    ),
    "slots": (Slotted(X), (X, Y)),
    "a helper of a function": (by_a_helper, (MANY, MANY)),
    "a row in the middle of a list": (OwnList(ROWS), ROWS[20:21]),
    "parts of one list": (OwnList(ROWS[:25]), OwnList(ROWS[15:])),
    "windows of a series": (Own(SERIES), (SERIES, 0)),
    "wrappers of one table of arrow": (OwnList(ARROW), OwnList(ARROW.slice(3))),
    "an object of another library": (pa.table({"a": [1, 2]}).column("a"), None),
    "a function of a closure": ((lambda x: lambda positions: x[positions])(X), (X, Y)),
    "a function of another one": (
        (lambda inner: lambda positions: inner(positions))(OWN.__getitem__),
        OWN,
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_rows_are_known_by_their_origin(name):
    read, asked = SAME[name]
    asked = read if asked is None else asked
    run = reads(read, rows=40)
    assert run in runs_on(places_of(asked, 40))


BIG = torch.randn(600, 3)
OTHER = {
    "a copy": (lambda: (BIG, BIG), lambda: (BIG.clone(), BIG.clone())),
    "a constant of a transform": (
        lambda: Own(BIG.clone(), BIG[0]),
        lambda: Own(BIG.clone(), BIG[0]),
    ),
    "weights of a model in a function": (
        lambda: lambda positions: (MODEL(BIG), positions),
        lambda: lambda positions: (MODEL(X), positions),
    ),
    "another file": (lambda: "rows.csv", lambda: "others.csv"),
}
MODEL = nn.Embedding(600, 3)


@pytest.mark.parametrize("name", OTHER)
def test_other_rows_are_others(name):
    read, asked = (make() for make in OTHER[name])
    run = reads(read, rows=600)
    assert run not in runs_on(places_of(asked, 600))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(40, 3),
        lambda: np.zeros((40, 3)),
        lambda: Own(torch.randn(40, 3)),
        lambda: pd.DataFrame({"a": np.zeros(40)}),
    ],
)
def test_data_are_held_weakly_and_memory_that_is_used_again_is_new(make):
    before = len(data_record._READ)
    data = make()
    places = places_of((data, 0))
    run = reads((data, 0))
    assert run in runs_on(places)
    del data
    gc.collect()
    assert run not in runs_on(places)
    assert len(data_record._READ) <= before


@pytest.mark.parametrize(
    "borrowed",
    [torch.from_numpy, torch.as_tensor, lambda array: torch.frombuffer(array, dtype=torch.float32)],
)
def test_borrowed_memory_is_the_same_when_the_tensor_is_gone(borrowed):
    array = np.zeros(40, dtype=np.float32)
    run = reads((borrowed(array), 0))
    gc.collect()
    assert run in runs_on(places_of((borrowed(array), 0)))
    assert run in runs_on(places_of((array, 0)))


def test_epsilons_of_equal_rows_are_composed():
    data = torch.randn(40, 3)
    assert epsilon_of_data(data) == 0.0
    reads(data)
    assert epsilon_of_data(data) == pytest.approx(exactly((0.1, 1.0, 10)))
    reads(data[:20], [entry(noise_multiplier=2.0)])
    both = exactly((0.1, 1.0, 10), (0.1, 2.0, 10))
    assert epsilon_of_data(data) == epsilon_of_data(data[30:]) == pytest.approx(both)
    assert exactly((0.1, 1.0, 10)) < both
    assert fedlsg.epsilon_of_data(data, 1e-7) > both


def test_the_runs_are_counted_once_for_each_ledger():
    """Planted: without the ledger's name the same file, read by two objects, would count twice."""
    data = torch.randn(40, 3)
    first, second = reads(data), reads(data)
    twice = epsilon_of_data(data)
    second.ledger = first.ledger
    assert epsilon_of_data(data) == pytest.approx(exactly((0.1, 1.0, 10)))
    assert epsilon_of_data(data) < 0.8 * twice


def test_clients_that_differ_count_as_the_worst():
    data = torch.randn(40, 3)
    reads(data, [entry()], [entry(client=1, noise_multiplier=0.8)], [])
    worst = exactly((0.1, 0.8, 10))
    assert epsilon_of_data(data, DELTA) == pytest.approx(worst)
    reads(data, [entry(noise_multiplier=3.0)])
    assert exactly((0.1, 0.8, 10), (0.1, 3.0, 10)) <= epsilon_of_data(data, DELTA) < 1.3 * worst


@pytest.mark.parametrize(
    "other",
    [
        {"mechanism": "none", "noise_multiplier": 0.0, "clip_norm": math.inf},
        {"reproducible": True},
        {"unit": "client"},
    ],
)
def test_what_no_epsilon_covers_makes_the_sum_infinite(other):
    data = torch.randn(40, 3)
    reads(data)
    reads(data, [entry(**other)])
    assert epsilon_of_data(data) == math.inf


def test_the_second_run_warns_and_no_other_one():
    data = torch.randn(40, 3)
    first = reads(data, warns=True)
    first.read(places_of(data))
    with pytest.warns(SpentTogetherWarning, match=r"fedlsg.epsilon_of_data\(data\)") as caught:
        second = reads(data[:10], warns=True)
    assert caught[0].filename == __file__
    for run in (first, second):
        run.read(places_of(data))
    reads(data, warns=True)
    reads(torch.randn(40, 3), warns=True)
    reads(data, warns=False)


@pytest.mark.filterwarnings("error::fedlsg.privacy.data_record.SpentTogetherWarning")
@pytest.mark.parametrize("silent", [0, 1])
def test_a_run_with_a_ledger_of_the_data_warns_nobody(silent):
    data = torch.randn(40, 3)
    for number in range(2):
        reads(data, warns=number != silent)
