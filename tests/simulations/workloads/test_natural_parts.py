"""Partitions, drawn or natural: disjoint, covering, repeatable, and each example belongs to exactly
one client.
"""

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.config.partitions import SCHEMES, Scheme
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.settings.settings import RUN, from_mapping
from fedlsg.simulations.workloads import give
from fedlsg.simulations.workloads.base import parts as dealing
from fedlsg.simulations.workloads.base.parts import check_disjoint, matching_parts, partition
from fedlsg.simulations.workloads.partition import (
    client_parts,
    parts_by_value,
)
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
        train=table(writer=WRITERS, ward=np.arange(N) < 20),
        inputs=[f"x{i}" for i in range(8)],
        test=table(),
    )
    assert len(base(made, partition="writer").parts) == 3
    assert [len(part) for part in base(made, partition="ward").parts] == [N - 20, 20]
    assert len(base(made).parts) == 5  # iid
    assert base(made, partition="writer").clients.names == ("a", "b", "c")
    assert base(made, partition="ward").clients.names == ("False", "True")
    assert base(made).clients.names is None
    with refused("partition=writer has 3 values, and clients=4: leave clients out, or give 1 to 3"):
        base(made, partition="writer", clients=4)
    with refused(
        "unknown partition of own 'writr'; did you mean 'writer'? expected one of iid, dirichlet, "
        "shards, label, writer",
    ):
        base(made, partition="writr")


PATIENTS = np.array([f"p{row % 7 if row < 40 else 7}" for row in range(N)])
"""Six rows each of p0 to p4, five of p5 and p6, and 20 of p7."""


def test_whole_values_are_dealt_to_fewer_clients():
    """By hand: p7 (20 rows) to client 0; p0 and p1 to 1 and 2, then p2 and p3; p4 to 1, which then
    has 18 rows; p5 to 2, and p6 too, for 2 has 17.
    """
    made = workload(train=table(patient=PATIENTS), inputs=[f"x{i}" for i in range(8)], test=table())
    dealt = base(made, partition="patient", clients=3)
    held = [set(PATIENTS[part]) for part in dealt.parts]
    assert held == [{"p7"}, {"p0", "p2", "p4"}, {"p1", "p3", "p5", "p6"}]
    assert dealt.clients.sizes == [20, 18, 22]
    assert dealt.clients.names is None
    again = base(made, partition="patient", clients=3, seed=5)
    assert [part.tolist() for part in again.parts] == [part.tolist() for part in dealt.parts]
    assert len(base(made, partition="patient").parts) == 8  # one client each
    given = workload(
        train=table(patient=PATIENTS),
        inputs=[f"x{i}" for i in range(8)],
        test=table(),
        partition="patient",
        settings={"clients": 2},
    )
    assert base(given).clients.sizes == [31, 29]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.data())
def test_dealt_values_stay_whole_and_clients_are_balanced(values, data):
    """No client has more rows than the mean and one value more: else that value's last rows would
    have gone to a smaller client.
    """
    column = np.array(values)
    made = SimpleNamespace(
        name="made", train=values, parts=None, columns={"patient": column}, test_columns={}
    )
    counts = np.unique(column, return_counts=True)[1]
    clients = data.draw(st.integers(1, len(counts)))
    parts = client_parts(made, "patient", clients)
    assert sorted(torch.cat(list(parts)).tolist()) == list(range(len(values)))
    owners = [
        {client for client, part in enumerate(parts) if value in column[part.numpy()]}
        for value in set(values)
    ]
    assert all(len(owner) == 1 for owner in owners)
    assert min(parts.sizes) >= 1
    assert max(parts.sizes) <= len(values) / clients + counts.max()
    others = np.array([*values, -1])  # nobody's value
    test = parts_by_value(made, "patient", parts, others)
    assert [set(others[part.numpy()]) for part in test] == [
        set(column[part.numpy()]) for part in parts
    ]
    assert sum(test.sizes) == len(values)


