"""Which examples of a batch share a pass, and in which shape: no example's gradient may depend on that.

The shape of a matrix product selects its kernel, and the kernel decides how each row is rounded. So another number of
rows, or another padded length, can change the rounding of every row. In float32 this moves a clipped gradient by less
than 1e-6 C. In fewer bits it moves the gradients of all neighbours by up to 1 % of C each. A single row has another
kernel than several rows, in float32 too: it can flip a ReLU, which moves a gradient of a deep network by up to 8e-3 C
(ResNet-34). These are numbers of ordinary weights. Weights that an adversary chose can turn a last bit into a whole C,
wherever kernels differ: a client that does not trust its server takes ``LocalTraining.one_shape``. So do carriers that
can do the same, by ``Frame.one_shape``. Therefore:
    groups      runs of positions that may share a microbatch: equal shapes only, such as texts of one padded length
    shape       how many rows a microbatch has in the end; those that are missing are copies of its first row
A copied row changes nothing but the shape: its gradient is dropped before the clip.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlsg.gradients import FLOAT32, Batch, GhostGradients, keeps_float32_digits
from fedlsg.training.local import Groups, LocalTraining, Positions

FULL = 4
"""Bytes of a float32 number."""

LEAST = 2
"""Rows that a microbatch has at least, where it may have more than one."""

ROWS_ON_CPU = 8
"""In fewer bits, multiples of so many rows are rounded alike by the kernels for processors, whatever their number, and
in float32 whatever a row's place among them (measured in docs/results/sensitivity.md); a single row takes another
kernel."""


def together(positions: Positions) -> Sequence[Positions]:
    """One group: examples that are alike in shape."""
    return [positions]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A microbatch has at most ``size`` examples, and is filled up to a multiple of ``multiple``. Both are public."""

    size: int
    multiple: int = 1

    def rows(self, count: int) -> int:
        """Rows of a microbatch of ``count`` examples, none of an empty one."""
        return min(self.size, max(math.ceil(count / self.multiple) * self.multiple, LEAST)) if count else 0


def shape_of(local: LocalTraining, parameters: Iterable[Tensor], *, one_shape: bool = False) -> Shape:
    """The shape that every microbatch of a run has.

    float32 on a processor: as many rows as there are examples, LEAST for a single one. In fewer bits there: a multiple
    of ROWS_ON_CPU. On other devices, whose kernels differ more, and under ``one_shape``: one number of rows always, the
    microbatch size or, where that is less, what a batch hardly ever exceeds; on a processor, the next multiple of
    ROWS_ON_CPU: where a row leaves, all later ones move up by one place. ``one_shape``: that of the frame.
    """
    some, size = list(parameters), max(1, local.microbatch_size // local.multiplicity)
    on_cpu = all(p.device.type == "cpu" for p in some)
    if one_shape or local.one_shape or not on_cpu:
        size = min(size, math.ceil(local.expected_batch + 6 * math.sqrt(local.expected_batch)))
        if on_cpu and size > 1:
            size = math.ceil(size / ROWS_ON_CPU) * ROWS_ON_CPU
        return Shape(size=size, multiple=size)
    if local.precision == FLOAT32 and keeps_float32_digits("cpu") and all(p.itemsize >= FULL for p in some):
        return Shape(size=size)
    return Shape(size=size, multiple=min(size, ROWS_ON_CPU))


def runs_of(batch: Positions, groups: Groups, shape: Shape) -> list[tuple[int, Positions]]:
    """The batch in microbatches, each with the number of its group; an empty batch is one empty run.

    Raises ValueError where the groups do not hold exactly the batch's positions.
    """
    filled = [group for group in groups(batch) if len(group)]
    whole = len(filled) == 1 and filled[0] is batch
    if not whole and not torch.equal(torch.cat([batch[:0], *filled]).sort().values, batch.sort().values):
        raise ValueError("expected groups that hold every position of the batch once; return each in one group")
    numbered = enumerate(filled or [batch])
    return [(number, run) for number, group in numbered for run in (group.split(shape.size) if len(group) else [group])]


def check_alike(inputs: Batch, group: int, seen: dict[int, list[torch.Size]]) -> None:
    """Raise ValueError where a group's microbatches differ in shape: one example's length would change the others.

    The message says nothing of the shapes, which are private.
    """
    shapes = [t.shape[1:] for t in ([inputs] if isinstance(inputs, Tensor) else inputs.values())]
    if seen.setdefault(group, shapes) != shapes:
        raise ValueError(
            "expected inputs of one shape from all microbatches of a group, found several: padding to the longest of a "
            "microbatch lets one example change the rounding of others by more than the privacy bound allows, in "
            "bfloat16, in half precision, on devices other than a CPU, and by methods that scale rounding up (dp-kfc, "
            "gep); pad each example to the next of a public list of lengths and return each length as a group of its "
            "own (groups=), or set precision=float32 and activation_storage=float32 on a CPU, with another method"
        )


def fill(batch: Batch, rows: int) -> Batch:
    """Inputs or targets with the first row copied behind the last until there are ``rows``."""
    if not isinstance(batch, Tensor):
        return {name: _filled(tensor, rows) for name, tensor in batch.items()}
    return _filled(batch, rows)


def _filled(tensor: Tensor, rows: int) -> Tensor:
    missing = rows - len(tensor)
    return tensor if missing <= 0 else torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])])


def without_filling(gradients: Sequence[Tensor | GhostGradients], rows: int) -> list[Tensor | GhostGradients]:
    """The gradients of the first ``rows`` rows: those of examples."""
    filled = bool(gradients) and gradients[0].shape[0] != rows
    return [g.first(rows) if isinstance(g, GhostGradients) else g[:rows] for g in gradients] if filled else [*gradients]
