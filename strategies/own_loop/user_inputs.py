"""What the owner of a loop brings: data and an optimizer.

Data are tensors, a torch Dataset, or a function from positions to inputs and targets. fedlsg moves
rows of tensors itself; code of the owner makes one row at a time (``fedlsg.rows``). The optimizer
must hold exactly what is trained, so that nothing moves by a gradient without noise.
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

SMALL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32)
Check = Callable[[Inputs, Inputs], None]
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

    ``data``: a pair of tensors or arrays, batch first (inputs may be a dict of them); a map-style
    torch Dataset whose items are (inputs, targets); or a function of positions. Arrays and numbers
    of python in float64, which numpy and python make of everything, get ``dtype``; tensors stay as
    they are, but targets of a pair in small integers become int64. ``check`` gets the tensors of a
    pair. ``padding`` is for rows of several lengths, ``batched`` for a function that makes many
    rows in one call. ``workers``: processes that make rows, as ``start`` says (``OneByOne``).
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
    given, rows = tensors
    if len(given) != 2:
        raise ValueError(
            f"expected a {type(data).__name__} of inputs and targets, got one of {len(given)}: "
            f"{BY_NAME}, as in step.batches((inputs, targets))"
        )
    inputs, targets = (
        _tensors(given[0], dtype, "inputs"),
        _classes(_tensors(given[1], dtype, "targets")),
    )
    size = batch_size(inputs, targets)
    _check_size(size if rows is None else len(rows), num_examples)
    is_pair = isinstance(data, tuple)
    check_distinct(data, "the pair (inputs, targets)" if is_pair else type(data).__name__)
    check(*((inputs, targets) if rows is None else (rows_of(inputs, rows), rows_of(targets, rows))))
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
    """The batch function of a function of positions: called for one position at a time, or for all
    if ``batched``.

    ``own_lengths``: as in ``OneByOne``.
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
        _FirstRow(function),
        function,
        device=device,
        padding=padding,
        own_lengths=own_lengths,
        workers=workers,
        start=start,
    )


@dataclass(frozen=True)
class _FirstRow:
    """The row that a function of positions gives for one; a worker can get it, as no closure
    can.
    """

    function: Callable[[Positions], Any]

    def __call__(self, place: int) -> Any:
        # in memory of its own, where nothing of the batch is; torch.tensor takes thrice as long
        position = torch.from_numpy(np.array([place], dtype=np.int64))
        inputs, targets = check_batch(self.function(position), 1)
        return each(inputs, _only), each(targets, _only)


def _only(value: Tensor) -> Tensor:
    return plain(value)[0]


def is_function(data: Any) -> bool:
    """Whether data are a function of positions."""
    return callable(data) and not hasattr(data, "__getitem__")


@dataclass(frozen=True)
class _Maker:
    """From a position to its row. A data set that only reads many positions at once is asked for
    one.
    """

    data: Any
    reads_many: bool

    def __call__(self, place: int) -> Any:
        return self.data.__getitems__([place])[0] if self.reads_many else self.data[place]


def _maker_of(data: Any) -> _Maker:
    reads_one = getattr(type(data), "__getitem__", None) not in (None, Dataset.__getitem__)
    return _Maker(data, hasattr(data, "__getitems__") and not reads_one)


def _tensors_of(data: Any) -> tuple[Any, Tensor | None] | None:
    """The tensors of a pair or TensorDataset, and which of their rows a Subset of it has (None:
    all).
    """
    if isinstance(data, tuple):
        return data, None
    if isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__:
        return data.tensors, None
    if (
        type(data) is not Subset
        or (inner := _tensors_of(data.dataset)) is None
        or isinstance(data.dataset, tuple)
    ):
        return None
    rows = torch.as_tensor(data.indices, dtype=torch.int64)
    return inner[0], rows if inner[1] is None else inner[1][rows]


@dataclass(frozen=True, eq=False)
class Stored:
    """The batch function of tensors: it only moves rows. ``rows``: those that the data have (None:
    all).
    """

    inputs: Inputs
    targets: Inputs
    device: torch.device
    rows: Tensor | None = None

    def draw_from(self, stream: SecretStream | None) -> None:
        """Nothing is drawn here."""

    def __call__(self, rows: Positions) -> Pair:
        """Inputs and targets of the positions."""
        rows = rows if self.rows is None else self.rows[rows]
        return _on((rows_of(self.inputs, rows), rows_of(self.targets, rows)), self.device)


class Together:
    """The batch function of a function of many positions, by the word of its owner that it mixes
    none of them.

    Its draws are secret, as those of single rows; a check compares its rows with those that it
    makes alone.
    """

    def __init__(self, function: Callable[[Positions], Any], device: torch.device) -> None:
        self.source, self._function, self._device = function, guarded(function), device
        self._draws = RowDraws(held=generators_in(function))

    def draw_from(self, stream: SecretStream | None) -> None:
        """Begin a step, whose draws come from this stream; or end it, and keep no key."""
        self._draws.stream = stream

    def __call__(self, positions: Positions) -> Pair:
        """Inputs and targets of the positions."""
        with self._draws.making():
            self._draws.begin(self._draws.next_key())
            return _on(self._function(positions), self._device)


def first_rows(batch: Batch, num_examples: int) -> Pair:
    """The first two rows of the data; one, where they differ in shape."""
    positions = torch.arange(min(2, num_examples))
    groups = batch.groups(positions) if isinstance(batch, OneByOne) else [positions]
    rows: Pair = guarded(batch)(next(group for group in groups if 0 in group.tolist()))
    return rows


