"""Recipes by name, and the Flower strategy that runs them.

    method = recipe("lsg", rank=4, sparsity=0.3, noise_multiplier=1.2)

A recipe is one file of ``fedlsg.strategies.recipes`` with a function
``recipe(**settings) -> Method``. A new file there is a new method, and needs no registration. So is
a function elsewhere:
``recipe("mine.py:recipe")``, one that ``give`` gave a name, or one that an installed package offers
as an entry point in ``fedlsg.methods``. The keywords of the function are its settings: type, range
and sentence of each are its annotation (``fedlsg.config``), and every run accepts them.
"""

if __name__ != "fedlsg.strategies":
    # A second copy of each module would have ledgers, caches and classes of its own.
    raise ImportError("expected the name fedlsg.strategies: this folder is a part of fedlsg")

import sys
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import cache, partial
from importlib import import_module
from inspect import Parameter, getdoc, signature
from pkgutil import iter_modules
from typing import Any, Unpack

from fedlsg import user_code
from fedlsg.config import Declared, agreed, declared, suggestion, summary_of
from fedlsg.config.choices import did_you_mean
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.strategies import recipes
from fedlsg.strategies.method_settings_typed import MethodSettings
from fedlsg.training import ServerOptimizer
from fedlsg.user_code.short_traceback import short_traceback

_Build = Callable[..., Method]
_Builds = dict[str, _Build]

GROUP = "fedlsg.methods"
"""The entry point group of packages that offer recipes."""
# names of a recipe in other frameworks
NAMES_ELSEWHERE = {
    "fedavg": "sgd",
    "fedsgd": "sgd",
    "dp-fedavg": "dpsgd",
    "dp-sgd": "dpsgd",
    "dpsgd-full": "dpsgd",
}
_GIVEN: _Builds = {}
"""Recipes that this process was given, by name."""


def names() -> tuple[str, ...]:
    """Names of all recipes: files of ``fedlsg.strategies.recipes`` with a function ``recipe``, and
    what packages offer.
    """
    return tuple(sorted({*_own(), *user_code.offered(GROUP)}))


def give(name: str, build: _Build) -> None:
    """Let this process find a recipe under a name. Raises ValueError for a function that is no
    recipe, or a taken name.

    A recipe is a function of keywords, among them ``mechanism`` and ``server``, that returns a
    ``Method``; the first sentence of its docstring is its summary.
    """
    if name in names():
        raise ValueError(
            f"{name!r} is a method of fedlsg or of an installed package: give your recipe another "
            "name"
        )
    _check_recipe(name, build)
    before = _GIVEN.get(name)
    _GIVEN[name] = build
    try:
        recipe_settings()
    except ValueError:
        _GIVEN.pop(name) if before is None else _GIVEN.update({name: before})
        raise


def forget(*names: str) -> None:
    """Let this process forget recipes that it was given; all of them if none is named."""
    for name in names or tuple(_GIVEN):
        _GIVEN.pop(name, None)


def given() -> Mapping[str, _Build]:
    """Recipes that this process was given, by name."""
    return dict(_GIVEN)


def _check_recipe(name: str, build: Any) -> None:
    """Raise ValueError for a function that is no recipe."""
    fix = (
        "a recipe is def recipe(*, mechanism, server) -> Method, with settings of its own as "
        "keywords"
    )
    if not callable(build):
        raise ValueError(f"method {name!r} is no function but {type(build).__name__}: {fix}")
    parameters = signature(build).parameters
    if missing := [key for key in ("mechanism", "server") if key not in parameters]:
        raise ValueError(f"method {name!r} does not take {' and '.join(missing)}: {fix}")
    for key, parameter in parameters.items():
        if parameter.kind not in (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
            raise ValueError(
                f"method {name!r} takes {parameter}, and settings have names of their own: {fix}"
            )
        if key not in ("mechanism", "server") and parameter.default is Parameter.empty:
            raise ValueError(
                f"method {name!r}: {key} has no default; give it one, as in {key}: int = 4"
            )
    if not getdoc(build):
        raise ValueError(
            f"method {name!r} has no docstring: its first sentence is what a list of methods shows"
        )


@short_traceback
def recipe(name: str, **settings: Unpack[MethodSettings]) -> Method:
    """The method of a name with the given settings, everything else at the recipe's defaults.

    Settings are those of the recipe itself (for instance ``rank``, ``sparsity``), of
    ``fedlsg.privacy.Mechanism`` (``mechanism`` stands for its ``kind``) and of
    ``fedlsg.training.ServerOptimizer``.
    Raises ValueError for an unknown name or setting, with the nearest known one.
    """
    if not isinstance(name, str):
        raise ValueError(f"method={name!r}: expected the name of a recipe, a text")
    build = _build(name)
    check_settings(name, settings)
    own = declared_by(name)

    def part(names: Container[str]) -> dict[str, Any]:
        return {key: value for key, value in settings.items() if key in names}

    for key, value in part(own).items():
        own[key].check(value)
    protection = part(declared(Mechanism))
    parts: dict[str, Any] = {
        "mechanism": Mechanism(
            kind=protection.pop("mechanism", default_mechanism(name)), **protection
        ),
        "server": ServerOptimizer(**part(declared(ServerOptimizer))),
    }
    try:
        made = build(**parts, **part(own))
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"method {name!r} fails: {type(error).__name__}: {error}") from error
    if not isinstance(made, Method):
        raise ValueError(f"method {name!r} returns {type(made).__name__}: expected a fedlsg.Method")
    for key, given in parts.items():
        if getattr(made, key) != given:
            raise ValueError(
                f"method {name!r} does not keep the {key} that it is given, which the settings and "
                "the ledger are about: return Method(name=..., mechanism=mechanism, server=server, "
                "...)"
            )
    return made


