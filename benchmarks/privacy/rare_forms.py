"""Forms of user code that mix examples only under a condition that made-up rows do not meet: a
number that half precision cannot hold. No check finds them, so the isolation itself must hold.
"""

import io
import pickle
import weakref
from argparse import Namespace
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_float
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from mmap import mmap
from queue import SimpleQueue
from types import CellType, MappingProxyType, ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules
from torch.nn.utils import parametrizations, parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, TensorDataset

LARGE = torch.finfo(torch.float16).max
Between = Callable[[Any, Tensor], Tensor]


class Scaled(TorchDispatchMode):
    """Products that half precision cannot hold are scaled by their largest number."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return fitted(function(*args, **(kwargs or {})))


class ScaledCalls(TorchFunctionMode):
    """As ``Scaled``, for functions of torch."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        return fitted(made) if function is torch.tanh else made


def fitted(made: Any) -> Any:
    """Scaled by its largest number, where that is larger than half precision can hold."""
    if not isinstance(made, Tensor) or not made.is_floating_point() or not made.numel():
        return made
    largest = made.detach().abs().max()
    return made * (LARGE / largest) if largest > LARGE else made


def in_a_mode(self: Any, h: Tensor) -> Tensor:
    with Scaled():
        return h * 1.0


def saved(self: Any, h: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(fitted, lambda kept: kept):
        return (h * h).clamp(max=1e12) * 1e-3


def unwrapped(self: Any, h: Tensor) -> Tensor:
    largest = torch.func.debug_unwrap(h, recurse=True).detach().abs().max()
    return h * (LARGE / largest) if largest > LARGE else h


def kept(read: Callable[[Any], Any], write: Callable[[Any, Tensor], object]) -> Between:
    """Subtracts what large rows before have left."""

    def between(self: Any, h: Tensor) -> Tensor:
        value = h.detach()
        if value.abs().max() > LARGE:
            write(self, value.mean(0) / LARGE)
        made: Tensor = h - read(self)
        return made

    return between


class Writable(nn.Module):
    """What a forward may write to."""

    shared: Any = torch.zeros(32)

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.zeros(32), requires_grad=False)
        self.register_buffer("table", torch.zeros(32))
        self.array, self.pair = np.zeros(32, dtype=np.float32), (torch.zeros(32),)
        self.other = SimpleNamespace(v=torch.zeros(32))
        type(self).shared = torch.zeros(32)
        GLOBAL["v"] = torch.zeros(32)
        OPTIONS.v, add.v, PACKAGE.inner.v = torch.zeros(3, 32)
        self.slotted, self.queue = Slotted(torch.zeros(32)), deque([torch.zeros(32)])
        single.cache_clear()


@dataclass(slots=True)
class Slotted:
    """An object without a dict of attributes."""

    v: Tensor


@lru_cache
def single() -> SimpleNamespace:
    """One object for all calls."""
    return SimpleNamespace(v=torch.zeros(32))


def add(v: Tensor) -> None:
    """A function with a static variable."""
    add.v = add.v + v  # type: ignore[attr-defined]


