"""How files are written and read: atomically, whole or not there, with their own digest, inside of
their folder.

A file has its mode from its creation on, and the error of a full disk names it. A damaged file is
found before anything in it is used.
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
ANOTHER = "choose another --out"


class DiskFullError(OSError):
    """A run that stopped because a file could not be written."""


def check_writable(folder: Path) -> None:
    """Raise ValueError if no file can be written to a folder, which need not exist: before what is
    written is made.
    """
    place = next(p for p in (folder, *folder.parents) if p.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(
            f"cannot write to {folder}: {place} is no folder that this user may write to; {ANOTHER}"
        )


@contextmanager
def writing_to(folder: Path | str) -> Iterator[None]:
    """Raise ValueError that names a folder, and the way out, where a file cannot be written to
    it.
    """
    try:
        yield
    except OSError as error:
        room = "make room, or " if error.errno in FULL else ""
        raise ValueError(
            f"cannot write to {folder}: {error.strerror or error}; {room}{ANOTHER}"
        ) from None


@contextmanager
def resumable(run: Path) -> Iterator[None]:
    """If a disk is full, raise DiskFullError with the file and with the command that continues the
    run.
    """
    try:
        yield
    except Exception as error:
        full = cause_of(error)
        if full is None:
            raise
        raise DiskFullError(
            f"the disk is full: {full.filename or run} could not be written. Nothing that was "
            f"finished is lost: make room, then continue with: fedlsg resume {run}"
        ) from error


def cause_of(error: BaseException | None) -> OSError | None:
    """The error of a full disk that caused an error, None if there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return error
        error = error.__cause__ or error.__context__
    return None


Record = dict[str, Any]
"""What a JSON file holds, by name."""
SEAL = "sha256"
DIGEST_BYTES = 32
LONGEST_LINE = 2**12
"""Bytes of a file with a checksum and a name."""
FORMAT = b"fedlsg checkpoint 2\n"
BEGIN = len(FORMAT) + DIGEST_BYTES


class DamagedError(ValueError):
    """A file that is not what was written; the text names it and says what to do."""


def seal(record: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """The record as JSON, with its digest as the last entry."""
    plain = json.loads(json.dumps(record))
    return (json.dumps(plain | {SEAL: _digest(plain)}, indent=indent) + "\n").encode()


def unseal(path: Path, *, otherwise: str) -> Record:
    """The record of a sealed file.

    Raises FileNotFoundError; DamagedError, which ends with ``otherwise``: what to do then.
    """
    try:
        record = bounded.read_json(path)
        if record.pop(SEAL, None) == _digest(record):
            return dict(record)
    except (ValueError, AttributeError, TypeError, RecursionError, OverflowError):
        pass
    raise DamagedError(f"{path} is damaged: {otherwise}")


def save_bytes(path: Path, content: bytes) -> None:
    """Write SHA-256, then the content; atomically, not synced: for what can be made again."""
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
    """The array. Raises FileNotFoundError; ValueError for a file that is not what was written, or
    without checksum.
    """
    return bounded.parse_array(_load_checked(path))


def save_arrays(path: Path, arrays: "Mapping[str, np.ndarray]", *, private: bool = False) -> None:
    """Write arrays by name (npz, not compressed) and their checksum, each atomically."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    _save_checked(path, buffer.getvalue(), private=private)


def load_arrays(path: Path, names: Collection[str]) -> "dict[str, np.ndarray]":
    """The arrays by name, of which there are these at most. Raises as ``load_array``."""
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

    There is a complete file at ``path`` at any time.
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
    """A hard link; a copy if the file system has no links."""
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
    """Raise ValueError for a link that leads out of a folder, and for what is neither file nor
    folder.

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
                            "nothing is read or written through it; put what it leads to in its "
                            "place"
                        )
                elif entry.is_dir():
                    waiting.append(path)
                elif not entry.is_file() and path.exists():
                    raise ValueError(
                        f"{path} is no file and no folder: a run leaves nothing else, remove it"
                    )
