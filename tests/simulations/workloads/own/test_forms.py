"""Every form of data gives the rows that it holds; every wrong one is refused in one line that says what to do."""

import csv
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from simulations.workloads.base.workload import LoadedWorkload
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


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_of_tables(suffix, tmp_path):
    path = tmp_path / f"rows{suffix}"
    FRAME.to_csv(path, index=False) if suffix == ".csv" else FRAME.to_parquet(path)
    for given in (path, str(path)):
        inputs, targets = whole(given)
        assert torch.equal(inputs, torch.tensor(X, dtype=torch.float32))
        assert targets.tolist() == Y.tolist()


def test_chosen_columns_in_their_order():
    inputs, targets = whole(FRAME.rename(columns={"label": "digit"}), inputs=["c", "a"], targets="digit")
    assert torch.equal(inputs, torch.tensor(X[:, [2, 0]], dtype=torch.float32))
    assert targets.tolist() == Y.tolist()
    one, _ = whole(FRAME, inputs="b")
    assert one.shape == (N, 1)


def test_several_target_columns():
    table = pd.DataFrame({"a": X[:, 0], "p": [0, 1] * 3, "q": [1.0, 0.0] * 3, "t": list("abcdef")})
    inputs, targets = whole(table, inputs="a", targets=["p", "q"], loss=nn.BCEWithLogitsLoss())
    assert torch.equal(targets, torch.tensor([[0.0, 1.0], [1.0, 0.0]] * 3))
    assert inputs.shape == (N, 1)
    with refused("train", "numbers", "several target columns"):
        loaded(table, table.assign(t=table.p), inputs="a", targets=["p", "t"])


def test_a_dict_of_splits_is_refused_by_their_names():
    table = pd.DataFrame({"a": X[:, 0], "label": Y})
    with refused("test has the splits train, test", "data['train']"):
        loaded({"train": table, "test": table})


def test_a_path_of_another_kind_is_named():
    with refused(f"test={__file__!r}", ".csv"):
        loaded(__file__)


def test_a_batch_is_a_fresh_copy():
    made = loaded((X, Y))
    made.train.batch(ALL)[0].zero_()
    made.train.batch(ALL)[1].zero_()
    assert torch.equal(made.train.batch(ALL)[0], torch.tensor(X, dtype=torch.float32))
    assert made.train.batch(ALL)[1].tolist() == Y.tolist()


FIELDS = {"ids": np.arange(N * 4).reshape(N, 4), "mask": np.ones((N, 4), dtype=np.int64), "x": X}


@pytest.mark.parametrize("form", ["arrays", "dataset"])
def test_inputs_by_the_names_of_the_models_arguments(form):
    rows = [({name: value[i] for name, value in FIELDS.items()}, Y[i]) for i in range(N)]
    inputs, targets = whole((FIELDS, Y) if form == "arrays" else Pairs(rows))
    assert {name: value.dtype for name, value in inputs.items()} == {
        "ids": torch.int64, "mask": torch.int64, "x": torch.float32,
    }  # fmt: skip
    assert torch.equal(inputs["ids"], torch.tensor(FIELDS["ids"]))
    assert targets.tolist() == Y.tolist()


@pytest.mark.parametrize("form", ["arrays", "dataset"])
def test_inputs_of_a_dict_stay_next_to_their_targets(form):
    """Whatever rows are asked for, in whatever order: every field and the target are those of the row."""
    ids = np.arange(N)
    fields = {"a": ids[:, None], "b": 10 * ids[:, None]}
    rows = Pairs([({"b": fields["b"][i], "a": fields["a"][i]}, ids[i]) for i in range(N)])
    made = loaded((fields, ids) if form == "arrays" else rows, loss=functional.cross_entropy)
    for order in ([3, 1, 5], [5, 5, 0], [], list(range(N - 1, -1, -1))):
        inputs, targets = made.train.batch(torch.tensor(order, dtype=torch.int64))
        assert inputs["a"].flatten().tolist() == order == targets.tolist()
        assert inputs["b"].flatten().tolist() == [10 * i for i in order]


def lengths(texts):
    return torch.tensor([[len(text), text.count("a")] for text in texts])


TEXTS = ["a", "banana", "cc", "abracadabra", "", "d"]


def test_texts_become_what_the_transform_makes():
    table = datasets.Dataset.from_dict({"text": TEXTS, "label": Y.tolist()})
    inputs, _ = whole(table, transform=lengths)
    assert inputs.tolist() == [[len(text), text.count("a")] for text in TEXTS]
    named, _ = whole((TEXTS, Y), transform=lambda texts: {"ids": lengths(texts)})
    assert torch.equal(named["ids"], inputs)


