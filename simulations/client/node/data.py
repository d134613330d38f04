"""A deployed client's own training rows, read in the form of the run's workload.

``data`` in its node config, ``WORKLOAD:PATH``, names the workload of the rows, and a file or a folder with shards of a
training split. A run of another workload is refused. The client itself says how its rows are read: a server that
chose the label column, or the number of classes, would learn which values are out of range. Without ``data`` the client
takes its partition of the run's workload, as a simulated client does.
"""

import hashlib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from simulations import workloads
from simulations.client.node.terms import Terms, absolute
from simulations.grids.refusals import OwnDataError, TermsError, log_failure
from simulations.plan.plan import prepare
from simulations.settings.settings import Settings
from simulations.workloads import LoadedWorkload, Options, Split
from simulations.workloads.rows.decode import read_client
from simulations.workloads.rows.hub import split_names

FREE = ("hf-image", "hf-text")
"""Workloads whose columns are settings of a run."""
FORM = ("workload", "dataset", "subset", "input_columns", "label_column")

Read = Callable[[LoadedWorkload], Split]


def own_path(terms: Terms, workload: str) -> Path | None:
    """Path of the client's own rows, None if it takes a partition. TermsError for rows of another workload."""
    if terms.data is None:
        return None
    name, colon, path = terms.data.partition(":")
    if not colon or (name not in workloads.names() and workloads.own(name) is None):
        known = ", ".join(workloads.names())
        raise TermsError(
            f"node config: expected data={terms.data!r} as WORKLOAD:PATH, where WORKLOAD is one of {known}"
        )
    if name != workload:
        raise TermsError(f"the run trains on workload {workload!r}, and this client's data are for {name!r}")
    return absolute(path, "data")


def with_own_columns(settings: Settings, terms: Terms) -> Settings:
    """The settings with the node config's columns, if a run could choose them. TermsError for other columns."""
    if settings.workload not in FREE:
        return settings
    for key in ("input-columns", "label-column", "classes"):
        if getattr(terms, key.replace("-", "_")) is None:
            raise TermsError(f"node config: own data for workload {settings.workload!r} need {key}")
    for name in ("input_columns", "label_column"):
        announced, own = getattr(settings, name), getattr(terms, name)
        if announced not in (None, own):
            raise TermsError(f"the run reads {name}={announced!r}, and this client's node config says {own!r}")
    return replace(settings, input_columns=terms.input_columns, label_column=terms.label_column)


def form_of(settings: Settings, workload: LoadedWorkload) -> str:
    """Digest of the settings that say how rows are read; for texts also of the model that they are prepared for."""
    names = [*FORM, *(("model", "pretrained", "max_length") if workload.train.lengths is not None else ())]
    if workload.features is not None:
        names += ["features", "feature_norm", "max_length"]
    known = [workload.num_classes, *(getattr(settings, name) for name in names)]
    return hashlib.sha256(repr(known).encode()).hexdigest()


def reader(terms: Terms, settings: Settings) -> Read:
    """A function that reads the client's rows, given the public part of the run's workload.

    ``settings``: of the run, with the number of clients. The function raises OwnDataError, whose text is always the
    same: a loader's own text may quote a row. The client's log has that text.
    """
    path = own_path(terms, settings.workload)

    def read(workload: LoadedWorkload) -> Split:
        if terms.classes not in (None, workload.num_classes):
            raise TermsError(
                f"the run's workload has {workload.num_classes} classes, and this client's node config says "
                f"classes={terms.classes}"
            )
        try:
            rows = _partition(terms, settings) if path is None else _rows(path, terms, settings, workload)
            classes = workload.num_classes
            if classes is not None and not 0 <= int(rows.labels.min()) <= int(rows.labels.max()) < classes:
                raise ValueError(f"expected labels in 0..{classes - 1}")
            return rows
        except Exception:
            log_failure()
            raise OwnDataError from None

    return read


def _rows(path: Path, terms: Terms, settings: Settings, workload: LoadedWorkload) -> Split:
    cache = terms.ledger_dir / "cache"
    # a mirror with the split in a sub-folder
    if path.is_dir() and workload.parquet is not None and "train" not in split_names(path):
        options = Options(**{f.name: getattr(settings, f.name) for f in fields(Options)})
        return workloads.load(settings.workload, data_dir=path, cache_dir=cache, options=options).train
    return read_client(path, workload, cache) if workload.read is None else workload.read(path, cache)


def _partition(terms: Terms, settings: Settings) -> Split:
    """The client's part of the run's workload, as every simulated client derives it."""
    base = prepare(settings)
    return base.workload.train.pick(base.parts[terms.partition])
