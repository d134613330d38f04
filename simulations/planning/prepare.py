"""Settings to a ``Base``: load the data, fill the gaps, make parts and method; and what each client
is in it.

A client has a weight in the sum, public test rows that are like its data, and its place in the
balance of a partition. A weight is a public constant made of declared sizes and rates, never of
realised ones.

Symbols: N_k declared examples, q_k Poisson rate, B = q mean(N) the expected batch that the server
    divides by
    default     1               a client counts by its expected batch q_k N_k: by its examples under
                one sample_rate,
                                like any other under one batch_size
    examples    B / (q_k mean(N))     by its examples N_k, whatever its rate
    clients     B / (q_k N_k)         like any other, whatever its size
The server multiplies values that have their noise already: it is post-processing, and no epsilon
changes.

A balance is for simulations only: the counts come from every client's examples. In a federation
each client knows only its own counts, and they are as private as the examples are.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from statistics import fmean as mean
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg import strategies
from fedlsg.carriers import find_classifier
from fedlsg.carriers.personal import personal_names
from fedlsg.config.choices import did_you_mean
from fedlsg.config.isolation import CHECKED
from fedlsg.config.partitions import SCHEMES
from fedlsg.config.units import EXAMPLE, UNITS
from fedlsg.gradients import Precision
from fedlsg.method import LocalTraining, Method, Schedule
from fedlsg.payload import keeps_memory
from fedlsg.privacy.sampling import batches_of_epoch
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.memory import MOST_ON_CPU
from fedlsg.simulations.planning.run_base import Base, Own, OwnPart
from fedlsg.simulations.planning.start_weights import with_digest
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.settings.own_epsilons import (
    BELOW,
    has_deltas,
    numbered,
    read_own,
    text_of,
)
from fedlsg.simulations.settings.participation import unit_of
from fedlsg.simulations.settings.published import from_run_config
from fedlsg.simulations.settings.resolve import build_method, fill, resolved
from fedlsg.simulations.settings.rule_checker import check, check_given, check_method, idle
from fedlsg.simulations.settings.settings import AUTO, Settings, as_config
from fedlsg.simulations.workloads import LoadedWorkload, Options, Progress, public_rows, silent
from fedlsg.simulations.workloads.base import normalised
from fedlsg.simulations.workloads.base.made_ahead import workers_of
from fedlsg.simulations.workloads.base.parts import Parts
from fedlsg.simulations.workloads.base.split import NoRows
from fedlsg.simulations.workloads.partition import (
    check_together,
    client_parts,
    deal_persons,
    dealing,
    matching_parts,
    partition,
    parts_by_value,
)
from fedlsg.training.persons import numbers_of


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
    """Load the data, fill the gaps of the settings, build the method. ``progress`` reports slow
    steps.

    ``loaded``: the data, where they were loaded for settings of the same ``data_key``; ``parts``:
    of them, where this process has them. In a deployment only the public part of the workload is
    loaded: the server gives the N_k that its clients ``declared``, a client gives its ``own``
    training rows. ``given``: settings that a user gave for this run: one of them that has no effect
    is refused.
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
        read = own.read(workload)
        workload = replace(workload, train=read, columns=read.columns)
    filled = fill(replace(settings, data_dir=None if data_dir is None else str(data_dir)), workload)
    check(filled, workload)
    if not isinstance(workload.train, NoRows):
        workers_of(filled, workload.train.inputs)
    method = build_method(filled)
    person = None if declared is not None else _persons_of(workload, filled, method)
    if parts is None:
        progress(f"dealing rows to {filled.clients} clients")
        parts = _make_parts(filled, workload, own, person) if declared is None else []
    if own is None and declared is None:
        filled = _with_own_budgets(filled, workload, parts, given=settings)
    if declared is not None:
        mean_size = mean(declared)
    elif own is not None:
        mean_size = len(workload.train) if person is None else int(person.max()) + 1
    else:
        mean_size = _units_in(parts, person) / len(parts)
    rate = (
        filled.sample_rate if filled.batch_size is None else min(filled.batch_size / mean_size, 1.0)
    )
    assert rate is not None, "without a batch size there is a rate: see FALLBACK"
    expected_batch = (
        rate * mean_size if own is None or own.expected_batch is None else own.expected_batch
    )
    check_method(filled, method, deployed=deployed)
    passes = rate
    if unit_of(filled, method).whole:  # what follows from sizes would tell which clients there are
        assert filled.batch_size is not None, "a rule of unit=client wants one"
        # an epoch is a round
        expected_batch, passes = float(filled.batch_size), 1 / filled.local_steps
    if filled.sampling == "shuffle":
        assert filled.batch_size is not None, "a rule of sampling=shuffle wants one"
        expected_batch, passes = (
            float(filled.batch_size),
            1 / batches_of_epoch(math.ceil(mean_size), filled.batch_size),
        )
    schedule = Schedule(rounds=filled.rounds, local_steps=filled.local_steps, sample_rate=passes)
    local = _local_training(filled, method, rate, expected_batch, deployed=own is not None)
    last = method.server.factor(filled.rounds - 1, filled.rounds)
    # raises where local steps of the last round would diverge: a schedule may rise
    replace(local, learning_rate=local.learning_rate * last)
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
        person=person,
    )


