"""Values that all examples share: ``Unbatched`` tensors, the leaves from which they come, and
tables read by rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedlsg.gradients.calls import UnsupportedLayerError
from fedlsg.gradients.calls.survey import UNKNOWN, repeats_of
from fedlsg.gradients.calls.torch_func import tensors_in
from fedlsg.gradients.formulas.embedding_rows import Lazy
from fedlsg.gradients.hooked_pass.call_layers import Graph

ELEMENTWISE = {
    "add",
    "add_",
    "sub",
    "sub_",
    "rsub",
    "mul",
    "mul_",
    "multiply",
    "div",
    "div_",
    "true_divide",
    "divide",
    "subtract",
    "maximum",
    "minimum",
    "where",
    "lerp",
    "addcmul",
    "pow",
    "__add__",
    "__iadd__",
    "__radd__",
    "__sub__",
    "__isub__",
    "__rsub__",
    "__mul__",
    "__imul__",
    "__rmul__",
    "__truediv__",
    "__itruediv__",
    "__rtruediv__",
    "__rdiv__",
    "__pow__",
    "__rpow__",
}
"""Operations that give the same result if a value is copied for each example first."""
JOINS = {"cat", "concat", "concatenate"}
LIKE = {"expand_as", "view_as", "reshape_as", "type_as"}
"""Operations that read only the shape or type of their second tensor."""
FIX = (
    "use it by +, -, *, /, torch.cat, F.linear, x @ p or F.embedding, put it in a layer of "
    "torch.nn, give the module's gradients by fedlsg.register_layer, or freeze it"
)
STATE_FIX = (
    "expand one value (layers, 1, units) last, as start.expand(-1, B, -1) or start.repeat(1, B, 1)"
)


def axis_of_read(step: Graph, name: str, read: int, ids: Tensor) -> int | None:
    """The axis of the examples in the numbers of rows that are read; None if all examples share
    them (``survey``).

    Raises UnsupportedLayerError where no axis has the examples alone.
    """
    known = step.survey.tables.get(name, ())
    axis = known[read - 1] if read <= len(known) else UNKNOWN
    if step.survey.failure:
        raise UnsupportedLayerError(
            f"{name or 'a table'}: the model does not run on copies of one row, which tell where "
            f"the examples are: {step.survey.failure}"
        )
    if axis is not None and (axis < 0 or ids.ndim <= axis or ids.shape[axis] != step.batch):
        raise UnsupportedLayerError(
            f"{name or 'a table'}: its rows are read by numbers of shape {tuple(ids.shape)}, of "
            f"which no dimension is the batch of {step.batch} alone; embed the ids batch first, "
            "(B, positions), or freeze it"
        )
    return axis


class Unbatched(Tensor):
    """A value that all examples share, and that depends on trainable parameters."""

    uses: Any
    parameters: tuple[str, ...]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation on such a value."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            first = next(t for t in tensors_in((args, kwargs)) if isinstance(t, Unbatched))
            return first.uses.apply(func, args, kwargs)


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A leaf of the graph to which gradients are pulled back, and who takes its gradients (B,
    *shape).
    """

    name: str
    leaf: Unbatched
    receive: Callable[[Sequence[Tensor | Lazy]], None]


def plain(t: Tensor) -> Tensor:
    """An Unbatched value as a tensor without a graph; another tensor as it is."""
    return t.detach().as_subclass(Tensor) if isinstance(t, Unbatched) else t


def gradients_at(
    source: Source, value: Tensor, g: Tensor | Lazy, batch: int
) -> Iterator[Tensor | Lazy]:
    """The gradient of each example at a source, for its gradient at a value; none where it has no
    part in it.
    """
    if value is source.leaf:
        yield g if not isinstance(g, Tensor) else g.reshape(batch, *source.leaf.shape)
        return
    whole = (g if isinstance(g, Tensor) else g.dense()).reshape(batch, *value.shape)
    (gradient,) = torch.autograd.grad(
        value, [source.leaf], whole, retain_graph=True, allow_unused=True, is_grads_batched=True
    )
    if gradient is not None:
        yield gradient


def alone(
    uses: Any, func: Any, name: str, args: Any, kwargs: Any, mine: Sequence[Unbatched]
) -> Any:
    """An operation without the batch. Copies along a dimension stay one memory, so that they are
    known.
    """
    first = args[0]
    if name == "repeat" and first is mine[0]:
        sizes = repeats_of(args)
        if (
            uses.step.survey.tiles
            and sizes == (uses.step.batch, *(1,) * (first.ndim - 1))
            and len(first) > 1
        ):
            return uses.copy(uses.wrap(first.unsqueeze(0), mine), first.ndim + 1).flatten(0, 1)
        shape = (*(1,) * (len(sizes) - first.ndim), *first.shape)
        once = first.reshape(shape).repeat(
            [1 if n == 1 else k for n, k in zip(shape, sizes, strict=True)]
        )
        return uses.wrap(
            once.expand([k if n == 1 else -1 for n, k in zip(shape, sizes, strict=True)]), mine
        )
    if name in ("clone", "contiguous") and 0 in first.stride()[: 2 if first.ndim == 3 else 1]:
        return first
    return uses.wrap(func(*args, **kwargs), mine)
