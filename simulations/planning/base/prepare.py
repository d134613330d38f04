"""Settings to a ``Base``: load the data, fill the gaps, deal rows to clients, build the method."""

import math
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg import strategies
from fedlsg.config.isolation import CHECKED
from fedlsg.config.partitions import SCHEMES
from fedlsg.config.units import EXAMPLE, Unit
from fedlsg.gradients import Precision
from fedlsg.method import LocalTraining, Method, Schedule
from fedlsg.privacy.sampling import batches_of_epoch
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.base.memory import DEFAULT_MICROBATCH
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.base.start_weights import with_digest
from fedlsg.simulations.planning.base.training_rows import OwnData, OwnPart
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.settings.own_epsilons import has_deltas, read_own, text_of
from fedlsg.simulations.settings.participation import unit_of
from fedlsg.simulations.settings.resolve import build_method, fill, resolved
from fedlsg.simulations.settings.rule_checker import check, check_given, check_method, idle
from fedlsg.simulations.settings.settings import AUTO, Settings, as_config
from fedlsg.simulations.settings.with_preset import from_run_config
from fedlsg.simulations.workloads import LoadedWorkload, Options, Progress, public_rows, silent
from fedlsg.simulations.workloads.base.made_ahead import workers_of
from fedlsg.simulations.workloads.base.normalise import normalise_inputs
from fedlsg.simulations.workloads.base.parts import Parts, partition
from fedlsg.simulations.workloads.base.split import NoRows
from fedlsg.simulations.workloads.partition import (
    check_together,
    client_parts,
    deal_persons,
    persons_of,
)


class RowsHere(NamedTuple):
    """The training rows that this process knows, by client.

    parts: rows of each client; empty at the server of a deployment.
    person: the number of each training row's person; None if the unit is not a person, and at the
        server of a deployment.
    mean_size: the mean N_k: examples, or persons, of a client.
    """

    parts: Sequence[Tensor]
    person: Int64[Tensor, " rows"] | None
    mean_size: float


def prepare(
    settings: Settings,
    *,
    progress: Progress = silent,
    declared: Sequence[int] | None = None,
    own: OwnData | None = None,
    loaded: LoadedWorkload | None = None,
    parts: Sequence[Tensor] | None = None,
    given: Collection[str] = (),
) -> Base:
    """Load the data, fill the gaps of the settings, build the method.

    There are three places. A simulation loads all data and deals them. In a deployment only the
    public part of the workload is loaded. Its server has the N_k that its clients ``declared``. A
    client of it has its ``own`` training rows.

    progress: reports slow steps.
    loaded: data that were loaded for settings of the same ``data_key``.
    parts: rows of each client among ``loaded``, for a simulation that has dealt them already.
    given: names of the settings that a user gave for this run. One that has no effect is refused.
    Raises ValueError, OSError or ImportError with a text that names the setting and the fix.
    """
    deployed = declared is not None or own is not None
    settings = _checked(settings, deployed=deployed)
    workload = _load(settings, progress, deployed=deployed) if loaded is None else loaded
    if own is not None:
        train = own.read(workload)
        workload = replace(workload, train=train, columns=train.columns)
    filled = fill(settings, workload)
    check(filled, workload)
    if not isinstance(workload.train, NoRows):
        # raises for loader_workers= with rows in memory
        workers_of(filled, workload.train.inputs)
    method = build_method(filled)
    if parts is None:
        progress(f"dealing rows to {filled.clients} clients")
    if declared is not None:
        rows = RowsHere(parts=[], person=None, mean_size=fmean(declared))
    elif own is not None:
        rows = _rows_of_client(filled, workload, method, own)
    else:
        rows = _rows_of_simulation(filled, workload, method, parts)
        filled = _with_own_budgets(filled, workload, rows.parts, given=settings)
    check_method(filled, method, deployed=deployed)
    rate = _mean_rate(filled, rows.mean_size)
    schedule = Schedule(
        rounds=filled.rounds,
        local_steps=filled.local_steps,
        sample_rate=_epochs_a_step(filled, method, rows.mean_size, rate),
    )
    local = _local_training(filled, method, rows.mean_size, rate, own)
    last = method.server.factor(filled.rounds - 1, filled.rounds)
    # raises where local steps of the last round would diverge: a schedule may rise
    replace(local, learning_rate=local.learning_rate * last)
    final = resolved(filled, method, local)
    for reason in idle(final, method, given).values():
        raise ValueError(reason)
    return Base(
        settings=final,
        workload=workload,
        parts=rows.parts,
        method=method,
        schedule=schedule,
        local=local,
        declared=None if declared is None else tuple(declared),
        person=rows.person,
    )