def test_a_transform_of_two_columns_gets_each():
    frame = pd.DataFrame({"first": TEXTS, "second": TEXTS[::-1], "label": Y})
    inputs, _ = whole(
        frame, inputs=["second", "first"],
        transform=lambda a, b: torch.tensor([[len(x), len(y)] for x, y in zip(a, b, strict=True)]),
    )  # fmt: skip
    assert inputs.tolist() == [[len(a), len(b)] for a, b in zip(TEXTS[::-1], TEXTS, strict=True)]


def test_images_of_datasets_are_divided_by_255():
    images = [Image.fromarray(np.full((4, 5), 51 * i, dtype=np.uint8)) for i in range(N)]
    table = datasets.Dataset.from_dict({"image": images, "label": Y.tolist()}).cast_column("image", datasets.Image())
    inputs, _ = whole(table)
    assert inputs.shape == (N, 1, 4, 5)
    assert torch.allclose(inputs[:, 0, 0, 0], torch.arange(N) / 5)


def test_targets_of_other_kinds_have_no_classes():
    numbers, labels = np.linspace(0, 1, N), np.eye(N, 4, dtype=np.float32)
    for targets, loss in ((numbers, nn.MSELoss()), (labels, nn.BCEWithLogitsLoss()), (Y.astype(float), nn.L1Loss())):
        made = loaded((X, targets), loss=loss)
        assert made.num_classes is None
        assert made.train.batch(ALL)[1].dtype == torch.float32
    tokens = torch.arange(N * 4).reshape(N, 4)
    assert loaded((tokens, tokens), loss=nn.CrossEntropyLoss()).num_classes is None


def test_the_number_of_classes_comes_from_test_or_the_user():
    assert loaded((X, Y)).num_classes == 3
    assert loaded((X, Y), num_classes=7).num_classes == 7
    assert loaded((X[:3], Y[:3]), test=(X, Y + 2), num_classes=None).num_classes == 5
    with refused("train labels are in 0..2, expected 0..1"):
        loaded((X, Y), test=(X[:2], Y[:2]))
    for wrong in ("three", 0, 2.0, True):
        with refused(f"num_classes={wrong!r}", "a whole number of 1 or more"):
            loaded((X, Y), num_classes=wrong)
    with refused("num_classes=3 is for integer targets, one an example", "leave it out"):
        loaded((X, X), loss=nn.MSELoss(), num_classes=3)


NO = {
    "texts as targets": (lambda: (X, list("abcdef")), "train targets are texts: give the number of each class"),
    "an array of texts": (lambda: (X, np.array(list("abcdef"))), "targets are <U1: give numbers"),
    "a dataset with texts": (lambda: Pairs([(row, "cat") for row in X]), "train targets are texts"),
    "a column of texts": (lambda: FRAME.assign(label=list("abcdef")), "targets are object: give numbers"),
    "floats for classes": (lambda: (X, Y.astype(float)), "CrossEntropyLoss takes the number of each class: give integ"),
    "booleans for classes": (lambda: (X, Y > 0), "CrossEntropyLoss takes the number of each class"),
    "a missing target": (lambda: FRAME.assign(label=[0, 1, None, 0, 1, 2]), "targets have missing or infinite values"),
    "negative classes": (lambda: (X, Y.astype(np.int64) - 1), "labels are in -1..1"),
    "a missing input": (lambda: FRAME.assign(a=[0, 1, None, 0, 1, 2]), "column 'a' has missing values: fill them"),
    "fewer targets": (lambda: (X, Y[:-1]), "expected as many inputs as targets, one at least, got 6 and 5"),
    "fields of two lengths": (lambda: ({"a": X, "b": X[1:]}, Y), "expected as many inputs as targets"),
    "no rows": (lambda: (X[:0], Y[:0]), "one at least, got 0 and 0"),
    "no fields": (lambda: ({}, Y), "expected as many inputs as targets"),
    "an empty dataset": (lambda: Pairs([]), "train=Pairs has no examples"),
    "a single number": (lambda: (X, 3), "train targets: expected one row an example, got a single number"),
    "no length": (NoLength, "train=NoLength has no length: give a Dataset with __len__, or (inputs, targets)"),
    "a stream": (Stream, "has no length"),
    "a stream with a length": (StreamWithLength, "train[0] fails: NotImplementedError"),
    "a generator": (lambda: ((x, 1) for x in X), "train=generator has no length"),
    "a loader": (lambda: DataLoader(TensorDataset(torch.tensor(X))), "give a Dataset with __len__ and __getitem__"),
    "a streamed table": (
        lambda: datasets.Dataset.from_pandas(FRAME).to_iterable_dataset(), "has no length"
    ),
    "triples": (lambda: Pairs([(1, 2, 3)]), "train[0] is tuple: expected a pair (input, target)"),
    "examples alone": (lambda: Pairs([torch.zeros(3)]), "train[0] is Tensor: expected a pair"),
    "inputs of two shapes": (lambda: Pairs([(np.zeros(2), 0), (np.zeros(3), 1)]), "cannot be stacked", "one shape"),
    "inputs with other names": (lambda: Pairs([({"a": 1}, 0), ({"b": 1}, 1)]), "train[1] has other inputs"),
    "a dataset that fails": (lambda: Pairs({0: (1, 0), 2: (1, 0)}), "train[1] fails: KeyError"),
    "images": (lambda: Pairs([(Image.new("L", (2, 2)), 0)] * 2), "inputs are Images, which no model takes"),
    "texts without a transform": (lambda: (TEXTS, Y), "inputs are strs, which no model takes: give transform="),
    "texts of a table": (lambda: pd.DataFrame({"t": TEXTS, "label": Y}), "inputs are strs, which no model takes"),
    "texts and numbers": (lambda: FRAME.assign(t=TEXTS), "columns t are no numbers, a, b, c are: inputs= names those"),
    "no label column": (lambda: FRAME.rename(columns={"label": "lable"}), "did you mean", "targets= names the column"),
    "no other column": (lambda: FRAME[["label"]], "has no column but 'label'"),
    "an array": (lambda: X, "train=ndarray: expected (inputs, targets), a torch Dataset, a datasets.Dataset"),
    "a dict": (lambda: {"x": X}, "train=dict: expected (inputs, targets)"),
    "nothing": (lambda: None, "train=NoneType: expected (inputs, targets)"),
    "a file of another kind": (lambda: Path(__file__), "expected (inputs, targets)", ".csv or .parquet file"),
    "ragged lists": (lambda: pd.DataFrame({"t": [[1], [1, 2]], "label": [0, 1]}), "lists of different lengths"),
}  # fmt: skip


