"""Weights of a run at the start of its rounds, and the carriers that can be made there, to compare them. All public.

A kind of carriers is one line of ``kinds``. Those of private data are for comparison only: no method may use them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.carriers.probe.eigen import top_eigenvectors
from fedlsg.carriers.probe.moments import Moments
from fedlsg.gradients import trainable
from fedlsg.lowrank import decompose, flatten_kernel, random_carriers
from fedlsg.randomness import public_generator
from simulations.inspection.subject import Subject
from simulations.rundir.files import load_array
from simulations.rundir.updates import round_folder

DECAY = 0.9
"""Of the moving average: M <- DECAY M + W_(t+1) - W_t."""

Weights = Mapping[str, Tensor]


def rounds_of(subject: Subject, given: str) -> list[int]:
    """Rounds from a list with commas: numbers, or "last" for the one that comes next; ascending.

    Raises ValueError for anything else, and for a round whose weights are not on record.
    """
    last = subject.state.round + 1
    words = [word.strip() for word in given.split(",")]
    if not all(word == "last" or word.isdecimal() for word in words):
        raise ValueError(f"expected --energy as last, or rounds such as 1,20,last; got {given!r}")
    found = sorted({last if word == "last" else int(word) for word in words})
    for round in found:
        weights_at(subject, round)
    return found


def weights_at(subject: Subject, round: int) -> Weights:
    """W_t of every trainable parameter at the start of a round, from 1; without a record of the first and the last.

    Raises ValueError for a round that is not on record.
    """
    if round == subject.state.round + 1:
        return subject.weights
    if round == 1:
        return subject.start
    path = None if subject.run is None else round_folder(subject.run, round) / "weights.npy"
    if path is None or not path.exists() or round > subject.state.round:
        raise ValueError(
            f"--energy {round}: the weights of round {round} are not on record. Use --energy 1,last; rounds between "
            f"them, up to {subject.state.round}, need a run with --record-updates"
        )
    try:
        flat = torch.from_numpy(load_array(path))
        shapes = {name: p.shape for name, p in trainable(subject.model).items()}
        parts = flat.split([shape.numel() for shape in shapes.values()])
        return {n: p.reshape(s).to(subject.weights[n]) for (n, s), p in zip(shapes.items(), parts, strict=True)}
    except (OSError, ValueError, EOFError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path}: cannot read the weights of round {round}: {error}") from None


def moving_averages(subject: Subject, rounds: Sequence[int]) -> dict[int, Weights | None]:
    """The moving average of all updates before each round; None for the first round, and without a record."""
    found: dict[int, Weights | None] = dict.fromkeys(rounds)
    total: dict[str, Tensor] = {}
    before = subject.start
    for round in range(2, max(rounds) + 1):
        try:
            now = weights_at(subject, round)
        except ValueError:
            return found
        total = {name: DECAY * total.get(name, 0.0) + W - before[name] for name, W in now.items()}
        before = now
        if round in found:
            found[round] = total
    return found


Pair = tuple[Float[Tensor, "m r"], Float[Tensor, "r n"]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Moment:
    """A model at the start of a round, by the names of its weights.

    change: W - W_0, None in the first round. average: moving average of the updates so far, None without a record.
    probed: second moments of the gradients of public inputs, by their source. private: those of training examples.
    """

    round: int
    weights: Mapping[str, Tensor]
    change: Mapping[str, Tensor] | None
    average: Mapping[str, Tensor] | None
    probed: Mapping[str, Mapping[str, Moments]]
    private: Mapping[str, Moments]
    seed: int
    power_steps: int


def draw(moment: Moment, name: str, rank: int) -> Pair:
    """Random orthonormal carriers."""
    generator = public_generator(moment.seed, "inspect energy", moment.round, name, rank)
    W = moment.weights[name]
    m, n = flatten_kernel(W).shape
    return random_carriers((m, n), rank, generator=generator, like=W)


def follow(moment: Moment, matrices: Mapping[str, Tensor] | None, name: str, rank: int) -> Pair | None:
    """Carriers of a matrix by the power method; None where there is none, or only zeros."""
    if matrices is None or not matrices[name].any():
        return None
    generator = public_generator(moment.seed, "inspect energy", moment.round, name, rank)
    return decompose(matrices[name], rank, generator=generator, power_steps=moment.power_steps)


def eigenvectors(moment: Moment, moments: Mapping[str, Moments], name: str, rank: int) -> Pair:
    """The top eigenvectors of second moments, as ``carriers.probe`` makes carriers."""
    generator = public_generator(moment.seed, "eigenvectors", moment.round, name)
    L, Rt = (top_eigenvectors(X, rank, generator=generator)[1] for X in (moments[name].B, moments[name].A))
    return L, Rt.mT


def kinds(moment: Moment) -> dict[str, Callable[[str, int], Pair | None]]:
    """Every kind of carriers, in the order of tables: from a weight's name and a rank to its carriers."""
    return {
        "random": partial(draw, moment),
        "W": partial(follow, moment, moment.weights),
        "W - W_0": partial(follow, moment, moment.change),
        "updates": partial(follow, moment, moment.average),
        **{PROBE + source: partial(eigenvectors, moment, moments) for source, moments in moment.probed.items()},
        PRIVATE: partial(eigenvectors, moment, moment.private),
    }


PROBE, PRIVATE = "probe: ", "private data"

MEANINGS = {
    "random": "nothing: random carriers (rgp-random)",
    "W": "the weight, by the power method (lsg)",
    "W - W_0": "the change of the weight, by the power method (rgp)",
    "updates": "the moving average of the released updates, by the power method; only of a run with --record-updates",
    PRIVATE: "the training examples themselves, used as a probe: no method may use them",
}


def meaning(kind: str) -> str:
    """What carriers of a kind are made from."""
    return MEANINGS.get(kind) or (
        "the top eigenvectors of second moments of the gradients of public inputs; labels are random in round 1, and "
        "drawn from the model later"
    )
