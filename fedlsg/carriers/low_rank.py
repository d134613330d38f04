"""Four basic carriers, made from public values alone.

    Dense           none: every trained parameter's gradient is sent as it is
    LowRank         the top directions of the weight W
    LowRankChange   the top directions of its change W - W_0
    RandomCarriers  random ones, new in each round

Symbols: W (m, n) public weight of the round, W_0 the same at the start, L (m, r), R (r, n) carriers
with orthonormal columns and rows, r rank. The gradients dL and dR are sent (LSG and RGP).
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from fedlsg.carriers.base import (
    Carrier,
    PowerSteps,
    Rank,
    carried_parameters,
    check_carrier,
    of_pairs,
)
from fedlsg.carriers.own_carriers import OwnCarriers, unit_vectors
from fedlsg.config import Setting
from fedlsg.frame import Coordinates, Part
from fedlsg.frame.forms import LEFT
from fedlsg.frame.public import Public
from fedlsg.gradients import trainable
from fedlsg.lowrank import decompose, decompose_each, flatten_kernel, random_carriers
from fedlsg.randomness import public_generator

Groups = Iterator[dict[str, Tensor]]
"""Matrices by the name of their parameter; those of one group are decomposed together."""

BIAS = ".bias"
"""End of a bias term's name."""


@dataclass(frozen=True, kw_only=True)
class Dense(Carrier):
    """No carriers: gradients are sent as they are.

    train: "all" parameters, the head alone ("classifier"), or the head and all bias terms
        ("biases").
    """

    kind: ClassVar[str] = "dense"
    dense: ClassVar[bool] = True
    parts: ClassVar[tuple[Part, ...]] = ("dense",)
    train: Literal["all", "classifier", "biases"] = "all"

    def carried(self, model: nn.Module, *, classifier: str | None) -> tuple[str, ...]:
        """No weight has carriers."""
        return ()

    def prepare(self, model: nn.Module, head: str, *, classifier: str | None, seed: int) -> None:
        """Freeze what is not trained.

        Raises ValueError if the model has no classifier, or no bias terms, to train.
        """
        if self.train == "classifier":
            if not head:
                raise ValueError(
                    f"{type(model).__name__} has no Linear layer to train as its classifier"
                )
            freeze_all_but(model, (), head)
        if self.train == "biases":
            biases = [
                name
                for name in trainable(model)
                if f".{name}".endswith(BIAS) and not name.startswith(head + ".")
            ]
            if not biases:
                raise ValueError(
                    f"{type(model).__name__} has no bias terms to train outside of its classifier "
                    f"{head!r}: choose a model whose layers have biases, or method linear-probe"
                )
            freeze_all_but(model, biases, head)


def freeze_all_but(model: nn.Module, trained: Collection[str], head: str) -> None:
    """Freeze all parameters but ``trained`` ones and those of the module at ``head``."""
    for name, parameter in model.named_parameters():
        if name not in trained and not name.startswith(head + "."):
            parameter.requires_grad_(False)


Warmup = Annotated[
    int, Setting("Updates of the server before carriers come from W - W_0, not W.", at_least=1)
]
Residual = Annotated[
    bool, Setting("Keep what carriers do not span of W; false replaces W by L R each round.")
]
History = Annotated[
    Literal["difference", "normalized"],
    Setting("Carriers follow W - W_0, or W / |W| - W_0 / |W_0| (Frobenius norms), as RGP's code."),
]
Factor = Annotated[
    Literal["both", "left"],
    Setting("Send dL and dR of a weight, or dL alone, as RGP's code for images."),
]
Trained = Annotated[
    Literal["all", "carried"],
    Setting(
        "Train all parameters, or carried weights and the head alone, as RGP's code for BERT.",
        name="trained",
    ),
]


@dataclass(frozen=True, kw_only=True)
class LowRank(Carrier):
    """Carriers of W (Ito et al. 2023, Alg. 2).

    rank: r.
    power_steps: of the power method that finds them.
    residual: whether W keeps what its carriers do not span. Without it, W is replaced by its rank-r
        part before every round, W_0 included (Yu et al. 2021, App. C).
    """

    kind: ClassVar[str] = "low-rank"
    rank: Rank = 4
    power_steps: PowerSteps = 1
    residual: Residual = True

    def __post_init__(self) -> None:
        check_carrier(self)

    def prepare(self, model: nn.Module, head: str, *, classifier: str | None, seed: int) -> None:
        """Replace W_0 by its rank-r part if ``residual`` is false.

        Otherwise W - W_0 would contain the part of W_0 that was cut off.
        """
        if not self.residual:
            for name in carried_parameters(model, self, classifier=classifier):
                W = model.get_parameter(name).detach()
                W.copy_(self.without_residual(W, seed, 0, name))

    def without_residual(
        self, W: Float[Tensor, "m *rest"], seed: int, updates: int, name: str
    ) -> Tensor:
        """The rank-r part of W: its projection onto its own carriers (Yu et al. 2021, App. C)."""
        generator = public_generator(seed, "truncate", updates, name)
        L, R = decompose(W, self.rank, generator=generator, power_steps=self.power_steps)
        return (L @ (L.mT @ flatten_kernel(W) @ R.mT) @ R).reshape(W.shape)

    def coordinates(self, public: Public) -> tuple[Coordinates, ...]:
        """L and R of each carried weight; the power method starts from a public draw for each."""
        return low_rank_coordinates(self, public, self._matrices(public))

    def _matrices(self, public: Public) -> Groups:
        """The matrices whose top directions are the carriers: the weights, in one group, as they
        are in memory anyway.
        """
        yield {name: W for name, W in public.weights.items() if name in public.carried}

    def in_sizes(self) -> Carrier:
        """Carriers that are unit vectors, which cost nothing to make."""
        return OwnCarriers(make=unit_vectors, rank=self.rank)


