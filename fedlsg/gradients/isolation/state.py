"""What a pass writes into a model and a loss is put back after it: no example can read another
one's trace.
"""

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
"""Those that hold parameters, buffers, modules and hooks."""
HOOKS = [name for name in TABLES if name not in ("_parameters", "_buffers", "_modules")]
OURS = "fedlsg.gradients."
"""The pass itself: forwards that it replaces, which hold what it collects."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """What a model and a loss hold. ``undo`` makes them hold it again, as often as one likes, and
    says whether they had changed; ``generators``: those among it.

    ``used`` are kept alive: by their identities a snapshot is found again.
    """

    used: tuple[object, ...]
    undo: Callable[[], bool]
    generators: list[Any]


class _Passes(threading.local):
    """Snapshots of the passes that this thread runs without a break; None: each takes its own."""

    kept: dict[Hashable, Snapshot] | None = None


_passes = _Passes()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Inside, passes follow each other, no code of a user runs between them, and nothing moves
    weights.

    After a pass all is as it was before it. So the next pass with the same model and loss needs no
    snapshot of its own: that of the first one holds until the end of the context. Not for a pass
    inside of another one: what the outer one wrote by then differs from pass to pass.
    """
    before, _passes.kept = _passes.kept, {}
    try:
        yield
    finally:
        _passes.kept = before


@contextmanager
def forgetting(
    *used: object, parameters: bool = True, together: bool = False
) -> Iterator[Callable[[], bool]]:
    """Inside, passes may write to the model and the loss that they use; afterwards these hold what
    they held before.

    Gives a function that puts all of it back at once, and says whether anything had changed; it is
    called at the end in any case. Put back is what ``user_code.objects.walk`` reaches from them and
    from their hooks. ``parameters=False`` leaves the numbers of parameters out.
    Random generators that they keep or name draw from secret seeds inside.
    ``together``: all examples of a pass run at once; raises SharedDrawError after code that drew
    numbers by python or numpy, or by a generator that it keeps: these are the same for all.
    """
    kept, _passes.kept = _passes.kept, None
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
        undo=lambda: any([how() for how in undo]),
        generators=[thing for thing in others if state_of(thing) is not None],
    )


class SharedDrawError(RuntimeError):
    """Random numbers that all examples of a pass would share: which ones do, depends on others."""


def _states(generators: list[Any]) -> tuple[Any, ...]:
    """What tells whether a number was drawn, by python, numpy or these generators."""
    states = [g.get_state().tolist() if isinstance(g, torch.Generator) else g for g in generators]
    return (*states_of_python(), pickle.dumps(states), unseeded())


def states_of_python() -> tuple[Any, ...]:
    """The states of the global generators of python and numpy."""
    words: Any = np.random.get_state(legacy=False)
    return random.getstate(), words["state"]["pos"], words["state"]["key"].tobytes()


@contextmanager
def _secret_draws(generators: list[Any]) -> Iterator[Callable[[], None]]:
    """Seed these generators from torch's own, which each step seeds in secret.

    Gives a function that does so again.
    """
    states = [(thing, how) for thing in generators if (how := state_of(thing)) is not None]

    def seed() -> None:
        if states:
            with seeds_replaced(lambda generator, given: None):
                for generator, _ in states:
                    seed_generator(generator, int(torch.randint(2**62, ())))

    seed()
    try:
        yield seed
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
    start += [hook for table in tables() for hook in table.values()]
    start += [*own_operators(), *replaced({*map(type, modules)})]
    more = [module for module in modules if has_more(module)]
    for module in modules:
        start += [type(module), *module._buffers.values(), module._non_persistent_buffers_set]
        if parameters:
            start += module._parameters.values()
        kept = [value for name, value in vars(module).items() if name not in OF_TORCH]
        kept += [hook for name in HOOKS for hook in vars(module)[name].values()]
        start += [value for value in kept if type(value) not in ATOMS and not _is_ours(value)]
    seen = {id(module) for module in modules} - {id(module) for module in more}
    return list(walk([*start, *more], seen, packages, data=False))


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith(OURS)
