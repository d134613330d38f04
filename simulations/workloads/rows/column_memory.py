"""Where the rows of a table are in memory: a row that comes twice is recognised by its place."""

from typing import Any

import numpy as np

from fedlsg.rows.arrow_memory import input_names, is_hub, of_column, of_hub
from fedlsg.rows.row_memory import RowParts, of_array, of_things
from fedlsg.simulations.workloads.rows.columns import Table


def parts_of_table(bare: Any, table: Table) -> RowParts:
    """Where the values of the input columns are.

    Columns that have a usual name of targets are not inputs (``input_names``).

    bare: the table as it was given; ``table`` has its columns in pyarrow.
    """
    if isinstance(bare, tuple | list):  # with its targets
        bare = bare[0]
    if is_hub(bare):
        return of_hub(bare, np.arange(table.size))
    places = {name: place for place, name in enumerate(table.columns)}
    return {
        (name,): part
        for name in input_names(table.columns)
        for part in _of_column(bare, places[name], table.columns[name]).values()
    }


def _of_column(bare: Any, place: int, column: Any) -> RowParts:
    """Where the values of a column are.

    place: its number in ``bare``. A numpy column of a frame is looked up there, because pyarrow
        copies some.
    """
    rows = np.arange(len(column))
    if isinstance(column, list):
        return of_things(column, rows)
    if hasattr(bare, "iloc"):
        series = bare.iloc[:, place]
        if isinstance(series.dtype, np.dtype):
            return of_array(series.to_numpy(), rows)
    return of_column(column)
