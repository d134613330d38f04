"""Read a pickle of arrays without running it: every callable that it may name is in ``ALLOWED``.

A pickle names functions that its reader calls. ``pickle.load`` and ``dill.load`` call whatever they are told to. This
reader knows the functions that build arrays and mappings, refuses every other name, and imports nothing for the file.
"""

import collections
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np


class RefusedError(ValueError):
    """A pickle names something else than arrays and mappings."""


def read_pickle(file: Path) -> Any:
    """What the pickle holds: mappings, lists, numbers, text and numpy arrays, those of JAX among them.

    Raises ValueError for a file that is no pickle, and for one that names another function or class.
    """
    try:
        with file.open("rb") as stream:
            return Restricted(stream).load()
    except RefusedError as error:
        raise ValueError(f"{file}: {error}") from None
    except Exception as error:  # a damaged pickle raises whatever its next instruction does
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot read {file} as a pickle of arrays ({reason})") from error


class Restricted(pickle.Unpickler):
    """An unpickler that finds the names of ``ALLOWED`` and no others."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in ALLOWED:
            raise RefusedError(
                f"the pickle names {module}.{name}, which may run code: expected numpy arrays in dictionaries; save "
                "them by numpy.savez where you trust the file, and convert that"
            )
        return ALLOWED[module, name]


def mapping(found: Any = ()) -> dict[Any, Any]:
    """A plain dictionary in the place of Haiku's mappings."""
    return dict(found)


def latin1(text: str, encoding: str) -> bytes:
    """Bytes as pickles of protocol 2 write them. Raises RefusedError for another encoding."""
    if encoding != "latin1":
        raise RefusedError(f"the pickle encodes text as {encoding!r}: expected 'latin1'")
    return text.encode("latin1")


def array_of(function: Callable[..., Any], args: tuple[Any, ...], state: Any, about: Any = None) -> np.ndarray:
    """The numpy array that JAX or dill wraps. ``function`` came through ``find_class`` as well."""
    array: np.ndarray = function(*args)
    array.__setstate__(state)
    return array


def _numpy() -> dict[tuple[str, str], Any]:
    """How numpy 1 and 2 pickle an array, by the protocol: each of their names for the same function."""
    reconstruct = np.empty(0).__reduce__()[0]
    scalar = np.float32(0).__reduce__()[0]
    from_buffer: Any = np.empty(0).__reduce_ex__(5)[0]
    found: dict[tuple[str, str], Any] = {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype}
    for core in ("numpy.core", "numpy._core"):
        found |= {
            (f"{core}.multiarray", "_reconstruct"): reconstruct,
            (f"{core}.multiarray", "scalar"): scalar,
            (f"{core}.numeric", "_frombuffer"): from_buffer,
        }
    return found


HAIKU = "haiku._src.data_structures"
ALLOWED: Mapping[tuple[str, str], Callable[..., Any]] = MappingProxyType(
    _numpy()
    | {
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("_codecs", "encode"): latin1,
        (HAIKU, "FlatMapping"): mapping,
        (HAIKU, "FlatMap"): mapping,
        (HAIKU, "frozendict"): mapping,
        ("dill._dill", "_create_array"): array_of,
        ("jax._src.array", "_reconstruct_array"): array_of,
        ("jax._src.device_array", "reconstruct_device_array"): array_of,
    }
)
"""What stands for each name of a pickle."""
