"""Read a pickle of arrays without running it: every callable that it may name is in ``ALLOWED``.

A pickle names functions that its reader calls. ``pickle.load`` and ``dill.load`` call whatever they are told to. This
reader knows the names of what builds arrays and mappings, refuses every other name, and imports nothing for the file.
None of numpy's own constructors is called: ``numpy.ndarray`` makes an array of objects over bytes of the file, which
are then taken as addresses, and a type can be told a size that is not its own. Functions of this file stand for them.
"""

import math
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

NUMBERS = re.compile(r"\?|[biufcSU]\d+")
"""Types of values that hold no references: numbers and texts."""


class RefusedError(ValueError):
    """A pickle names something else than arrays and mappings."""


def read_pickle(file: Path) -> Any:
    """What the pickle holds: mappings, lists, numbers, text and numpy arrays, those of JAX among them.

    Arrays in lists are left out. Raises ValueError for a file that is no pickle, and for one that names another
    function or class, or has an array of other values than numbers and texts.
    """
    try:
        with file.open("rb") as stream:
            return finished(Restricted(stream).load())
    except RefusedError as error:
        raise ValueError(f"{file}: {error}") from None
    except Exception as error:  # a damaged pickle raises whatever its next instruction does
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot read {file} as a pickle of arrays ({reason})") from error


class Restricted(pickle.Unpickler):
    """An unpickler that finds the names of ``ALLOWED`` and no others."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise RefusedError(
                f"the pickle names {module}.{name}, which may run code: expected numpy arrays in dictionaries; save "
                "them by numpy.savez where you trust the file, and convert that"
            )
        return ALLOWED[module, name]


class Kind:
    """A type of values, as the pickle describes it. The pickle's next instruction gives the order of bytes."""

    def __init__(self, name: object) -> None:
        self._name, self._order = str(name), "="

    def __setstate__(self, state: Any) -> None:
        self._order = str(state[1])
        if tuple(state[2:5]) != (None, None, None):  # an array as a value, names of fields, fields
            self._name = "a type with fields"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Raises RefusedError for anything that is no number and no text."""
        if not NUMBERS.fullmatch(self._name) or self._order not in ("<", ">", "=", "|"):
            raise RefusedError(f"the pickle has an array of {self._name[:40]}: expected numbers")
        return np.dtype(self._name).newbyteorder(">" if self._order == ">" else "<" if self._order == "<" else "=")


class Made:
    """An array of the pickle, empty until the next instruction gives its values."""

    def __init__(self, array: np.ndarray | None = None) -> None:
        self.array = np.zeros(0) if array is None else array

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        self.array = of_bytes(raw, kind, shape, "F" if fortran else "C")


def of_bytes(raw: Any, kind: Any, shape: Any, order: Any) -> np.ndarray:
    """The array of these bytes. Raises RefusedError, or ValueError where there are too few bytes or too many."""
    if not isinstance(kind, Kind):
        raise RefusedError("the pickle has an array without a type of values")
    dtype, sizes = kind.dtype, [shape] if isinstance(shape, int) else list(shape)
    if not isinstance(raw, bytes | bytearray) or not all(type(size) is int and size >= 0 for size in sizes):
        raise RefusedError(f"the pickle has an array of {dtype} whose values are no bytes, or without a shape")
    if dtype.itemsize * math.prod(sizes) != len(raw):
        raise ValueError(f"{len(raw)} bytes for an array of {dtype} with shape {tuple(sizes)}")
    flat = np.frombuffer(raw, dtype).copy() if raw else np.zeros(0, dtype)  # a copy: bytes cannot be written to
    return flat.reshape(sizes, order="F" if order == "F" else "C")


def finished(tree: Any) -> Any:
    """The tree of a pickle with arrays in the places of ``Made``."""
    if isinstance(tree, Mapping):
        return {key: finished(value) for key, value in tree.items()}
    return tree.array if isinstance(tree, Made) else tree


def mapping(found: Any = ()) -> dict[Any, Any]:
    """A plain dictionary in the place of Haiku's mappings, and of an OrderedDict."""
    return dict(found)


def latin1(text: str, encoding: str) -> bytes:
    """Bytes as pickles of protocol 2 write them. Raises RefusedError for another encoding."""
    if encoding != "latin1":
        raise RefusedError(f"the pickle encodes text as {encoding!r}: expected 'latin1'")
    return text.encode("latin1")


def reconstruct(of: Any, shape: Any, code: Any) -> Made:
    """The start of an array, in numpy's form: its values follow."""
    return Made()


def from_buffer(raw: Any, kind: Any, shape: Any, order: Any, axes: Any = None) -> Made:
    """An array as pickles of protocol 5 write it; ``axes``: their order, where they are permuted in memory."""
    array = of_bytes(raw, kind, shape, order)
    return Made(array if axes is None else array.transpose(axes))


def no_bytes() -> bytes:
    """The values of an empty array as pickles of protocol 2 write them."""
    return b""


def scalar(kind: Any, raw: Any) -> Any:
    """A number, such as a counter of steps."""
    return of_bytes(raw, kind, (), "C").item()


def kind_of(name: Any, align: Any = False, copy: Any = False) -> Kind:
    """A type of values by its name, such as f4."""
    return Kind(name)


def array_of(function: Any, args: tuple[Any, ...], state: Any, about: Any = None) -> Made:
    """The numpy array that JAX or dill wraps."""
    if function is not reconstruct:
        raise RefusedError("the pickle builds an array in another form than numpy's")
    array = Made()
    array.__setstate__(state)
    return array


HAIKU = "haiku._src.data_structures"
NUMPY = {
    ("multiarray", "_reconstruct"): reconstruct,
    ("multiarray", "scalar"): scalar,
    ("numeric", "_frombuffer"): from_buffer,
}
"""How numpy pickles an array, by the protocol; its versions 1 and 2 have other names of the package."""
ALLOWED: Mapping[tuple[str, str], Any] = MappingProxyType(
    {(f"{core}.{module}", name): f for core in ("numpy.core", "numpy._core") for (module, name), f in NUMPY.items()}
    | {
        ("numpy", "ndarray"): "numpy.ndarray",  # it is named, and never called
        ("numpy", "dtype"): kind_of,
        ("collections", "OrderedDict"): mapping,
        ("_codecs", "encode"): latin1,
        ("__builtin__", "bytes"): no_bytes,
        (HAIKU, "FlatMapping"): mapping,
        (HAIKU, "FlatMap"): mapping,
        (HAIKU, "frozendict"): mapping,
        ("dill._dill", "_create_array"): array_of,
        ("jax._src.array", "_reconstruct_array"): array_of,
        ("jax._src.device_array", "reconstruct_device_array"): array_of,
    }
)
"""What stands for each name of a pickle."""
