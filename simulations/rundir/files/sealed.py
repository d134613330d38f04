"""Files with their own digest: a damaged file is found before anything in it is used."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulations.rundir.files.atomic import write_atomically

SEAL = "sha256"
DIGEST_BYTES = 32


class DamagedError(ValueError):
    """A file that is not what was written; the text names it and says what to do."""


def seal(record: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """The record as JSON, with its digest as the last entry."""
    plain = json.loads(json.dumps(record))
    return (json.dumps(plain | {SEAL: _digest(plain)}, indent=indent) + "\n").encode()


def unseal(path: Path, *, otherwise: str, strict: bool = True) -> dict[str, Any]:
    """The record of a sealed file. ``strict=False`` also takes a file without a digest: one of an older version.

    Raises FileNotFoundError; DamagedError, which ends with ``otherwise``: what to do then.
    """
    content = path.read_bytes()
    try:
        record = json.loads(content)
        written = record.pop(SEAL, None)
        if written == _digest(record) or (written is None and not strict):
            return dict(record)
    except (ValueError, AttributeError, TypeError, RecursionError):
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


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