@pytest.mark.parametrize("case", NO)
def test_other_data_are_refused_with_what_to_do(case):
    make, *words = NO[case]
    with refused(*words):
        loaded(make(), test=(X, Y) if case not in ("negative classes", "images") else None)


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "folder", "rows.txt"])
def test_a_path_that_is_not_there_is_named(name, tmp_path):
    with refused(f"{tmp_path / name}", "there is no such file", error=FileNotFoundError):
        loaded(tmp_path / name)


def test_a_damaged_file_is_named(tmp_path):
    for name in ("rows.csv", "rows.parquet"):
        (tmp_path / name).write_bytes(b"a,b\n1\n2,3,4\n")
        with refused(name, "cannot be read"):
            loaded(tmp_path / name)


def test_train_and_test_have_one_form():
    with refused("train targets are", "those of test", "give both one type and shape"):
        loaded((X, Y), test=(X, X), loss=nn.MSELoss())
    with refused("train inputs are", "torch.float64", "give both one form"):
        loaded((torch.tensor(X), Y), test=(X, Y))
    with refused("train inputs are", "give both one form"):
        loaded(({"a": X}, Y), test=({"b": X}, Y))


# --- transforms ---


@pytest.mark.parametrize("transform", [
    lambda x: x - x.mean(0), lambda x: x / x.abs().max(), lambda x: x + torch.rand_like(x), lambda x: x.flip(0),
    lambda x: x.sort(0, descending=True).values, lambda x: {"a": x, "b": x.cumsum(0)},
])  # fmt: skip
@pytest.mark.parametrize("form", ["numbers", "things"])
def test_a_transform_that_mixes_rows_is_refused(transform, form):
    """The clip bounds what one example adds only if its inputs depend on no other example."""
    things = [tuple(row) for row in X]
    data, changed = ((X, Y), transform) if form == "numbers" else ((things, Y), lambda t: transform(torch.tensor(t)))
    with refused("for a row alone than in a batch, which mixes examples: make each row from itself alone"):
        loaded(data, transform=changed)


@pytest.mark.parametrize("transform", [lambda x: x, lambda x: (x - 3) / 2, lambda x: {"a": x, "b": x.sum(1)}])
def test_a_transform_of_each_row_by_itself_passes(transform):
    """Negative control."""
    loaded((X, Y), transform=transform)


def test_a_transform_that_pads_to_the_longest_is_refused():
    def pad(texts):
        longest = max(map(len, texts))
        return torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])

    with refused('padding="max_length"'):
        loaded((TEXTS, Y), transform=pad)


