"""LoRA: a frozen weight plus two trained factors (Hu et al. 2022), and which parameters a method
trains.

Symbols: W_0 (m, n) frozen weight    A (r, n) "down"    B (m, r) "up"    s = alpha / r
    y = W_0 x + s B A x, and the effective weight is W_0 + s B A
    with a core C (r, r), ``train="core"``: y = W_0 x + s B C A x
The factors are ordinary layers, so that their per-example gradients, clip, noise and payload are
those of any other dense parameter: dB = s g^T (A x), dA = s (B^T g)^T x. A convolution's factors
are a (r, c, kh, kw) kernel followed by a 1 x 1 one, (m, r, 1, 1).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.carriers.base import (
    Carrier,
    PowerSteps,
    Rank,
    check_carrier,
    find_classifier,
    weights_that_pay,
)
from fedlsg.carriers.low_rank import LowRank, freeze_all_but
from fedlsg.config import Setting
from fedlsg.frame import Block, Keep, Part
from fedlsg.frame.public import Public
from fedlsg.gradients.formulas.layers import TransposedLinear, is_turned
from fedlsg.lowrank import decompose, orthonormal_rows
from fedlsg.masks import Mask, keep_units_of_each, unit_importance
from fedlsg.randomness import public_generator

DOWN, CORE, UP, BASE = ".down.weight", ".core.weight", ".up.weight", ".base.weight"

LoraAlpha = Annotated[
    float | None,
    Setting(
        "LoRA's product is scaled by lora_alpha / rank; by 1 without it.",
        above=0,
        below=math.inf,
        name="lora_alpha",
    ),
]

TrainEmbeddings = Annotated[
    bool, Setting("Train the embeddings of a model under LoRA, dense; false freezes them.")
]


class Adapted(nn.Module):
    """A Linear, Conv2d or Conv1D whose weight is frozen, plus the product of trained factors; its
    bias is trained on.

    The product is B A, or B C A, in the shape in which the weight is stored. Conv1D of transformers
    computes x W, so that B comes first there. Nothing changes at the start: B is 0, or the core is,
    where there is one. With a core, A and B are carriers of W_0. Without, A is drawn: uniformly, as
    LoRA's is (Kaiming with a = sqrt(5)), or with orthonormal rows.
    """

    def __init__(self, base: nn.Module, carrier: "Lora", generator: torch.Generator) -> None:
        super().__init__()
        self.base, self.scale = base, carrier.scale
        weight = base.get_parameter("weight").requires_grad_(False)
        rank, fan_in, W_0 = carrier.rank, weight[0].numel(), weight.detach()
        A: Tensor
        B = torch.zeros(len(W_0), rank)
        if carrier.train == "core":
            B, A = decompose(W_0, rank, generator=generator, power_steps=carrier.power_steps)
        elif carrier.orthonormal:
            A = orthonormal_rows(torch.randn(rank, fan_in, generator=generator))
        else:
            A = (torch.rand(rank, fan_in, generator=generator) * 2 - 1) / fan_in**0.5
        if isinstance(base, nn.Conv2d):
            kernel = (base.kernel_size, base.stride, base.padding, base.dilation)
            down: nn.Module = nn.Conv2d(base.in_channels, rank, *kernel, bias=False, device="meta")  # type: ignore[arg-type]
        else:
            down = _mixing(base, fan_in, rank)
        self.down = _filled(down, A, W_0)
        self.core = (
            _filled(_mixing(base, rank, rank), torch.zeros(rank, rank), W_0)
            if carrier.train == "core"
            else None
        )
        self.up = _filled(_mixing(base, rank, len(W_0)), B, W_0)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) as the frozen layer takes it."""
        first, last = (self.up, self.down) if is_turned(self.base) else (self.down, self.up)
        inner = first(x)
        result: Tensor = self.base(x) + self.scale * last(
            inner if self.core is None else self.core(inner)
        )
        return result


def _mixing(base: nn.Module, inputs: int, outputs: int) -> nn.Module:
    """A layer that mixes units, or channels at each place, as the ``base`` needs it."""
    if isinstance(base, nn.Conv2d):
        return nn.Conv2d(inputs, outputs, 1, bias=False, device="meta")
    if is_turned(base):
        return TransposedLinear(outputs, inputs, device="meta")
    return nn.Linear(inputs, outputs, bias=False, device="meta")


def _filled(layer: nn.Module, weight: Tensor, like: Tensor) -> nn.Module:
    """A layer made on the meta device, with this weight, on the device and in the type of
    ``like``.
    """
    layer.to_empty(device=like.device).to(like.dtype)
    own = layer.get_parameter("weight")
    with torch.no_grad():
        own.copy_(weight.reshape(own.shape))
    return layer


