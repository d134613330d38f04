"""LoRA: a frozen weight plus the product of two trained factors (Hu et al. 2022).

Symbols: W_0 (m, n) frozen weight    A (r, n) "down"    B (m, r) "up"    s = alpha / r
    y = W_0 x + s B A x, and the effective weight is W_0 + s B A
    with a core C (r, r), ``train="core"``: y = W_0 x + s B C A x

``Lora`` says what a method trains, ``Adapted`` is the layer. The factors are ordinary layers, so
that their per-example gradients, clip, noise and payload are those of any other dense parameter:
dB = s g^T (A x), dA = s (B^T g)^T x. A convolution's factors are a (r, c, kh, kw) kernel followed
by a 1 x 1 one, (m, r, 1, 1).
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
"""Ends of the names of A, C, B and W_0, after the path of an adapted layer."""

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
    """A Linear, Conv2d or Conv1D whose weight is frozen, plus the product of trained factors.

    The bias of the layer is still trained. The product is B A, or B C A, in the shape in which the
    weight is stored. Conv1D of transformers computes x W, so that B comes first there.
    At the start the layer computes what it did before: C = 0 or, without a core, B = 0. With a
    core, A and B are carriers of W_0. Without a core A is random: uniform, as in the paper's code
    (Kaiming with a = sqrt(5)), or with orthonormal rows.
    """

    def __init__(self, base: nn.Module, carrier: "Lora", generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.scale = carrier.scale
        W_0 = base.get_parameter("weight").requires_grad_(False).detach()
        A, B = initial_factors(W_0, carrier, generator)
        rank = carrier.rank
        self.down = _fill(_down_layer(base, rank), A, W_0)
        self.core: nn.Module | None = None
        if carrier.train == "core":
            self.core = _fill(_unit_layer(base, rank, rank), torch.zeros(rank, rank), W_0)
        self.up = _fill(_unit_layer(base, rank, len(W_0)), B, W_0)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) as the frozen layer takes it."""
        first, last = (self.up, self.down) if is_turned(self.base) else (self.down, self.up)
        inner = first(x)
        if self.core is not None:
            inner = self.core(inner)
        result: Tensor = self.base(x) + self.scale * last(inner)
        return result


def initial_factors(
    W_0: Float[Tensor, "m *rest"], carrier: "Lora", generator: torch.Generator
) -> tuple[Float[Tensor, "r n"], Float[Tensor, "m r"]]:
    """A and B at the start, see ``Adapted``."""
    rank, fan_in = carrier.rank, W_0[0].numel()
    if carrier.train == "core":
        L, R = decompose(W_0, rank, generator=generator, power_steps=carrier.power_steps)
        return R, L
    if carrier.orthonormal:
        A = orthonormal_rows(torch.randn(rank, fan_in, generator=generator))
    else:
        A = (torch.rand(rank, fan_in, generator=generator) * 2 - 1) / fan_in**0.5
    return A, torch.zeros(len(W_0), rank)


def _down_layer(base: nn.Module, rank: int) -> nn.Module:
    """The layer of A. That of a convolution has its kernel size, stride, padding and dilation."""
    if isinstance(base, nn.Conv2d):
        return nn.Conv2d(
            base.in_channels,
            rank,
            base.kernel_size,  # type: ignore[arg-type]
            base.stride,  # type: ignore[arg-type]
            base.padding,  # type: ignore[arg-type]
            base.dilation,  # type: ignore[arg-type]
            bias=False,
            device="meta",
        )
    return _unit_layer(base, base.get_parameter("weight")[0].numel(), rank)


def _unit_layer(base: nn.Module, inputs: int, outputs: int) -> nn.Module:
    """A layer of the kind of ``base`` from ``inputs`` to ``outputs`` units, or channels of a
    pixel.
    """
    if isinstance(base, nn.Conv2d):
        return nn.Conv2d(inputs, outputs, 1, bias=False, device="meta")
    if is_turned(base):
        return TransposedLinear(outputs, inputs, device="meta")
    return nn.Linear(inputs, outputs, bias=False, device="meta")


def _fill(layer: nn.Module, weight: Tensor, like: Tensor) -> nn.Module:
    """The layer, moved from the meta device to the device and type of ``like``, with this
    weight.
    """
    layer.to_empty(device=like.device).to(like.dtype)
    parameter = layer.get_parameter("weight")
    with torch.no_grad():
        parameter.copy_(weight.reshape(parameter.shape))
    return layer