@pytest.mark.parametrize(("transform", "words"), [
    (lambda x: x[1:], "give one row an example"),
    (lambda x: x.undefined, "transform fails: AttributeError"),
    (lambda x: [1] * len(x), "transform gave inputs as list: expected a tensor, or a dict of tensors by name"),
])  # fmt: skip
def test_a_transform_that_fails_is_refused(transform, words):
    with refused(words):
        loaded((X, Y), transform=transform)


def test_an_empty_batch_calls_no_transform():
    """Its failure would tell that a Poisson batch was empty."""
    train = loaded((X, Y), transform=lambda x: torch.stack([row * 2 for row in x])).train
    inputs, targets = train.batch(torch.zeros(0, dtype=torch.int64))
    assert (len(inputs), len(targets)) == (0, 0)


def test_a_transform_of_texts_that_fails_is_refused():
    with refused("transform fails: ValueError: too long"):
        loaded((TEXTS, Y), transform=_fail)


def _fail(texts):
    raise ValueError("too long")


# --- folders of images ---


def folder(place: Path, sizes=((4, 4),), classes=("cat", "dog"), mode="L") -> Path:
    for number, name in enumerate(classes):
        (place / name).mkdir(parents=True)
        for i in range(3):
            size = sizes[i % len(sizes)]
            Image.new(mode, size, 100 * number if mode == "L" else (100 * number, 0, 5)).save(place / name / f"{i}.png")
    return place


def table(place: Path, rows, header=("file_name", "writer")) -> None:
    with (place / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def files(place: Path) -> list[str]:
    return sorted(path.relative_to(place).as_posix() for path in place.rglob("*.png"))


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 3), ("P", 3)])
def test_a_folder_of_images(mode, channels, tmp_path):
    place = folder(tmp_path / "a", mode="L" if mode == "P" else "RGB" if mode == "RGBA" else mode)
    for path in place.rglob("*.png"):
        with Image.open(path) as image:
            image.convert(mode).save(path)
    (place / ".hidden").mkdir()
    inputs, targets = whole(place)
    assert inputs.shape == (6, channels, 4, 4)
    assert targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert inputs[:3].max() < inputs[3:].max() == pytest.approx(100 / 255)


def test_metadata_give_columns_in_the_order_of_the_images(tmp_path):
    place = folder(tmp_path / "a")
    rows = [(name, f"w{number % 2}") for number, name in enumerate(files(place))]
    table(place, rows[::-1])
    assert loaded(place).columns["writer"].tolist() == [writer for _, writer in rows]
    text = (place / "metadata.csv").read_text()
    (place / "metadata.csv").write_text("\ufeff" + text)  # as spreadsheets save it
    assert loaded(place).columns["writer"].tolist() == [writer for _, writer in rows]
    table(place, rows[1:])
    with refused("metadata.csv has no row with file_name=cat/0.png: give one for each image"):
        loaded(place)
    table(place, rows, header=("name", "writer"))
    with refused("metadata.csv has no row with file_name=cat/0.png"):
        loaded(place)


def test_images_of_several_sizes_need_image_size(tmp_path):
    place = folder(tmp_path / "a", sizes=((4, 4), (6, 5)))
    with refused("has images of several sizes (4x4, 5x6): give image_size="):
        loaded(place)
    assert whole(place, image_size=8)[0].shape == (6, 1, 8, 8)


def test_a_damaged_image_is_named(tmp_path):
    place = folder(tmp_path / "a")
    data = (place / "dog" / "1.png").read_bytes()
    for damaged in (b"no image", data[: len(data) // 2], b""):
        (place / "dog" / "1.png").write_bytes(damaged)
        with refused(f"cannot decode {place / 'dog' / '1.png'}", "replace or remove it"):
            loaded(place)


def test_classes_of_train_and_test_must_be_the_same(tmp_path):
    first, second = folder(tmp_path / "a"), folder(tmp_path / "b", classes=("cat", "cow"))
    with refused("train has the classes ('cat', 'dog'), test has ('cat', 'cow'): give both the same"):
        loaded(first, test=second)


def test_a_clients_own_folder_has_the_classes_of_the_run(tmp_path):
    """Without one of the folders, the classes behind it would silently become others."""
    found = loaded(folder(tmp_path / "test"))
    assert len(found.read(folder(tmp_path / "own"), tmp_path)) == 6
    with refused("train has the classes"):
        found.read(folder(tmp_path / "less", classes=("dog",)), tmp_path)


def test_a_folder_without_images_says_what_is_expected(tmp_path):
    (tmp_path / "empty").mkdir()
    with refused("expected a folder of images for each class, as empty/cat/1.png"):
        loaded(tmp_path / "empty")
