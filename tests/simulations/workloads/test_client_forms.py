"""Clients in the forms in which people have them: each row of the table in docs/own.md is a test."""

import re
from collections.abc import Callable
from datetime import date
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import DatasetDict
from sklearn.model_selection import KFold
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

import fedlsg
from fedlsg.simulations import workloads
from fedlsg.simulations.workloads import client_forms, give
from fedlsg.simulations.workloads.partition import natural_parts
from tests.places import REPOSITORY
from tests.simulations.support.own import TEST, TRAIN, load, quick, refused, workload

N, CUT = len(TRAIN[0]), 20
X, Y = torch.tensor(TRAIN[0]).float(), torch.tensor(TRAIN[1]).long()
FIRST, SECOND = slice(0, CUT), slice(CUT, N)
LISTS = [range(CUT), range(CUT, N)]
OWNERS = np.array(["north"] * CUT + ["south"] * (N - CUT))
NAMES = ("north", "south")


def frame(x: Any = X, y: Any = Y) -> pd.DataFrame:
    columns = {f"x{column}": np.asarray(x)[:, column] for column in range(8)}
    return pd.DataFrame({**columns, "label": np.asarray(y)})


FRAME, FRAME_TEST = frame(), frame(*map(torch.tensor, TEST)).astype({"label": "int64"})
HUB = datasets.Dataset.from_pandas(FRAME, preserve_index=False)
HUB_TEST = datasets.Dataset.from_pandas(FRAME_TEST, preserve_index=False)
TENSORS = TensorDataset(X, Y)
PLACED = FRAME.assign(site=OWNERS)


def saved(data: Any, tmp_path: Any) -> str:
    data.save_to_disk(str(tmp_path / "saved"))
    return str(tmp_path / "saved")


def files(tmp_path: Any) -> dict[str, str]:
    FRAME[FIRST].to_csv(tmp_path / "north.csv", index=False)
    FRAME[SECOND].to_parquet(tmp_path / "south.parquet")
    return {"north": str(tmp_path / "north.csv"), "south": str(tmp_path / "south.parquet")}


def by_client(data: Any, make: Callable[[Any], Any] = list) -> Any:
    return make([data[FIRST], data[SECOND]])


def halves() -> list[Subset[Any]]:
    return [Subset(TENSORS, LISTS[0]), Subset(TENSORS, LISTS[1])]


class Vertical:
    """Gives each client some columns."""

    num_partitions, dataset = 2, None

    def load_partition(self, number: int) -> Any:
        return self.dataset.select_columns(["x0", "x1"][number])


class Halves:
    """Deals as a partitioner of flwr-datasets does; leaves the last rows to nobody."""

    num_partitions, dataset = 2, None

    def load_partition(self, number: int) -> Any:
        return self.dataset.select(range(10 * number, 10 * number + 10))