@dataclass(frozen=True, kw_only=True)
class Lora(Carrier):
    """W is frozen and two factors are trained in its place (``Adapted``).

    rank: r.
    power_steps: of the decomposition of W_0 that gives A and B; for a core only.
    alpha: s is alpha / rank; None means s = 1.
    train: "all" trains A and B, and whatever else LoRA does not freeze. "up" trains B and the head
        only; "core" the core C (r, r) between B and A, and the head.
    orthonormal: A starts with orthonormal rows.
    embeddings: train the tables of words and positions, too, which have far more values than the
        factors.
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
        """Why a mask of units, which freezes rows of B and columns of A, cannot be used."""
        if self.train == "all":
            return None
        return (
            "a mask of units freezes rows of LoRA's B and columns of A: it needs both factors "
            "trained"
        )

    def carried(self, model: nn.Module, *, classifier: str | None) -> tuple[str, ...]:
        """No weight: the factors are parameters of their own, with dense gradients."""
        return ()

    def prepare(self, model: nn.Module, head: str, *, classifier: str | None, seed: int) -> None:
        """Insert adapters, and freeze what the method does not train.

        Adapted are the layers outside of the head in which low-rank carriers of this rank would
        save values. Their weights are frozen, and so are embeddings unless ``embeddings`` (those
        tied to the head as well). The head starts at random: all of it is trained.
        Raises ValueError if no layer can be adapted.
        """
        weights = weights_that_pay(
            model, LowRank(rank=self.rank), find_classifier(model, classifier)
        )
        for name in weights:
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
        """The blocks with what a mask of units keeps; other masks act on no factor."""
        if not mask.units:
            return blocks
        return mask_factors(blocks, public.weights, public.initial, mask, self)


def embeddings_of(model: nn.Module) -> list[nn.Parameter]:
    """The tables of words, positions and token types: parameters of ``nn.Embedding`` layers."""
    modules = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return [table for module in modules for table in module.parameters(recurse=False)]


def frozen_bases(model: nn.Module) -> dict[str, Tensor]:
    """W_0 of every adapted layer by parameter name, which masks of units need: public, constant."""
    return {
        path + BASE: layer.base.get_parameter("weight").detach()
        for path, layer in adapted_layers(model).items()
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
    """The state_dict of the model without adapters, with W = W_0 + s B A in each adapted layer.

    ``tensors``: the state_dict of the model with adapters at ``paths``.
    Guarantee: names and their order are those of the model before ``Lora.prepare``. The merged
    model computes the same up to rounding if each adapted layer is linear in its weight; a
    weight-standardised convolution is not. Raises KeyError for a path that the tensors lack.
    """
    merged = dict(tensors)
    for path in paths:
        merged[path + BASE] = effective_weight(path, tensors, tensors, scale)
        for factor in (DOWN, CORE, UP):
            merged.pop(path + factor, None)

    def name_without_adapter(name: str) -> str:
        path, _, parameter = name.rpartition(".base.")
        return f"{path}.{parameter}" if path in paths else name

    return {name_without_adapter(name): tensor for name, tensor in merged.items()}


def mask_factors(
    blocks: Sequence[Block],
    weights: Mapping[str, Tensor],
    initial: Mapping[str, Tensor],
    mask: Mask,
    carrier: Lora,
) -> tuple[Block, ...]:
    """The blocks with a mask of units on the rows of dB and the columns of dA (Ito et al. 2024,
    Alg. 1).

    Kept are the rows of important out units and the columns of important in units, by the
    importance in the effective weight W_0 + s B A. All other blocks are kept whole.
    """
    axes: dict[str, int] = {}
    importances: list[Tensor] = []
    for block in blocks:
        for suffix, axis in ((UP, 0), (DOWN, 1)):
            path = block.parameter.removesuffix(suffix)
            if block.parameter.endswith(suffix) and path + BASE in initial:
                weight = effective_weight(path, weights, initial, carrier.scale)
                axes[block.parameter] = axis
                importances.append(unit_importance(weight)[axis])
    units_of_each = keep_units_of_each(importances, mask.sparsity, mask.direction)
    keeps = {
        parameter: Keep(axis=axis, index=units)
        for (parameter, axis), units in zip(axes.items(), units_of_each, strict=True)
    }
    return tuple(replace(block, keep=keeps.get(block.parameter, block.keep)) for block in blocks)