def data_key(settings: Settings) -> tuple[str, ...]:
    """The settings that decide what data are loaded: where they are equal, the data are the
    same.
    """
    names = [*(f.name for f in fields(Options)), "workload", "data_dir", "public_rows", "normalise"]
    if settings.reproducible and workloads.own(settings.workload) is not None:
        names += ["seed"]  # of the draws of its rows
    return tuple(str(getattr(settings, name)) for name in names)


def _load(
    s: Settings, data_dir: Path | None, options: Options, progress: Progress, *, deployed: bool
) -> LoadedWorkload:
    """The run's data: the workload's own, its public part in a deployment, or public rows to train
    on.
    """
    if s.public_rows is None:
        return workloads.load(
            s.workload,
            data_dir=data_dir,
            options=options,
            progress=progress,
            public_only=deployed,
            seed=s.seed if s.reproducible else None,
        )
    return public_rows.load(
        s.workload, s.public_rows, data_dir=data_dir, options=options, progress=progress
    )


def _persons_of(
    workload: LoadedWorkload, s: Resolved, method: Method
) -> Int64[Tensor, " rows"] | None:
    """The number of each training row's person; None where the unit is none.

    Raises ValueError where no column of the data has the unit's name, or its values do not say
    whose a row is, and for another unit than the data were declared with.
    """
    unit = unit_of(s, method)
    if workload.unit and method.mechanism.private and unit.name == EXAMPLE.name:
        raise ValueError(
            f"workload {workload.name} says whose its rows are: give unit={workload.unit}, or "
            "leave unit= out of the Workload"
        )
    if not unit.persons:
        return None
    if unit.name not in workload.columns:
        columns = {name: None for name in workload.columns}
        near = did_you_mean(unit.name, [*UNITS, *columns])
        raise ValueError(
            f"unit={unit.name}: expected {', '.join(UNITS)}, or the column of the training data "
            f"that says whose each row is, which must be no input of the model (name it in "
            f"fedlsg.Workload(unit=...)); {workload.name} has "
            f"{', '.join(columns) or 'no such columns'}{near}"
        )
    return numbers_of(workload.columns[unit.name], f"unit={unit.name}")


def _make_parts(
    s: Resolved, workload: LoadedWorkload, own: Own | None, person: Int64[Tensor, " rows"] | None
) -> Sequence[Tensor]:
    """Each client's rows of the training split; for a client with data of its own, its part
    alone. Persons are never split over clients.
    """
    if own is not None:
        return OwnPart(own.client, len(workload.train))
    if person is not None and s.partition == "iid":
        return deal_persons(person, num_clients=s.clients, seed=s.seed)
    parts = _row_parts(s, workload)
    if person is not None:
        check_together(person, parts, s.unit)
    return parts


def _units_in(parts: Sequence[Tensor], person: Int64[Tensor, " rows"] | None) -> int:
    """Examples, or persons, that clients hold; rows of nobody are none."""
    if person is None:
        return sum(parts.sizes if isinstance(parts, Parts) else map(len, parts))
    return int(person[torch.cat([part for part in parts])].unique().numel())


def _row_parts(s: Resolved, workload: LoadedWorkload) -> Parts:
    if s.partition in SCHEMES:
        return partition(
            workload.train.labels,
            num_clients=s.clients,
            scheme=s.partition,
            seed=s.seed,
            alpha=s.alpha,
            shards_per_client=s.shards_per_client,
        )
    return client_parts(workload, s.partition, s.clients)


