"""Replace the seeds and states that user code gives to generators of torch, python and numpy.

Code may seed by a name that it imported long before (``from torch import manual_seed``), so names
cannot be replaced. These methods of C types, which every way of seeding calls, are replaced:

    torch    ``Generator.manual_seed``, ``seed``, ``set_state``, ``graphsafe_set_state``
    python   ``seed`` and ``setstate`` of the base of ``random.Random``
    numpy    the seeding of ``RandomState``; entropy of ``SeedSequence``, from which ``default_rng``
             and the bit generators seed themselves; the ``state`` of bit generators

Generators that were seeded before keep their state, and sources of the operating system
(``os.urandom``) are not touched. The types belong to the whole process. In other threads, which
user code may have started, all seeds are replaced but those that fedlsg itself sets.
"""

import _random
import ctypes
import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.random import MT19937, PCG64, PCG64DXSM, SFC64, Philox, bit_generator

from fedlsg.user_code.failure import OWN, is_users

Replace = Callable[[Any, tuple[Any, ...]], int | None]
"""``replace(generator, arguments)``: 63 bits in place of the seed or state in ``arguments``; None
leaves it.
"""

Method = Callable[..., Any]
BITS: tuple[Any, ...] = (MT19937, PCG64, PCG64DXSM, Philox, SFC64)
KINDS = (torch.Generator, _random.Random, *BITS)
"""Types whose methods seed."""
SEED_TORCH, SEED_PYTHON = vars(torch.Generator)["manual_seed"], vars(_random.Random)["seed"]
SEED_NUMPY = vars(MT19937)["_legacy_seeding"]


class _Deciding(threading.local):
    """The function that decides in a thread; None without one."""

    replace: Replace | None = None


_deciding = _Deciding()
_all_deciding: list[Replace] = []
"""The functions that decide in all threads; the last one also decides in threads without one."""
_installing = threading.Lock()
"""Protects ``_inside``."""
_inside = [0]
"""Number of contexts that are open in all threads. The first one replaces the methods, and the last
one puts them back.
"""


@contextmanager
def seeds_replaced(replace: Replace) -> Iterator[None]:
    """A context in which ``replace`` decides about every seed and state that this thread sets.

    Afterwards everything is as before. Contexts may be nested: the inner one decides. Entering
    takes some microseconds.
    """
    before, _deciding.replace = _deciding.replace, replace
    _all_deciding.append(replace)
    _enter(1)
    try:
        yield
    finally:
        _enter(-1)
        _all_deciding.remove(replace)
        _deciding.replace = before


def _enter(change: int) -> None:
    """Count a context that begins (1) or ends (-1)."""
    with _installing:
        before = _inside[0]
        _inside[0] += change
        if before == 0:
            _install(replaced=True)
        elif _inside[0] == 0:
            _install(replaced=False)


def _install(*, replaced: bool) -> None:
    """Put the replacing methods and functions in their places, or the original ones back."""
    for space, name, original, method in _methods():
        space[name] = method if replaced else original
    for kind in KINDS:
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
    for name, original, function in _functions():
        setattr(bit_generator, name, function if replaced else original)


def seed_process(seed: int) -> None:
    """Seed the global generators of torch (CPU), python and numpy, as their own functions do.

    It runs for each row, so it calls the original methods directly.
    """
    SEED_TORCH(torch.default_generator, seed)
    SEED_PYTHON(random._inst, seed)
    vars(random._inst)["gauss_next"] = None  # a normal number that the last row did not use
    # seeded by 32 bits: numpy takes ten times as long for more
    np.random.seed(seed & 0xFFFFFFFF)


def _decide(generator: Any, *given: Any) -> int | None:
    """The bits in place of a seed or state, or None.

    The third frame from here is the caller of the replaced method.
    """
    replace = _deciding.replace
    if replace is None and _all_deciding and not _is_ours(sys._getframe(2)):
        replace = _all_deciding[-1]
    return None if replace is None else replace(generator, given)


def _is_ours(frame: FrameType | None) -> bool:
    """Whether code of fedlsg, and not of a user, is nearer in the stack of calls: it seeds."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OWN) and file != __file__:
            return True
        if is_users(file):
            return False
        frame = frame.f_back
    return False


@cache  # installed torch and numpy do not change within a process
def _methods() -> list[tuple[dict[str, Any], str, Any, Any]]:
    """The dictionary of a type, a name in it, the original method, and the replacing one.

    A C type refuses ``setattr``: its dictionary is changed, and ``_install`` clears its cache.
    """
    methods: list[tuple[dict[str, Any], str, Any, Any]] = []

    def seed_numpy(generator: Any, secret: int) -> None:
        SEED_NUMPY(generator, [secret & 0xFFFFFFFF, secret >> 32])

    for kind, names, seed in (
        (torch.Generator, ("manual_seed", "seed", "set_state", "graphsafe_set_state"), SEED_TORCH),
        (_random.Random, ("seed", "setstate"), SEED_PYTHON),
        (MT19937, ("_legacy_seeding",), seed_numpy),
    ):
        for name in names:
            if (original := vars(kind).get(name)) is not None:
                method = _seeding(original, seed, returns=(kind, name) == (torch.Generator, "seed"))
                methods.append((_space_of(kind), name, original, method))
    for bits in BITS:
        original = vars(bits)["state"]
        methods.append((_space_of(bits), "state", original, _state_of(bits, original)))
    return methods


def _space_of(kind: type) -> dict[str, Any]:
    """The dictionary of a type itself: ``vars`` gives a view of it."""
    space: dict[str, Any] = gc.get_referents(vars(kind))[0]
    return space


def _seeding(original: Method, seed: Method, *, returns: bool) -> Method:
    """The method in place of ``original``, which seeds by ``seed``.

    ``returns``: whether it returns the seed, as ``torch.Generator.seed`` does.
    """

    def method(generator: Any, *given: Any) -> Any:
        secret = _decide(generator, *given)
        if secret is None:
            return original(generator, *given)
        result = seed(generator, secret)
        return secret if returns else result

    return method


def _state_of(kind: Any, original: Any) -> property:
    """The property in place of the ``state`` of a bit generator."""

    def set_state(generator: Any, state: Any) -> None:
        secret = _decide(generator, state)
        original.__set__(generator, state if secret is None else original.__get__(kind(secret)))

    return property(original.__get__, set_state)


@cache  # installed numpy does not change within a process
def _functions() -> list[tuple[str, Any, Any]]:
    """The functions of numpy that ``SeedSequence`` calls for its entropy: name, original,
    replacement.
    """
    module: Any = bit_generator
    as_words, random_bits = module._coerce_to_uint32_array, module.randbits

    def words_of(entropy: Any) -> Any:
        secret = _decide(None, entropy)
        return as_words(entropy if secret is None else secret)

    def bits(count: int) -> int:
        secret = _decide(None)
        return int(random_bits(count) if secret is None else secret)

    return [("_coerce_to_uint32_array", as_words, words_of), ("randbits", random_bits, bits)]
