"""What a pass writes into a model and a loss is put back after it: no example can read another
one's trace.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fedlsg.rows.draws import seed_generator
from fedlsg.rows.seeds import seeds_replaced
from fedlsg.user_code.library import LIBRARIES
from fedlsg.user_code.objects import ATOMS, Packages, put_back, put_back_spaces, state_of, walk

OF_TORCH = vars(nn.Module())
"""Attributes of every module."""
TABLES = [name for name, value in OF_TORCH.items() if isinstance(value, dict)]
"""Those that hold parameters, buffers, modules and hooks."""
HOOKS = [name for name in TABLES if name not in ("_parameters", "_buffers", "_modules")]
OURS = "fedlsg.gradients."
"""The pass itself: forwards that it replaces, which hold what it collects."""


@contextmanager
def forgetting(*used: object, parameters: bool = True) -> Iterator[Callable[[], bool]]:
    """Inside, passes may write to the model and the loss that they use; afterwards these hold what
    they held before.

    Gives a function that puts all of it back at once, and says whether anything had changed; it is
    called at the end in any case. Put back is what ``user_code.objects.walk`` reaches from them and
    from their hooks. ``parameters=False`` leaves the numbers of parameters out.
    Random generators that they keep or name draw from secret seeds inside.
    """
    modules = [m for thing in used if isinstance(thing, nn.Module) for m in thing.modules()]
    spaces = [space for module in modules for space in (vars(module), *_tables(module))]
    packages = _packages_of(used, modules)
    others = _others(used, modules, parameters, packages)
    undo = put_back_spaces(spaces), put_back(others, packages)
    with _secret_draws(others):
        try:
            yield lambda: any([how() for how in undo])
        finally:
            for how in undo:
                how()


@contextmanager
def _secret_draws(things: list[Any]) -> Iterator[None]:
    """Seed the generators among these things from torch's own, which each step seeds in secret."""
    states = [(thing, how) for thing in things if (how := state_of(thing)) is not None]
    if states:
        with seeds_replaced(lambda generator, given: None):
            for generator, _ in states:
                seed_generator(generator, int(torch.randint(2**62, ())))
    try:
        yield
    finally:
        if states:
            with seeds_replaced(lambda generator, given: None):
                for _, put_state_back in states:
                    put_state_back()


def _tables(module: nn.Module) -> list[dict[str, Any]]:
    return [vars(module)[name] for name in TABLES]


def _packages_of(used: tuple[object, ...], modules: list[nn.Module]) -> Packages:
    """The packages whose code runs in a pass, but for those that keep nothing."""
    # fedlsg may have wrapped a loss
    given = [*used, *(getattr(thing, "loss", thing) for thing in used)]
    kinds = {kind for thing in (*given, *modules) for kind in type(thing).__mro__}
    homes = {str(getattr(thing, "__module__", "")) for thing in (*kinds, *given)}
    known = {*LIBRARIES, *sys.stdlib_module_names, "fedlsg"}
    return frozenset(name for home in homes if (name := home.partition(".")[0]) not in known)


def _others(
    used: tuple[object, ...], modules: list[nn.Module], parameters: bool, packages: Packages
) -> list[Any]:
    """What the modules hold besides: numbers of tensors, objects, the user's code; and the loss."""
    start = [thing for thing in used if not isinstance(thing, nn.Module)]
    for module in modules:
        start += [type(module), *module._buffers.values()]
        if parameters:
            start += module._parameters.values()
        kept = [value for name, value in vars(module).items() if name not in OF_TORCH]
        kept += [hook for name in HOOKS for hook in vars(module)[name].values()]
        start += [value for value in kept if type(value) not in ATOMS and not _is_ours(value)]
    return list(walk(start, {id(module) for module in modules}, packages))


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith(OURS)
