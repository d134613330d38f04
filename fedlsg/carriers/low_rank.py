"""Carriers of the weights themselves, of their change, or at random, in which LSG and RGP send dL
and dR; and none.

Symbols: W (m, n) public weight now, W_0 the same at the start, L (m, r), R (r, n) carriers, r rank.
Without carriers every trained parameter is sent as it is; all of the model is trained, or its head,
or its biases.
"""

from collections.abc import Callable, Iterator
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

Bases = Iterator[dict[str, Tensor]]

BIAS = ".bias"


@dataclass(frozen=True, kw_only=True)
class Dense(Carrier):
    """Gradients unchanged. ``train="classifier"`` freezes everything but the head, ``"biases"``
    everything but it and the bias terms."""

    kind: ClassVar[str] = "dense"
    dense: ClassVar[bool] = True
    parts: ClassVar[tuple[Part, ...]] = ("dense",)
    train: Literal["all", "classifier", "biases"] = "all"

    def carried(self, model: nn.Module, *, classifier: str | None) -> tuple[str, ...]:
        """None."""
        return ()

    def prepare(self, model: nn.Module, head: str, *, classifier: str | None, seed: int) -> None:
        """Freeze what is not trained. Raises ValueError if the model has no classifier, or no bias
        terms, to train.
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


def freeze_all_but(model: nn.Module, kept: "tuple[str, ...] | list[str]", head: str) -> None:
    """Freeze all parameters but those named and those of the module at ``head``."""
    for name, parameter in model.named_parameters():
        if name not in kept and not name.startswith(head + "."):
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

    ``residual=False`` replaces W by its rank-r part before every round (Yu et al. 2021, App. C),
    W_0 included.
    """

    kind: ClassVar[str] = "low-rank"
    rank: Rank = 4
    power_steps: PowerSteps = 1
    residual: Residual = True

    def __post_init__(self) -> None:
        check_carrier(self)

    def prepare(self, model: nn.Module, head: str, *, classifier: str | None, seed: int) -> None:
        """Without the residual: cut W_0. Cut later, W - W_0 would be the residual that was cut off,
        not the updates.
        """
        if not self.residual:
            for name in carried_parameters(model, self, classifier=classifier):
                W = model.get_parameter(name).detach()
                W.copy_(self.without_residual(W, seed, 0, name))

    def without_residual(
        self, W: Float[Tensor, "m *rest"], seed: int, updates: int, name: str
    ) -> Tensor:
        """W in the spans of its own carriers, rank r at most: the rest is left out (Yu et al. 2021,
        App. C).
        """
        generator = public_generator(seed, "truncate", updates, name)
        L, R = decompose(W, self.rank, generator=generator, power_steps=self.power_steps)
        return (L @ (L.mT @ flatten_kernel(W) @ R.mT) @ R).reshape(W.shape)

    def coordinates(self, public: Public) -> tuple[Coordinates, ...]:
        """L and R of each carried weight, by its own public draw."""
        return low_rank_coordinates(self, public, self._matrices(public))

    def _matrices(self, public: Public) -> Bases:
        """What is decomposed together: all weights, which are there anyway."""
        yield {name: W for name, W in public.weights.items() if name in public.carried}

    def in_sizes(self) -> Carrier:
        """Unit vectors."""
        return OwnCarriers(make=unit_vectors, rank=self.rank)


@dataclass(frozen=True, kw_only=True)
class LowRankChange(LowRank):
    """Carriers of W - W_0 after ``warmup`` server updates, of W before (Yu et al. 2021, Alg. 1).

    ``history="normalized"``: of W / ||W|| - W_0 / ||W_0||, as in the authors' code. Both weights
    are public: W is made of noisy sums alone, so that the division costs no privacy.
    ``factors="left"``: dL alone is sent, and lifted to dL R. ``train="carried"``: what is neither
    carried nor in the head is frozen.
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
        """As ``LowRank``; and freeze what is not trained."""
        super().prepare(model, head, classifier=classifier, seed=seed)
        if self.train == "carried":
            freeze_all_but(model, self.carried(model, classifier=classifier), head)

    def _matrices(self, public: Public) -> Bases:
        return changes(public, self.warmup, unit if self.history == "normalized" else None)


@dataclass(frozen=True, kw_only=True)
class RandomCarriers(Carrier):
    """Random orthonormal carriers, drawn again each round (Yu et al. 2021, sec. 4,
    "RGP-random").
    """

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
        """Unit vectors."""
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


def low_rank_coordinates(carrier: Carrier, public: Public, runs: Bases) -> tuple[Coordinates, ...]:
    """Coordinates in the carriers of matrices; the matrices of one run are decomposed together."""
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for run in runs:
        generators = [public.generator("carriers", public.time.round, name) for name in run]
        made = decompose_each(
            list(run.values()), carrier.rank, generators=generators, power_steps=carrier.power_steps
        )
        pairs |= zip(run, made, strict=True)
    return of_pairs(public.weights, pairs, carrier.form)


def unit(W: Tensor) -> Tensor:
    """W over its Frobenius norm; 0 stays 0."""
    return normalize(W.flatten(), dim=0).view_as(W)


def changes(public: Public, warmup: int, scale: Callable[[Tensor], Tensor] | None = None) -> Bases:
    """W - W_0 of each carried weight, each through ``scale``, made and dropped one by one; before
    ``warmup`` updates W itself, all together.
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
