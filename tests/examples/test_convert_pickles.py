"""Pickles that are made to harm their reader: none makes an array of addresses, or a type of a size that it has not."""

import collections
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.convert_weights import read_arrays

Build = tuple[Callable[..., Any], tuple[Any, ...]]


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
STATE = (3, "<", None, None, None, -1, -1, 0)


@pytest.mark.parametrize("value", [addresses(), Raw(collections.OrderedDict, addresses())])
def test_bytes_of_the_file_are_not_taken_as_addresses(value, tmp_path):
    with pytest.raises(ValueError, match=r"w\.pkl"):
        read_arrays(written(tmp_path, value))


def test_an_ordinary_pickle_module_takes_them_as_addresses(tmp_path):
    """Negative control, in a process of its own: it ends by a segmentation fault."""
    file = written(tmp_path, Raw(collections.OrderedDict, addresses()))
    code = "import faulthandler, pickle, sys; faulthandler.disable(); pickle.load(open(sys.argv[1], 'rb'))"
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True)
    assert done.returncode not in (0, 1)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.array([None]), "an array of O8"),
        (np.zeros(1, [("a", "f4"), ("b", "O")]), "an array of"),
        (Raw(EMPTY, np.ndarray, (0,), b"b", state=(1, (4,), np.dtype("f4"), False, b"1234")), "4 bytes for an array"),
        (Raw(EMPTY, np.ndarray, (0,), b"b", state=(1, (-1,), np.dtype("f4"), False, b"1234")), "without a shape"),
        (Raw(EMPTY, np.ndarray, (0,), b"b", state=(1, (2**40,), np.dtype("f4"), False, b"")), "0 bytes for an array"),
        (Raw(EMPTY, np.ndarray, (0,), b"b", state=(1, (1,), "f4", False, b"1234")), "without a type"),
        (Raw(EMPTY, np.ndarray, (0,), b"b", state=(1, (1,), np.dtype("f4"), False, [7])), "are no bytes"),
        (Raw(EMPTY, np.ndarray, (0,), b"b", state=(1, (1,), Raw(np.dtype, "V8"), False, b"12345678")), "array of V8"),
        (
            Raw(EMPTY, np.ndarray, (0,), b"b", state=(
                1, (1,), Raw(np.dtype, "V8", state=(3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)), False,
                b"12345678",
            )),
            "a type with fields",
        ),
    ],
)  # fmt: skip
def test_arrays_that_do_not_hold_what_they_say_are_refused(value, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        read_arrays(written(tmp_path, value))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_arrays_of_every_form_are_read(protocol, tmp_path):
    made = np.arange(24.0).reshape(2, 3, 4)
    kept = {
        "c": made, "fortran": np.asfortranarray(made[0]), "view": made[:, ::2], "big": made.astype(">f4"),
        "empty": made[:0], "ints": made.astype(int), "mask": made > 3, "words": np.array(["a", "bc"]),
        "half": made.astype(np.float16), "scalar": np.array(2.5), "permuted": made.transpose(1, 2, 0),
        "nested": collections.OrderedDict(a=made),
    }  # fmt: skip
    more = {"count": np.int64(7), "lists": [1, "x", None]}
    found = read_arrays(written(tmp_path, {**kept, **more}, protocol))
    assert np.array_equal(found.pop("params/nested/a"), made)
    assert found.keys() == {f"params/{name}" for name in kept} - {"params/nested", "params/scalar"}
    for name, array in found.items():
        wanted = kept[name.removeprefix("params/")]
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
        assert np.array_equal(array, wanted)


def test_a_mapping_that_holds_itself_is_refused(tmp_path):
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(ValueError, match=r"cannot read .*w\.pkl"):
        read_arrays(written(tmp_path, loop))
