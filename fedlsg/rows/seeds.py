"""Intercept seeds: what user code gives to a generator of torch, python or numpy is replaced inside.

Code may seed by a name that it imported long before (``from torch import manual_seed``), so names
are of no use. Intercepted are the methods of C types in which every way to seed ends:

    torch    ``Generator.manual_seed``, ``set_state``, ``graphsafe_set_state``
    python   ``seed`` and ``setstate`` of the base of ``random.Random``
    numpy    the seeding of ``RandomState``; entropy of ``SeedSequence``, from which ``default_rng`` and the bit
             generators seed themselves; the ``state`` of bit generators

Not intercepted: generators that were seeded before, and sources of the operating system
(``os.urandom``). The types belong to the whole process; seeds of other threads stay as they are.
"""

import _random
import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from numpy.random import MT19937, PCG64, PCG64DXSM, SFC64, Philox, bit_generator

Replace = Callable[[tuple[Any, ...]], int | None]
"""From the arguments of a seed or a state to 63 bits in their place; None leaves it as it is."""

Method = Callable[..., Any]


@contextmanager
def seeds_replaced(replace: Replace) -> Iterator[None]:
    """Inside, ``replace`` decides about every seed and state that this thread sets.

    Everything is as before afterwards. May be nested: the inner one decides.
    """
    thread = threading.get_ident()

    def replacement(*given: Any) -> int | None:
        return replace(given) if threading.get_ident() == thread else None

    with ExitStack() as stack:
        for kind, name, method in _methods(replacement):
            stack.callback(_set, kind, name, vars(kind)[name])
            _set(kind, name, method)
        for name, function in _functions(replacement):
            stack.enter_context(patch.object(bit_generator, name, function))
        yield


def _methods(replacement: Callable[..., int | None]) -> Iterator[tuple[type, str, Any]]:
    """Type, name and what stands there inside."""
    torch_seed, python_seed = vars(torch.Generator)["manual_seed"], vars(_random.Random)["seed"]
    for name in ("manual_seed", "set_state", "graphsafe_set_state"):
        if name in vars(torch.Generator):
            original = vars(torch.Generator)[name]
            yield torch.Generator, name, _seeding(original, torch_seed, replacement)
    for name in ("seed", "setstate"):
        yield _random.Random, name, _seeding(vars(_random.Random)[name], python_seed, replacement)
    legacy = vars(MT19937)["_legacy_seeding"]

    def numpy_seed(generator: Any, secret: int) -> None:
        legacy(generator, [secret & 0xFFFFFFFF, secret >> 32])

    yield MT19937, "_legacy_seeding", _seeding(legacy, numpy_seed, replacement)
    for kind in (MT19937, PCG64, PCG64DXSM, Philox, SFC64):
        yield kind, "state", _state_of(kind, replacement)


def _seeding(original: Method, seed: Method, replacement: Callable[..., int | None]) -> Method:
    def method(generator: Any, *given: Any) -> Any:
        secret = replacement(*given)
        return original(generator, *given) if secret is None else seed(generator, secret)

    return method


def _state_of(kind: Any, replacement: Callable[..., int | None]) -> property:
    original = vars(kind)["state"]

    def set_state(generator: Any, state: Any) -> None:
        secret = replacement(state)
        original.__set__(generator, state if secret is None else original.__get__(kind(secret)))

    return property(original.__get__, set_state)


def _functions(replacement: Callable[..., int | None]) -> Iterator[tuple[str, Any]]:
    """The functions of numpy that ``SeedSequence`` calls for its entropy."""
    module: Any = bit_generator
    as_words, random_bits = module._coerce_to_uint32_array, module.randbits

    def words_of(entropy: Any) -> Any:
        secret = replacement(entropy)
        return as_words(entropy if secret is None else secret)

    def bits(count: int) -> int:
        secret = replacement()
        return int(random_bits(count) if secret is None else secret)

    yield "_coerce_to_uint32_array", words_of
    yield "randbits", bits


def _set(kind: type, name: str, value: Any) -> None:
    """Set an attribute of a type of C, which refuses ``setattr``: in its dictionary, and its cache is told."""
    gc.get_referents(vars(kind))[0][name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
