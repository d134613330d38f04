"""Columns by their names: order, row numbers, missing values, classes, and what a run keeps of
them.
"""

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fedlsg.simulations.workloads import rows as form
from fedlsg.simulations.workloads.base import LoadedWorkload
from fedlsg.simulations.workloads.partition import natural_parts
from tests.simulations.support.own import QUICK, load, quick, refused, workload

N = 12
FRAME = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 3)), columns=list("cab")).assign(
    label=np.arange(N) % 3
)
REORDERED = FRAME[["label", "a", "b", "c"]]
PAIR = (FRAME[["c", "a", "b"]], FRAME["label"])


def loaded(train, test=None, **changes) -> LoadedWorkload:
    return load(workload(train=train, test=train if test is None else test, **changes))


def rows(split) -> torch.Tensor:
    return split.batch(torch.arange(len(split)))[0]


VALUES = rows(loaded((FRAME[["c", "a", "b"]].to_numpy(), FRAME.label.to_numpy())).train)
TABLES = {
    "pandas": REORDERED,
    "datasets": datasets.Dataset.from_pandas(REORDERED),
    "a pair": (REORDERED[["a", "b", "c"]], REORDERED.label),
    "a list as target": (REORDERED[["b", "c", "a"]], [0, 1, 2] * 4),
    "a frame as target": (REORDERED[["b", "c", "a"]], REORDERED[["label"]]),
}


@pytest.mark.parametrize("form", TABLES)
def test_columns_are_matched_by_name_in_the_order_of_train(form):
    made = loaded(FRAME if isinstance(TABLES[form], pd.DataFrame) else PAIR, TABLES[form])
    assert torch.equal(rows(made.train), VALUES)
    assert torch.equal(rows(made.test), VALUES)
    assert made.data["inputs"] == ["c", "a", "b"]


def test_a_clients_file_is_matched_by_name(tmp_path):
    path = tmp_path / "own.csv"
    REORDERED.assign(more="x").to_csv(path, index=False)
    found = loaded(FRAME)
    assert torch.equal(rows(found.read(path, tmp_path)), VALUES)
    FRAME.rename(columns={"a": "z"}).to_csv(path, index=False)
    with refused("data=own.csv has no column 'a'"):
        found.read(path, tmp_path)


def test_other_columns_are_refused_by_name():
    for train, test, word in (
        (FRAME, FRAME.rename(columns={"a": "z"}), "'a'"),
        (FRAME.assign(more=1.5), FRAME, "'more'"),
        (FRAME, FRAME.assign(more=1.5), "'more'"),
        (PAIR, (PAIR[0].rename(columns={"a": "z"}), PAIR[1]), "'a'"),
    ):
        with refused(f"has the column {word}, which", "name those of the inputs with inputs="):
            loaded(train, test)
    assert rows(loaded(FRAME.assign(more=1.5), FRAME, inputs=["c", "a", "b"]).train).shape == (N, 3)
    assert rows(loaded(FRAME.assign(site=1.5), FRAME, partition="site").train).shape == (N, 3)


MIXED = FRAME.sample(frac=1.0, random_state=1)
INDEXES = {
    "of a csv file": lambda place: FRAME.to_csv(place / "a.csv"),
    "saved twice": lambda place: FRAME.assign(**{"Unnamed: 0": range(N)}).to_csv(place / "a.csv"),
    "a last comma": lambda place: FRAME.assign(**{" ": None}).to_csv(place / "a.csv", index=False),
    "of a parquet file": lambda place: MIXED.to_parquet(place / "a.parquet"),
    "with a name, of a parquet file": lambda place: MIXED.rename_axis("patient").to_parquet(
        place / "a.parquet"
    ),
}


@pytest.mark.parametrize("case", INDEXES)
def test_an_index_is_named_and_left_out(case, tmp_path):
    INDEXES[case](tmp_path)
    made = loaded(next(tmp_path.iterdir()))
    assert made.data["inputs"] == ["c", "a", "b"]
    assert "(an index)" in made.said