def _with_own_budgets(
    s: Resolved, workload: LoadedWorkload, parts: Sequence[Tensor], *, given: Settings
) -> Resolved:
    """The settings with the epsilons and deltas of clients by number; ``given``: what a user gave,
    also for those that are not named. What the run says for all is the largest, where it is free.
    """
    s, names = with_deltas_of_file(s, workload.columns), getattr(parts, "names", None)
    if s.client_epsilons is not None:
        own = read_own(s.client_epsilons, names, parts, workload.columns)
        missing = [client for client in range(len(parts)) if client not in own]
        if missing and given.epsilon is None:
            raise ValueError(
                f"client_epsilons gives no epsilon to {len(missing):,} of {len(parts):,} clients, "
                f"such as {missing[0] if names is None else names[missing[0]]!r}: name all of "
                "them, or give epsilon= for the others"
            )
        most = max(own.values()) if given.epsilon is None else given.epsilon
        s = replace(s, epsilon=most, client_epsilons=text_of(own))
    if s.client_deltas is not None:
        own = read_own(s.client_deltas, names, parts, workload.columns, "delta")
        all_named = given.delta is None and len(own) == len(parts)
        s = replace(
            s, delta=max(own.values()) if all_named else s.delta, client_deltas=text_of(own)
        )
    return s


def with_deltas_of_file(s: Resolved, columns: Collection[str]) -> Resolved:
    """The settings with the deltas of a file of ``client_epsilons`` that has them."""
    text = s.client_epsilons
    if text is None or s.client_deltas is not None or not has_deltas(text, columns):
        return s
    return replace(s, client_deltas=text)


def check_same_budgets(base: Base, given: Mapping[str, Any]) -> None:
    """Raise ValueError if a resumed run is given other epsilons or deltas of clients than it began
    with.
    """
    names = getattr(base.parts, "names", None)
    for what in BELOW:
        if (text := given.get(setting := f"client_{what}s")) is None:
            continue
        own = read_own(text, names, base.parts, base.workload.columns, what)
        began = getattr(base.settings, setting) or ""
        if own != numbered(began, what):
            raise ValueError(
                f"resume continues the run as it began: give {setting}={began!r} (not {text!r})"
            )


def _local_training(
    s: Resolved, method: Method, rate: float, expected_batch: float, *, deployed: bool
) -> LocalTraining:
    return LocalTraining(
        steps=s.local_steps,
        sample_rate=rate,
        learning_rate=method.server.learning_rate
        if s.local_learning_rate is None
        else s.local_learning_rate,
        momentum=s.local_momentum,
        expected_batch=expected_batch,
        microbatch_size=s.microbatch_size or MOST_ON_CPU,
        multiplicity=s.multiplicity,
        precision=Precision(precision=s.precision, activation_storage=s.activation_storage),
        proximal=s.proximal or 0.0,
        shuffled=(s.batch_size or 0) if s.sampling == "shuffle" else 0,
        isolation=CHECKED if s.isolation == "auto" else s.isolation,
        one_shape=deployed,  # the weights are the server's, which a deployed client does not trust
    )


SAME = 1e-9


def client_weights(base: Base) -> dict[int, float]:
    """The factor of the values of clients, by their declared size.

    Raises ValueError where the server sees a sum alone and factors are not 1.
    """
    s, sizes = base.settings, dict.fromkeys(base.sizes)
    weighting = s.weighting
    if weighting is None and s.trust == "client" and base.method.mechanism.is_plain:
        weighting = "examples"  # FedAvg
    if weighting is None:
        return dict.fromkeys(sizes, 1.0)
    mean, batch = fmean(base.sizes), base.local.expected_batch
    exact = {
        size: batch / (base.rate_of(size) * (mean if weighting == "examples" else size))
        for size in sizes
    }
    found = {
        size: 1.0 if math.isclose(weight, 1.0, rel_tol=SAME) else weight
        for size, weight in exact.items()
    }
    if s.trust != "client" and any(weight != 1 for weight in found.values()):
        least, most = min(found.values()), max(found.values())
        raise ValueError(
            f"weighting={s.weighting} multiplies each client's values, from {least:.3g} to "
            f"{most:.3g} here, and under trust={s.trust} the server sees their sum alone: leave "
            "weighting out, or take trust=client"
        )
    return found


def parts_of_test(base: Base) -> Sequence[Int64[Tensor, " n"]]:
    """Rows of the test split for each client; the first test split where there are several.

    By the partition's own column, or like the clients' data by the scheme that made them. Raises
    ValueError where test has no such column, or no row of any client.
    """
    s, workload = base.settings, base.workload
    if s.partition not in SCHEMES:
        return _parts_by_column(workload, s.partition, s.clients)
    return matching_parts(
        base.workload.test.labels,
        base.workload.train.labels,
        num_clients=s.clients,
        scheme=s.partition,
        seed=s.seed,
        alpha=s.alpha,
        shards_per_client=s.shards_per_client,
    )


def check_clients(base: Base) -> None:
    """Raise ValueError where clients have no names to show, or the test split no parts for them."""
    s = base.settings
    if s.show_names and base.names is None:
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


def dealt(base: Base) -> str:
    """How values of a column were dealt to clients, in words; empty where they were not."""
    column = base.settings.partition
    if column in SCHEMES or not isinstance(base.parts, Parts):
        return ""
    return dealing(base.workload, column, base.parts)