TABLES = {"test": FRAME_TEST}
WORKS: dict[str, tuple[Callable[[Any], dict[str, Any]], tuple[str, ...] | None]] = {
    "`train=[frame, frame]`": (lambda _: {"train": by_client(FRAME), **TABLES}, None),
    '`train={"north": frame, "south": frame}`': (
        lambda _: {"train": dict(zip(NAMES, by_client(FRAME), strict=True)), **TABLES},
        NAMES,
    ),
    '`train={"north": "north.csv", "south": "south.parquet"}`': (
        lambda path: {"train": files(path), **TABLES},
        NAMES,
    ),
    "`train=[datasets.Dataset, datasets.Dataset]`": (
        lambda _: {"train": [HUB.select(LISTS[0]), HUB.select(LISTS[1])], **TABLES},
        None,
    ),
    "`train=[Dataset, Dataset]` of torch": (lambda _: {"train": halves()}, None),
    "`train=random_split(dataset, [20, 40])`": (
        lambda _: {"train": tuple(halves())},
        None,
    ),
    '`train=frame.groupby("site")`, `frame.group_by("site")`': (
        lambda _: {
            "train": PLACED.groupby(["site"]),
            "inputs": [f"x{column}" for column in range(8)],
            **TABLES,
        },
        NAMES,
    ),
    "`train=[(x, y), (x, y)]`": (
        lambda _: {"train": [(X[FIRST], Y[FIRST]), (X[SECOND], Y[SECOND])]},
        None,
    ),
    "`train=[DataLoader, DataLoader]`": (
        lambda _: {"train": [DataLoader(half, batch_size=4, shuffle=True) for half in halves()]},
        None,
    ),
    "`partition=[rows, rows]`": (lambda _: {"partition": LISTS}, None),
    '`partition={"north": rows, "south": rows}`': (
        lambda _: {"partition": dict(zip(NAMES, LISTS, strict=True))},
        NAMES,
    ),
    '`partition=frame.groupby("site").indices`': (
        lambda _: {"partition": PLACED.groupby("site").indices},
        NAMES,
    ),
    '`partition=frame.groupby("site")`': (
        lambda _: {"partition": PLACED.groupby("site")},
        NAMES,
    ),
    '`partition=frame.groupby("site").groups`': (
        lambda _: {
            "train": FRAME.set_axis(np.arange(N) + 7),
            "partition": PLACED.set_axis(np.arange(N) + 7).groupby("site").groups,
            **TABLES,
        },
        NAMES,
    ),
    "`partition={0: {0, 1}, 1: {2, 3}}`": (
        lambda _: {"partition": {k: set(rows) for k, rows in enumerate(LISTS)}},
        ("0", "1"),
    ),
    "`partition=[slice(0, 20), slice(20, None)]`": (
        lambda _: {"partition": [slice(0, 20), slice(20, None)]},
        None,
    ),
    '`partition=["north", "south", "north", ...]`': (
        lambda _: {"partition": list(OWNERS)},
        NAMES,
    ),
    '`partition="site"`': (
        lambda _: {"train": PLACED, "partition": "site", **TABLES},
        NAMES,
    ),
    "`train=dataset, partition=random_split(dataset, [20, 40])`": (
        lambda _: {"train": TENSORS, "partition": halves()},
        None,
    ),
}
"""Forms of the same two clients, and their names."""


def overlapping() -> list[pd.DataFrame]:
    return [FRAME[:CUT], FRAME[CUT - 1 :]]


