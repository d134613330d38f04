"""Replace what has no per-example gradients by what has, and say what was done."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedlsg.gradients.calls import UnsupportedLayerError
from fedlsg.gradients.hooked_pass.supported import check_supported, refusal, trainable

GROUPS, CHANNELS = 32, 4
"""Most groups of a GroupNorm that replaces a BatchNorm, and fewest channels of a group: with one
value it gives 0.
"""


class Supported(NamedTuple):
    """A model, and what was changed, one sentence a change. Printed, it shows the sentences."""

    model: nn.Module
    changes: list[str]

    def __str__(self) -> str:
        return "\n".join(self.changes) or "nothing had to be changed"


def make_supported(model: nn.Module) -> Supported:
    """A copy of the model whose layers have per-example gradients; the given model is not changed.

    Replaced: BatchNorm of any kind (it mixes examples) by GroupNorm with its scale and shift,
    because running means say nothing about a single example; a frozen one in eval() mode stays.
    Statistics that InstanceNorm keeps of the batch, dropout inside attention and recurrent layers
    (it cannot be drawn again in backward) and an embedding's ``max_norm`` and
    ``scale_grad_by_freq`` are switched off. A replaced norm computes something else: train the
    model again, or check its accuracy. The last sentence names what is still refused, with its fix.
    """
    holder = nn.ModuleDict({"model": copy.deepcopy(model)})
    changes: list[str] = []
    for path, module in list(holder.named_modules(remove_duplicate=False)):
        shown = path.removeprefix("model").removeprefix(".") or "the model itself"
        for kinds, change in CHANGES:
            replacement = change(module) if isinstance(module, kinds) else None
            if replacement is None:
                continue
            new, what = replacement
            parent, _, name = path.rpartition(".")
            setattr(holder.get_submodule(parent), name, new) if parent else holder.update(
                {name: new}
            )
            changes.append(f"{shown} ({type(module).__name__}): {what}")
    try:
        check_supported(holder["model"])
    except UnsupportedLayerError as error:
        changes.append(f"still refused: {error}")
    return Supported(holder["model"], changes)


Change = tuple[nn.Module, str]


def group_norm(norm: _BatchNorm) -> Change | None:
    """GroupNorm with the scale and shift of a BatchNorm."""
    if refusal(norm) is None:
        return None
    channels = norm.num_features
    groups = max(
        g
        for g in range(1, GROUPS + 1)
        if channels % g == 0 and (g == 1 or channels // g >= CHANNELS)
    )
    like = next(iter([*norm.parameters(), *norm.buffers()]), torch.empty(0))
    new = nn.GroupNorm(groups, channels, eps=norm.eps, affine=norm.affine).to(device=like.device)
    _take_parameters(new, norm)
    return new.train(
        norm.training
    ), f"replaced by GroupNorm({groups}, {channels}), because it mixes the examples of a batch"


def without_statistics(norm: _InstanceNorm) -> Change | None:
    """The same InstanceNorm without running statistics."""
    if not norm.track_running_stats or (not norm.training and not trainable(norm)):
        return None
    new = type(norm)(norm.num_features, eps=norm.eps, affine=norm.affine)
    _take_parameters(new, norm)
    return new.train(
        norm.training
    ), "running statistics switched off, because they are of the batch"


def without_dropout(module: nn.MultiheadAttention | nn.RNNBase) -> Change | None:
    """The same module with dropout 0."""
    if not module.dropout or not trainable(module):
        return None
    before, module.dropout = module.dropout, 0.0
    return (
        module,
        f"its own dropout of {before:g} switched off, because backward cannot draw it again",
    )


def plain_embedding(module: nn.Embedding | nn.EmbeddingBag) -> Change | None:
    """The same embedding without what depends on the batch."""
    if module.max_norm is None and not module.scale_grad_by_freq:
        return None
    module.max_norm, module.scale_grad_by_freq = None, False
    return (
        module,
        "max_norm and scale_grad_by_freq switched off, because they depend on the whole batch",
    )


def _take_parameters(new: nn.Module, old: nn.Module) -> None:
    """Copies of the parameters: a norm in two places becomes two norms."""
    for name, p in old.named_parameters():
        setattr(new, name, nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad))


CHANGES: tuple[tuple[tuple[type[nn.Module], ...], Callable[..., Change | None]], ...] = (
    ((_BatchNorm,), group_norm),
    ((_InstanceNorm,), without_statistics),
    ((nn.MultiheadAttention, nn.RNNBase), without_dropout),
    ((nn.Embedding, nn.EmbeddingBag), plain_embedding),
)
