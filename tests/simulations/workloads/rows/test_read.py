"""Every form of data gives the rows that it holds; every wrong one is refused in one line that says
what to do.
"""

from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fedlsg.simulations.workloads.base import LoadedWorkload
from tests.simulations.support.own import load, refused, workload

N = 6
X = np.arange(N * 3, dtype=np.float64).reshape(N, 3)
Y = np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8)
ALL = torch.arange(N)


def loaded(train, test=None, **changes) -> LoadedWorkload:
    """Both splits have the same data unless ``test`` is given."""
    return load(workload(train=train, test=train if test is None else test, **changes))


def whole(train, **changes):
    """All inputs and targets of the training split, which equal those of test."""
    made = loaded(train, **changes)
    inputs, targets = made.train.batch(ALL[: len(made.train)])
    again, same = made.test.batch(ALL[: len(made.test)])
    assert torch.equal(targets, same)
    names = inputs.keys() if isinstance(inputs, dict) else None
    assert names is None or all(torch.equal(inputs[name], again[name]) for name in names)
    return inputs, targets


class Pairs(Dataset):
    """Pairs of lists; a dataset of a user's own."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


class NoLength(Dataset):
    def __getitem__(self, number):
        return X[number], Y[number]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class StreamWithLength(Stream):
    def __len__(self):
        return N


FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2].astype(np.int64), "label": Y})
FORMS = {
    "numpy": (X, Y),
    "torch": (torch.tensor(X, dtype=torch.float32), torch.tensor(Y)),
    "a list of both": [X, Y],
    "TensorDataset": TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(Y)),
    "a dataset of numpy": Pairs(list(zip(X, Y, strict=True))),
    "targets in a list": (X, Y.tolist()),
    "pandas": FRAME,
    "datasets": datasets.Dataset.from_pandas(FRAME),
}


@pytest.mark.parametrize("form", FORMS)
def test_numbers_come_as_float32_and_classes_as_int64(form):
    inputs, targets = whole(FORMS[form])
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)
    assert torch.equal(inputs, torch.tensor(X, dtype=torch.float32))
    assert targets.tolist() == Y.tolist()


def test_numbers_in_another_order_of_bytes_and_as_objects_are_numbers():
    given = loaded((X.astype(">f8"), Y.astype(object)), test=(X.astype(">f4"), Y.astype(">i4")))
    assert torch.equal(
        given.train.batch(torch.arange(6))[0], loaded((X, Y)).train.batch(torch.arange(6))[0]
    )
    assert given.train.labels.tolist() == given.test.labels.tolist() == Y.tolist()


def test_one_buffer_may_serve_all_rows():
    class OneBuffer(Pairs):
        def __getitem__(self, number):
            return buffer.fill_(number), number % 2

    buffer = torch.zeros(2)
    rows = whole(OneBuffer([None] * 4))[0]
    assert rows[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_of_splits_each_argument_takes_the_one_of_its_name():
    table = pd.DataFrame({"a": X[:, 0], "label": Y})
    given = {"train": table[:4], "test": table}
    found = load(workload(train=given, test=given))
    assert (len(found.train), len(found.test)) == (4, N)
    with refused("test has the splits train, dev, and none named 'test'", "data['train']"):
        load(workload(train=given, test={"train": table, "dev": table}))


FIELDS = {"ids": np.arange(N * 4).reshape(N, 4), "mask": np.ones((N, 4), dtype=np.int64), "x": X}


@pytest.mark.parametrize("form", ["arrays", "dataset"])
def test_inputs_by_the_names_of_the_models_arguments(form):
    rows = [({name: value[i] for name, value in FIELDS.items()}, Y[i]) for i in range(N)]
    inputs, targets = whole((FIELDS, Y) if form == "arrays" else Pairs(rows))
    assert {name: value.dtype for name, value in inputs.items()} == {
        "ids": torch.int64,
        "mask": torch.int64,
        "x": torch.float32,
    }
    assert torch.equal(inputs["ids"], torch.tensor(FIELDS["ids"]))
    assert targets.tolist() == Y.tolist()


def lengths(texts):
    return torch.tensor([[len(text), text.count("a")] for text in texts])


TEXTS = ["a", "banana", "cc", "abracadabra", "", "d"]


def test_a_transform_of_two_columns_gets_each():
    frame = pd.DataFrame({"first": TEXTS, "second": TEXTS[::-1], "label": Y})
    inputs, _ = whole(
        frame,
        inputs=["second", "first"],
        transform=lambda a, b: torch.tensor([[len(x), len(y)] for x, y in zip(a, b, strict=True)]),
    )
    assert inputs.tolist() == [[len(a), len(b)] for a, b in zip(TEXTS[::-1], TEXTS, strict=True)]


def test_images_of_datasets_are_divided_by_255():
    images = [Image.fromarray(np.full((4, 5), 51 * i, dtype=np.uint8)) for i in range(N)]
    table = datasets.Dataset.from_dict({"image": images, "label": Y.tolist()}).cast_column(
        "image", datasets.Image()
    )
    inputs, _ = whole(table)
    assert inputs.shape == (N, 1, 4, 5)
    assert torch.allclose(inputs[:, 0, 0, 0], torch.arange(N) / 5)


def test_targets_of_other_kinds_have_no_classes():
    numbers, labels = np.linspace(0, 1, N), np.eye(N, 4, dtype=np.float32)
    for targets, loss in (
        (numbers, nn.MSELoss()),
        (labels, nn.BCEWithLogitsLoss()),
        (Y.astype(float), nn.L1Loss()),
    ):
        made = loaded((X, targets), loss=loss)
        assert made.num_classes is None
        assert made.train.batch(ALL)[1].dtype == torch.float32
    tokens = torch.arange(N * 4).reshape(N, 4)
    assert loaded((tokens, tokens), loss=nn.CrossEntropyLoss()).num_classes is None


def test_the_number_of_classes_comes_from_test_or_the_user():
    assert loaded((X, Y)).num_classes == 3
    assert loaded((X, Y), num_classes=7).num_classes == 7
    assert loaded((X[:3], Y[:3]), test=(X, Y + 2), num_classes=None).num_classes == 5
    with refused("train targets are 0 to 2, and the 2 classes"):
        loaded((X, Y), test=(X[:2], Y[:2]))
    for wrong in ("three", 0, 2.0, True):
        with refused(f"num_classes={wrong!r}", "a whole number of 1 or more"):
            loaded((X, Y), num_classes=wrong)
    with refused("num_classes=3 is for integer targets, one an example", "leave it out"):
        loaded((X, X), loss=nn.MSELoss(), num_classes=3)


NO = {
    "texts as targets": (
        lambda: (X, list("abcdef")),
        "train targets are texts, those of test are numbers",
    ),
    "an array of texts": (
        lambda: (X, np.array(list("abcdef"))),
        "train targets are texts, those of test",
    ),
    "a dataset with texts": (
        lambda: Pairs([(row, "cat") for row in X]),
        "train targets are texts, those of test",
    ),
    "a column of texts": (
        lambda: FRAME.assign(label=list("abcdef")),
        "train targets are texts, those of test",
    ),
    "floats for classes": (
        lambda: (X, Y.astype(float)),
        "CrossEntropyLoss takes the number of each class: give integ",
    ),
    "booleans for classes": (lambda: (X, Y > 0), "CrossEntropyLoss takes the number of each class"),
    "an object that is none": (
        lambda: (X, np.array([0, 1, None, 0, 1, 2])),
        "have no number in row 2, None: fill",
    ),
    "complex targets": (
        lambda: (X, Y.astype(complex)),
        "train targets are torch.complex128: give real numbers",
    ),
    "bfloat16": (
        lambda: (torch.tensor(X).bfloat16(), Y),
        "train inputs are {'inputs': 'torch.bfloat16'}",
    ),
    "files of clients": (lambda: ["a.csv", "b.csv"], "train[0]='", "there is no such file"),
    "no file": (lambda: "nowhere.csv", "nowhere.csv': there is no such file"),
    "no folder": (lambda: "nowhere", "nowhere': there is no such file or folder"),
    "a missing target": (
        lambda: FRAME.assign(label=[0, 1, None, 0, 1, 2]),
        "infinite values, the first in row 2",
    ),
    "negative classes": (lambda: (X, Y.astype(np.int64) - 1), "train targets are -1 to 1"),
    "a missing input": (
        lambda: FRAME.assign(a=[0, 1, None, 0, 1, 2]),
        "infinite ones: nan in row 2 (1 such rows)",
    ),
    "fewer targets": (
        lambda: (X, Y[:-1]),
        "expected as many inputs as targets, and one row at least, got 6 and 5",
    ),
    "fields of two lengths": (
        lambda: ({"a": X, "b": X[1:]}, Y),
        "expected as many inputs as targets",
    ),
    "no rows": (lambda: (X[:0], Y[:0]), "one row at least, got 0 and 0"),
    "no fields": (lambda: ({}, Y), "expected as many inputs as targets"),
    "an empty dataset": (lambda: Pairs([]), "train=Pairs has no examples"),
    "a single number": (
        lambda: (X, 3),
        "train targets: expected one row an example, got a single number",
    ),
    "no length": (
        NoLength,
        "train=NoLength has no length: give a Dataset with __len__, or (inputs, targets)",
    ),
    "a stream": (Stream, "has no length"),
    "a stream with a length": (StreamWithLength, "train[0] fails: NotImplementedError"),
    "a generator": (lambda: ((x, 1) for x in X), "train=generator has no length"),
    "a loader": (
        lambda: DataLoader(TensorDataset(torch.tensor(X))),
        "train[0] is tuple: expected a pair (input, target)",
    ),
    "a streamed table": (
        lambda: datasets.Dataset.from_pandas(FRAME).to_iterable_dataset(),
        "has no length",
    ),
    "triples": (
        lambda: Pairs([(1, 2, 3)]),
        "train[0] is tuple: expected a pair (input, target)",
        "a dict by the names of forward's arguments",
    ),
    "targets in a dict": (
        lambda: (X, {"a": Y, "b": Y}),
        "expected an array or a tensor, got dict",
        "columns of one tensor",
    ),
    "examples alone": (lambda: Pairs([torch.zeros(3)]), "train[0] is Tensor: expected a pair"),
    "inputs of two shapes": (
        lambda: Pairs([(np.zeros(2), 0), (np.zeros(3), 1)]),
        "cannot be stacked",
        "one shape",
    ),
    "inputs with other names": (
        lambda: Pairs([({"a": 1}, 0), ({"b": 1}, 1)]),
        "train[1] has other inputs",
    ),
    "a dataset that fails": (lambda: Pairs({0: (1, 0), 2: (1, 0)}), "train[1] fails: KeyError"),
    "texts without a transform": (
        lambda: (TEXTS, Y),
        "inputs are strs, which no model takes: give transform=",
    ),
    "texts of a table": (
        lambda: pd.DataFrame({"t": TEXTS, "label": Y}),
        "inputs are strs, which no model takes",
    ),
    "texts and numbers": (
        lambda: FRAME.assign(t=TEXTS),
        "columns t (row 0: 'a') are no numbers, a, b, c are: transform=",
    ),
    "no label column": (
        lambda: FRAME.rename(columns={"label": "lable"}),
        "did you mean",
        "targets= names the column",
    ),
    "no other column": (lambda: FRAME[["label"]], "has no column but 'label'"),
    "an array": (
        lambda: X,
        "train=ndarray: expected (inputs, targets), a torch Dataset, a datasets.Dataset",
    ),
    "a dict": (lambda: {"x": X}, "train=dict: expected (inputs, targets)"),
    "nothing": (lambda: None, "train=NoneType: expected (inputs, targets)"),
    "a file of another kind": (
        lambda: Path(__file__),
        "expected (inputs, targets)",
        ".csv or .parquet file",
    ),
    "ragged lists": (
        lambda: pd.DataFrame({"t": [[1], [1, 2]], "label": [0, 1]}),
        "lists of different lengths",
    ),
}


@pytest.mark.parametrize("case", NO)
def test_other_data_are_refused_with_what_to_do(case):
    make, *words = NO[case]
    with refused(*words):
        loaded(make(), test=(X, Y) if case != "negative classes" else None)


def test_train_and_test_have_one_form():
    with refused("train targets are", "those of test", "give both one type and shape"):
        loaded((X, Y), test=(X, X), loss=nn.MSELoss())
    with refused("train inputs are", "torch.float64", "give both one form"):
        loaded((torch.tensor(X), Y), test=(X, Y))
    with refused("train inputs are", "give both one form"):
        loaded(({"a": X}, Y), test=({"b": X}, Y))
