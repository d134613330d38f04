"""Hints: results of searches that are kept on disk, and checked before they are used.

A noise multiplier, a number of steps and a witness's interval take a tenth of a second to seconds
to find, and a few milliseconds to check. An entry that is damaged, of another version or of another
question only costs a new search. The epsilon that is reported is always computed, and never read
from here.

Each entry is a file of its own in the folder ``accounting`` of the cache (FEDLSG_CACHE, else
``~/.cache/fedlsg``), for its owner only. Its name is a digest of the question, the accountants'
code, and the versions of the libraries. With FEDLSG_HINTS=off, or a folder that cannot be used,
nothing is read or kept.
"""

import hashlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from fedlsg.owner_only import OTHERS_BITS, is_closed, make_folder

Answer = tuple[float, ...]

MAX_ENTRIES = 2048
"""Most entries: beyond it the oldest quarter is removed."""
MAX_ENTRY_BYTES = 2**16
"""Most bytes of an entry that is read."""
LIBRARIES = ("numpy", "scipy", "prv-accountant")


def checked(
    name: str,
    inputs: Sequence[object],
    *,
    holds: Callable[[Answer], bool],
    search: Callable[[], Answer],
) -> Answer:
    """The numbers that ``search`` finds for ``inputs``, or those of an earlier search.

    name: of the search.
    inputs: all that the answer depends on, as JSON has it.
    holds: whether an earlier answer may be used.
    search: the search; an empty answer is not kept.
    """
    if os.environ.get("FEDLSG_HINTS") == "off":
        return search()
    question = json.dumps([name, inputs, _code()])
    hint = _read(question)
    if hint is not None and holds(hint):
        return hint
    answer = search()
    if answer and answer != hint:
        with suppress(OSError, RuntimeError):
            _write(question, answer)
    return answer


def folder() -> Path:
    """Where hints are kept. Raises RuntimeError for a user without a home."""
    return (
        Path(os.environ.get("FEDLSG_CACHE") or Path.home() / ".cache" / "fedlsg").expanduser()
        / "accounting"
    )


def file_of(question: str) -> Path:
    """The file of a question."""
    return folder() / f"{_digest(question)}.json"


def _read(question: str) -> Answer | None:
    """The answer to a question; None without a file, or if it is damaged or another user's."""
    try:
        path = file_of(question)
        status = path.stat()
        is_own = os.name != "posix" or (status.st_uid == os.geteuid() == path.parent.stat().st_uid)
        if (
            not is_own
            or status.st_mode & OTHERS_BITS
            or not is_closed(path.parent)
            or status.st_size > MAX_ENTRY_BYTES
        ):
            return None
        record = json.loads(path.read_bytes())
        asked, answer, seal = record["question"], record["answer"], record["sha256"]
        if asked != question or seal != _digest(json.dumps([asked, answer])):
            return None
        answer = tuple(float(value) for value in answer)
        return answer if all(map(math.isfinite, answer)) else None
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _write(question: str, answer: Answer) -> None:
    """Write an entry by a rename, so that other processes never read a part of it."""
    path = file_of(question)
    make_folder(path.parent)
    record = {
        "question": question,
        "answer": answer,
        "sha256": _digest(json.dumps([question, answer])),
    }
    handle, temporary = tempfile.mkstemp(dir=path.parent)  # for its owner only
    try:
        with open(handle, "w") as file:
            json.dump(record, file)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    files = list(path.parent.iterdir())
    if len(files) > MAX_ENTRIES:
        for old in sorted(files, key=_written_at)[: len(files) - MAX_ENTRIES * 3 // 4]:
            old.unlink(missing_ok=True)


def _written_at(path: Path) -> float:
    """When a file was written, in seconds; infinity if another process has removed it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return math.inf


@cache  # installed code does not change within a process
def _code() -> list[str]:
    """The digest of the accountants' code, and the versions of the machine and the libraries."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return [
        digest,
        platform.machine(),
        platform.python_version(),
        *(version(name) for name in LIBRARIES),
    ]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