@dataclass(frozen=True, kw_only=True)
class LowRankChange(LowRank):
    """Carriers of W - W_0 after ``warmup`` server updates, of W before (Yu et al. 2021, Alg. 1).

    warmup: server updates before which carriers are those of W.
    history: "normalized" takes W / ||W|| - W_0 / ||W_0||, as in the authors' code. Both weights are
        public: W is made of noisy sums alone, so that the division costs no privacy.
    factors: "left" sends dL alone, which is lifted to dL R.
    train: "carried" freezes every parameter without carriers outside of the head.
    """

    kind: ClassVar[str] = "low-rank-change"
    warmup: Warmup = 1
    history: History = "difference"
    factors: Factor = "both"
    train: Trained = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factors == "left":
            object.__setattr__(self, "form", LEFT)

    def prepare(self, model: nn.Module, head: str, *, classifier: str | None, seed: int) -> None:
        """Prepare as ``LowRank`` does; then freeze what is not trained."""
        super().prepare(model, head, classifier=classifier, seed=seed)
        if self.train == "carried":
            freeze_all_but(model, self.carried(model, classifier=classifier), head)

    def _matrices(self, public: Public) -> Groups:
        return changes(public, self.warmup, unit if self.history == "normalized" else None)


@dataclass(frozen=True, kw_only=True)
class RandomCarriers(Carrier):
    """Random orthonormal carriers, new in each round (Yu et al. 2021, sec. 4, "RGP-random")."""

    kind: ClassVar[str] = "random"
    rank: Rank = 4

    def __post_init__(self) -> None:
        check_carrier(self)

    def coordinates(self, public: Public) -> tuple[Coordinates, ...]:
        """A draw for each carried weight and round."""
        by_name = {}
        for name in public.carried:
            W = public.weights[name].detach()
            generator = public.generator("carriers", public.time.round, name)
            m, n = flatten_kernel(W).shape
            by_name[name] = random_carriers((m, n), self.rank, generator=generator, like=W)
        return of_pairs(public.weights, by_name, self.form)

    def in_sizes(self) -> Carrier:
        """Carriers that are unit vectors, which cost nothing to make."""
        return OwnCarriers(make=unit_vectors, rank=self.rank)


StepCarrier = Annotated[
    Literal["dense", "low-rank", "low-rank-change", "random"],
    Setting("Coordinates of a weight's gradient."),
]
"""The carriers that a step may have by choice; the others belong to their recipes."""


def step_carrier(kind: StepCarrier, rank: int) -> Carrier:
    """The carrier of this kind."""
    if kind == "dense":
        return Dense()
    kinds: dict[str, type[LowRank | RandomCarriers]] = {
        carrier.kind: carrier for carrier in (LowRank, LowRankChange, RandomCarriers)
    }
    return kinds[kind](rank=rank)


def low_rank_coordinates(
    carrier: Carrier, public: Public, groups: Groups
) -> tuple[Coordinates, ...]:
    """The coordinates of all parameters; those in ``groups`` get the carriers of their matrix."""
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for matrices in groups:
        generators = [public.generator("carriers", public.time.round, name) for name in matrices]
        carriers = decompose_each(
            list(matrices.values()),
            carrier.rank,
            generators=generators,
            power_steps=carrier.power_steps,
        )
        pairs.update(zip(matrices, carriers, strict=True))
    return of_pairs(public.weights, pairs, carrier.form)


def unit(W: Tensor) -> Tensor:
    """W divided by its Frobenius norm; 0 stays 0."""
    return normalize(W.flatten(), dim=0).view_as(W)


def changes(public: Public, warmup: int, scale: Callable[[Tensor], Tensor] | None = None) -> Groups:
    """scale(W) - scale(W_0) of each carried weight; before ``warmup`` server updates W itself.

    Differences are groups of their own, so that only one is in memory at a time.
    """
    weights = {name: W.detach() for name, W in public.weights.items() if name in public.carried}
    if public.updates < warmup:
        yield weights
        return
    for name, W in weights.items():
        W_0 = public.initial.get(name)
        if W_0 is None:
            raise ValueError(f"the initial value of {name} is needed to decompose W - W_0")
        W_0 = W_0.to(W)
        yield {name: W - W_0 if scale is None else scale(W) - scale(W_0)}
