"""Per-example gradients of parameters without a layer: a class token, a scale, a shared weight.

Idea: such a parameter is one value p for all B examples until some operation combines it with the
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
Gradients of results are pulled back to p for all examples at once. The gradient of a shared weight
is the sum over its uses, before any norm is taken. A gradient that arrives at p in another way (a
custom autograd function) is refused at the end.
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
from fedlsg.gradients.hooked_pass.call_layers import Graph
from fedlsg.gradients.hooked_pass.hooked_layers import producer
from fedlsg.gradients.hooked_pass.unbatched import (
    ELEMENTWISE,
    FIX,
    JOINS,
    LIKE,
    STATE_FIX,
    Source,
    Unbatched,
    apply_alone,
    as_plain,
    axis_of_read,
    gradients_at,
)


@dataclass(kw_only=True, eq=False)
class Uses:
    """All uses of followed parameters in one pass.

    step: the pass.
    starts: leaves of the pass' graph; copies are appended.
    constant: addresses of the memory of buffers and frozen weights, which belong to no example.
    sources: the leaves that stand for parameters and shared outputs.
    copies: values that were copied, each with the place of its copies in ``starts`` and the axis of
        the copies.
    reads: how often each table was read, by its parameter.
    flat: lengths of first dimensions in which layers of the pass have several positions of each
        example, one after another (``survey``).
    arrivals: values, each with a gradient that arrived at it.
    """

    step: Graph
    starts: list[Tensor]
    constant: set[int] = field(default_factory=set)
    sources: list[Source] = field(default_factory=list)
    copies: list[tuple[Tensor, int, int]] = field(default_factory=list)
    reads: Counter[str] = field(default_factory=Counter)
    flat: set[int] = field(default_factory=set)
    arrivals: list[tuple[Tensor, Tensor | Lazy]] = field(default_factory=list)

    def add_source(
        self, value: Tensor, name: str, receive: Callable[[Sequence[Tensor | Lazy]], None]
    ) -> Unbatched:
        """A new leaf with a value; ``receive`` gets its gradients."""
        with torch._C.DisableTorchFunctionSubclass():
            leaf = self.mark(value.detach(), (name,))
            leaf.requires_grad_()
        self.sources.append(Source(name=name, leaf=leaf, receive=receive))
        return leaf

    def mark(self, value: Tensor, names: tuple[str, ...]) -> Unbatched:
        """The value as Unbatched, which depends on the parameters ``names``."""
        unbatched: Unbatched = value.as_subclass(Unbatched)
        unbatched.uses, unbatched.parameters = self, names
        return unbatched

    def refusal(
        self, tensors: Sequence[Tensor], reason: str, fix: str = FIX
    ) -> UnsupportedLayerError:
        """The error that names the parameters of the tensors in an operation."""
        names = dict.fromkeys(
            name for t in tensors if isinstance(t, Unbatched) for name in t.parameters
        )
        return UnsupportedLayerError(f"{', '.join(names)}: {reason}; {fix}")

    def apply(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of one operation on Unbatched values, and perhaps others."""
        tensors = tensors_in((args, kwargs))
        mine = [t for t in tensors if isinstance(t, Unbatched) and t.requires_grad]
        if not mine or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if name in LIKE:
            result = func(*args, **kwargs)
            return self.wrap(result, mine) if isinstance(args[0], Unbatched) else result
        others = self._others(name, tensors)
        if name == "embedding":
            return self._embedding(func, mine, *args, **kwargs)
        if name == "__getitem__" and is_row_numbers(args[1]) and args[0].ndim == 2:
            return self._embedding(F.embedding, mine, args[1], args[0])
        if not others:
            return apply_alone(self, func, name, args, kwargs, mine)
        in_place = name.startswith(("__i", "__set")) or (
            name.endswith("_") and not name.endswith("__")
        )
        if in_place and isinstance(args[0], Unbatched):
            raise self.refusal(mine, f"changed in place by {name}")
        if name in ELEMENTWISE:
            return self._elementwise(func, name, args, kwargs, tensors, others)
        if name in JOINS:
            return self._join(func, name, args, kwargs, tensors)
        if name in ("linear", "matmul", "__matmul__", "layer_norm", "scaled_dot_product_attention"):
            return getattr(self, f"_{name.strip('_')}")(mine, *args, **kwargs)
        raise self.refusal(mine, f"used by {name}, for which there are no per-example gradients")

    def _others(self, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of an operation that belong to examples, as far as their form can show it.

        Raises ReadElsewhereError for a trainable parameter among them, which must be followed, too.
        """
        others = [t for t in tensors if not isinstance(t, Unbatched) and not self._is_constant(t)]
        parameters = self.step.parameters.items()
        if read := [n for n, p in parameters if p.requires_grad and any(p is t for t in others)]:
            raise ReadElsewhereError(read)
        can_be_batch = any(t.requires_grad or (t.ndim and len(t) != 1) for t in others)
        if name in ELEMENTWISE and self.step.batch > 1 and not can_be_batch:
            return []
        return others

    def _is_constant(self, t: Tensor) -> bool:
        """Whether a tensor is a number, a buffer or a frozen weight."""
        return not t.requires_grad and (
            t.ndim == 0 or t.untyped_storage().data_ptr() in self.constant
        )

    def _has_examples(self, t: Tensor) -> bool:
        """Whether the first dimension is the batch, or has all positions of one example after
        another.
        """
        return self._has_batch(t) or (t.ndim > 0 and len(t) in self.flat)

    def _has_batch(self, t: Tensor) -> bool:
        return t.ndim > 0 and t.shape[0] == self.step.batch

    def _is_copied(self, t: Tensor) -> bool:
        """Whether a value was expanded to the batch: its copies share one memory."""
        return self._has_batch(t) and (t.stride(0) == 0 or self.step.batch == 1)

    def is_shared(self, x: Tensor) -> bool:
        """Whether a value is the same for all examples, and was not expanded to the batch."""
        constant = self._is_constant(x) and x.ndim > 0 and x.is_floating_point()
        unbatched = isinstance(x, Unbatched) and x.requires_grad
        return not self._is_copied(x) and (unbatched or constant)

    def wrap(self, result: Any, mine: Sequence[Unbatched]) -> Any:
        """The result of an operation on the values ``mine``, with its tensors Unbatched."""
        names = tuple(dict.fromkeys(name for t in mine for name in t.parameters))

        def wrap_tensor(t: Tensor) -> Tensor:
            is_new = not isinstance(t, Unbatched) and t.requires_grad
            return self.mark(t, names) if is_new else t

        return map_tensors(wrap_tensor, result)

    def copy(self, value: Tensor, dimensions: int, rows: int = 0) -> Tensor:
        """B copies of a value, as an operand of an operation; other tensors as they are.

        dimensions: of the operation's result.
        rows: length of its first dimension, if that has several positions of each example.
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
                raise self.refusal(
                    [value],
                    "has a row for each place in the batch, where every example needs its own "
                    "copy of one value; expand(B, ...) the parameter last",
                )
            single = value[:1]
        batch = self.step.batch
        self.copies.append((single, len(self.starts), 0))
        plain = single.detach().as_subclass(Tensor)
        leaf = plain.expand(batch, *single.shape[1:]).requires_grad_()
        self.starts.append(leaf)
        return leaf.repeat_interleave(rows // batch, 0) if rows > batch else leaf

    def _copy_state(self, path: str, value: Tensor) -> Tensor:
        """B copies of the learned first state (layers, B, units) of a recurrent layer."""
        if not isinstance(value, Unbatched) or not value.requires_grad:
            return as_plain(value)
        batch = self.step.batch
        if value.ndim != 3 or value.shape[1] != batch or (value.stride(1) != 0 and batch > 1):
            raise self.refusal(
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
        """The arguments of a hooked layer, with copies of a value that was expanded to the batch.

        Raises UnsupportedLayerError for a shared value that was not expanded.
        """
        with torch._C.DisableTorchFunctionSubclass():
            if isinstance(module, nn.RNNBase):
                copy_state = partial(self._copy_state, path)
                args = (*args[:1], *map_tensors(copy_state, args[1:]))
                if "hx" in kwargs:
                    kwargs = kwargs | {"hx": map_tensors(copy_state, kwargs["hx"])}
            for t in tensors_in((args, kwargs)):
                if isinstance(t, Unbatched) and t.requires_grad and not self._is_copied(t):
                    raise self.refusal(
                        [t],
                        f"goes into the layer {path} without a dimension of the batch; "
                        "expand(B, ...) it first",
                    )
            copied: tuple[Any, Any] = map_tensors(lambda t: self.copy(t, t.ndim), (args, kwargs))
            return copied

    def _elementwise(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        tensors: Sequence[Tensor],
        others: Sequence[Tensor],
    ) -> Any:
        """The result of an elementwise operation with the batch, on copies."""
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        rows = max(
            (len(t) for t in others if t.ndim == len(shape) and self._has_examples(t)), default=0
        )
        if not rows:
            raise self.refusal(
                tensors,
                f"used by {name} with a tensor whose first dimension is not the batch of "
                f"{self.step.batch}, of shape {tuple(others[0].shape)}",
            )
        args, kwargs = map_tensors(lambda t: self.copy(t, len(shape), rows), (args, kwargs))
        return func(*args, **kwargs)

    def _join(self, func: Any, name: str, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> Any:
        """The result of joining values to the batch along another dimension, on copies."""
        dimensions = tensors[0].ndim
        dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else 0))
        all_batched = all(t.ndim == dimensions and self._has_batch(t) for t in tensors)
        if not isinstance(dim, int) or dim % max(1, dimensions) == 0 or not all_batched:
            raise self.refusal(
                tensors,
                f"used by {name}, not along another dimension than the batch of "
                f"{self.step.batch}, which is the first one",
            )
        args, kwargs = map_tensors(lambda t: self.copy(t, dimensions), (args, kwargs))
        return func(*args, **kwargs)

    def _linear(
        self, mine: Sequence[Unbatched], input: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """F.linear of the batch: y = x W^T + b, where W or b or both are Unbatched."""
        x, W, b = input, weight, bias
        if isinstance(x, Unbatched) or not self._has_batch(x) or x.ndim < 2 or W.ndim != 2:
            raise self.refusal(
                mine, f"used by linear with an input of shape {tuple(x.shape)} without the batch"
            )
        y = F.linear(x, as_plain(W), None if isinstance(b, Unbatched) else b)
        if isinstance(W, Unbatched) and W.requires_grad:

            def form(g: Tensor) -> Lazy:
                return product(SimpleNamespace(weight=as_plain(W)), g, x.detach().to(W.dtype))

            y = self._watch(W, y, form, x)
        return y + self.copy(b, y.ndim) if isinstance(b, Unbatched) else y

    def _matmul(self, mine: Sequence[Unbatched], input: Tensor, other: Tensor) -> Tensor:
        """x @ p of the batch x: a linear layer of weight p^T."""
        if isinstance(input, Unbatched) or other.ndim != 2:
            raise self.refusal(
                mine, "used by a matrix product other than x @ p with p of two dimensions"
            )
        weight = self.wrap(other.mT, mine) if isinstance(other, Unbatched) else other.mT
        return self._linear(mine, input, weight)

    def _scaled_dot_product_attention(
        self, mine: Sequence[Unbatched], query: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Attention of the batch's queries, with copies of keys, values or a mask."""
        if isinstance(query, Unbatched) or not self._has_examples(query):
            raise self.refusal(
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
        """F.layer_norm of the batch, with copies of weight and bias."""
        if (
            isinstance(input, Unbatched)
            or not self._has_batch(input)
            or input.ndim <= len(normalized_shape)
        ):
            raise self.refusal(
                mine,
                f"used by layer_norm with an input of shape {tuple(input.shape)} without the batch",
            )
        y = F.layer_norm(input, normalized_shape, None, None, eps)
        y = y if weight is None else y * self.copy(weight, y.ndim)
        return y if bias is None else y + self.copy(bias, y.ndim)

    def _embedding(self, func: Any, mine: Sequence[Unbatched], *args: Any, **kwargs: Any) -> Tensor:
        """The rows of a table W that are read by numbers.

        The survey knows the tables by the names of their parameters, and tables that parameters
        give by an empty name.
        """
        bound = inspect.signature(F.embedding).bind(*args, **kwargs)
        bound.apply_defaults()
        options = bound.arguments
        ids, W, padding = options["input"], options["weight"], options["padding_idx"]
        if options["max_norm"] is not None or options["scale_grad_by_freq"]:
            raise self.refusal(
                mine, "used by embedding with max_norm or scale_grad_by_freq, which mix examples"
            )
        is_parameter = any(W is source.leaf for source in self.sources)
        name = W.parameters[0] if is_parameter else ""
        self.reads[name] += 1
        axis = axis_of_read(self.step, name, self.reads[name], ids)
        if axis is None:
            rows: Tensor = self.wrap(func(*args, **kwargs), mine)
            return rows
        layer = SimpleNamespace(weight=as_plain(W))
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
        """The result y of an operation on W and x, in the graph of the pass.

        ``form`` makes the gradient of W from the gradient at y.
        """
        y = self.step.enter(W.parameters[0], nn.Identity(), y)
        shape, version = y.shape, x._version  # the node of y must not hold y itself

        def receive(gradients: tuple[Tensor | None, ...]) -> None:
            if x._version != version:
                raise self.refusal([W], "its input was changed in place after the use")
            if gradients[0] is not None:
                with torch._C.DisableTorchFunctionSubclass():
                    self.arrivals.append((W, form(gradients[0].reshape(shape).to(W.dtype))))

        self.step.watch(W.parameters[0], nn.Identity(), producer(y), receive)
        return y

    def forget(self) -> None:
        """Free the graph: its nodes have hooks, and the hooks hold this object."""
        self.sources.clear()
        self.copies.clear()
        self.arrivals.clear()

    def finish(self, gradients: Sequence[Tensor | None]) -> None:
        """Pull all gradients back to the sources, which put them into blocks.

        gradients: at ``starts``, in their order.
        """
        with torch._C.DisableTorchFunctionSubclass():
            for single, place, axis in self.copies:
                if (g := gradients[place]) is not None:
                    self.arrivals.append((single, g.movedim(axis, 0)))
            # A later source may send what it receives on to an earlier one, as a new arrival.
            for source in reversed(self.sources):
                parts = [
                    part
                    for value, g in self.arrivals
                    for part in gradients_at(source, value, g, self.step.batch)
                ]
                source.receive(parts)
