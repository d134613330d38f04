"""Where the rows of columns of pyarrow are, of which a ``datasets.Dataset`` is made."""

from typing import Any

import numpy as np

from fedlsg.rows.collate import TARGETS
from fedlsg.rows.row_memory import Integers, Places, RowParts, joined

WIDEST = 3
"""So many columns of a table are looked at, those with the most bytes a row."""


def is_hub(data: Any) -> bool:
    """Whether data are a ``datasets.Dataset``, which has a table and may have selected rows."""
    return hasattr(data, "_indices") and hasattr(getattr(data, "data", None), "column_names")


def of_hub(data: Any, rows: Integers) -> RowParts:
    """Rows of a ``datasets.Dataset``, where those of its table are that it has selected."""
    chosen = data._indices
    columns = zip(data.data.column_names, data.data.columns, strict=True)
    parts = widest({name: of_column(column) for name, column in columns})
    places = rows if chosen is None else np.asarray(chosen.column(0))[rows]
    return [part.pick(places) for part in parts]


def widest(columns: dict[str, RowParts]) -> RowParts:
    """The parts with the most bytes, of the columns that are not targets by their name."""
    inputs = [parts for name, parts in columns.items() if name not in TARGETS]
    parts = [part for parts in inputs or columns.values() for part in parts]
    return sorted(parts, key=lambda part: -int(part.size.sum()))[:WIDEST]


def of_column(column: Any) -> RowParts:
    """Rows of a column or an array of pyarrow."""
    chunks = [chunk for chunk in getattr(column, "chunks", [column]) if len(chunk)]
    return joined([[_places_of_chunk(chunk)] for chunk in chunks], list(map(len, chunks)))


def _places_of_chunk(chunk: Any) -> Places:
    """Rows of numbers are known by their address, others by that of the chunk and their number."""
    validity, *buffers = chunk.buffers()
    held = [buffer.address for buffer in (*buffers, validity) if buffer is not None]
    start = held[0] if held else id(chunk)
    rows = np.arange(len(chunk)) + chunk.offset
    try:
        width = chunk.type.bit_width // 8
    except ValueError:  # texts and lists
        width = 0
    size = np.full(len(chunk), width or max(chunk.nbytes // len(chunk), 1))
    if width:  # a slice of numpy begins elsewhere, one of pyarrow does not
        return Places((start + rows * width).astype(np.uint64), np.full(len(chunk), width), size)
    return Places(np.full(len(chunk), start, dtype=np.uint64), -1 - rows, size)
