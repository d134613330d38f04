"""Energy kept: the share of the mean private gradient in carriers, by kind, layer and round.

Symbols: dW (m, n) the mean gradient of a weight over training examples, neither clipped nor noisy;
P the projection of carriers of rank r: Eq. 3 in the form tangent, onto span(L) x span(R) in the
form core. Energy kept: |P dW|^2 / |dW|^2.

A kind of carriers is one line of ``Moment.kinds``. Carriers of private data are for comparison
only: no method may use them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.carriers import RandomCarriers, carried_parameters
from fedlsg.carriers.probe.carrier import ProbeSource
from fedlsg.carriers.probe.eigen import top_eigenvectors
from fedlsg.carriers.probe.moments import Moments, second_moments
from fedlsg.carriers.statistics import residual
from fedlsg.frame.forms import CORE, TANGENT, FormName
from fedlsg.gradients import trainable
from fedlsg.lowrank import decompose, flatten_kernel, random_carriers
from fedlsg.randomness import public_generator
from fedlsg.simulations.inspection import Rows, Subject, Weights, batch_gradient
from fedlsg.simulations.storage.atomic_files import load_array
from fedlsg.simulations.storage.updates import round_folder
from fedlsg.simulations.workloads.public_data import probe_source

DECAY = 0.9
"""Decay of the moving average M of updates: M <- DECAY M + W_(t+1) - W_t."""


def rounds_of(subject: Subject, given: str) -> list[int]:
    """Rounds from a list with commas, ascending: numbers, or "last" for the next round.

    Raises ValueError for anything else, and for a round whose weights are not on record.
    """
    last = subject.state.round + 1
    words = [word.strip() for word in given.split(",")]
    if not all(word == "last" or word.isdecimal() for word in words):
        raise ValueError(f"expected --energy as last, or rounds such as 1,20,last; got {given!r}")
    rounds = sorted({last if word == "last" else int(word) for word in words})
    for round in rounds:
        weights_at(subject, round)
    return rounds


def weights_at(subject: Subject, round: int) -> Weights:
    """W_t of every trainable parameter at the start of a round; the first round is 1.

    The first and the next round need no record. Raises ValueError for another round that is not on
    record.
    """
    if round == subject.state.round + 1:
        return subject.weights
    if round == 1:
        return subject.start
    path = None if subject.run is None else round_folder(subject.run, round) / "weights.npy"
    if path is None or not path.exists() or round > subject.state.round:
        raise ValueError(
            f"--energy {round}: the weights of round {round} are not on record. Use --energy "
            f"1,last; rounds between them, up to {subject.state.round}, need a run with "
            "--record-updates"
        )
    try:
        flat = torch.from_numpy(load_array(path))
        parameters = trainable(subject.model)
        parts = flat.split([parameter.numel() for parameter in parameters.values()])
        return {
            name: part.reshape(parameter.shape).to(subject.weights[name])
            for (name, parameter), part in zip(parameters.items(), parts, strict=True)
        }
    except (OSError, ValueError, EOFError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path}: cannot read the weights of round {round}: {error}") from None


def moving_averages(subject: Subject, rounds: Sequence[int]) -> dict[int, Weights | None]:
    """The moving average M of all updates before each round.

    None for the first round, and from the first round on that is not on record.
    """
    averages: dict[int, Weights | None] = dict.fromkeys(rounds)
    average: dict[str, Tensor] = {}
    before = subject.start
    for round in range(2, max(rounds) + 1):
        try:
            now = weights_at(subject, round)
        except ValueError:
            return averages
        average = {
            name: DECAY * average.get(name, 0.0) + W - before[name] for name, W in now.items()
        }
        before = now
        if round in averages:
            averages[round] = average
    return averages


Pair = tuple[Float[Tensor, "m r"], Float[Tensor, "r n"]]
"""L and R."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Moment:
    """The sources of all kinds of carriers at the start of a round, by the names of weights.

    round: its number.
    weights: W.
    change: W - W_0; None in the first round.
    average: moving average of the updates so far; None without a record.
    probed: second moments of the gradients of public inputs, by source.
    private: second moments of the gradients of training examples. NOT PRIVATE.
    seed: the public seed.
    power_steps: of the power method.
    """

    round: int
    weights: Weights
    change: Weights | None
    average: Weights | None
    probed: Mapping[str, Mapping[str, Moments]]
    private: Mapping[str, Moments]
    seed: int
    power_steps: int

    def draw(self, name: str, rank: int) -> Pair:
        """Random orthonormal carriers."""
        W = self.weights[name]
        m, n = flatten_kernel(W).shape
        return random_carriers((m, n), rank, generator=self._generator(name, rank), like=W)

    def follow(self, matrices: Weights | None, name: str, rank: int) -> Pair | None:
        """Carriers of a matrix by the power method; None without a matrix, or for a zero one."""
        if matrices is None or not matrices[name].any():
            return None
        generator = self._generator(name, rank)
        return decompose(matrices[name], rank, generator=generator, power_steps=self.power_steps)

    def eigenvectors(self, moments: Mapping[str, Moments], name: str, rank: int) -> Pair:
        """The top eigenvectors of second moments, as ``carriers.probe`` makes carriers."""
        generator = public_generator(self.seed, "eigenvectors", self.round, name)
        _, L = top_eigenvectors(moments[name].B, rank, generator=generator)
        _, Rt = top_eigenvectors(moments[name].A, rank, generator=generator)
        return L, Rt.mT

    def _generator(self, name: str, rank: int) -> torch.Generator:
        return public_generator(self.seed, "inspect energy", self.round, name, rank)

    def kinds(self) -> dict[str, Callable[[str, int], Pair | None]]:
        """By kind, in the order of tables: from a weight's name and a rank to carriers."""
        return {
            "random": self.draw,
            "W": partial(self.follow, self.weights),
            "W - W_0": partial(self.follow, self.change),
            "updates": partial(self.follow, self.average),
            **{
                PROBE_PREFIX + source: partial(self.eigenvectors, moments)
                for source, moments in self.probed.items()
            },
            PRIVATE: partial(self.eigenvectors, self.private),
        }


