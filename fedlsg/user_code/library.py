"""Whether all code that a pass runs is library code: as its distribution installed it.

``own_code`` walks what a model or a loss is made of, and names the first part that is not:
    classes      of every module, tensor and object: all functions of the class and its bases
    instances    hooks, and functions and objects in attributes, ``forward`` among them
    names        global functions next to these: a patched ``F.relu``, or one in an edited file;
                 objects, classes, methods and partials of users in their place
    the process  hooks for all modules, modes of torch that see every call, hooks on saved tensors,
                 kernels of Python that replace those of operators

Library code is a function that runs from a file of ``LIBRARIES`` which the RECORD of its
distribution lists with an equal SHA-256, in the module of that file; code of fedlsg; and Python's.
All else is own code: an override, a lambda, a notebook, code of a hub (``transformers_modules``),
an editable install, what ``torch.jit`` and ``torch.fx`` made, and a whole library whose RECORD has
no hashes, as Debian installs it. ``__init__`` may be own code, for no pass runs it. Configurations,
and what library code names, may be of other installed packages, such as numpy.

Not covered: compiled code, whatever its RECORD says; functions that were replaced deeper inside a
library; a RECORD written for own code.
"""

import base64
import csv
import functools
import hashlib
import operator
import os
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fedlsg.user_code.digest import OURS, filled_cells
from fedlsg.user_code.failure import OWN, is_users
from fedlsg.user_code.fingerprint import Watching, hooks_of_tensor
from fedlsg.user_code.process import own_kernels, tables, tracers

LIBRARIES = ("torch", "torchvision", "transformers", "timm", "peft")
"""Distributions whose code is library code, as fedlsg's own is."""
LOOKED_INTO = (*LIBRARIES[1:], OURS)
"""Those whose global objects are looked into: registries of attention functions, say."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GROUPS = ("_parameters", "_buffers", "_modules", *HOOKS)
REST = (*GROUPS, "_compiled_call_impl", "__init__", "__annotations__")
"""Names in modules and classes that no pass calls, or in place of ``forward``; and groups."""
PLAIN = {type(None), bool, int, float, str, weakref.ProxyType, weakref.CallableProxyType}
FUNCTIONS = (FunctionType, property, staticmethod, classmethod)
HOLDERS: Mapping[type, tuple[str, ...]] = {
    property: ("fget", "fset"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    types.MethodType: ("__func__", "__self__"),
    functools._lru_cache_wrapper: ("__wrapped__",),
}


WRAPPERS = {
    functools.partial: "func",
    types.MethodType: "__func__",
    functools._lru_cache_wrapper: "__wrapped__",
    torch.jit.ScriptFunction: "_torchdynamo_inline",
}
"""Types of what calls one other thing, and the attribute that holds it."""
MADE_BY_PYTHON = 1 << 9
"""Flag of classes that can be changed (Py_TPFLAGS_HEAPTYPE): no function of Python is in others."""
RUNS = ("__call__", "__new__", "__init__", "forward")
"""What runs when an object or a class is called."""
BY_VALUE = {"relu", "gelu", "silu", "elu", "celu", "selu", "leaky_relu", "hardtanh", "softplus"}
"""Compiled functions that change each number by itself, whatever their arguments are."""


class Origin(IntEnum):
    """The origin of a function: a library, another installed package, or the user."""

    LIBRARY, INSTALLED, OWN = range(3)


Part = tuple[object, Any, Origin]
"""A thing with its name in what holds it, and the largest origin that its code may have."""


def own_code(thing: Any) -> str | None:
    """The first own code of a model, or of a loss; None if a pass runs library code alone.

    The text names place, function and file: ``"0.act: gelu is code of train.py"``. The first call
    reads each file once.
    """
    of_all = [
        *tables(),
        _get_current_function_mode_stack(),
        _get_current_dispatch_mode_stack(),
        torch._C._autograd._top_saved_tensors_default_hooks(False),
        tracers(),
    ]
    if kernels := own_kernels():
        return f"{kernels[0]}: code that runs in place of an operator"
    due = deque[Part]()
    due.append(("", thing, Origin.LIBRARY))
    due.append(("for all modules", of_all, Origin.LIBRARY))
    seen: dict[int, object] = {}  # the things themselves, so that no other one gets their id
    while due:
        place, part, most = due.popleft()
        if type(part) in PLAIN or id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, type) and not issubclass(part, nn.Module):
            most = Origin.INSTALLED
        if refusal := _refusal(part, most):
            name = place or getattr(thing, "__name__", type(thing).__name__)
            return f"{name}: {refusal}"
        for name, value, limit in _parts(part, most):
            due.append((f"{place}.{name}".strip("."), value, limit))
    return None


def _refusal(thing: Any, most: Origin) -> str | None:
    """What is own code in a thing itself, without its parts."""
    if isinstance(thing, FunctionType):
        origin, where = origin_of(thing)
        return f"{thing.__qualname__} is {where}" if origin > most else None
    if isinstance(thing, functools.partial | operator.methodcaller):
        # compiled code with arguments may go over the examples, as torch.renorm(dim=1) does
        function = getattr(thing, "func", None)
        by_value = getattr(function, "__name__", "") in BY_VALUE
        compiled = not hasattr(function, "__code__") and not isinstance(function, type)
        return "compiled code with arguments" if compiled and not by_value else None
    if isinstance(thing, torch._ops.OpOverloadPacket) and not str(thing).startswith("aten."):
        return f"operator {thing}"
    if isinstance(thing, Tensor) and not all(map(_only_watches, hooks_of_tensor(thing))):
        return "a hook on the tensor"
    return "code that torch.jit compiled" if isinstance(thing, torch.jit.ScriptModule) else None


def _only_watches(hook: object) -> bool:
    """Whether a hook is one of fedlsg's own, which changes nothing in a pass."""
    function = hook.func if isinstance(hook, Watching) else None
    return isinstance(function, FunctionType) and origin_of(function)[0] is Origin.LIBRARY