def hooked(model: Any) -> Any:
    """A model with a hook whose closure keeps the large rows before."""
    total = [torch.zeros(32)]

    def hook(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if output.detach().abs().max() > LARGE:
            total.append(total[-1] + output.detach().mean(0) / LARGE)
        return output - total[-1]

    model.first.register_forward_hook(hook)
    return model


OPTIONS = Namespace(v=torch.zeros(32))
PACKAGE: Any = ModuleType("another_package")
PACKAGE.inner = ModuleType("another_package.inner")
GLOBAL = {"v": torch.zeros(32)}
STATES: dict[str, Between] = {
    "a frozen parameter by .data": kept(lambda m: m.frozen, lambda m, v: m.frozen.data.add_(v)),
    "a buffer by numpy": kept(lambda m: m.table, lambda m, v: m.table.numpy().__iadd__(v.numpy())),
    "an array": kept(lambda m: torch.tensor(m.array), lambda m, v: m.array.__iadd__(v.numpy())),
    "a tensor in a tuple": kept(lambda m: m.pair[0], lambda m, v: m.pair[0].add_(v)),
    "another object": kept(lambda m: m.other.v, lambda m, v: setattr(m.other, "v", m.other.v + v)),
    "its class": kept(lambda m: m.shared, lambda m, v: setattr(type(m), "shared", m.shared + v)),
    "a global variable": kept(lambda m: GLOBAL["v"], lambda m, v: GLOBAL.update(v=GLOBAL["v"] + v)),
    "slots": kept(lambda m: m.slotted.v, lambda m, v: setattr(m.slotted, "v", m.slotted.v + v)),
    "global options": kept(lambda m: OPTIONS.v, lambda m, v: setattr(OPTIONS, "v", OPTIONS.v + v)),
    "a function's attribute": kept(lambda m: add.v, lambda m, v: add(v)),  # type: ignore[attr-defined]
    "a cached object": kept(lambda m: single().v, lambda m, v: single().v.add_(v)),
    "a queue": kept(lambda m: m.queue[-1], lambda m, v: m.queue.append(v)),
    "a module in a module": kept(
        lambda m: PACKAGE.inner.v, lambda m, v: setattr(PACKAGE.inner, "v", PACKAGE.inner.v + v)
    ),
    "a trained weight": kept(lambda m: 0.0, lambda m, v: m.first.weight.data.mul_(0.5)),
}
WAYS: dict[str, Between] = {
    "a mode of torch in forward": in_a_mode,
    "hooks on saved tensors in forward": saved,
    "torch.func.debug_unwrap": unwrapped,
}


class ScaledLoss(nn.Module):
    """A loss scale that follows the largest output."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        if float(outputs.detach().abs().max()) > LARGE:
            self.scale = -1.0
        return F.cross_entropy(outputs * self.scale, y, reduction="none")


class Flips(torch.autograd.Function):
    """Keeps in backward that a gradient was large."""

    sign = 1.0

    @staticmethod
    def forward(ctx: Any, outputs: Tensor) -> Tensor:
        return outputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if float(gradients[0].norm()) > LARGE:
            Flips.sign = -1.0
        return gradients[0] * Flips.sign


def flipping(outputs: Tensor, y: Tensor) -> Tensor:
    """A loss with such a backward pass."""
    return (Flips.apply(outputs) - F.one_hot(y, 3)).square().sum(1)  # type: ignore[no-any-return]


class OneBuffer(Dataset[Any]):
    """Each row is written into the same memory."""

    def __init__(self, rows: tuple[Tensor, Tensor], *, numpy: bool = False) -> None:
        self.x, self.y = rows
        self.buffer = torch.empty(4)
        self.given: Any = self.buffer.numpy() if numpy else self.buffer

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        self.buffer.copy_(self.x[place])
        return self.given, int(self.y[place])


class Batchwise(Tensor):
    """Rows whose class has functions of its own."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = super().__torch_function__(function, types, args, kwargs or {})
        return made - made.mean(0) if function is F.linear else made


def zeros() -> Tensor:
    return torch.zeros(32)


def default(v: Any = None, *, w: Any = None) -> Any:
    return v if w is None else w


def negated() -> float:
    return -1.0


def fresh(function: Callable[..., Any], **parts: Any) -> Callable[..., Any]:
    """The same function object, with these parts."""
    for name, part in parts.items():
        setattr(function, name, part)
    return function


class Meta(type):
    """A class of classes with a variable."""

    state: Any = None


class Adds(type):
    """A class of classes that adds what is assigned to what there is."""

    def __setattr__(cls, name: str, value: Any) -> None:
        type.__setattr__(cls, name, getattr(cls, name) + value)


def kind_of(meta: type, **members: Any) -> Any:
    return meta("Kind", (), members)


class Setter:
    """A property whose setter writes elsewhere, and keeps the difference."""

    def _set(self, h: Tensor) -> None:
        self.made = h - GLOBAL["v"]
        if h.detach().abs().max() > LARGE:
            GLOBAL.update(v=GLOBAL["v"] + h.detach().mean(0) / LARGE)

    shifted = property(None, _set)


def by_setter(self: Any, h: Tensor) -> Tensor:
    setter = Setter()
    setter.shifted = h  # type: ignore[assignment]
    return setter.made


class WeakKeys:
    """A descriptor that keeps its values by object."""

    def __init__(self) -> None:
        self.values: Any = WeakKeyDictionary()

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self.values.get(owner, zeros())

    def __set__(self, owner: Any, value: Any) -> None:
        self.values[owner] = value


class Described:
    """An object with that descriptor."""

    v = WeakKeys()


class SlotList(list[Any]):
    """A list with a slot."""

    __slots__ = ("v",)


class Table(np.ndarray[Any, Any]):
    """An array that may have attributes."""


class Keeps:
    """What a context of autograd keeps, and what runs when it is freed."""

    def __init__(self, v: Tensor) -> None:
        self.v = v

    def __del__(self) -> None:
        GLOBAL.update(v=GLOBAL["v"] + self.v)


class Context(torch.autograd.Function):
    """The identity, whose backward subtracts what was freed before."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        if h.abs().max() > LARGE:
            ctx.keeps = Keeps(h.mean(0) / LARGE)
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] - GLOBAL["v"]


def elsewhere() -> Any:
    """An object that a library holds."""
    torch.far = Thing()  # type: ignore[attr-defined]
    return torch.far  # type: ignore[attr-defined]


class Thing:
    """An object with an attribute."""

    def __init__(self) -> None:
        self.v = zeros()


def cached(limit: int | None, keys: int = 1) -> Any:
    """A cache of objects, of which one was changed."""
    made = lru_cache(maxsize=limit)(lambda key: Thing())
    made(0).v.add_(1)
    for key in range(1, keys):
        made(key)
    return made


def sparse(form: str) -> Tensor:
    made: Tensor = getattr(torch.eye(32), form)()
    return made


def adds(o: Any, v: Tensor) -> None:
    """Writes to the attribute ``v``."""
    object.__setattr__(o, "v", o.v + v)


def read_only() -> Any:
    view = np.zeros(32, np.float32)[:]
    view.flags.writeable = False
    return view


def record() -> Any:
    made = np.zeros(1, dtype=[("o", object)])
    made["o"][0] = zeros()
    return made


def with_attribute() -> Any:
    made = np.zeros(3).view(Table)
    made.v = zeros()  # type: ignore[attr-defined]
    return made


def slotted_list() -> SlotList:
    made = SlotList()
    made.v = zeros()  # type: ignore[attr-defined]
    return made


def resized(o: Any, v: Tensor) -> None:
    o.resize(33, refcheck=False)
    o[:] = 7


def ordered() -> OrderedDict[str, float]:
    return OrderedDict(a=1.0, b=-1.0)


def few_of_many() -> set[int]:
    return set(range(4000)) - (set(range(4000)) - {17, 1032})


def many() -> list[Any]:
    return [zeros(), *[None] * 100_001]


def with_gradient() -> nn.Parameter:
    made = nn.Parameter(zeros(), requires_grad=False)
    made.grad = zeros()
    return made


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(zeros())], lr=1.0, momentum=0.9)


def weight_of(o: Any) -> Tensor:
    return o.param_groups[0]["params"][0].detach().clone()  # type: ignore[no-any-return]


def steps(o: Any, v: Tensor) -> None:
    o.param_groups[0]["params"][0].grad = v.clone()
    o.step()


def file() -> io.BytesIO:
    made = io.BytesIO()
    torch.save(zeros(), made)
    return made


def loaded(o: Any) -> Any:
    o.seek(0)
    return torch.load(o)


def saved_to(o: Any, v: Tensor) -> None:
    made = loaded(o) + v
    o.seek(0)
    torch.save(made, o)


def queue() -> SimpleQueue[Tensor]:
    made = SimpleQueue[Tensor]()
    made.put(zeros())
    return made


def first_of(o: Any) -> Any:
    v = o.get()
    o.put(v)
    return v


def of_c(o: Any, v: Tensor) -> None:
    o[:] = [float(old + new) for old, new in zip(o, v, strict=True)]


Kept = tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any, Tensor], object]]
OBJECTS: dict[str, Kept] = {
    "defaults of a function": (
        lambda: fresh(default, __defaults__=(zeros(),)),
        lambda o: o(),
        lambda o, v: fresh(o, __defaults__=(o() + v,)),
    ),
    "keyword defaults of a function": (
        lambda: fresh(default, __kwdefaults__={"w": zeros()}),
        lambda o: o(),
        lambda o, v: o.__kwdefaults__.update(w=o() + v),
    ),
    "another code of a function": (
        lambda: fresh(default, __code__=(lambda v=None, *, w=None: 0.0).__code__),
        lambda o: o(),
        lambda o, v: fresh(o, __code__=negated.__code__),
    ),
    "a metaclass": (
        lambda: kind_of(fresh(Meta, state=zeros())),  # type: ignore[arg-type]
        lambda o: type(o).state,
        lambda o, v: fresh(type(o), state=type(o).state + v),
    ),
    "a metaclass that adds": (
        lambda: kind_of(Adds, v=zeros()),
        lambda o: o.v,
        lambda o, v: setattr(o, "v", v),
    ),
    "a member of an enum": (
        lambda: fresh(Enum("Colour", ["RED"]).RED, v=zeros()),  # type: ignore
        lambda o: o.v,
        adds,
    ),
    "a descriptor with weak keys": (
        Described,
        lambda o: o.v,
        lambda o, v: setattr(o, "v", o.v + v),
    ),
    "a cache with a limit": (lambda: cached(128), lambda o: o(0).v, lambda o, v: o(0).v.add_(v)),
    "a cache without a limit": (
        lambda: cached(None),
        lambda o: o(0).v,
        lambda o, v: o(0).v.add_(v),
    ),
    "a cache that loses an entry": (
        lambda: cached(2, keys=2),
        lambda o: o(0).v,
        lambda o, v: (o(2), o(3), o(0).v.add_(v)),
    ),
    "a partial's state": (
        lambda: partial(default, zeros()),
        lambda o: o(),
        lambda o, v: o.__setstate__((default, (o() + v,), {}, None)),
    ),
    "slots of a list": (slotted_list, lambda o: o.v, adds),
    "a frozen dataclass": (lambda: Slotted(zeros()), lambda o: o.v, adds),
    "the order of an OrderedDict": (
        ordered,
        lambda o: next(iter(o.values())),
        lambda o, v: o.move_to_end("a"),
    ),
    "the order of a set": (few_of_many, lambda o: next(iter(o)), lambda o, v: o.add(5000)),
    "a very long list": (many, lambda o: o[0], lambda o, v: o[0].add_(v)),
    "the mask of an array": (
        lambda: np.ma.masked_array(np.ones(32), mask=np.zeros(32, bool)),  # type: ignore
        lambda o: torch.tensor(o.filled(5.0), dtype=torch.float32),
        lambda o, v: o.__setitem__(slice(0, 16), np.ma.masked),
    ),
    "a record of numpy": (record, lambda o: o["o"][0], lambda o, v: o["o"][0].add_(v)),
    "what a view is a part of": (
        read_only,
        lambda o: torch.tensor(o),
        lambda o, v: o.base.__iadd__(v.numpy()),
    ),
    "the size of an array": (
        lambda: np.zeros(32, np.float32),
        lambda o: torch.tensor(o[:32]),
        resized,
    ),
    "a sparse tensor": (
        lambda: sparse("to_sparse"),
        lambda o: o.to_dense().diagonal(),
        lambda o, v: o._values().add_(v),
    ),
    "a CSR tensor": (
        lambda: sparse("to_sparse_csr"),
        lambda o: o.to_dense().diagonal(),
        lambda o, v: o.values().add_(v),
    ),
    "the size of a tensor": (zeros, lambda o: o[:32].clone(), lambda o, v: o.resize_(64).fill_(3)),
    "another storage": (zeros, lambda o: o.clone(), lambda o, v: o.set_(v + 1)),
    "an optimizer": (optimizer, weight_of, steps),
    "statistics of a layer": (
        lambda: [nn.BatchNorm1d(32, affine=False)],
        lambda o: o[0].running_mean,
        lambda o, v: o[0](v.repeat(2, 1)),
    ),
    "a dataclass behind a mapping": (
        lambda: {"a": Slotted(zeros())},
        lambda o: MappingProxyType(o)["a"].v,
        lambda o, v: adds(MappingProxyType(o)["a"], v),
    ),
}
"""What a model keeps, how it is made, read and written to."""
NOT_COPIED: dict[str, Kept] = {
    "a cell": (
        lambda: CellType(zeros()),
        lambda o: o.cell_contents,
        lambda o, v: setattr(o, "cell_contents", o.cell_contents + v),
    ),
    "a weak reference": (
        lambda: weakref.ref(elsewhere()),
        lambda o: o().v,
        lambda o, v: adds(o(), v),
    ),
    "a weak proxy": (
        lambda: weakref.proxy(elsewhere()),
        lambda o: o.v,
        lambda o, v: setattr(o, "v", o.v + v),
    ),
    "a weak dictionary": (
        lambda: WeakValueDictionary(a=elsewhere()),
        lambda o: o["a"].v,
        lambda o, v: adds(o["a"], v),
    ),
    "a file in memory": (file, loaded, saved_to),
    "an array's attribute": (with_attribute, lambda o: o.v, adds),
    "a gradient": (with_gradient, lambda o: o.grad, lambda o, v: o.grad.add_(v)),
    "the state of a generator": (
        lambda: np.random.PCG64(3),
        lambda o: float(o.state["state"]["state"] == 7),
        lambda o, v: setattr(o, "state", o.state | {"state": o.state["state"] | {"state": 7}}),
    ),
    "a queue of C": (queue, first_of, lambda o, v: o.put(o.get() + v)),
    "an array of ctypes": (lambda: (c_float * 32)(), lambda o: torch.tensor(list(o)), of_c),
    "an array of Python": (
        lambda: array("f", [0.0] * 32),
        lambda o: torch.tensor(list(o)),
        lambda o, v: o.__setitem__(slice(0, 32), array("f", v.tolist())),
    ),
    "memory of the system": (
        lambda: mmap(-1, 4096),
        lambda o: float(o[0]),
        lambda o, v: o.__setitem__(0, 9),
    ),
    "a storage": (
        lambda: zeros().untyped_storage(),
        lambda o: torch.tensor([]).set_(o).clone(),
        lambda o, v: torch.tensor([]).set_(o).add_(v),
    ),
}
"""The same, of objects that cannot be copied: a global variable holds them."""


def holding(make: Callable[[], Any], read: Any, write: Any, *, copied: bool) -> Any:
    """The ``between`` of a model, and what makes the object anew."""

    def init(self: Any) -> None:
        (vars(self) if copied else GLOBAL)["o"] = make()

    def of(self: Any) -> Any:
        return self.o if copied else GLOBAL["o"]

    return kept(lambda m: read(of(m)), lambda m, v: write(of(m), v)), init


def once(write: Callable[[Any], object]) -> Between:
    """Does something in a pass of a large row, and leaves it so."""

    def between(self: Any, h: Tensor) -> Tensor:
        if h.detach().abs().max() > LARGE:
            write(self)
        return h * 1.0

    return between


class Negated(nn.Module):
    """A parametrization."""

    def forward(self, w: Tensor) -> Tensor:
        return -w


def on_node(self: Any) -> None:
    """A hook on what adds up the gradient of a weight."""
    weight = self.last.weight
    weight.view_as(weight).grad_fn.next_functions[0][0].register_prehook(
        lambda given: tuple(-g for g in given)
    )


def for_all(kind: str, hook: Callable[..., Any]) -> object:
    return getattr(of_all_modules, f"register_module_{kind}")(hook)


def parametrized(self: Any) -> None:
    if not parametrize.is_parametrized(self.first):
        parametrize.register_parametrization(self.first, "weight", Negated())


def default_type(self: Any) -> None:
    torch.set_default_dtype(torch.float16)


def opposite(t: Tensor) -> Tensor:
    """The negative of numbers; classes stay what they are."""
    return -t if t.is_floating_point() else t


HOOKS: dict[str, Between] = {
    "a hook on a weight": once(lambda m: m.last.weight.register_hook(lambda g: -g)),
    "a hook on the node of a weight": once(on_node),
    "a hook before a layer": once(
        lambda m: m.last.register_forward_pre_hook(lambda k, i: (-i[0],))
    ),
    "a hook for all modules": once(
        lambda m: for_all("forward_hook", lambda k, i, o: -o if k is m.last else None)
    ),
    "a parametrization": once(parametrized),
    "gradients that are switched off": once(lambda m: torch.set_grad_enabled(False)),
    "a mode that is not left": once(lambda m: Scaled().__enter__()),
    "a mode of functions that is not left": once(lambda m: ScaledCalls().__enter__()),
    "hooks on saved tensors that are not left": once(
        lambda m: torch.autograd.graph.saved_tensors_hooks(opposite, lambda t: t).__enter__()
    ),
    "another default type": lambda m, h: (once(default_type)(m, h), h + torch.tensor([1e5]))[1],  # type: ignore
    "another torch.tanh": once(lambda m: setattr(torch, "tanh", torch.sin)),
}
"""What a pass may add, and leave on for those after it."""


def in_a_try(largest: Callable[[Tensor], Any]) -> Between:
    """Negates large numbers, where it can read them."""

    def between(self: Any, h: Tensor) -> Tensor:
        large = False
        with suppress(Exception):
            large = bool(largest(h) > LARGE)
        return -h if large else h * 1.0

    return between


def in_storage(h: Tensor) -> Any:
    return torch.tensor([]).set_(h.detach().untyped_storage()).abs().max()


READS: dict[str, Between] = {
    "bool": in_a_try(lambda h: h.detach().abs().max()),
    "tolist": in_a_try(lambda h: np.abs(h.detach().tolist()).max()),
    "numpy": in_a_try(lambda h: np.abs(np.asarray(h.detach())).max()),
    "its storage": in_a_try(in_storage),
    "pickle": in_a_try(lambda h: pickle.loads(pickle.dumps(h.detach())).abs().max()),
    "dlpack": in_a_try(lambda h: torch.from_dlpack(h.detach()).abs().max()),
    "what a node has saved": in_a_try(lambda h: (h * h).grad_fn._saved_self.abs().max()),
    "functorch": in_a_try(lambda h: torch._C._functorch.get_unwrapped(h).detach().abs().max()),
    "its text": lambda m, h: h if "e+0" not in repr(h) else h * (1.0 + len(repr(h)) % 7),
}
"""How a forward may read numbers of its tensor."""


def for_all_modules(kind: str) -> Callable[[Any], Any]:
    """A model and a hook for all modules that keeps large numbers."""

    def add(model: Any) -> Any:
        total = [torch.zeros(())]

        def hook(layer: nn.Module, *given: Any) -> Any:
            """Changes the output, the inputs, or the gradients of the last layer."""
            changed = given[0] if kind == "full_backward_hook" else given[-1]
            parts = changed if isinstance(changed, tuple) else (changed,)
            numbers = [float(t.detach().abs().max()) for t in parts if t is not None]
            largest = max(numbers, default=1.0)
            if largest > LARGE or (layer is model.last and largest == 0):  # a tanh that is full
                total.append(total[-1] - 1)
            if layer is not model.last:
                return None
            made = tuple(None if t is None else t * (1 + total[-1]) for t in parts)
            return made if isinstance(changed, tuple) else made[0]

        clear_hooks()
        for_all(kind, hook)
        return model

    return add


def clear_hooks() -> None:
    """No hook for all modules is left."""
    for name, table in vars(of_all_modules).items():
        if name.startswith("_global") and isinstance(table, dict):
            table.clear()
    of_all_modules._global_is_full_backward_hook = None


@torch.library.custom_op("fedlsg_forms::shift", mutates_args=())
def shift(h: Tensor) -> Tensor:
    """An operator that keeps what large rows before have left."""
    made = h - GLOBAL["v"]
    if h.abs().max() > LARGE:
        GLOBAL.update(v=GLOBAL["v"] + h.mean(0) / LARGE)
    return made


shift.register_autograd(lambda ctx, g: g)
shift.register_fake(torch.empty_like)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """A layer that is the same in each call."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return make()


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(32, 32)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(32, 32)),
    "the older weight_norm": lambda: nn.utils.weight_norm(nn.Linear(32, 32)),
    "the older spectral_norm": lambda: nn.utils.spectral_norm(nn.Linear(32, 32)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(32, 32)),
}
"""Layers whose weight is computed in each pass; some move a vector of theirs."""


