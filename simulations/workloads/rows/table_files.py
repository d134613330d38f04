"""Files of tables, as programs write them, through pyarrow: .csv, .tsv, .jsonl and .parquet, in
capitals or not.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fedlsg import bounded

DELIMITERS = {".csv": ",;\t|", ".tsv": "\t", ".tab": "\t"}
JSON, PARQUET = (".jsonl", ".ndjson"), (".parquet", ".pq")
SUFFIXES = (*DELIMITERS, *JSON, *PARQUET)
BLOCK_BYTES, MAX_BLOCK_BYTES = 2**22, 2**31 - 1
"""Bytes of a CSV file that are parsed at a time, and the most that pyarrow takes; a row lies within
two blocks.
"""
HEAD = 2**16
UTF16 = (b"\xff\xfe", b"\xfe\xff")
NO_TEXT = {
    b"PK\3\4": "a spreadsheet (.xlsx) or an archive",
    b"PAR1": "a .parquet file",
    b"\x1f\x8b": "a .gz file",
}
UTF8_FIX = (
    "save it as UTF-8 (in spreadsheets: CSV UTF-8), or convert it: iconv -f latin1 -t utf-8 OLD > "
    "NEW"
)
_DECIMAL_COMMA, _DECIMAL_POINT = (
    re.compile(rf'(?:^|;)\s*"?-?\d+{mark}\d+"?\s*(?:;|$)', re.M) for mark in (",", r"\.")
)


class NoFileError(FileNotFoundError, ValueError):
    """A path that a setting names, and where nothing is."""


def is_table_file(path: Path) -> bool:
    """Whether the suffix is that of a table."""
    return path.suffix.lower() in SUFFIXES


def read_file(path: Path, what: str, texts: Sequence[str] = ()) -> Any:
    """The ``pyarrow.Table`` of a file. ``texts``: columns of a CSV file that are texts, whatever
    they look like.

    A byte-order mark, UTF-16, ``;`` (with decimal commas), tabs and line breaks in quotes are read.
    Raises ValueError, with the fix, for a file that is not UTF-8 or damaged, or not there.
    """
    import pyarrow as pa

    if not path.exists():
        raise NoFileError(f"{what}={str(path)!r}: there is no such file")
    try:
        if (suffix := path.suffix.lower()) in DELIMITERS:
            return _read_csv(path, DELIMITERS[suffix], texts)
        if suffix in PARQUET:
            from pyarrow import parquet

            return parquet.read_table(path)
        from pyarrow import json

        return json.read_json(path)
    except (pa.ArrowException, UnicodeError, _NotUtf8Error, OSError) as error:
        raise ValueError(
            f"{what}={str(path)!r} cannot be read: {' '.join(str(error).split())}"
        ) from None


class _NotUtf8Error(Exception):
    """A text file in another encoding, which only its owner knows."""

    def __init__(self) -> None:
        super().__init__(
            f"it is not in UTF-8 (perhaps Latin-1, as older programs write it): {UTF8_FIX}"
        )


def _read_csv(path: Path, delimiters: str, texts: Sequence[str]) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    with path.open("rb") as file:
        head = file.read(HEAD)
    if kind := next((kind for mark, kind in NO_TEXT.items() if head.startswith(mark)), None):
        raise pa.ArrowInvalid(
            f"it is {kind}, whatever its name says: name it so, or save it as CSV in UTF-8"
        )
    encoding = _encoding(head)
    sample = head.decode(encoding, "replace").removeprefix("\ufeff")
    delimiter = _delimiter(sample, delimiters)
    decimal = (
        ","
        if delimiter == ";" and _DECIMAL_COMMA.search(sample) and not _DECIMAL_POINT.search(sample)
        else "."
    )
    block = BLOCK_BYTES
    while True:
        try:
            table = csv.read_csv(
                path,
                read_options=csv.ReadOptions(encoding=encoding, block_size=block),
                parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=csv.ConvertOptions(
                    decimal_point=decimal,
                    column_types=dict.fromkeys(texts, pa.string()),
                    strings_can_be_null=False,
                ),
            )
            break
        except pa.ArrowInvalid as error:  # a row is longer than a block
            if "invalid UTF8" in str(error):  # in a column that is said to be of texts
                raise _NotUtf8Error from None
            if "straddling" not in str(error) or block == MAX_BLOCK_BYTES:
                raise
            block = min(16 * block, MAX_BLOCK_BYTES)
    if any(pa.types.is_binary(kind) for kind in table.schema.types):
        raise _NotUtf8Error
    try:
        return table if table.column_names else None
    except UnicodeDecodeError:
        raise _NotUtf8Error from None


def _encoding(head: bytes) -> str:
    """UTF-16 is known by its mark, or by the zeros in it; what else is no UTF-8 shows while it is
    read.
    """
    if head[:2] in UTF16:
        return "utf-16"
    if b"\0" not in head:
        return "utf8"
    if head[:2].count(0) != 1:
        raise _NotUtf8Error
    return "utf-16-le" if head[1] == 0 else "utf-16-be"


def _delimiter(sample: str, candidates: str) -> str:
    """The one that the header has most of, outside of quotes; the first for a header without
    any.
    """
    header = re.sub(r'"[^"]*"', "", sample.splitlines()[0] if sample else "")
    return max(candidates, key=header.count)


def read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """``inputs`` and ``labels`` of a file of numpy. Raises ValueError for another file."""
    try:
        bounded.check_unpacked(path, bounded.ram())
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return file["inputs"], file["labels"]
    except (KeyError, ValueError, TypeError, AttributeError, EOFError, BadZipFile) as error:
        raise ValueError(
            f"{path} cannot be read: expected arrays inputs and labels by numpy.savez ({error})"
        ) from None


def published_of(schema: Any) -> dict[str, tuple[str, ...]]:
    """Names of classes by column that the ``datasets`` library left in a schema of pyarrow."""
    features = features_of(schema)
    return {
        name: tuple(map(str, feature["names"]))
        for name, feature in features.items()
        if isinstance(feature, Mapping)
        and feature.get("_type") == "ClassLabel"
        and feature.get("names")
    }


def features_of(schema: Any) -> dict[str, Any]:
    """The description of each column that the ``datasets`` library left in a schema of pyarrow."""
    info = metadata_of(schema, b"huggingface").get("info")
    features = info.get("features") if isinstance(info, dict) else None
    return features if isinstance(features, dict) else {}


def metadata_of(holder: Any, key: bytes) -> dict[str, Any]:
    """What a library left in a schema or table of pyarrow; nothing for what it cannot have left."""
    try:
        metadata = bounded.parse_json(
            (getattr(holder, "schema", holder).metadata or {}).get(key, b"{}")
        )
    except ValueError:
        return {}
    return metadata if isinstance(metadata, dict) else {}
