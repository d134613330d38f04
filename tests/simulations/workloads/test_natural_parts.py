"""Natural partitions: a column or lists of rows make the clients, and each example belongs to exactly one of them."""

import numpy as np
import pandas as pd
import pytest
import torch

from simulations.plan.prepare import prepare
from simulations.settings.settings import from_mapping
from simulations.workloads import give
from tests.simulations.support.own import QUICK, TRAIN, refused, workload

N = len(TRAIN[0])
WRITERS = np.array(["b", "a", "c"])[np.arange(N) % 3]
SETTINGS = {name: value for name, value in QUICK.items() if name not in ("quiet", "clients")}


def table(**more):
    return pd.DataFrame({**{f"x{i}": TRAIN[0][:, i] for i in range(8)}, "label": TRAIN[1], **more})


def base(made, **settings):
    give("made", made)
    return prepare(from_mapping({"workload": "made", **SETTINGS, **settings}))


def lists(*parts):
    return workload(partition=parts)


def test_a_run_may_choose_a_column_and_the_data_say_how_many_clients():
    made = workload(
        train=table(writer=WRITERS, ward=np.arange(N) < 20), inputs=[f"x{i}" for i in range(8)], test=table()
    )
    assert len(base(made, partition="writer").parts) == 3
    assert [len(part) for part in base(made, partition="ward").parts] == [N - 20, 20]
    assert len(base(made).parts) == 5  # iid
    with refused("partition=writer has 3 clients, and clients=2: leave clients out"):
        base(made, partition="writer", clients=2)
    with refused(
        "unknown partition of own 'writr', expected one of iid, dirichlet, shards, label, writer, ", "did you mean"
    ):
        base(made, partition="writr")


def test_lists_are_the_clients():
    made = lists(range(20, N), [3, 1, 2, 0], np.arange(4, 20, dtype=np.uint16))
    parts = base(made).parts
    assert [part.tolist() for part in parts] == [list(range(20, N)), [0, 1, 2, 3], list(range(4, 20))]
    assert [part.dtype for part in parts] == [torch.int64] * 3
    with refused("partition=given has 3 clients, and clients=5: leave clients out"):
        base(made, clients=5)
    assert len(base(made, partition="iid", clients=4).parts) == 4


WRONG = {
    "overlap": (([0, 1], range(1, N)), "partitions overlap: clients 0 and 1 both hold example 1"),
    "twice in one": ((np.r_[range(N), 3],), "client 0 holds example 3 more than once"),
    "missing rows": ((range(10), range(20, N)), f"partition=given has {N - 10} of {N} training rows: give every row"),
    "an empty client": ((range(N), []), "expected lists of row numbers, got float64"),
    "an empty client of integers": ((range(N), np.array([], dtype=int)), "leaves client 1 without examples"),
    "out of range": ((range(N + 1),), f"client 0 holds indices 0..{N}, expected 0..{N - 1}"),
    "negative": ((range(-1, N - 1),), "client 0 holds indices -1.."),
    "floats": ((np.arange(N) / 1.0,), "partition: expected lists of row numbers, got float64"),
    "a mask": ((np.ones(N, dtype=bool),), "partition: expected lists of row numbers, got bool"),
    "a table": ((np.arange(N).reshape(2, -1),), "partition: expected lists of row numbers"),
    "texts": ((list("abc"),), "partition: expected lists of row numbers"),
    "nobody": ((), f"partition=given has 0 of {N} training rows"),
}


@pytest.mark.parametrize("case", WRONG)
def test_lists_that_are_no_partition_are_refused(case):
    parts, words = WRONG[case]
    with refused(words):
        base(lists(*parts))
