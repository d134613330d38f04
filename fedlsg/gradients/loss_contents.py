"""What a loss holds besides its code: tensors, and parameters that no private step trains.

A loss may hold tensors as buffers and attributes of a module, in a ``functools.partial``, in the
object of a bound method, in the variables of a closure, and as globals that its function reads.
"""

import copy
import dis
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.gradients.calls.torch_func import tensors_in
from fedlsg.gradients.hooked_pass.hooked_layers import leaves_of
from fedlsg.user_code.failure import is_users

MANY = 10_000
"""Items of a list or dict above which it is data, and not part of a loss."""
NAMES_SHOWN = 5
"""Names in a message, at most."""
INTERNALS = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that hold its parameters, buffers and modules by name."""


def held_tensors(loss: Any) -> Iterator[tuple[str, Tensor]]:
    """All tensors that a loss holds, each once, with the names by which its author knows them."""
    yield from _walk(loss, "", set(), top=True)


def _walk(
    thing: Any, name: str, seen: set[int], *, top: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a thing, by name.

    name: of the thing; empty for the loss itself.
    seen: identities of things that were visited.
    top: whether the thing is called as the loss, so that the attributes of any object count.
    """
    if id(thing) in seen or isinstance(thing, ModuleType | type):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield name, thing
        return
    for part, value, is_top in _parts(thing, top=top):
        full_name = ".".join(filter(None, (name, part)))
        yield from _walk(value, full_name, seen, top=is_top)


def _parts(thing: Any, *, top: bool) -> Iterator[tuple[str, Any, bool]]:
    """Name and value of each part that may hold tensors, and whether the part is what is called."""
    if isinstance(thing, torch.jit.ScriptModule):
        yield from (
            (key, value, False)
            for key, value in (*thing.named_parameters(), *thing.named_buffers())
        )
    elif isinstance(thing, nn.Module):
        spaces = [vars(thing), *(vars(thing).get(space, {}) for space in INTERNALS)]
        yield from (
            (key, value, False)
            for space in spaces
            for key, value in space.items()
            if key not in INTERNALS
        )
        yield "", type(thing).forward, False
    elif isinstance(thing, partial):
        yield "", thing.func, True
        yield from ((key, value, False) for key, value in thing.keywords.items())
        yield from ((f"argument {place}", value, False) for place, value in enumerate(thing.args))
    elif isinstance(thing, MethodType):
        yield "", thing.__self__, True
        yield "", thing.__func__, False
    elif isinstance(thing, FunctionType):
        yield from ((key, value, False) for key, value in _read_by(thing))
    elif isinstance(thing, Mapping | list | tuple | set):
        if len(thing) <= MANY:
            items = thing.items() if isinstance(thing, Mapping) else enumerate(thing)
            yield from ((str(key), value, False) for key, value in items)
    elif hasattr(thing, "__dict__") and (top or callable(thing)):
        yield from ((key, value, False) for key, value in vars(thing).items())
        yield "", vars(type(thing)).get("__call__"), False


def _read_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Values of a function's closure and defaults, and of the globals that its code names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    if not is_users(function.__code__.co_filename):
        return
    yield from ((p.name, p.default) for p in inspect.signature(function).parameters.values())
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in function.__globals__:
                yield str(step.argval), function.__globals__[step.argval]


def refuse_parameters(loss: Any, model: nn.Module | None = None) -> None:
    """Raise ValueError if the loss holds trainable parameters that are not the model's.

    Only the model's parameters are trained and clipped: those of the loss would silently stay as
    they are.
    """
    of_model = set() if model is None else {id(p) for p in model.parameters()}
    trainable = [(name, t) for name, t in held_tensors(loss) if t.requires_grad]
    if names := [name for name, t in trainable if id(t) not in of_model]:
        raise ValueError(
            f"the loss has trainable parameters ({few(names)}), which no private step trains: move "
            "them into the model, whose forward applies them to its outputs, or freeze them with "
            "requires_grad_(False)"
        )


def few(names: list[str]) -> str:
    """The first names and the number of others, for a message."""
    words = ", ".join(names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{words} and {more} more" if more > 0 else words


def follow(loss: Callable[..., Any], like: Tensor) -> Callable[..., Any]:
    """A copy of the loss whose tensors have the device and floating-point type of ``like``.

    The loss itself if it cannot be copied, or is a function, whose globals and closure stay as they
    are.
    """
    if isinstance(loss, FunctionType):
        return loss
    copies: dict[int, Any] = {}
    for _, t in held_tensors(loss):
        moved = t.detach().to(like.device, like.dtype if t.is_floating_point() else None)
        is_parameter = isinstance(t, nn.Parameter)
        copies[id(t)] = nn.Parameter(moved, requires_grad=False) if is_parameter else moved
    try:
        return copy.deepcopy(loss, copies)
    except Exception:  # an open file, a lock: the loss is called as it is
        return loss


def first_numbers(value: Any) -> Tensor | None:
    """The first floating-point tensor in a model's outputs, if there is one."""
    tensors = tensors_in(getattr(value, "logits", value))
    return next((t for t in tensors if t.is_floating_point()), None)


def fits(t: Tensor, like: Tensor, *, strict: bool) -> bool:
    """Whether a loss can use its tensor t next to outputs of the device and type of ``like``.

    strict: whether types must be equal, as for losses of torch. Other losses may choose a type on
        purpose. Only outputs in float64, which come from a check of fedlsg, change it.
    """
    if t.device != like.device:
        return False
    must_be_equal = t.is_floating_point() and (strict or like.dtype == torch.float64)
    return t.dtype == like.dtype or not must_be_equal


def untrained_leaves(losses: Tensor, model: nn.Module, original: nn.Module) -> str | None:
    """The message for losses that depend on tensors that no private step trains; None without any.

    model: a copy of ``original``. The losses are of a pass of the copy.
    """
    of_model = {id(p) for p in model.parameters()}
    others = {id(leaf): leaf for leaf in leaves_of(losses) if id(leaf) not in of_model}
    if not others:
        return None
    if read := [name for name, p in original.named_parameters() if id(p) in others]:
        return (
            f"the loss reads the model's parameters ({few(read)}): a penalty on them is no loss of "
            "an example; give weight_decay, or return the penalty from forward next to the outputs"
        )
    names = {id(t): name for name, t in held_tensors(model) if id(t) in others}
    shapes = {
        key: f"one of shape {tuple(p.shape)}"
        for key, p in others.items()
        if isinstance(p, nn.Parameter)
    }
    if not (leaves := list((shapes | names).values())):
        return None  # inputs of which the model takes a derivative
    return (
        f"the losses depend on trainable parameters that the model has not registered "
        f"({few(leaves)}), as of layers in a python list, a dict or a global variable, and no "
        "private step trains them: hold layers in nn.ModuleList or nn.ModuleDict, and parameters "
        "in nn.ParameterList, or freeze them with requires_grad_(False)"
    )
