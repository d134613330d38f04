"""Checkpoints that are converted."""

import collections
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.convert_weights import read_arrays


class Raw:
    """Pickled as a call of a function, and what it is told next."""

    def __init__(self, function: Callable[..., Any], *args: Any, state: Any = None) -> None:
        self.made = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> Any:
        return self.made


def written(folder: Path, value: Any, protocol: int = 2) -> Path:
    file = folder / "w.pkl"
    file.write_bytes(pickle.dumps({"params": value}, protocol))
    return file


def addresses() -> Raw:
    """An array of two objects at addresses that the file names."""
    return Raw(np.ndarray, (2,), np.dtype("O"), struct.pack("PP", 0x4141414141, 0x4242424242))


EMPTY: Any = np.empty(0).__reduce__()[0]


@pytest.mark.parametrize("value", [addresses(), Raw(collections.OrderedDict, addresses())])
def test_bytes_of_the_file_are_not_taken_as_addresses(value, tmp_path):
    with pytest.raises(ValueError, match=r"w\.pkl"):
        read_arrays(written(tmp_path, value))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.array([None]), "an array of O8"),
        (np.zeros(1, [("a", "f4"), ("b", "O")]), "an array of"),
        (
            Raw(EMPTY, np.ndarray, (0,), b"b", state=(1, (4,), np.dtype("f4"), False, b"1234")),
            "4 bytes for an array",
        ),
        (
            Raw(EMPTY, np.ndarray, (0,), b"b", state=(1, (-1,), np.dtype("f4"), False, b"1234")),
            "without a shape",
        ),
        (
            Raw(EMPTY, np.ndarray, (0,), b"b", state=(1, (2**40,), np.dtype("f4"), False, b"")),
            "0 bytes for an array",
        ),
        (
            Raw(EMPTY, np.ndarray, (0,), b"b", state=(1, (1,), "f4", False, b"1234")),
            "without a type",
        ),
        (
            Raw(EMPTY, np.ndarray, (0,), b"b", state=(1, (1,), np.dtype("f4"), False, [7])),
            "are no bytes",
        ),
        (
            Raw(
                EMPTY,
                np.ndarray,
                (0,),
                b"b",
                state=(1, (1,), Raw(np.dtype, "V8"), False, b"12345678"),
            ),
            "array of V8",
        ),
        (
            Raw(
                EMPTY,
                np.ndarray,
                (0,),
                b"b",
                state=(
                    1,
                    (1,),
                    Raw(
                        np.dtype,
                        "V8",
                        state=(3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0),
                    ),
                    False,
                    b"12345678",
                ),
            ),
            "a type with fields",
        ),
    ],
)
def test_arrays_that_do_not_hold_what_they_say_are_refused(value, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        read_arrays(written(tmp_path, value))


class Hostile:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder),))


def test_a_pickle_cannot_run_code(tmp_path):
    """The control: ``pickle.load`` runs it."""
    file, folder = tmp_path / "w.dill", tmp_path / "made"
    file.write_bytes(
        pickle.dumps({"params": {"linear": {"w": np.zeros(3)}}, "extra": Hostile(folder)})
    )
    with pytest.raises(
        ValueError, match=r"names posix\.mkdir, which may run code: .* numpy\.savez"
    ):
        read_arrays(file)
    assert not folder.exists()
    pickle.loads(file.read_bytes())
    assert folder.exists()
