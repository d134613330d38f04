"""State of the whole process that a pass runs or reads, which neither model nor loss holds.

tables       hooks for all modules and optimizers: they are walked and put back like a model's
operators    that users define (``torch.library.custom_op``): walked, and not run under ``vmap``
kernels      of Python that users give to operators (``torch.library.impl``): C++ keeps them, so
             that nothing of them could be put back, and they are refused
tracers      of sys.settrace and sys.setprofile: a user's are refused
settings     modes and hooks on saved tensors that are on, gradients on or off, types and devices of
             new tensors: put back
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import overrides
from torch._library.custom_ops import OPDEFS
from torch.nn.modules import module as of_all_modules
from torch.optim import optimizer as of_all_optimizers
from torch.utils import _python_dispatch

from fedlsg.user_code.failure import is_users

HOOKS = tuple(
    name
    for name, value in vars(of_all_modules).items()
    if name.startswith("_global") and isinstance(value, dict)
)
"""Names of torch's tables of hooks for all modules."""
OF_OPTIMIZERS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
"""The same for all optimizers."""
NEVER_RUN = "/Meta"
"""End of the keys of kernels on tensors without numbers."""
OF_TORCH = "prims/"
"""Begin of the keys of operators that only torch defines."""
DEBUGS = "debugprims"
"""A namespace of operators that torch itself defines by name."""
SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (
        partial(getattr, torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),
        partial(setattr, torch._GLOBAL_DEVICE_CONTEXT, "device_context"),
    ),
    (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
    (partial(torch.is_autocast_enabled, "cuda"), partial(torch.set_autocast_enabled, "cuda")),
    (partial(torch.get_autocast_dtype, "cpu"), partial(torch.set_autocast_dtype, "cpu")),
    (partial(torch.get_autocast_dtype, "cuda"), partial(torch.set_autocast_dtype, "cuda")),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_num_threads, torch.set_num_threads),
)
"""A function that reads a setting, and one that sets it."""
Stack = tuple[Callable[[], list[Any]], Callable[[], Any], Callable[[Any], Any]]
"""Functions that list what is on, leave the innermost one, and enter one."""


def tables() -> list[dict[Any, Any]]:
    """The tables of hooks for all modules and optimizers."""
    optimizers = [vars(of_all_optimizers)[name] for name in OF_OPTIMIZERS]
    return [*(vars(of_all_modules)[name] for name in HOOKS), *optimizers]


def tracers() -> list[Any]:
    """The functions that Python calls at each call or line of this thread.

    They see the frames of libraries, with their tensors.
    """
    return [sys.gettrace(), sys.getprofile()]


def own_operators() -> list[Any]:
    """The operators that code of users defined by ``torch.library.custom_op``."""
    known = OPDEFS.valuerefs()
    if _operators[0] != known:
        operators = [reference() for reference in known]
        _operators[:] = [known, [op for op in operators if op is not None and _is_own(op._init_fn)]]
    return _operators[1]


_operators: list[list[Any]] = [[], []]
"""References to all operators, and the operators of users. Invalid if the references differ."""


def _is_own(function: Any) -> bool:
    return not isinstance(function, FunctionType) or is_users(function.__code__.co_filename)


def own_kernels() -> list[str]:
    """Operators with a kernel of a user's in Python, such as ``aten::tanh (CPU, mine.py:3)``.

    torch does not report who registered a kernel by name. Such a kernel counts as a user's, for
    operators of C++ and for those that were defined by name.
    """
    if _kernels[0] != len(torch.library._impls):
        kernels_here = filter(None, map(_own_kernel, torch.library._impls))
        _kernels[:] = [len(torch.library._impls), sorted(kernels_here)]
    kernels: list[str] = _kernels[1]
    return kernels


_kernels: list[Any] = [0, []]
"""The number of kernels that were looked at, and those of users."""


def _own_kernel(key: str) -> str:
    """The operator and the place of a kernel, by its key; empty if it is not a user's."""
    if key.endswith(NEVER_RUN) or key.startswith(OF_TORCH):
        return ""
    space, operator, where = key.split("/")
    name, places = f"{space}::{operator}", dict[str, str]()
    for line in torch._C._dispatch_dump(name).splitlines():
        kernel, _, place = line.partition(": registered at ")
        places.setdefault(kernel.partition("[")[0], place.partition(" :: ")[0])
    place = places.get(where, "")
    if is_users(place.rpartition(":")[0]):
        return f"{name} ({where}, {Path(place).name})"
    is_own = space == "aten" or _by_name(places.get("debug", ""))  # where the operator was defined
    return f"{name} ({where})" if is_own and _by_name(place) and space != DEBUGS else ""


def _by_name(place: str) -> bool:
    return place.startswith(torch.library.__file__)


def put_back_settings() -> Callable[[], bool]:
    """A function that restores settings and modes, and returns whether one had changed."""
    before = [read() for read, _ in SETTINGS]
    stacks = [(stack, stack[0]()) for stack in STACKS]

    def undo() -> bool:
        changed = False
        for (read, write), value in zip(SETTINGS, before, strict=True):
            if read() != value:
                write(value)
                changed = True
        return any([_put_back_stack(*stack, entries) for stack, entries in stacks]) or changed

    return undo


def _put_back_stack(
    read: Callable[[], list[Any]], pop: Callable[[], Any], push: Callable[[Any], Any], before: Any
) -> bool:
    """Leave what was entered since, enter again what was left, and return whether any was."""
    changed = False
    while (now := read()) and _identities(now) != _identities(before[: len(now)]):
        pop()
        changed = True
    for entry in before[len(now) :]:
        push(entry)
        changed = True
    return changed


def _identities(things: list[Any]) -> list[Any]:
    return [[*map(id, t)] if isinstance(t, tuple) else id(t) for t in things]


def _hooks_on_saved() -> list[Any]:
    """Hooks on saved tensors that are on: the innermost alone, for torch shows no other."""
    return [hooks] if (hooks := torch._C._autograd._top_saved_tensors_default_hooks(False)) else []


STACKS: tuple[Stack, ...] = (
    (overrides._get_current_function_mode_stack, overrides._pop_mode, overrides._push_mode),
    (
        _python_dispatch._get_current_dispatch_mode_stack,
        _python_dispatch._pop_mode,
        _python_dispatch._push_mode,
    ),
    (
        _hooks_on_saved,
        torch._C._autograd._pop_saved_tensors_default_hooks,
        lambda hooks: torch._C._autograd._push_saved_tensors_default_hooks(*hooks),
    ),
)
"""The stacks of modes, and that of hooks on saved tensors."""
