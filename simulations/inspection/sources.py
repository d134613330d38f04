"""What carriers can be made from, to compare how much of the private gradient they hold.

A kind of carriers is one line of ``kinds``. Those of private data are for comparison only: no method may use them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from jaxtyping import Float
from torch import Tensor

from fedlsg.carriers.probe.eigen import top_eigenvectors
from fedlsg.carriers.probe.moments import Moments
from fedlsg.lowrank import decompose, flatten_kernel, random_carriers
from fedlsg.randomness import public_generator

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