def data_for_plan(settings: Settings, progress: Progress) -> LoadedWorkload:
    """The data of a simulation for ``fedlsg plan``, as ``loaded`` of ``prepare``.

    A plan reads few training rows of fedlsg's own workloads: features are made of these alone.
    Raises as ``prepare``.
    """
    return _load(_checked(settings, deployed=False), progress, deployed=False, for_plan=True)


def _checked(settings: Settings, *, deployed: bool) -> Settings:
    """The settings as data are loaded by them. Raises ValueError as ``prepare``."""
    if settings.preset is not None:
        settings = from_run_config(as_config(settings))
    if settings.method != AUTO:
        strategies.check_name(settings.method)
    settings = with_digest(settings)
    check_given(settings, deployed=deployed)
    return _with_paths(settings)


DATA_SETTINGS = (
    *(f.name for f in fields(Options)),
    *("workload", "data_dir", "public_rows", "normalise"),
)
"""Settings that decide what data are loaded."""


def data_key(settings: Settings) -> tuple[str, ...]:
    """The settings that decide what data are loaded: equal keys mean equal data."""
    names = [*DATA_SETTINGS]
    if settings.reproducible and workloads.own(settings.workload) is not None:
        names += ["seed"]  # a workload of a user may draw its rows from it
    return tuple(str(getattr(settings, name)) for name in names)


def _with_paths(settings: Settings) -> Settings:
    """The settings with absolute paths of ``data_dir`` and ``public_rows``."""
    folder = settings.data_dir
    return replace(
        settings,
        public_rows=public_rows.locate(settings.public_rows),
        data_dir=None if folder is None else str(Path(folder).expanduser().resolve()),
    )


def _load(
    s: Settings, progress: Progress, *, deployed: bool, for_plan: bool = False
) -> LoadedWorkload:
    """The data of the settings, normalised if they say so.

    It is the workload, its public part in a deployment, or public rows to train on.
    """
    data_dir = None if s.data_dir is None else Path(s.data_dir)
    options = Options(**{f.name: getattr(s, f.name) for f in fields(Options)})
    if s.public_rows is None:
        workload = workloads.load(
            s.workload,
            data_dir=data_dir,
            options=options,
            progress=progress,
            public_only=deployed,
            seed=s.seed if s.reproducible else None,
            # all rows of a user's own data are checked
            few_rows=for_plan and workloads.own(s.workload) is None,
        )
    else:
        workload = public_rows.load(
            s.workload, s.public_rows, data_dir=data_dir, options=options, progress=progress
        )
    return normalise_inputs(workload) if s.normalise == "public" else workload


def _rows_of_client(
    s: Resolved, workload: LoadedWorkload, method: Method, own: OwnData
) -> RowsHere:
    """The rows of a deployed client, which are its whole training split."""
    person = _persons_of(workload, s, method)
    rows = len(workload.train)
    mean_size = rows if person is None else int(person.max()) + 1
    return RowsHere(OwnPart(own.client, rows), person, mean_size)


def _rows_of_simulation(
    s: Resolved, workload: LoadedWorkload, method: Method, parts: Sequence[Tensor] | None
) -> RowsHere:
    """The rows of all clients; ``parts``: if they are dealt already."""
    person = _persons_of(workload, s, method)
    if parts is None:
        parts = _make_parts(s, workload, unit_of(s, method), person)
    return RowsHere(parts, person, _units_in(parts, person) / len(parts))


def _persons_of(
    workload: LoadedWorkload, s: Resolved, method: Method
) -> Int64[Tensor, " rows"] | None:
    """The number of each training row's person; None if the unit is not a person.

    Raises ValueError as ``persons_of``, and for another unit than the data were declared with.
    """
    unit = unit_of(s, method)
    if workload.unit and method.mechanism.private and unit.name == EXAMPLE.name:
        raise ValueError(
            f"workload {workload.name} says whose its rows are: give unit={workload.unit}, or "
            "leave unit= out of the Workload"
        )
    return persons_of(workload, unit.name) if unit.persons else None


def _make_parts(
    s: Resolved, workload: LoadedWorkload, unit: Unit, person: Int64[Tensor, " rows"] | None
) -> Sequence[Tensor]:
    """Each client's rows of the training split. All rows of a person are with one client."""
    scheme = SCHEMES.get(s.partition)
    if scheme is None:
        parts = client_parts(workload, s.partition, s.clients, unit=unit, person=person)
        if person is not None:
            check_together(person, parts, s.unit)
        return parts
    options: dict[str, Any] = {
        "scheme": scheme.name,
        "num_clients": s.clients,
        "seed": s.seed,
        **scheme.settings_of(s),
    }
    labels = workload.train.labels
    if person is None:
        return partition(labels, **options)
    return deal_persons(labels, person, workload.columns[unit.name], **options)


