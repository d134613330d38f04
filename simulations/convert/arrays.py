"""Arrays of a checkpoint by name, whatever its form: a state dict, a pickle, .npz, or a folder that Orbax wrote.

A name is the path of keys: ``params/wide_res_net/First_conv/w``, or as a state dict has it: ``layer1.0.conv1.weight``.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulations.convert.pickles import read_pickle
from simulations.models.pretrained import SUFFIXES, file_digest, read_weights

PICKLES = (".dill", ".pkl", ".pickle")
Arrays = Mapping[str, np.ndarray]


def read_arrays(source: Path) -> dict[str, np.ndarray]:
    """The arrays at ``source`` by name. Nothing in the file is executed.

    Raises FileNotFoundError; ModuleNotFoundError for a folder without ``orbax-checkpoint``; ValueError for a form that
    is not known, a file that cannot be read, and one without arrays.
    """
    if source.is_dir():
        found = _flat(_orbax(source))
    elif not source.is_file():
        raise FileNotFoundError(f"{source} is not there: expected a checkpoint, a file or a folder of Orbax")
    elif source.suffix in PICKLES:
        found = _flat(read_pickle(source))
    elif source.suffix == ".npz":
        found = _npz(source)
    elif source.suffix in SUFFIXES:
        found = {name: tensor.float().numpy() for name, tensor in read_weights(source).items()}
    else:
        known = ", ".join((*PICKLES, ".npz", *SUFFIXES))
        raise ValueError(f"{source}: expected a file that ends on {known}, or a folder of Orbax; rename it")
    if not found:
        raise ValueError(f"{source} holds no arrays")
    return found


def digest_of_all(source: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files of a folder; 64 hex digits."""
    if source.is_file():
        return file_digest(source)
    digest = hashlib.sha256()
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(source).as_posix()} {file_digest(file)}\n".encode())
    return digest.hexdigest()


def _flat(tree: Any) -> dict[str, np.ndarray]:
    return dict(_leaves(tree, ()))


def _leaves(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays of at least one dimension. Counters, lists of an optimizer's state and texts are left out."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, (*path, str(key)))
    elif isinstance(tree, np.ndarray) and tree.ndim:
        yield "/".join(path), tree


def _npz(file: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files if arrays[name].ndim}
    except Exception as error:
        raise ValueError(f"cannot read {file} as .npz ({error})") from error


def _orbax(folder: Path) -> Any:
    try:
        from orbax.checkpoint import PyTreeCheckpointer
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{folder} is a folder, and Orbax' folders need orbax-checkpoint, which brings JAX: pip install "
            "orbax-checkpoint, or save the arrays by numpy.savez where it is installed and convert that file"
        ) from error
    try:
        return _as_numpy(PyTreeCheckpointer().restore(folder.absolute()))
    except Exception as error:
        raise ValueError(f"cannot read {folder} as a checkpoint of Orbax ({type(error).__name__}: {error})") from error


def _as_numpy(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _as_numpy(value) for key, value in tree.items()}
    return np.asarray(tree) if hasattr(tree, "shape") else tree