def test_lists_are_the_clients():
    made = lists(range(20, N), [3, 1, 2, 0], np.arange(4, 20, dtype=np.uint16))
    parts = base(made).parts
    assert [part.tolist() for part in parts] == [
        list(range(20, N)),
        [0, 1, 2, 3],
        list(range(4, 20)),
    ]
    assert [part.dtype for part in parts] == [torch.int64] * 3
    with refused("partition=given has 3 clients, and clients=5: leave clients out"):
        base(made, clients=5)
    assert len(base(made, partition="iid", clients=4).parts) == 4


WRONG = {
    "overlap": (([0, 1], range(1, N)), "partition: clients 0 and 1 both have row 1"),
    "twice in one": ((np.r_[range(N), 3],), "client 0 holds example 3 more than once"),
    "missing rows": (
        (range(10), range(20, N)),
        f"partition=given has {N - 10} of {N} training rows: give every row",
    ),
    "an empty client": ((range(N), []), "leaves client 1 without examples (no rows)"),
    "an empty client of integers": (
        (range(N), np.array([], dtype=int)),
        "leaves client 1 without examples",
    ),
    "out of range": (
        (range(N + 1),),
        f"client 0 has row numbers 0 to {N}, and train has {N} rows, 0 to {N - 1}",
    ),
    "negative": ((range(-1, N - 1),), "client 0 has row numbers -1 to"),
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


def labels_of(num_examples: int, num_classes: int = 10, seed: int = 0) -> torch.Tensor:
    return torch.randint(
        num_classes, (num_examples,), generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.slow
@given(
    num_examples=st.integers(1, 300),
    num_classes=st.integers(1, 12),
    num_clients=st.integers(1, 12),
    scheme=st.sampled_from(sorted(SCHEMES)),
    seed=st.integers(0, 2**40),
    alpha=st.floats(0.05, 1e6),
    shards_per_client=st.integers(1, 4),
)
def test_every_example_belongs_to_exactly_one_client(
    num_examples, num_classes, num_clients, scheme, seed, alpha, shards_per_client
):
    labels = labels_of(num_examples, num_classes, seed % 1000)
    settings = {"num_clients": num_clients, "scheme": scheme, "seed": seed, "alpha": alpha}
    settings["shards_per_client"] = shards_per_client
    if num_clients * (shards_per_client if scheme == "shards" else 1) > num_examples:
        with pytest.raises(ValueError, match="expected"):
            partition(labels, **settings)
        return
    try:
        parts = partition(labels, **settings)
    except ValueError as error:
        if scheme != "dirichlet" or "raise alpha" not in str(error):
            raise
        return
    assert len(parts) == num_clients
    assert min(map(len, parts)) >= 1
    assert all(
        part.dtype == torch.int64 and torch.equal(part, part.sort().values) for part in parts
    )
    assert torch.equal(torch.cat(list(parts)).sort().values, torch.arange(num_examples))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_clients": 0}, r"clients=0"),
        ({"num_clients": 101}, r"expected clients in 1..100.*got clients=101"),
        ({"num_clients": 2, "seed": -1}, r"seed=-1"),
        (
            {"num_clients": 2, "scheme": "dirichlt"},
            r"unknown partition scheme 'dirichlt'.*did you mean 'dirichlet'",
        ),
        ({"num_clients": 2, "scheme": "dirichlet", "alpha": 0.0}, r"alpha=0.0"),
        ({"num_clients": 2, "scheme": "dirichlet", "alpha": float("nan")}, r"alpha=nan"),
        ({"num_clients": 2, "scheme": "dirichlet", "alpha": float("inf")}, r"alpha=inf"),
        (
            {"num_clients": 90, "scheme": "dirichlet", "alpha": 0.01},
            r"each of clients=90.*alpha=0.01.*raise alpha",
        ),
        ({"num_clients": 2, "scheme": "shards", "shards_per_client": 0}, r"shards_per_client=0"),
        ({"num_clients": 30, "scheme": "shards", "shards_per_client": 4}, r"<= 100.*got 120"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        partition(torch.arange(100) % 10, **{"seed": 0, **settings})


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(4), torch.zeros(2, 2, dtype=torch.int64), torch.zeros(4, dtype=torch.bool)],
)
@pytest.mark.parametrize("scheme", ["dirichlet", "shards"])
def test_targets_that_are_no_classes_are_refused_by_schemes_that_read_them(scheme, labels):
    with pytest.raises(ValueError, match=f"{scheme} reads classes, int64"):
        partition(labels, num_clients=1, scheme=scheme, seed=0)
    assert [len(part) for part in partition(labels, num_clients=2, seed=0)] == [
        len(labels) // 2
    ] * 2


def tensors(*parts: list[int]) -> list[torch.Tensor]:
    return [torch.tensor(part, dtype=torch.int64) for part in parts]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (tensors([0, 1], [2, 3], [3, 4]), "clients 1 and 2 both have row 3"),
        (tensors([0, 1], [], [1, 0]), "clients 0 and 2 both have row 0"),
        (tensors([0, 1, 1]), "client 0 holds example 1 more than once"),
        (tensors([0], [5]), "client 1 has row numbers 5 to 5, and train has 5 rows"),
        (tensors([0], [-1]), "client 1 has row numbers -1 to -1"),
        ([torch.tensor([True, False])], "int64 indices"),
    ],
)
def test_an_example_in_two_places_is_refused(parts, message):
    """Negative control of the guard: planted overlaps, duplicates and strays."""
    with pytest.raises(ValueError, match=message):
        check_disjoint(parts, 5)


