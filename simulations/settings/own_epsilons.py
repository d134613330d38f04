"""An epsilon and a delta for each client: the settings ``client_epsilons`` and ``client_deltas``.

    client_epsilons="north=1, south=4"    by name, where the partition has names
    client_epsilons="#0=1, #1=4"          by number, from 0
    client_epsilons="consent"             a column of train: the smallest value in a client's rows
    client_epsilons="own.csv"             a table file with the columns client and epsilon, and
                                          delta if clients have their own

``client_deltas`` has the same forms. Clients that are not named have ``epsilon`` and ``delta``. All
of these numbers are public. Noise is calibrated for each client (``planning.client_noise``), and
the weight of a client follows from its noise (``planning.clients``).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from fedlsg.simulations.workloads.rows.table_files import is_table_file, read_file

CLIENTS_SHOWN = 5
"""Clients that a message lists."""
What = Literal["epsilon", "delta"]
"""Which of both numbers of a client is meant."""
BELOW: Mapping[What, float] = {"epsilon": math.inf, "delta": 1.0}
"""Each number of a client is above 0, and below this."""


class Budgeted(Protocol):
    """Settings with the budget of each client."""

    @property
    def epsilon(self) -> float | None:
        """The epsilon of clients that are not named."""

    @property
    def client_epsilons(self) -> str | None:
        """Epsilons of clients by number."""

    @property
    def delta(self) -> float | None:
        """The delta of clients that are not named."""

    @property
    def client_deltas(self) -> str | None:
        """Deltas of clients by number."""


def budget_of(settings: Budgeted, client: int) -> tuple[float | None, float | None]:
    """The budget (epsilon, delta) of a client in the run; None without a target.

    The settings must name clients by number.
    """
    return (
        _number_of(settings.client_epsilons, "epsilon", client, settings.epsilon),
        _number_of(settings.client_deltas, "delta", client, settings.delta),
    )


def _number_of(text: str | None, what: What, client: int, default: float | None) -> float | None:
    return default if text is None else numbered(text, what).get(client, default)


@lru_cache(maxsize=16)  # a text has one meaning
def numbered(text: str, what: What = "epsilon") -> Mapping[int, float]:
    """The epsilon or delta of clients by number. Raises ValueError for a text with names."""
    by_number = {}
    for key, value in pairs(text, what).items():
        if not (key.startswith("#") and key[1:].isdecimal()):
            raise ValueError(
                f"client_{what}s: {key!r} is a name, and the clients have numbers alone here: "
                f"write #0={value:g} for the first client"
            )
        by_number[int(key[1:])] = value
    return by_number


def text_of(values: Mapping[int, float]) -> str:
    """The setting that gives clients, by number, these numbers."""
    return ", ".join(f"#{client}={value!r}" for client, value in sorted(values.items()))


def shorter(text: str) -> str:
    """A setting shortened for messages: the first clients, and the number of all."""
    parts = text.split(", ")
    first = ", ".join(parts[:CLIENTS_SHOWN])
    return first if len(parts) <= CLIENTS_SHOWN else f"{first}, ... ({len(parts):,} clients)"


def setting_of(value: Any, what: What = "epsilon") -> dict[str, Any]:
    """The settings for an argument ``epsilon`` or ``delta`` of ``simulate``.

    It may be a number; one for each client, by name or number (a dict, a Series) or in their order;
    a column of train; a file.
    """
    # a decimal comma is refused where the number is read
    if isinstance(value, str) and not _is_number(value.replace(",", ".")):
        return {f"client_{what}s": value}
    if hasattr(value, "iloc"):  # a Series of pandas
        value = value.to_dict()
    if isinstance(value, list | tuple | np.ndarray) and np.ndim(value):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {what: value}
    if not value:
        raise ValueError(f"{what} names no client: give a number, or one for each client")
    for name in value:
        if {",", "="} & set(str(name)):
            raise ValueError(
                f"{what}: the name {name!r} has a comma or an equals sign: put the {what}s "
                f"into a CSV file with the columns client and {what}, and give client_{what}s=FILE"
            )
    return {f"client_{what}s": ", ".join(f"{name}={number}" for name, number in value.items())}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def pairs(text: str, what: What = "epsilon") -> dict[str, float]:
    """The number of each client, as it is named in the text. Raises ValueError for other texts."""
    by_name: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.rpartition("=")
        if not equals:
            raise ValueError(
                f"client_{what}s: expected NAME={what.upper()}, a column of train or a CSV file, "
                f"got {part!r}"
            )
        _enter(by_name, name.strip(), value, what)
    return by_name


def _enter(by_name: dict[str, float], name: str, value: Any, what: What) -> None:
    """Add a client's number. Raises ValueError for one out of range, and for a second one."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < BELOW[what]:
        raise ValueError(
            f"client_{what}s: expected 0 < {what} of {name!r} < {BELOW[what]:g}, got {value!r}"
        )
    if name in by_name:
        raise ValueError(f"client_{what}s names {name!r} twice: leave one out")
    by_name[name] = number


