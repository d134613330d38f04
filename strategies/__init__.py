"""Recipes by name, and the Flower strategy that runs them.

    method = recipe("lsg", rank=4, sparsity=0.3, noise_multiplier=1.2)

A recipe is one file here with a function ``recipe(**choices) -> Method``; a new file is a new method, and needs no
registration. The modules in ``PLUMBING`` hold the federation and are no recipes.
"""

from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from pkgutil import iter_modules
from typing import Any

from fedlsg.after import After
from fedlsg.method import Method
from fedlsg.privatize import Mechanism

PLUMBING = frozenset({
    "strategy", "nodes", "report", "sent", "serial", "state", "wire", "downlink", "replica_wire", "server_update",
    "snapshot", "code_identity", "terms", "expectations", "ledger_copies", "ledger_wire", "watched_grid", "stopped",
})  # fmt: skip


def names() -> tuple[str, ...]:
    """Names of all recipes: the files of this folder, with dashes."""
    return tuple(sorted(m.name.replace("_", "-") for m in iter_modules(__path__) if m.name not in PLUMBING))


def recipe(name: str, **settings: Any) -> Method:
    """The method of a name with the given settings, everything else at the recipe's defaults.

    Settings are those of the recipe itself (for instance ``rank``, ``sparsity``), of
    ``fedlsg.privatize.Mechanism`` (``mechanism`` stands for its ``kind``) and of ``fedlsg.after.After``.
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
            raise ValueError(f"method {name!r} has no setting {key!r}{_nearest(key, known)}; it has {', '.join(known)}")
    protection = {k: v for k, v in settings.items() if k in mechanism}
    return build(
        mechanism=Mechanism(kind=protection.pop("mechanism", default_mechanism(name)), **protection),
        after=After(**{k: v for k, v in settings.items() if k in after}),
        **{k: v for k, v in settings.items() if k in own},
    )


def check_name(name: str) -> None:
    """Raise ValueError for an unknown recipe, with the nearest known one."""
    if name not in names():
        raise ValueError(f"unknown method {name!r}; known: {', '.join(names())}{_nearest(name, names())}")


def default_mechanism(name: str) -> str:
    """The kind of mechanism that a recipe has where none is said."""
    return str(getattr(signature(_build(name)).parameters["mechanism"].default, "kind", "dp"))


def own_settings(name: str) -> frozenset[str]:
    """Settings that only this recipe's own function takes."""
    return frozenset(signature(_build(name)).parameters) - {"mechanism", "after"}


def _build(name: str) -> Callable[..., Method]:
    build: Callable[..., Method] = import_module(f"{__name__}.{name.replace('-', '_')}").recipe
    return build


def _nearest(word: str, known: tuple[str, ...] | list[str]) -> str:
    match = get_close_matches(word, known, n=1)
    return f"; did you mean {match[0]!r}?" if match else ""


__all__ = ["check_name", "default_mechanism", "names", "own_settings", "recipe"]
