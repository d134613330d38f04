"""Per-example gradients of parameters without a layer: a class token, a prompt, a scale, a shared
weight.

Idea: such a parameter is one value p for all examples until some operation combines it with the
batch, as in ``x + p`` or ``torch.cat([p.expand(B, -1, -1), x], 1)``. There it is replaced by B
copies of itself, of which each is a leaf of the graph. The forward pass has the same values, and
autograd gives each copy the gradient of its own example.
During a pass the parameter is an ``Unbatched`` tensor, which sees every operation that it takes
    part in:
    alone, or with numbers, buffers and frozen weights    the result is Unbatched as well, by
                                                          ordinary autograd
    elementwise with the batch, or joined to it (cat)     B copies, as above
    linear, x @ p, embedding, layer_norm                  the formula of the layer
    anything else                                         refused by the operation's name
Gradients of results are pulled back to p for all examples at once. A shared weight is the sum over
its uses, before any norm is taken. A gradient that arrives at p on another way (a custom autograd
function) is refused at the end.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.gradients.calls.registry import ReadElsewhereError, UnsupportedLayerError
from fedlsg.gradients.calls.survey import is_row_numbers
from fedlsg.gradients.calls.torch_func import map_tensors, tensors_in
from fedlsg.gradients.formulas.embedding_rows import Lazy, RowGradients, product
from fedlsg.gradients.hooked_pass.activation_storage import producer
from fedlsg.gradients.hooked_pass.call_layers import Graph
from fedlsg.gradients.hooked_pass.unbatched import (
    ELEMENTWISE,
    FIX,
    JOINS,
    LIKE,
    STATE_FIX,
    Source,
    Unbatched,
    alone,
    axis_of_read,
    gradients_at,
    plain,
)


@dataclass(kw_only=True, eq=False)
class Uses:
    """All uses in one pass.

    ``constant``: memory of buffers and frozen weights, which belong to no example. ``copies`` are
        the values that were copied, each with its place in the pass' list of leaves and the axis of
        the copies; ``found`` values with their gradients.
    ``reads``: how often each table was read.
    ``flat``: lengths of first dimensions in which layers of the pass have several positions of each
        example, one after another (``survey``).
    """

    step: Graph
    starts: list[Tensor]
    constant: set[int] = field(default_factory=set)
    sources: list[Source] = field(default_factory=list)
    copies: list[tuple[Tensor, int, int]] = field(default_factory=list)
    reads: Counter[str] = field(default_factory=Counter)
    flat: set[int] = field(default_factory=set)
    found: list[tuple[Tensor, Tensor | Lazy]] = field(default_factory=list)

    def source(
        self, value: Tensor, name: str, receive: Callable[[Sequence[Tensor | Lazy]], None]
    ) -> Unbatched:
        """A new leaf with a value."""
        with torch._C.DisableTorchFunctionSubclass():
            leaf = self.mark(value.detach(), (name,))
            leaf.requires_grad_()
        self.sources.append(Source(name=name, leaf=leaf, receive=receive))
        return leaf

    def mark(self, value: Tensor, names: tuple[str, ...]) -> Unbatched:
        marked: Unbatched = value.as_subclass(Unbatched)
        marked.uses, marked.parameters = self, names
        return marked

    def refuse(self, given: Sequence[Tensor], reason: str, fix: str = FIX) -> UnsupportedLayerError:
        """The error for parameters in an operation."""
        names = dict.fromkeys(
            name for t in given if isinstance(t, Unbatched) for name in t.parameters
        )
        return UnsupportedLayerError(f"{', '.join(names)}: {reason}; {fix}")

    def apply(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One operation on Unbatched values, and perhaps others."""
        given = tensors_in((args, kwargs))
        mine = [t for t in given if isinstance(t, Unbatched) and t.requires_grad]
        if not mine or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if name in LIKE:
            return (
                self.wrap(func(*args, **kwargs), mine)
                if isinstance(args[0], Unbatched)
                else func(*args, **kwargs)
            )
        others = [t for t in given if not isinstance(t, Unbatched) and not self._is_constant(t)]
        batched = [t for t in others if t.requires_grad or (t.ndim and len(t) != 1)]
        if raw := [
            n
            for n, p in self.step.parameters.items()
            if p.requires_grad and any(p is t for t in others)
        ]:
            raise ReadElsewhereError(raw)
        if name in ELEMENTWISE and self.step.batch > 1 and not batched:
            others = []
        if name == "embedding":
            return self._embedding(func, mine, *args, **kwargs)
        if name == "__getitem__" and is_row_numbers(args[1]) and args[0].ndim == 2:
            return self._embedding(F.embedding, mine, args[1], args[0])
        if not others:
            return alone(self, func, name, args, kwargs, mine)
        in_place = name.startswith(("__i", "__set")) or (
            name.endswith("_") and not name.endswith("__")
        )
        if in_place and isinstance(args[0], Unbatched):
            raise self.refuse(mine, f"changed in place by {name}")
        if name in ELEMENTWISE:
            return self._elementwise(func, name, args, kwargs, given, others)
        if name in JOINS:
            return self._join(func, name, args, kwargs, given, others)
        if name in ("linear", "matmul", "__matmul__", "layer_norm", "scaled_dot_product_attention"):
            return getattr(self, f"_{name.strip('_')}")(mine, *args, **kwargs)
        raise self.refuse(mine, f"used by {name}, for which there are no per-example gradients")

    def _is_source(self, t: Tensor) -> bool:
        return any(t is source.leaf for source in self.sources)

    def _is_constant(self, t: Tensor) -> bool:
        return not t.requires_grad and (
            t.ndim == 0 or t.untyped_storage().data_ptr() in self.constant
        )

    def _has_examples(self, t: Tensor) -> bool:
        """Whether the first dimension is the batch, or has several positions of each example, one
        after another.
        """
        return self._has_batch(t) or (t.ndim > 0 and len(t) in self.flat)

    def _has_batch(self, t: Tensor) -> bool:
        return t.ndim > 0 and t.shape[0] == self.step.batch

    def is_shared(self, x: Tensor) -> bool:
        """Whether a value is the same for all examples, and was not expanded to the batch."""
        copies = self._has_batch(x) and (x.stride(0) == 0 or self.step.batch == 1)
        constant = self._is_constant(x) and x.ndim > 0 and x.is_floating_point()
        return not copies and ((isinstance(x, Unbatched) and x.requires_grad) or constant)

    def wrap(self, result: Any, mine: Sequence[Unbatched]) -> Any:
        names = tuple(dict.fromkeys(name for t in mine for name in t.parameters))
        return map_tensors(
            lambda t: (
                self.mark(t, names)
                if isinstance(t, Tensor) and not isinstance(t, Unbatched) and t.requires_grad
                else t
            ),
            result,
        )

    def copy(self, value: Tensor, dimensions: int, rows: int = 0) -> Tensor:
        """B copies of a value, as the operand of an operation whose result has so many dimensions.

        ``rows``: the length of the first one, where it has several positions of each example.
        """
        if not isinstance(value, Unbatched):
            return value
        if not value.requires_grad:
            return value.as_subclass(Tensor)
        single: Tensor = value
        if value.ndim < dimensions:
            single = value.reshape((1,) * (dimensions - value.ndim) + tuple(value.shape))
        elif value.shape[0] != 1:
            if not self._has_batch(value) or value.stride(0) != 0:
                raise self.refuse(
                    [value],
                    "has a row for each place in the batch, where every example needs its own "
                    "copy of one value; expand(B, ...) the parameter last",
                )
            single = value[:1]
        self.copies.append((single, len(self.starts), 0))
        leaf = (
            single.detach()
            .as_subclass(Tensor)
            .expand(self.step.batch, *single.shape[1:])
            .requires_grad_()
        )
        self.starts.append(leaf)
        return (
            leaf.repeat_interleave(rows // self.step.batch, 0) if rows > self.step.batch else leaf
        )

    def _copy_state(self, path: str, value: Tensor) -> Tensor:
        """B copies of a learned first state (layers, B, units) of a recurrent layer, along its
        dimension 1.
        """
        if not isinstance(value, Unbatched) or not value.requires_grad:
            return plain(value)
        batch = self.step.batch
        if value.ndim != 3 or value.shape[1] != batch or (value.stride(1) != 0 and batch > 1):
            raise self.refuse(
                [value],
                f"goes into the layer {path} as a first state (hidden state) of shape "
                f"{tuple(value.shape)}, which is no copy for each example",
                STATE_FIX,
            )
        single = value[:, :1]
        self.copies.append((single, len(self.starts), 1))
        leaf = single.detach().as_subclass(Tensor).expand(-1, batch, -1).requires_grad_()
        self.starts.append(leaf)
        return leaf.contiguous()

    def into_layer(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a hooked layer: copies of a value that was expanded to the batch."""
        with torch._C.DisableTorchFunctionSubclass():
            if isinstance(module, nn.RNNBase):
                copied = map_tensors(
                    partial(self._copy_state, path), (args[1:], {"hx": kwargs.get("hx")})
                )
                args = (*args[:1], *copied[0])
                kwargs = kwargs | (copied[1] if "hx" in kwargs else {})
            for t in tensors_in((args, kwargs)):
                copies = self._has_batch(t) and (t.stride(0) == 0 or self.step.batch == 1)
                if isinstance(t, Unbatched) and t.requires_grad and not copies:
                    raise self.refuse(
                        [t],
                        f"goes into the layer {path} without a dimension of the batch; "
                        "expand(B, ...) it first",
                    )
            changed: tuple[Any, Any] = map_tensors(lambda t: self.copy(t, t.ndim), (args, kwargs))
            return changed

    def _elementwise(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        given: Sequence[Tensor],
        others: Sequence[Tensor],
    ) -> Any:
        shape = torch.broadcast_shapes(*(t.shape for t in given))
        rows = max(
            (len(t) for t in others if t.ndim == len(shape) and self._has_examples(t)), default=0
        )
        if not rows:
            raise self.refuse(
                given,
                f"used by {name} with a tensor whose first dimension is not the batch of "
                f"{self.step.batch}, of shape {tuple(others[0].shape)}",
            )
        args, kwargs = map_tensors(lambda t: self.copy(t, len(shape), rows), (args, kwargs))
        return func(*args, **kwargs)

    def _join(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        given: Sequence[Tensor],
        others: Sequence[Tensor],
    ) -> Any:
        dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else 0))
        alike = all(t.ndim == given[0].ndim and self._has_batch(t) for t in given)
        if not isinstance(dim, int) or dim % max(1, given[0].ndim) == 0 or not alike:
            raise self.refuse(
                given,
                f"used by {name}, not along another dimension than the batch of "
                f"{self.step.batch}, which is the first one",
            )
        args, kwargs = map_tensors(lambda t: self.copy(t, given[0].ndim), (args, kwargs))
        return func(*args, **kwargs)

    def _linear(
        self, mine: Sequence[Unbatched], input: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        x, W, b = input, weight, bias
        if isinstance(x, Unbatched) or not self._has_batch(x) or x.ndim < 2 or W.ndim != 2:
            raise self.refuse(
                mine, f"used by linear with an input of shape {tuple(x.shape)} without the batch"
            )
        own_bias = isinstance(b, Unbatched)
        y = F.linear(x, plain(W), None if own_bias else b)
        if isinstance(W, Unbatched) and W.requires_grad:
            y = self._watch(
                W,
                y,
                lambda g: product(SimpleNamespace(weight=plain(W)), g, x.detach().to(W.dtype)),
                x,
            )
        return y + self.copy(b, y.ndim) if own_bias and b is not None else y

    def _matmul(self, mine: Sequence[Unbatched], input: Tensor, other: Tensor) -> Tensor:
        if isinstance(input, Unbatched) or other.ndim != 2:
            raise self.refuse(
                mine, "used by a matrix product other than x @ p with p of two dimensions"
            )
        turned = self.wrap(other.mT, mine) if isinstance(other, Unbatched) else other.mT
        return self._linear(mine, input, turned)

    def _scaled_dot_product_attention(
        self, mine: Sequence[Unbatched], query: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        if isinstance(query, Unbatched) or not self._has_examples(query):
            raise self.refuse(
                mine, "used by scaled_dot_product_attention without a first dimension of the batch"
            )
        args, kwargs = map_tensors(lambda t: self.copy(t, query.ndim, len(query)), (args, kwargs))
        return F.scaled_dot_product_attention(query, *args, **kwargs)

    def _layer_norm(
        self,
        mine: Sequence[Unbatched],
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        if (
            isinstance(input, Unbatched)
            or not self._has_batch(input)
            or input.ndim <= len(normalized_shape)
        ):
            raise self.refuse(
                mine,
                f"used by layer_norm with an input of shape {tuple(input.shape)} without the batch",
            )
        y = F.layer_norm(input, normalized_shape, None, None, eps)
        y = y if weight is None else y * self.copy(weight, y.ndim)
        return y if bias is None else y + self.copy(bias, y.ndim)

    def _embedding(self, func: Any, mine: Sequence[Unbatched], *args: Any, **kwargs: Any) -> Tensor:
        bound = inspect.signature(F.embedding).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        ids, W, padding = given["input"], given["weight"], given["padding_idx"]
        if given["max_norm"] is not None or given["scale_grad_by_freq"]:
            raise self.refuse(
                mine, "used by embedding with max_norm or scale_grad_by_freq, which mix examples"
            )
        name = W.parameters[0] if self._is_source(W) else ""
        self.reads[name] += 1
        axis = axis_of_read(self.step, name, self.reads[name], ids)
        if axis is None:
            rows: Tensor = self.wrap(func(*args, **kwargs), mine)
            return rows
        layer = SimpleNamespace(weight=plain(W))
        y = F.embedding(ids, layer.weight, padding)
        padding = padding if padding is None or padding >= 0 else padding + len(W)

        def form(g: Tensor) -> Lazy:
            return RowGradients(
                layer,  # type: ignore[arg-type]
                g.movedim(axis, 0),
                ids.movedim(axis, 0),
                g._version,
                padding,
            )

        return self._watch(W, y, form, ids)

    def _watch(self, W: Unbatched, y: Tensor, form: Callable[[Tensor], Lazy], x: Tensor) -> Tensor:
        """The result of an operation on W; its gradient makes one of W, from ``form``."""
        made = self.step.enter(W.parameters[0], nn.Identity(), y)
        shape = y.shape
        version = x._version

        def arrived(gradients: tuple[Tensor | None, ...]) -> None:
            if x._version != version:
                raise self.refuse([W], "its input was changed in place after the use")
            if gradients[0] is not None:
                with torch._C.DisableTorchFunctionSubclass():
                    self.found.append((W, form(gradients[0].reshape(shape).to(W.dtype))))

        self.step.watch(W.parameters[0], nn.Identity(), producer(made), arrived)
        return made

    def forget(self) -> None:
        """Free the graph: its nodes have hooks, and the hooks hold this object."""
        self.sources.clear()
        self.copies.clear()
        self.found.clear()

    def finish(self, gradients: Sequence[Tensor | None]) -> None:
        """Pull all gradients back to the sources. ``gradients`` are those of the pass' leaves."""
        with torch._C.DisableTorchFunctionSubclass():
            self.found += [
                (single, g.movedim(axis, 0))
                for single, i, axis in self.copies
                if (g := gradients[i]) is not None
            ]
            # what a later one receives may go on to an earlier one
            for source in reversed(self.sources):
                source.receive(
                    [
                        part
                        for value, g in self.found
                        for part in gradients_at(source, value, g, self.step.batch)
                    ]
                )
