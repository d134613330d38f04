"""Put back what a pass writes into a model and a loss: no example can read another one's trace."""

import pickle
import random
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedlsg.gradients.isolation.secret_seeds import unseeded
from fedlsg.rows.draws import seed_generator
from fedlsg.rows.seeds import seeds_replaced
from fedlsg.user_code.library import LIBRARIES
from fedlsg.user_code.objects import (
    ATOMS,
    Packages,
    has_more,
    put_back,
    put_back_kinds,
    put_back_spaces,
    state_of,
    walk,
)
from fedlsg.user_code.process import own_operators, put_back_settings, tables
from fedlsg.user_code.replaced import replaced

OF_TORCH = vars(nn.Module())
"""Attributes of every module."""
TABLES = [name for name, value in OF_TORCH.items() if isinstance(value, dict)]
"""Attributes that hold parameters, buffers, modules and hooks."""
HOOKS = [name for name in TABLES if name not in ("_parameters", "_buffers", "_modules")]
"""Attributes that hold hooks."""
OURS = "fedlsg.gradients."
"""Python modules of the pass itself. The forwards that it replaces hold what it collects."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """The state of a model and a loss before a pass.

    used: the model and the loss. They are kept alive, because their identities are the key under
        which a snapshot is kept.
    undo: restores the state, as often as it is called, and returns whether anything had changed.
    generators: the random generators that they hold or name.
    """

    used: tuple[object, ...]
    undo: Callable[[], bool]
    generators: list[Any]


class _Passes(threading.local):
    """Snapshots that the passes of this thread share.

    kept: by model and loss, inside ``uninterrupted``; None if each pass takes its own snapshot.
    """

    kept: dict[Hashable, Snapshot] | None = None


_passes = _Passes()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Inside, all passes with one model and loss share one snapshot.

    To be used where no code of a user runs between passes, and nothing moves weights: after a pass
    all is as it was before it. A pass inside another pass takes its own snapshot, because what the
    outer one wrote by then differs from pass to pass.
    """
    before = _passes.kept
    _passes.kept = {}
    try:
        yield
    finally:
        _passes.kept = before


@contextmanager
def forgetting(
    *used: object, parameters: bool = True, together: bool = False
) -> Iterator[Callable[[], bool]]:
    """Inside, passes may write to the model and the loss; afterwards these are as they were before.

    used: the model and the loss.
    parameters: whether the numbers of parameters are put back, too.
    together: whether all examples of a pass run at once. Code that drew numbers by Python or numpy,
        or by a generator that it keeps, then raises SharedDrawError: these are the same for all.
    Yields a function that puts everything back at once, and returns whether anything had changed.
    At the end everything is put back in any case: all that ``user_code.objects.walk`` reaches from
    the model, the loss and their hooks. Random generators that they hold or name draw from secret
    seeds inside.
    """
    kept = _passes.kept
    _passes.kept = None  # a pass inside this one takes its own snapshot
    key = (*map(id, used), parameters)
    try:
        snapshot = (kept or {}).get(key) or _snapshot(used, parameters)

        def put_all_back() -> bool:
            changed = snapshot.undo()
            seed()  # whatever state a generator was given, it is gone
            return changed

        with _secret_draws(snapshot.generators) as seed:
            before = _states(snapshot.generators) if together else ()
            try:
                yield put_all_back
            finally:
                after = _states(snapshot.generators) if together else ()
                snapshot.undo()
            if before != after:
                raise SharedDrawError(
                    "random draws by python or numpy would be the same for all examples of a pass"
                )
        if kept is not None:
            kept[key] = snapshot
    finally:
        _passes.kept = kept


def _snapshot(used: tuple[object, ...], parameters: bool) -> Snapshot:
    """The snapshot of a model and a loss, which may be one or both."""
    modules = [m for thing in used if isinstance(thing, nn.Module) for m in thing.modules()]
    spaces = [space for module in modules for space in (vars(module), *_tables(module))]
    packages = _packages_of(used, modules)
    spaces += tables()
    others = _others(used, modules, parameters, packages)
    undo = (
        put_back_settings(),
        put_back_kinds(modules),
        put_back_spaces(spaces),
        put_back(others, packages),
    )
    return Snapshot(
        used=used,
        undo=lambda: any([put_one_back() for put_one_back in undo]),  # a list, so that all run
        generators=[thing for thing in others if state_of(thing) is not None],
    )


class SharedDrawError(RuntimeError):
    """Code under ``vmap`` drew random numbers that all examples of the pass would share."""


def _states(generators: list[Any]) -> tuple[Any, ...]:
    """States that change when Python, numpy or one of these generators draws a number."""
    states = [g.get_state().tolist() if isinstance(g, torch.Generator) else g for g in generators]
    return (*states_of_python(), pickle.dumps(states), unseeded())


def states_of_python() -> tuple[Any, ...]:
    """The states of the global generators of python and numpy."""
    of_numpy: Any = np.random.get_state(legacy=False)
    return random.getstate(), of_numpy["state"]["pos"], of_numpy["state"]["key"].tobytes()


@contextmanager
def _secret_draws(generators: list[Any]) -> Iterator[Callable[[], None]]:
    """Inside, these generators are seeded by torch's own, which each step seeds in secret.

    Yields a function that seeds them again. On exit they have their states from before.
    """
    states = [(g, restore) for g in generators if (restore := state_of(g)) is not None]

    def seed() -> None:
        if states:
            with seeds_replaced(lambda generator, seeds: None):
                for generator, _ in states:
                    seed_generator(generator, int(torch.randint(2**62, ())))

    seed()
    try:
        yield seed
    finally:
        if states:
            with seeds_replaced(lambda generator, seeds: None):
                for _, restore in states:
                    restore()


def _tables(module: nn.Module) -> list[dict[str, Any]]:
    return [vars(module)[name] for name in TABLES]


def _packages_of(used: tuple[object, ...], modules: list[nn.Module]) -> Packages:
    """The packages whose code runs in a pass, without those that keep nothing."""
    # fedlsg may have wrapped a loss
    things = [*used, *(getattr(thing, "loss", thing) for thing in used)]
    kinds = {kind for thing in (*things, *modules) for kind in type(thing).__mro__}
    homes = {str(getattr(thing, "__module__", "")) for thing in (*kinds, *things)}
    keep_nothing = {*LIBRARIES, *sys.stdlib_module_names, "fedlsg"}
    return frozenset({home.partition(".")[0] for home in homes} - keep_nothing)


def _others(
    used: tuple[object, ...], modules: list[nn.Module], parameters: bool, packages: Packages
) -> list[Any]:
    """All objects to put back that are not tables of modules: tensors, attributes, code, the loss.

    parameters: whether the numbers of parameters are among them.
    """
    start = [thing for thing in used if not isinstance(thing, nn.Module)]
    start += [hook for table in tables() for hook in table.values()]
    start += [*own_operators(), *replaced({*map(type, modules)})]
    for module in modules:
        start += [type(module), *module._buffers.values(), module._non_persistent_buffers_set]
        if parameters:
            start += module._parameters.values()
        kept = [value for name, value in vars(module).items() if name not in OF_TORCH]
        kept += [hook for name in HOOKS for hook in vars(module)[name].values()]
        start += [value for value in kept if type(value) not in ATOMS and not _is_ours(value)]
    # The walk need not visit a module, unless it holds more than tables and attributes.
    with_more = [module for module in modules if has_more(module)]
    seen = {id(module) for module in modules} - {id(module) for module in with_more}
    return list(walk([*start, *with_more], seen, packages, data=False))


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith(OURS)
