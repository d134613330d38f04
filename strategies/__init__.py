"""Recipes by name, and the Flower strategy that runs them.

    method = recipe("lsg", rank=4, sparsity=0.3, noise_multiplier=1.2)

A recipe is one file of ``strategies.recipes`` with a function ``recipe(**settings) -> Method``. A new file there is a
new method, and needs no registration.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib import import_module
from inspect import signature
from pkgutil import iter_modules
from typing import Any

from fedlsg.choices import did_you_mean
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import After
from strategies import recipes


def names() -> tuple[str, ...]:
    """Names of all recipes: the files of ``strategies.recipes`` that define ``recipe``, with dashes."""
    return tuple(sorted(_recipes()))


def recipe(name: str, **settings: Any) -> Method:
    """The method of a name with the given settings, everything else at the recipe's defaults.

    Settings are those of the recipe itself (for instance ``rank``, ``sparsity``), of ``fedlsg.privacy.Mechanism``
    (``mechanism`` stands for its ``kind``) and of ``fedlsg.training.After``.
    Raises ValueError for an unknown name or setting, with the nearest known one.
    """
    check_name(name)
    build = _build(name)
    own = own_settings(name)
    mechanism = {f.name for f in fields(Mechanism)} - {"kind"} | {"mechanism"}
    after = {f.name for f in fields(After)}
    known = sorted((own | mechanism | after) - {"noise_share"})  # follows from trust="aggregate", nobody sets it
    for key in settings:
        if key not in own | mechanism | after:
            raise ValueError(
                f"method {name!r} has no setting {key!r}{did_you_mean(key, known)}; it has {', '.join(known)}"
            )
    protection = {k: v for k, v in settings.items() if k in mechanism}
    return build(
        mechanism=Mechanism(kind=protection.pop("mechanism", default_mechanism(name)), **protection),
        after=After(**{k: v for k, v in settings.items() if k in after}),
        **{k: v for k, v in settings.items() if k in own},
    )


def check_name(name: str) -> None:
    """Raise ValueError for an unknown recipe, with the nearest known one."""
    if name not in names():
        raise ValueError(f"unknown method {name!r}; known: {', '.join(names())}{did_you_mean(name, names())}")


def default_mechanism(name: str) -> str:
    """The kind of mechanism that a recipe has where none is said."""
    return str(getattr(signature(_build(name)).parameters["mechanism"].default, "kind", "dp"))


def own_settings(name: str) -> frozenset[str]:
    """Settings that only this recipe's own function takes."""
    return frozenset(signature(_build(name)).parameters) - {"mechanism", "after"}


def _build(name: str) -> Callable[..., Method]:
    return _recipes()[name]


@cache
def _recipes() -> dict[str, Callable[..., Method]]:
    """A file without ``recipe`` is a helper of other recipes, and no method."""
    modules = (import_module(f"{recipes.__name__}.{file.name}") for file in iter_modules(recipes.__path__))
    found = {module.__name__.rpartition(".")[2]: getattr(module, "recipe", None) for module in modules}
    return {name.replace("_", "-"): build for name, build in found.items() if build is not None}


__all__ = ["check_name", "default_mechanism", "names", "own_settings", "recipe"]
