"""Files of tables are read as pyarrow tables: .csv, .tsv, .jsonl and .parquet, in any case."""

import mmap
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fedlsg import bounded

DELIMITERS = {".csv": ",;\t|", ".tsv": "\t", ".tab": "\t"}
"""The characters that may separate columns, by the suffix of a text file."""
JSON, PARQUET = (".jsonl", ".ndjson"), (".parquet", ".pq")
SUFFIXES = (*DELIMITERS, *JSON, *PARQUET)
BLOCK_BYTES = 2**22
"""Bytes of a CSV file that are parsed at a time, at first. A row has to be within two blocks."""
MAX_BLOCK_BYTES = 2**31 - 1
"""The most bytes at a time that pyarrow takes."""
HEAD_BYTES = 2**16
"""Bytes of a CSV file from which encoding, delimiter and decimal mark are guessed."""
UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""Byte-order marks of UTF-16."""
NO_TEXT = {
    b"PK\3\4": "a spreadsheet (.xlsx) or an archive",
    b"PAR1": "a .parquet file",
    b"\x1f\x8b": "a .gz file",
}
"""The first bytes of files that are not text, and what these are."""
UTF8_FIX = (
    "save it as UTF-8 (in spreadsheets: CSV UTF-8), or convert it: iconv -f latin1 -t utf-8 OLD > "
    "NEW"
)
_CODE = re.compile(rb'[\s,;|"]0\d')
"""The beginning of a value that may be a code with leading zeros, such as 007."""
_DECIMAL_COMMA, _DECIMAL_POINT = (
    re.compile(rf'(?:^|;)\s*"?-?\d+{mark}\d+"?\s*(?:;|$)', re.M) for mark in (",", r"\.")
)
"""A value between semicolons that is a number with this decimal mark."""


class NoFileError(FileNotFoundError, ValueError):
    """A setting names a path that does not exist."""


def is_table_file(path: Path) -> bool:
    """Whether the suffix is that of a table."""
    return path.suffix.lower() in SUFFIXES


def read_file(path: Path, what: str, texts: Sequence[str] = ()) -> Any:
    """The ``pyarrow.Table`` of a file.

    A byte-order mark, UTF-16, ``;`` (with decimal commas), tabs and line breaks in quotes are read.

    what: the argument that names the file, for messages.
    texts: columns of a CSV file that are texts even if they look like numbers.
    Raises ValueError, with the fix, for a file that is not UTF-8, is damaged or does not exist.
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


def codes_of(path: Path, what: str, table: Any) -> dict[str, Any]:
    """Columns with leading zeros, as texts: whole numbers would make one value of 007 and 7.

    table: of pyarrow, as ``read_file`` gave it. Only a CSV file has such columns.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if path.suffix.lower() not in DELIMITERS:
        return {}
    names = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    names = [name for name in names if table.column_names.count(name) == 1]
    if not names or not _may_have_codes(path):
        return {}
    texts = read_file(path, what, names)
    pattern = r"^\s*0\d"
    codes = [
        name for name in names if pc.any(pc.match_substring_regex(texts[name], pattern)).as_py()
    ]
    return {name: texts[name] for name in codes}


def _may_have_codes(path: Path) -> bool:
    """Whether a zero and another digit begin a value anywhere in a text file; fast."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        is_utf8 = _encoding(content[:HEAD_BYTES]) == "utf8"
        return not is_utf8 or _CODE.search(content) is not None


class _NotUtf8Error(Exception):
    """A text file has another encoding, which only its owner knows."""

    def __init__(self) -> None:
        super().__init__(
            f"it is not in UTF-8 (perhaps Latin-1, as older programs write it): {UTF8_FIX}"
        )


def _read_csv(path: Path, delimiters: str, texts: Sequence[str]) -> Any:
    """The table of a text file; its encoding, delimiter and decimal mark are guessed."""
    import pyarrow as pa
    from pyarrow import csv

    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    for first_bytes, kind in NO_TEXT.items():
        if head.startswith(first_bytes):
            raise pa.ArrowInvalid(
                f"it is {kind}, whatever its name says: name it so, or save it as CSV in UTF-8"
            )
    encoding = _encoding(head)
    sample = head.decode(encoding, "replace").removeprefix("\ufeff")
    delimiter = _delimiter(sample, delimiters)
    has_commas = delimiter == ";" and _DECIMAL_COMMA.search(sample) is not None
    decimal = "," if has_commas and not _DECIMAL_POINT.search(sample) else "."
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
        except pa.ArrowInvalid as error:
            if "invalid UTF8" in str(error):  # in one of the columns ``texts``
                raise _NotUtf8Error from None
            is_long_row = "straddling" in str(error)
            if not is_long_row or block == MAX_BLOCK_BYTES:
                raise
            block = min(16 * block, MAX_BLOCK_BYTES)
    # in other columns pyarrow reads texts that are not UTF-8 as bytes
    if any(pa.types.is_binary(kind) for kind in table.schema.types):
        raise _NotUtf8Error
    try:
        return table if table.column_names else None
    except UnicodeDecodeError:  # in the names
        raise _NotUtf8Error from None


def _encoding(head: bytes) -> str:
    """The encoding of a text, by its first bytes: UTF-16, or else UTF-8.

    UTF-16 has a byte-order mark, or a zero in every other byte of ASCII characters. A text that is
    neither shows while it is read.
    """
    if head[:2] in UTF16:
        return "utf-16"
    if b"\0" not in head:
        return "utf8"
    if head[:2].count(0) != 1:
        raise _NotUtf8Error
    return "utf-16-le" if head[1] == 0 else "utf-16-be"


def _delimiter(sample: str, candidates: str) -> str:
    """The most frequent candidate in the header, outside of quotes; the first if it has none."""
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
    """What a library left in a schema or table of pyarrow, under its key; empty if damaged."""
    try:
        metadata = bounded.parse_json(
            (getattr(holder, "schema", holder).metadata or {}).get(key, b"{}")
        )
    except ValueError:
        return {}
    return metadata if isinstance(metadata, dict) else {}
