"""The places in memory of rows of pyarrow columns, of which a ``datasets.Dataset`` consists."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedlsg.rows.collate import TARGETS
from fedlsg.rows.row_memory import Integers, Places, RowParts, joined

MOST_COLUMNS = 16
"""Most columns of a table that are examined, the same ones in each slice of it."""


def is_hub(data: Any) -> bool:
    """Whether data are a ``datasets.Dataset``, which has a table and may have selected rows."""
    return hasattr(data, "_indices") and hasattr(getattr(data, "data", None), "column_names")


def of_hub(data: Any, rows: Integers) -> RowParts:
    """The places of rows of a ``datasets.Dataset``: those of the rows of its table that it has
    selected.
    """
    chosen = data._indices
    table = dict(zip(data.data.column_names, data.data.columns, strict=True))
    places = rows if chosen is None else np.asarray(chosen.column(0))[rows]
    return {
        (name,): part.pick(places)
        for name in input_names(table)
        for part in of_column(table[name]).values()
    }


def input_names(columns: Mapping[str, Any]) -> list[str]:
    """The columns that are examined, without those with a target's name.

    Texts, lists and objects are first, then the widest numbers; equal ones by name.
    """
    names = [name for name in columns if name not in TARGETS] or list(columns)
    widths = {name: _width(columns[name]) for name in names}
    return sorted(names, key=lambda name: (widths[name] > 0, -widths[name], name))[:MOST_COLUMNS]


def _width(column: Any) -> int:
    """Bytes of a value of the column; 0 if they differ."""
    try:
        return column.type.bit_width // 8  # type: ignore[no-any-return]
    except (AttributeError, ValueError):  # things, texts and lists
        return 0


def of_column(column: Any) -> RowParts:
    """The places of all rows of a column or an array of pyarrow."""
    chunks = [chunk for chunk in getattr(column, "chunks", [column]) if len(chunk)]
    return joined([{(): _places_of_chunk(chunk)} for chunk in chunks], list(map(len, chunks)))


def _places_of_chunk(chunk: Any) -> Places:
    """The places of rows: the address of numbers; else that of the chunk, and the row's number."""
    validity, *buffers = chunk.buffers()
    addresses = [buffer.address for buffer in (*buffers, validity) if buffer is not None]
    start = addresses[0] if addresses else id(chunk)
    rows = np.arange(len(chunk)) + chunk.offset
    width = _width(chunk)
    size = np.full(len(chunk), width or max(chunk.nbytes // len(chunk), 1))
    if width:  # a slice of numpy begins elsewhere, one of pyarrow does not
        return Places((start + rows * width).astype(np.uint64), np.full(len(chunk), width), size)
    return Places(np.full(len(chunk), start, dtype=np.uint64), -1 - rows, size)
