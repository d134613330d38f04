"""Where the carriers come from, and which parameters are carried.

Symbols: W (m, n) public weight now, W_0 the same at the start, L (m, r), R (r, n) carriers, r rank.
Everything here is public: it reads weights, the round and the public seed.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.carriers.head import find_classifier, find_output_layer
from fedlsg.frame import PARTS, Coordinates, Form, Part
from fedlsg.gradients.calls.ways import ways_of
from fedlsg.gradients.supported import trainable
from fedlsg.lowrank import decompose, decompose_each, flatten_kernel, random_carriers
from fedlsg.public import MakeCarriers, Sizes
from fedlsg.randomness import public_generator
from fedlsg.setting import Setting, check_declared

CarrierKind = Literal["dense", "low-rank", "low-rank-change", "random", "lora", "factors", "own", "probe"]
Trained = Literal["all", "classifier", "biases", "up", "core"]
LOW_RANK = ("low-rank", "low-rank-change", "random")
MADE = ("own", "probe")
"""Kinds that have both forms."""

StepCarrier = Annotated[
    Literal["dense", "low-rank", "low-rank-change", "random"], Setting("Coordinates of a weight's gradient.")
]
"""The kinds that a step may have by choice; the others belong to their recipes."""

Rank = Annotated[int, Setting("Rank r of the carriers.", at_least=0, aliases=("r",))]
"""0 is for dense gradients alone, see ``Carrier``."""

OutRank = Annotated[int, Setting("Columns of L of a core S = L^T dW R^T; rank is R's rows.", at_least=1)]
CarrierForm = Annotated[Form, Setting("A carried weight sends dL and dR (tangent), or S = L^T dW R^T (the others).")]
PowerSteps = Annotated[int, Setting("Power steps with which carriers follow a matrix.", at_least=1)]
Warmup = Annotated[int, Setting("Updates of the server before carriers come from W - W_0, not W.", at_least=1)]
CarrierRefresh = Annotated[
    int, Setting("Rounds until carriers are probed again.", "rounds", at_least=1, name="refresh_rounds")
]
ProbeInputs = Annotated[
    str,
    Setting(
        "Public inputs of a probe: auto, leaves, pink, tokens, data:, FILE.py:NAME.",
        name="source",
    ),
]
Probes = Annotated[int, Setting("Number of inputs that a probe pushes through the model.", "examples", at_least=1)]
Power = Annotated[
    float,
    Setting("S is divided by (predicted spectrum + damping) to this power.", at_least=0, at_most=1),
]
Damping = Annotated[
    float, Setting("Added to the predicted spectrum, whose mean is 1, before the power.", above=0, below=math.inf)
]
ResidualClip = Annotated[
    float, Setting("Clip norm of what embeddings leave, as a share of the embeddings'.", above=0, below=math.inf)
]
LoraAlpha = Annotated[
    float | None,
    Setting(
        "LoRA's product is scaled by lora_alpha / rank; by 1 without it.", above=0, below=math.inf, name="lora_alpha"
    ),
]
Residual = Annotated[bool, Setting("Keep what carriers do not span of W; false replaces W by L R each round.")]


PAYS_BELOW = 0.8
"""A layer is carried where r (m + n) < 0.8 m n, and in the form core where r s < 0.8 m n."""


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """How a weight's gradient travels.

    ``dense``: unchanged. ``low-rank``: carriers of W (Ito et al. 2023, Alg. 2). ``low-rank-change``: carriers of
    W - W_0 after ``warmup`` server updates, of W before (Yu et al. 2021, Alg. 1). ``random``: random orthonormal
    carriers, drawn again each round. ``lora``: W is frozen and two factors are trained in its place (``Adapted``).
    ``factors``: the step is dense, and rank-r factors of its noisy result are sent (PowerSGD).
    ``own``: carriers of a user's function. ``make(public)`` takes public values (``fedlsg.Public``) and returns (L, R)
    by name, one pair for each weight in ``public.carried``, which gives the sizes (m, r, s, n) of L (m, r), R (s, n).
    The server and every client call it in every round, and compare their frames by digest: it must always return the
    same, so it draws from ``public.generator`` only.
    ``probe``: the top eigenvectors of the second moments of gradients of public inputs (``carriers.probe``), made again
    every ``refresh`` rounds from ``probes`` inputs of ``source``.
    ``form="tangent"``: dL and dR are sent, and lifted by Eq. 3. It needs orthonormal carriers, and r = s = ``rank``.
    ``form="core"``, for ``own`` and ``probe``: S = L^T dW R^T (r, s) is sent, and lifted to L S R. s is ``rank`` (n at
    most), r is ``out_rank`` or else ``rank`` (m at most). Carriers may have any scale: it weights the rows and columns
    of S before the clip, and again when S is lifted. A ``probe`` scales them by
    (lambda / mean + ``damping``)^-``power``, where lambda is the spectrum that it predicts, times a constant.
    ``form="preconditioned"``, for the same kinds: L (m, m) and R (n, n) are square, whatever the ranks, and S (m, n) is
    the server's gradient as it is. A ``probe`` makes both symmetric: its eigenvectors, scaled so, and turned back.
    ``form="embedding"``, for ``probe``: every parameter, flattened (m,), has a basis L (m, r) of anchor gradients, r at
    most ``rank``. An example sends w = L^T g, clipped to C / sqrt(2), and g - L w, clipped to ``residual_clip`` times
    that.
    ``"embedding-only"`` sends w alone (biased).
    ``train="classifier"`` freezes everything but the head, ``"biases"`` everything but it and the bias terms,
    ``"up"`` everything but it and LoRA's B, ``"core"`` everything but it and a core C (r, r) between B and A, which are
    then carriers of W_0 after ``power_steps``. ``orthonormal``: LoRA's A starts with orthonormal rows.
    ``alpha``: LoRA's s is alpha / rank; None means s = 1.
    ``residual=False`` replaces W by its rank-r part before every round (Yu et al. 2021, App. C), W_0 included
    (``prepare_model``).
    """

    kind: Annotated[CarrierKind, Setting(name="carrier kind")] = "dense"
    rank: Rank = 0
    power_steps: PowerSteps = 1
    warmup: Warmup = 1
    alpha: LoraAlpha = None
    residual: Residual = True
    residual_clip: ResidualClip = 1.0
    train: Trained = "all"
    orthonormal: bool = False
    make: MakeCarriers | None = None
    form: CarrierForm = "tangent"
    out_rank: OutRank | None = None
    refresh: CarrierRefresh = 20
    source: ProbeInputs = "auto"
    probes: Probes = 1000
    power: Power = 0.25
    damping: Damping = 0.01

    def __post_init__(self) -> None:
        check_declared(self)
        if self.kind != "dense" and self.form != "preconditioned" and self.rank < 1:
            raise ValueError(f"expected rank={self.rank} >= 1 for low-rank carriers")
        if (self.train in ("up", "core") or self.orthonormal) and self.kind != "lora":
            said = "orthonormal=True" if self.orthonormal else f"train={self.train!r}"
            raise ValueError(f"{said} is about LoRA's factors: it needs carrier kind 'lora', got {self.kind!r}")
        if (self.kind == "own") != callable(self.make):
            raise ValueError("carriers of kind 'own' need make=function, and no other kind takes one")
        if self.form != "tangent" and self.kind not in MADE:
            raise ValueError(f"form={self.form!r} is for carriers of kind {' or '.join(MADE)}, got {self.kind!r}")
        if self.embeds and self.kind != "probe":
            raise ValueError(f"form={self.form!r} has a basis of anchor gradients: it needs kind 'probe'")
        if self.out_rank is not None and self.form != "core":
            raise ValueError(
                f"out_rank={self.out_rank} is for form='core': in the form {self.form!r} L and R have no two ranks"
            )
        if not self.residual and self.kind not in LOW_RANK:
            raise ValueError(f"residual=False replaces W by L R: it needs low-rank carriers, got {self.kind!r}")

    @property
    def splits(self) -> bool:
        """Whether a carried weight makes two blocks, dL and dR, of the step."""
        return self.parts == PARTS["tangent"]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The blocks that a carried weight makes of the step."""
        return PARTS[self.form] if self.kind in (*LOW_RANK, *MADE) else ("dense",)

    @property
    def embeds(self) -> bool:
        """Whether every parameter is embedded as one column."""
        return self.form in ("embedding", "embedding-only")

    def sizes(self, W: Tensor) -> Sizes:
        """The sizes of the carriers of a weight, for ``own`` and ``probe`` carriers."""
        m, n = (W.numel(), 1) if self.embeds else flatten_kernel(W).shape
        if self.form == "tangent":
            return Sizes(m, self.rank, self.rank, n)
        if self.form == "preconditioned":
            return Sizes(m, m, n, n)
        if self.embeds:
            return Sizes(W.numel(), min(self.rank, W.numel()), 1, 1)
        return Sizes(m, min(self.out_rank or self.rank, m), min(self.rank, n), n)

    def values(self, W: Tensor) -> int:
        """Values that an update sends for a carried weight, before a mask: r (m + n) in the form tangent, else r s."""
        m, r, s, n = self.sizes(W)
        return r * (m + n) if self.form == "tangent" else r * s + (m if self.form == "embedding" else 0)

    @property
    def scale(self) -> float:
        """LoRA's s = alpha / rank."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


def carried_parameters(model: nn.Module, carrier: Carrier, *, classifier: str | None = None) -> tuple[str, ...]:
    """Names of the weights that travel as carriers; every other trainable parameter stays dense.

    Rule: a trainable weight of a Linear or Conv2d, hooked by itself and not shared, not of the output layer, where
    ``Carrier.values`` < 0.8 m n.
    ``classifier`` names the head, of which the output layer stays dense (``find_output_layer``).
    Raises ValueError if low-rank carriers are chosen and no layer of the model is large enough.
    """
    if carrier.kind in ("dense", "lora"):
        return ()
    if carrier.embeds:
        return tuple(trainable(model))
    return _parameters_that_pay(model, carrier, find_output_layer(model, classifier))


def adapted_parameters(model: nn.Module, carrier: Carrier, *, classifier: str | None = None) -> tuple[str, ...]:
    """Names of the weights that LoRA adapts: those that low-rank carriers of its rank would carry, outside of the head.

    LoRA freezes what it adapts, and a head starts at random: all of it is trained. ``classifier``: see above.
    Raises ValueError if no layer can be adapted.
    """
    like = replace(carrier, kind="low-rank", train="all", orthonormal=False)
    return _parameters_that_pay(model, like, find_classifier(model, classifier))


def _parameters_that_pay(model: nn.Module, carrier: Carrier, excluded: str) -> tuple[str, ...]:
    """The weights that may travel as carriers and are smaller so; none of the module at the path ``excluded``."""
    ways = ways_of(model)
    shared = {module._parameters[own] for places in ways.uses.values() for module, own in places}
    modules = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)}
    candidates = {
        f"{name}.weight" if name else "weight": module.weight
        for name, module in modules.items()
        if module.weight.requires_grad
        and f"{name}.weight" not in ways.others
        and module.weight not in shared
        and not (name == excluded or name.startswith(excluded + "."))
    }
    names = tuple(name for name, W in candidates.items() if pays(W, carrier))
    if not names:
        raise ValueError(_nothing_carried(type(model).__name__, carrier, bool(candidates)))
    return names


def _nothing_carried(model: str, carrier: Carrier, candidates: bool) -> str:
    """Why no layer is carried, and what to do. ``candidates``: a layer could be carried at a smaller rank."""
    if carrier.form == "preconditioned":
        return f"{model} has no Linear or Conv2d layer before the classifier to precondition"
    core = carrier.form == "core"
    given = f"rank={carrier.rank}" + (f", out_rank={carrier.out_rank or carrier.rank}" if core else "")
    if not candidates:
        return (
            f"{given} carries no layer of {model}: it has no Linear or Conv2d layer before the classifier; choose "
            "another model, or a dense method such as dpsgd"
        )
    rule, smaller = ("r s", "rank or out_rank") if core else ("r (m + n)", "rank")
    return (
        f"{given} carries no layer of {model}: {rule} < {PAYS_BELOW} m n holds for no Linear or Conv2d layer before "
        f"the classifier; choose a smaller {smaller}, or a dense method such as dpsgd"
    )


def pays(W: Tensor, carrier: Carrier) -> bool:
    """Whether a carried weight sends clearly fewer values than it has, or sends them all preconditioned."""
    if carrier.form == "preconditioned":
        return True
    fits = carrier.form == "core" or carrier.rank <= min(flatten_kernel(W).shape)
    return fits and carrier.values(W) < PAYS_BELOW * W.numel()


def without_residual(
    W: Float[Tensor, "m *rest"], carrier: Carrier, *, generator: torch.Generator
) -> Float[Tensor, "m *rest"]:
    """W in the spans of its own carriers, rank r at most: the rest is left out (Yu et al. 2021, App. C)."""
    L, R = decompose(W, carrier.rank, generator=generator, power_steps=carrier.power_steps)
    return (L @ (L.mT @ flatten_kernel(W) @ R.mT) @ R).reshape(W.shape)


def coordinates(
    weights: Mapping[str, Tensor],
    initial: Mapping[str, Tensor],
    *,
    carrier: Carrier,
    carried: tuple[str, ...],
    round: int,
    updates: int,
    seed: int,
) -> tuple[Coordinates, ...]:
    """Coordinates of every trainable parameter in ``round``, after ``updates`` server updates.

    ``weights`` are the trainable parameters in model order, ``initial`` W_0 of the carried ones (read by
    ``low-rank-change`` only). Deterministic in its arguments, on one kind of processor.
    """
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for run in _runs(weights, initial, carrier, carried, updates):
        generators = [public_generator(seed, "carriers", round, name) for name in run]
        if carrier.kind == "random":
            made = [_random(W, carrier.rank, g) for W, g in zip(run.values(), generators, strict=True)]
        else:
            made = decompose_each(
                list(run.values()), carrier.rank, generators=generators, power_steps=carrier.power_steps
            )
        pairs |= zip(run, made, strict=True)
    return of_pairs(weights, pairs, carrier.form)


def of_pairs(
    weights: Mapping[str, Tensor], pairs: Mapping[str, tuple[Tensor, Tensor]], form: Form
) -> tuple[Coordinates, ...]:
    """Coordinates of every trainable parameter: carried in the form where it has a pair (L, R)."""
    none = None, None
    return tuple(
        Coordinates(name=name, shape=tuple(W.shape), L=L, R=R, form=form)
        for name, W in weights.items()
        for L, R in [pairs.get(name, none)]
    )


def _runs(
    weights: Mapping[str, Tensor],
    initial: Mapping[str, Tensor],
    carrier: Carrier,
    carried: tuple[str, ...],
    updates: int,
) -> Iterator[dict[str, Tensor]]:
    """What is decomposed together: all weights, which are there anyway; changes one by one, each made and dropped."""
    own = {name: W.detach() for name, W in weights.items() if name in carried}
    if carrier.kind not in ("low-rank-change", "factors") or updates < carrier.warmup:
        yield own
        return
    for name, W in own.items():
        W_0 = initial.get(name)
        if W_0 is None:
            raise ValueError(f"the initial value of {name} is needed to decompose W - W_0")
        yield {name: W - W_0.to(W)}


def _random(W: Tensor, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    m, n = flatten_kernel(W).shape
    return random_carriers((m, n), rank, generator=generator, like=W)