REFUSED: dict[str, tuple[Callable[[Any], dict[str, Any]], tuple[str, ...]]] = {
    "one row with two clients": (
        lambda _: {"train": overlapping(), **TABLES},
        ("train[1] has the row 0 that train[0] has as row 19 (1 in all)", "once"),
    ),
    "clients with other columns": (
        lambda _: {"train": [FRAME[FIRST], FRAME[SECOND].assign(z=1)], **TABLES},
        ("train[1] has the column 'z', which train[0] has not",),
    ),
    "clients in several forms": (
        lambda _: {"train": [FRAME[FIRST], halves()[1]], **TABLES},
        ("train[0] is a table, train[1] a Dataset: give the data of all clients in one form",),
    ),
    "`train=DataLoader(dataset, sampler=WeightedRandomSampler(...))`": (
        lambda _: {"train": DataLoader(TENSORS, sampler=WeightedRandomSampler([1.0] * N, N))},
        ("train: the DataLoader has a WeightedRandomSampler", "give the Dataset, or a Subset"),
    ),
    "`train=DataLoader(dataset, collate_fn=pad)`": (
        lambda _: {"train": DataLoader(TENSORS, collate_fn=pad)},
        ("train: the DataLoader has a collate_fn, pad,", "transform="),
    ),
    "`train=folder, folder` of images": (
        lambda path: {"train": {"north": str(path), "south": str(path / "a")}},
        ("train['north']=", "metadata.csv has a column for the client"),
    ),
    "clients whose rows have other shapes": (
        lambda _: {"train": [(X[FIRST], Y[FIRST]), (X[SECOND, :3], Y[SECOND])]},
        ("a row of train[0] has the shape (8,), one of train[1] (3,)", "the same columns"),
    ),
    '`partition=[["north"], ["south"], ...]`': (
        lambda _: {"partition": OWNERS[:, None].tolist()},
        ("for client 0: an owner for each row is one flat list",),
    ),
    "`partition=frame`": (
        lambda _: {"partition": PLACED[["site"]]},
        ("got DataFrame; owners of rows are one column of it, frame[column]",),
    ),
    "`train=[frame, frame], partition=[rows, rows]`": (
        lambda _: {"train": by_client(FRAME), "partition": LISTS, **TABLES},
        ("train has a data set for each client already",),
    ),
    "`partition=[rows, []]`, `train=[frame, []]`": (
        lambda _: {"partition": [range(N), []]},
        ("leaves client 1 without examples (no rows): leave that client out",),
    ),
    "`partition=[mask, mask]`": (
        lambda _: {"partition": [np.arange(N) < CUT, np.arange(N) >= CUT]},
        ("got bool of shape (60,) for client 0: give np.flatnonzero(mask)",),
    ),
    "`partition=[rows, rows]` as floats": (
        lambda _: {"partition": [np.arange(0.0, N)]},
        ("got float64 of shape (60,) for client 0: give rows.astype(int)",),
    ),
    "`partition=list(KFold(5).split(x))`": (
        lambda _: {"partition": list(KFold(5).split(X))},
        ("give one array a client, such as the second of each pair",),
    ),
    "`partition=(rows for ...)`, a function": (
        lambda _: {"partition": iter(LISTS)},
        ("got list_iterator; it can be read once only", "give list(...) of it"),
    ),
    "`partition=5`": (lambda _: {"partition": 5}, ("got int; give clients=5",)),
    '`partition={0: "north", 1: "south", ...}`, a client for each row': (
        lambda _: {"partition": dict(enumerate(OWNERS))},
        ("one value for each key", "[owner[row] for row in range(len(train))]"),
    ),
    "`partition=[0, 1, 2, ...]`, one list of rows": (
        lambda _: {"partition": list(range(N))},
        ("60 numbers or texts that are all different", "give [rows]"),
    ),
    "a Series of owners in another order than the frame": (
        lambda _: {"train": FRAME, "partition": PLACED.site[::-1], **TABLES},
        ("same index in another order", "owners.loc[inputs.index]"),
    ),
    "`partition=` Subsets of another Dataset": (
        lambda _: {"partition": halves()},
        ("client 0 is a Subset of another Dataset than train", "as train="),
    ),
    "a file of LEAF (`users`, `user_data`)": (
        lambda _: {"partition": {"users": ["a"], "user_data": {}, "num_samples": [3]}},
        ("a dict in LEAF's form: give train={user: (data['x'], data['y'])",),
    ),
    "`partition=VerticalEvenPartitioner(...)`": (
        lambda _: {"train": FRAME, "partition": Vertical(), **TABLES},
        ("Vertical gives clients columns of all rows (vertical)",),
    ),
}


def pad(rows: Any) -> Any:
    return rows


OTHERS = {
    "`train=DataLoader(dataset)`",
    "`train=splits, test=splits` of a `DatasetDict`",
    '`train="folder"` of `save_to_disk`',
    "`train=..., holdout=0.2` without `test`",
    "`partition=` a partitioner of flwr-datasets",
}
"""Rows of the table with a test of their own below."""


def data_of(made: fedlsg.Workload, **options: Any) -> tuple[list[list[Any]], Any]:
    """The labels and first inputs of each client, and their names."""
    loaded = load(made, **options)
    parts = natural_parts(loaded, str(made.defaults["partition"]))
    found = [loaded.train.batch(part) for part in parts]
    return [[*inputs[:, 0].tolist(), *labels.tolist()] for inputs, labels in found], parts.names


EXPECTED = [[*X[rows, 0].tolist(), *Y[rows].tolist()] for rows in (FIRST, SECOND)]


