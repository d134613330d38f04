"""Files that are written atomically, with their own digest, and checked when they are read.

A file is complete or absent. It has its mode from its creation on, and the error of a full disk
names it. A damaged file is found before anything in it is used.

record        JSON, with its digest as the last entry
bytes         SHA-256, then the content
array         NAME.npy, or several by name in NAME.npz; the checksum is in NAME.npy.sha256 or
              NAME.npz.sha256, in the form of the program ``sha256sum``
checkpoint    format, SHA-256, then the bytes of ``torch.save``; ``torch.load`` reads only files
              whose digest is right

A run directory may come from anybody: its links must not lead a reader, or what it writes, to other
files. Nothing here imports torch or numpy before it needs them.
"""

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlsg import bounded
from fedlsg.atomic_write import naming as naming
from fedlsg.atomic_write import write_atomically as write_atomically

if TYPE_CHECKING:
    import numpy as np

FULL = {errno.ENOSPC, errno.EDQUOT}
"""Error numbers of a full disk, or a used-up quota."""
ANOTHER = "choose another --out"


class DiskFullError(OSError):
    """A run that stopped because a file could not be written."""


def check_writable(folder: Path) -> None:
    """Raise ValueError if no file can be written to a folder, which need not exist yet.

    Call it before long work, whose result is written there.
    """
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(
            f"cannot write to {folder}: {existing} is no folder that this user may write to; "
            f"{ANOTHER}"
        )


@contextmanager
def writing_to(folder: Path | str) -> Iterator[None]:
    """Turn an error of writing to a folder into a ValueError that names it and says what to do."""
    try:
        yield
    except OSError as error:
        room = "make room, or " if error.errno in FULL else ""
        raise ValueError(
            f"cannot write to {folder}: {error.strerror or error}; {room}{ANOTHER}"
        ) from None


@contextmanager
def resumable(run: Path) -> Iterator[None]:
    """Turn the error of a full disk into a DiskFullError that says how to continue the run."""
    try:
        yield
    except Exception as error:
        disk_full = cause_of(error)
        if disk_full is None:
            raise
        raise DiskFullError(
            f"the disk is full: {disk_full.filename or run} could not be written. Nothing that was "
            f"finished is lost: make room, then continue with: fedlsg resume {run}"
        ) from error


def cause_of(error: BaseException | None) -> OSError | None:
    """The error of a full disk among an error and its causes; None if there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return error
        error = error.__cause__ or error.__context__
    return None


Record = dict[str, Any]
"""The entries of a JSON file by name."""
SEAL = "sha256"
"""The entry of a record with its digest."""
DIGEST_BYTES = 32
"""Bytes of a SHA-256."""
LONGEST_LINE = 2**12
"""Bytes that are read at most of a file with a checksum."""
FORMAT = b"fedlsg checkpoint 2\n"
"""The first bytes of a checkpoint."""
BEGIN = len(FORMAT) + DIGEST_BYTES
"""Where the bytes of ``torch.save`` begin in a checkpoint."""


class DamagedError(ValueError):
    """A file is not what was written; the text names it and says what to do."""


def seal(record: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """The record as JSON, with its digest as the last entry."""
    plain = json.loads(json.dumps(record))
    return (json.dumps(plain | {SEAL: _digest(plain)}, indent=indent) + "\n").encode()


def unseal(path: Path, *, otherwise: str) -> Record:
    """The record of a sealed file.

    Raises FileNotFoundError; DamagedError, whose text ends with ``otherwise``: what to do.
    """
    try:
        record = bounded.read_json(path)
        if record.pop(SEAL, None) == _digest(record):
            return dict(record)
    except (ValueError, AttributeError, TypeError, RecursionError, OverflowError):
        pass
    raise DamagedError(f"{path} is damaged: {otherwise}")


def save_bytes(path: Path, content: bytes) -> None:
    """Write SHA-256, then the content; atomically, not synced: for content that can be remade."""
    write_atomically(path, hashlib.sha256(content).digest(), content, durable=False)


def load_bytes(path: Path) -> bytes:
    """What ``save_bytes`` wrote. Raises OSError; DamagedError."""
    content = path.read_bytes()
    if hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
        raise DamagedError(f"{path} is damaged")
    return content[DIGEST_BYTES:]


def save_array(path: Path, array: "np.ndarray", *, private: bool = False) -> None:
    """Write an array and its checksum, each atomically; ``private``: for their owner only."""
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array)
    _save_checked(path, buffer.getvalue(), private=private)


def load_array(path: Path) -> "np.ndarray":
    """The array. Raises FileNotFoundError; ValueError if it does not have its checksum."""
    return bounded.parse_array(_load_checked(path))


def save_arrays(path: Path, arrays: "Mapping[str, np.ndarray]", *, private: bool = False) -> None:
    """Write arrays by name (npz, not compressed) and their checksum, each atomically."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    _save_checked(path, buffer.getvalue(), private=private)


