"""Public test rows that are like each client's data."""

from collections.abc import Sequence

from jaxtyping import Int64
from torch import Tensor

from fedlsg.config.partitions import SCHEMES
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.workloads import LoadedWorkload
from fedlsg.simulations.workloads.base.parts import Parts, matching_parts
from fedlsg.simulations.workloads.partition import labels_of_units, parts_by_value


def parts_of_test(base: Base) -> Sequence[Int64[Tensor, " n"]]:
    """Rows of the (first) test split for each client.

    They are dealt by the column of the partition, or by the scheme that dealt the training rows.
    Raises ValueError if test has no such column, or no row of any client.
    """
    s, workload = base.settings, base.workload
    scheme = SCHEMES.get(s.partition)
    if scheme is None:
        return _parts_by_column(workload, s.partition, base.parts)
    return matching_parts(
        workload.test.labels,
        labels_of_units(workload.train.labels, base.person, scheme.name),
        num_clients=s.clients,
        scheme=scheme.name,
        seed=s.seed,
        **scheme.settings_of(s),
    )


def check_clients(base: Base) -> None:
    """Raise ValueError if clients have no names to show, or no part of the test split."""
    s = base.settings
    if s.show_names and base.clients.names is None:
        raise ValueError(
            f"show_names=true shows names that a column gives clients, and partition={s.partition} "
            f"with clients={s.clients} gives none: partition by a column with one client for each "
            "of its values, or leave show_names out"
        )
    try:
        if s.evaluate_clients or base.method.personal:
            parts_of_test(base)
    except ValueError as error:
        setting = "evaluate_clients" if s.evaluate_clients else "personal"
        raise ValueError(f"{setting} needs test rows of each client: {error}") from None


def _parts_by_column(workload: LoadedWorkload, column: str, clients: Sequence[Tensor]) -> Parts:
    """Rows of the test split for each client by a column; rows of other values have no client."""
    if column not in workload.test_columns:
        columns = ", ".join(workload.test_columns) or "none but inputs and targets"
        raise ValueError(
            f"partition={column} makes the clients, and test has no column {column!r} (it has: "
            f"{columns}): give test that column, or leave the setting out"
        )
    parts = parts_by_value(workload, column, clients, workload.test_columns[column])
    if not sum(parts.sizes):
        raise ValueError(
            f"no test row has a {column} that a client has: give test rows of the clients, or "
            "leave the setting out"
        )
    return parts
