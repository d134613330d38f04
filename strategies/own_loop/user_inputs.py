"""Data and optimizer that the owner of a loop brings.

Data are tensors, a torch Dataset, or a function from positions to inputs and targets. fedlsg moves
rows of tensors itself; code of the owner makes one row at a time (``fedlsg.rows``). The optimizer
must have exactly the trained parameters, so that nothing moves by a gradient without noise.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fedlsg.gradients import Batch as Inputs
from fedlsg.gradients import batch_size, trainable
from fedlsg.randomness import SecretStream
from fedlsg.rows import OneByOne, Padding, RowDraws, Start, check_distinct
from fedlsg.tensors import BY_NAME, each, fields_of, of_fields, rows_of
from fedlsg.training import Batch, Positions
from fedlsg.user_code.objects import generators_in

Pair = tuple[Inputs, Any]

SMALL_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32)
"""Types of integers that losses do not take as class numbers."""
Check = Callable[[Inputs, Inputs], None]
"""Raises ValueError for inputs and targets of a pair."""
Data = Dataset[Any] | tuple[Any, Any] | Callable[[Positions], Any]
"""A map-style dataset of (inputs, targets); inputs and targets whose first dimension is the
examples; or a function.
"""


def batches_of(
    data: Data,
    *,
    num_examples: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    check: Check = lambda inputs, targets: None,
    padding: Padding | None = None,
    batched: bool = False,
    workers: int = 0,
    start: Start | None = None,
) -> "Stored | OneByOne | Together":
    """A batch function over ``data``: int64 positions (B,) -> (inputs, targets) on ``device``.

    data: a pair of tensors or arrays, batch first (inputs may be a dict of them); a map-style torch
        Dataset whose items are (inputs, targets); or a function of positions.
    num_examples: of the data.
    dtype: for arrays and numbers in float64, which is the default type of numpy and python. Tensors
        keep their type, but targets of a pair in small integers become int64.
    check: gets the tensors of a pair.
    padding: for rows of several lengths.
    batched: whether a function makes many rows in one call.
    workers: processes that make rows, started as ``start`` says (``OneByOne``).

    Raises ValueError for a dataset without a length, of another length than ``num_examples``, or
    with a row that comes more than once.
    """
    if is_function(data):
        function: Any = data
        return of_function(
            function,
            device=device,
            padding=padding,
            batched=batched,
            workers=workers,
            start=start,
        )
    if batched:
        raise ValueError("batched=True is for a function of positions: leave it out")
    tensors = _tensors_of(data)
    if tensors is None:
        _check_size(_length(data), num_examples)
        check_distinct(data, type(data).__name__)
        return OneByOne(
            _maker_of(data),
            data,
            device=device,
            dtype=dtype,
            padding=padding,
            workers=workers,
            start=start,
        )
    if workers:
        raise ValueError(
            "rows of a pair of tensors are only moved, which workers make slower: leave workers out"
        )
    if padding is not None:
        raise ValueError(
            "rows of a pair of tensors have one shape: leave pad, lengths and mask out"
        )
    parts, rows = tensors
    if len(parts) != 2:
        raise ValueError(
            f"expected a {type(data).__name__} of inputs and targets, got one of {len(parts)}: "
            f"{BY_NAME}, as in step.batches((inputs, targets))"
        )
    inputs = _field_tensors(parts[0], dtype, "inputs")
    targets = _classes(_field_tensors(parts[1], dtype, "targets"))
    size = batch_size(inputs, targets)
    _check_size(size if rows is None else len(rows), num_examples)
    is_pair = isinstance(data, tuple)
    check_distinct(data, "the pair (inputs, targets)" if is_pair else type(data).__name__)
    if rows is None:
        check(inputs, targets)
    else:
        check(rows_of(inputs, rows), rows_of(targets, rows))
    return Stored(inputs, targets, device, rows)


def _check_size(size: int, num_examples: int) -> None:
    if size != num_examples:
        raise ValueError(
            f"expected {num_examples=} examples, the data set has {size}: noise and epsilon depend "
            f"on it; give num_examples={size}"
        )


def of_function(
    function: Callable[[Positions], Any],
    *,
    device: torch.device,
    padding: Padding | None = None,
    batched: bool = False,
    own_lengths: bool = True,
    workers: int = 0,
    start: Start | None = None,
) -> "OneByOne | Together":
    """The batch function of a function of positions.

    It calls the function for one position at a time, or for all of a batch if ``batched``. The
    other arguments are those of ``OneByOne``.
    """
    if batched:
        if workers:
            raise ValueError(
                "workers make rows one at a time, and batched=True calls a function once for many: "
                "leave one of them out"
            )
        if padding is not None:
            raise ValueError(
                "batched=True gives rows of one shape: leave pad, lengths and mask out, or batched"
            )
        return Together(function, device)
    return OneByOne(
        _SingleRow(function),
        function,
        device=device,
        padding=padding,
        own_lengths=own_lengths,
        workers=workers,
        start=start,
    )


@dataclass(frozen=True)
class _SingleRow:
    """From a position to its row, by a function of positions. A class, because workers pickle it.

    function: from positions to (inputs, targets).
    """

    function: Callable[[Positions], Any]

    def __call__(self, place: int) -> Any:
        # memory that has no other position of the batch; torch.tensor takes three times as long
        position = torch.from_numpy(np.array([place], dtype=np.int64))
        inputs, targets = check_batch(self.function(position), 1)
        return each(inputs, _only_row), each(targets, _only_row)


def _only_row(value: Tensor) -> Tensor:
    return plain(value)[0]


def is_function(data: Any) -> bool:
    """Whether data are a function of positions."""
    return callable(data) and not hasattr(data, "__getitem__")


@dataclass(frozen=True)
class _Maker:
    """From a position to its row of a data set.

    data: the data set.
    reads_many: whether it has ``__getitems__`` only, which is called for one position.
    """

    data: Any
    reads_many: bool

    def __call__(self, place: int) -> Any:
        return self.data.__getitems__([place])[0] if self.reads_many else self.data[place]


def _maker_of(data: Any) -> _Maker:
    """The maker of a data set's rows; ``Dataset`` itself has a ``__getitem__`` that raises."""
    reads_one = getattr(type(data), "__getitem__", None) not in (None, Dataset.__getitem__)
    return _Maker(data, hasattr(data, "__getitems__") and not reads_one)


