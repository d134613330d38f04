"""The naive reference: autograd's dense gradient of one example after another, projected and masked
afterwards.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.frame import Block, Coordinates, Frame, Keep, make_blocks
from fedlsg.frame.forms import FORMS
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.lowrank import decompose, flatten_kernel, orthonormal_columns, project, project_core
from fedlsg.masks.freezing import keep_units, uniform, unit_importance

TOLERANCE = 1e-9


def make_frame(
    model: nn.Module, *, rank: int, sparsity: float, carry: bool = True, flat: bool = False
) -> Frame:
    """A frame of the model's trainable parameters: weights of two dimensions or more carried if
    ``carry``.

    The mask keeps whole units of the carriers by importance, or with ``flat`` uniform coordinates
    of every block.
    """
    generator = torch.Generator().manual_seed(11)
    coordinates = []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        pair: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
        if carry and p.ndim >= 2 and name.endswith("weight") and p.ndim != 3:
            pair = decompose(p, min(rank, *flatten_kernel(p).shape), generator=generator)
        coordinates.append(Coordinates(name=name, shape=tuple(p.shape), L=pair[0], R=pair[1]))
    weights = dict(model.named_parameters())

    def masked(block: Block) -> Block:
        if flat:
            keep = Keep(index=uniform(block.size, sparsity, generator=generator))
        elif block.part == "dense":
            return block
        else:
            out_units, in_units = unit_importance(weights[block.parameter])
            left = block.part == "L"
            keep = Keep(
                axis=0 if left else 1, index=keep_units(out_units if left else in_units, sparsity)
            )
        return replace(block, keep=keep)

    return Frame(
        coordinates=tuple(coordinates), blocks=tuple(masked(b) for b in make_blocks(coordinates))
    )


def make_core_frame(model: nn.Module, *, out_rank: int, rank: int, square: bool = False) -> Frame:
    """Every weight of two dimensions or more as a core; carriers of any scale, orthonormal and m x
    m, n x n if square.

    Every third coordinate of a core is masked away unless square, every second row of that of a
    kernel.
    """
    generator, coordinates = torch.Generator().manual_seed(12), []
    for name, p in model.named_parameters():
        pair: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
        if p.requires_grad and p.ndim >= 2:
            m, n = flatten_kernel(p).shape
            columns = (m, n) if square else (min(out_rank, m), min(rank, n))
            L, R = (
                torch.randn(k, r, generator=generator).to(p)
                for k, r in zip((m, n), columns, strict=True)
            )
            L, R = (orthonormal_columns(L), orthonormal_columns(R)) if square else (L, R)
            pair = L, R.mT.contiguous()
        if p.requires_grad:
            coordinates.append(
                Coordinates(
                    name=name, shape=tuple(p.shape), L=pair[0], R=pair[1], form=FORMS["core"]
                )
            )

    def masked(block: Block) -> Block:
        if block.part != "core" or square:
            return block
        if len(next(c for c in coordinates if c.name == block.parameter).shape) > 2:
            return replace(block, keep=Keep(axis=0, index=torch.arange(0, block.shape[0], 2)))
        return replace(block, keep=Keep(index=torch.arange(0, block.size, 3)))

    return Frame(
        coordinates=tuple(coordinates), blocks=tuple(masked(b) for b in make_blocks(coordinates))
    )


def naive(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor | dict[str, Tensor],
    targets: Tensor,
    frame: Frame,
) -> list[Tensor]:
    """Kept block gradients, one example at a time, from dense gradients."""
    parameters = dict(model.named_parameters())
    chosen = [parameters[c.name] for c in frame.coordinates]
    rows = []
    for i in range(len(targets)):
        if isinstance(inputs, Tensor):
            output = model(inputs[i : i + 1])
        else:
            output = model(**{k: t[i : i + 1] for k, t in inputs.items()})
        gradients = torch.autograd.grad(
            loss_fn(output, targets[i : i + 1]).sum(), chosen, allow_unused=True
        )
        dense = [
            torch.zeros_like(p) if g is None else g for g, p in zip(gradients, chosen, strict=True)
        ]
        rows.append(flat_gradient(dense, frame)[frame.indices])
    return list(torch.stack(rows).split([b.kept for b in frame.blocks], dim=1))


def flat_gradient(gradients: Sequence[Tensor], frame: Frame) -> Tensor:
    """Weight-shaped gradients in the frame's flat coordinates, unmasked."""
    pieces: list[Tensor] = []
    for c, g in zip(frame.coordinates, gradients, strict=True):
        if c.L is not None and c.R is not None and c.form.name != "tangent":
            pieces += [project_core(g, c.L, c.R)]
        else:
            pieces += [g] if c.L is None or c.R is None else project(g, c.L, c.R)
    return torch.cat([p.flatten() for p in pieces])


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss an example, with a different gradient at every output."""
    return (outputs.flatten(1) - targets.unsqueeze(1)).square().sum(1) / 2


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss an example."""
    return F.cross_entropy(outputs, targets, reduction="none")


def naive_error(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor | dict[str, Tensor],
    targets: Tensor,
    frame: Frame,
) -> float:
    """Error of the shipped per-example gradients against `naive`."""
    got = per_example_gradients(model, loss_fn, inputs, targets, frame)
    return error(got, naive(model, loss_fn, inputs, targets, frame))


def error(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Largest difference, relative to the largest wanted value. Shapes must agree."""
    assert [t.shape for t in got] == [t.shape for t in wanted]
    scale = max([1.0] + [float(t.abs().max()) for t in wanted if t.numel()])
    return (
        max(
            [0.0]
            + [float((a - b).abs().max()) for a, b in zip(got, wanted, strict=True) if a.numel()]
        )
        / scale
    )
