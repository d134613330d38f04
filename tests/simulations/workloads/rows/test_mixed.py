"""Tables of numbers and texts: the way of docs/own.md, what it checks, and messages that lead to
it.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedlsg
from tests.documents.blocks import blocks
from tests.places import REPOSITORY
from tests.simulations.support.own import QUICK, load, refused, workload


def documented() -> dict[str, object]:
    """The names that the document's example defines before its run."""
    (block,) = [
        block
        for block in blocks((REPOSITORY / "docs" / "own.md").read_text(), "python")
        if "def encode" in block.text
    ]
    names: dict[str, object] = {"torch": torch, "nn": nn}
    exec(block.text.partition("run = ")[0], names)
    return names


NAMES = documented()
encode, STAYS, WARDS = NAMES["encode"], NAMES["stays"], NAMES["WARDS"]
TRAIN, TEST = STAYS[:60], STAYS[60:100].reset_index(drop=True)
CHOSEN = {
    "inputs": ["age", "ward"],
    "targets": "outcome",
    "classes": ["short", "long"],
    "transform": encode,
    "partition": "hospital",
}


def loaded(train=TRAIN, test=TEST, **changes):
    return load(workload(train=train, test=test, **{**CHOSEN, **changes}))


def as_inputs(split) -> torch.Tensor:
    return split.batch(torch.arange(len(split)))[0]


@pytest.mark.slow
def test_the_documented_example_learns(tmp_path):
    run = fedlsg.simulate(
        **{**QUICK, **CHOSEN, "clients": None, "rounds": 20, "noise_multiplier": 1.0},
        model=lambda: nn.Linear(6, 2),
        train=STAYS[:2000],
        test=STAYS[2000:],
        loss=nn.CrossEntropyLoss(),
        learning_rate=2.0,
        out=tmp_path / "run",
    )
    likelier = max(STAYS["outcome"][2000:].value_counts(normalize=True))
    assert run.summary["accuracy"] > likelier + 0.1
    assert run.summary["data"]["inputs"] == ["age", "ward"]
    assert run.summary["clients"] == 2


def test_values_are_those_of_each_column_with_missing_ones():
    made = loaded()
    found, row = as_inputs(made.train), 0
    for row, (age, ward) in enumerate(zip(TRAIN["age"], TRAIN["ward"], strict=True)):
        missing = pd.isna(age)
        place = WARDS.index(ward) if ward in WARDS else 3
        wanted = [0.0 if missing else (age - 50) / 25, float(missing), *np.eye(4)[place]]
        assert found[row].tolist() == pytest.approx(wanted)
    assert {"north", "south"} == set(made.columns["hospital"])
    assert TRAIN["age"].isna().any()
    assert TRAIN["ward"].isna().any()


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet", "pair", "arrow", "hub"])
def test_every_table_gives_the_same(form, tmp_path):
    wanted, changes = as_inputs(loaded().train), {}

    def made(frame: pd.DataFrame, name: str):
        path = tmp_path / f"{name}.{form}"
        if form in ("csv", "tsv"):
            frame.to_csv(path, index=False, sep="\t" if form == "tsv" else ",")
        elif form == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        elif form == "parquet":
            frame.to_parquet(path)
        elif form == "pair":
            return frame.drop(columns="outcome"), frame["outcome"]
        elif form == "arrow":
            return pytest.importorskip("pyarrow").Table.from_pandas(frame)
        else:
            return pytest.importorskip("datasets").Dataset.from_pandas(frame)
        return path

    if form == "pair":
        changes = {"targets": None}
    found = loaded(*(made(frame, name) for name, frame in (("train", TRAIN), ("test", TEST))), **changes)  # fmt: skip
    assert torch.equal(as_inputs(found.train), wanted)


def test_a_deployed_clients_file_is_read_by_the_same_encoder(tmp_path):
    TRAIN.to_csv(tmp_path / "own.csv", index=False)
    split = loaded().read(tmp_path / "own.csv", tmp_path)
    assert torch.equal(as_inputs(split), as_inputs(loaded().train))


