"""Rows of a user's data: made one at a time, with secret draws of their own, and collated by shape.

User code makes one row a call. If it keeps nothing between calls, the row does not depend on other
rows. Its random numbers come from a keyed stream (``draws``), whatever it seeds itself (``seeds``).
Rows of one shape share a pass; with ``Padding`` a row grows to the next of a public list of
lengths, by its own length alone. Data that have a row more than once are refused (``origin``).

    origin        refuses a row that comes twice, also through Subset and ConcatDataset
    row_memory    the bytes of a row in memory or in a mapped file
    arrow_memory  the same for columns of pyarrow
    seeds         replaces seeds and states that user code sets
    draws         the random numbers of a row
    padding       public lengths, and masks
    collate       rows of one form as a batch
    data_loader   the data behind a DataLoader
    one_by_one    the batch function that uses all this
    workers       processes that make rows in advance
"""

from fedlsg.rows.draws import RowDraws
from fedlsg.rows.one_by_one import OneByOne
from fedlsg.rows.origin import check_distinct
from fedlsg.rows.padding import Padding
from fedlsg.rows.seeds import seeds_replaced
from fedlsg.rows.workers import LostWorkerError, RowWorkers, Start

__all__ = [
    "LostWorkerError",
    "OneByOne",
    "Padding",
    "RowDraws",
    "RowWorkers",
    "Start",
    "check_distinct",
    "seeds_replaced",
]