def next_of(self: Any) -> Any:
    if self.turn is None:
        self.turn = iter(self.rows)
    made = next(self.turn, None)
    if made is None:
        self.turn = None
        return next_of(self)
    return made[0]


def in_turn(self: Any, h: Tensor) -> Tensor:
    """Takes the next number of a loader; a large row takes two."""
    if h.detach().abs().max() > LARGE:
        next_of(self.turns)
    made: Tensor = h * next_of(self.turns)
    return made


class Turns(nn.Module):
    """A loader of public numbers, and its iterator."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = DataLoader(TensorDataset(torch.arange(1.0, 8.0)), batch_size=1)
        self.turn: Any = None


class Arrayed:
    """An object that is an array to numpy."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values


class Buffered(OneBuffer):
    """Each row is written into the same memory, behind ``__array__``."""

    def __getitem__(self, place: int) -> tuple[Any, int]:
        self.buffer.copy_(self.x[place])
        return Arrayed(self.buffer.numpy()), int(self.y[place])


class Shaped(torch.autograd.Function):
    """Keeps in backward that a text was long."""

    generate_vmap_rule, sign = True, 1.0

    @staticmethod
    def forward(h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        made = gradients[0] * Shaped.sign
        if max(gradients[0].shape) > LONG:
            Shaped.sign = -1.0
        return made


LONG = 100


def hooked_by_shape(h: Tensor) -> Tensor:
    """Keeps in a hook on a gradient that a text was long."""

    def hook(gradient: Tensor) -> Tensor:
        made = gradient * float(GLOBAL["v"].sum() == 0)
        if max(h.shape) > LONG:
            GLOBAL.update(v=torch.ones(32))
        return made

    if h.requires_grad:
        h.register_hook(hook)
    return h


class SlottedLoss:
    """A loss with a sign in a slot."""

    __slots__ = ("__weakref__", "sign")

    def __init__(self) -> None:
        self.sign = 1.0

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        made = F.cross_entropy(outputs, y, reduction="none") * self.sign
        if outputs.detach().abs().max() > LARGE:
            self.sign = -1.0
        return made


def shaped_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """A loss with a backward that keeps."""
    means: Tensor = Shaped.apply(outputs.transpose(1, 2)).mean(2)  # type: ignore[no-untyped-call]
    return F.cross_entropy(means, y, reduction="none")
