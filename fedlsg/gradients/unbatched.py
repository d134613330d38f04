"""Values that all examples share: ``Unbatched`` tensors, the leaves from which they come, and tables read by rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedlsg.gradients.called import Graph
from fedlsg.gradients.calls import UnsupportedLayerError
from fedlsg.gradients.calls.nested import tensors_in
from fedlsg.gradients.calls.survey import UNKNOWN
from fedlsg.gradients.formulas.rows import Lazy

if TYPE_CHECKING:
    from fedlsg.gradients.uses import Uses


def axis_of_read(step: Graph, name: str, read: int, ids: Tensor) -> int | None:
    """The axis of the examples in the numbers of rows that are read; None if all examples share them (``survey``).

    Raises UnsupportedLayerError where no axis has the examples alone.
    """
    known = step.survey.tables.get(name, ())
    axis = known[read - 1] if read <= len(known) else UNKNOWN
    if axis is not None and (axis < 0 or ids.ndim <= axis or ids.shape[axis] != step.batch):
        raise UnsupportedLayerError(
            f"{name or 'a table'}: its rows are read by numbers of shape {tuple(ids.shape)}, of which no dimension is "
            f"the batch of {step.batch} alone; embed the ids batch first, (B, positions), or freeze it"
        )
    return axis


class Unbatched(Tensor):
    """A value that all examples share, and that depends on trainable parameters."""

    uses: "Uses"
    names: tuple[str, ...]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation on such a value."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            own = next(t for t in tensors_in((args, kwargs)) if isinstance(t, Unbatched))
            return own.uses.apply(func, args, kwargs)


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A leaf of the graph to which gradients are pulled back, and who takes its gradients (B, *shape)."""

    name: str
    leaf: Unbatched
    receive: Callable[[Sequence[Tensor | Lazy]], None]


def plain(t: Tensor) -> Tensor:
    """An Unbatched value as a tensor without a graph; another tensor as it is."""
    return t.detach().as_subclass(Tensor) if isinstance(t, Unbatched) else t