@pytest.fixture(scope="module")
def flwr_partitioners():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(
            "flwr_datasets",
            reason="flwr-datasets, the oracle of the partitioners, is not installed",
        )
        from datasets import Dataset
        from flwr_datasets import partitioner
    return Dataset, partitioner


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_like_those_of_training_are_dealt_by_the_same_rule(scheme):
    labels = labels_of(400)
    settings = {"num_clients": 6, "scheme": scheme, "seed": 3, "alpha": 0.4, "shards_per_client": 2}
    parts = partition(labels, **settings)
    assert [*map(list, matching_parts(labels, labels, **settings))] == [*map(list, parts)]


def test_a_scheme_that_reads_classes_has_no_wrong_test_rows(monkeypatch):
    """Its rule is drawn from the training rows: test rows that lack a class move nobody's."""

    def draw_halves(labels, clients, rng):
        classes = np.unique(labels)
        return lambda labels: np.searchsorted(classes, labels) * clients // len(classes)

    halves = Scheme(name="halves", words="", draw=draw_halves, reads_classes=True)
    monkeypatch.setattr(dealing, "SCHEMES", {**SCHEMES, "halves": halves})
    train, test = torch.arange(10).repeat(4), torch.arange(2, 10).repeat(3)
    settings = {"num_clients": 2, "scheme": "halves", "seed": 0}
    for part, like in zip(
        partition(train, **settings), matching_parts(test, train, **settings), strict=True
    ):
        assert set(test[like].tolist()) <= set(train[part].tolist())


def test_a_setting_of_a_scheme_is_declared_for_it_alone():
    for scheme in SCHEMES.values():
        for name in scheme.settings:
            assert [rule.needs for rule in RUN[name].rules if rule.idle] == [
                f"partition={scheme.name}"
            ]


@pytest.mark.parametrize("seed", [0, 11])
@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "shards"])
def test_schemes_equal_those_of_flwr_datasets(flwr_partitioners, scheme, seed):
    Dataset, partitioner = flwr_partitioners
    labels = labels_of(1200, seed=seed)
    order = np.random.Generator(np.random.PCG64([seed, 1])).permutation(len(labels))
    theirs = {
        "iid": lambda: partitioner.IidPartitioner(6),
        "dirichlet": lambda: partitioner.DirichletPartitioner(
            6, "label", alpha=0.4, min_partition_size=1, self_balancing=False, seed=seed
        ),
        "shards": lambda: partitioner.ShardPartitioner(
            6, "label", num_shards_per_partition=4, seed=seed
        ),
    }[scheme]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.dataset = Dataset.from_dict({"label": labels.numpy()[order], "index": order})
        expected = [sorted(theirs.load_partition(client)["index"]) for client in range(6)]
    ours = partition(
        labels, num_clients=6, scheme=scheme, seed=seed, alpha=0.4, shards_per_client=4
    )
    assert [part.tolist() for part in ours] == expected