@dataclass(frozen=True, kw_only=True)
class Lora(Carrier):
    """W is frozen and two factors are trained in its place (``Adapted``).

    ``train="up"`` freezes everything but the head and B, ``"core"`` everything but it and a core C
    (r, r) between B and A, which are then carriers of W_0 after ``power_steps``.
    ``orthonormal``: A starts with orthonormal rows.
    ``alpha``: s is alpha / rank; None means s = 1.
    ``embeddings``: train the tables of words and positions, too, which have far more values than
        the factors.
    """

    kind: ClassVar[str] = "lora"
    parts: ClassVar[tuple[Part, ...]] = ("dense",)
    rank: Rank = 8
    power_steps: PowerSteps = 1
    alpha: LoraAlpha = None
    train: Literal["all", "up", "core"] = "all"
    orthonormal: bool = False
    embeddings: TrainEmbeddings = False

    def __post_init__(self) -> None:
        check_carrier(self)

    @property
    def scale(self) -> float:  # type: ignore[override]
        """s = alpha / rank."""
        return 1.0 if self.alpha is None else self.alpha / self.rank

    @property
    def refuses_units(self) -> str | None:
        """Masks of units freeze rows of B and columns of A."""
        if self.train == "all":
            return None
        return (
            "a mask of units freezes rows of LoRA's B and columns of A: it needs both factors "
            "trained"
        )

    def carried(self, model: nn.Module, *, classifier: str | None) -> tuple[str, ...]:
        """None: the factors are parameters of their own."""
        return ()

    def prepare(self, model: nn.Module, head: str, *, classifier: str | None, seed: int) -> None:
        """Insert adapters in the layers outside of the head that low-rank carriers of this rank
        would carry.

        LoRA freezes what it adapts, and embeddings where nobody asks for them (tied ones in the
        head, too). A head starts at random: all of it is trained.
        Raises ValueError if no layer can be adapted.
        """
        for name in weights_that_pay(
            model, LowRank(rank=self.rank), find_classifier(model, classifier)
        ):
            path = name.removesuffix("weight").removesuffix(".")
            if not path:
                raise ValueError("LoRA needs layers inside a model; this model is a single layer")
            owner, _, attribute = path.rpartition(".")
            base = model.get_submodule(path)
            adapted = Adapted(base, self, public_generator(seed, "lora", path))
            setattr(model.get_submodule(owner), attribute, adapted)
        if not self.embeddings:
            for table in embeddings_of(model):
                table.requires_grad_(False)
        if self.train != "all":
            trained = UP if self.train == "up" else CORE
            freeze_all_but(model, [path + trained for path in adapted_layers(model)], head)

    def mask(self, blocks: tuple[Block, ...], mask: Mask, public: Public) -> tuple[Block, ...]:
        """Rows of dB and columns of dA, under a mask of units."""
        return (
            mask_factors(blocks, public.weights, public.initial, mask, self)
            if mask.units
            else blocks
        )


def embeddings_of(model: nn.Module) -> list[nn.Parameter]:
    """The tables of words, positions and types: what modules of type Embedding, or of a subclass,
    own.
    """
    return [
        p
        for m in model.modules()
        if isinstance(m, nn.Embedding)
        for p in m.parameters(recurse=False)
    ]


def frozen_bases(model: nn.Module) -> dict[str, Tensor]:
    """W_0 of every adapted layer, by parameter name: public and constant, what masks of lsg-lora
    need.
    """
    return {
        path + BASE: m.base.get_parameter("weight").detach()
        for path, m in adapted_layers(model).items()
    }


def effective_weight(
    path: str, weights: Mapping[str, Tensor], initial: Mapping[str, Tensor], scale: float
) -> Float[Tensor, "m *rest"]:
    """W_0 + s B A, or W_0 + s B C A, of the adapted layer at ``path``, in the shape of W_0."""
    W_0, A, B = initial[path + BASE], weights[path + DOWN], weights[path + UP].flatten(1)
    if path + CORE in weights:
        B = B @ weights[path + CORE].flatten(1)
    return W_0 + scale * (B @ A.flatten(1)).reshape(W_0.shape)


def adapted_layers(model: nn.Module) -> dict[str, Adapted]:
    """Every adapted layer by its path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Adapted)}


def merge(tensors: Mapping[str, Tensor], paths: Collection[str], scale: float) -> dict[str, Tensor]:
    """The state_dict of the model without adapters: W = W_0 + s B A in each adapted layer, the
    factors left out.

    ``tensors``: the state_dict of the model with adapters at ``paths``. Names and their order are
    those of the model before ``prepare_model``. It is the same function up to rounding where a
    layer is linear in its weight: a weight-standardised convolution is not. Raises KeyError for a
    path that the tensors lack.
    """
    merged = dict(tensors)
    for path in paths:
        merged[path + BASE] = effective_weight(path, tensors, tensors, scale)
        for factor in (DOWN, CORE, UP):
            merged.pop(path + factor, None)
    places = {name: name.rpartition(".base.") for name in merged}
    return {
        f"{path}.{own}" if path in paths else name: merged[name]
        for name, (path, _, own) in places.items()
    }


def mask_factors(
    blocks: Sequence[Block],
    weights: Mapping[str, Tensor],
    initial: Mapping[str, Tensor],
    mask: Mask,
    carrier: Lora,
) -> tuple[Block, ...]:
    """Blocks of which dB keeps the rows of important out units and dA the columns of important in
    units.

    Source: Ito et al. 2024, Alg. 1. Importance is that of the effective weight W_0 + s B A. All
    other blocks are kept whole.
    """
    by_parameter: dict[str, tuple[int, Tensor]] = {}
    for block in blocks:
        for suffix, axis in ((UP, 0), (DOWN, 1)):
            path = block.parameter.removesuffix(suffix)
            if block.parameter.endswith(suffix) and path + BASE in initial:
                by_parameter[block.parameter] = (
                    axis,
                    unit_importance(effective_weight(path, weights, initial, carrier.scale))[axis],
                )
    kept = keep_units_of_each(
        [importance for _, importance in by_parameter.values()], mask.sparsity, mask.direction
    )
    keeps = {
        name: Keep(axis=axis, index=k)
        for (name, (axis, _)), k in zip(by_parameter.items(), kept, strict=True)
    }
    return tuple(replace(block, keep=keeps.get(block.parameter, block.keep)) for block in blocks)