def _units_in(parts: Sequence[Tensor], person: Int64[Tensor, " rows"] | None) -> int:
    """Examples, or persons, that clients hold. Rows that no client holds are not counted."""
    if person is None:
        return sum(parts.sizes if isinstance(parts, Parts) else map(len, parts))
    return int(person[torch.cat(list(parts))].unique().numel())


def _with_own_budgets(
    s: Resolved, workload: LoadedWorkload, parts: Sequence[Tensor], *, given: Settings
) -> Resolved:
    """The settings with the epsilons and deltas of clients by number. ``given``: what a user gave.

    An epsilon= of the user holds for clients that the file does not name. Without it, the run's
    epsilon is the largest of the file. A delta= of the user holds for clients that the file gives
    none. Without it, the run's delta is the largest of the file if the file gives one to each.
    """
    s, names = with_deltas_of_file(s, workload.columns), getattr(parts, "names", None)
    if s.client_epsilons is not None:
        epsilons = read_own(s.client_epsilons, names, parts, workload.columns)
        missing = [client for client in range(len(parts)) if client not in epsilons]
        if missing and given.epsilon is None:
            raise ValueError(
                f"client_epsilons gives no epsilon to {len(missing):,} of {len(parts):,} clients, "
                f"such as {missing[0] if names is None else names[missing[0]]!r}: name all of "
                "them, or give epsilon= for the others"
            )
        largest = max(epsilons.values()) if given.epsilon is None else given.epsilon
        s = replace(s, epsilon=largest, client_epsilons=text_of(epsilons))
    if s.client_deltas is not None:
        deltas = read_own(s.client_deltas, names, parts, workload.columns, "delta")
        all_named = given.delta is None and len(deltas) == len(parts)
        s = replace(
            s, delta=max(deltas.values()) if all_named else s.delta, client_deltas=text_of(deltas)
        )
    return s


def with_deltas_of_file(s: Resolved, columns: Collection[str]) -> Resolved:
    """The settings with the deltas of a file of ``client_epsilons`` that has them."""
    text = s.client_epsilons
    if text is None or s.client_deltas is not None or not has_deltas(text, columns):
        return s
    return replace(s, client_deltas=text)


def _mean_rate(s: Resolved, mean_size: float) -> float:
    """The Poisson rate of a client of mean size."""
    rate = s.sample_rate if s.batch_size is None else min(s.batch_size / mean_size, 1.0)
    assert rate is not None, "without a batch size there is a rate: see FALLBACK"
    return rate


def _epochs_a_step(s: Resolved, method: Method, mean_size: float, rate: float) -> float:
    """The share of an epoch that a step is, by which schedules count epochs.

    At client level an epoch is a round: a number that follows from sizes would tell which clients
    there are.
    """
    if s.sampling == "shuffle":
        assert s.batch_size is not None, "a rule of sampling=shuffle wants one"
        return 1 / batches_of_epoch(math.ceil(mean_size), s.batch_size)
    return 1 / s.local_steps if unit_of(s, method).whole else rate


def _expected_batch(
    s: Resolved, method: Method, mean_size: float, rate: float, own: OwnData | None
) -> float:
    """B, the number of examples that the server divides by.

    At client level it is a public number that does not depend on sizes.
    """
    if unit_of(s, method).whole or s.sampling == "shuffle":
        assert s.batch_size is not None, "a rule of unit=client, or of sampling=shuffle, wants one"
        return float(s.batch_size)
    if own is not None and own.expected_batch is not None:
        return own.expected_batch
    return rate * mean_size


def _local_training(
    s: Resolved, method: Method, mean_size: float, rate: float, own: OwnData | None
) -> LocalTraining:
    """How a client trains in a round. Without a rate of its own it has the server's."""
    local_rate = s.local_learning_rate
    return LocalTraining(
        steps=s.local_steps,
        sample_rate=rate,
        learning_rate=method.server.learning_rate if local_rate is None else local_rate,
        momentum=s.local_momentum,
        expected_batch=_expected_batch(s, method, mean_size, rate, own),
        microbatch_size=s.microbatch_size or DEFAULT_MICROBATCH,
        multiplicity=s.multiplicity,
        precision=Precision(precision=s.precision, activation_storage=s.activation_storage),
        proximal=s.proximal or 0.0,
        shuffled=(s.batch_size or 0) if s.sampling == "shuffle" else 0,
        isolation=CHECKED if s.isolation == "auto" else s.isolation,
        # the weights are the server's, which a deployed client does not trust
        one_shape=own is not None,
    )
