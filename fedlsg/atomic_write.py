"""Write a file completely or not at all, with its mode from its creation on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlsg.owner_only import make_parents, open_file, open_private


def write_atomically(
    path: Path, *content: bytes, durable: bool = True, private: bool = False
) -> None:
    """Write a file so that a crash leaves either the old content or the new one, never a part.

    durable: whether that also holds for a crash of the machine.
    private: whether only the owner can read the file, and the folders that are made for it;
        otherwise the folder decides (``owner_only``).
    Raises OSError with the name of the file, also if the disk is full.
    """
    with naming(path):
        make_parents(path.parent, private=private)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(temporary, "wb", opener=open_private if private else open_file) as file:
                file.writelines(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A context that adds ``path`` to an OSError without a file's name."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise
