"""Chosen gradients in place of a backward pass (the argument ``gradients`` of ``client_step``).

Everything after the backward pass is the client's own code.
A batch then has gradients as its inputs, (B, kept), which the batch function gives by position
(``Units``). Where the step uses ghost clipping, they come as factors, too (``GhostLayer``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.frame import Frame
from fedlsg.gradients import GhostGradients
from fedlsg.gradients.formulas.ghost import worth_it
from fedlsg.training import client_round
from fedlsg.training.example_gradients import ExampleGradients

Layers = Mapping[int, "GhostLayer"]
"""By their place in the frame."""


class Units:
    """n units for each row, as a batch function takes them: as many rows are never in memory.

    Those of different rows take turns; ``in_order``: those of one row follow each other.
    """

    def __init__(self, rows: Float[Tensor, "k kept"], each: int, *, in_order: bool = False) -> None:
        self.rows, self.each, self.in_order = rows, each, in_order

    def __len__(self) -> int:
        return len(self.rows) * self.each

    def __getitem__(self, at: Tensor | slice | int) -> Tensor:
        places = torch.arange(len(self))[at]
        return self.rows[places // self.each if self.in_order else places % len(self.rows)]

    def to(self, device: torch.device) -> "Units":
        """The same, with its rows on a device."""
        return Units(self.rows.to(device), self.each, in_order=self.in_order)


@dataclass(frozen=True, kw_only=True, eq=False)
class GhostLayer:
    """A weight whose gradients may be ghosts, and the direction that its units have: g of length 1
    in each position, times x.
    """

    module: nn.Linear
    x: Float[Tensor, "positions n"]
    direction: Float[Tensor, " kept"]


def ghost_layers(
    setting: AuditSetting, generator: torch.Generator, positions: int
) -> dict[int, GhostLayer]:
    """The blocks for which ghost clipping is used, by their position in the frame.

    None if the shipped step does not use it.
    """
    frame, stated = setting.frame, setting.stated
    allowed = client_round.allows_ghost_clipping(frame) and setting.mechanism.clip == "joint"
    if stated.whole or setting.unit.persons or setting.local.multiplicity > 1 or not allowed:
        return {}
    modules, layers = dict(setting.model.named_modules()), {}
    starts = [0, *torch.tensor([b.kept for b in frame.blocks]).cumsum(0).tolist()]
    for i, block in enumerate(frame.blocks):
        module = modules.get(block.parameter.removesuffix(".weight"))
        if type(module) is not nn.Linear or block.part != "dense" or block.kept != block.size:
            continue
        if worth_it(module.weight):
            g, x = (torch.randn(size, generator=generator) for size in block.shape)
            direction = torch.zeros(frame.kept)
            direction[starts[i] : starts[i + 1]] = torch.outer(g / g.norm(), x / x.norm()).flatten()
            inputs = (x / x.norm() / positions).expand(positions, -1)
            layers[i] = GhostLayer(module=module, x=inputs, direction=direction)
    return layers


def ghosts_along(layer: GhostLayer, rows: Float[Tensor, "batch kept"]) -> GhostGradients:
    """Rows along ``layer.direction`` as factors: the same g in every position."""
    positions, x = len(layer.x), layer.x.to(rows)
    g = (rows.unflatten(1, (-1, x.shape[1])) @ x[0] * positions).unsqueeze(1)
    g, x = g.repeat(1, positions, 1), x.expand(len(rows), -1, -1).contiguous()
    g, x = (g.squeeze(1), x.squeeze(1)) if positions == 1 else (g, x)
    return GhostGradients(layer.module, g, x, g._version)


def given_gradients(layers: Layers | None = None) -> ExampleGradients:
    """A batch's inputs, (B, kept), as the gradients of its rows; those of ``layers`` as ghosts.

    Without ``layers`` there is no ghost clipping: no layer has an input and a gradient of which
    ghosts would be made.
    """

    def rows(
        model: nn.Module,
        loss_fn: object,
        inputs: Tensor,
        targets: Tensor,
        frame: Frame,
        **options: object,
    ) -> list[Tensor]:
        return list(inputs.split([b.kept for b in frame.blocks], dim=1))

    if not layers:
        return ExampleGradients(rows=rows, blocks=None)

    def blocks(
        model: nn.Module,
        loss_fn: object,
        inputs: Tensor,
        targets: Tensor,
        frame: Frame,
        **options: object,
    ) -> list[Tensor | GhostGradients]:
        formed = rows(model, loss_fn, inputs, targets, frame)
        return [
            ghosts_along(layers[i], block) if i in layers else block
            for i, block in enumerate(formed)
        ]

    return ExampleGradients(rows=rows, blocks=blocks)


def refuse_loss(outputs: object, targets: object) -> Tensor:
    """The loss of a unit with given gradients, which nothing computes."""
    raise AssertionError("a canary's gradient is given, no loss is computed")