def _parts_by_column(workload: LoadedWorkload, column: str, clients: int) -> Parts:
    """Rows of the test split for each client by a column, -1 where no client has the value."""
    if column not in workload.test_columns:
        found = ", ".join(workload.test_columns) or "none but inputs and targets"
        raise ValueError(
            f"partition={column} makes the clients, and test has no column {column!r} (it has: "
            f"{found}): give test that column, or leave the setting out"
        )
    parts = parts_by_value(workload, column, clients, workload.test_columns[column])
    if not sum(parts.sizes):
        raise ValueError(
            f"no test row has a {column} that a client has: give test rows of the clients, or "
            "leave the setting out"
        )
    return parts


def check_personal(base: Base, names: Iterable[str], carried: Collection[str]) -> None:
    """Raise ValueError for personal parameters that are none of the model's, or would travel in
    carriers.
    """
    if not base.method.personal:
        return
    workload = base.workload
    found = personal_names(
        names, base.method.personal, find_classifier(base.build_model(), workload.classifier)
    )
    if inside := [name for name in found if name in carried]:
        raise ValueError(
            f"personal={base.method.personal!r} names {', '.join(inside)}, which method "
            f"{base.method.name!r} trains in carriers: name parameters that stay dense, such as "
            "the classifier, or take dpsgd"
        )
    if keeps_memory(base.method, base.codec):
        raise ValueError(
            f"codec {base.codec.name!r} without noise needs error feedback, and personal= has none"
        )
    if workload.metrics or len(workload.tests) > 1:
        raise ValueError(
            "personal parameters are evaluated by accuracy on one test split: leave metrics out"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Balance:
    """Examples of every client by class, and its Poisson rate.

    counts: (clients, classes) int64, rows; every client has one.
    sizes: (clients,) int64, N_k: of ``counted``, which are rows, or persons where they are the
    unit.
    rates: (clients,) float64, q of each client.
    expected_batch: q times the mean size; the server divides by it.
    delta: None if the method claims no epsilon. deltas: of each client, where they have their own.
    names: what the data call the clients, if they do. classes: the same of the classes. dealt: how
    values were dealt to them.
    """

    title: str
    counts: np.ndarray
    sizes: np.ndarray
    rates: np.ndarray
    expected_batch: float
    delta: float | None
    deltas: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    classes: tuple[str, ...] = ()
    dealt: str = ""
    counted: str = "examples"

    @property
    def batches(self) -> np.ndarray:
        """What a step of every client expects to draw, q N_k."""
        return np.asarray(self.rates * self.sizes)

    @property
    def shares(self) -> np.ndarray:
        """(clients, classes): the class mix of every client; rows add up to 1."""
        return np.asarray(self.counts / self.counts.sum(1, keepdims=True))

    @property
    def distances(self) -> np.ndarray:
        """Total variation distance of each class mix from that of all examples: 0 equal, near 1
        disjoint.
        """
        overall = self.counts.sum(0) / self.counts.sum()
        return np.asarray(0.5 * np.abs(self.shares - overall).sum(1))

    @property
    def delta_holds(self) -> np.ndarray:
        """Whether delta < 1/N_k for each client; true if no delta is needed."""
        deltas = self.delta if self.deltas is None else self.deltas
        return np.ones(len(self.sizes), bool) if deltas is None else deltas < 1 / self.sizes


def measure(base: Base) -> Balance:
    """The balance of a prepared run."""
    s, labels = base.settings, base.workload.train.labels
    classes = base.workload.num_classes
    if classes is None:  # one column: the sizes alone
        labels, classes = torch.zeros(len(labels), dtype=torch.int64), 1
    counts = torch.stack([torch.bincount(labels[part], minlength=classes) for part in base.parts])
    sizes = np.array(base.sizes)
    of = {"dirichlet": f" (alpha {s.alpha:g})", "shards": f" ({s.shards_per_client} a client)"}
    return Balance(
        title=f"{s.workload}: {sizes.sum():,} {base.unit.counted} over {len(sizes)} clients, "
        f"{s.partition}{of.get(s.partition, '')}, seed {s.seed}",
        counts=counts.numpy(),
        sizes=sizes,
        counted=base.unit.counted,
        rates=np.array(base.rates),
        expected_batch=base.local.expected_batch,
        delta=s.delta if base.method.mechanism.private else None,
        deltas=np.array([delta for _, delta in base.budgets])
        if s.client_deltas is not None
        else None,
        names=base.names,
        classes=tuple(base.workload.data.get("classes", ())),
        dealt=dealt(base),
    )