def test_the_table_of_the_docs_has_the_rows_of_these_tests():
    text = (REPOSITORY / "docs/own.md").read_text().partition("### Clients of every form")[2]
    rows = re.findall(r"^\| (.+?) \| .+ \|$", text.partition("\n### ")[0], re.MULTILINE)
    assert rows[0] == "you have"
    assert sorted(rows[1:]) == sorted({*WORKS, *REFUSED, *OTHERS})
    assert len(rows) > 25


@pytest.mark.parametrize("form", WORKS)
def test_each_form_has_the_same_clients_and_keeps_their_names(form, tmp_path):
    make, names = WORKS[form]
    assert data_of(workload(**make(tmp_path))) == (EXPECTED, names)


@pytest.mark.parametrize("form", REFUSED)
def test_each_other_form_is_refused_with_the_form_that_works(form, tmp_path):
    make, words = REFUSED[form]
    with refused(*words):
        data_of(workload(**make(tmp_path)))


MORE_OWNERS = {
    "an array of numbers": np.arange(N) % 3,
    "a tensor": torch.arange(N) % 3,
    "a Series": pd.Series(np.arange(N) % 3),
    "a Categorical": pd.Categorical(np.array(list("abc"))[np.arange(N) % 3]),
    "an array of pyarrow": pa.array(np.arange(N) % 3),
    "an array of objects": np.array(list("abc") * 20, dtype=object),
    "an array (N, 1)": np.arange(N)[:, None] % 3,
    "a tensor (N, 1)": torch.arange(N)[:, None] % 3,
    "bytes": [b"a", b"b", b"c"] * 20,
    "an array of bytes": np.array([b"a", b"b", b"c"] * 20),
    "dates": [date(2020, 1, day) for day in (1, 2, 3)] * 20,
    "an array of times": np.array(["2020-01-01", "2020-01-02", "2020-01-03"] * 20, "M8[ns]"),
    "a Series of times": pd.Series(pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"] * 20)),
}
DAYS = ("2020-01-01", "2020-01-02", "2020-01-03")


@pytest.mark.parametrize("kind", MORE_OWNERS)
def test_an_owner_for_each_row_in_any_kind_of_column(kind):
    parts = load(workload(partition=MORE_OWNERS[kind])).parts
    assert [part.tolist() for part in parts] == [list(range(k, N, 3)) for k in range(3)]
    assert parts.names in (("0", "1", "2"), ("a", "b", "c"), DAYS)


def test_an_array_of_different_rows_is_a_row_for_each_client():
    assert len(load(workload(partition=np.arange(N)[:, None])).parts) == N


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (PLACED.assign(site=[None, *OWNERS[1:]]).groupby("site"), "leaves out 1 of 60 rows"),
        (PLACED.groupby("site")["x0"], "has a Series a client: group the whole frame"),
    ],
)
def test_groups_without_some_rows_or_columns_are_refused(groups, words):
    with refused(words):
        load(workload(train=groups, test=FRAME_TEST))


def test_settings_of_images_are_refused_where_no_image_is_read():
    given = {"train": PLACED, "test": FRAME_TEST, "inputs": [f"x{column}" for column in range(8)]}
    for name, value in {"image_background": "white", "image_frame": 0}.items():
        with refused(f"{name}={value!r} says how image files", f"leave {name} out"):
            load(workload(**given), **{name: value})
        with refused(f"leave {name} out"):
            load(workload(), **{name: value})


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        (["a", "b"] * 29, "one owner for each of 58 rows, and train has 60"),
        (["a", None] * 30, "row 1 has a missing value"),
        (np.array(["NaT", "2020-01-01"] * 30, "M8[D]"), "row 0 has a missing value"),
        ([pd.NaT, date(2020, 1, 1)] * 30, "row 0 has a missing value"),
        (["a", 1] * 30, "row 0 has 'a' and row 1 has 1"),
    ],
)
def test_owners_that_are_none_are_refused(owners, words):
    with refused(words):
        load(workload(partition=owners))


