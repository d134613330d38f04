"""Recipes by name, and the Flower strategy that runs them.

    method = recipe("lsg", rank=4, sparsity=0.3, noise_multiplier=1.2)

A recipe is one file of ``strategies.recipes`` with a function ``recipe(**settings) -> Method``. A new file there is a
new method, and needs no registration. The keywords of its function are its settings: type, range and sentence of each
are its annotation (``fedlsg.setting``), and every run accepts them.
"""

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from inspect import signature
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from fedlsg.choices import did_you_mean
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.setting import Declared, declared, same, suggestion
from fedlsg.training import ServerOptimizer
from strategies import recipes


def names() -> tuple[str, ...]:
    """Names of all recipes: the files of ``strategies.recipes`` that define a function ``recipe``, with dashes."""
    return tuple(sorted(_recipes()))


def recipe(name: str, **settings: Any) -> Method:
    """The method of a name with the given settings, everything else at the recipe's defaults.

    Settings are those of the recipe itself (for instance ``rank``, ``sparsity``), of ``fedlsg.privacy.Mechanism``
    (``mechanism`` stands for its ``kind``) and of ``fedlsg.training.ServerOptimizer``.
    Raises ValueError for an unknown name or setting, with the nearest known one.
    """
    check_name(name)
    build = _build(name)
    own, mechanism, server = declared_by(name), declared(Mechanism), declared(ServerOptimizer)
    for key, value in settings.items():
        if key not in own | mechanism | server:
            known = dict(sorted((own | mechanism | server).items()))
            del known["noise_share"]  # follows from trust="aggregate", nobody sets it
            raise ValueError(
                f"method {name!r} has no setting {key!r}{suggestion(key, known)}; it has {', '.join(known)}"
            )
        if key in own:
            own[key].check(value)
    protection = {k: v for k, v in settings.items() if k in mechanism}
    return build(
        mechanism=Mechanism(kind=protection.pop("mechanism", default_mechanism(name)), **protection),
        server=ServerOptimizer(**{k: v for k, v in settings.items() if k in server}),
        **{k: v for k, v in settings.items() if k in own},
    )


def check_name(name: str) -> None:
    """Raise ValueError for an unknown recipe, with the nearest known one."""
    if name not in names():
        raise ValueError(f"unknown method {name!r}; known: {', '.join(names())}{did_you_mean(name, names())}")


def default_mechanism(name: str) -> str:
    """The kind of mechanism that a recipe has where none is said."""
    return str(getattr(signature(_build(name)).parameters["mechanism"].default, "kind", "dp"))


def declared_by(name: str) -> dict[str, Declared]:
    """What this recipe's own function takes: its keywords, as they are declared."""
    return declared(_build(name), without=("mechanism", "server"))


def own_settings(name: str) -> frozenset[str]:
    """Names of the settings that this recipe's own function takes."""
    return frozenset(declared_by(name))


def recipe_settings() -> dict[str, Declared]:
    """Settings that only some recipes have, by name.

    Raises ValueError where two recipes declare one name with different types or ranges, and for a name that the
    mechanism or the server has.
    """
    found: dict[str, Declared] = {}
    for method in names():
        for name, one in declared_by(method).items():
            if name in common_settings():
                raise ValueError(f"method {method!r} declares {name!r}, which every method has: give it another name")
            first = next(taker for taker in names() if name in declared_by(taker))
            found[name] = same(found.get(name, one), one, (f"method {first!r}", f"method {method!r}"))
    return found


def common_settings() -> dict[str, Declared]:
    """Settings that every recipe has: those of the mechanism, then those of the server."""
    return {**declared(Mechanism), **declared(ServerOptimizer)}


def takers_of(setting: str) -> tuple[str, ...]:
    """Names of the recipes that have a setting of their own."""
    return tuple(name for name in names() if setting in declared_by(name))


def summary(name: str) -> str:
    """The first sentence of a recipe's file."""
    text = sys.modules[_build(name).__module__].__doc__ or ""
    return text.strip().partition("\n")[0]


def _build(name: str) -> Callable[..., Method]:
    return _recipes()[name]


def _recipes() -> dict[str, Callable[..., Method]]:
    return _recipes_in(tuple(recipes.__path__))


@cache
def _recipes_in(folders: tuple[str, ...]) -> dict[str, Callable[..., Method]]:
    """A file that defines no function ``recipe`` of its own is a helper of other recipes, and no method."""
    found: dict[str, Callable[..., Method]] = {}
    for file in iter_modules(folders):
        module = _imported(f"{recipes.__name__}.{file.name}")
        build = getattr(module, "recipe", None)
        if callable(build) and getattr(build, "__module__", "") == module.__name__:
            found[file.name.replace("_", "-")] = build
    return found


def _imported(module: str) -> ModuleType:
    try:
        return import_module(module)
    except Exception as error:  # whatever is wrong in one file ends every command: it must be found
        where = f"{module.replace('.', '/')}.py"
        raise ImportError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error


__all__ = [
    "check_name", "common_settings", "declared_by", "default_mechanism", "names", "own_settings", "recipe",
    "recipe_settings", "summary", "takers_of",
]  # fmt: skip
