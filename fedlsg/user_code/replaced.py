"""Functions that a model runs though no object of its own holds them: those that its code names in
libraries, and methods of its layers' classes. Code of users may have replaced any of them.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from fedlsg.user_code.failure import is_users

FUNCTIONS = (FunctionType, BuiltinFunctionType)


@lru_cache(maxsize=4096)  # by its arguments alone: never stale
def names_of(code: CodeType) -> tuple[str, ...]:
    """What a function and the functions inside it name: variables, attributes, modules."""
    inner = (names_of(part) for part in code.co_consts if isinstance(part, CodeType))
    return tuple(dict.fromkeys(chain(code.co_names, *inner)))


def named_by(forward: Any) -> list[tuple[dict[str, Any], str]]:
    """The functions that a forward names: its global ones, and those of modules such as ``F``."""
    if not isinstance(forward, FunctionType):
        return []
    found = _named.get(forward)
    if found is None:
        space, names = forward.__globals__, names_of(forward.__code__)
        spaces = [space, *(vars(v) for n in names if isinstance(v := space.get(n), ModuleType))]
        found = [
            (space, name)
            for space in spaces
            for name in names
            if callable(value := space.get(name)) or isinstance(value, ModuleType)
        ]
        _named[forward] = found
    return found


_named: "WeakKeyDictionary[FunctionType, list[tuple[dict[str, Any], str]]]" = WeakKeyDictionary()
"""Invalid when a forward is freed: what it names. A name that is given another value is looked up
in its space each time.
"""


def replaced(kinds: Iterable[type]) -> list[Any]:
    """What layers of these classes run of a user's: methods that were replaced, and what forwards
    name.
    """
    forwards = [getattr(kind, "forward", None) for kind in dict.fromkeys(kinds)]
    named = [space.get(name) for forward in forwards for space, name in named_by(forward)]
    bases = dict.fromkeys(base for kind in kinds for base in kind.__mro__)
    methods = [value for base in bases for value in vars(base).values()]
    return [*named, *filter(is_users_own, methods)]


def is_users_own(value: Any) -> bool:
    """Whether a value is a function that a user's file made."""
    return type(value) is FunctionType and is_users(value.__code__.co_filename)