def read_own(
    text: str,
    names: Sequence[str] | None,
    parts: Sequence[Any],
    columns: Mapping[str, Any],
    what: What = "epsilon",
) -> dict[int, float]:
    """The epsilon or delta of clients by number, from the setting as a user gives it.

    names: of the clients; None without names.
    parts: the rows of each client.
    columns: of train, by name.

    Raises ValueError, or OSError for a file that cannot be read.
    """
    if text in columns:
        return _read_column(text, columns[text], parts, what)
    by_name = pairs(text, what) if "=" in text else _read_file(_path(text), columns, what)
    numbers = {f"#{client}": client for client in range(len(parts))}
    if not any(name.isdecimal() for name in names or ()):  # else 2 is the client of that name
        numbers |= {str(client): client for client in range(len(parts))}
    numbers |= {name: client for client, name in enumerate(names or ())}
    for name in by_name:
        if name not in numbers:
            clients = [f"#{client}" for client in range(len(parts))] if names is None else names
            raise ValueError(
                f"client_{what}s names {name!r}, which is no client: expected {_some(clients)}"
            )
    by_number = {numbers[name]: value for name, value in by_name.items()}
    if len(by_number) < len(by_name):
        raise ValueError(f"client_{what}s gives one client by its name and by its number: take one")
    return by_number


def has_deltas(text: str, columns: Collection[str]) -> bool:
    """Whether ``client_epsilons`` is a file that also has a column delta."""
    path = _path(text)
    return (
        text not in columns
        and is_table_file(path)
        and path.is_file()
        and "delta" in read_file(path, "client_epsilons", texts=["client"]).column_names
    )


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _some(names: Collection[str]) -> str:
    return shorter(", ".join(names))


def _read_column(name: str, values: Any, parts: Sequence[Any], what: What) -> dict[int, float]:
    """The smallest value in the rows of each client; clients without rows are left out."""
    try:
        numbers = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        numbers = np.array([math.nan])
    if not bool(((numbers > 0) & (numbers < BELOW[what])).all()):
        most = "a finite number above 0" if what == "epsilon" else "a number above 0 and below 1"
        raise ValueError(f"client_{what}s={name}: expected {most} in each row of the column")
    return {client: float(numbers[part].min()) for client, part in enumerate(parts) if len(part)}


def _read_file(path: Path, columns: Collection[str], what: What) -> dict[str, float]:
    """The numbers of clients in a table file, by their names there."""
    setting = f"client_{what}s"
    if not path.is_file():
        raise ValueError(
            f"{setting}={path}: no such file, and no column of train"
            + (f" ({_some(columns)})" if columns else "")
            + f": give NAME={what.upper()} for each client, a column, or a CSV file"
        )
    if not is_table_file(path):
        raise ValueError(f"{setting}={path}: expected the suffix of a table, such as .csv")
    table = read_file(path, setting, texts=["client"])
    if missing := {"client", what} - set(table.column_names):
        raise ValueError(
            f"{path}: expected the columns client and {what}, {' and '.join(sorted(missing))} "
            "not found"
        )
    by_name: dict[str, float] = {}
    for row in table.select(["client", what]).to_pylist():
        _enter(by_name, str(row["client"]).strip(), row[what], what)
    return by_name