def load_arrays(path: Path, names: Collection[str]) -> "dict[str, np.ndarray]":
    """The arrays by name, which must be among ``names``. Raises as ``load_array``."""
    return bounded.parse_arrays(_load_checked(path), names)


def _save_checked(path: Path, content: bytes, *, private: bool = False) -> None:
    line = f"{hashlib.sha256(content).hexdigest()}  {path.name}\n".encode()
    write_atomically(_checksum_of(path), line, private=private)
    write_atomically(path, content, private=private)


def _load_checked(path: Path) -> bytes:
    content = path.read_bytes()
    try:
        written = bounded.read_text(_checksum_of(path), LONGEST_LINE).split()[:1]
    except (FileNotFoundError, ValueError):
        written = []
    if written != [hashlib.sha256(content).hexdigest()]:
        raise ValueError(f"it is not what {_checksum_of(path).name} says: the record is damaged")
    return content


def save_checkpoint(path: Path, previous: Path, state: Record) -> None:
    """Replace the checkpoint, atomically and durably; the one before becomes ``previous``.

    A complete file is at ``path`` all the time.
    """
    import torch

    body = io.BytesIO()
    torch.save(state, body)
    content = body.getvalue()
    if path.exists():
        _link(path, previous)
    write_atomically(path, FORMAT + hashlib.sha256(content).digest(), content)


def load_checkpoint(path: Path) -> Record:
    """What was saved. Raises FileNotFoundError; DamagedError."""
    return parse_checkpoint(path.read_bytes(), path)


def is_whole(content: bytes) -> bool:
    """Whether a checkpoint's bytes have their digest; nothing in them is loaded."""
    return content[:BEGIN] == FORMAT + hashlib.sha256(memoryview(content)[BEGIN:]).digest()


def parse_checkpoint(content: bytes, path: Path) -> Record:
    """The state in a checkpoint's bytes. Raises as ``load_checkpoint``; errors name ``path``."""
    import torch

    damaged = DamagedError(f"{path} is damaged: restore it from a copy, or start a new run")
    if not is_whole(content):
        raise damaged
    try:
        body = io.BytesIO(memoryview(content)[BEGIN:])
        bounded.check_stored(body)
        state: Record = torch.load(body, map_location="cpu", weights_only=True)
    except Exception:  # another program wrote it: the digest is right, and torch cannot read it
        raise damaged from None
    return state


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _checksum_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _link(path: Path, previous: Path) -> None:
    """Make ``previous`` a hard link to ``path``; a copy if the file system has no links."""
    temporary = previous.with_name(f".{previous.name}.{os.getpid()}")
    try:
        with suppress(FileNotFoundError):
            temporary.unlink()
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)
        temporary.replace(previous)
    finally:
        temporary.unlink(missing_ok=True)


def check_inside(folder: Path) -> None:
    """Raise ValueError for a link that leads out of a folder, a device, a pipe or a socket.

    Folders that this user cannot read are left out: nothing in them can be opened.
    """
    waiting = [folder]
    while waiting:
        with suppress(PermissionError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_symlink():
                    if not path.resolve().is_relative_to(folder.resolve()):
                        raise ValueError(
                            f"{path} is a link to {path.resolve()}, outside of the run directory: "
                            "nothing is read or written through it; replace it by a copy of that "
                            "file or folder"
                        )
                elif entry.is_dir():
                    waiting.append(path)
                elif not entry.is_file() and path.exists():
                    raise ValueError(
                        f"{path} is no file and no folder: a run leaves nothing else, remove it"
                    )
