"""Values that all examples share (``Unbatched``), and what they do without the batch."""

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
"""Operations that join tensors along a dimension."""
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
    """The axis of the examples in the row numbers of a read; None if all examples share them.

    name: of the table's parameter; empty for a table that parameters give.
    read: number of the read in the pass, from 1.
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
    """A value that all examples share, and that depends on trainable parameters.

    uses: the ``Uses`` of the pass.
    parameters: names of the parameters that it depends on.
    """

    uses: Any
    parameters: tuple[str, ...]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass every operation on such a value to ``Uses.apply``."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            first = next(t for t in tensors_in((args, kwargs)) if isinstance(t, Unbatched))
            return first.uses.apply(func, args, kwargs)


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A leaf of the graph to which gradients are pulled back.

    name: of the parameter.
    leaf: the value.
    receive: takes its gradients (B, *shape), one for each use.
    """

    name: str
    leaf: Unbatched
    receive: Callable[[Sequence[Tensor | Lazy]], None]


def as_plain(t: Tensor) -> Tensor:
    """An Unbatched value as a tensor without a graph; another tensor as it is."""
    return t.detach().as_subclass(Tensor) if isinstance(t, Unbatched) else t


def gradients_at(
    source: Source, value: Tensor, g: Tensor | Lazy, batch: int
) -> Iterator[Tensor | Lazy]:
    """The gradient of each example at a source, from its gradient g at a value.

    Nothing if the value was not computed from the source.
    """
    if value is source.leaf:
        yield g if not isinstance(g, Tensor) else g.reshape(batch, *source.leaf.shape)
        return
    dense = (g if isinstance(g, Tensor) else g.dense()).reshape(batch, *value.shape)
    (gradient,) = torch.autograd.grad(
        value, [source.leaf], dense, retain_graph=True, allow_unused=True, is_grads_batched=True
    )
    if gradient is not None:
        yield gradient


def apply_alone(
    uses: Any, func: Any, name: str, args: Any, kwargs: Any, mine: Sequence[Unbatched]
) -> Any:
    """The result of an operation without the batch.

    Copies along a dimension share one memory (stride 0), by which ``Uses`` knows them as copies.
    So ``repeat`` becomes ``expand`` where it can, and a clone of copies stays what it was.
    """
    value = args[0]
    if name == "repeat" and value is mine[0]:
        return _repeat(uses, value, repeats_of(args), mine)
    # the batch is the first dimension, or the second one of a recurrent layer's state
    if name in ("clone", "contiguous") and 0 in value.stride()[: 2 if value.ndim == 3 else 1]:
        return value
    return uses.wrap(func(*args, **kwargs), mine)


def _repeat(uses: Any, value: Tensor, sizes: tuple[int, ...], mine: Sequence[Unbatched]) -> Tensor:
    """``value.repeat(*sizes)``, with copies of a dimension of length 1 in one memory.

    Several rows that are repeated for each example, as the survey has seen, become B copies.
    """
    for_examples = sizes == (uses.step.batch, *(1,) * (value.ndim - 1)) and len(value) > 1
    result: Tensor
    if uses.step.survey.tiles and for_examples:
        result = uses.copy(uses.wrap(value.unsqueeze(0), mine), value.ndim + 1).flatten(0, 1)
        return result
    shape = (*(1,) * (len(sizes) - value.ndim), *value.shape)
    pairs = list(zip(shape, sizes, strict=True))
    repeated = value.reshape(shape).repeat([1 if n == 1 else k for n, k in pairs])
    result = uses.wrap(repeated.expand([k if n == 1 else -1 for n, k in pairs]), mine)
    return result
