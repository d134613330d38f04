"""Partitioners of flwr-datasets as ``partition=``: the settings of that package's own tests, and what
each of its partitioners deals by itself is the oracle.
"""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedlsg.simulations import workloads
from fedlsg.simulations.workloads import give
from fedlsg.simulations.workloads.partition import natural_parts
from tests.simulations.support.own import load, refused, workload

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    theirs = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is a guest")
    from datasets import Dataset

pytestmark = pytest.mark.filterwarnings("ignore:::flwr_datasets")


def table(rows: int, classes: int = 3) -> pd.DataFrame:
    places = np.arange(rows)
    return pd.DataFrame(
        {
            "features": np.random.default_rng(0).normal(size=rows),
            "label": places % classes,
            "labels": places % classes,
            "natural_id": (places % classes).astype(str),
            "score": np.linspace(0, 10, rows),
        }
    )


def made(partitioner: Any, data: pd.DataFrame) -> Any:
    return workload(
        train=data, test=data, partition=partitioner, inputs=["features"], targets="label"
    )


def by_itself(partitioner: Any, data: pd.DataFrame) -> list[list[int]]:
    """The rows that a partitioner deals."""
    partitioner.dataset = Dataset.from_pandas(
        data.assign(place=np.arange(len(data))), preserve_index=False
    )
    clients = range(partitioner.num_partitions)
    return [sorted(partitioner.load_partition(client)["place"]) for client in clients]


def distribution(partitions: int, labels_each: int, labels: int) -> np.ndarray:
    columns = labels_each * partitions / labels
    return np.tile(np.arange(columns) + 1.0, (labels, 1))


def dealt_by_distribution(partitions: int, labels_each: int, assigned: int, rescale: bool) -> Any:
    return theirs.DistributionPartitioner(
        distribution_array=distribution(partitions, labels_each, 10),
        num_partitions=partitions,
        num_unique_labels_per_partition=labels_each,
        partition_by="labels",
        preassigned_num_samples_per_label=assigned,
        rescale=rescale,
    )


def shards(each: int | None, size: int | None, keep: bool = False, clients: int = 3) -> Any:
    return theirs.ShardPartitioner(
        num_partitions=clients,
        partition_by="labels",
        num_shards_per_partition=each,
        shard_size=size,
        keep_incomplete_shard=keep,
    )


def pathological(clients: int, classes: int, mode: str = "random") -> Any:
    return theirs.PathologicalPartitioner(clients, "labels", classes, class_assignment_mode=mode)


CASES = {
    "iid": (lambda: theirs.IidPartitioner(10), 100, 2),
    "dirichlet": (
        lambda: theirs.DirichletPartitioner(3, "labels", 0.5, self_balancing=True),
        100,
        3,
    ),
    "dirichlet of five": (lambda: theirs.DirichletPartitioner(5, "labels", 1.0), 150, 3),
    "dirichlet, an array": (
        lambda: theirs.DirichletPartitioner(3, "labels", np.array([1.0, 1.0, 1.0])),
        100,
        3,
    ),
    "dirichlet without a seed": (
        lambda: theirs.DirichletPartitioner(3, "labels", 0.5, seed=7),
        100,
        3,
    ),
    "inner dirichlet": (
        lambda: theirs.InnerDirichletPartitioner([20, 20, 30, 43], "labels", 1.0),
        113,
        3,
    ),
    "shards of a size, so many": (lambda: shards(3, 10), 113, 3),
    "shards of a size": (lambda: shards(None, 10), 113, 3),
    "shards of a size, the last kept": (lambda: shards(None, 10, True), 113, 3),
    "so many shards": (lambda: shards(3, None), 113, 3),
    "natural": (lambda: theirs.NaturalIdPartitioner("natural_id"), 100, 4),
    "groups of natural": (
        lambda: theirs.GroupedNaturalIdPartitioner("natural_id", 2, mode="allow-smaller"),
        30,
        5,
    ),
    "groups that may be larger": (
        lambda: theirs.GroupedNaturalIdPartitioner("natural_id", 2, mode="allow-bigger"),
        30,
        5,
    ),
    "groups without the rest": (
        lambda: theirs.GroupedNaturalIdPartitioner("natural_id", 2, mode="drop-reminder"),
        30,
        5,
    ),
    "linear, one": (lambda: theirs.LinearPartitioner(1), 100, 2),
    "linear, ten": (lambda: theirs.LinearPartitioner(10), 100, 2),
    "linear with a rest": (lambda: theirs.LinearPartitioner(7), 77, 2),
    "square": (lambda: theirs.SquarePartitioner(5), 55, 2),
    "exponential": (lambda: theirs.ExponentialPartitioner(3), 100, 2),
    "a function of the number": (
        lambda: theirs.IdToSizeFncPartitioner(4, lambda place: place**1.5),
        90,
        2,
    ),
    "sizes": (lambda: theirs.SizePartitioner([10, 20, 70]), 100, 2),
    "sizes without the rest": (lambda: theirs.SizePartitioner([10, 20]), 100, 2),
    "pathological, one class": (lambda: pathological(3, 1), 60, 3),
    "pathological, two": (lambda: pathological(5, 2), 100, 5),
    "pathological, two of ten": (lambda: pathological(5, 2), 100, 10),
    "pathological, three": (lambda: pathological(4, 3), 120, 6),
    "pathological, first": (lambda: pathological(10, 2, "first-deterministic"), 100, 10),
    "pathological, fixed": (lambda: pathological(4, 2, "deterministic"), 80, 8),
    "distribution": (lambda: dealt_by_distribution(10, 2, 5, True), 200, 10),
    "distribution without a start": (lambda: dealt_by_distribution(10, 2, 0, True), 200, 10),
    "distribution of one class": (lambda: dealt_by_distribution(20, 1, 5, True), 200, 10),
    "distribution as it is": (lambda: dealt_by_distribution(10, 2, 5, False), 200, 10),
    "continuous, none": (lambda: theirs.ContinuousPartitioner(5, "score", 0.0), 100, 2),
    "continuous, all": (lambda: theirs.ContinuousPartitioner(5, "score", 1.0), 100, 2),
    "continuous, half": (lambda: theirs.ContinuousPartitioner(3, "score", 0.5), 50, 2),
    "a row each": (lambda: theirs.ContinuousPartitioner(10, "score", 1.0), 10, 2),
}