def test_a_column_of_several_kinds_is_refused_by_its_row():
    mixed = FRAME.assign(site=["a", 1, 2.5] * 20)
    with refused("partition=site: row 0 has 'a' and row 1 has 1"):
        data_of(workload(train=mixed, test=FRAME_TEST, partition="site"))


REPEATED: dict[str, Callable[[], Any]] = {
    "one frame twice": lambda: [FRAME, FRAME],
    "slices of a frame": overlapping,
    "masks of a frame": lambda: [FRAME[FRAME.x0 > 0], FRAME[FRAME.x1 > 0]],
    "slices of tensors": lambda: [(X[:CUT], Y[:CUT]), (X[CUT - 1 :], Y[CUT - 1 :])],
    "slices of arrays": lambda: [(TRAIN[0][:CUT], TRAIN[1][:CUT]), (TRAIN[0][9:], TRAIN[1][9:])],
    "Subsets": lambda: [Subset(TENSORS, range(CUT)), Subset(TENSORS, range(CUT - 1, N))],
    "a Subset of a Subset": lambda: [TENSORS, Subset(Subset(TENSORS, range(9)), [3])],
    "a row twice in one Subset": lambda: [
        Subset(TENSORS, [0, 1, 1]),
        Subset(TENSORS, range(2, N)),
    ],
    "ranges of the hub's": lambda: [HUB.select(range(CUT)), HUB.select(range(CUT - 1, N))],
    "choices of the hub's": lambda: [HUB.select(range(0, N, 2)), HUB.select(range(0, N, 3))],
    "a range and a choice": lambda: [HUB.select(range(CUT)), HUB.select(range(0, N, 2))],
    "examples in lists": lambda: [EXAMPLES[:CUT], EXAMPLES[CUT - 1 :]],
    "views of tensors with another step": lambda: [(X[:CUT], Y[:CUT]), (X[::2], Y[::2])],
    "backward views of arrays": lambda: [
        (INPUTS[10:], LABELS[10:]),
        (INPUTS[::-1][:CUT], LABELS[:CUT]),
    ],
    "arrays with copied labels": lambda: [(INPUTS, LABELS), (INPUTS, LABELS.copy())],
    "frames that number their rows anew": lambda: [
        FRAME[:CUT],
        FRAME[::2].reset_index(drop=True),
    ],
    "a frame with other labels": lambda: [FRAME[:CUT], FRAME[:CUT].assign(label=0)],
}
INPUTS, LABELS = np.array(TRAIN[0], dtype=np.float32), np.array(TRAIN[1])
TEXTS = datasets.Dataset.from_dict(
    {"x0": [chr(65 + row) for row in range(N)], "label": [*Y.tolist()]}
)
EXAMPLES = [(X[row], int(Y[row])) for row in range(N)]


@pytest.mark.parametrize("case", REPEATED)
def test_a_row_of_two_clients_is_refused_in_every_form(case, monkeypatch):
    tables = {} if case[-1] in "stw" and "frame" not in case and "hub" not in case else TABLES
    given = {"train": dict(zip(NAMES, REPEATED[case](), strict=True)), **TABLES, **tables}
    if not hasattr(given["train"]["north"], "column_names") and "frame" not in case:
        given["test"] = TEST[0].astype(np.float32), TEST[1]
    with refused("] has the row", "once"):
        load(workload(**given))
    monkeypatch.setattr(client_forms, "check_once", lambda *_: None)
    if "Subset" not in case and "examples" not in case:  # which the reader checks as well
        load(workload(**given))  # negative control


def mapped(tmp_path: Any, name: str = "rows") -> np.ndarray:
    if not (tmp_path / f"{name}.npy").exists():
        np.save(tmp_path / f"{name}.npy", INPUTS)
    rows: np.ndarray = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    return rows


