"""Where the rows of a table are in memory: a row that comes twice is found by that."""

from typing import Any

import numpy as np

from fedlsg.rows.arrow_memory import input_names, is_hub, of_column, of_hub
from fedlsg.rows.row_memory import RowParts, of_array, of_things
from fedlsg.simulations.workloads.rows.columns import Table


def parts_of_table(bare: Any, table: Table) -> RowParts:
    """Where the values of the columns are; targets by a usual name do not count.

    bare: the table as it was given, which a ``Table`` holds in columns of pyarrow.
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
    """A column of numpy is looked at where the frame has it: pyarrow copies some."""
    rows = np.arange(len(column))
    if isinstance(column, list):
        return of_things(column, rows)
    if hasattr(bare, "iloc"):
        series = bare.iloc[:, place]
        if isinstance(series.dtype, np.dtype):
            return of_array(series.to_numpy(), rows)
    return of_column(column)
