"""One line of rounds.csv."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of rounds.csv. Client lists are space-separated; reasons are one line each, cut to a bounded length."""

    round: int
    accuracy: float | None
    loss: float | None
    epsilon_max: float
    epsilon_median: float
    uplink_bytes: int
    downlink_bytes: int
    uplink_bytes_wire: int
    downlink_bytes_wire: int
    uplink_messages: int
    downlink_messages: int
    seconds: float
    asked: str
    answered: str
    rejected: str
    reasons: str

    @classmethod
    def parse(cls, row: Mapping[str, str]) -> "Row":
        """A row of rounds.csv as it was written; raises KeyError or ValueError for another file."""
        kinds = get_type_hints(cls)
        return cls(**{name: _parse(kinds[name], row[name]) for name in FIELDS})

    @property
    def line(self) -> str:
        """The row as a line of rounds.csv."""
        return _csv_line(asdict(self).values())


FIELDS = tuple(Row.__dataclass_fields__)


def _parse(kind: Any, text: str) -> Any:
    if kind == float | None:
        return float(text) if text else None
    return kind(text)


def _csv_line(values: Iterable[object]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(values)
    return text.getvalue()


HEADER = _csv_line(FIELDS)
