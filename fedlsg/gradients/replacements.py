"""Replace layers without per-example gradients by layers that have them (``make_supported``)."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedlsg.gradients.calls import UnsupportedLayerError
from fedlsg.gradients.hooked_pass.parameters import trainable
from fedlsg.gradients.hooked_pass.supported import check_supported, refusal

GROUPS = 32
"""Groups of a GroupNorm that replaces a BatchNorm, at most."""
CHANNELS = 4
"""Channels of a group, at least: a group of one value would be normalized to 0."""


class Supported(NamedTuple):
    """A model with per-example gradients. Printed, it shows the changes.

    model: the copy.
    changes: a sentence for each change.
    """

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
        place = path.removeprefix("model").removeprefix(".") or "the model itself"
        for kinds, change in CHANGES:
            replacement = change(module) if isinstance(module, kinds) else None
            if replacement is None:
                continue
            new, what = replacement
            parent, _, name = path.rpartition(".")
            if parent:
                setattr(holder.get_submodule(parent), name, new)
            else:
                holder[name] = new
            changes.append(f"{place} ({type(module).__name__}): {what}")
    try:
        check_supported(holder["model"])
    except UnsupportedLayerError as error:
        changes.append(f"still refused: {error}")
    return Supported(holder["model"], changes)


Change = tuple[nn.Module, str]
"""The module that replaces another one, and the words for it. The functions below give None for a
module that stays as it is.
"""


def group_norm(norm: _BatchNorm) -> Change | None:
    """GroupNorm with the scale and shift of a BatchNorm."""
    if refusal(norm) is None:
        return None
    channels = norm.num_features
    divisors = [g for g in range(1, GROUPS + 1) if channels % g == 0]
    groups = max(g for g in divisors if g == 1 or channels // g >= CHANNELS)
    like = next(iter([*norm.parameters(), *norm.buffers()]), torch.empty(0))
    new = nn.GroupNorm(groups, channels, eps=norm.eps, affine=norm.affine).to(device=like.device)
    _copy_parameters(new, norm)
    what = f"replaced by GroupNorm({groups}, {channels}), because it mixes the examples of a batch"
    return new.train(norm.training), what


def without_statistics(norm: _InstanceNorm) -> Change | None:
    """The same InstanceNorm without running statistics."""
    if not norm.track_running_stats or (not norm.training and not trainable(norm)):
        return None
    new = type(norm)(norm.num_features, eps=norm.eps, affine=norm.affine)
    _copy_parameters(new, norm)
    what = "running statistics switched off, because they are of the batch"
    return new.train(norm.training), what


def without_dropout(module: nn.MultiheadAttention | nn.RNNBase) -> Change | None:
    """The same module with dropout 0."""
    if not module.dropout or not trainable(module):
        return None
    what = (
        f"its own dropout of {module.dropout:g} switched off, because backward cannot draw it again"
    )
    module.dropout = 0.0
    return module, what


def without_batch_options(module: nn.Embedding | nn.EmbeddingBag) -> Change | None:
    """The same embedding without options that depend on the batch."""
    if module.max_norm is None and not module.scale_grad_by_freq:
        return None
    module.max_norm, module.scale_grad_by_freq = None, False
    what = "max_norm and scale_grad_by_freq switched off, because they depend on the whole batch"
    return module, what


def _copy_parameters(new: nn.Module, old: nn.Module) -> None:
    """Give the new module copies of the parameters: a norm in two places becomes two norms."""
    for name, p in old.named_parameters():
        setattr(new, name, nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad))


CHANGES: tuple[tuple[tuple[type[nn.Module], ...], Callable[..., Change | None]], ...] = (
    ((_BatchNorm,), group_norm),
    ((_InstanceNorm,), without_statistics),
    ((nn.MultiheadAttention, nn.RNNBase), without_dropout),
    ((nn.Embedding, nn.EmbeddingBag), without_batch_options),
)
"""Types of modules, and the function that replaces them."""
