"""LoRA: a frozen weight plus two trained factors (Hu et al. 2022), and which parameters a method trains.

Symbols: W_0 (m, n) frozen weight    A (r, n) "down"    B (m, r) "up"    s = alpha / r
    y = W_0 x + s B A x, and the effective weight is W_0 + s B A
The factors are ordinary layers, so that their per-example gradients, clip, noise and payload are those of any other
dense parameter: dB = s g^T (A x), dA = s (B^T g)^T x. A convolution's factors are a (r, c, kh, kw) kernel followed by
a 1 x 1 one, (m, r, 1, 1).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.carriers.carrier import Carrier, adapted_parameters, carried_parameters, without_residual
from fedlsg.carriers.head import find_classifier
from fedlsg.frame import Block, Keep
from fedlsg.gradients import trainable
from fedlsg.masks import Mask, keep_units, unit_importance
from fedlsg.randomness import public_generator

DOWN, UP, BASE, BIAS = ".down.weight", ".up.weight", ".base.weight", ".bias"


class Adapted(nn.Module):
    """A Linear or Conv2d whose weight is frozen, plus the product of two trained factors; its bias is trained on."""

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        base.weight.requires_grad_(False)
        self.down: nn.Module
        self.up: nn.Module
        if isinstance(base, nn.Conv2d):
            kernel = (base.kernel_size, base.stride, base.padding, base.dilation)
            self.down = nn.Conv2d(base.in_channels, rank, *kernel, bias=False, device="meta")  # type: ignore[arg-type]
            self.up = nn.Conv2d(rank, base.out_channels, 1, bias=False, device="meta")
        else:
            self.down = nn.Linear(base.in_features, rank, bias=False, device="meta")
            self.up = nn.Linear(rank, base.out_features, bias=False, device="meta")
        self.down.to_empty(device=base.weight.device).to(base.weight.dtype)
        self.up.to_empty(device=base.weight.device).to(base.weight.dtype)
        fan_in = base.weight[0].numel()
        draw = torch.rand(self.down.get_parameter("weight").shape, generator=generator) * 2 - 1
        with torch.no_grad():  # LoRA's start: A Kaiming-uniform with a = sqrt(5), B zero, so that nothing changes yet
            self.down.get_parameter("weight").copy_(draw / fan_in**0.5)
            self.up.get_parameter("weight").zero_()

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) as the frozen layer takes it."""
        result: Tensor = self.base(x) + self.scale * self.up(self.down(x))
        return result


def prepare_model(model: nn.Module, carrier: Carrier, *, classifier: str | None = None, seed: int) -> nn.Module:
    """The model that a method trains, changed in place: adapters inserted, what it does not train frozen, or W_0 cut.

    ``lora`` adapts the layers outside of the head that low-rank carriers of this rank would carry. ``residual=False``
    leaves of the carried weights their rank-r part: cut later, W - W_0 would be the residual that was cut off and not
    the updates. ``classifier`` names the head; without it, the last Linear.
    Deterministic in its arguments.
    Raises ValueError if no layer can be adapted, or the model lacks what is to be trained: a classifier, bias terms.
    """
    head = find_classifier(model, classifier)
    if carrier.train == "classifier":
        if not head:
            raise ValueError(f"{type(model).__name__} has no Linear layer to train as its classifier")
        freeze_all_but(model, (), head)
    if carrier.train == "biases":
        biases = [name for name in trainable(model) if f".{name}".endswith(BIAS) and not name.startswith(head + ".")]
        if not biases:
            raise ValueError(
                f"{type(model).__name__} has no bias terms to train outside of its classifier {head!r}: choose a "
                "model whose layers have biases, or method linear-probe"
            )
        freeze_all_but(model, biases, head)
    if not carrier.residual:
        for name in carried_parameters(model, carrier, classifier=classifier):
            W = model.get_parameter(name).detach()
            W.copy_(without_residual(W, carrier, generator=public_generator(seed, "truncate", 0, name)))
    if carrier.kind == "lora":
        for parameter_name in adapted_parameters(model, carrier, classifier=classifier):
            path = parameter_name.removesuffix("weight").removesuffix(".")
            if not path:
                raise ValueError("LoRA needs layers inside a model; this model is a single layer")
            owner, _, attribute = path.rpartition(".")
            base = model.get_submodule(path)
            assert isinstance(base, nn.Linear | nn.Conv2d)
            adapted = Adapted(base, carrier.rank, carrier.scale, public_generator(seed, "lora", path))
            setattr(model.get_submodule(owner), attribute, adapted)
    if carrier.train == "up":
        adapters = [path + UP for path, module in model.named_modules() if isinstance(module, Adapted)]
        freeze_all_but(model, adapters, head)
    return model