def test_a_row_of_two_maps_of_one_file_is_refused(tmp_path):
    test = INPUTS[:9], LABELS[:9]
    with refused("train[1] has the row 0 that train[0] has as row 0 (60 in all)", "copy each"):
        load(workload(train=[(mapped(tmp_path), LABELS), (mapped(tmp_path), LABELS)], test=test))
    halves = [(mapped(tmp_path)[:CUT], LABELS[:CUT]), (mapped(tmp_path)[CUT:], LABELS[CUT:])]
    assert len(load(workload(train=halves, test=test)).train) == N
    files = [(mapped(tmp_path, name), LABELS) for name in ("rows", "others")]
    assert len(load(workload(train=files, test=test)).train) == 2 * N


ONE_DATA_SET = {
    "an expanded tensor": lambda: (X[:1].expand(N, 8), Y),
    "a broadcast array": lambda: (np.broadcast_to(INPUTS[:1], (N, 8)), LABELS),
    "an expanded field": lambda: ({"input": X[:1].expand(N, 8)}, Y),
    "a TensorDataset": lambda: TensorDataset(X[:1].expand(N, 8), Y),
    "a tensor in a list": lambda: [(X[0], label) for label in Y.tolist()],
    "copied labels": lambda: ConcatDataset([TENSORS, TensorDataset(X, Y.clone())]),
    "a choice of the hub's": lambda: HUB.select([0] * 9 + [1, 2]),
    "two of the hub's": lambda: datasets.concatenate_datasets([HUB, HUB]),
    "two of pyarrow": lambda: pa.concat_tables([ARROW, ARROW.slice(CUT)]),
}
ARROW = pa.Table.from_pandas(FRAME, preserve_index=False)


@pytest.mark.parametrize("holdout", [None, 0.2])
@pytest.mark.parametrize("case", ONE_DATA_SET)
def test_a_row_twice_in_one_data_set_is_refused(case, holdout):
    data = ONE_DATA_SET[case]()
    test = FRAME_TEST if hasattr(data, "column_names") else (INPUTS[:9], LABELS[:9])
    given = {"test": test} if holdout is None else {"test": None}
    with refused("more than once", "epsilon holds for a row that comes once"):
        load(workload(train=data, **given), **({} if holdout is None else {"holdout": holdout}))


def test_texts_of_the_hub_are_known_by_their_place():
    texts = [TEXTS.select(rows) for rows in (range(CUT), range(CUT, N), range(0, N, 2))]
    made = load(workload(train=texts[:2], test=TEXTS, transform=encode))
    assert [len(part) for part in made.parts] == [CUT, N - CUT]
    with refused("train[1] has the row 0 that train[0] has as row 0 (10 in all)"):
        load(workload(train=texts[::2], test=TEXTS, transform=encode))


@pytest.mark.parametrize("kind", [pd.DataFrame, pa.Table.from_pandas, datasets.Dataset.from_pandas])
def test_a_slice_with_its_columns_in_another_order_is_refused(kind):
    """It begins with row 0 and has the same rows: only its memory says whose they are."""

    def with_texts():
        sizes = range(N)
        return FRAME.copy().assign(
            a=["x" * (row + 1) for row in sizes], b=["y" * (N - row) for row in sizes]
        )

    whole, names = kind(with_texts()), list(with_texts().columns)
    choose = {
        pd.DataFrame: lambda count: whole.iloc[:count][names[::-1]],
        pa.Table.from_pandas: lambda count: whole.slice(0, count).select(names[::-1]),
    }.get(kind, lambda count: whole.select(range(count)).select_columns(names[::-1]))
    test = {"test": FRAME_TEST, "inputs": ["x0", "x1"]}
    with refused(f"that train[0] has as row 0 ({CUT} in all)"):
        load(workload(train=[whole, choose(CUT)], **test))
    made = load(workload(train=[whole, kind(with_texts()[names[::-1]])], **test))
    assert len(made.train) == 2 * N


def test_one_label_for_all_rows_is_no_repeat():
    test = INPUTS[:9], LABELS[:9]
    for data in ((X, Y[:1].expand(N)), [(x, 1) for x in X], (INPUTS, np.broadcast_to(1, N))):
        assert len(load(workload(train=data, test=test)).train) == N