@pytest.mark.thinned(8)
@pytest.mark.parametrize("case", CASES)
def test_a_partitioner_deals_what_it_deals_by_itself(case):
    make, rows, classes = CASES[case]
    data = table(rows, classes)
    expected = by_itself(make(), data)
    own = make()
    parts = load(made(own, data)).parts
    assert [part.tolist() for part in parts] == expected
    assert not own.is_dataset_assigned()  # the user's object is as it was
    give("dealt", made(own, data))
    again = natural_parts(workloads.load("dealt"), "given")
    assert again.sizes == [len(part) for part in expected]
    assert sum(again.sizes) == len(workloads.load("dealt").train)


def test_every_partitioner_of_rows_has_a_case():
    named = {type(make()).__name__ for make, _, _ in CASES.values()}
    assert named == {*theirs.__all__} - {
        "Partitioner",
        "VerticalEvenPartitioner",
        "VerticalSizePartitioner",
    }


def test_natural_ids_are_names_and_draws_without_a_seed_are_the_same_for_one_object():
    data = table(60, 4)
    assert load(made(theirs.NaturalIdPartitioner("natural_id"), data)).parts.names == tuple("0123")
    own = made(theirs.DirichletPartitioner(3, "labels", 0.5, min_partition_size=1, seed=None), data)
    first, second = load(own).parts, load(own).parts
    assert first.owner.tolist() == second.owner.tolist()


def test_of_tensors_the_targets_are_the_column_label():
    x, y = torch.randn(60, 2), torch.arange(60) % 3
    partitioner = theirs.PathologicalPartitioner(3, "label", 1)
    parts = load(workload(train=(x, y), test=(x, y), partition=partitioner)).parts
    assert sorted(int(y[part].unique()) for part in parts) == [0, 1, 2]


REFUSED = {
    "vertical": (lambda: theirs.VerticalEvenPartitioner(2), "columns of all rows (vertical)"),
    "vertical sizes": (
        lambda: theirs.VerticalSizePartitioner([0.5, 0.5]),
        "columns of all rows (vertical)",
    ),
    "another column": (
        lambda: theirs.NaturalIdPartitioner("not-existing"),
        "NaturalIdPartitioner fails: ValueError",
        "the columns are label, ",
    ),
    "too many classes": (
        lambda: pathological(10, 11),
        "PathologicalPartitioner fails: ValueError: The specified",
    ),
    "more clients than rows": (lambda: pathological(100, 2), "fails: ValueError"),
    "alpha of two classes": (
        lambda: theirs.InnerDirichletPartitioner([20, 20], "labels", [1.0, 1.0]),
        "InnerDirichletPartitioner fails: ValueError",
    ),
    "sizes of more rows": (
        lambda: theirs.SizePartitioner([60, 60]),
        "SizePartitioner fails: ValueError: The sum of partition sizes",
    ),
    "too few shards": (lambda: shards(5, 10), "ShardPartitioner fails: ValueError"),
    "missing numbers": (
        lambda: theirs.ContinuousPartitioner(2, "gaps", 0.5),
        "ContinuousPartitioner fails: ValueError",
    ),
    "no row for a client": (lambda: theirs.LinearPartitioner(100), "LinearPartitioner fails"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_partitioner_cannot_deal_is_refused(case):
    make, *words = REFUSED[case]
    data = table(60).assign(gaps=[None, *range(59)])
    with refused("partition: ", *words):
        load(made(make(), data))


def test_one_that_has_a_data_set_is_refused():
    own = theirs.IidPartitioner(2)
    own.dataset = Dataset.from_pandas(table(10))
    with refused("this IidPartitioner has a data set already", "p.load_partition(k)"):
        load(made(own, table(10)))
    parts = [own.load_partition(client) for client in range(own.num_partitions)]
    data = {"train": parts, "test": table(10), "inputs": ["features"]}
    assert load(workload(**data)).parts.sizes == [5, 5]


class Overlapping(theirs.Partitioner):
    """Gives a row to two clients."""

    num_partitions = 2

    def load_partition(self, partition_id: int) -> Any:
        return self.dataset.select(range(20 * partition_id, 20 * partition_id + 21))


def test_one_that_deals_a_row_twice_is_caught():
    with refused("partition: clients 0 and 1 both have row 20"):
        load(made(Overlapping(), table(60)))