def freeze_all_but(model: nn.Module, kept: Collection[str], head: str) -> None:
    """Freeze all parameters but those named and those of the module at ``head``."""
    for name, parameter in model.named_parameters():
        if name not in kept and not name.startswith(head + "."):
            parameter.requires_grad_(False)


def frozen_bases(model: nn.Module) -> dict[str, Tensor]:
    """W_0 of every adapted layer, by parameter name: public and constant, what masks of lsg-lora need."""
    return {path + BASE: m.base.weight.detach() for path, m in adapted_layers(model).items()}


def effective_weight(
    path: str, weights: Mapping[str, Tensor], initial: Mapping[str, Tensor], scale: float
) -> Float[Tensor, "m *rest"]:
    """W_0 + s B A of the adapted layer at ``path``, in the shape of W_0."""
    W_0, A, B = initial[path + BASE], weights[path + DOWN], weights[path + UP]
    return W_0 + scale * (B.flatten(1) @ A.flatten(1)).reshape(W_0.shape)


def adapted_layers(model: nn.Module) -> dict[str, Adapted]:
    """Every adapted layer by its path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Adapted)}


def merge(tensors: Mapping[str, Tensor], paths: Collection[str], scale: float) -> dict[str, Tensor]:
    """The state_dict of the model without adapters: W = W_0 + s B A in each adapted layer, the factors left out.

    ``tensors``: the state_dict of the model with adapters at ``paths``. Names and their order are those of the model
    before ``prepare_model``. It is the same function up to rounding where a layer is linear in its weight: a
    weight-standardised convolution is not. Raises KeyError for a path that the tensors lack.
    """
    found = dict(tensors)
    for path in paths:
        found[path + BASE] = effective_weight(path, tensors, tensors, scale)
        del found[path + DOWN], found[path + UP]
    places = {name: name.rpartition(".base.") for name in found}
    return {f"{path}.{own}" if path in paths else name: found[name] for name, (path, _, own) in places.items()}


def mask_factors(
    blocks: Sequence[Block], weights: Mapping[str, Tensor], initial: Mapping[str, Tensor], mask: Mask, carrier: Carrier
) -> tuple[Block, ...]:
    """Blocks of which dB keeps the rows of important out units and dA the columns of important in units.

    Source: Ito et al. 2024, Alg. 1. Importance is that of the effective weight W_0 + s B A. All other blocks are kept
    whole.
    """
    return tuple(replace(block, keep=_keep(block, weights, initial, mask, carrier)) for block in blocks)


def _keep(
    block: Block, weights: Mapping[str, Tensor], initial: Mapping[str, Tensor], mask: Mask, carrier: Carrier
) -> Keep:
    for suffix, axis in ((UP, 0), (DOWN, 1)):
        path = block.parameter.removesuffix(suffix)
        if block.parameter.endswith(suffix) and path + BASE in initial:
            importance = unit_importance(effective_weight(path, weights, initial, carrier.scale))[axis]
            return Keep(axis=axis, index=keep_units(importance, mask.sparsity, mask.direction))
    return block.keep
