"""A deployed client's own training rows, read in the form of the run's workload.

``data`` in its node config: a file, or a folder with the shards of a training split. ``WORKLOAD:PATH`` also names
the workload that the rows belong to; a run of another workload is then refused. Without ``data`` the client takes
its partition of the run's workload, as a simulated client does.
"""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from simulations import workloads
from simulations.node.terms import Terms, absolute
from simulations.refusals import OwnDataError, TermsError, log_failure
from simulations.settings import Settings
from simulations.workloads import Options, Split, Workload, own_rows
from simulations.workloads.mirror import split_names

Read = Callable[[Workload], Split]


def own_path(terms: Terms, workload: str) -> Path | None:
    """Where the client's own rows are, None where it takes a partition. TermsError for rows of another workload."""
    if terms.data is None:
        return None
    name, colon, path = terms.data.partition(":")
    if colon and name in workloads.names():
        if name != workload:
            raise TermsError(f"the run trains on workload {workload!r}, and this client's data are for {name!r}")
        return absolute(path, "data")
    return absolute(terms.data, "data")


def reader(terms: Terms, settings: Settings) -> Read:
    """What reads the client's rows once the public part of the run's workload is known.

    ``settings``: of the run, with the number of clients. It raises OwnDataError, whose text is always the same: a
    loader's own text may quote a row. The client's log has it.
    """
    path = own_path(terms, settings.workload)

    def read(workload: Workload) -> Split:
        try:
            rows = _partition(terms, settings) if path is None else _rows(path, terms, settings, workload)
            if not 0 <= int(rows.labels.min()) <= int(rows.labels.max()) < workload.num_classes:
                raise ValueError(f"expected labels in 0..{workload.num_classes - 1}")
            return rows
        except Exception:
            log_failure()
            raise OwnDataError from None

    return read


def _rows(path: Path, terms: Terms, settings: Settings, workload: Workload) -> Split:
    cache = terms.ledger_dir / "cache"
    if path.is_dir() and workload.parquet is not None and "train" not in split_names(path):  # a mirror: further down
        options = Options(**{f.name: getattr(settings, f.name) for f in fields(Options)})
        return workloads.load(settings.workload, data_dir=path, cache_dir=cache, options=options).train
    return own_rows.read(path, workload, cache)


def _partition(terms: Terms, settings: Settings) -> Split:
    """The client's part of the run's workload, as every simulated client derives it."""
    from simulations.plan import prepare  # which imports what a client's own data are

    base = prepare(settings)
    return base.workload.train.pick(base.parts[terms.partition])