def _tensors(part: Any, dtype: torch.dtype, what: str) -> Any:
    given = part if isinstance(part, Mapping) else {"": part}
    return of_fields(
        {name: _tensor(value, dtype, f"{what} {name}".strip()) for name, value in given.items()}
    )


def _tensor(value: Any, dtype: torch.dtype, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return plain(value)
    try:
        array = np.require(np.asarray(value), requirements="W")  # torch warns of others
        tensor = torch.as_tensor(
            array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{what}: expected numbers, got {type(value).__name__} ({error})"
        ) from None
    return tensor.to(dtype) if tensor.dtype == torch.float64 else tensor


def _classes(targets: Inputs) -> Inputs:
    """Small integers as int64, which losses take as the numbers of classes."""
    classes: Inputs = each(targets, lambda t: t.long() if t.dtype in SMALL else t)
    return classes


def named(what: str, part: Inputs) -> list[tuple[str, Tensor]]:
    """The tensors of a part by their names in messages."""
    return [(f"{what} {name}".strip(), t) for name, t in fields_of(part).items()]


def types_of(model: nn.Module) -> set[torch.dtype]:
    """The types of a model's weights."""
    return {p.dtype for p in model.parameters() if p.is_floating_point()}


def other_types(model: nn.Module, inputs: Inputs) -> str:
    """What to do about inputs of a type that no weight has; empty where there are none."""
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
    reads = hasattr(data, "__getitem__") or hasattr(data, "__getitems__")
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__") or not reads:
        raise ValueError(
            f"{type(data).__name__} has no length or no positions: a Poisson batch draws from all "
            "examples; give a map-style Dataset (__len__ and __getitem__), a pair of tensors, or "
            "an own function of positions"
        )
    return len(data)


def _on(batch: tuple[Inputs, Inputs], device: torch.device) -> tuple[Any, Any]:
    inputs, targets = (each(part, lambda t: t.to(device)) for part in batch)
    return inputs, targets


def guarded(batch: Callable[[Positions], Any]) -> Batch:
    """A batch function, called with one position at least, and held to one row for each position.

    An example that came twice would count twice in the clipped sum. The message does not name the
    batch's size.
    """

    def of(positions: Positions) -> Pair:
        if not len(positions):  # nothing reads an empty batch but its size
            return torch.zeros(0, 1), torch.zeros(0)
        checked = check_batch(batch(positions), len(positions))
        return each(checked[0], plain), each(checked[1], plain)

    return of


def plain(t: Tensor) -> Tensor:
    """As a tensor of torch: a class with functions of its own would see the batch."""
    return t if type(t) is Tensor else t.as_subclass(Tensor)


def check_batch(given: Any, count: int) -> Pair:
    """What a batch function gave. Raises ValueError unless it is inputs and targets of ``count``
    rows.
    """
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
"""A torch optimizer over the model's parameters, or a function that makes one from the list of
trained parameters.
"""


def make_own(given: Optimizers, model: nn.Module) -> Optimizer:
    """The optimizer.

    Raises ValueError if it lacks a trained parameter, has foreign ones, calls the loss itself, or
    remembers earlier steps.
    """
    parameters = trainable(model)
    made: Any = (
        given
        if isinstance(given, Optimizer) or not callable(given)
        else given(list(parameters.values()))
    )
    optimizer = made
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
    """Raise ValueError unless the optimizer has every trainable parameter of the model, and none of
    another one.
    """
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if missing := [name for name, p in parameters.items() if id(p) not in held]:
        raise ValueError(
            f"the optimizer lacks {', '.join(missing)}, which the method trains: freeze it, or "
            "give a function, optimizer=lambda parameters: ..., which also gets the parameters "
            "that the method adds (LoRA)"
        )
    if held - {id(p) for p in model.parameters()}:
        raise ValueError(
            "the optimizer has parameters that the model has not: they would have no gradient"
        )


def check_new(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ValueError if the optimizer has a state of earlier steps: their gradients had no noise,
    or other noise.

    Momentum of raw gradients would move the weights by them, and no ledger counts that. State that
    a new optimizer of the class has as well (Adagrad's sums) does not count.
    """
    names = {id(p): name for name, p in parameters.items()}
    new = _as_new(optimizer)
    for p, state in optimizer.state.items():
        kept = [key for key, value in state.items() if not _same(value, new.get(p, {}).get(key))]
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


def _as_new(optimizer: Optimizer) -> Mapping[Any, Mapping[str, Any]]:
    """The state that a new optimizer of this class and these groups has; empty where it cannot be
    made.
    """
    if not optimizer.state:
        return {}
    try:
        make: Any = type(optimizer)
        with torch.no_grad():
            fresh: Optimizer = make(
                [copy(group) for group in optimizer.param_groups], **optimizer.defaults
            )
        return fresh.state
    except Exception:  # a class with arguments of its own
        return {}


def _same(value: Any, new: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(new, Tensor):
        return value.shape == new.shape and torch.equal(value, new)
    return type(value) is type(new) and bool(value == new)


def _remembers(t: Tensor, parameters: Mapping[str, nn.Parameter]) -> bool:
    """Whether a tensor has numbers that are neither zeros nor a copy of weights, as slow weights
    are.
    """
    if not t.is_floating_point() or not t.count_nonzero():
        return False
    return not any(
        t.shape == p.shape and torch.equal(t.to(p), p.detach()) for p in parameters.values()
    )


def _tensors_in(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """Tensors in an attribute and its containers."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        yield value.detach()
    elif depth and isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(part, depth - 1)