@pytest.mark.parametrize(
    "frame",
    [
        FRAME.reset_index(),
        MIXED.reset_index(),
        FRAME.assign(patient=np.arange(N) + 80),
        MIXED.assign(ID=range(5, 5 + N)),
    ],
)
def test_a_column_that_numbers_the_rows_is_refused_unless_it_is_named(frame):
    name = next(name for name in frame if name not in FRAME)
    with refused(f"the column {name!r} numbers the rows, as an index does", "inputs="):
        loaded(frame)
    assert rows(loaded(frame, inputs=[name, "a"]).train).shape == (N, 2)


def test_names_may_be_numbers_and_none_may_come_twice():
    made = loaded(FRAME.set_axis(range(4), axis=1), targets=3)
    assert torch.equal(rows(made.train), VALUES)
    assert rows(loaded(FRAME.set_axis([0, 1, 2, "label"], axis=1), inputs=[2, 0]).train).shape == (
        N,
        2,
    )
    for names in (["a", "a", "b", "label"], [1, "1", 2, "label"]):
        with refused("has two columns of the same name"):
            loaded(FRAME.set_axis(names, axis=1))


def test_targets_of_another_order_than_the_inputs_are_refused():
    with refused(
        "inputs and targets have the same index in another order", "targets.loc[inputs.index]"
    ):
        loaded((PAIR[0], MIXED.label))
    assert torch.equal(
        rows(loaded((MIXED[["c", "a", "b"]], MIXED.label)).train), VALUES[MIXED.index.tolist()]
    )


@pytest.mark.parametrize(
    "data", [FRAME[:0], (PAIR[0][:0], PAIR[1][:0]), (VALUES[:0], np.zeros(0, dtype=np.int64))]
)
def test_no_rows_are_refused(data):
    with refused("train", "no rows"):
        loaded(data, FRAME if isinstance(data, pd.DataFrame) else PAIR)


