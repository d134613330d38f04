"""Where the rows of a table are in memory: a row that comes twice is found by that."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedlsg.rows.collate import TARGETS
from fedlsg.rows.row_memory import Places, RowParts, joined, of_array, of_things
from fedlsg.simulations.workloads.rows.columns import Table

WIDEST = 3
"""So many columns of a table are looked at, those with the most bytes a row."""


def parts_of_table(bare: Any, table: Table) -> RowParts:
    """Where the values of the widest columns are; targets by a usual name do not count.

    bare: the table as it was given, which a ``Table`` holds in columns of pyarrow.
    """
    if isinstance(bare, tuple | list):  # with its targets
        bare = bare[0]
    chosen = getattr(bare, "_indices", None)
    if chosen is not None and hasattr(bare, "data"):  # rows that a datasets.Dataset has selected
        rows = np.asarray(chosen.column(0))
        columns = dict(zip(bare.data.column_names, bare.data.columns, strict=True))
    else:
        rows, columns = np.arange(table.size), dict(table.columns)
        if hasattr(bare, "iloc"):
            columns = dict(_columns_of_frame(bare, columns))
    inputs = [column for name, column in columns.items() if name not in TARGETS]
    parts = [part for column in inputs or columns.values() for part in _parts_of_column(column)]
    widest = sorted(parts, key=lambda part: -int(part.size.sum()))[:WIDEST]
    return [part.pick(rows) for part in widest]


def _columns_of_frame(frame: Any, columns: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Columns by name, those of numpy as the frame has them: pyarrow copies some."""
    for place, (name, column) in enumerate(columns.items()):
        series = frame.iloc[:, place]
        is_array = isinstance(series.dtype, np.dtype) and not isinstance(column, list)
        yield name, series.to_numpy() if is_array else column


def _parts_of_column(column: Any) -> RowParts:
    if isinstance(column, list):
        return of_things(column, np.arange(len(column)))
    if isinstance(column, np.ndarray):
        return of_array(column, np.arange(len(column)))
    chunks = [chunk for chunk in column.chunks if len(chunk)]
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