PROBE_PREFIX = "probe: "
"""How kinds of carriers of a probe begin; the name of the source follows."""
PRIVATE = "private data"
"""The kind of carriers of training examples."""

MEANINGS = {
    "random": "nothing: random carriers (rgp-random)",
    "W": "the weight, by the power method (lsg)",
    "W - W_0": "the change of the weight, by the power method (rgp)",
    "updates": "the moving average of the released updates, by the power method; only of a run "
    "with --record-updates",
    PRIVATE: "the training examples themselves, used as a probe: no method may use them",
}
"""By kind of carriers, what they are made from."""
PROBE_MEANING = (
    "the top eigenvectors of second moments of the gradients of public inputs; labels are random "
    "in round 1, and drawn from the model later"
)
"""The same for all kinds of a probe."""


LOSSY_FORMS = (TANGENT, CORE)
"""Forms of carriers that lose a part of dW."""
PROBE_INPUTS = 1000
"""Public inputs of a probe."""
DEFAULT_RANK = 8
"""Rank of the carriers if the method itself has none."""


@dataclass(frozen=True, kw_only=True)
class KeptRow:
    """The energy kept by carriers of one kind in one layer.

    round: at whose start.
    layer: name of the weight.
    carriers: their kind.
    form: of the projection.
    rank: of the carriers.
    energy: |P dW|^2 / |dW|^2; NaN without carriers of this kind.
    squared_norm: |dW|^2.
    """

    round: int
    layer: str
    carriers: str
    form: FormName
    rank: int
    energy: float
    squared_norm: float


KeptRows = Sequence[KeptRow]
"""Rows of all layers, kinds, forms, ranks and rounds."""