WRONG = {
    "a hole": (
        FRAME.mask(FRAME.a[5] == FRAME),
        "column 'a' has missing values, or infinite ones: nan in row 5",
    ),
    "infinity": (
        FRAME.replace(FRAME.b[7], np.inf),
        "column 'b' has missing values, or infinite ones: inf in row 7",
    ),
    "too large": (
        FRAME.replace(FRAME.b[7], 1e300),
        "column 'b' has missing values, or infinite ones: inf in row 7",
    ),
    "a null": (
        FRAME.assign(a=pd.array([1, None] * 6, dtype="Int64")),
        "column 'a' has missing values",
    ),
    "no target": (
        FRAME.assign(label=pd.array([0, 1, None] * 4, dtype="Int64")),
        "the first in row 2",
    ),
    "a word": (
        FRAME.astype({"b": object}).replace(FRAME.b[4], "?"),
        "columns b (row 4: '?') are no numbers",
    ),
    "dates": (FRAME.assign(b=pd.date_range("2020", periods=N)), "columns b (row 0: '2020-01-01"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_missing_or_wrong_value_is_named_by_row_and_column(case):
    frame, words = WRONG[case]
    with refused("train", words):
        loaded(frame, FRAME)


@pytest.mark.parametrize(
    "column",
    [
        [None, *"ab" * 5, "a"],
        ["", *"ab" * 5, "a"],
        [np.nan, *[1.0, 2.0] * 5, 1.0],
        [" ", *"ab" * 5, "a"],
    ],
)
def test_a_row_without_its_client_is_refused(column, tmp_path):
    for site in ({"partition": "site"}, {"partition": "site", "inputs": ["a", "b"]}):
        with refused("partition=site: row 0 has a missing value"):
            quick(
                tmp_path / "run",
                train=FRAME.assign(site=column),
                test=FRAME,
                clients=None,
                model=_linear,
                **site,
            )


def _linear() -> nn.Module:
    return nn.Linear(3, 3)


@pytest.mark.slow
def test_each_class_is_a_client(tmp_path):
    texts = FRAME.label.map({0: "x", 1: "y", 2: "z"})
    for number, frame in enumerate(
        (FRAME, FRAME.assign(label=texts), (FRAME[["a", "b", "c"]], texts))
    ):
        run = quick(
            tmp_path / str(number),
            model=_linear,
            train=frame,
            test=frame,
            partition="label",
            clients=None,
        )
        assert run.summary["clients"] == 3


TEXTS = FRAME.assign(label=FRAME.label.map({0: "owl", 1: "cat", 2: "dog"}))
BYTES = {"cat": 0, "dog": 1, "owl": 2}


@pytest.mark.parametrize("kind", [object, "string", "category", "a file"])
def test_texts_become_numbers_of_public_classes(kind, tmp_path):
    data = TEXTS if kind == "a file" else TEXTS.astype({"label": kind})
    if kind == "a file":
        data.to_csv(tmp_path / "a.csv", index=False)
        data = tmp_path / "a.csv"
    made = loaded(data)
    assert made.train.labels.tolist() == [BYTES[name] for name in TEXTS.label]
    assert (made.num_classes, made.data["classes"]) == (3, ["cat", "dog", "owl"])
    assert "classes: 0 cat, 1 dog, 2 owl" in made.said


def test_training_rows_say_nothing_of_the_classes(monkeypatch):
    """What classes there are is public: a class of one private row would say that it is there."""
    with refused(
        "train has the class 'owl' in row 0, which is none of test, which is public",
        "declare all with classes=",
    ):
        loaded(TEXTS, TEXTS[TEXTS.label != "owl"])
    declared = loaded(TEXTS, TEXTS[TEXTS.label != "owl"], classes=["owl", "dog", "cat"])
    assert declared.train.labels.tolist() == [
        ["owl", "dog", "cat"].index(name) for name in TEXTS.label
    ]
    assert loaded(TEXTS[TEXTS.label != "owl"], TEXTS).num_classes == 3
    real = form.as_targets  # negative control: classes of the training rows
    monkeypatch.setattr(
        "fedlsg.simulations.workloads.rows.columns.as_targets",
        lambda found, columns, what: real(found, form.replace(columns, like=None), what),
    )
    with refused("train has the classes ('cat', 'dog'), test has ('cat', 'dog', 'owl')"):
        loaded(TEXTS[TEXTS.label != "owl"], TEXTS)
    for wrong in ("owl", ["owl", "owl"]):
        with refused("expected a list of different names"):
            workload(classes=wrong)


def test_published_numbers_of_classes_are_matched_by_name():
    def published(names):
        table = datasets.Dataset.from_dict({"a": [0.5, 1.0, 2.0], "label": [0, 1, 2]})
        return table.cast_column("label", datasets.ClassLabel(names=names))

    made = loaded(published(["u", "v", "w"]), published(["w", "v", "u"]))
    assert made.train.labels.tolist() == [2, 1, 0]
    assert made.data["classes"] == ["w", "v", "u"]
    with refused("train targets are texts, those of test are numbers"):
        loaded((VALUES, list(TEXTS.label)), (VALUES, FRAME.label.to_numpy()))
    with refused("train targets are texts, and row 2 has a missing one"):
        loaded(FRAME.assign(label=["dog", "cat", None] * 4), TEXTS)
    with refused("test: column 'label' has numbers, and texts in the other data"):
        loaded(TEXTS, FRAME)
    with refused("targets are classes (cat, dog, owl, ...), and MSELoss takes numbers"):
        loaded(TEXTS, loss=nn.MSELoss())


def test_a_column_is_an_input_or_a_target_and_once():
    for inputs, words in (
        (["a", "a"], "'a' twice"),
        (["a", "label"], "'label' twice"),
        ([], "inputs=[] names no column"),
    ):
        with refused(words, "name"):
            loaded(FRAME, inputs=inputs)


def test_a_column_that_is_text_in_one_file_is_text_in_all(tmp_path):
    paths = [tmp_path / "train.csv", tmp_path / "test.csv"]
    for path, labels in zip(paths, (["1", "2", "3"], ["1", "2", "3b"]), strict=True):
        FRAME.assign(label=labels * 4).to_csv(path, index=False)
    with refused("train=train.csv has the class '3' in row 2, which is none of test"):
        loaded(*paths)
    FRAME.assign(label=["1", "2", "1"] * 4).to_csv(paths[0], index=False)
    assert loaded(*paths).train.labels.tolist() == [0, 1, 0] * 4


@pytest.mark.slow
def test_a_run_says_and_keeps_what_it_uses_and_continues_elsewhere(tmp_path, monkeypatch, capsys):
    for place in ("here/data", "there"):
        (tmp_path / place).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    TEXTS.to_csv("data/train.csv", index=False)
    REORDERED.assign(label=TEXTS.label).to_csv("data/test.csv", index=False)
    given = {
        "model": _linear,
        "train": "data/train.csv",
        "test": "data/test.csv",
        "loss": nn.CrossEntropyLoss(),
    }
    stop = {"callbacks": [lambda row: (_ for _ in ()).throw(RuntimeError("stop"))], "rounds": 2}
    with pytest.raises(RuntimeError, match="stop"):
        quick(tmp_path / "run", **{**given, **QUICK, **stop, "quiet": False})
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "train: 12 rows of train.csv; test: 12 rows of test.csv; inputs: c, a, b; targets: label"
        in said
    )
    assert "classes: 0 cat, 1 dog, 2 owl" in said
    monkeypatch.chdir(tmp_path / "there")
    run = quick(tmp_path / "run", **{**given, "rounds": 2}, resume=True)
    kept = {"inputs": ["c", "a", "b"], "targets": ["label"], "classes": ["cat", "dog", "owl"]}
    assert run.summary["data"] == kept
    assert f'"{tmp_path}' not in (run.directory / "config.json").read_text()
    with refused("data/train.csv", "there is no such file", error=FileNotFoundError):
        quick(tmp_path / "other", **given)
    assert (
        quick(tmp_path / "other", **given, data_root=str(tmp_path / "here")).summary["data"] == kept
    )


def written(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


def test_codes_with_leading_zeros_are_texts_but_as_inputs(tmp_path):
    """Read as numbers, 007 and 7 would be one client, and 01 and 1 one class."""
    one = written(tmp_path, "one.csv", "a,h,label\n01,007,01\n2,7,1\n3,12,2\n")
    more = written(tmp_path, "more.csv", "a,h,label\n4,7,1\n")
    test = written(tmp_path, "test.csv", "a,h,label\n1,12,01\n2,7,1\n3,7,2\n")
    for train, hospitals in ((one, ["007", "7", "12"]), ([one, more], ["007", "7", "12", "7"])):
        codes = loaded(train, test, inputs=["a"])
        assert codes.columns["h"].tolist() == hospitals
        assert codes.data["classes"] == ["01", "1", "2"]
        assert codes.train.labels[:3].tolist() == [0, 1, 2]
        assert rows(codes.train)[:3, 0].tolist() == [1.0, 2.0, 3.0]


def test_codes_stay_texts_in_held_out_rows(tmp_path):
    text = "a,h,label\n" + "".join(f"{row}.5,{row % 2:03},{row % 3}\n" for row in range(12))
    path = written(tmp_path, "all.csv", text)
    held_out = load(workload(train=path, test=None, inputs=["a"]), holdout=0.5)
    for columns in (held_out.columns, held_out.test_columns):
        assert {*columns["h"].tolist()} == {"000", "001"}


def test_numbers_without_leading_zeros_stay_numbers(tmp_path):
    """Sorted as texts, client 10 would come before client 2."""
    text = "a,h,label\n0.05,10,0\n-0.7,2,1\n"
    path = written(tmp_path, "a.csv", text)
    assert loaded(path, path, inputs=["a"]).columns["h"].tolist() == [10, 2]


@pytest.mark.parametrize("missing", ["NA", "nan", "None"])
def test_texts_that_mean_a_missing_value_are_no_class_and_no_client(missing, tmp_path):
    text = f"a,h,label\n1,north,ill\n2,{missing},well\n3,south,{missing}\n"
    path = written(tmp_path, "a.csv", text)
    with pytest.raises(ValueError, match=f"test=a.csv targets have '{missing}' in row 2.*classes="):
        loaded(path, path, inputs=["a"])
    declared = loaded(path, path, inputs=["a"], classes=["ill", "well", missing])
    assert declared.train.labels.tolist() == [0, 1, 2], "a class of this name may be declared"
    with pytest.raises(ValueError, match=f"partition=h: row 1 has '{missing}'"):
        natural_parts(declared, "h")
