"""Atomic writes: a reader sees the old content or the new one, never a part."""

import os
from pathlib import Path

from simulations.rundir.files.disk_space import naming
from simulations.rundir.files.private_files import make_folder, opener


def write_atomically(path: Path, *content: bytes, durable: bool = True, private: bool = False) -> None:
    """Write a file so that a crash of the process leaves either the old content or the new one, never a part.

    ``durable``: so does a crash of the machine. ``private``: only the owner can read the file and its folder. Raises
    OSError with the name of the file, also where the disk is full.
    """
    with naming(path):
        make_folder(path.parent) if private else path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, content, durable=durable, private=private)


def _replace(path: Path, content: tuple[bytes, ...], *, durable: bool, private: bool) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb", opener=opener if private else None) as file:
            file.writelines(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
