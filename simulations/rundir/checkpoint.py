"""A checkpoint file: format, SHA-256, then the bytes of ``torch.save``; the one before is kept as a fallback.

Guarantee: ``torch.load`` reads only files whose digest is right.
"""

import hashlib
import io
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from simulations.rundir.files.atomic import write_atomically
from simulations.rundir.files.sealed import DamagedError

FORMAT = b"fedlsg checkpoint 2\n"
BEGIN = len(FORMAT) + hashlib.sha256().digest_size
FIRST_FORMAT = b"PK"
"""The first bytes of checkpoints of the first format, which had no digest."""


def save(path: Path, previous: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint, atomically and durably; the one before becomes ``previous``.

    There is a complete file at ``path`` at any time.
    """
    body = io.BytesIO()
    torch.save(state, body)
    content = body.getvalue()
    if path.exists():
        _link(path, previous)
    write_atomically(path, FORMAT + hashlib.sha256(content).digest(), content)


def load(path: Path) -> dict[str, Any]:
    """What was saved. Raises FileNotFoundError; DamagedError; ValueError for an older format."""
    content = path.read_bytes()
    if content.startswith(FIRST_FORMAT):
        raise ValueError(
            f"{path} is of an older version of fedlsg and has no digest: continue this run with that version, or "
            "start a new run"
        )
    damaged = DamagedError(f"{path} is damaged: restore it from a copy, or start a new run")
    body = memoryview(content)[BEGIN:]
    if content[:BEGIN] != FORMAT + hashlib.sha256(body).digest():
        raise damaged
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except Exception:  # another program wrote it: the digest is right, and torch cannot read it
        raise damaged from None
    return state


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
