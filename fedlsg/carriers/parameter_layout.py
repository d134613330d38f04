"""A table of a model's parameters: each is carried, dense or frozen, and sends so many values.

The rule is that of ``carried_parameters``; the table shows it to people and tests.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from torch import nn

from fedlsg.carriers.base import Carrier, carried_parameters
from fedlsg.carriers.lora import BASE, CORE, DOWN, UP, Adapted
from fedlsg.frame import Block

Travel = Literal["carried", "dense", "frozen"]
"""How a parameter is sent: as values of its carriers, as it is, or not at all."""


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One parameter, or ``count`` of them that differ in their layer's number only.

    name: of the parameter; "*" for numbers that differ.
    shape: of each.
    travel: how each is sent.
    values: what one update sends for each of them, before a mask: ``Carrier.values`` where carried,
        all where dense, 0 where frozen.
    count: number of the parameters.
    sent: what all ``count`` of them send after the mask; None if no frame was given.
    """

    name: str
    shape: tuple[int, ...]
    travel: Travel
    values: int
    count: int = 1
    sent: int | None = None


def layer_table(
    model: nn.Module,
    carrier: Carrier,
    classifier: str | None = None,
    *,
    blocks: Iterable[Block] | None = None,
) -> list[LayerRow]:
    """A row for every parameter, in model order. The model is one that ``prepare_model`` has
    prepared.

    A weight that LoRA adapts is one carried row under its own name; its factors are the values.
    ``blocks``: those of a frame, with its mask. Works on the meta device: only shapes are read.
    Raises what ``carried_parameters`` raises.
    """
    carried = set(carried_parameters(model, carrier, classifier=classifier))
    adapted = {
        path: module for path, module in model.named_modules() if isinstance(module, Adapted)
    }
    bases = {path + BASE: module for path, module in adapted.items()}
    factors = {path + suffix for path in adapted for suffix in (DOWN, CORE, UP)}
    kept: Counter[str] = Counter()
    for block in blocks or ():
        kept[block.parameter] += block.kept
    rows = []
    for name, p in model.named_parameters():
        travel: Travel = "frozen"
        values, sent = 0, kept[name]
        if name in factors:
            continue  # counted with the weight that it adapts
        if name in bases:
            travel, values = "carried", _trained_values(bases[name])
            sent = sum(kept[name.removesuffix(BASE) + suffix] for suffix in (DOWN, CORE, UP))
        elif name in carried:
            travel, values = "carried", carrier.values(p)
        elif p.requires_grad:
            travel, values = "dense", p.numel()
        path, base, attribute = name.rpartition(".base.")
        rows.append(
            LayerRow(
                name=f"{path}.{attribute}" if base and path in adapted else name,
                shape=tuple(p.shape),
                travel=travel,
                values=values,
                sent=None if blocks is None else sent,
            )
        )
    return rows


def _trained_values(adapted: Adapted) -> int:
    """Trainable values of a LoRA layer's factors."""
    factors = (adapted.down, adapted.core, adapted.up)
    weights = (W for factor in factors if factor is not None for W in factor.parameters())
    return sum(W.numel() for W in weights if W.requires_grad)


def group_layers(rows: Iterable[LayerRow]) -> list[LayerRow]:
    """The rows, of which repeated layers are one, in order of first appearance.

    Numbers in the names of their layers become ``*``.

    ``encoder.layer.0.output.weight`` to ``encoder.layer.11.output.weight`` of one shape that travel
    alike are one row with ``count=12``. The sums of ``count * values`` and of ``sent`` stay.
    """
    groups: dict[tuple[str, tuple[int, ...], Travel, int], LayerRow] = {}
    for row in rows:
        name = re.sub(r"(?<![^.])\d+(?![^.])", "*", row.name)
        key = (name, row.shape, row.travel, row.values)
        before = groups.get(key)
        groups[key] = replace(row, name=name) if before is None else _add(before, row)
    return list(groups.values())


def _add(group: LayerRow, row: LayerRow) -> LayerRow:
    """The group with one more row."""
    sent = None if group.sent is None or row.sent is None else group.sent + row.sent
    return replace(group, count=group.count + row.count, sent=sent)


def totals(rows: Iterable[LayerRow]) -> dict[Travel, tuple[int, int, int]]:
    """(tensors, their entries, values sent) of each kind of ``Travel``; zeros without a row."""
    sums: dict[Travel, tuple[int, int, int]] = dict.fromkeys(get_args(Travel), (0, 0, 0))
    for row in rows:
        tensors, entries, values = sums[row.travel]
        sums[row.travel] = (
            tensors + row.count,
            entries + row.count * math.prod(row.shape),
            values + row.count * row.values,
        )
    return sums
