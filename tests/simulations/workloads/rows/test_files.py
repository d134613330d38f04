"""Files of tables as programs write them, and those of a client's own: read as the workload reads
its own.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedlsg.simulations import workloads
from fedlsg.simulations.client.drawing import batches
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.base.training_rows import OwnData
from fedlsg.simulations.planning.earlier_runs.data_digest import data_digest
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.workloads import LoadedWorkload, Options
from fedlsg.simulations.workloads.rows import table_files
from tests.simulations.support.made_images import write_cifar10
from tests.simulations.support.own import refused

FRAME = pd.DataFrame(
    {"a": [1.5, -2.25, 3.0], "größe": [1, 2, 3], "label": ["x", "y, z", 'a "b"\nc']}
)
TEXT = FRAME.to_csv(index=False)
FORMS = {
    "utf-8": ("a.csv", TEXT.encode()),
    "capitals": ("A.CSV", TEXT.encode()),
    "a mark": ("a.csv", TEXT.encode("utf-8-sig")),
    "utf-16": ("a.csv", TEXT.encode("utf-16")),
    "utf-16 without a mark": ("a.csv", TEXT.encode("utf-16-le")),
    "utf-16, large end first": ("a.csv", TEXT.encode("utf-16-be")),
    "lines of Windows": ("a.csv", TEXT.replace("\n", "\r\n").replace("\r\nc", "\nc").encode()),
    "semicolons": ("a.csv", FRAME.to_csv(index=False, sep=";").encode()),
    "decimal commas": ("a.csv", FRAME.to_csv(index=False, sep=";", decimal=",").encode()),
    "tabs": ("a.csv", FRAME.to_csv(index=False, sep="\t").encode()),
    "tsv": ("a.TSV", FRAME.to_csv(index=False, sep="\t").encode()),
    "bars": ("a.csv", FRAME.to_csv(index=False, sep="|").encode()),
    "jsonl": ("a.jsonl", FRAME.to_json(orient="records", lines=True).encode()),
    "quotes everywhere": ("a.csv", FRAME.to_csv(index=False, quoting=1).encode()),
}


def written(place: Path, name: str, data: bytes) -> Path:
    (place / name).write_bytes(data)
    return place / name


@pytest.mark.parametrize("case", FORMS)
def test_files_are_read_as_they_are_written(case, tmp_path):
    found = table_files.read_file(written(tmp_path, *FORMS[case]), "train").to_pydict()
    assert found == FRAME.to_dict("list")


@pytest.mark.parametrize("block", [None, 64])
def test_line_breaks_in_quotes_at_any_size(block, tmp_path, monkeypatch):
    """Also where a text is longer than a block of the parser, or its first line break comes
    late.
    """
    texts = (
        ["short"] * 5000
        + [f"note {row}\n" + "all is well, today\n" * 20 for row in range(3000)]
        + ["x\n" * 10**6]
    )
    frame = pd.DataFrame({"text": texts, "label": np.arange(len(texts)) % 3})
    if block is not None:
        frame = frame[-2001:-1]
        monkeypatch.setattr(table_files, "BLOCK_BYTES", block)
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert (
        table_files.read_file(tmp_path / "a.csv", "train")["text"].to_pylist()
        == frame.text.tolist()
    )


@pytest.mark.parametrize("text", ["größe,label\n1,x\n", "a,label\n" + "1,x\n" * 9000 + "2,ü\n"])
def test_another_encoding_is_named_with_the_fix(text, tmp_path):
    with refused("train='", "is not in UTF-8", "Latin-1", "iconv -f latin1 -t utf-8"):
        table_files.read_file(written(tmp_path, "a.csv", text.encode("latin-1")), "train")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "Empty CSV file"),
        (b"a,b\n1\n", "Expected 2 columns, got 1"),
        (b"PK\3\4\0\0", "it is a spreadsheet (.xlsx)"),
        (b"PAR1\0", "it is a .parquet file, whatever its name says"),
    ],
)
def test_a_damaged_file_is_named(data, words, tmp_path):
    with refused("a.csv' cannot be read", words):
        table_files.read_file(written(tmp_path, "a.csv", data), "train")
    with refused("b.parquet' cannot be read"):
        table_files.read_file(written(tmp_path, "b.parquet", data), "train")
    with refused("train='", "c.csv': there is no such file"):
        table_files.read_file(tmp_path / "c.csv", "train")


def test_a_column_may_be_read_as_text(tmp_path):
    path = written(tmp_path, "a.csv", b"a,b\n007,1\n8,2\n")
    assert table_files.read_file(path, "train", ["a"]).to_pydict() == {
        "a": ["007", "8"],
        "b": [1, 2],
    }


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A mirror of cifar10 with made-up images: 12 to train on, 6 to test on."""
    return write_cifar10(tmp_path / "mirror", train=12, test=6)