def _tensors_of(data: Any) -> tuple[Any, Tensor | None] | None:
    """The tensors of a pair, or of a TensorDataset, and the rows that a Subset of it has.

    Rows are None for all. The whole is None for other data, whose rows must be made.
    """
    if isinstance(data, tuple):
        return data, None
    if isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__:
        return data.tensors, None
    if type(data) is not Subset or isinstance(data.dataset, tuple):
        return None
    if (inner := _tensors_of(data.dataset)) is None:
        return None
    tensors, rows_of_inner = inner
    rows = torch.as_tensor(data.indices, dtype=torch.int64)
    return tensors, rows if rows_of_inner is None else rows_of_inner[rows]


@dataclass(frozen=True, eq=False)
class Stored:
    """The batch function of tensors: it only moves rows.

    inputs: of all rows.
    targets: of all rows.
    device: on which batches are.
    rows: that the data have; None: all.
    """

    inputs: Inputs
    targets: Inputs
    device: torch.device
    rows: Tensor | None = None

    def draw_from(self, stream: SecretStream | None) -> None:
        """Ignore the stream: moving rows needs no draws."""

    def __call__(self, rows: Positions) -> Pair:
        """Inputs and targets of the positions."""
        rows = rows if self.rows is None else self.rows[rows]
        return _on_device((rows_of(self.inputs, rows), rows_of(self.targets, rows)), self.device)


class Together:
    """The batch function of a function of many positions, which mixes none by its owner's word.

    Its draws are secret, as those of single rows. A check compares its rows with those that it
    makes alone.
    """

    def __init__(self, function: Callable[[Positions], Any], device: torch.device) -> None:
        self.source, self._function, self._device = function, guarded(function), device
        self._draws = RowDraws(held=generators_in(function))

    def draw_from(self, stream: SecretStream | None) -> None:
        """Begin a step, whose draws come from this stream; None ends it, so that no key is kept."""
        self._draws.stream = stream

    def __call__(self, positions: Positions) -> Pair:
        """Inputs and targets of the positions."""
        with self._draws.making():
            self._draws.begin(self._draws.next_key())
            return _on_device(self._function(positions), self._device)