def _parts(thing: Any, most: Origin) -> Iterator[Part]:
    """What a thing is made of, and what the code of a function may name."""
    yield from ((name, value, most) for name, value in _inside(thing))
    if isinstance(thing, FunctionType):
        if most is Origin.LIBRARY:
            yield "", sys.modules.get(thing.__globals__["__name__"]), Origin.INSTALLED
        return
    is_class, is_module = isinstance(thing, type), isinstance(thing, ModuleType)
    kind = thing if is_class else type(thing)
    for base in kind.__bases__ if is_class else (kind,):
        yield "", base, most
    if kind.__name__ == "OptimizedModule":
        return  # private passes run the original, which is inside
    whole = not is_module and (most is Origin.LIBRARY or _top(kind) in LOOKED_INTO)
    for name, value in getattr(thing, "__dict__", {}).items():
        read = whole or isinstance(value, FUNCTIONS)
        if is_module:
            read |= value is torch or value is F or _top(type(value)) in LOOKED_INTO
            read |= _stands_for_users(value)
        if read and name not in REST:
            yield "" if is_class or is_module else name, value, most


def _stands_for_users(value: Any) -> bool:
    """Whether something that is no function runs code of a user when it is called.

    It is held by a module of a library: a method or partial of a user's function, a class, or an
        object that can be called.
    """
    while inner := WRAPPERS.get(type(value)):
        value = getattr(value, inner)
    if isinstance(value, FunctionType):
        return is_users(value.__code__.co_filename)
    kind = value if isinstance(value, type) else type(value)
    return callable(value) and any(map(_runs_users, kind.__mro__))


def _runs_users(kind: type) -> bool:
    """Whether a user's function runs where this class, or an object of it, is called."""
    if not kind.__flags__ & MADE_BY_PYTHON:
        return False
    called = [vars(kind).get(name) for name in RUNS]
    functions = [getattr(value, "__func__", value) for value in called]
    return any(isinstance(f, FunctionType) and is_users(f.__code__.co_filename) for f in functions)


def _top(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _inside(thing: Any) -> Iterable[tuple[object, Any]]:
    """The parts of modules, containers and what is made of functions, by name."""
    if isinstance(thing, nn.Module):
        return [item for group in GROUPS for item in vars(thing)[group].items()]
    if isinstance(thing, dict):
        return thing.items()
    parts: Iterable[Any] = [getattr(thing, name) for name in HOLDERS.get(type(thing), ())]
    if isinstance(thing, list | tuple | set | frozenset | deque):
        parts = thing
    elif isinstance(thing, functools.partial):
        parts = (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, FunctionType):
        parts = [*(cell.cell_contents for cell in filled_cells(thing)), thing.__defaults__]
    return [("", part) for part in parts]


def origin_of(function: FunctionType) -> tuple[Origin, str]:
    """The origin of a function, and its file in words.

    It is that of its file if the function runs in the module of that file; else it is ``OWN``.
    """
    space, file = function.__globals__, function.__code__.co_filename
    if file.startswith("<frozen "):
        return Origin.LIBRARY, ""
    module = sys.modules.get(space.get("__name__", ""))
    home = ""
    if module is not None and vars(module) is space:
        home = getattr(module, "__file__", None) or ""
    files = {home, home if file.startswith("<") else file}
    if not all(map(os.path.exists, files)):
        return Origin.OWN, f"code of {Path(file).name}"
    return max(_origin(path, os.path.getmtime(path)) for path in files)


@functools.cache  # a changed file has another time
def _origin(file: str, changed: float) -> tuple[Origin, str]:
    for root, name, listed in _records(tuple(sys.path)):
        if file.startswith(root) and (given := listed.get(file.removeprefix(root))):
            digest = hashlib.sha256(Path(file).read_bytes()).digest()
            recorded = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            if given == f"sha256={recorded}":
                return Origin.LIBRARY, ""
            return Origin.OWN, f"code of {Path(file).name}, not as {name} was installed"
    near = "-packages" not in file or str(Path(file).resolve()).startswith(OWN)
    whose = Origin.OWN if is_users(file) else Origin.LIBRARY if near else Origin.INSTALLED
    return whose, f"code of {Path(file).name}"


@functools.lru_cache(maxsize=1)  # another sys.path is another key
def _records(places: tuple[str, ...]) -> list[tuple[str, str, dict[str, str]]]:
    """Folder, name and RECORD of each installed library: digests by path in the folder."""
    records = []
    for library in LIBRARIES:
        for distribution in metadata.distributions(name=library):
            rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
            digests = {row[0]: row[1] for row in rows if len(row) > 1}
            root = os.path.join(str(distribution.locate_file("")), "")
            records.append((root, f"{distribution.name} {distribution.version}", digests))
    return records