def check_settings(name: str, given: Iterable[str], *, also: Collection[str] = ()) -> None:
    """Raise ValueError, with the nearest known name, for a setting that a recipe does not have.

    The recipe has its own settings, those of the mechanism, and those of the server. ``also``:
    other arguments of the caller.
    """
    known = declared_by(name) | declared(Mechanism) | declared(ServerOptimizer)
    shown = dict(sorted(known.items()))
    del shown["noise_share"], shown["colluders"]  # follow from trust, nobody sets them here
    for key in given:
        if key not in known:
            meant = suggestion(key, shown, also=also) or f"; it has {', '.join(shown)}"
            raise ValueError(f"method {name!r} has no setting {key!r}{owners_hint(key)}{meant}")


def owners_hint(key: str) -> str:
    """The end of a message about a setting that other recipes have: their names."""
    takers = takers_of(key)
    return f", which is one of {', '.join(takers)}: leave it out, or name one" if takers else ""


def check_name(name: str) -> None:
    """Raise ValueError, with the nearest known name, for an unknown recipe.

    A reference to code is loaded.
    """
    if user_code.is_reference(name) and name not in _GIVEN:
        give(name, user_code.load(name, "method"))
    if name not in _recipes():
        other = NAMES_ELSEWHERE.get(name.lower().replace("_", "-"))
        near = f"; {name} is called {other!r} here;" if other else did_you_mean(name, names())
        raise ValueError(f"unknown method {name!r}{near or ';'} known: {', '.join(names())}")


def default_mechanism(name: str) -> str:
    """The kind of mechanism of a recipe by default."""
    return str(getattr(signature(_build(name)).parameters["mechanism"].default, "kind", "dp"))


def declared_by(name: str) -> dict[str, Declared]:
    """The declared settings of this recipe's own function, by name."""
    return declared(_build(name), without=("mechanism", "server"))


def is_users(name: str) -> bool:
    """Whether the recipe is not one of fedlsg's."""
    return name not in _own()


def own_settings(name: str) -> frozenset[str]:
    """Names of the settings that this recipe's own function takes."""
    return frozenset(declared_by(name))


def with_own(name: str, given: Mapping[str, Any]) -> Method:
    """The method of a name with those of the given settings that are its recipe's own."""
    own = own_settings(name)
    return recipe(name, **{key: value for key, value in given.items() if key in own})


def recipe_settings() -> dict[str, Declared]:
    """Settings that only some recipes have, by name.

    Raises ValueError if two recipes declare one name with different types or ranges, and for a name
    that the mechanism or the server has.
    """
    own, common = {method: declared_by(method) for method in _recipes()}, common_settings()
    for method, settings in own.items():
        for name in filter(common.__contains__, settings):
            raise ValueError(
                f"method {method!r} declares {name!r}, which every method has: give it another name"
            )
    return agreed((f"method {method!r}", settings) for method, settings in own.items())


def common_settings() -> dict[str, Declared]:
    """Settings that every recipe has: those of the mechanism, then those of the server."""
    return {**declared(Mechanism), **declared(ServerOptimizer)}


def takers_of(setting: str) -> tuple[str, ...]:
    """Names of the recipes that have a setting of their own."""
    return tuple(name for name in _recipes() if setting in declared_by(name))


def summary(name: str) -> str:
    """The first sentence of a recipe's file, or of its function where that is a user's own."""
    build = _build(name)
    return summary_of(sys.modules[build.__module__].__doc__ if name in _own() else getdoc(build))


def _build(name: str) -> _Build:
    check_name(name)
    return _recipes()[name]


def _recipes() -> _Builds:
    """All recipes by name, in the order of names; those given to this process come last."""
    found = {**_own(), **_offered()}
    return {**{name: found[name] for name in sorted(found)}, **_GIVEN}


def _own() -> _Builds:
    return _recipes_in(tuple(recipes.__path__))


@cache  # of installed packages: for a process
def _offered() -> _Builds:
    found = {}
    for name, point in user_code.offered(GROUP).items():
        if name in _own():
            raise ValueError(
                f"{point.value} is offered as method {name!r}, which fedlsg has: give it another "
                "name"
            )
        found[name] = user_code.imported(point)
        _check_recipe(name, found[name])
    return found


@cache  # other folders are another key
def _recipes_in(folders: tuple[str, ...]) -> _Builds:
    """A file that defines no function ``recipe`` of its own is a helper of other recipes, and no
    method.
    """
    found: _Builds = {}
    for file in iter_modules(folders):
        name = f"{recipes.__name__}.{file.name}"
        module = user_code.run(f"{name.replace('.', '/')}.py", partial(import_module, name))
        build = getattr(module, "recipe", None)
        if callable(build) and getattr(build, "__module__", "") == module.__name__:
            found[file.name.replace("_", "-")] = build
    return found


__all__ = [
    "check_name",
    "common_settings",
    "declared_by",
    "default_mechanism",
    "forget",
    "give",
    "given",
    "is_users",
    "names",
    "own_settings",
    "recipe",
    "recipe_settings",
    "summary",
    "takers_of",
    "with_own",
]
