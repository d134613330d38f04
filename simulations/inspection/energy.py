"""Gradient energy kept: how much of the mean private gradient lies in carriers, by kind, layer and round.

Symbols: dW (m, n) the mean gradient of a weight over training examples, neither clipped nor noisy; P the projection of
carriers of rank r: Eq. 3 in the form tangent, onto span(L) x span(R) in the form core. Energy kept: |P dW|^2 / |dW|^2.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from jaxtyping import Int64
from torch import Tensor

from fedlsg.carriers import RandomCarriers, carried_parameters
from fedlsg.carriers.probe.carrier import ProbeSource
from fedlsg.carriers.probe.moments import Moments, second_moments
from fedlsg.carriers.statistics import residual
from fedlsg.forms import CORE, TANGENT, FormName
from fedlsg.randomness import public_generator
from simulations.inspection.kinds import Moment, kinds, meaning, moving_averages, weights_at
from simulations.inspection.subject import Subject, batch_gradient
from simulations.workloads.public_data import probe_source

FORMS = (TANGENT, CORE)
"""Forms that leave something out of dW."""
PROBES = 1000
"""Public inputs of a probe."""
RANK = 8
"""Rank of the carriers if the method itself has none."""


@dataclass(frozen=True, kw_only=True)
class KeptRow:
    """Share of the mean gradient's energy in the carriers of one layer; NaN where there are none of this kind.

    squared_norm: |dW|^2.
    """

    round: int
    layer: str
    carriers: str
    form: FormName
    rank: int
    energy: float
    squared_norm: float


def kept_rows(
    subject: Subject, rows: Int64[Tensor, " n"], rounds: Sequence[int], ranks: Sequence[int] | None
) -> list[KeptRow]:
    """Energies at the start of each round, of every layer that the rank carries. ``ranks`` None: the method's own.

    Raises ValueError for a round that is not on record, or a rank that carries no layer.
    """
    own = subject.base.method.carrier.rank or RANK
    wanted = {rank: carried(subject, rank) for rank in ranks or [own]}
    sources = probes_of(subject)
    averages = moving_averages(subject, rounds)
    layers = sorted({name for names in wanted.values() for name in names})
    found: list[KeptRow] = []
    for round in rounds:
        weights = {name: W.clone() for name, W in weights_at(subject, round).items()}
        with subject.at(weights):
            gradients = batch_gradient(subject, rows)
            private = private_moments(subject, rows, layers)
            probed = {source.name: probe_moments(subject, source, round, layers) for source in sources}
        moment = Moment(
            round=round,
            weights=weights,
            change=None if round == 1 else {name: W - subject.start[name] for name, W in weights.items()},
            average=averages[round],
            probed=probed,
            private=private,
            seed=subject.state.seed,
            power_steps=subject.base.method.carrier.power_steps,
        )
        for rank, names in wanted.items():
            found += [row for name in names for row in layer_rows(moment, name, rank, gradients[name])]
    return found


def carried(subject: Subject, rank: int) -> tuple[str, ...]:
    """Weights that low-rank carriers of this rank would carry."""
    carrier = RandomCarriers(rank=rank)
    return carried_parameters(subject.model, carrier, classifier=subject.state.public.classifier)


def private_moments(subject: Subject, rows: Int64[Tensor, " n"], names: Sequence[str]) -> dict[str, Moments]:
    """Second moments of the examples' normalised gradients. NOT PRIVATE."""
    found: dict[str, Moments] = {}
    size = max(1, subject.base.local.microbatch_size // subject.copies)
    with subject.same_dropout():
        for inputs, targets in subject.batches(rows, size):
            part = second_moments(subject.model, subject.base.workload.loss, inputs, targets, names)
            for name, (A, B) in part.items():
                found[name] = Moments(A + found[name].A, B + found[name].B) if name in found else Moments(A, B)
    return found


def probes_of(subject: Subject) -> list[ProbeSource]:
    """The workload's own synthetic inputs, and what the method itself probes with."""
    base, own = subject.base, subject.base.method.carrier
    found = [probe_source(base.workload, name) for name in base.workload.synthetic]
    given = own.source is not None and own.source not in ("auto", *base.workload.synthetic)
    return [*found, base.probe_source] if given else found


def probe_moments(subject: Subject, source: ProbeSource, round: int, names: Sequence[str]) -> dict[str, Moments]:
    """Second moments of the probes' normalised gradients at the weights of now, as ``probe_basis`` makes them."""
    model, generator = deepcopy(subject.model).eval(), public_generator(subject.state.seed, "probe", round)
    inputs, targets = source.batch(model, PROBES, trained=round > 1, generator=generator)
    return second_moments(model, source.loss, inputs, targets, names)


def layer_rows(moment: Moment, name: str, rank: int, dW: Tensor) -> Iterator[KeptRow]:
    """The rows of one layer at one rank."""
    squared = float(dW.double().square().sum())
    for kind, make in kinds(moment).items():
        pair = make(name, rank)
        for form in FORMS:
            energy = math.nan if pair is None else 1 - residual(dW, *pair, form) ** 2
            yield KeptRow(
                round=moment.round,
                layer=name,
                carriers=kind,
                form=form.name,
                rank=rank,
                energy=energy,
                squared_norm=squared,
            )


def whole(rows: Sequence[KeptRow]) -> dict[tuple[int, str, FormName, int], float]:
    """Energy kept of all layers together by (round, carriers, form, rank): the mean weighted by |dW|^2."""
    groups: dict[tuple[int, str, FormName, int], list[KeptRow]] = {}
    for row in rows:
        groups.setdefault((row.round, row.carriers, row.form, row.rank), []).append(row)
    return {key: _mean(own) for key, own in groups.items()}


def _mean(rows: Sequence[KeptRow]) -> float:
    total = sum(row.squared_norm for row in rows)
    return sum(row.energy * row.squared_norm for row in rows) / total if total else math.nan


def kinds_of(rows: Sequence[KeptRow]) -> list[str]:
    """The kinds of carriers that were made at least once, in their order."""
    made = {row.carriers for row in rows if not math.isnan(row.energy)}
    return [kind for kind in dict.fromkeys(row.carriers for row in rows) if kind in made]


def meanings(rows: Sequence[KeptRow]) -> Mapping[str, str]:
    """What the kinds of carriers are made from."""
    return {kind: meaning(kind) for kind in kinds_of(rows)}