def test_one_file_of_two_clients_is_refused(tmp_path):
    north = files(tmp_path)["north"]
    with refused("two clients have the file north.csv"):
        load(workload(train=[north, north], test=FRAME_TEST))
    linked = tmp_path / "linked.csv"
    linked.hardlink_to(north)
    with refused("two clients have the file linked.csv"):
        load(workload(train=[north, str(linked)], test=FRAME_TEST))


def test_equal_rows_of_two_people_are_two_rows():
    one = pd.DataFrame({"a": [1.0, 2.0], "label": [0, 1]})
    made = load(workload(train=[one, one.copy()], test=one))
    assert len(made.train) == 4
    lists = (["x", "y"], [0, 1])
    size = len(
        load(workload(train=[lists, (list(lists[0]), [0, 1])], test=lists, transform=encode)).train
    )
    assert size == 4


def encode(texts: list[str]) -> torch.Tensor:
    return torch.tensor([[float(ord(text))] for text in texts])


def test_examples_in_a_list_are_one_data_set():
    pairs = [(X[row], Y[row]) for row in range(N)]
    assert load(workload(train=pairs)).parts is None
    tagged = [(torch.ones(8, 4), torch.ones(8)) for _ in range(3)]
    assert client_forms.data_sets(tagged, tagged) is None
    assert client_forms.data_sets(tagged, (torch.ones(5, 4), torch.ones(5))) is not None
    assert client_forms.data_sets((["a", "b"], [0, 1])) is None
    assert client_forms.data_sets((frame(), frame())) is not None
    assert client_forms.data_sets((frame(), pd.DataFrame(X.numpy()))) is None
    assert client_forms.data_sets([frame(), pd.DataFrame({"target": Y})]) is None


def test_of_a_loader_the_dataset_is_taken():
    given = workload(train=DataLoader(TENSORS, batch_size=7, shuffle=True), partition=LISTS)
    assert data_of(given) == (EXPECTED, None)
    with refused("test: the DataLoader has a SubsetRandomSampler"):
        load(workload(test=DataLoader(TENSORS, sampler=SubsetRandomSampler([1, 2]))))
    with refused("train['north']: the DataLoader has a collate_fn, pad"):
        load(workload(train={"north": DataLoader(TENSORS, collate_fn=pad)}))


def test_each_argument_takes_its_split_of_a_dict_or_folder(tmp_path):
    splits = DatasetDict(train=HUB, test=HUB_TEST)
    for given in (splits, saved(splits, tmp_path)):
        found = load(workload(train=given, test=given))
        assert (len(found.train), len(found.test)) == (N, len(FRAME_TEST))
    with refused("test has the splits north, south, and none named 'test'"):
        load(workload(train=HUB, test=DatasetDict(north=HUB, south=HUB)))


def test_a_saved_data_set_is_read_and_a_damaged_one_refused(tmp_path):
    place = saved(HUB, tmp_path)
    assert data_of(workload(train=place, test=FRAME_TEST, partition=LISTS)) == (EXPECTED, None)
    next((tmp_path / "saved").glob("*.arrow")).unlink()
    with refused("saved' cannot be read"):
        load(workload(train=place, test=FRAME_TEST))


HELD_OUT = {
    "arrays": TRAIN,
    "a table": FRAME,
    "a table and its targets": (FRAME.drop(columns="label"), FRAME.label),
    "a Dataset": TENSORS,
    "a loader": DataLoader(TENSORS),
    "examples": EXAMPLES,
    "a data set of the hub": HUB,
    "frames of clients": by_client(FRAME),
    "inputs by name": ({"x": X}, Y),
}