def cifar10(images: Path, tmp_path: Path, *, public_only: bool) -> LoadedWorkload:
    return workloads.load(
        "cifar10",
        data_dir=images.parent.parent,
        cache_dir=tmp_path / "cache",
        public_only=public_only,
    )


@pytest.mark.parametrize("given", ["a file", "a folder of shards"])
def test_images_are_those_of_the_workload(given, images, tmp_path):
    whole = cifar10(images, tmp_path, public_only=False)
    path = images / "train-00000-of-00001.parquet" if given == "a file" else images
    for _ in range(2):  # decoded, then from the cache
        rows = cifar10(images, tmp_path, public_only=True).read(path, tmp_path / "own")
        assert data_digest(rows) == data_digest(whole.train)
        for found, wanted in zip(
            rows.batch(torch.arange(12)), whole.train.batch(torch.arange(12)), strict=True
        ):
            assert torch.equal(found, wanted)
    assert len(list((tmp_path / "own").iterdir())) == 1


@pytest.mark.slow
def test_texts_are_those_of_the_workload(tmp_path):
    pytest.importorskip("transformers")
    from tests.simulations.support.made_texts import make_bert, write_sst2

    model = make_bert(tmp_path / "bert")
    folder = write_sst2(tmp_path / "mirror", train=14, validation=6)
    options = Options(model=str(model), max_length=16)
    whole, public = (
        workloads.load(
            "glue-sst2",
            data_dir=tmp_path / "mirror",
            cache_dir=tmp_path / "cache",
            options=options,
            public_only=only,
        )
        for only in (False, True)
    )
    rows = public.read(folder / "train-00000-of-00001.parquet", tmp_path / "own")
    assert data_digest(rows) == data_digest(whole.train)
    assert rows.lengths is not None
    assert torch.equal(rows.lengths, whole.train.lengths)


def test_augmentation_of_private_rows_is_secret(images, tmp_path, monkeypatch):
    """One row less moves all rows after it: with public draws by row each of them would be
    augmented in another way, and the sum would move by more than its sensitivity.
    """
    monkeypatch.setenv("FEDLSG_CACHE", str(tmp_path / "cache"))
    settings = from_mapping(
        {
            "workload": "cifar10",
            "data_dir": str(images.parent.parent),
            "clients": 1,
            "augment": "flip-crop",
            "model": "cnn",
            "noise_multiplier": 2.0,
        }
    )

    def drawn(base: Base) -> torch.Tensor:
        inputs, _ = batches(base, 0, 1, [])(torch.arange(12))
        assert isinstance(inputs, torch.Tensor)
        return inputs

    simulated = prepare(settings)
    assert not torch.equal(drawn(simulated), drawn(simulated))
    for public in (
        {"reproducible": True},
        {"parameters": {"mechanism": "none"}, "noise_multiplier": None},
    ):
        repeated = prepare(replace(settings, **public))
        assert torch.equal(drawn(repeated), drawn(repeated)), "who claims no epsilon repeats them"
    own = prepare(
        settings,
        own=OwnData(client=0, read=lambda workload: workload.read(images, tmp_path / "own")),
    )
    assert own.rows.augment is not None
    assert not torch.equal(drawn(own), drawn(own))
