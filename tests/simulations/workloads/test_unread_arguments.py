"""Each form of data reads an argument of ``Workload``, or refuses it: none is ignored."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import fedlsg
from fedlsg.simulations.workloads.rows import read
from tests.simulations.support.own import TEST, TRAIN, build, quick, refused

COLUMNS = [f"x{number}" for number in range(TRAIN[0].shape[1])]
NONSENSE: dict[str, Any] = {
    "inputs": ["nonsense"],
    "targets": "nonsense",
    "partition": "nonsense",
    "unit": "nonsense",
    "classes": ["nonsense"],
    "num_classes": 70,
    "classifier": "nonsense",
}
"""Of each argument that says something of the data or the model: a value that fits nothing."""
FUNCTIONS = {"model", "loss", "metrics", "transform", "probe"}
"""They are called in every form."""
OTHERS = {"train", "test", "settings", "name", "image_size"}
"""``image_size`` and its settings: ``test_image_contents.py``."""


def frame(rows) -> pd.DataFrame:
    return pd.DataFrame(rows[0], columns=COLUMNS).assign(label=rows[1])


def folder(place, rows):
    """Images of a pixel a column."""
    for number, (x, y) in enumerate(zip(*rows, strict=True)):
        image = place / str(y) / f"{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((np.clip(x, -2, 2) * 60 + 128).astype(np.uint8)[None]).save(image)
    return place


def tensors(rows) -> TensorDataset:
    return TensorDataset(torch.from_numpy(rows[0]).float(), torch.from_numpy(rows[1]))


def saved(place, rows):
    np.savez(place, inputs=rows[0].astype(np.float32), labels=rows[1])
    return place


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "table": lambda place, rows: frame(rows),
    "table and targets": lambda place, rows: (frame(rows)[COLUMNS], rows[1]),
    "pair": lambda place, rows: rows,
    "fields": lambda place, rows: ({"input": rows[0].astype(np.float32)}, rows[1]),
    "Dataset": lambda place, rows: tensors(rows),
    "npz": lambda place, rows: saved(place.with_suffix(".npz"), rows),
    "folder": folder,
}


def data(form: str, place) -> dict[str, Any]:
    given = {name: FORMS[form](place / name, rows) for name, rows in SPLITS.items()}
    return {**given, "model": flat} if form == "folder" else given


SPLITS = {"train": TRAIN, "test": TEST}


def flat():
    return nn.Sequential(nn.Flatten(), *build())


def test_every_argument_is_tried():
    names = {field.name for field in dataclasses.fields(fedlsg.Workload)}
    assert names == NONSENSE.keys() | FUNCTIONS | OTHERS


@pytest.mark.parametrize("form", FORMS)
def test_no_argument_is_ignored(form, tmp_path, monkeypatch):
    given = data(form, tmp_path)
    quick(tmp_path / "run", **given)  # control: without nonsense
    for name, value in NONSENSE.items():
        word = "70" if name == "num_classes" else "nonsense"
        clients = {"clients": None} if name == "partition" else {}
        with refused(word):
            quick(tmp_path / name, **{**given, **clients, name: value})
    ignored = [name for name in ("inputs", "targets") if name not in read.NAMED_IN[FORM_OF[form]]]
    monkeypatch.setattr(read, "check_named", lambda *_: None)  # control: as before
    for name in ignored:
        quick(tmp_path / f"{name} ignored", **{**given, name: "nonsense"})


FORM_OF = {
    "table": read.TABLE,
    "table and targets": read.TABLE_AND_TARGETS,
    "pair": read.PAIR,
    "fields": read.PAIR,
    "Dataset": read.DATASET,
    "npz": read.PAIR,
    "folder": read.FOLDER,
}


def test_an_argument_that_one_split_reads_is_taken(tmp_path):
    """A table to train on, and arrays as test: the names are of the table."""
    mixed = {"train": frame(TRAIN).rename(columns={"label": "y"}), "test": TEST}
    quick(tmp_path / "a", **mixed, targets="y", inputs=COLUMNS)