def first_rows(batch: Batch, num_examples: int) -> Pair:
    """The first two rows of the data; only the first if they differ in shape."""
    positions = torch.arange(min(2, num_examples))
    groups = batch.groups(positions) if isinstance(batch, OneByOne) else [positions]
    rows: Pair = guarded(batch)(next(group for group in groups if 0 in group.tolist()))
    return rows


def _field_tensors(part: Any, dtype: torch.dtype, what: str) -> Any:
    """A part with its arrays as tensors."""
    values = part if isinstance(part, Mapping) else {"": part}
    return of_fields(
        {name: _tensor(value, dtype, f"{what} {name}".strip()) for name, value in values.items()}
    )


def _tensor(value: Any, dtype: torch.dtype, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return plain(value)
    try:
        array = np.require(np.asarray(value), requirements="W")  # torch warns about others
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        tensor = torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{what}: expected numbers, got {type(value).__name__} ({error})"
        ) from None
    return tensor.to(dtype) if tensor.dtype == torch.float64 else tensor


def _classes(targets: Inputs) -> Inputs:
    """Targets in small integers as int64, which losses take as class numbers."""
    classes: Inputs = each(
        targets, lambda tensor: tensor.long() if tensor.dtype in SMALL_INTEGERS else tensor
    )
    return classes


def named(what: str, part: Inputs) -> list[tuple[str, Tensor]]:
    """The tensors of a part with their names in messages."""
    return [(f"{what} {name}".strip(), tensor) for name, tensor in fields_of(part).items()]


def types_of(model: nn.Module) -> set[torch.dtype]:
    """The floating point types of a model's parameters."""
    return {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}


def other_types(model: nn.Module, inputs: Inputs) -> str:
    """A message about inputs of a type that no weight has, with the remedy; empty without such."""
    types = types_of(model)
    expected = ", ".join(sorted(map(str, types)))
    for name, value in named("inputs", inputs):
        if types and value.is_floating_point() and value.dtype not in types:
            to = "float()" if value.dtype == torch.float32 else f"to({value.dtype})"
            return (
                f"{name} are {value.dtype} and the model's weights {expected}: give both one type, "
                f"inputs.to({expected}) or model.{to}"
            )
    return ""


def _length(data: Any) -> int:
    """The length of a data set. Raises ValueError for one without length or positions."""
    reads = hasattr(data, "__getitem__") or hasattr(data, "__getitems__")
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__") or not reads:
        raise ValueError(
            f"{type(data).__name__} has no length or no positions: a Poisson batch draws from all "
            "examples; give a map-style Dataset (__len__ and __getitem__), a pair of tensors, or "
            "an own function of positions"
        )
    return len(data)


def _on_device(batch: tuple[Inputs, Inputs], device: torch.device) -> tuple[Any, Any]:
    inputs, targets = (each(part, lambda tensor: tensor.to(device)) for part in batch)
    return inputs, targets


def guarded(batch: Callable[[Positions], Any]) -> Batch:
    """A batch function that is called with a position at least, and must give a row for each.

    An example that came twice would count twice in the clipped sum. The message does not name the
    size of the batch, which is secret.
    """

    def checked(positions: Positions) -> Pair:
        if not len(positions):  # only the size of an empty batch is read
            return torch.zeros(0, 1), torch.zeros(0)
        inputs, targets = check_batch(batch(positions), len(positions))
        return each(inputs, plain), each(targets, plain)

    return checked


def plain(tensor: Tensor) -> Tensor:
    """A tensor of torch's own class: a subclass has functions of the user, which see the batch."""
    return tensor if type(tensor) is Tensor else tensor.as_subclass(Tensor)


def check_batch(given: Any, count: int) -> Pair:
    """The inputs and targets of a batch function. Raises ValueError unless of ``count`` rows."""
    if not isinstance(given, tuple | list) or len(given) != 2 or not all(map(_is_batch, given)):
        raise ValueError(
            "expected a batch function from int64 positions (B,) to (inputs, targets): tensors, or "
            "dicts of tensors"
        )
    inputs, targets = given
    if batch_size(inputs, targets) != count:
        raise ValueError(
            "expected one row of inputs and targets for each position, in the same order"
        )
    return inputs, targets


