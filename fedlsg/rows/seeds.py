"""Intercept seeds: what user code gives to a generator of torch, python or numpy is replaced
inside.

Code may seed by a name that it imported long before (``from torch import manual_seed``), so names
are of no use. Intercepted are the methods of C types in which every way to seed ends:

    torch    ``Generator.manual_seed``, ``seed``, ``set_state``, ``graphsafe_set_state``
    python   ``seed`` and ``setstate`` of the base of ``random.Random``
    numpy    the seeding of ``RandomState``; entropy of ``SeedSequence``, from which ``default_rng``
             and the bit generators seed themselves; the ``state`` of bit generators

Not intercepted: generators that were seeded before, and sources of the operating system
(``os.urandom``). The types belong to the whole process. In other threads, which user code may have
started, all seeds are intercepted but those that fedlsg itself sets.
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
"""From a generator, and the seed or state that it is given, to 63 bits in its place; None leaves it
as it is.
"""

Method = Callable[..., Any]
BITS: tuple[Any, ...] = (MT19937, PCG64, PCG64DXSM, Philox, SFC64)
KINDS = (torch.Generator, _random.Random, *BITS)
"""Types whose methods seed."""
SEED_TORCH, SEED_PYTHON = vars(torch.Generator)["manual_seed"], vars(_random.Random)["seed"]
SEED_NUMPY = vars(MT19937)["_legacy_seeding"]


class _Deciding(threading.local):
    """Who decides in a thread."""

    replace: Replace | None = None


_deciding = _Deciding()
_all_deciding: list[Replace] = []
"""Who decides in any thread; the last one also in threads without one."""
_installing, _inside = threading.Lock(), [0]
"""How many are inside, in all threads: with the first one methods are replaced, and put back with
the last.
"""


@contextmanager
def seeds_replaced(replace: Replace) -> Iterator[None]:
    """Inside, ``replace`` decides about every seed and state that this thread sets.

    Everything is as before afterwards. May be nested: the inner one decides. Takes some
    microseconds.
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
    with _installing:
        was, _inside[0] = _inside[0], _inside[0] + change
        if not was or not _inside[0]:
            _install(now=not was)


def _install(*, now: bool) -> None:
    for space, name, original, method in _methods():
        space[name] = method if now else original
    for kind in KINDS:
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
    for name, original, function in _functions():
        setattr(bit_generator, name, function if now else original)


def seed_process(seed: int) -> None:
    """Seed the global generators of torch (CPU), python and numpy, as ``manual_seed``, ``seed`` and
    ``seed`` would outside; for each row, so without their detours.
    """
    SEED_TORCH(torch.default_generator, seed)
    SEED_PYTHON(random._inst, seed)
    vars(random._inst)["gauss_next"] = None  # a normal number that is left of the row before
    # seeded by 32 bits: numpy takes ten times as long for more
    np.random.seed(seed & 0xFFFFFFFF)


def _decided(generator: Any, *given: Any) -> int | None:
    replace = _deciding.replace
    if replace is None and _all_deciding and not _is_ours(sys._getframe(2)):
        replace = _all_deciding[-1]
    return None if replace is None else replace(generator, given)


def _is_ours(frame: FrameType | None) -> bool:
    """Whether fedlsg seeds, and not code of a user: the nearest of both in the calls."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OWN) and file != __file__:
            return True
        if is_users(file):
            return False
        frame = frame.f_back
    return False


@cache  # of installed torch and numpy: for a process
def _methods() -> list[tuple[dict[str, Any], str, Any, Any]]:
    """The dictionary of a type, a name, what stands there, and what stands there inside.

    A type of C refuses ``setattr``: its dictionary is changed, and its cache is told.
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
                method = _seeding(original, seed, tells=name == "seed" and kind is torch.Generator)
                methods.append((_space_of(kind), name, original, method))
    for bits in BITS:
        original = vars(bits)["state"]
        methods.append((_space_of(bits), "state", original, _state_of(bits, original)))
    return methods


def _space_of(kind: type) -> dict[str, Any]:
    space: dict[str, Any] = gc.get_referents(vars(kind))[0]
    return space


def _seeding(original: Method, seed: Method, *, tells: bool) -> Method:
    """``tells``: whether it gives the seed back, as ``torch.Generator.seed`` does."""

    def method(generator: Any, *given: Any) -> Any:
        secret = _decided(generator, *given)
        if secret is None:
            return original(generator, *given)
        made = seed(generator, secret)
        return secret if tells else made

    return method


def _state_of(kind: Any, original: Any) -> property:
    def set_state(generator: Any, state: Any) -> None:
        secret = _decided(generator, state)
        original.__set__(generator, state if secret is None else original.__get__(kind(secret)))

    return property(original.__get__, set_state)


@cache  # of installed numpy: for a process
def _functions() -> list[tuple[str, Any, Any]]:
    """The functions of numpy that ``SeedSequence`` calls for its entropy: name, what stands there,
    what does inside.
    """
    module: Any = bit_generator
    as_words, random_bits = module._coerce_to_uint32_array, module.randbits

    def words_of(entropy: Any) -> Any:
        secret = _decided(None, entropy)
        return as_words(entropy if secret is None else secret)

    def bits(count: int) -> int:
        secret = _decided(None)
        return int(random_bits(count) if secret is None else secret)

    return [("_coerce_to_uint32_array", as_words, words_of), ("randbits", random_bits, bits)]