def kept_rows(
    subject: Subject, rows: Rows, rounds: Sequence[int], ranks: Sequence[int] | None
) -> list[KeptRow]:
    """Energies at the start of each round, of every layer that carriers of the rank have.

    ranks: None: that of the method.

    Raises ValueError for a round that is not on record, or a rank that carries no layer.
    """
    own_rank = subject.base.method.carrier.rank or DEFAULT_RANK
    layers_of_rank = {rank: carried(subject, rank) for rank in ranks or [own_rank]}
    sources = probes_of(subject)
    averages = moving_averages(subject, rounds)
    layers = sorted({name for names in layers_of_rank.values() for name in names})
    energies: list[KeptRow] = []
    for round in rounds:
        weights = {name: W.clone() for name, W in weights_at(subject, round).items()}
        with subject.at(weights):
            gradients = batch_gradient(subject, rows)
            private = private_moments(subject, rows, layers)
            probed = {
                source.name: probe_moments(subject, source, round, layers) for source in sources
            }
        change = None
        if round > 1:
            change = {name: W - subject.start[name] for name, W in weights.items()}
        moment = Moment(
            round=round,
            weights=weights,
            change=change,
            average=averages[round],
            probed=probed,
            private=private,
            seed=subject.state.seed,
            power_steps=subject.base.method.carrier.power_steps,
        )
        for rank, names in layers_of_rank.items():
            for name in names:
                energies += layer_rows(moment, name, rank, gradients[name])
    return energies


def carried(subject: Subject, rank: int) -> tuple[str, ...]:
    """Weights that low-rank carriers of this rank would carry."""
    carrier = RandomCarriers(rank=rank)
    return carried_parameters(subject.model, carrier, classifier=subject.state.public.classifier)


def private_moments(subject: Subject, rows: Rows, names: Sequence[str]) -> dict[str, Moments]:
    """Second moments of the examples' normalised gradients. NOT PRIVATE."""
    moments: dict[str, Moments] = {}
    for inputs, targets in subject.batches(rows):
        part = second_moments(subject.model, subject.base.workload.loss, inputs, targets, names)
        for name, (A, B) in part.items():
            if name in moments:
                A, B = A + moments[name].A, B + moments[name].B
            moments[name] = Moments(A, B)
    return moments


def probes_of(subject: Subject) -> list[ProbeSource]:
    """Sources of probes: the workload's synthetic inputs, and that of the method."""
    base, source = subject.base, subject.base.method.carrier.source
    sources = [probe_source(base.workload, name) for name in base.workload.synthetic]
    if source is not None and source not in ("auto", *base.workload.synthetic):
        sources.append(base.initial.probe_source)
    return sources


def probe_moments(
    subject: Subject, source: ProbeSource, round: int, names: Sequence[str]
) -> dict[str, Moments]:
    """Second moments of a probe's normalised gradients at the present weights."""
    model = deepcopy(subject.model).eval()
    generator = public_generator(subject.state.seed, "probe", round)
    inputs, targets = source.batch(model, PROBE_INPUTS, trained=round > 1, generator=generator)
    return second_moments(model, source.loss, inputs, targets, names)


def layer_rows(moment: Moment, name: str, rank: int, dW: Tensor) -> Iterator[KeptRow]:
    """The rows of one layer at one rank."""
    squared = float(dW.double().square().sum())
    for kind, make in moment.kinds().items():
        pair = make(name, rank)
        for form in LOSSY_FORMS:
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


def whole(rows: KeptRows) -> dict[tuple[int, str, FormName, int], float]:
    """Energy kept of all layers by (round, carriers, form, rank): the mean weighted by |dW|^2."""
    groups: dict[tuple[int, str, FormName, int], list[KeptRow]] = {}
    for row in rows:
        groups.setdefault((row.round, row.carriers, row.form, row.rank), []).append(row)
    return {key: _mean(of_key) for key, of_key in groups.items()}


def _mean(rows: KeptRows) -> float:
    total = sum(row.squared_norm for row in rows)
    return sum(row.energy * row.squared_norm for row in rows) / total if total else math.nan


def kinds_of(rows: KeptRows) -> list[str]:
    """The kinds of carriers with at least one energy, in the order of the rows."""
    kinds = {row.carriers for row in rows if not math.isnan(row.energy)}
    return [kind for kind in dict.fromkeys(row.carriers for row in rows) if kind in kinds]


def meanings(rows: KeptRows) -> Mapping[str, str]:
    """By kind of carriers in the rows, what they are made from."""
    return {kind: MEANINGS.get(kind, PROBE_MEANING) for kind in kinds_of(rows)}
