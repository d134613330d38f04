"""Files of tables as programs write them: marks, encodings, delimiters, line breaks, suffixes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulations.workloads.rows import files
from tests.simulations.support.own import refused

FRAME = pd.DataFrame({"a": [1.5, -2.25, 3.0], "größe": [1, 2, 3], "label": ["x", "y, z", 'a "b"\nc']})
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
    found = files.read_file(written(tmp_path, *FORMS[case]), "train").to_pydict()
    assert found == FRAME.to_dict("list")


@pytest.mark.parametrize("block", [None, 64])
def test_line_breaks_in_quotes_at_any_size(block, tmp_path, monkeypatch):
    """Also where a text is longer than a block of the parser, or its first line break comes late."""
    texts = ["short"] * 5000 + [f"note {row}\n" + "all is well, today\n" * 20 for row in range(3000)] + ["x\n" * 10**6]
    frame = pd.DataFrame({"text": texts, "label": np.arange(len(texts)) % 3})
    if block is not None:
        frame = frame[-2001:-1]
        monkeypatch.setattr(files, "BLOCK", block)
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert files.read_file(tmp_path / "a.csv", "train")["text"].to_pylist() == frame.text.tolist()


@pytest.mark.parametrize("text", ["größe,label\n1,x\n", "a,label\n" + "1,x\n" * 9000 + "2,ü\n"])
def test_another_encoding_is_named_with_the_fix(text, tmp_path):
    with refused("train='", "is not in UTF-8", "Latin-1", "iconv -f latin1 -t utf-8"):
        files.read_file(written(tmp_path, "a.csv", text.encode("latin-1")), "train")


@pytest.mark.parametrize(("data", "words"), [
    (b"", "Empty CSV file"), (b"a,b\n1\n", "Expected 2 columns, got 1"), (b"PK\3\4\0\0", "not in UTF-8"),
])  # fmt: skip
def test_a_damaged_file_is_named(data, words, tmp_path):
    with refused("a.csv' cannot be read", words):
        files.read_file(written(tmp_path, "a.csv", data), "train")
    with refused("b.parquet' cannot be read"):
        files.read_file(written(tmp_path, "b.parquet", data), "train")


def test_a_column_may_be_read_as_text(tmp_path):
    path = written(tmp_path, "a.csv", b"a,b\n007,1\n8,2\n")
    assert files.read_file(path, "train", ["a"]).to_pydict() == {"a": ["007", "8"], "b": [1, 2]}