def _is_batch(part: Any) -> bool:
    return isinstance(part, Tensor) or (
        isinstance(part, Mapping)
        and len(part) > 0
        and all(isinstance(value, Tensor) for value in part.values())
    )


Optimizers = Optimizer | Callable[[Any], Optimizer]
"""A torch optimizer over the model's parameters, or a function from the trained ones to it."""


def make_own(given: Optimizers, model: nn.Module) -> Optimizer:
    """The user's own optimizer.

    Raises ValueError if it lacks a trained parameter, has parameters of another model, calls the
    loss itself, or has a state of earlier steps.
    """
    parameters = trainable(model)
    optimizer: Any = given
    if callable(given) and not isinstance(given, Optimizer):
        optimizer = given(list(parameters.values()))
    if not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"expected a torch optimizer, or a function from parameters to one, got {optimizer!r}"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(optimizer).__name__} evaluates the loss several times in a step: take an "
            "optimizer that needs one gradient"
        )
    check_covers(optimizer, parameters, model)
    check_new(optimizer, parameters)
    return optimizer


def check_covers(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], model: nn.Module
) -> None:
    """Raise ValueError unless the optimizer has all trained parameters, none of another model."""
    covered = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if missing := [name for name, p in parameters.items() if id(p) not in covered]:
        raise ValueError(
            f"the optimizer lacks {', '.join(missing)}, which the method trains: freeze it, or "
            "give a function, optimizer=lambda parameters: ..., which also gets the parameters "
            "that the method adds (LoRA)"
        )
    if covered - {id(parameter) for parameter in model.parameters()}:
        raise ValueError(
            "the optimizer has parameters that the model has not: they would have no gradient"
        )


def check_new(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ValueError if the optimizer has a state of earlier steps.

    Momentum of gradients without noise would move the weights by them, and no ledger counts that.
    State that a new optimizer of the class has as well (Adagrad's sums) is accepted.
    """
    names = {id(p): name for name, p in parameters.items()}
    new = _state_of_new(optimizer)
    for p, state in optimizer.state.items():
        kept = [key for key, value in state.items() if not _is_same(value, new.get(p, {}).get(key))]
        if kept:
            raise ValueError(
                f"the optimizer has a state of earlier steps ({', '.join(map(str, kept))} of "
                f"{names.get(id(p), '?')}): averages of gradients that no ledger counts would move "
                "the weights; give a new optimizer, and to resume load PrivateStep's own state_dict"
            )
    for name, value in vars(optimizer).items():
        if name in ("state", "param_groups", "defaults"):
            continue
        if isinstance(value, Optimizer):
            check_new(value, parameters)
        elif any(_remembers(t, parameters) for t in _tensors_in(value)):
            raise ValueError(
                f"the optimizer's {name} has numbers of earlier steps that no ledger counts: give "
                "a new optimizer"
            )


def _state_of_new(optimizer: Optimizer) -> Mapping[Any, Mapping[str, Any]]:
    """The state of a new optimizer of this class and these groups; empty if none can be made."""
    if not optimizer.state:
        return {}
    try:
        make: Any = type(optimizer)
        with torch.no_grad():
            fresh: Optimizer = make(
                [copy(group) for group in optimizer.param_groups], **optimizer.defaults
            )
        return fresh.state
    except Exception:  # the class takes other arguments
        return {}


def _is_same(value: Any, new: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(new, Tensor):
        return value.shape == new.shape and torch.equal(value, new)
    return type(value) is type(new) and bool(value == new)


def _remembers(value: Tensor, parameters: Mapping[str, nn.Parameter]) -> bool:
    """Whether a tensor has numbers of earlier steps: neither zeros nor a copy of weights."""
    if not value.is_floating_point() or not value.count_nonzero():
        return False
    return not any(
        value.shape == parameter.shape and torch.equal(value.to(parameter), parameter.detach())
        for parameter in parameters.values()
    )


def _tensors_in(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """Tensors in an attribute, and in containers down to ``depth``; parameters are left out."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        yield value.detach()
    elif depth and isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(part, depth - 1)
