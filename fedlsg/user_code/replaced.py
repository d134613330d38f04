"""Functions that a model runs although no object of it holds them.

These are functions of libraries that its code names, and methods of its layers' classes. Code of
users may have replaced any of them.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from fedlsg.user_code.failure import is_users

FUNCTIONS = (FunctionType, BuiltinFunctionType)
"""Types of functions."""
Place = tuple[dict[str, Any], str]
"""The place of a function: the names of a module, and the function's name there."""

_PLACES: WeakKeyDictionary[FunctionType, list[Place]] = WeakKeyDictionary()
"""The places that a forward names. An entry is dropped with its forward. Values are looked up anew
each time, because a name may get another one.
"""


@lru_cache(maxsize=4096)  # by its arguments alone: never stale
def names_of(code: CodeType) -> tuple[str, ...]:
    """The names in the code of a function and of functions inside it: variables, attributes,
    modules.
    """
    inner = (names_of(part) for part in code.co_consts if isinstance(part, CodeType))
    return tuple(dict.fromkeys(chain(code.co_names, *inner)))


def named_by(forward: Any) -> list[Place]:
    """The functions that a forward names: its global ones, and those of modules such as ``F``."""
    if not isinstance(forward, FunctionType):
        return []
    if forward not in _PLACES:
        names, own_space = names_of(forward.__code__), forward.__globals__
        modules = [v for name in names if isinstance(v := own_space.get(name), ModuleType)]
        _PLACES[forward] = [
            (space, name)
            for space in (own_space, *map(vars, modules))
            for name in names
            if callable(value := space.get(name)) or isinstance(value, ModuleType)
        ]
    return _PLACES[forward]


def replaced(kinds: Iterable[type]) -> list[Any]:
    """Functions of users that layers of these classes may run.

    Methods of the classes that users made, and all functions that their forwards name.
    """
    forwards = [getattr(kind, "forward", None) for kind in dict.fromkeys(kinds)]
    named = [space.get(name) for forward in forwards for space, name in named_by(forward)]
    bases = dict.fromkeys(base for kind in kinds for base in kind.__mro__)
    methods = [value for base in bases for value in vars(base).values()]
    return [*named, *filter(is_users_own, methods)]


def is_users_own(value: Any) -> bool:
    """Whether a value is a function that a user's file made."""
    return type(value) is FunctionType and is_users(value.__code__.co_filename)
