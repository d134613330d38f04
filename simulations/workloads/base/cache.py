"""A cache of arrays: they are built once, then checked and memory-mapped.

An entry is a folder of ``.npy`` files with a manifest of their SHA-256 digests. It is built in a
temporary folder next to its place and renamed into it: an interrupted build leaves nothing under
the entry's name. If several processes need one entry at once, the first builds it and the others
wait. On a file system without locks all of them build it, and the first to finish wins. An entry
that fails its check is moved away and built again: a flipped bit would change the training data
silently. A cache folder that is made here is its owner's alone; entries in a shared folder follow
the umask.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from fedlsg.locks import is_locked, locked
from fedlsg.owner_only import FOLDER_MODE, is_closed, make_parents, open_file
from fedlsg.simulations.models.pretrained import file_digest
from fedlsg.simulations.workloads.base import Progress

_MANIFEST = "manifest.json"
CACHE_VARIABLE = "FEDLSG_CACHE"
"""The environment variable that names the cache folder."""
LONGEST_BUILD = 3600.0
"""The most seconds to wait for another process that builds an entry."""


def cache_folder(cache_dir: Path | None) -> Path:
    """The given folder, else the one named by FEDLSG_CACHE, else ``~/.cache/fedlsg``."""
    return Path(
        cache_dir or os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "fedlsg"
    ).expanduser()


def digest_files(files: Iterable[Path], *, salt: str) -> str:
    """32 hex digits that depend on names and content of the files and on the salt, not on dates."""
    digest = hashlib.sha256(salt.encode())
    for file in sorted(files, key=lambda file: file.name):
        digest.update(f"\n{file.name} {file_digest(file)}".encode())
    return digest.hexdigest()[:32]


def load_or_build(
    folder: Path, key: str, build: Callable[[], Mapping[str, np.ndarray]], *, progress: Progress
) -> dict[str, np.ndarray]:
    """Arrays of the entry ``folder/key`` by name, memory-mapped read-only.

    ``build`` makes the arrays of an entry that is missing or damaged.
    Guarantee: the returned arrays have the digests of the built ones.
    Raises OSError, naming the setting, if the folder cannot be written, and the errors of
    ``build``.
    """
    entry = folder / key
    cached = _open(entry)
    if cached is not None:
        return cached
    if entry.exists():
        progress(f"the cache entry {key} is damaged: building it again")
    with ExitStack() as stack:
        with _explain_errors(folder):
            make_parents(folder, private=True)  # rows of a user's own may be in it
            stack.enter_context(_one_builder(folder / f".{key}.lock", progress))
            cached = _open(entry)
            if cached is not None:  # another process has built it meanwhile
                return cached
            _discard(entry)
            scratch = tempfile.TemporaryDirectory(
                prefix=f".{key}-", dir=folder, ignore_cleanup_errors=True
            )
            built = Path(stack.enter_context(scratch)) / "entry"
        arrays = build()
        with _explain_errors(folder):
            _write(built, arrays, private=is_closed(folder))
            # A folder cannot be renamed onto one that holds files: then another process was first.
            with suppress(OSError):
                built.rename(entry)
            cached = _open(entry)
            if cached is None:
                raise OSError(f"{entry} could not be put in place")
    return cached


@contextmanager
def _one_builder(file: Path, progress: Progress) -> Iterator[None]:
    """Inside is one process of this user at a time, if the file system has locks.

    The lock ends with its process, and leaves no file. A process that has waited LONGEST_BUILD
    seconds, or that may not open another user's lock, builds as well.
    """
    with ExitStack() as stack:
        if is_locked(file):
            progress(f"another process builds this entry of the cache: waiting for {file}")
        with suppress(OSError):  # not free in time, or no locks here
            stack.enter_context(locked(file, seconds=LONGEST_BUILD))
            stack.callback(file.unlink, missing_ok=True)
        yield


@contextmanager
def _explain_errors(folder: Path) -> Iterator[None]:
    """Inside, an OSError gets a message that names the folder and the fix."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"cannot write the cache folder {folder} ({error}): free some space there, "
            f"or give another folder in {CACHE_VARIABLE}"
        ) from error


def _write(directory: Path, arrays: Mapping[str, np.ndarray], *, private: bool) -> None:
    """Write arrays and manifest to the disk, so that the rename never comes before the data.

    private: the folder is for its owner only, as the cache is.
    """
    directory.mkdir(mode=FOLDER_MODE if private else 0o777)
    for name, array in arrays.items():
        with open(directory / f"{name}.npy", "wb", opener=open_file) as stream:
            np.save(stream, array)
    manifest = {file.name: file_digest(file) for file in sorted(directory.iterdir())}
    with open(directory / _MANIFEST, "w", opener=open_file) as stream:
        json.dump(manifest, stream, indent=1)
    for file in directory.iterdir():
        with file.open("rb+") as stream:
            os.fsync(stream.fileno())


def _open(entry: Path) -> dict[str, np.ndarray] | None:
    """The arrays of an entry, or None if it is missing or fails its check."""
    try:
        manifest = json.loads((entry / _MANIFEST).read_text())
        if not manifest or any(
            file_digest(entry / name) != digest for name, digest in manifest.items()
        ):
            return None
        # A plain view of the mapping: np.memmap's own class costs time on every access.
        return {
            Path(name).stem: np.load(entry / name, mmap_mode="r").view(np.ndarray)
            for name in manifest
        }
    except (OSError, ValueError, AttributeError):
        return None


def _discard(entry: Path) -> None:
    """Move the entry, if there is one, away in one step, then delete it: nobody sees half of it."""
    if not entry.exists():
        return
    grave = tempfile.TemporaryDirectory(
        prefix=".damaged-", dir=entry.parent, ignore_cleanup_errors=True
    )
    with grave as name, suppress(FileNotFoundError):  # another process may discard it first
        entry.rename(Path(name) / "entry")
