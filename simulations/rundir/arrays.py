"""Arrays of a run directory, each with a checksum: a damaged array would be read as another experiment.

The checksum of NAME.npy is in NAME.npy.sha256, in the form of the program ``sha256sum``.
"""

import hashlib
import io
from pathlib import Path

import numpy as np

from simulations.rundir.files.atomic import write_atomically


def save(path: Path, array: np.ndarray, *, private: bool = False) -> None:
    """Write an array and its checksum, each atomically; ``private``: for their owner only."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    content = buffer.getvalue()
    line = f"{hashlib.sha256(content).hexdigest()}  {path.name}\n".encode()
    write_atomically(checksum_of(path), line, private=private)
    write_atomically(path, content, private=private)


def load(path: Path) -> np.ndarray:
    """The array. Raises FileNotFoundError; ValueError for a file that is not what was written, or without checksum."""
    content = path.read_bytes()
    try:
        written = checksum_of(path).read_text().split()[:1]
    except (FileNotFoundError, UnicodeDecodeError):
        written = []
    if written != [hashlib.sha256(content).hexdigest()]:
        raise ValueError(f"it is not what {checksum_of(path).name} says: the record is damaged")
    array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def checksum_of(path: Path) -> Path:
    """The file of an array's checksum."""
    return path.with_name(f"{path.name}.sha256")