@pytest.mark.parametrize("kind", HELD_OUT)
def test_without_test_rows_a_share_is_held_out(kind):
    made = workload(train=HELD_OUT[kind], test=None)
    found = load(made, holdout=0.2)
    assert (len(found.train), len(found.test), found.test_name) == (48, 12, "holdout")
    labels = torch.cat([found.train.labels, found.test.labels])
    assert labels.bincount().tolist() == Y.bincount().tolist()
    with refused("test is missing: give test=, or holdout=0.2"):
        load(made)


def test_rows_that_are_trained_on_do_not_say_which_classes_there_are():
    kept = client_forms.open_splits({"train": FRAME}, "own", 0.2).kept
    texts = FRAME.assign(label=["a", "b"] * 30)
    held = next(row for row in range(N) if row not in kept)
    with refused("train has the class 'rare'"):
        load(workload(train=rare(texts, kept[0]), test=None), holdout=0.2)
    found = load(workload(train=rare(texts, held), test=None), holdout=0.2)
    assert found.data["classes"] == ["a", "b", "rare"]


def rare(table: pd.DataFrame, row: int) -> pd.DataFrame:
    table = table.copy()
    table.loc[row, "label"] = "rare"
    return table


def test_held_out_rows_leave_the_clients_that_had_them():
    made = workload(train=FRAME, test=None, partition=dict(zip(NAMES, LISTS, strict=True)))
    found = load(made, holdout=0.2)
    kept = client_forms.open_splits({"train": FRAME}, "own", 0.2).kept
    assert found.parts.owner.tolist() == [int(row >= CUT) for row in kept]
    assert torch.equal(found.train.labels, Y[kept])


def test_a_run_may_have_held_out_rows_alone(tmp_path):
    run = quick(tmp_path / "run", test=None, holdout=0.25)
    assert run.summary["epsilon_max"] > 0
    with refused("simulate needs test; or a workload", "holdout=0.2"):
        quick(tmp_path / "other", test=None)


def test_rows_that_a_partitioner_leaves_out_are_not_trained_on(tmp_path):
    partitioner = Halves()
    changes = {"train": FRAME, "test": FRAME_TEST, "partition": partitioner, "clients": None}
    run = quick(tmp_path / "run", **changes)
    assert run.summary["clients"] == 2
    give("halves", workload(train=FRAME, test=FRAME_TEST, partition=partitioner))
    loaded = workloads.load("halves")
    assert loaded.parts.sizes == [10, 10]
    assert torch.equal(loaded.train.labels, Y[:20])
    assert [len(rows) for rows in loaded.left_out] == [N - 20]  # as private as the others
    assert "40 of them with no client and not used" in loaded.said
    assert partitioner.dataset is None  # it was copied


@pytest.mark.slow
def test_a_run_with_a_data_set_for_each_client_is_one_with_lists(tmp_path):
    frames = quick(tmp_path / "a", train=by_client(FRAME), test=FRAME_TEST)
    lists = quick(tmp_path / "b", train=FRAME, test=FRAME_TEST, partition=LISTS)
    other = quick(tmp_path / "c", train=FRAME, test=FRAME_TEST, partition=[*LISTS[::-1]])
    assert frames.summary["loss"] == lists.summary["loss"] != other.summary["loss"]


def test_clients_of_a_list_may_be_dealt_again():
    made = workload(train=by_client(FRAME), test=FRAME_TEST, partition="iid")
    assert made.defaults["partition"] == "iid"
    assert workload(train=by_client(FRAME)).defaults["partition"] == "given"


def test_relative_files_of_clients_begin_at_the_root(tmp_path):
    files(tmp_path)
    made = workload(train={"north": "north.csv", "south": "south.parquet"}, test=FRAME_TEST)
    assert made.has_relative_paths
    loaded = load(made, data_root=str(tmp_path))
    assert [place.name for place in loaded.places] == ["north.csv", "south.parquet"]


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> Any:
        return X[row], int(Y[row])


def test_datasets_of_any_class_are_joined():
    assert len(load(workload(train=[Texts(), Texts(), ConcatDataset([TENSORS])])).train) == N + 6
    assert random_split(TENSORS, [CUT, N - CUT])[0].dataset is TENSORS
