"""Settings to a ``Base``: load the data, fill the gaps, make the parts and the method, refuse what does not fit."""

import math
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean as mean

from torch import Tensor

import strategies
from fedlsg.gradients import Precision
from fedlsg.method import LocalTraining, Method, Schedule
from fedlsg.privacy.sampling import batches_of_epoch
from simulations import workloads
from simulations.plan.base import Base, Own, OwnPart
from simulations.plan.start import with_digest
from simulations.settings.checks import check, check_given, check_method, idle
from simulations.settings.participation import unit_of
from simulations.settings.published import from_run_config
from simulations.settings.resolve import build_method, fill, resolved
from simulations.settings.run import Resolved
from simulations.settings.settings import AUTO, Settings, as_config
from simulations.workloads import (
    LoadedWorkload,
    Options,
    Progress,
    public_rows,
    silent,
)
from simulations.workloads.base.workload import normalised
from simulations.workloads.partition import SCHEMES, natural_parts, partition


def prepare(
    settings: Settings,
    *,
    progress: Progress = silent,
    declared: Sequence[int] | None = None,
    own: Own | None = None,
    loaded: LoadedWorkload | None = None,
    parts: Sequence[Tensor] | None = None,
    given: Collection[str] = (),
) -> Base:
    """Load the data, fill the gaps of the settings, build the method. ``progress`` reports slow steps.

    ``loaded``: the data, where another process has loaded them for these settings; ``parts``: of them, where this one
    has. In a deployment only the public part
    of the workload is loaded: the server gives the N_k that its clients ``declared``, a client gives its ``own``
    training rows. ``given``: settings that a user gave for this run: one of them that has no effect is refused.
    Raises ValueError, OSError or ImportError with a text that names the setting and the fix.
    """
    if settings.preset is not None:
        settings = from_run_config(as_config(settings))
    if settings.method != AUTO:
        strategies.check_name(settings.method)
    settings = with_digest(settings)
    data_dir = None if settings.data_dir is None else Path(settings.data_dir).expanduser().resolve()
    options = Options(**{f.name: getattr(settings, f.name) for f in fields(Options)})
    deployed = declared is not None or own is not None
    check_given(settings, deployed=deployed)
    settings = replace(settings, public_rows=public_rows.locate(settings.public_rows))
    workload = loaded or _load(settings, data_dir, options, progress, deployed=deployed)
    if settings.normalise == "public" and loaded is None:  # loaded data are normalised already
        workload = normalised(workload)
    if own is not None:
        workload = replace(workload, train=own.read(workload))
    filled = fill(replace(settings, data_dir=None if data_dir is None else str(data_dir)), workload)
    check(filled, workload)
    if parts is None:
        progress(f"dealing rows to {filled.clients} clients")
        parts = _make_parts(filled, workload, own) if declared is None else []
    mean_size = mean(declared) if declared is not None else len(workload.train) / (len(parts) if own is None else 1)
    rate = filled.sample_rate if filled.batch_size is None else min(filled.batch_size / mean_size, 1.0)
    assert rate is not None, "without a batch size there is a rate: see FALLBACK"
    expected_batch = rate * mean_size if own is None or own.expected_batch is None else own.expected_batch
    method = build_method(filled)
    check_method(filled, method, deployed=deployed)
    passes = rate
    if unit_of(filled, method).whole:  # what follows from sizes would tell which clients there are
        assert filled.batch_size is not None, "a rule of unit=client wants one"
        expected_batch, passes = float(filled.batch_size), 1 / filled.local_steps  # an epoch is a round
    if filled.sampling == "shuffle":
        assert filled.batch_size is not None, "a rule of sampling=shuffle wants one"
        expected_batch, passes = float(filled.batch_size), 1 / batches_of_epoch(math.ceil(mean_size), filled.batch_size)
    schedule = Schedule(rounds=filled.rounds, local_steps=filled.local_steps, sample_rate=passes)
    local = _local_training(filled, method, rate, expected_batch, deployed=own is not None)
    whole = resolved(filled, method, local)
    for reason in idle(whole, method, given).values():
        raise ValueError(reason)
    return Base(
        settings=whole,
        workload=workload,
        parts=parts,
        method=method,
        schedule=schedule,
        local=local,
        declared=None if declared is None else tuple(declared),
    )


def _load(
    s: Settings, data_dir: Path | None, options: Options, progress: Progress, *, deployed: bool
) -> LoadedWorkload:
    """The run's data: the workload's own, its public part in a deployment, or public rows to train on."""
    if s.public_rows is None:
        return workloads.load(s.workload, data_dir=data_dir, options=options, progress=progress, public_only=deployed)
    return public_rows.load(s.workload, s.public_rows, data_dir=data_dir, options=options, progress=progress)


def _make_parts(s: Resolved, workload: LoadedWorkload, own: Own | None) -> Sequence[Tensor]:
    """Each client's rows of the training split; for a client with data of its own, its part alone."""
    if own is not None:
        return OwnPart(own.client, len(workload.train))
    if s.partition in SCHEMES:
        return partition(
            workload.train.labels, num_clients=s.clients, scheme=s.partition, seed=s.seed, alpha=s.alpha,
            shards_per_client=s.shards_per_client,
        )  # fmt: skip
    parts = natural_parts(workload, s.partition)
    if len(parts) != s.clients:
        raise ValueError(
            f"partition={s.partition} has {len(parts)} clients, and clients={s.clients}: leave clients out"
        )
    return parts


def _local_training(
    s: Resolved, method: Method, rate: float, expected_batch: float, *, deployed: bool
) -> LocalTraining:
    return LocalTraining(
        steps=s.local_steps,
        sample_rate=rate,
        learning_rate=method.server.learning_rate if s.local_learning_rate is None else s.local_learning_rate,
        momentum=s.local_momentum,
        expected_batch=expected_batch,
        microbatch_size=s.microbatch_size,
        multiplicity=s.multiplicity,
        precision=Precision(precision=s.precision, activation_storage=s.activation_storage),
        proximal=s.proximal or 0.0,
        shuffled=(s.batch_size or 0) if s.sampling == "shuffle" else 0,
        one_shape=deployed,  # the weights are the server's, which a deployed client does not trust
    )