def test_columns_that_are_lists_go_to_the_transform_as_well():
    frame = TRAIN.assign(embedding=[[float(row), 1.0] for row in range(len(TRAIN))])

    def join(age, embedding):
        return torch.cat([torch.tensor(age).nan_to_num()[:, None], torch.tensor(np.array(embedding))], 1).float()  # fmt: skip

    changes = {"inputs": ["age", "embedding"], "transform": join}
    found = as_inputs(loaded(frame, frame, **changes).train)
    assert found[7].tolist() == [np.nan_to_num(TRAIN["age"][7]), 7.0, 1.0]
    with refused("column 'embedding' holds lists, others numbers", "transform= makes numbers"):
        loaded(frame, frame, **{**changes, "transform": None})


def by_the_mean(age, ward):
    """What an encoder must not do: the ages of the other rows are in it."""
    ages = torch.tensor(age).nan_to_num()
    return torch.stack([ages - ages.mean(), ages], 1)


def by_the_categories(age, ward):
    """Numbers of the categories among the rows that it was given."""
    names = sorted({str(name) for name in ward})
    return torch.tensor([[float(names.index(str(name)))] for name in ward])


@pytest.mark.parametrize("transform", [by_the_mean, by_the_categories])
def test_an_encoder_that_looks_at_other_rows_is_refused(transform):
    with refused("for a row alone than in a batch, which mixes examples"):
        loaded(transform=transform)


def test_a_value_that_the_encoder_leaves_missing_is_refused_before_the_run(tmp_path):
    def careless(age, ward):
        return torch.tensor(age, dtype=torch.float32)[:, None].expand(-1, 6)

    with refused("missing"):
        fedlsg.simulate(
            **{**QUICK, **CHOSEN, "clients": None, "transform": careless},
            model=lambda: nn.Linear(6, 2),
            train=TRAIN,
            test=TEST,
            loss=nn.CrossEntropyLoss(),
            out=tmp_path / "run",
        )
    assert not list(Path(tmp_path).rglob("client-*.jsonl"))


WITHOUT = {
    "numbers and texts": (lambda: TRAIN, {}, "columns ward (row 0: "),
    "texts alone": (lambda: TRAIN, {"inputs": ["ward", "hospital"]}, "missing value"),
    "complete texts": (
        lambda: TRAIN.fillna({"ward": "none"}),
        {"inputs": ["ward", "hospital"]},
        "rows of things that are no numbers",
    ),
    "an array of both": (
        lambda: (TRAIN[["age", "ward"]].to_numpy(dtype=object), np.arange(60) % 2),
        {"targets": None, "inputs": None, "partition": "iid", "classes": None},
        "rows of things that are no numbers",
    ),
}


def test_texts_in_dicts_of_inputs_are_named():
    ages, wards = TRAIN["age"].to_numpy(dtype=float), TRAIN["ward"].to_numpy(dtype=object)
    targets = np.arange(60) % 2
    changes = {"targets": None, "inputs": None, "partition": "iid", "transform": None, "classes": None}  # fmt: skip
    columns = ({"age": ages, "ward": wards}, targets)
    with refused("inputs ward", "give a table with these columns: transform= makes numbers"):
        loaded(columns, columns, **changes)
    items = [({"age": 1.0, "ward": "surgery"}, 0)] * 3
    with refused("inputs ward cannot be stacked", "make numbers of texts in __getitem__"):
        loaded(columns, items, **changes)


@pytest.mark.parametrize("case", WITHOUT)
def test_messages_lead_to_the_way(case):
    make, changes, words = WITHOUT[case]
    way = () if case == "texts alone" else ("transform= makes numbers of numbers and texts", "fedlsg docs own")  # fmt: skip
    with refused(words, *way):
        loaded(make(), make(), **{"transform": None, **changes})


def test_a_transform_of_one_argument_is_told_of_the_columns():
    with refused("transform fails: TypeError", "it gets 2 lists, one of each column"):
        loaded(transform=lambda rows: rows)


def test_the_document_has_the_heading_that_messages_name():
    assert "### Tables with numbers and texts\n" in (REPOSITORY / "docs" / "own.md").read_text()


def test_negative_control_an_encoder_that_is_not_compared_passes(monkeypatch):
    monkeypatch.setattr(
        "fedlsg.simulations.workloads.rows.transform.check_same_rows", lambda *_: None
    )
    assert as_inputs(loaded(transform=by_the_mean).train).shape == (60, 2)
